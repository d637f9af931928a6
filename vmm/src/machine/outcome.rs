//! How a guest ends, told once from whichever vCPU sees it first.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, Builder};
use std::time::Duration;

use parking_lot::Mutex;
use vmm_sys_util::eventfd::{EFD_NONBLOCK, EventFd};

/// How long a guest that has panicked may go on: enough for a report on a slow
/// console, and for `panic=1` to reset the machine.
const LAST_WORDS: Duration = Duration::from_secs(3);

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
    /// The guest's kernel has said that it panicked.
    panicked: AtomicBool,
    event: EventFd,
}

impl Ending {
    pub(super) fn new() -> io::Result<Self> {
        Ok(Self {
            outcome: Mutex::new(None),
            panicked: AtomicBool::new(false),
            event: EventFd::new(EFD_NONBLOCK)?,
        })
    }

    /// The guest's kernel says that it panicked. It is given time to write the
    /// rest of its report and to reset itself, as its `panic=` argument may say;
    /// one that does neither is ended here.
    pub(super) fn panicked(ending: &Arc<Self>) {
        if ending.panicked.swap(true, Ordering::AcqRel) {
            return;
        }
        log::warn!("the guest's kernel has panicked");
        let waiting = ending.clone();
        let waiter = Builder::new().name("panic".to_owned()).spawn(move || {
            thread::sleep(LAST_WORDS);
            waiting.report(Outcome::GuestPanic);
        });
        if waiter.is_err() {
            ending.report(Outcome::GuestPanic);
        }
    }

    /// Keeps `outcome` unless there is one already. However a guest ends after
    /// a panic, the panic is what ended it.
    pub(super) fn report(&self, outcome: Outcome) {
        let panicked = self.panicked.load(Ordering::Acquire);
        let outcome = if panicked {
            Outcome::GuestPanic
        } else {
            outcome
        };
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_outcome_is_kept() {
        let ending = Ending::new().unwrap();
        ending.report(Outcome::PowerOff);
        ending.report(Outcome::Reset);
        assert_eq!(ending.outcome(), Some(Outcome::PowerOff));
        assert_eq!(ending.event().read().unwrap(), 1);
    }

    #[test]
    fn a_reset_after_a_panic_is_the_panics() {
        let ending = Arc::new(Ending::new().unwrap());
        Ending::panicked(&ending);
        assert_eq!(ending.outcome(), None, "it may write its report");
        ending.report(Outcome::Reset);
        assert_eq!(ending.outcome(), Some(Outcome::GuestPanic));
    }
}
