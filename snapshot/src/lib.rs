//! Snapshots: the on-disk format, layers and the store.
//!
//! The crate is the border that `vmm` and `host` share: it speaks of blocks
//! within a layer, never of guest addresses, and names neither a device nor a
//! KVM type.
//!
//! ```text
//! extents    sorted, merged ranges of blocks
//! layer      one immutable file of blocks: data, index, footer       → extents
//! stack      layers in order, topmost first: which layer has a block → layer
//! ```
//!
//! `docs/snapshot-format.md` has the files byte by byte.
#![deny(missing_docs)]

pub mod extents;
pub mod layer;
pub mod stack;

pub use extents::{Extent, Extents};
pub use layer::{Content, Kind, Layer, LayerError, LayerName, Naming};
pub use stack::{Piece, Stack, StackError};

/// Bytes in one block, the unit of everything in a layer: a page of memory, or
/// as much of a disk.
pub const BLOCK_SIZE: u64 = 4096;
