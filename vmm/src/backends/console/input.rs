//! Where input comes from, read without waiting and only as far as the guest
//! has room.

use std::fs::File;
use std::io::{self, Read as _};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use super::calls;

/// What a look at the input found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Look {
    /// So many bytes.
    Bytes(usize),
    /// Nothing for now.
    Nothing,
    /// Nothing any more: end of file, hang-up, error.
    End,
}

/// An input descriptor, whose open file description may be shared with others
/// and is therefore looked at before each read instead of being changed.
pub(super) struct Input {
    file: File,
    is_terminal: bool,
}

impl Input {
    pub(super) fn new(fd: OwnedFd) -> Self {
        let is_terminal = calls::is_terminal(fd.as_fd());
        Self {
            file: fd.into(),
            is_terminal,
        }
    }

    /// Fills `out` with what is there.
    pub(super) fn read(&self, out: &mut [u8]) -> Look {
        // A background process that reads its terminal is stopped, and its
        // machine with it.
        if self.is_terminal && calls::is_background(self.file.as_fd()) {
            return Look::End;
        }
        if !calls::poll(self.file.as_fd(), libc::POLLIN, Duration::ZERO) {
            return Look::Nothing;
        }
        match (&self.file).read(out) {
            Ok(0) => Look::End,
            Ok(count) => Look::Bytes(count),
            Err(error) => match error.kind() {
                io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted => Look::Nothing,
                _ => Look::End,
            },
        }
    }
}

impl AsFd for Input {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}
