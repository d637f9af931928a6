//! Snapshots: the on-disk format, layers and the store.
//!
//! The crate is the border that `vmm` and `host` share: it speaks of blocks
//! within a layer, never of guest addresses, and names neither a device nor a
//! KVM type.
//!
//! ```text
//! extents    block numbers: sorted, merged ranges of them
//! bytes      little-endian numbers in bytes
//! hex        names as hexadecimal digits
//! remedy     what can be done about an answer of the host
//! progress   how far a long operation is
//! open       opening files whose paths come from elsewhere
//! draft      a file that appears whole or not at all                 → open
//! blocks     reading and copying blocks of files                     → extents
//! sparse     zeroes in files                                         → extents, blocks
//! layer      one immutable file of blocks: data, index, footer       → extents, draft, blocks, bytes, hex, open, remedy
//! stack      layers in order, topmost first: which layer has a block → extents, layer
//! manifest   what a snapshot is: state, and stacks by name           → extents, layer, draft, bytes, hex, open, remedy
//! find       where the layers are that a manifest names              → layer, stack, manifest, draft
//! flatten    several layers made one                                 → extents, layer, stack, blocks, progress
//! store      a directory of snapshots and the layers that they share → everything above
//! pack       snapshots in one file (with the feature of that name)   → everything above
//! delta      the private, writable top of a disk                     → extents, layer, blocks, sparse, bytes, remedy
//! working_set  the pages that machines of a snapshot touch first     → extents, draft, bytes, open
//! import     a layer made of a plain disk image                      → extents, layer, draft, blocks, sparse, progress, remedy
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
pub mod working_set;

pub use delta::{Delta, DeltaError, FrozenDelta};
pub use draft::Draft;
pub use extents::{BLOCK_SIZE, Extent, Extents};
pub use find::{FindError, Places};
pub use flatten::Flatten;
pub use import::{ImportError, import};
pub use layer::{Content, Kind, Layer, LayerError, LayerName, Naming};
pub use manifest::{DiskRef, Info, LayerRef, Manifest, ManifestError, SnapshotId, StackRef};
pub use progress::Progress;
pub use stack::{Piece, Stack, StackError};
pub use store::{Store, StoreError};
pub use working_set::{WorkingSet, WorkingSetError};
