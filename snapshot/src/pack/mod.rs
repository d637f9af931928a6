//! Snapshots in one file, to be carried between hosts.
//!
//! The file is one zstd stream, of which nothing but its beginning is needed to
//! know what it contains, and which can be written and read through a pipe:
//!
//! ```text
//! "COPPPACK", version
//! snapshots: manifests as stores keep them, with their tags
//! layers:    names, bytes, and whether they are included
//! content:   of each layer that is: what its name is the hash of
//! "COPPDONE"
//! ```
//!
//! A layer that the other side has need not be included.

mod read;
mod write;

use std::io;
use std::path::PathBuf;

use crate::layer::{LayerError, LayerName};
use crate::manifest::ManifestError;
use crate::remedy::Remedy;
use crate::store::StoreError;

pub use read::{Unpacked, unpack};
pub use write::{Packer, Source};

const MAGIC: [u8; 8] = *b"COPPPACK";
const END: [u8; 8] = *b"COPPDONE";
const VERSION: u32 = 1;
/// Flag of a layer: its content is in the file.
const INCLUDED: u64 = 1;

/// Why snapshots cannot be packed or unpacked.
#[derive(Debug, thiserror::Error)]
pub enum PackError {
    /// The host refused.
    #[error("the pack {} could not be {what} ({source}){}", path.display(), Remedy(source))]
    Io {
        /// The file.
        path: PathBuf,
        /// "read", "written".
        what: &'static str,
        /// The host's answer.
        source: io::Error,
    },
    /// The file is something else.
    #[error(
        "{} is no pack of snapshots: give a file that `coppice snapshot pack` wrote",
        path.display()
    )]
    NotAPack {
        /// The file.
        path: PathBuf,
    },
    /// It was made by a later version.
    #[error(
        "the pack {} has version {version} of the format, and this program reads only version \
         {VERSION}: use a newer coppice",
        path.display()
    )]
    Version {
        /// The file.
        path: PathBuf,
        /// Its version.
        version: u32,
    },
    /// It is truncated or its content is not what it was.
    #[error(
        "the pack {} is damaged: {what}; copy it again from where it was complete, or pack anew",
        path.display()
    )]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        what: String,
    },
    /// Layers were left out that the store does not have.
    #[error(
        "the pack {} does not include {} of its layers, and the store does not have them, for \
         example {}: pack again without leaving them out",
        path.display(), names.len(), names[0]
    )]
    Missing {
        /// The file.
        path: PathBuf,
        /// The layers; at least one.
        names: Vec<LayerName>,
    },
    /// A layer that is to be packed is damaged or unreadable.
    #[error(transparent)]
    Layer(#[from] LayerError),
    /// A manifest that is to be packed is damaged or unreadable.
    #[error(transparent)]
    Manifest(#[from] ManifestError),
    /// The store cannot give or take a snapshot.
    #[error(transparent)]
    Store(#[from] StoreError),
}

#[cfg(test)]
#[path = "pack_test.rs"]
mod tests;
