//! Room in a store for files that are on their way into it.

use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use nix::fcntl::{Flock, FlockArg};

use super::Store;
use super::error::{StoreError, io_error};
use crate::draft::{lock, unique};

/// A directory on the store's file system, so that layers made in it enter the
/// store without being copied. It is removed with all that is left in it when
/// this is dropped; if the process is killed, by the next collection.
#[derive(Debug)]
pub struct Staging {
    dir: PathBuf,
    /// Tells collections that somebody is alive.
    _lock: Flock<File>,
}

impl Staging {
    /// The directory.
    pub fn dir(&self) -> &Path {
        &self.dir
    }
}

impl Drop for Staging {
    fn drop(&mut self) {
        // Nobody is left to be told; a collection will try again.
        let _ = fs::remove_dir_all(&self.dir);
    }
}

impl Store {
    /// Makes an empty directory for files on their way into the store.
    ///
    /// # Errors
    /// The host cannot make it.
    pub fn staging(&self) -> Result<Staging, StoreError> {
        let parent = self.dir.join("staging");
        let make = || -> io::Result<Staging> {
            loop {
                let dir = parent.join(unique()?);
                DirBuilder::new().mode(0o700).create(&dir)?;
                // A collection may take it for a dead one's before it is locked.
                let opened = match File::open(&dir) {
                    Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                    opened => opened?,
                };
                let lock = lock(opened, FlockArg::LockShared)?;
                if lock.metadata()?.nlink() > 0 {
                    return Ok(Staging { dir, _lock: lock });
                }
            }
        };
        make().map_err(io_error(&parent, "written"))
    }

    /// Removes staging directories whose makers are dead, and gives the bytes
    /// that were in them.
    pub(super) fn sweep_staging(&self) -> Result<u64, StoreError> {
        let mut freed = 0;
        for name in self.names("staging")? {
            let dir = self.dir.join("staging").join(name);
            let Ok(opened) = File::open(&dir) else {
                continue;
            };
            if Flock::lock(opened, FlockArg::LockExclusiveNonblock).is_ok() {
                let bytes = bytes_in(&dir);
                fs::remove_dir_all(&dir).map_err(io_error(&dir, "removed"))?;
                freed += bytes;
            }
        }
        Ok(freed)
    }
}

/// Bytes on disk of the files in `dir`; a guess, if it cannot be read.
fn bytes_in(dir: &Path) -> u64 {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    let metadata = entries.filter_map(|entry| entry.metadata().ok());
    metadata.map(|metadata| metadata.blocks() * 512).sum()
}
