//! What snapshots have to do with a machine's drives.
//!
//! A drive that is a stack is frozen with the machine: its delta becomes a layer
//! and a new one takes its place. Of a drive that is a plain file a snapshot
//! keeps only facts, by which it is noticed when the file is no longer what it
//! was.

use std::path::{Path, PathBuf};

use coppice_snapshot::{Delta, DeltaError, DiskRef, Naming, Stack};
use serde::{Deserialize, Serialize};

use super::snapshot::{SnapshotError, refer};
use super::{Machine, MachineError};
use crate::backends::disk::{FileFacts, FreezeError, FrozenDisk};
use crate::devices::block::Block;
use crate::spec::DriveStack;
use crate::state::StateError;

/// Facts about the file of a drive.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct DriveFile {
    /// The drive.
    pub drive_id: String,
    /// Its file at the time of the snapshot.
    pub facts: FileFacts,
}

/// A drive at the moment of the freeze.
pub(super) struct FrozenDrive {
    drive_id: String,
    disk: FrozenDisk,
}

/// Deltas that were just made. Dropping it removes them again, since nobody has
/// written to them.
#[derive(Default)]
pub(super) struct NewDeltas(Vec<PathBuf>);

impl NewDeltas {
    /// Makes one.
    pub(super) fn create(&mut self, path: &Path, blocks: u64) -> Result<Delta, DeltaError> {
        let delta = Delta::create(path, blocks)?;
        self.0.push(path.to_owned());
        Ok(delta)
    }

    /// They are in use.
    pub(super) fn keep(mut self) {
        self.0.clear();
    }
}

impl Drop for NewDeltas {
    fn drop(&mut self) {
        for path in &self.0 {
            if let Err(error) = std::fs::remove_file(path) {
                log::warn!("{} is empty and cannot be removed: {error}", path.display());
            }
        }
    }
}

impl FrozenDrive {
    /// Facts about its file, if it is one.
    pub(super) fn file(&self) -> Option<DriveFile> {
        match &self.disk {
            FrozenDisk::File(facts) => Some(DriveFile {
                drive_id: self.drive_id.clone(),
                facts: facts.clone(),
            }),
            FrozenDisk::Stack(_) => None,
        }
    }

    /// Its layers by name, if it is a stack. What was its delta becomes one now,
    /// which takes time.
    pub(super) fn seal(&self, naming: Naming) -> Result<Option<DiskRef>, SnapshotError> {
        let FrozenDisk::Stack(levels) = &self.disk else {
            return Ok(None);
        };
        let mut stack = Stack::default();
        for level in levels.iter().rev() {
            stack = stack.with(level.seal(naming)?);
        }
        Ok(Some(DiskRef {
            drive_id: self.drive_id.clone(),
            stack: refer(&stack),
        }))
    }
}

impl Machine {
    /// Makes the deltas that drives need when they are frozen, in the order of
    /// the drives. Nothing is paused yet.
    pub(super) fn next_deltas(&self) -> Result<(Vec<Option<Delta>>, NewDeltas), SnapshotError> {
        let mut new = NewDeltas::default();
        let drives = self.board.virtio.iter().take(self.spec.drives.len());
        let deltas: Result<_, SnapshotError> = drives
            .map(|transport| {
                let transport = transport.lock();
                let now = transport.with_device(|block: &mut Block| {
                    let delta = block.backend_mut().delta();
                    delta.map(|delta| (delta.path().to_owned(), delta.blocks()))
                });
                match now.flatten() {
                    Some((path, blocks)) => Ok(Some(new.create(&successor(&path), blocks)?)),
                    None => Ok(None),
                }
            })
            .collect();
        Ok((deltas?, new))
    }

    /// Freezes all drives, which go on with the `next` deltas.
    pub(super) fn freeze_drives(
        &mut self,
        next: Vec<Option<Delta>>,
    ) -> Result<Vec<FrozenDrive>, SnapshotError> {
        let mut frozen = Vec::with_capacity(next.len());
        for (index, next) in next.into_iter().enumerate() {
            let delta = next.as_ref().map(|delta| delta.path().to_owned());
            let transport = self.board.virtio[index].lock();
            let disk = transport
                .with_device(|block: &mut Block| block.backend_mut().freeze(next))
                .unwrap_or(Err(FreezeError::Unknown))?;
            let drive = &mut self.spec.drives[index];
            if let FrozenDisk::Stack(levels) = &disk {
                drive.stack = Some(DriveStack {
                    layers: levels.iter().map(|level| level.path().to_owned()).collect(),
                    delta,
                });
            }
            frozen.push(FrozenDrive {
                drive_id: drive.drive_id.clone(),
                disk,
            });
        }
        Ok(frozen)
    }

    /// Compares the files of a restored machine's drives with what they were.
    /// Those in `replaced` only need to be as long.
    pub(super) fn check_files(
        &self,
        saved: &[DriveFile],
        replaced: &[&str],
        accept_changed: bool,
    ) -> Result<(), MachineError> {
        for (drive, transport) in self.spec.drives.iter().zip(&self.board.virtio) {
            let Some(was) = saved.iter().find(|file| file.drive_id == drive.drive_id) else {
                continue;
            };
            let transport = transport.lock();
            let now = transport.with_device(|block: &mut Block| block.backend_mut().freeze(None));
            let Some(Ok(FrozenDisk::File(now))) = now else {
                continue;
            };
            let refuse = |why: String| {
                let what = format!("drive {:?}", drive.drive_id);
                Err(StateError::refused(what, why).into())
            };
            let path = now.path.display();
            if now.len != was.facts.len {
                return refuse(format!(
                    "its file {path} has {} bytes and had {} when the snapshot was made; give the \
                     file that it was, or a copy of that, by drive_overrides",
                    now.len, was.facts.len
                ));
            }
            let same = (now.device, now.inode) == (was.facts.device, was.facts.inode);
            let written = same && now.modified != was.facts.modified;
            if written && !accept_changed && !replaced.contains(&drive.drive_id.as_str()) {
                return refuse(format!(
                    "its file {path} was written to after the snapshot was made, and the guest \
                     remembers it as it was; give a copy from that time by drive_overrides, use a \
                     stack, which is frozen with the machine, or set accept_changed_drives"
                ));
            }
        }
        Ok(())
    }
}

/// Where the delta goes on that is at `path` now: `NAME.1`, `NAME.2` and so on,
/// whichever is free.
fn successor(path: &Path) -> PathBuf {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let (stem, number) = match name.rsplit_once('.') {
        Some((stem, number)) => match number.parse::<u64>() {
            Ok(number) => (stem, number),
            Err(_) => (&*name, 0),
        },
        None => (&*name, 0),
    };
    (number.saturating_add(1)..)
        .map(|number| path.with_file_name(format!("{stem}.{number}")))
        .find(|path| !path.exists())
        .unwrap_or_else(|| path.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn deltas_are_numbered_and_none_is_overwritten() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        assert_eq!(successor(&at("root.delta")), at("root.delta.1"));
        assert_eq!(successor(&at("root.delta.9")), at("root.delta.10"));
        std::fs::write(at("root.delta.1"), "taken").unwrap();
        assert_eq!(successor(&at("root.delta")), at("root.delta.2"));
        assert_eq!(successor(&at("7")), at("7.1"));
    }
}
