//! Where output goes, written without ever waiting for a reader.

use std::fs::{File, OpenOptions};
use std::io::{self, Write as _};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt as _, OpenOptionsExt as _};
use std::time::Duration;

use super::calls;

/// What a pipe that polls as writable takes without waiting (`PIPE_BUF`).
const PIPE_CHUNK: usize = libc::PIPE_BUF;
/// What a terminal that polls as writable takes without waiting.
const TERMINAL_CHUNK: usize = 1;

/// An output descriptor. Its open file description may be shared with other
/// processes, to whom `O_NONBLOCK` would be a surprise, so it is never set.
pub(super) struct Sink {
    file: File,
    way: Way,
}

/// How to write without waiting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// It never waits for a reader: a file of a disk.
    Direct,
    /// A socket, where each call may say that it does not want to wait.
    Socket,
    /// An open file description of our own, without waiting.
    NonBlocking,
    /// Shared with others: at most so many bytes after a look whether it would
    /// wait.
    Chunks(usize),
}

impl Sink {
    /// A sink on a descriptor that others may share.
    pub(super) fn shared(fd: OwnedFd) -> io::Result<Self> {
        let file = File::from(fd);
        let kind = file.metadata()?.file_type();
        if kind.is_socket() {
            let way = Way::Socket;
            return Ok(Self { file, way });
        }
        if !kind.is_fifo() && !kind.is_char_device() {
            // Not opened anew, since that would begin at the file's start.
            let way = Way::Direct;
            return Ok(Self { file, way });
        }
        let reopened = OpenOptions::new()
            .write(true)
            .custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY)
            .open(format!("/proc/self/fd/{}", file.as_raw_fd()));
        match reopened {
            Ok(file) => Ok(Self::own(file)),
            // No /proc here, or the terminal belongs to someone else.
            Err(_) => Self::chunked(file),
        }
    }

    /// A sink on a file that this process alone opened, with `O_NONBLOCK`.
    pub(super) fn own(file: File) -> Self {
        let way = Way::NonBlocking;
        Self { file, way }
    }

    /// A sink on a pipe or terminal that cannot be opened anew.
    pub(super) fn chunked(file: File) -> io::Result<Self> {
        let limit = if file.metadata()?.file_type().is_fifo() {
            PIPE_CHUNK
        } else {
            TERMINAL_CHUNK
        };
        let way = Way::Chunks(limit);
        Ok(Self { file, way })
    }

    /// Writes some of `bytes`; `WouldBlock` if nothing can be written now.
    pub(super) fn write(&self, bytes: &[u8]) -> io::Result<usize> {
        let written = match self.way {
            Way::Socket => calls::send(self.file.as_fd(), bytes)?,
            Way::Direct | Way::NonBlocking => (&self.file).write(bytes)?,
            Way::Chunks(limit) => {
                if !self.wait(Duration::ZERO) {
                    return Err(io::ErrorKind::WouldBlock.into());
                }
                (&self.file).write(&bytes[..bytes.len().min(limit)])?
            }
        };
        if written == 0 && !bytes.is_empty() {
            return Err(io::ErrorKind::WriteZero.into());
        }
        Ok(written)
    }

    /// Waits up to `limit` until something can be written.
    pub(super) fn wait(&self, limit: Duration) -> bool {
        calls::poll(self.file.as_fd(), libc::POLLOUT, limit)
    }
}

impl AsFd for Sink {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}
