//! Snapshots that only serve to fork, in directories beside those of machines.
//!
//! Machines have the layers of theirs open, which locks them, and find them by
//! name when they are frozen or forked in their turn. So a directory stays until
//! nobody is at work on it and no machine has a layer in it open any more.

use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use nix::fcntl::{Flock, FlockArg};

use crate::runtime::{LOCK, lock, make_private};

/// Where they are, in the place of machines. No machine's name begins with a dot.
const PLACE: &str = ".forks";

/// A directory that this command is at work on.
#[derive(Debug)]
pub struct Frozen {
    dir: PathBuf,
    _lock: Flock<File>,
}

impl Frozen {
    /// Makes one in `place`. To be done alone in there, as is [`sweep`].
    pub fn create(place: &Path) -> io::Result<Self> {
        let place = place.join(PLACE);
        make_private(&place)?;
        for number in 0..u32::MAX {
            let dir = place.join(number.to_string());
            match DirBuilder::new().mode(0o700).create(&dir) {
                Ok(()) => {
                    let lock = lock(&dir.join(LOCK), FlockArg::LockExclusiveNonblock)?;
                    return Ok(Self { dir, _lock: lock });
                }
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(error),
            }
        }
        Err(io::ErrorKind::AlreadyExists.into())
    }

    /// The snapshot's manifest.
    pub fn manifest(&self) -> PathBuf {
        self.dir.join("manifest")
    }

    /// Its memory layer.
    pub fn memory(&self) -> PathBuf {
        self.dir.join("memory")
    }
}

/// Removes the directories in `place` that nobody needs any more.
pub fn sweep(place: &Path) {
    let entries = fs::read_dir(place.join(PLACE));
    for entry in entries.into_iter().flatten().flatten() {
        let dir = entry.path();
        if is_unneeded(&dir).unwrap_or(false) {
            // What cannot be removed stays for the next time.
            let _ = fs::remove_dir_all(&dir);
        }
    }
}

/// Whether nobody has a lock on a file in `dir`.
fn is_unneeded(dir: &Path) -> io::Result<bool> {
    for entry in fs::read_dir(dir)? {
        let file = File::open(entry?.path())?;
        if Flock::lock(file, FlockArg::LockExclusiveNonblock).is_err() {
            return Ok(false);
        }
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entries(place: &Path) -> usize {
        fs::read_dir(place.join(PLACE)).expect("listed").count()
    }

    #[test]
    fn one_stays_while_a_command_or_a_machine_needs_it() {
        let dir = tempfile::tempdir().expect("directory");
        let place = dir.path();
        sweep(place);
        let frozen = Frozen::create(place).expect("made");
        let other = Frozen::create(place).expect("made");
        assert_ne!(frozen.manifest(), other.manifest());
        fs::write(frozen.memory(), b"layer").expect("written");
        // As a machine's VMM has it.
        let open = File::open(frozen.memory()).expect("there");
        let open = Flock::lock(open, FlockArg::LockShared).expect("locked");
        sweep(place);
        assert_eq!(entries(place), 2);

        drop((frozen, other));
        sweep(place);
        assert_eq!(entries(place), 1);
        drop(open);
        sweep(place);
        assert_eq!(entries(place), 0);
    }
}
