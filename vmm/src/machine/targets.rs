//! Where a snapshot goes: two files, neither of which may be one that the machine
//! needs for something else, and what lies there already.

use std::fs::{self, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use coppice_snapshot::{Draft, Layer, Manifest, Stack};

use super::snapshot::SnapshotError;
use crate::spec::{SnapshotCreate, Spec};

/// The files of a snapshot that is to be written.
pub(super) struct Targets {
    /// The manifest.
    pub(super) manifest: PathBuf,
    /// The new memory layer.
    pub(super) memory: PathBuf,
}

impl Targets {
    /// Absolute paths of two files, of which none is a file that the machine
    /// needs for something else.
    pub(super) fn check(request: &SnapshotCreate, spec: &Spec) -> Result<Self, SnapshotError> {
        let targets = Self {
            manifest: located(&request.snapshot_path)?,
            memory: located(&request.mem_file_path)?,
        };
        let refuse = |field, path: &Path, used: String| SnapshotError::InUse {
            field,
            path: path.to_owned(),
            used,
        };
        for (field, path) in [
            ("snapshot_path", &targets.manifest),
            ("mem_file_path", &targets.memory),
        ] {
            let Ok(metadata) = fs::metadata(path) else {
                continue;
            };
            if !metadata.is_file() {
                return Err(refuse(field, path, "not a regular file".into()));
            }
            if let Some(used) = used(&metadata, spec) {
                return Err(refuse(field, path, used));
            }
        }
        // Either would be lost to the snapshots that need it.
        if Layer::open(&targets.manifest).is_ok() {
            return Err(refuse("snapshot_path", &targets.manifest, "a layer".into()));
        }
        if Manifest::read(&targets.memory).is_ok() {
            let used = "a snapshot's manifest".into();
            return Err(refuse("mem_file_path", &targets.memory, used));
        }
        if is_same(&targets.manifest, &targets.memory) {
            let used = "the file that snapshot_path names".into();
            return Err(refuse("mem_file_path", &targets.memory, used));
        }
        if let Ok(layer) = Layer::open(&targets.memory)
            && has_own_name(&layer, &targets.memory)
        {
            let used = "a layer under its own name, by which snapshots find it".into();
            return Err(refuse("mem_file_path", &targets.memory, used));
        }
        // So that what cannot be written is known before anything is replaced.
        let draft = Draft::beside(&targets.manifest);
        draft.map_err(|source| SnapshotError::File {
            path: targets.manifest.clone(),
            what: "created",
            source,
        })?;
        Ok(targets)
    }
}

fn located(path: &Path) -> Result<PathBuf, SnapshotError> {
    std::path::absolute(path).map_err(|source| SnapshotError::File {
        path: path.to_owned(),
        what: "located",
        source,
    })
}

/// What the file with this `metadata` is to a machine of this `spec`.
fn used(metadata: &Metadata, spec: &Spec) -> Option<String> {
    let same = |other: &Path| {
        fs::metadata(other)
            .is_ok_and(|other| (other.dev(), other.ino()) == (metadata.dev(), metadata.ino()))
    };
    for drive in &spec.drives {
        let stack = drive.stack.iter();
        let of_stack = stack.flat_map(|stack| stack.layers.iter().chain(&stack.delta));
        if of_stack.chain([&drive.path_on_host]).any(|path| same(path)) {
            return Some(format!("a file of drive {:?}", drive.drive_id));
        }
    }
    if let Some(boot) = &spec.boot {
        if same(&boot.kernel_image_path) {
            return Some("the machine's kernel".into());
        }
        if boot.initrd_path.as_deref().is_some_and(same) {
            return Some("the machine's initrd".into());
        }
    }
    let serial = spec.serial.as_ref();
    let output = serial.and_then(|serial| serial.serial_out_path.as_deref());
    output
        .is_some_and(same)
        .then(|| "the file of the machine's console".into())
}

/// Whether two paths name one file, or would if there were one.
fn is_same(one: &Path, other: &Path) -> bool {
    let place = |path: &Path| {
        let dir = fs::metadata(path.parent()?).ok()?;
        Some((dir.dev(), dir.ino(), path.file_name()?.to_owned()))
    };
    let inode = |path: &Path| fs::metadata(path).ok().map(|file| (file.dev(), file.ino()));
    let both = |one: Option<_>, other| one.is_some() && one == other;
    place(one).is_some() && place(one) == place(other) || both(inode(one), inode(other))
}

fn has_own_name(layer: &Layer, path: &Path) -> bool {
    path.file_name() == Some(layer.name().to_string().as_ref())
}

/// A layer that lies where the new one is about to be, kept under its own name
/// beside it until the manifest is in place: up to then the old snapshot counts.
pub(super) struct Kept {
    target: PathBuf,
    /// The old layer's second path, if there was one.
    second: Option<PathBuf>,
    /// That path was made here, so nobody else knows it.
    linked: bool,
    /// The new snapshot needs the old layer, too.
    needed: bool,
    /// The new layer is at the target, and the manifest is not written yet.
    replaced: bool,
}

impl Kept {
    /// Keeps what is at `target`, if it is a layer.
    pub(super) fn keep(target: &Path, base: &Stack) -> Result<Self, SnapshotError> {
        let mut kept = Self {
            target: target.to_owned(),
            second: None,
            linked: false,
            needed: false,
            replaced: false,
        };
        let Ok(old) = Layer::open(target) else {
            // Nothing, or nothing of ours.
            return Ok(kept);
        };
        let second = target.with_file_name(old.name().to_string());
        kept.needed = base.layers().iter().any(|layer| layer.name() == old.name());
        kept.linked = match fs::hard_link(target, &second) {
            Ok(()) => true,
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => false,
            Err(source) => {
                return Err(SnapshotError::File {
                    path: second,
                    what: "linked to the layer that is replaced",
                    source,
                });
            }
        };
        kept.second = Some(second);
        Ok(kept)
    }

    /// The new layer is in place.
    pub(super) fn replaced(mut self) -> Self {
        self.replaced = true;
        self
    }

    /// The new snapshot is in place.
    pub(super) fn settle(mut self) {
        self.replaced = false;
        if let Some(second) = &self.second
            && self.linked
            && !self.needed
            && let Err(error) = fs::remove_file(second)
        {
            log::warn!(
                "{} is not needed and cannot be removed: {error}",
                second.display()
            );
        }
    }
}

impl Drop for Kept {
    /// Without a manifest there is no new snapshot, and its layer goes.
    fn drop(&mut self) {
        if !self.replaced {
            return;
        }
        let undone = match &self.second {
            Some(second) if self.linked => fs::rename(second, &self.target),
            // What was there is where it was found, too, or was nothing of ours.
            _ => fs::remove_file(&self.target),
        };
        if let Err(error) = undone {
            log::warn!(
                "{} is the layer of no snapshot and cannot be taken back: {error}",
                self.target.display()
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use coppice_snapshot::{Content, Extents, Kind, LayerName, Naming};
    use std::sync::Arc;

    fn layer(path: &Path) -> Arc<Layer> {
        let content = Content {
            kind: Kind::Memory,
            blocks: 1,
            held: Extents::all(1),
            zero: Extents::all(1),
        };
        let draft = Draft::beside(path).unwrap();
        Arc::new(content.publish(draft, Naming::Unique).unwrap())
    }

    fn name_at(path: &Path) -> LayerName {
        Layer::open(path).unwrap().name()
    }

    #[test]
    fn the_old_layer_is_back_unless_the_manifest_is_written() {
        let dir = tempfile::tempdir().unwrap();
        let target = dir.path().join("memory");
        let old = layer(&target).name();
        let kept = Kept::keep(&target, &Stack::default()).unwrap();
        layer(&target);
        drop(kept.replaced());
        assert_eq!(name_at(&target), old);
        let kept = Kept::keep(&target, &Stack::default()).unwrap();
        let new = layer(&target).name();
        kept.replaced().settle();
        assert_eq!(name_at(&target), new);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
        let first = Kept::keep(&dir.path().join("other"), &Stack::default()).unwrap();
        layer(&dir.path().join("other"));
        drop(first.replaced());
        assert!(!dir.path().join("other").exists());
    }

    #[test]
    fn a_layer_that_is_needed_or_was_there_before_stays_under_its_own_name() {
        let dir = tempfile::tempdir().unwrap();
        let target = dir.path().join("memory");
        let base = layer(&target);
        let own = dir.path().join(base.name().to_string());
        let kept = Kept::keep(&target, &Stack::default().with(base.clone())).unwrap();
        layer(&target);
        kept.replaced().settle();
        assert_eq!(name_at(&own), base.name());

        fs::copy(&own, &target).unwrap();
        let kept = Kept::keep(&target, &Stack::default()).unwrap();
        layer(&target);
        kept.replaced().settle();
        assert_eq!(name_at(&own), base.name());
    }
}
