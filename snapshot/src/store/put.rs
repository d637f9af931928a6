//! Putting snapshots into a store.

use std::collections::HashMap;
use std::fs;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use nix::fcntl::{AT_FDCWD, AtFlags};
use nix::unistd::linkat;

use super::error::{StoreError, io_error};
use super::{Store, sync, write};
use crate::blocks;
use crate::draft::Draft;
use crate::find::Places;
use crate::layer::{Content, Kind, Layer, LayerError, LayerName, Naming};
use crate::manifest::{Manifest, SnapshotId, StackRef};
use crate::progress::Progress;
use crate::stack::Stack;

/// What becomes of the files that a snapshot's layers come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Take {
    /// They stay where they are. On the same file system they share their bytes
    /// with the store.
    Keep,
    /// They are removed once the snapshot is in the store. Another snapshot that
    /// has some of them, outside the store, loses them.
    Move,
}

impl Store {
    /// Puts a snapshot into the store: those of its layers that are not there
    /// yet, whose content is checked on the way, then its manifest. It is whole
    /// and durable when this returns its id.
    ///
    /// The manifest is stored without the paths of layers, and with names by
    /// content for those that had unique ids; its id is that of what is stored.
    ///
    /// # Errors
    /// A layer is missing or damaged, or the host is out of space. Nothing
    /// partial is then visible, and what `take` would move is still there.
    pub fn put(
        &self,
        manifest: &Manifest,
        places: &Places,
        take: Take,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<SnapshotId, StoreError> {
        let _share = self.share()?;
        let memory = places.open(Kind::Memory, &manifest.memory)?;
        let mut stacks = vec![memory];
        for disk in &manifest.disks {
            stacks.push(places.open(Kind::Disk, &disk.stack)?);
        }
        let mut missing: HashMap<LayerName, &Layer> = HashMap::new();
        for layer in stacks.iter().flat_map(Stack::layers) {
            if !self.has(&layer.name()) {
                missing.insert(layer.name(), layer);
            }
        }
        let total = missing.values().map(|layer| layer.data_len()).sum();
        let mut progress = Progress::counter(total, progress);
        let mut names = HashMap::new();
        for (name, layer) in &missing {
            names.insert(*name, self.put_layer(layer, &mut progress)?);
        }
        let id = self.put_manifest(&stored(manifest, &names))?;
        if take == Take::Move {
            for layer in stacks.iter().flat_map(Stack::layers) {
                self.remove_source(layer)?;
            }
        }
        Ok(id)
    }

    /// Whether the store has this layer, whole as far as can be told without
    /// reading its content.
    pub fn has(&self, name: &LayerName) -> bool {
        name.is_by_content() && Layer::open_named(&self.layer_path(name), name).is_ok()
    }

    /// Writes a manifest all of whose layers are in the store.
    pub(crate) fn put_manifest(&self, manifest: &Manifest) -> Result<SnapshotId, StoreError> {
        let (bytes, id) = manifest.encode();
        if self.read(&id).is_err() {
            // A layer that was there may be another process's, which has not
            // come to this yet.
            sync(&self.dir.join("layers"))?;
            write(&self.manifest_path(&id), &bytes)?;
        }
        Ok(id)
    }

    /// Puts one layer into the store and gives the name that it has there.
    fn put_layer(
        &self,
        layer: &Layer,
        progress: &mut dyn FnMut(u64),
    ) -> Result<LayerName, StoreError> {
        if layer.name().is_by_content() && self.link(layer, progress)? {
            return Ok(layer.name());
        }
        self.copy(layer, progress)
    }

    /// Whether the layer's file could become the store's, too.
    fn link(&self, layer: &Layer, progress: &mut dyn FnMut(u64)) -> Result<bool, StoreError> {
        let metadata = layer.file().metadata();
        let metadata = metadata.map_err(io_error(layer.path(), "read"))?;
        let store = self.dir.metadata().map_err(io_error(&self.dir, "read"))?;
        // What somebody else may write to is nothing for a store.
        let is_sealed = metadata.mode() & 0o222 == 0 && metadata.uid() == store.uid();
        if !is_sealed || metadata.dev() != store.dev() {
            return Ok(false);
        }
        layer.verify(progress)?;
        let path = self.layer_path(&layer.name());
        let sync_file = layer.file().sync_all();
        sync_file.map_err(io_error(layer.path(), "written"))?;
        // By descriptor, so that it is the file that was verified.
        let source = format!("/proc/self/fd/{}", layer.file().as_raw_fd());
        let flags = AtFlags::AT_SYMLINK_FOLLOW;
        match linkat(AT_FDCWD, Path::new(&source), AT_FDCWD, &path, flags) {
            Ok(()) => {}
            // Another process was faster, or a damaged layer is in the way.
            Err(nix::Error::EEXIST) if self.has(&layer.name()) => {}
            // Hard links may be impossible here; copying says what is wrong, if
            // it is something else.
            Err(_) => return Ok(false),
        }
        sync(&self.dir.join("layers"))?;
        Ok(true)
    }

    /// Copies the layer's blocks into a new layer, which is named by its content.
    fn copy(&self, layer: &Layer, progress: &mut dyn FnMut(u64)) -> Result<LayerName, StoreError> {
        let draft = self.draft_layer(&layer.name())?;
        let data = layer.data();
        blocks::copy(layer.file(), draft.file(), &data, progress)
            .map_err(io_error(draft.path(), "written"))?;
        let content = Content {
            kind: layer.kind(),
            blocks: layer.blocks(),
            held: layer.held().clone(),
            zero: layer.zero().clone(),
        };
        let name = self.put_draft(content, draft, |name| {
            let wanted = layer.name();
            match !wanted.is_by_content() || *name == wanted {
                true => Ok(()),
                false => Err(LayerError::Damaged {
                    path: layer.path().to_owned(),
                    what: "its content does not match its name".into(),
                }),
            }
        })?;
        Ok(name)
    }

    /// Begins a layer in the store. Its name may still change.
    pub(crate) fn draft_layer(&self, name: &LayerName) -> Result<Draft, StoreError> {
        let path = self.layer_path(name);
        Draft::beside(&path).map_err(io_error(&path, "written"))
    }

    /// Makes `draft`, whose blocks are `content`, a layer of the store, if
    /// `accept` agrees to the name that its content gives it.
    pub(crate) fn put_draft(
        &self,
        content: Content,
        draft: Draft,
        accept: impl FnOnce(&LayerName) -> Result<(), LayerError>,
    ) -> Result<LayerName, StoreError> {
        let file = draft.file().try_clone();
        let file = file.map_err(io_error(draft.path(), "written"))?;
        let name = content.seal(file, draft.path(), Naming::Content)?.name();
        accept(&name)?;
        if self.has(&name) {
            return Ok(name);
        }
        let path = self.layer_path(&name);
        draft
            .publish_as(&path)
            .map_err(io_error(&path, "written"))?;
        Ok(name)
    }

    /// Makes `draft` a layer of the store, whose content is known to have this
    /// name.
    #[cfg(feature = "pack")]
    pub(crate) fn put_named(
        &self,
        content: Content,
        draft: Draft,
        name: LayerName,
    ) -> Result<(), StoreError> {
        let file = draft.file().try_clone();
        let file = file.map_err(io_error(draft.path(), "written"))?;
        let end = content.blocks.saturating_mul(crate::extents::BLOCK_SIZE);
        content.finish(name, end, file, draft.path())?;
        let path = self.layer_path(&name);
        draft.publish().map_err(io_error(&path, "written"))
    }

    /// Removes the file that a layer came from, if it is still there and not the
    /// store's own.
    fn remove_source(&self, layer: &Layer) -> Result<(), StoreError> {
        let path = layer.path();
        if path.starts_with(self.dir.join("layers")) {
            return Ok(());
        }
        let same = |a: &fs::Metadata, b: &fs::Metadata| (a.dev(), a.ino()) == (b.dev(), b.ino());
        let remove = || -> io::Result<()> {
            let opened = layer.file().metadata()?;
            match fs::symlink_metadata(path) {
                Ok(found) if same(&opened, &found) => fs::remove_file(path),
                _ => Ok(()),
            }
        };
        remove().map_err(io_error(path, "removed"))
    }
}

/// The manifest as a store keeps it: layers have the names that are new to them
/// and no paths, so that it is the same wherever it is stored.
pub(crate) fn stored(manifest: &Manifest, names: &HashMap<LayerName, LayerName>) -> Manifest {
    let mut manifest = manifest.clone();
    let in_stack = |stack: &mut StackRef| {
        for layer in &mut stack.layers {
            layer.name = *names.get(&layer.name).unwrap_or(&layer.name);
            layer.path.clear();
        }
    };
    in_stack(&mut manifest.memory);
    let disks = manifest.disks.iter_mut();
    disks.map(|disk| &mut disk.stack).for_each(in_stack);
    manifest
}
