//! Snapshots: the on-disk format, layers and the store.
//!
//! The crate is the border that `vmm` and `host` share: it speaks of blocks
//! within a layer, never of guest addresses, and names neither a device nor a
//! KVM type.
//!
//! ```text
//! extents    sorted, merged ranges of blocks
//! draft      a file that appears whole or not at all
//! layer      one immutable file of blocks: data, index, footer       → extents, draft
//! stack      layers in order, topmost first: which layer has a block → layer
//! manifest   what a snapshot is: state, and stacks by name           → layer, draft
//! find       where the layers are that a manifest names              → manifest, stack
//! flatten    several layers made one                                 → stack
//! store      a directory of snapshots and the layers that they share → find, flatten
//! pack       snapshots in one file (with the feature of that name)   → store
//! delta      the private, writable top of a disk                     → layer
//! import     a layer made of a plain disk image                      → layer, draft
//! ```
//!
//! `docs/snapshot-format.md` has the files byte by byte.
#![deny(missing_docs)]

mod blocks;
mod bytes;
pub mod delta;
pub mod draft;
pub mod extents;
pub mod find;
pub mod flatten;
#[cfg(test)]
mod golden_test;
mod hex;
pub mod import;
pub mod layer;
pub mod manifest;
mod open;
#[cfg(feature = "pack")]
pub mod pack;
mod progress;
mod remedy;
mod sparse;
pub mod stack;
pub mod store;
#[cfg(test)]
mod testing;
#[cfg(test)]
mod trace;

pub use delta::{Delta, DeltaError, FrozenDelta};
pub use draft::Draft;
pub use extents::{Extent, Extents};
pub use find::{FindError, Places};
pub use flatten::Flatten;
pub use import::{ImportError, import};
pub use layer::{Content, Kind, Layer, LayerError, LayerName, Naming};
pub use manifest::{DiskRef, Info, LayerRef, Manifest, ManifestError, SnapshotId, StackRef};
pub use progress::Progress;
pub use stack::{Piece, Stack, StackError};
pub use store::{Store, StoreError};

/// Bytes in one block, the unit of everything in a layer: a page of memory, or
/// as much of a disk.
pub const BLOCK_SIZE: u64 = 4096;
