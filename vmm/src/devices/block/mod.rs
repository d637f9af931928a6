//! The block device (virtio 1.2 §5.2): a disk on a [`DiskBackend`].
//!
//! What it promises:
//! - A drive with `cache_type` `Writeback` offers flushes, and a flush is
//!   completed when everything written before is durable. A driver that does not
//!   accept the offer has each write made durable instead. A drive with `Unsafe`,
//!   the default, offers none: a crash of the host may lose what the guest holds
//!   for written, though a crash of guest or VMM does not.
//! - A read-only drive is never written to, whatever the driver accepted.
//! - The used length is the number of bytes written to the request, its status
//!   byte included: `n + 1` for a read of `n` bytes, 1 for a failed one.
//! - A request that has no room for a status is returned with a length of 0.
//! - The guest reads the drive's id, cut to 20 bytes, as the serial number.
//!
//! [`DiskBackend`]: crate::backends::disk::DiskBackend

mod config;
mod device;
mod request;
mod state;

pub use device::{Block, BlockError};
