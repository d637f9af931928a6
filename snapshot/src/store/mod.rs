//! A directory of snapshots and the layers that they share.
//!
//! ```text
//! format            one line: what the directory is
//! lock              locked by whoever uses the store
//! layers/NAME       layers, each named by its content
//! snapshots/ID      manifests
//! tags/TAG          the id of the snapshot that has this tag
//! staging/…/        files on their way into the store
//! verified          when which layer was found to be whole
//! ```
//!
//! A file appears under its name when it is complete and durable, and a manifest
//! after its layers: whatever is interrupted, a snapshot is there with all of
//! its layers or not at all. Nothing is ever changed in place but `verified`.
//!
//! Any number of processes may use a store at once. The lock is only there for
//! the collection: who puts a snapshot in, or reads a manifest and then opens
//! its layers, shares it ([`Store::share`]); who removes layers has it alone.

mod collect;
mod error;
mod flatten;
mod put;
mod staging;
mod tags;
mod verify;

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::{self, DirBuilder, File};
use std::io::{self, Write};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use nix::fcntl::{Flock, FlockArg};

use crate::draft::{Draft, lock, parent, sync_dir};
use crate::find::Places;
use crate::layer::{Kind, LayerName};
use crate::manifest::{Manifest, ManifestError, SnapshotId};
use crate::stack::Stack;

pub use collect::{Collected, LayerUse};
pub use error::StoreError;
pub use put::Take;
#[cfg(feature = "pack")]
pub(crate) use put::stored;
pub use staging::Staging;
pub use tags::Tag;
pub use verify::Verified;

use error::io_error;

/// What `format` says.
const FORMAT: &str = "coppice store 1\n";

/// A store.
#[derive(Clone, Debug)]
pub struct Store {
    dir: PathBuf,
}

/// While it lives, no collection takes away what its holder has seen.
#[derive(Debug)]
pub struct Share(#[expect(dead_code, reason = "holds a lock")] Flock<File>);

/// While it lives, nobody else uses the store.
#[derive(Debug)]
struct Alone(#[expect(dead_code, reason = "holds a lock")] Flock<File>);

/// A snapshot with its layers open.
#[derive(Debug)]
pub struct Opened {
    /// Its id.
    pub id: SnapshotId,
    /// Its manifest.
    pub manifest: Manifest,
    /// The layers of its memory.
    pub memory: Stack,
    /// The layers of its disks, in the manifest's order.
    pub disks: Vec<Stack>,
}

impl Store {
    /// Opens the store at `dir`, which is made if it does not exist or is empty.
    ///
    /// # Errors
    /// The directory is something else, or cannot be read or made.
    pub fn open(dir: &Path) -> Result<Self, StoreError> {
        let store = Self {
            dir: dir.to_owned(),
        };
        let format = store.dir.join("format");
        match fs::read(&format) {
            Ok(found) if found == FORMAT.as_bytes() => return Ok(store),
            Ok(found) => {
                return Err(StoreError::Format {
                    dir: store.dir,
                    format: String::from_utf8_lossy(&found[..found.len().min(100)])
                        .trim_end()
                        .to_owned(),
                });
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(io_error(&format, "read")(error)),
        }
        store.make()?;
        Ok(store)
    }

    fn make(&self) -> Result<(), StoreError> {
        make_dir(&self.dir)?;
        // Anything but what another process may have made just now is foreign.
        let ours = ["format", "lock", "layers", "snapshots", "tags", "staging"];
        let entries = fs::read_dir(&self.dir).map_err(io_error(&self.dir, "read"))?;
        for entry in entries {
            let name = entry.map_err(io_error(&self.dir, "read"))?.file_name();
            let is_ours = ours.iter().any(|ours| name == *ours) || is_draft_of(&name, "format");
            if !is_ours {
                return Err(StoreError::NotAStore {
                    dir: self.dir.clone(),
                });
            }
        }
        for name in ["layers", "snapshots", "tags", "staging"] {
            make_dir(&self.dir.join(name))?;
        }
        let lock = self.dir.join("lock");
        let made = File::options().append(true).create(true).open(&lock);
        made.map_err(io_error(&lock, "made"))?;
        write(&self.dir.join("format"), FORMAT.as_bytes())
    }

    /// The directory.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Keeps collections from removing layers as long as the result lives: to be
    /// held from reading a manifest until its layers are open. Waits for a
    /// collection that runs.
    ///
    /// # Errors
    /// The host cannot lock.
    pub fn share(&self) -> Result<Share, StoreError> {
        self.lock(FlockArg::LockShared).map(Share)
    }

    fn alone(&self) -> Result<Alone, StoreError> {
        self.lock(FlockArg::LockExclusive).map(Alone)
    }

    fn lock(&self, how: FlockArg) -> Result<Flock<File>, StoreError> {
        let path = self.dir.join("lock");
        let file = File::open(&path).map_err(io_error(&path, "opened"))?;
        lock(file, how).map_err(io_error(&path, "locked"))
    }

    /// The places in which this store's layers are found.
    pub fn places(&self) -> Places {
        Places {
            store: Some(self.dir.clone()),
            ..Places::default()
        }
    }

    fn layer_path(&self, name: &LayerName) -> PathBuf {
        crate::find::in_store(&self.dir, name)
    }

    /// Where the manifest of a snapshot lies.
    pub fn manifest_path(&self, id: &SnapshotId) -> PathBuf {
        self.dir.join("snapshots").join(id.to_string())
    }

    /// Where the working set of a snapshot lies, if one has been recorded. The
    /// directory for them is made by whoever records the first.
    pub fn working_set_path(&self, id: &SnapshotId) -> PathBuf {
        self.dir.join("working-sets").join(id.to_string())
    }

    /// The snapshot that has the tag `name`, or whose id begins with it (four
    /// digits at least).
    ///
    /// # Errors
    /// There is none, or there are several.
    pub fn resolve(&self, name: &str) -> Result<SnapshotId, StoreError> {
        if let Some(id) = self.tagged(name)? {
            return Ok(id);
        }
        let mut ids = self.ids()?;
        ids.retain(|id| name.len() >= 4 && id.to_string().starts_with(name));
        match ids[..] {
            [id] => Ok(id),
            [] => Err(StoreError::NoSnapshot {
                dir: self.dir.clone(),
                name: name.to_owned(),
            }),
            _ => Err(StoreError::Ambiguous {
                name: name.to_owned(),
                ids,
            }),
        }
    }

    /// The ids of all snapshots, sorted.
    ///
    /// # Errors
    /// The directory cannot be read.
    pub fn ids(&self) -> Result<Vec<SnapshotId>, StoreError> {
        let mut ids: Vec<SnapshotId> = self
            .names("snapshots")?
            .iter()
            .filter_map(|name| name.parse().ok())
            .collect();
        ids.sort_unstable();
        Ok(ids)
    }

    /// Reads the manifest of a snapshot.
    ///
    /// # Errors
    /// It is missing, damaged, or the manifest of another snapshot.
    pub fn read(&self, id: &SnapshotId) -> Result<Manifest, StoreError> {
        let path = self.manifest_path(id);
        match Manifest::read(&path) {
            Ok((manifest, found)) if found == *id => Ok(manifest),
            Ok((_, found)) => Err(StoreError::Manifest(ManifestError::Damaged {
                path,
                what: format!("it is the manifest of {found}"),
            })),
            Err(ManifestError::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
                Err(StoreError::NoSnapshot {
                    dir: self.dir.clone(),
                    name: id.to_string(),
                })
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Reads a snapshot's manifest and opens its layers. They stay readable
    /// whatever is removed from the store afterwards.
    ///
    /// # Errors
    /// There is no such snapshot, or something of it is missing or damaged.
    pub fn open_snapshot(&self, id: &SnapshotId) -> Result<Opened, StoreError> {
        let _share = self.share()?;
        let manifest = self.read(id)?;
        let places = self.places();
        let memory = places.open(Kind::Memory, &manifest.memory)?;
        let disks = manifest.disks.iter();
        let disks = disks.map(|disk| places.open(Kind::Disk, &disk.stack));
        let disks = disks.collect::<Result<_, _>>()?;
        Ok(Opened {
            id: *id,
            manifest,
            memory,
            disks,
        })
    }

    /// The manifests of all snapshots. One that is unreadable does not hide the
    /// others.
    ///
    /// # Errors
    /// The directory cannot be read.
    pub fn list(&self) -> Result<BTreeMap<SnapshotId, Result<Manifest, StoreError>>, StoreError> {
        let ids = self.ids()?;
        let all = ids.into_iter().map(|id| (id, self.read(&id)));
        // What another process removed since is not there.
        Ok(all
            .filter(|(_, read)| !matches!(read, Err(StoreError::NoSnapshot { .. })))
            .collect())
    }

    /// The names in one of the store's directories that are UTF-8.
    fn names(&self, dir: &str) -> Result<Vec<String>, StoreError> {
        let path = self.dir.join(dir);
        let read = || -> io::Result<Vec<String>> {
            let mut names = Vec::new();
            for entry in fs::read_dir(&path)? {
                names.extend(entry?.file_name().into_string());
            }
            Ok(names)
        };
        read().map_err(io_error(&path, "read"))
    }
}

/// Whether this is the name of a draft of the file `of`.
fn is_draft_of(name: &OsStr, of: &str) -> bool {
    crate::draft::of_draft(name) == Some(of.as_bytes())
}

/// Makes a directory, with those above it, for its owner alone.
fn make_dir(dir: &Path) -> Result<(), StoreError> {
    if dir.is_dir() {
        return Ok(());
    }
    let made = DirBuilder::new().recursive(true).mode(0o700).create(dir);
    made.and_then(|()| sync_dir(parent(dir)))
        .map_err(io_error(dir, "made"))
}

/// Writes a file, whole and durable or not at all.
fn write(path: &Path, bytes: &[u8]) -> Result<(), StoreError> {
    let written = Draft::beside(path).and_then(|draft| {
        draft.file().write_all(bytes)?;
        draft.publish()
    });
    written.map_err(io_error(path, "written"))
}

/// Makes removals in `dir` durable.
fn sync(dir: &Path) -> Result<(), StoreError> {
    sync_dir(dir).map_err(io_error(dir, "written"))
}

#[cfg(test)]
#[path = "store_test.rs"]
mod tests;

#[cfg(test)]
#[path = "faults_test.rs"]
mod faults_tests;

#[cfg(test)]
#[path = "crowd_test.rs"]
mod crowd_tests;
