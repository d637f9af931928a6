//! How a device raises its interrupt line.

use std::sync::atomic::{AtomicU32, Ordering};

use vmm_sys_util::eventfd::EventFd;

/// Bit of the interrupt status for used buffers (virtio 1.2 §4.2.2).
const USED_BUFFERS: u32 = 1 << 0;
/// Bit of the interrupt status for a configuration change.
const CONFIG_CHANGE: u32 = 1 << 1;

/// All bits of the interrupt status.
pub(super) const REASONS: u32 = USED_BUFFERS | CONFIG_CHANGE;

/// The interrupt line of one device and the status register that says why it
/// was raised.
pub struct Interrupt {
    status: AtomicU32,
    config_generation: AtomicU32,
    line: EventFd,
}

impl Interrupt {
    /// An interrupt whose line is an event descriptor bound to the interrupt
    /// controller (KVM_IRQFD).
    pub fn new(line: EventFd) -> Self {
        Self {
            status: AtomicU32::new(0),
            config_generation: AtomicU32::new(0),
            line,
        }
    }

    /// Tells the driver that used buffers wait for it.
    pub fn used_buffers(&self) {
        self.raise(USED_BUFFERS);
    }

    /// Tells the driver that the configuration space changed.
    pub fn config_changed(&self) {
        self.config_generation.fetch_add(1, Ordering::AcqRel);
        self.raise(CONFIG_CHANGE);
    }

    /// Changes with every change of the configuration space, so that a driver
    /// that reads it in several pieces sees whether they belong together.
    pub fn config_generation(&self) -> u32 {
        self.config_generation.load(Ordering::Acquire)
    }

    /// The event descriptor behind the line, to bind it to the interrupt
    /// controller.
    pub fn line(&self) -> &EventFd {
        &self.line
    }

    /// The reasons that the driver has not acknowledged.
    pub fn status(&self) -> u32 {
        self.status.load(Ordering::Acquire)
    }

    /// The driver acknowledges `bits`.
    pub fn acknowledge(&self, bits: u32) {
        self.status.fetch_and(!bits, Ordering::AcqRel);
    }

    /// Takes up a saved status and generation, and leaves the line alone.
    pub(super) fn restore(&self, status: u32, config_generation: u32) {
        self.status.store(status, Ordering::Release);
        self.config_generation
            .store(config_generation, Ordering::Release);
    }

    /// Raises the line if the driver has yet to acknowledge something.
    pub(super) fn raise_again(&self) {
        if self.status() != 0 {
            self.raise(0);
        }
    }

    fn raise(&self, bit: u32) {
        self.status.fetch_or(bit, Ordering::AcqRel);
        // A failed write means that the counter is at its maximum: the line is
        // already raised, which is all that was wanted.
        let _ = self.line.write(1);
    }
}
