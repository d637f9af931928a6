//! Signals as events of the loop.

use std::io;
use std::os::fd::{AsRawFd, RawFd};

use nix::sys::signal::{SigHandler, SigSet, Signal, signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};

/// The signals that ask for an orderly end.
pub struct Signals(SignalFd);

impl Signals {
    /// Turns the signals into events. Must come before any thread is made, which
    /// would otherwise still take them.
    ///
    /// # Errors
    /// The system calls fail.
    pub fn block() -> io::Result<Signals> {
        // A file that grows past RLIMIT_FSIZE is then an error of that one write
        // (EFBIG) instead of the end of the machine. SIGPIPE is ignored by the
        // run-time library already.
        //
        // SAFETY: ignoring a signal installs no code of ours.
        unsafe { signal(Signal::SIGXFSZ, SigHandler::SigIgn) }?;
        let ends = SigSet::from_iter([Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP]);
        ends.thread_block()?;
        let flags = SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC;
        Ok(Signals(SignalFd::with_flags(&ends, flags)?))
    }

    /// The name of a signal that has come, if one has.
    pub fn caught(&self) -> Option<&'static str> {
        let info = self.0.read_signal().ok()??;
        let number = i32::try_from(info.ssi_signo).ok()?;
        Signal::try_from(number).ok().map(Signal::as_str)
    }
}

impl AsRawFd for Signals {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}
