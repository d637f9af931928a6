//! What the driver reads and writes (virtio 1.2 §4.2.2), but for interrupts and
//! notifications.

use super::core::Core;

/// Bits of the device status register (virtio 1.2 §2.1).
pub(super) mod status {
    /// The driver noticed the device.
    pub const ACKNOWLEDGE: u32 = 1;
    /// The driver knows how to drive it.
    pub const DRIVER: u32 = 2;
    /// The driver is ready: the device runs.
    pub const DRIVER_OK: u32 = 4;
    /// Feature negotiation is complete.
    pub const FEATURES_OK: u32 = 8;
    /// The device gave up until it is reset.
    pub const NEEDS_RESET: u32 = 64;
    /// The driver gave up.
    pub const FAILED: u32 = 128;
    /// The bits that the driver sets.
    pub const DRIVERS: u32 = ACKNOWLEDGE | DRIVER | DRIVER_OK | FEATURES_OK | FAILED;
    /// All bits that there are.
    pub const ALL: u32 = DRIVERS | NEEDS_RESET;
}

/// "virt", little-endian.
const MAGIC: u32 = 0x7472_6976;
const VERSION: u32 = 2;
/// Drivers need not know it; it only has to be constant.
const VENDOR: u32 = u32::from_le_bytes(*b"COPP");
/// Answer to a query for a shared memory region that does not exist.
const NO_SHARED_MEMORY: u32 = u32::MAX;

/// Offset of the configuration space.
const CONFIG: u64 = 0x100;

/// Which 32 of the feature bits a window shows.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct FeaturePage(pub u32);

impl FeaturePage {
    /// How far the page lies in the feature bits; pages past 64 bits are empty.
    fn shift(self) -> Option<u32> {
        match self.0 {
            0 => Some(0),
            1 => Some(32),
            _ => None,
        }
    }

    fn read(self, features: u64) -> u32 {
        self.shift().map_or(0, |shift| (features >> shift) as u32)
    }

    fn write(self, features: &mut u64, value: u32) {
        if let Some(shift) = self.shift() {
            *features &= !(u64::from(u32::MAX) << shift);
            *features |= u64::from(value) << shift;
        }
    }
}

impl Core {
    /// Serves a read; `out` arrives filled with ones.
    pub fn read(&mut self, offset: u64, out: &mut [u8]) {
        if let Some(at) = offset.checked_sub(CONFIG) {
            out.fill(0);
            self.device.read_config(at, out);
        } else if let Ok(out) = <&mut [u8; 4]>::try_from(out)
            && let Some(value) = self.read_register(offset)
        {
            *out = value.to_le_bytes();
        }
    }

    /// Serves a write.
    pub fn write(&mut self, offset: u64, data: &[u8]) {
        if let Some(at) = offset.checked_sub(CONFIG) {
            if self.has(status::DRIVER) && !self.has(status::FAILED) {
                self.device.write_config(at, data);
            }
        } else if let Ok(data) = <[u8; 4]>::try_from(data) {
            self.write_register(offset, u32::from_le_bytes(data));
        }
    }

    fn read_register(&self, offset: u64) -> Option<u32> {
        let queue = self.queues.get(self.selected);
        Some(match offset {
            0x00 => MAGIC,
            0x04 => VERSION,
            0x08 => self.identity.device_id,
            0x0c => VENDOR,
            0x10 => self.device_page.read(self.offered()),
            0x34 => queue.map_or(0, |q| q.max_size.into()),
            0x44 => queue.is_some_and(|q| q.ready).into(),
            0x70 => self.status,
            0xb0 | 0xb4 | 0xb8 | 0xbc => NO_SHARED_MEMORY,
            0xfc => self.interrupt.config_generation(),
            _ => return None,
        })
    }

    fn write_register(&mut self, offset: u64, value: u32) {
        match offset {
            0x14 => self.device_page = FeaturePage(value),
            0x20 if self.may_negotiate() => self.driver_page.write(&mut self.accepted, value),
            0x24 => self.driver_page = FeaturePage(value),
            0x30 => self.selected = value as usize,
            0x38..=0x44 | 0x80..=0xa4 => self.write_queue_register(offset, value),
            0x70 => self.write_status(value),
            _ => {}
        }
    }

    /// Features change only between `DRIVER` and `FEATURES_OK`.
    fn may_negotiate(&self) -> bool {
        self.has(status::DRIVER) && !self.has(status::FEATURES_OK | status::FAILED)
    }

    /// Queues change only between `FEATURES_OK` and `DRIVER_OK`. After that they
    /// belong to the device until a reset: there is no `VIRTIO_F_RING_RESET`.
    fn may_set_up_queues(&self) -> bool {
        self.has(status::FEATURES_OK)
            && !self.has(status::DRIVER_OK | status::FAILED | status::NEEDS_RESET)
    }

    fn write_queue_register(&mut self, offset: u64, value: u32) {
        if !self.may_set_up_queues() {
            return;
        }
        let Some(queue) = self.queues.get_mut(self.selected) else {
            return;
        };
        match offset {
            0x38 => queue.size = value,
            0x44 => queue.ready = value == 1,
            0x80 => set_low(&mut queue.descriptors, value),
            0x84 => set_high(&mut queue.descriptors, value),
            0x90 => set_low(&mut queue.available, value),
            0x94 => set_high(&mut queue.available, value),
            0xa0 => set_low(&mut queue.used, value),
            0xa4 => set_high(&mut queue.used, value),
            _ => {}
        }
    }
}

fn set_low(address: &mut u64, value: u32) {
    *address = *address & !u64::from(u32::MAX) | u64::from(value);
}

fn set_high(address: &mut u64, value: u32) {
    *address = *address & u64::from(u32::MAX) | u64::from(value) << 32;
}
