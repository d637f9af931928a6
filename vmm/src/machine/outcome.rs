//! How a guest ends, told once from whichever vCPU sees it first.

use std::fmt;
use std::io;

use parking_lot::Mutex;
use vmm_sys_util::eventfd::{EFD_NONBLOCK, EventFd};

/// How a guest ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It asked for a reset.
    Reset,
    /// It powered itself off.
    PowerOff,
    /// Its kernel panicked.
    GuestPanic,
    /// A vCPU could not go on.
    VcpuFailed {
        /// The vCPU's number.
        vcpu: u8,
        /// Why.
        what: String,
    },
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Reset => write!(f, "it reset itself"),
            Self::PowerOff => write!(f, "it powered itself off"),
            Self::GuestPanic => write!(f, "its kernel panicked"),
            Self::VcpuFailed { vcpu, what } => write!(f, "vCPU {vcpu} failed: {what}"),
        }
    }
}

/// The place where the first outcome is kept.
pub(super) struct Ending {
    outcome: Mutex<Option<Outcome>>,
    event: EventFd,
}

impl Ending {
    pub(super) fn new() -> io::Result<Self> {
        Ok(Self {
            outcome: Mutex::new(None),
            event: EventFd::new(EFD_NONBLOCK)?,
        })
    }

    /// Keeps `outcome` unless there is one already.
    pub(super) fn report(&self, outcome: Outcome) {
        let mut kept = self.outcome.lock();
        if kept.is_none() {
            log::info!("the guest has ended: {outcome}");
            *kept = Some(outcome);
            // It can only fail when the counter is full, and then it is readable.
            let _ = self.event.write(1);
        }
    }

    pub(super) fn outcome(&self) -> Option<Outcome> {
        self.outcome.lock().clone()
    }

    pub(super) fn event(&self) -> &EventFd {
        &self.event
    }
}
