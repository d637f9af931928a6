//! The trait between a virtio device and whatever transport presents it.

use std::any::Any;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use super::{Interrupt, Virtqueue};
use crate::memory::GuestMemory;
use crate::state::StateError;

/// What a device is, as data. The transport adds the feature bits that are its
/// own (`VIRTIO_F_VERSION_1`) or the queues' (`VIRTIO_RING_F_*`).
#[derive(Clone, Debug)]
pub struct Identity {
    /// Device type (virtio 1.2 §5).
    pub device_id: u32,
    /// Feature bits that the device type defines and this device offers.
    pub features: u64,
    /// The largest size of each virtqueue, in descriptors; a power of two.
    pub queue_sizes: &'static [u16],
}

/// Everything that a running device may touch.
pub struct DeviceEnv {
    /// Guest memory, for the buffers of descriptor chains.
    pub memory: GuestMemory,
    /// The virtqueues, in the order of [`Identity::queue_sizes`]. The device
    /// owns them until it is stopped. A queue that the driver left unready
    /// never yields a chain.
    pub queues: Vec<Virtqueue>,
    /// Tells the driver about used buffers and configuration changes.
    pub interrupt: Arc<Interrupt>,
    /// The feature bits that driver and device agreed on.
    pub features: u64,
}

/// The driver broke a rule of the queue or the device in a way that no single
/// request can answer (a ring outside memory, an available index that ran
/// ahead). The transport reports `DEVICE_NEEDS_RESET` and serves the device no
/// more until the driver resets it (virtio 1.2 §2.1.2).
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct DeviceFault(pub String);

/// A virtio device without its transport.
///
/// Calls come one at a time: configuration accesses and start and stop from
/// vCPU threads, the rest from the event loop.
pub trait VirtioDevice: Any + Send {
    /// What the device is. Must not change while the machine exists.
    fn identity(&self) -> Identity;

    /// Reads the device's configuration space at `offset`. `out` arrives zeroed;
    /// bytes past the end of the space are left alone.
    fn read_config(&self, offset: u64, out: &mut [u8]);

    /// Writes the device's configuration space. Most devices have no writable
    /// field and ignore it.
    fn write_config(&mut self, _offset: u64, _data: &[u8]) {}

    /// The driver set `DRIVER_OK`: the queues move in.
    ///
    /// # Errors
    /// The device cannot run with what the driver set up.
    fn start(&mut self, env: DeviceEnv) -> Result<(), DeviceFault>;

    /// The driver reset the device, or the machine stops: finish or drop what is
    /// in flight and forget the environment. Calling it twice is harmless.
    fn stop(&mut self);

    /// The queues that moved in with [`VirtioDevice::start`], in their order;
    /// empty while the device is stopped.
    fn queues(&self) -> &[Virtqueue];

    /// The device's own state, encoded. Registers and the positions of the queues
    /// are the transport's to save. Called between requests; a device that has
    /// some in flight all the same either carries them or refuses.
    ///
    /// # Errors
    /// This kind of device has no saved form, which is so unless it says otherwise,
    /// or not at the moment.
    fn save(&self) -> Result<Vec<u8>, StateError> {
        Err(StateError::Unsupported {
            what: name(self.identity().device_id),
        })
    }

    /// Takes in what [`VirtioDevice::save`] returned, perhaps in another process.
    /// The device was just built; if it had been started when it was saved it is
    /// started right after this, and [`VirtioDevice::queue_notified`] is called
    /// for each of its queues before vCPUs run.
    ///
    /// # Errors
    /// The state cannot be read, breaks a rule or does not fit the device.
    fn restore(&mut self, _state: &[u8]) -> Result<(), StateError> {
        Err(StateError::Unsupported {
            what: name(self.identity().device_id),
        })
    }

    /// The driver made buffers available in queue `index`.
    ///
    /// # Errors
    /// The driver broke the queue; see [`DeviceFault`].
    fn queue_notified(&mut self, index: usize) -> Result<(), DeviceFault>;

    /// A descriptor that the event loop watches for input on the device's
    /// behalf from the time the device is built (level-triggered). A device
    /// with many descriptors gathers them in an epoll descriptor of its own.
    fn backend_fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    /// [`VirtioDevice::backend_fd`] is readable. Called in whatever state the
    /// device is; a device that is not started must still not leave the
    /// descriptor readable for ever.
    ///
    /// # Errors
    /// The driver broke a queue; see [`DeviceFault`].
    fn backend_ready(&mut self) -> Result<(), DeviceFault> {
        Ok(())
    }
}

/// What to call a device of type `device_id` in messages.
pub(super) fn name(device_id: u32) -> String {
    format!("the virtio device of type {device_id}")
}
