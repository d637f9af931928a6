//! The device, what the driver negotiated, and whether it runs.

use std::sync::Arc;

use vmm_sys_util::eventfd::EventFd;

use super::notify;
use super::registers::{FeaturePage, status};
use crate::memory::GuestMemory;
use crate::virtio::{
    DeviceEnv, DeviceFault, Identity, Interrupt, QueueSetup, VirtioDevice, Virtqueue,
};

/// Queues and devices agree to it: buffers may be tables of descriptors.
pub(super) const RING_INDIRECT_DESC: u64 = 1 << 28;
/// Notifications and interrupts are suppressed by index.
pub(super) const RING_EVENT_IDX: u64 = 1 << 29;
/// Virtio 1.0 or later. There is no legacy mode, so a driver has to accept it.
pub(super) const VERSION_1: u64 = 1 << 32;

/// Everything of a transport but what is touched at every interrupt.
pub(super) struct Core {
    pub device: Box<dyn VirtioDevice>,
    pub identity: Identity,
    memory: GuestMemory,
    pub interrupt: Arc<Interrupt>,
    notify_fds: Arc<[EventFd]>,
    /// The device status register.
    pub status: u32,
    pub device_page: FeaturePage,
    pub driver_page: FeaturePage,
    /// The features that the driver accepted.
    pub accepted: u64,
    /// The queue that the queue registers speak of.
    pub selected: usize,
    pub queues: Vec<QueueSetup>,
    /// The device has its environment.
    started: bool,
    /// How often the driver broke the device.
    faults: u64,
}

impl Core {
    /// In the reset state.
    pub fn new(
        device: Box<dyn VirtioDevice>,
        memory: GuestMemory,
        interrupt: Arc<Interrupt>,
        notify_fds: Arc<[EventFd]>,
    ) -> Self {
        let identity = device.identity();
        let mut core = Self {
            device,
            identity,
            memory,
            interrupt,
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
        core.reset();
        core
    }

    /// Stops the device; nothing is served until the driver starts it anew.
    pub fn stop(&mut self) {
        self.device.stop();
        self.started = false;
    }

    pub fn offered(&self) -> u64 {
        self.identity.features | VERSION_1 | RING_EVENT_IDX | RING_INDIRECT_DESC
    }

    /// Back to the state before the driver ever touched the device.
    pub fn reset(&mut self) {
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
    pub fn write_status(&mut self, value: u32) {
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

    /// At least one of `bits` is set in the status.
    pub fn has(&self, bits: u32) -> bool {
        self.status & bits != 0
    }

    pub fn features_acceptable(&self) -> bool {
        self.has(status::DRIVER)
            && self.accepted & !self.offered() == 0
            && self.accepted & VERSION_1 != 0
    }

    /// The device has its environment.
    pub fn started(&self) -> bool {
        self.started
    }

    fn start(&mut self) {
        match self
            .set_up_queues()
            .and_then(|queues| self.start_with(queues))
        {
            Ok(()) => {
                // Buffers made available before now were notified, if at all,
                // when nobody could serve them.
                for index in 0..self.queues.len() {
                    notify(&self.notify_fds, index);
                }
            }
            Err(fault) => self.fail(&fault),
        }
    }

    /// The queues as the driver described them, after checking that.
    pub fn set_up_queues(&self) -> Result<Vec<Virtqueue>, DeviceFault> {
        let memory = Arc::new(self.memory.clone());
        let event_idx = self.accepted & RING_EVENT_IDX != 0;
        self.queues
            .iter()
            .enumerate()
            .map(|(i, setup)| Virtqueue::new(i, setup, event_idx, Arc::clone(&memory)))
            .collect()
    }

    /// Moves `queues` into the device.
    pub fn start_with(&mut self, queues: Vec<Virtqueue>) -> Result<(), DeviceFault> {
        self.device.start(DeviceEnv {
            memory: self.memory.clone(),
            queues,
            interrupt: Arc::clone(&self.interrupt),
            features: self.accepted,
        })?;
        self.started = true;
        Ok(())
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

    /// Queue `index` was notified.
    pub fn serve_queue(&mut self, index: usize) {
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
    pub fn serve_backend(&mut self) {
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
