//! Why a delta cannot be had.

use std::io;
use std::path::{Path, PathBuf};

use super::layout::{MAX_BLOCKS, VERSION};
use crate::layer::LayerError;
use crate::remedy::Remedy;

/// Why a delta cannot be had, written or sealed.
#[derive(Debug, thiserror::Error)]
pub enum DeltaError {
    /// The host refused.
    #[error("the delta {} could not be {what} ({source}){}", path.display(), Remedy(source))]
    Io {
        /// The file.
        path: PathBuf,
        /// "opened", "read", "written" …
        what: &'static str,
        /// The host's answer.
        source: io::Error,
    },
    /// It is there already.
    #[error("{} exists, and a new delta does not replace a file: give another path", path.display())]
    Exists {
        /// The file.
        path: PathBuf,
    },
    /// Another machine runs on it.
    #[error(
        "the delta {} is in use by another process: a delta serves one machine at a time; \
         stop that process, or give this machine a delta of its own",
        path.display()
    )]
    InUse {
        /// The file.
        path: PathBuf,
    },
    /// It has been sealed.
    #[error(
        "{} is a layer, which nothing can be written to: put it on top of the stack's layers \
         and give a new path as the delta",
        path.display()
    )]
    Sealed {
        /// The file.
        path: PathBuf,
    },
    /// The file does not look like a delta.
    #[error(
        "{} is no delta, or it is truncated (it has {len} bytes); if nothing on it is needed, \
         remove it and an empty one takes its place",
        path.display()
    )]
    NotADelta {
        /// The file.
        path: PathBuf,
        /// Its length in bytes.
        len: u64,
    },
    /// It belongs to a smaller or larger disk.
    #[error(
        "the delta {} belongs to a disk of {found} blocks, and this stack's has {wanted}: \
         give the stack that it was made on",
        path.display()
    )]
    Size {
        /// The file.
        path: PathBuf,
        /// Blocks of its disk.
        found: u64,
        /// Blocks of the stack's disk.
        wanted: u64,
    },
    /// It was made by a later version.
    #[error(
        "the delta {} has version {version} of the format, and this program knows only version \
         {VERSION}: use a newer coppice",
        path.display()
    )]
    Version {
        /// The file.
        path: PathBuf,
        /// Its version.
        version: u32,
    },
    /// Its header or index contradicts itself.
    #[error(
        "the delta {} is damaged: {what}; take the disk's last snapshot or a copy of the file",
        path.display()
    )]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        what: String,
    },
    /// No disk is as large.
    #[error("a disk of {0} blocks has no delta: the most are {MAX_BLOCKS} blocks (16 TiB)")]
    TooLarge(u64),
    /// It is not known since when the host has been running.
    #[error(
        "/proc/sys/kernel/random/boot_id cannot be read ({0}), which tells whether a delta was \
         written before the host started: make it visible to this process"
    )]
    BootId(io::Error),
    /// It could not be made a layer.
    #[error(transparent)]
    Seal(#[from] LayerError),
}

/// What the host's refusal to do `what` with `path` is called.
pub(super) fn io_error(path: &Path, what: &'static str) -> impl Fn(io::Error) -> DeltaError {
    let path = path.to_owned();
    move |source| DeltaError::Io {
        path: path.clone(),
        what,
        source,
    }
}
