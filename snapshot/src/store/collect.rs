//! What a store's layers are needed for, and removing those that are not.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt;

use nix::fcntl::{Flock, FlockArg};

use super::error::{StoreError, io_error};
use super::{Alone, Store, sync};
use crate::draft::sweep;
use crate::layer::LayerName;
use crate::manifest::SnapshotId;

/// A layer in a store.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LayerUse {
    /// Snapshots that need it.
    pub snapshots: BTreeSet<SnapshotId>,
    /// Bytes that it takes on disk.
    pub bytes: u64,
}

/// What a collection removed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Collected {
    /// Layers, with the bytes that they had on disk.
    pub layers: Vec<(LayerName, u64)>,
    /// Layers that no snapshot needs, but that are open: a machine runs on them.
    pub in_use: Vec<LayerName>,
    /// Bytes of unfinished files that dead writers left.
    pub unfinished: u64,
}

impl Collected {
    /// Bytes that were freed on disk.
    pub fn bytes(&self) -> u64 {
        let layers: u64 = self.layers.iter().map(|(_, bytes)| bytes).sum();
        layers + self.unfinished
    }
}

impl Store {
    /// All layers in the store, and which snapshots need them.
    ///
    /// # Errors
    /// A manifest or the directory cannot be read.
    pub fn layers(&self) -> Result<BTreeMap<LayerName, LayerUse>, StoreError> {
        let layers = self.layer_bytes()?.into_iter();
        let unused = |(name, bytes)| {
            let snapshots = BTreeSet::new();
            (name, LayerUse { snapshots, bytes })
        };
        let mut layers: BTreeMap<LayerName, LayerUse> = layers.map(unused).collect();
        for (id, manifest) in self.list()? {
            let manifest = manifest.map_err(|error| match error {
                StoreError::Manifest(error) => StoreError::Unreadable(error),
                error => error,
            })?;
            for layer in manifest.layers() {
                if let Some(layer) = layers.get_mut(&layer.name) {
                    layer.snapshots.insert(id);
                }
            }
        }
        Ok(layers)
    }

    /// All layers in the store, with the bytes that they take on disk.
    pub(super) fn layer_bytes(&self) -> Result<BTreeMap<LayerName, u64>, StoreError> {
        let names = self.names("layers")?;
        let names = names.iter().filter_map(|name| name.parse().ok());
        // One that was removed just now is none.
        let bytes = names.filter_map(|name: LayerName| {
            let metadata = fs::metadata(self.layer_path(&name)).ok()?;
            Some((name, metadata.blocks() * 512))
        });
        Ok(bytes.collect())
    }

    /// Removes a snapshot, its tags, and the layers that only it needed.
    ///
    /// # Errors
    /// There is no such snapshot, or the host cannot remove it. A layer that
    /// could not be removed is left to the next collection.
    pub fn remove(&self, id: &SnapshotId) -> Result<Collected, StoreError> {
        let alone = self.alone()?;
        let path = self.manifest_path(id);
        let its: BTreeSet<LayerName> = match self.read(id) {
            Ok(manifest) => manifest.layers().map(|layer| layer.name).collect(),
            // A damaged one can be removed, too; its layers are the collection's.
            Err(StoreError::Manifest(_)) => BTreeSet::new(),
            Err(error) => return Err(error),
        };
        for (tag, of) in self.tags()? {
            if of == *id {
                self.untag(&tag)?;
            }
        }
        fs::remove_file(&path).map_err(io_error(&path, "removed"))?;
        // Only advice: most snapshots have none.
        let _ = fs::remove_file(self.working_set_path(id));
        sync(&self.dir.join("snapshots"))?;
        match self.layers() {
            Ok(layers) => self.remove_unneeded(&alone, layers, |name| its.contains(name)),
            // Which layers the damaged ones need is unknown.
            Err(StoreError::Unreadable(_)) => Ok(Collected::default()),
            Err(error) => Err(error),
        }
    }

    /// Removes the layers that no snapshot needs, and what dead writers left.
    /// Waits until nobody puts or opens a snapshot.
    ///
    /// # Errors
    /// A manifest is unreadable: then no layer is removed.
    pub fn collect(&self) -> Result<Collected, StoreError> {
        let alone = self.alone()?;
        let mut unfinished = self.sweep_staging()?;
        for dir in ["", "layers", "snapshots", "tags"] {
            let dir = self.dir.join(dir);
            unfinished += sweep(&dir, None).map_err(io_error(&dir, "read"))?;
        }
        for (tag, id) in self.tags()? {
            if !self.manifest_path(&id).exists() {
                self.untag(&tag)?;
            }
        }
        let mut collected = self.remove_unneeded(&alone, self.layers()?, |_| true)?;
        collected.unfinished = unfinished;
        self.forget_verified(&alone)?;
        Ok(collected)
    }

    /// What [`Store::collect`] would remove of layers now.
    ///
    /// # Errors
    /// A manifest is unreadable.
    pub fn unneeded(&self) -> Result<Vec<(LayerName, u64)>, StoreError> {
        let _share = self.share()?;
        let layers = self.layers()?.into_iter();
        let unneeded = layers.filter(|(_, layer)| layer.snapshots.is_empty());
        Ok(unneeded.map(|(name, layer)| (name, layer.bytes)).collect())
    }

    fn remove_unneeded(
        &self,
        _: &Alone,
        layers: BTreeMap<LayerName, LayerUse>,
        which: impl Fn(&LayerName) -> bool,
    ) -> Result<Collected, StoreError> {
        let mut collected = Collected::default();
        for (name, layer) in layers {
            if !layer.snapshots.is_empty() || !which(&name) {
                continue;
            }
            let path = self.layer_path(&name);
            let removed = (|| -> io::Result<bool> {
                let file = File::open(&path)?;
                let Ok(_nobody_has_it) = Flock::lock(file, FlockArg::LockExclusiveNonblock) else {
                    return Ok(false);
                };
                fs::remove_file(&path)?;
                Ok(true)
            })();
            match removed.map_err(io_error(&path, "removed"))? {
                true => collected.layers.push((name, layer.bytes)),
                false => collected.in_use.push(name),
            }
        }
        sync(&self.dir.join("layers"))?;
        Ok(collected)
    }
}
