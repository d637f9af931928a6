//! Where the store is, and what a snapshot on the command line is.

use std::path::{Path, PathBuf};

use coppice_snapshot::{Manifest, Places, SnapshotId, Store, StoreError};

use super::error::Failure;

/// The store's directory: the one that was named, `$COPPICE_STORE`, or
/// `coppice/snapshots` in `$XDG_DATA_HOME` or `~/.local/share`.
pub fn store_dir(named: Option<&Path>) -> PathBuf {
    let set = |name| std::env::var_os(name).filter(|value| !value.is_empty());
    let usual = || {
        let home = || PathBuf::from(set("HOME").unwrap_or_else(|| "/root".into()));
        let data = set("XDG_DATA_HOME").map(PathBuf::from);
        data.unwrap_or_else(|| home().join(".local/share"))
            .join("coppice/snapshots")
    };
    let dir = named
        .map(Path::to_path_buf)
        .or_else(|| set("COPPICE_STORE").map(PathBuf::from))
        .unwrap_or_else(usual);
    // A machine's VMM may have another working directory than we have.
    std::path::absolute(&dir).unwrap_or(dir)
}

/// A snapshot in the store, or in files of its own.
pub enum Named {
    /// By tag or id.
    InStore(SnapshotId),
    /// By the path of its manifest.
    File(PathBuf),
}

impl Named {
    /// What has a slash is a path; all else is a tag or the beginning of an id.
    pub fn new(store: &Store, name: &str) -> Result<Self, StoreError> {
        match name.contains('/') {
            true => Ok(Self::File(name.into())),
            false => store.resolve(name).map(Self::InStore),
        }
    }

    /// Its manifest, and where its layers may be.
    pub fn read(&self, store: &Store) -> Result<(SnapshotId, Manifest, Places), Failure> {
        match self {
            Self::InStore(id) => Ok((*id, store.read(id)?, store.places())),
            Self::File(path) => {
                let (manifest, id) = Manifest::read(path)?;
                let mut places = Places::beside(path);
                places.store.get_or_insert_with(|| store.dir().to_owned());
                Ok((id, manifest, places))
            }
        }
    }
}
