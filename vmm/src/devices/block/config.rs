//! The configuration space (virtio 1.2 §5.2.4) and the limits that it announces.

use crate::units::{KIB, MIB, SECTOR_SIZE};

/// Size of the one queue.
pub const QUEUE_SIZE: u16 = 256;
/// The most buffers of data in a request: header and status take a descriptor each.
pub const MAX_SEGMENTS: u32 = QUEUE_SIZE as u32 - 2;
/// The most bytes in one buffer of data.
pub const MAX_SEGMENT_SIZE: u32 = 256 * KIB as u32;
/// The most bytes of data in one request. It bounds the time for which one
/// request keeps the event loop from others.
pub const MAX_TRANSFER: u64 = MAX_SEGMENTS as u64 * MAX_SEGMENT_SIZE as u64;

/// What one kind of range request may ask for at most.
#[derive(Clone, Copy, Debug)]
pub struct RangeLimits {
    /// Ranges in one request.
    pub ranges: u32,
    /// Bytes in one range.
    pub len: u64,
}

impl RangeLimits {
    fn sectors(self) -> u32 {
        (self.len / SECTOR_SIZE) as u32
    }
}

/// Limits of discard requests.
pub const DISCARD: RangeLimits = RangeLimits {
    ranges: 32,
    len: 1024 * MIB,
};
/// Limits of write-zeroes requests: where the file system cannot do it, zeroes
/// are written one by one.
pub const WRITE_ZEROES: RangeLimits = RangeLimits {
    ranges: 1,
    len: 64 * MIB,
};
/// Discards work best on whole blocks of the usual file system.
const DISCARD_ALIGNMENT: u32 = (4 * KIB / SECTOR_SIZE) as u32;

/// Length of the configuration space up to the fields for write-zeroes.
const LEN: usize = 60;

/// The configuration space of a disk of `len` bytes, which takes discards and
/// write-zeroes if it is `writable`. Fields of features that are not offered are
/// zero.
pub fn space(len: u64, writable: bool) -> [u8; LEN] {
    let mut space = [0; LEN];
    let mut put = |at: usize, value: &[u8]| space[at..at + value.len()].copy_from_slice(value);
    put(0, &(len / SECTOR_SIZE).to_le_bytes());
    put(8, &MAX_SEGMENT_SIZE.to_le_bytes());
    put(12, &MAX_SEGMENTS.to_le_bytes());
    if writable {
        put(36, &DISCARD.sectors().to_le_bytes());
        put(40, &DISCARD.ranges.to_le_bytes());
        put(44, &DISCARD_ALIGNMENT.to_le_bytes());
        put(48, &WRITE_ZEROES.sectors().to_le_bytes());
        put(52, &WRITE_ZEROES.ranges.to_le_bytes());
        put(56, &[1]); // Zeroed ranges may be unmapped if the driver allows it.
    }
    space
}
