//! A reason for the event loop to return.

use std::os::fd::{AsRawFd, RawFd};

use event_manager::{EventOps, EventSet, Events, MutEventSubscriber};

/// Has the event loop return whenever a descriptor is readable, and does nothing
/// else about it: what has to be done needs more than a subscriber can reach.
pub struct Wake(RawFd);

impl Wake {
    /// Watches the descriptor of `source`.
    pub fn on(source: &impl AsRawFd) -> Wake {
        Wake(source.as_raw_fd())
    }
}

impl MutEventSubscriber for Wake {
    fn process(&mut self, _: Events, _: &mut EventOps<'_>) {}

    fn init(&mut self, ops: &mut EventOps<'_>) {
        if let Err(error) = ops.add(Events::new_raw(self.0, EventSet::IN)) {
            log::error!("the event loop cannot watch descriptor {}: {error}", self.0);
        }
    }
}
