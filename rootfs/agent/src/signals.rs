//! The agent's signals, and the one place where processes are reaped.

use std::io;
use std::os::fd::AsFd;

use coppice_agent_protocol::Outcome;
use nix::errno::Errno;
use nix::sys::signal::{SigHandler, SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::sys::wait::{WaitPidFlag, waitpid};
use nix::unistd::Pid;

use crate::sys;

/// Signals as events instead of interruptions.
#[derive(Debug)]
pub(crate) struct Signals {
    fd: SignalFd,
}

impl Signals {
    /// Takes over every signal that the agent acts on.
    pub(crate) fn take() -> io::Result<Self> {
        // A stream or pipe that nobody reads gives an error, not a signal.
        sys::set_disposition(Signal::SIGPIPE, SigHandler::SigIgn)?;
        let mut set = SigSet::empty();
        for signal in [
            Signal::SIGCHLD,
            Signal::SIGHUP,
            Signal::SIGINT,
            Signal::SIGTERM,
            Signal::SIGUSR1,
            Signal::SIGUSR2,
        ] {
            set.add(signal);
        }
        set.thread_block()?;
        let flags = SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK;
        let fd = SignalFd::with_flags(&set, flags)?;
        Ok(Self { fd })
    }

    pub(crate) fn fd(&self) -> impl AsFd + '_ {
        self.fd.as_fd()
    }

    /// The next signal that arrived.
    pub(crate) fn next(&self) -> Option<Signal> {
        loop {
            match self.fd.read_signal() {
                Ok(Some(info)) => {
                    if let Ok(signal) = Signal::try_from(info.ssi_signo as i32) {
                        return Some(signal);
                    }
                }
                Ok(None) => return None,
                Err(Errno::EINTR) => {}
                Err(_) => return None,
            }
        }
    }
}

/// Reaps every child that has ended, adopted ones included. `ended` is told of
/// each while it is still a zombie, so that its number is nobody else's yet.
pub(crate) fn reap(mut ended: impl FnMut(Pid, Outcome)) {
    while let Some((pid, outcome)) = sys::ended_child() {
        ended(pid, outcome);
        // It is a zombie, so this cannot wait. The status is that of above;
        // one by a real-time signal is an error to this call, and reaped too.
        let _ = waitpid(pid, Some(WaitPidFlag::WNOHANG));
    }
}
