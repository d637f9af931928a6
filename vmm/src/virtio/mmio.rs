//! The virtio-mmio transport, version 2 (virtio 1.2 §4.2).
//!
//! Registers are 32 bits wide and are accessed whole; any other access to them
//! is ignored, and so is one that the device's status does not allow. The
//! driver's life is a line: it acknowledges, negotiates features, sets up its
//! queues and sets `DRIVER_OK`, at which the queues move into the device. A reset
//! from any point takes it back to the start.
//!
//! A device whose queues the driver broke is stopped, marked
//! `DEVICE_NEEDS_RESET` and not served again until the driver resets it.
//!
//! The event loop holds the core's lock while the device works, which may take
//! as long as the host's disk does. What a driver touches for every interrupt
//! and notification is therefore kept outside of that lock.

mod core;
mod registers;
mod state;
mod subscriber;

use std::any::Any;
use std::io;
use std::sync::Arc;

use parking_lot::Mutex;
use vmm_sys_util::eventfd::{EFD_NONBLOCK, EventFd};

use self::core::Core;
use super::{Interrupt, VirtioDevice};
use crate::bus::{BusDevice, Effect};
use crate::memory::GuestMemory;
use crate::state::StateError;

pub use state::{QueueV1, TransportState, TransportV1};
pub use subscriber::TransportSubscriber;

const INTERRUPT_STATUS: u64 = 0x60;
const INTERRUPT_ACKNOWLEDGE: u64 = 0x64;

/// One device with its registers. The machine puts it on the MMIO bus and gives
/// a [`TransportSubscriber`] of it to the event loop.
pub struct MmioTransport {
    core: Arc<Mutex<Core>>,
    interrupt: Arc<Interrupt>,
    notify_fds: Arc<[EventFd]>,
}

impl MmioTransport {
    /// Length of the register window in bytes.
    pub const LEN: u64 = 0x1000;
    /// Offset of the register that the driver writes a queue's index to.
    pub const QUEUE_NOTIFY: u64 = 0x50;

    /// A transport in its reset state. `interrupt_line` is raised for the driver;
    /// the machine binds it to the interrupt controller.
    ///
    /// # Errors
    /// No event descriptor can be had.
    pub fn new(
        device: Box<dyn VirtioDevice>,
        memory: GuestMemory,
        interrupt_line: EventFd,
    ) -> io::Result<Self> {
        let queues = device.identity().queue_sizes.len();
        let notify_fds = (0..queues)
            .map(|_| EventFd::new(EFD_NONBLOCK))
            .collect::<io::Result<Arc<[_]>>>()?;
        let interrupt = Arc::new(Interrupt::new(interrupt_line));
        let core = Core::new(
            device,
            memory,
            Arc::clone(&interrupt),
            Arc::clone(&notify_fds),
        );
        Ok(Self {
            core: Arc::new(Mutex::new(core)),
            interrupt,
            notify_fds,
        })
    }

    /// One event descriptor for each queue, which the machine binds to writes of
    /// the queue's index to [`MmioTransport::QUEUE_NOTIFY`]. A write that reaches
    /// the register by itself has the same effect.
    pub fn notify_fds(&self) -> &[EventFd] {
        &self.notify_fds
    }

    /// The interrupt of this device.
    pub fn interrupt(&self) -> &Arc<Interrupt> {
        &self.interrupt
    }

    /// The state of the registers, the queues and the device. The vCPUs are at
    /// rest, and the event loop is not serving the device.
    ///
    /// # Errors
    /// The device has no saved form, or the driver broke a queue and the device
    /// has not noticed yet.
    pub fn save(&self) -> Result<TransportState, StateError> {
        self.core.lock().save()
    }

    /// Takes in a saved state: the queues go on where they were and the device is
    /// started if it had been. Guest memory is that of the time of saving. A
    /// transport that refuses a state is as after a reset.
    ///
    /// # Errors
    /// The state breaks a rule, or does not fit the device or guest memory.
    pub fn restore(&mut self, state: TransportState) -> Result<(), StateError> {
        self.core.lock().restore(state)
    }

    /// Wakes up everybody who may have been woken up just before the state was
    /// saved. To be called after the interrupt controllers have their state and
    /// before a vCPU runs.
    ///
    /// A notification that the driver sent and the event loop did not get to was
    /// kept by an event descriptor of another process. With
    /// `VIRTIO_F_RING_EVENT_IDX` the driver does not send it again before the
    /// device has asked for it (virtio 1.2 §2.7.10.1), so each queue of a started
    /// device is looked at once, which asks anew.
    ///
    /// An interrupt that the device raised may be nowhere: KVM may carry out the
    /// write to an irqfd later, from a work queue (`irqfd_wakeup` in Linux'
    /// `virt/kvm/eventfd.c`), and so after the interrupt controllers were saved.
    /// One too many does no harm, the driver finds an interrupt status of 0 or no
    /// used buffers.
    pub fn after_restore(&self) {
        if self.core.lock().started() {
            for index in 0..self.notify_fds.len() {
                notify(&self.notify_fds, index);
            }
        }
        self.interrupt.raise_again();
    }

    /// Has `act` do something to the device, if it is a `T`. Nothing may be in
    /// flight that `act` disturbs: that is so between two events.
    pub fn with_device<T: VirtioDevice, R>(&self, act: impl FnOnce(&mut T) -> R) -> Option<R> {
        let mut core = self.core.lock();
        let device: &mut dyn Any = core.device.as_mut();
        device.downcast_mut().map(act)
    }

    /// The machine ends: stops the device, which completes what is in flight.
    pub fn stop(&mut self) {
        self.core.lock().stop();
    }
}

impl BusDevice for MmioTransport {
    fn read(&mut self, offset: u64, out: &mut [u8]) {
        match <&mut [u8; 4]>::try_from(&mut *out) {
            Ok(out) if offset == INTERRUPT_STATUS => {
                *out = self.interrupt.status().to_le_bytes();
            }
            _ => self.core.lock().read(offset, out),
        }
    }

    fn write(&mut self, offset: u64, data: &[u8]) -> Effect {
        let value = <[u8; 4]>::try_from(data).map(u32::from_le_bytes);
        match (offset, value) {
            (INTERRUPT_ACKNOWLEDGE, Ok(bits)) => self.interrupt.acknowledge(bits),
            (Self::QUEUE_NOTIFY, Ok(index)) => notify(&self.notify_fds, index as usize),
            _ => self.core.lock().write(offset, data),
        }
        Effect::None
    }
}

/// Has the event loop look at queue `index`.
fn notify(fds: &[EventFd], index: usize) {
    if let Some(fd) = fds.get(index) {
        // Fails only if the counter is at its maximum: then the event loop has
        // yet to look.
        let _ = fd.write(1);
    }
}

#[cfg(test)]
#[path = "mmio_test.rs"]
mod tests;
