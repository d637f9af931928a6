//! Addresses, sizes and ids as types.

/// Bytes in one KiB.
pub const KIB: u64 = 1 << 10;
/// Bytes in one MiB.
pub const MIB: u64 = 1 << 20;
/// Bytes in one GiB.
pub const GIB: u64 = 1 << 30;
/// Bytes in one page of guest memory.
pub const PAGE_SIZE: u64 = 4 * KIB;
/// Bytes in one sector, the unit of every virtio block address (virtio 1.2 §5.2.4).
pub const SECTOR_SIZE: u64 = 512;

pub use vm_memory::GuestAddress as Gpa;

/// A global system interrupt: the number of a pin of the interrupt controller.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Gsi(pub u32);
