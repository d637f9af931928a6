//! The transport's place in the event loop.

use std::os::fd::AsRawFd;
use std::sync::Arc;

use event_manager::{EventOps, EventSet, Events, MutEventSubscriber};
use parking_lot::Mutex;

use super::MmioTransport;

/// Marks the device's own descriptor among the watched ones; queues are marked
/// with their index.
const BACKEND: u32 = u32::MAX;

/// Serves a transport's queues and backend from the event loop, while the vCPUs
/// reach its registers over the bus.
pub struct TransportSubscriber(pub Arc<Mutex<MmioTransport>>);

impl MutEventSubscriber for TransportSubscriber {
    fn process(&mut self, events: Events, ops: &mut EventOps<'_>) {
        if !events.event_set().contains(EventSet::IN) {
            // An error or hang-up alone would be reported again at once, for ever.
            log::error!("a descriptor of a virtio device failed and is watched no more");
            if let Err(error) = ops.remove(events) {
                log::error!("it cannot be removed from the event loop: {error}");
            }
            return;
        }
        // The transport's own lock is let go, so that the vCPUs can use the
        // registers that do not need the core.
        let core = Arc::clone(&self.0.lock().core);
        let mut core = core.lock();
        match events.data() {
            BACKEND => core.serve_backend(),
            index => core.serve_queue(index as usize),
        }
    }

    fn init(&mut self, ops: &mut EventOps<'_>) {
        let transport = self.0.lock();
        let queues = transport.notify_fds.iter().map(AsRawFd::as_raw_fd);
        let backend = transport
            .core
            .lock()
            .device
            .backend_fd()
            .map(|fd| fd.as_raw_fd());
        let marked = (0..).zip(queues).chain(backend.map(|fd| (BACKEND, fd)));
        for (mark, fd) in marked {
            if let Err(error) = ops.add(Events::with_data_raw(fd, mark, EventSet::IN)) {
                log::error!("a virtio device cannot be served by the event loop: {error}");
            }
        }
    }
}
