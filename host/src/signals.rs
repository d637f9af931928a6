//! Signals as something to wait for.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};

/// The signals that ask a run to end. The first of them goes to the command.
const ENDING: [Signal; 4] = [
    Signal::SIGINT,
    Signal::SIGTERM,
    Signal::SIGHUP,
    Signal::SIGQUIT,
];

/// A signal that arrived.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Arrived {
    /// The local terminal has another size now.
    WindowChanged,
    /// Somebody wants an end.
    End(u8),
}

/// Catches the signals that concern a run. Children inherit that they are
/// blocked unless they are given another mask.
#[derive(Debug)]
pub struct Signals(SignalFd);

impl Signals {
    /// Begins to catch. Before any thread is started, or threads would still
    /// take signals the usual way.
    pub fn catch() -> io::Result<Self> {
        let mut set = SigSet::empty();
        set.add(Signal::SIGWINCH);
        for signal in ENDING {
            set.add(signal);
        }
        set.thread_block()?;
        let flags = SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK;
        Ok(Self(SignalFd::with_flags(&set, flags)?))
    }

    /// The next one that has arrived.
    pub fn next(&self) -> io::Result<Option<Arrived>> {
        let Some(info) = self.0.read_signal()? else {
            return Ok(None);
        };
        Ok(Some(match info.ssi_signo as i32 {
            libc::SIGWINCH => Arrived::WindowChanged,
            signal => Arrived::End(signal as u8),
        }))
    }
}

impl AsFd for Signals {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
