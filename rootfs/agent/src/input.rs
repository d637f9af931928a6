//! A command's standard input: a pipe or a terminal, and the host's credit.

use std::os::fd::OwnedFd;

use coppice_agent_protocol::STDIN_WINDOW;
use nix::errno::Errno;
use nix::unistd::write;

use crate::backlog::Backlog;

/// Credit is given back in pieces of at least this size, or when nothing waits.
const CREDIT_STEP: u32 = STDIN_WINDOW / 4;

/// The character that ends input on a terminal: Ctrl-D (VEOF).
const END_OF_INPUT: u8 = 4;

/// What waits for the process to take it.
#[derive(Debug)]
pub(crate) struct Input {
    fd: Option<OwnedFd>,
    pub(crate) writable: bool,
    terminal: bool,
    queue: Backlog,
    closing: bool,
    /// Bytes that the host may still send.
    window: u32,
    /// Bytes that were taken and not credited yet.
    owed: u32,
}

impl Input {
    pub(crate) fn new(fd: OwnedFd, terminal: bool) -> Self {
        Self {
            fd: Some(fd),
            writable: true,
            terminal,
            queue: Backlog::default(),
            closing: false,
            window: STDIN_WINDOW,
            owed: 0,
        }
    }

    pub(crate) fn fd(&self) -> Option<&OwnedFd> {
        self.fd.as_ref()
    }

    /// Takes bytes; tells whether the host kept to its window.
    #[must_use]
    pub(crate) fn feed(&mut self, bytes: &[u8]) -> bool {
        let count = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
        let Some(window) = self.window.checked_sub(count) else {
            return false;
        };
        self.window = window;
        if self.fd.is_some() && !self.closing {
            self.queue.tail().extend_from_slice(bytes);
        } else {
            self.owed += count;
        }
        true
    }

    /// No more will come: what waits still goes.
    pub(crate) fn close(&mut self) {
        if self.closing {
            return;
        }
        self.closing = true;
        if self.terminal {
            self.queue.tail().push(END_OF_INPUT);
        }
    }

    /// Writes what the process takes; tells whether anything went.
    pub(crate) fn pump(&mut self) -> bool {
        let Some(fd) = &self.fd else { return false };
        let mut moved = false;
        if self.writable && !self.queue.is_empty() {
            let (count, failure) = self.queue.write(|bytes| write(fd, bytes));
            moved = count > 0;
            self.owed = self.owed.saturating_add(count as u32);
            match failure {
                None => {}
                Some(Errno::EAGAIN) => self.writable = false,
                // The process does not want its input: that is its right.
                Some(_) => {
                    self.owed = self.owed.saturating_add(self.queue.len() as u32);
                    self.queue.clear();
                    self.fd = None;
                    return true;
                }
            }
        }
        if self.closing && self.queue.is_empty() {
            self.fd = None;
        }
        moved
    }

    /// Credit to give back now.
    pub(crate) fn take_credit(&mut self) -> Option<u32> {
        // A Ctrl-D of ours is no byte of the host's.
        let owed = self.owed.min(STDIN_WINDOW - self.window);
        if owed == 0 || (owed < CREDIT_STEP && !self.queue.is_empty()) {
            return None;
        }
        self.owed = 0;
        self.window += owed;
        Some(owed)
    }
}
