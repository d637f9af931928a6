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

mod registers;
mod subscriber;

use std::io;
use std::sync::Arc;

use vmm_sys_util::eventfd::{EFD_NONBLOCK, EventFd};

use self::registers::{FeaturePage, status};
use super::{DeviceEnv, DeviceFault, Identity, Interrupt, QueueSetup, VirtioDevice, Virtqueue};
use crate::memory::GuestMemory;

pub use subscriber::TransportSubscriber;

/// Queues and devices agree to it: buffers may be tables of descriptors.
const RING_INDIRECT_DESC: u64 = 1 << 28;
/// Notifications and interrupts are suppressed by index.
const RING_EVENT_IDX: u64 = 1 << 29;
/// Virtio 1.0 or later. There is no legacy mode, so a driver has to accept it.
const VERSION_1: u64 = 1 << 32;

/// One device with its registers. The machine puts it on the MMIO bus and gives
/// a [`TransportSubscriber`] of it to the event loop.
pub struct MmioTransport {
    device: Box<dyn VirtioDevice>,
    identity: Identity,
    memory: GuestMemory,
    interrupt: Arc<Interrupt>,
    notify_fds: Vec<EventFd>,
    status: u32,
    device_page: FeaturePage,
    driver_page: FeaturePage,
    accepted: u64,
    selected: usize,
    queues: Vec<QueueSetup>,
    /// The device has its environment.
    started: bool,
    /// How often the driver broke the device.
    faults: u64,
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
        let identity = device.identity();
        let notify_fds = identity
            .queue_sizes
            .iter()
            .map(|_| EventFd::new(EFD_NONBLOCK))
            .collect::<io::Result<_>>()?;
        let mut transport = Self {
            device,
            identity,
            memory,
            interrupt: Arc::new(Interrupt::new(interrupt_line)),
            notify_fds,
            status: 0,
            device_page: FeaturePage::default(),
            driver_page: FeaturePage::default(),
            accepted: 0,
            selected: 0,
            queues: Vec::new(),
            started: false,
            faults: 0,
        };
        transport.reset();
        Ok(transport)
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

    /// The machine ends: stops the device, which completes what is in flight.
    pub fn stop(&mut self) {
        self.device.stop();
        self.started = false;
    }

    fn offered(&self) -> u64 {
        self.identity.features | VERSION_1 | RING_EVENT_IDX | RING_INDIRECT_DESC
    }

    /// Back to the state before the driver ever touched the device.
    fn reset(&mut self) {
        self.stop();
        self.status = 0;
        self.device_page = FeaturePage::default();
        self.driver_page = FeaturePage::default();
        self.accepted = 0;
        self.selected = 0;
        let sizes = self.identity.queue_sizes.iter();
        self.queues = sizes.map(|&size| QueueSetup::new(size)).collect();
        self.interrupt.acknowledge(u32::MAX);
    }

    /// The driver wrote the status register (virtio 1.2 §2.1, §3.1.1).
    fn write_status(&mut self, value: u32) {
        if value == 0 {
            return self.reset();
        }
        // The driver never clears a bit, and one bit is not its own to write. It
        // may write back a status that it read before the device failed.
        let added = value & status::DRIVERS & !self.status;
        for bit in [status::ACKNOWLEDGE, status::DRIVER, status::FAILED] {
            self.status |= added & bit;
        }
        if added & status::FEATURES_OK != 0 && self.features_acceptable() {
            self.status |= status::FEATURES_OK;
        }
        if added & status::DRIVER_OK != 0 && self.has(status::FEATURES_OK) {
            self.status |= status::DRIVER_OK;
            self.start();
        }
    }

    fn has(&self, bit: u32) -> bool {
        self.status & bit != 0
    }

    fn features_acceptable(&self) -> bool {
        self.has(status::DRIVER)
            && self.accepted & !self.offered() == 0
            && self.accepted & VERSION_1 != 0
    }

    fn start(&mut self) {
        match self.start_device() {
            Ok(()) => {
                self.started = true;
                // Buffers made available before now were notified, if at all,
                // when nobody could serve them.
                for index in 0..self.queues.len() {
                    self.notify(index);
                }
            }
            Err(fault) => self.fail(&fault),
        }
    }

    fn start_device(&mut self) -> Result<(), DeviceFault> {
        let memory = Arc::new(self.memory.clone());
        let event_idx = self.accepted & RING_EVENT_IDX != 0;
        let queues = self
            .queues
            .iter()
            .enumerate()
            .map(|(i, setup)| Virtqueue::new(i, setup, event_idx, Arc::clone(&memory)))
            .collect::<Result<_, _>>()?;
        self.device.start(DeviceEnv {
            memory: self.memory.clone(),
            queues,
            interrupt: Arc::clone(&self.interrupt),
            features: self.accepted,
        })
    }

    /// Takes a device out of service until the driver resets it (virtio 1.2
    /// §2.1.2).
    fn fail(&mut self, fault: &DeviceFault) {
        // A driver can do this over and over; the log must not grow with it.
        self.faults = self.faults.saturating_add(1);
        if self.faults.is_power_of_two() {
            log::warn!(
                "virtio device of type {} needs a reset by its driver (fault number {}): {fault}",
                self.identity.device_id,
                self.faults
            );
        }
        self.stop();
        self.status |= status::NEEDS_RESET;
        self.interrupt.config_changed();
    }

    /// Has the event loop look at queue `index`.
    fn notify(&self, index: usize) {
        if let Some(fd) = self.notify_fds.get(index) {
            // Fails only if the counter is at its maximum: then the event loop
            // has yet to look.
            let _ = fd.write(1);
        }
    }

    /// Queue `index` was notified.
    fn serve_queue(&mut self, index: usize) {
        let Some(fd) = self.notify_fds.get(index) else {
            return;
        };
        // An error means that nothing is there to read; looking at the queue all
        // the same is harmless.
        let _ = fd.read();
        if self.started && self.queues[index].ready {
            let served = self.device.queue_notified(index);
            self.settle(served);
        }
    }

    /// The device's own descriptor is readable.
    fn serve_backend(&mut self) {
        let served = self.device.backend_ready();
        self.settle(served);
    }

    fn settle(&mut self, served: Result<(), DeviceFault>) {
        if let Err(fault) = served
            && self.started
        {
            self.fail(&fault);
        }
    }
}

#[cfg(test)]
#[path = "mmio_test.rs"]
mod tests;
