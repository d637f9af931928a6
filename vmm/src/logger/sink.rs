//! Where lines go, without ever waiting for it.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

/// The log file cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("cannot open the log {path:?} (log_path): {source}")]
pub struct LogError {
    path: PathBuf,
    source: io::Error,
}

/// A destination and what it has lost.
pub struct Sink {
    to: Destination,
    /// Lines lost in all, and those that the log does not mention yet.
    lost: u64,
    unreported: u64,
}

enum Destination {
    Stderr,
    /// A file or pipe that does not block.
    File(File),
}

impl Sink {
    /// Standard error.
    pub fn stderr() -> Sink {
        Sink {
            to: Destination::Stderr,
            lost: 0,
            unreported: 0,
        }
    }

    /// The file or named pipe at `path`; a file is made if there is none.
    ///
    /// # Errors
    /// It cannot be opened for writing.
    pub fn open(path: &Path) -> Result<Sink, LogError> {
        let is_pipe = path.metadata().is_ok_and(|file| file.file_type().is_fifo());
        let file = OpenOptions::new()
            // Opened for reading as well, a pipe needs no reader to be there,
            // and one that comes and goes does no harm.
            .read(is_pipe)
            .append(true)
            .create(!is_pipe)
            .mode(0o600)
            .custom_flags(libc::O_NONBLOCK)
            .open(path)
            .map_err(|source| LogError {
                path: path.to_owned(),
                source,
            })?;
        Ok(Sink {
            to: Destination::File(file),
            lost: 0,
            unreported: 0,
        })
    }

    /// Lines that could not be written.
    pub fn lost(&self) -> u64 {
        self.lost
    }

    /// Writes `line` now or never.
    pub fn write(&mut self, line: &str) {
        if self.unreported > 0 {
            let note = format!("{} log lines were lost here\n", self.unreported);
            if self.try_write(&note) {
                self.unreported = 0;
            }
        }
        if self.unreported > 0 || !self.try_write(line) {
            self.lost += 1;
            self.unreported += 1;
        }
    }

    /// Writes `line` in one call. False if it could not be written whole.
    fn try_write(&mut self, line: &str) -> bool {
        let written = match &mut self.to {
            Destination::File(file) => file.write(line.as_bytes()),
            // Its blocking mode is shared with other processes and so not ours
            // to change; a pipe that polls as writable takes a line at once.
            Destination::Stderr if takes_a_line(&io::stderr()) => {
                io::stderr().write(line.as_bytes())
            }
            Destination::Stderr => return false,
        };
        written.is_ok_and(|count| count == line.len())
    }
}

fn takes_a_line(to: &impl AsFd) -> bool {
    let mut fds = [PollFd::new(to.as_fd(), PollFlags::POLLOUT)];
    let ready = poll(&mut fds, PollTimeout::ZERO);
    ready.is_ok()
        && fds[0]
            .revents()
            .is_some_and(|found| found.contains(PollFlags::POLLOUT))
}
