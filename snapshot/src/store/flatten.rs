//! Flattening a snapshot in a store.

use super::Store;
use super::error::StoreError;
use crate::flatten::Flatten;
use crate::layer::{Kind, LayerName};
use crate::manifest::{LayerRef, SnapshotId, StackRef};
use crate::progress::Progress;
use crate::stack::Stack;

impl Store {
    /// Makes a snapshot that is equal to another, but whose memory and disks
    /// have one layer each. If the other is already like this, it is the result.
    ///
    /// # Errors
    /// There is no such snapshot, a layer is missing or damaged, or the host is
    /// out of space.
    pub fn flatten(
        &self,
        id: &SnapshotId,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<SnapshotId, StoreError> {
        let _share = self.share()?;
        let snapshot = self.open_snapshot(id)?;
        let mut manifest = snapshot.manifest;
        let disks = manifest.disks.iter_mut().zip(&snapshot.disks);
        let disks = disks.map(|(disk, stack)| (Kind::Disk, &mut disk.stack, stack));
        let memory = (Kind::Memory, &mut manifest.memory, &snapshot.memory);
        for (kind, reference, stack) in std::iter::once(memory).chain(disks) {
            if stack.layers().len() > 1 {
                let name = self.flatten_stack(kind, reference, stack, progress)?;
                let path = Default::default();
                reference.layers = vec![LayerRef { name, path }];
            }
        }
        self.put_manifest(&manifest)
    }

    fn flatten_stack(
        &self,
        kind: Kind,
        reference: &StackRef,
        stack: &Stack,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<LayerName, StoreError> {
        let draft = self.draft_layer(&stack.layers()[0].name())?;
        let flatten = Flatten {
            kind,
            blocks: reference.blocks,
            stack,
            whole: true,
        };
        // Its name is about to be made from what the layers hold, so that damage
        // would get a name of its own.
        for layer in stack.layers() {
            layer.verify(&mut |_| {})?;
        }
        let content = flatten.copy(draft.file(), progress)?;
        self.put_draft(content, draft, |_| Ok(()))
    }
}
