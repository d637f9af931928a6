//! A virtqueue together with the memory that it lives in.

use virtio_queue::Queue;

use crate::memory::GuestMemory;

/// A virtqueue that belongs to a started device.
#[derive(Debug)]
pub struct Virtqueue {
    _queue: Queue,
    _memory: GuestMemory,
}
