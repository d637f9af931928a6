//! Our own standard output and error, written to without ever waiting.
//!
//! The descriptors are shared with whoever started us, so that they must not
//! be switched to non-blocking: it would surprise everybody else who has them.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};

use nix::sys::socket::{MsgFlags, send};

/// A pipe with room takes this much at once without waiting (pipe(7), PIPE_BUF).
const PIPE_BUF: usize = 4096;

/// One of our output streams.
#[derive(Debug)]
pub enum Sink {
    /// A pipe or a terminal, opened once more for ourselves, non-blocking.
    Own(File),
    /// A socket: each call says that it does not wait.
    Socket(BorrowedFd<'static>),
    /// A file, which never makes anyone wait.
    File(BorrowedFd<'static>),
    /// A pipe or a terminal that cannot be opened again, say because it is
    /// another user's. Small pieces go in when there is room.
    Shared(BorrowedFd<'static>),
}

impl Sink {
    /// The sink behind one of our descriptors.
    pub fn new(fd: BorrowedFd<'static>) -> io::Result<Self> {
        let kind = File::from(fd.try_clone_to_owned()?).metadata()?.file_type();
        if kind.is_socket() {
            return Ok(Self::Socket(fd));
        }
        if !kind.is_fifo() && !nix::unistd::isatty(fd).unwrap_or(false) {
            return Ok(Self::File(fd));
        }
        let again = OpenOptions::new()
            .write(true)
            .custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY)
            .open(format!("/proc/self/fd/{}", fd.as_raw_fd()));
        Ok(again.map_or(Self::Shared(fd), Self::Own))
    }

    /// Writes what goes in now; `WouldBlock` if nothing does.
    pub fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = match self {
            Self::Own(file) => return file.write(bytes),
            Self::Socket(fd) => {
                let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL;
                send(fd.as_raw_fd(), bytes, flags)
            }
            Self::File(fd) => nix::unistd::write(*fd, bytes),
            Self::Shared(fd) => nix::unistd::write(*fd, &bytes[..bytes.len().min(PIPE_BUF)]),
        };
        Ok(written?)
    }
}

impl AsFd for Sink {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Own(file) => file.as_fd(),
            Self::Socket(fd) | Self::File(fd) | Self::Shared(fd) => *fd,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::fcntl::{FcntlArg, OFlag, fcntl};
    use std::io::Read;
    use std::os::fd::OwnedFd;
    use std::os::unix::net::UnixStream;

    fn forever(fd: impl Into<OwnedFd>) -> BorrowedFd<'static> {
        let fd: &'static OwnedFd = Box::leak(Box::new(fd.into()));
        fd.as_fd()
    }

    /// Writes until nothing more goes in; everything must arrive at `reader`.
    fn fill(fd: BorrowedFd<'static>, mut reader: impl Read) {
        let mut sink = Sink::new(fd).expect("usable");
        let chunk = [7; 100_000];
        let mut written = 0;
        loop {
            match sink.write(&chunk) {
                Ok(len) => written += len,
                Err(error) => break assert_eq!(error.kind(), io::ErrorKind::WouldBlock),
            }
        }
        let flags = fcntl(fd, FcntlArg::F_GETFL).expect("flags");
        let shared = OFlag::from_bits_retain(flags);
        assert!(
            !shared.contains(OFlag::O_NONBLOCK),
            "it was changed for everybody"
        );
        let mut arrived = vec![0; written];
        reader.read_exact(&mut arrived).expect("all of it");
    }

    #[test]
    fn a_full_pipe_does_not_wait() {
        let (reader, writer) = io::pipe().expect("a pipe");
        fill(forever(writer), reader);
    }

    #[test]
    fn a_full_socket_does_not_wait() {
        let (near, far) = UnixStream::pair().expect("a pair");
        fill(forever(near), far);
    }

    #[test]
    fn a_reader_that_went_is_told() {
        let (reader, writer) = io::pipe().expect("a pipe");
        let mut sink = Sink::new(forever(writer)).expect("usable");
        drop(reader);
        let error = sink.write(b"x").expect_err("nobody reads");
        assert_eq!(error.kind(), io::ErrorKind::BrokenPipe);
        // The same if it went before: then the pipe cannot be opened again.
        let (reader, writer) = io::pipe().expect("a pipe");
        drop(reader);
        let mut sink = Sink::new(forever(writer)).expect("usable");
        let error = sink.write(b"x").expect_err("nobody reads");
        assert_eq!(error.kind(), io::ErrorKind::BrokenPipe);
    }

    #[test]
    fn a_file_is_written_where_it_stands() {
        let file = tempfile::tempfile().expect("file");
        let mut sink = Sink::new(forever(file.try_clone().expect("cloned"))).expect("usable");
        assert_eq!(sink.write(b"one").expect("written"), 3);
        (&file).write_all(b"two").expect("written");
        assert_eq!(sink.write(b"three").expect("written"), 5);
        assert_eq!(file.metadata().expect("there").len(), 11);
    }
}
