//! What can go wrong with a store.

use std::io;
use std::path::{Path, PathBuf};

use crate::find::FindError;
use crate::layer::LayerError;
use crate::manifest::{ManifestError, SnapshotId};
use crate::remedy::Remedy;

/// Why a store cannot do what was asked of it.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The host refused.
    #[error("{} could not be {what} ({source}){}", path.display(), Remedy(source))]
    Io {
        /// The file or directory.
        path: PathBuf,
        /// "read", "written", "locked" …
        what: &'static str,
        /// The host's answer.
        source: io::Error,
    },
    /// The directory is something else.
    #[error(
        "{} is no store of snapshots, and it is not empty: choose another directory",
        dir.display()
    )]
    NotAStore {
        /// The directory.
        dir: PathBuf,
    },
    /// It was made by a later version.
    #[error(
        "the store {} is of the kind {format:?}, which this program does not know: use a newer \
         coppice",
        dir.display()
    )]
    Format {
        /// The store.
        dir: PathBuf,
        /// What it says of itself.
        format: String,
    },
    /// No snapshot has this tag or id.
    #[error(
        "the store {} has no snapshot {name:?}: `coppice snapshot ls` shows what it has",
        dir.display()
    )]
    NoSnapshot {
        /// The store.
        dir: PathBuf,
        /// What was asked for.
        name: String,
    },
    /// Several ids begin like this.
    #[error("{name:?} may be any of {}: give more of the id", list(ids))]
    Ambiguous {
        /// What was asked for.
        name: String,
        /// Those that it may be.
        ids: Vec<SnapshotId>,
    },
    /// Text that cannot be a tag.
    #[error(
        "{0:?} cannot be a tag: it may have 1 to 100 letters, digits, dots, dashes and underscores, \
         begins with a letter or digit, and is not all hexadecimal digits, like an id"
    )]
    BadTag(String),
    /// No snapshot has this tag.
    #[error("the store {} has no tag {tag:?}", dir.display())]
    NoTag {
        /// The store.
        dir: PathBuf,
        /// What was asked for.
        tag: String,
    },
    /// Which layers a snapshot needs is not known, so none can be removed.
    #[error("which layers are needed is not known: {0}; or remove it with `coppice snapshot rm`")]
    Unreadable(#[source] ManifestError),
    /// A layer is damaged or unreadable.
    #[error(transparent)]
    Layer(#[from] LayerError),
    /// A manifest is damaged or unreadable.
    #[error(transparent)]
    Manifest(#[from] ManifestError),
    /// A layer is missing.
    #[error(transparent)]
    Find(#[from] FindError),
}

fn list(ids: &[SnapshotId]) -> String {
    let ids: Vec<String> = ids.iter().map(SnapshotId::to_string).collect();
    ids.join(", ")
}

pub(crate) fn io_error(path: &Path, what: &'static str) -> impl FnOnce(io::Error) -> StoreError {
    let path = path.to_owned();
    move |source| StoreError::Io { path, what, source }
}
