//! Address ranges of the MMIO and port spaces, each served by one device.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;

/// What a device wants of the machine after an access. Devices never stop the
/// machine themselves; they say so by value and the machine decides.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Effect {
    /// Nothing: the access was served within the device.
    #[default]
    None,
    /// The guest asked for a reset of the machine.
    Reset,
    /// The guest asked for power-off.
    PowerOff,
    /// The guest kernel reported its own panic.
    GuestPanic,
}

/// A device as the bus sees it. Accesses come from vCPU threads, one at a time.
///
/// Guest misbehaviour is not an error: an access that means nothing is answered
/// as hardware would, with ones on reads and silence on writes.
pub trait BusDevice: Send {
    /// Serves a read of `out.len()` (1 to 8) bytes at `offset` from the start of
    /// the device's range. `out` arrives filled with ones.
    fn read(&mut self, offset: u64, out: &mut [u8]);
    /// Serves a write of `data.len()` (1 to 8) bytes at `offset`.
    fn write(&mut self, offset: u64, data: &[u8]) -> Effect;
}

/// A device range that could not be put on the bus.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum BusError {
    /// The range is empty or runs past the end of the address space.
    #[error(
        "the device range at {base:#x} of {len:#x} bytes is empty or does not fit the address space"
    )]
    BadRange {
        /// First address of the range.
        base: u64,
        /// Length in bytes.
        len: u64,
    },
    /// The range overlaps one that is taken.
    #[error("the device range at {base:#x} of {len:#x} bytes overlaps the one at {taken:#x}")]
    Overlap {
        /// First address of the range.
        base: u64,
        /// Length in bytes.
        len: u64,
        /// First address of the range that is in the way.
        taken: u64,
    },
}

struct Range {
    len: u64,
    device: Arc<Mutex<dyn BusDevice>>,
}

/// One address space (MMIO or ports): non-overlapping ranges to devices.
/// Filled once while the board is built, then shared read-only by all vCPUs.
#[derive(Default)]
pub struct Bus {
    ranges: BTreeMap<u64, Range>,
}

impl Bus {
    /// Puts `device` at `[base, base + len)`.
    ///
    /// # Errors
    /// The range is empty, wraps, or overlaps another.
    pub fn insert(
        &mut self,
        base: u64,
        len: u64,
        device: Arc<Mutex<dyn BusDevice>>,
    ) -> Result<(), BusError> {
        let last = match len.checked_sub(1).and_then(|more| base.checked_add(more)) {
            Some(last) => last,
            None => return Err(BusError::BadRange { base, len }),
        };
        // The last range that starts at or before our end is the only one that
        // can overlap, since ranges do not overlap each other.
        if let Some((&taken, range)) = self.ranges.range(..=last).next_back()
            && taken.saturating_add(range.len) > base
        {
            return Err(BusError::Overlap { base, len, taken });
        }
        self.ranges.insert(base, Range { len, device });
        Ok(())
    }

    /// Reads `out.len()` bytes at `address`; an address that no device serves
    /// reads as ones.
    pub fn read(&self, address: u64, out: &mut [u8]) {
        out.fill(0xff);
        if let Some((offset, device)) = self.find(address, out.len()) {
            device.lock().read(offset, out);
        }
    }

    /// Writes `data` at `address`; an address that no device serves ignores it.
    pub fn write(&self, address: u64, data: &[u8]) -> Effect {
        match self.find(address, data.len()) {
            Some((offset, device)) => device.lock().write(offset, data),
            None => Effect::None,
        }
    }

    /// The device that serves the whole of `[address, address + len)`.
    fn find(&self, address: u64, len: usize) -> Option<(u64, &Mutex<dyn BusDevice>)> {
        let (&base, range) = self.ranges.range(..=address).next_back()?;
        let offset = address - base;
        let end = offset.checked_add(len as u64)?;
        (end <= range.len).then(|| (offset, &*range.device))
    }
}

#[cfg(test)]
#[path = "bus_test.rs"]
mod tests;
