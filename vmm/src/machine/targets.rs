//! The files of a new snapshot, and what lies where they go.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use coppice_snapshot::{Layer, LayerName, Manifest, Stack};

use super::snapshot::SnapshotError;
use crate::spec::{SnapshotCreate, Spec};

/// Where a snapshot goes.
pub(super) struct Targets {
    pub(super) manifest: PathBuf,
    pub(super) memory: PathBuf,
}

impl Targets {
    /// Absolute paths, of which none is a file that the machine needs for
    /// something else.
    pub(super) fn check(request: &SnapshotCreate, spec: &Spec) -> Result<Self, SnapshotError> {
        let absolute = |path: &Path| {
            std::path::absolute(path).map_err(|source| SnapshotError::File {
                path: path.to_owned(),
                what: "located",
                source,
            })
        };
        let targets = Self {
            manifest: absolute(&request.snapshot_path)?,
            memory: absolute(&request.mem_file_path)?,
        };
        let named = [
            ("snapshot_path", &targets.manifest),
            ("mem_file_path", &targets.memory),
        ];
        for (field, path) in named {
            let in_use = |used: String| SnapshotError::InUse {
                field,
                path: path.clone(),
                used,
            };
            let Ok(metadata) = fs::metadata(path) else {
                continue;
            };
            if !metadata.is_file() {
                return Err(in_use("not a regular file".into()));
            }
            let same = |other: &Path| {
                fs::metadata(other).is_ok_and(|other| {
                    (other.dev(), other.ino()) == (metadata.dev(), metadata.ino())
                })
            };
            for drive in &spec.drives {
                let stack = drive.stack.iter();
                let stack = stack.flat_map(|stack| stack.layers.iter().chain(&stack.delta));
                if stack.chain([&drive.path_on_host]).any(|path| same(path)) {
                    return Err(in_use(format!("a file of drive {:?}", drive.drive_id)));
                }
            }
            if let Some(boot) = &spec.boot {
                if same(&boot.kernel_image_path) {
                    return Err(in_use("the machine's kernel".into()));
                }
                if boot.initrd_path.as_deref().is_some_and(same) {
                    return Err(in_use("the machine's initrd".into()));
                }
            }
        }
        // Either would be lost to the snapshots that need it.
        if Layer::open(&targets.manifest).is_ok() {
            return Err(SnapshotError::InUse {
                field: "snapshot_path",
                path: targets.manifest,
                used: "a layer".into(),
            });
        }
        if Manifest::read(&targets.memory).is_ok() {
            return Err(SnapshotError::InUse {
                field: "mem_file_path",
                path: targets.memory,
                used: "a snapshot's manifest".into(),
            });
        }
        if let (Ok(one), Ok(other)) = (
            fs::metadata(&targets.manifest),
            fs::metadata(&targets.memory),
        ) && (one.dev(), one.ino()) == (other.dev(), other.ino())
        {
            return Err(SnapshotError::InUse {
                field: "mem_file_path",
                path: targets.memory,
                used: "the file that snapshot_path names".into(),
            });
        }
        Ok(targets)
    }
}

pub(super) fn absolute(path: &Path) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned())
}

/// A layer that lies where the new one is about to be, kept under its own name
/// beside it.
pub(super) struct Kept {
    /// The old layer's name and its second path, if there was one.
    old: Option<(LayerName, PathBuf)>,
    /// The new snapshot needs it, too.
    needed: bool,
}

impl Kept {
    /// Keeps what is at `target`, if it is a layer.
    pub(super) fn keep(target: &Path, base: &Stack) -> Result<Self, SnapshotError> {
        let Ok(old) = Layer::open(target) else {
            // Nothing, or nothing of ours.
            return Ok(Self {
                old: None,
                needed: false,
            });
        };
        let second = target.with_file_name(old.name().to_string());
        let needed = base.layers().iter().any(|layer| layer.name() == old.name());
        if second.as_path() == target {
            return Ok(Self { old: None, needed });
        }
        match fs::hard_link(target, &second) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(source) => {
                return Err(SnapshotError::File {
                    path: second,
                    what: "linked to the layer that is replaced",
                    source,
                });
            }
        }
        Ok(Self {
            old: Some((old.name(), second)),
            needed,
        })
    }

    /// Where `layer` lies now.
    pub(super) fn place(&self, layer: &Layer) -> PathBuf {
        match &self.old {
            Some((name, second)) if *name == layer.name() => second.clone(),
            _ => absolute(layer.path()),
        }
    }

    /// The new snapshot is in place.
    pub(super) fn settle(self) {
        if let Some((_, second)) = self.old
            && !self.needed
            && let Err(error) = fs::remove_file(&second)
        {
            log::warn!(
                "{} is not needed and cannot be removed: {error}",
                second.display()
            );
        }
    }
}
