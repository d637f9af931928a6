//! The private directory of a running machine, and what killed runs left.
//!
//! Each run has one directory with its sockets, its configuration and its
//! initrd. It is gone when the run is over, whichever way that happens: at the
//! end of its value, or, if the process was killed, when the next run starts
//! and finds the directory's lock free. A VMM that outlived its run (it should
//! not: it asks the kernel to die with us) is killed then.

use std::ffi::OsStr;
use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use nix::fcntl::{Flock, FlockArg};

use crate::error::Error;
use crate::process::ProcessId;
use crate::runtime::{self, LOCK, lock, make_private, parents};

const VMM: &str = "vmm.pid";

/// Directories of runs are named with so many hexadecimal digits. Others in the
/// same place are not ours to sweep.
const NAME_LEN: usize = 8;

/// The directory of one run.
#[derive(Debug)]
pub struct RunDir {
    path: PathBuf,
    /// Held as long as the run lives; the kernel lets go of it if we are killed.
    _lock: Flock<File>,
}

impl RunDir {
    /// Makes one in the first place that will have it, and sweeps that place.
    pub fn create() -> Result<Self, Error> {
        runtime::in_first_of(&parents(), Self::create_in)
    }

    fn create_in(parent: &Path) -> io::Result<Self> {
        runtime::check_room(parent, NAME_LEN)?;
        make_private(parent)?;
        // Nobody sweeps while a directory has no lock yet.
        let _sweeping = lock(&parent.join(LOCK), FlockArg::LockExclusive)?;
        sweep(parent);
        for number in 0..u32::MAX {
            let path = parent.join(format!("{:08x}", std::process::id().wrapping_add(number)));
            match DirBuilder::new().mode(0o700).create(&path) {
                Ok(()) => {
                    let lock = lock(&path.join(LOCK), FlockArg::LockExclusiveNonblock)?;
                    return Ok(Self { path, _lock: lock });
                }
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(error),
            }
        }
        Err(io::ErrorKind::AlreadyExists.into())
    }

    /// Its path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The path of a file in it.
    pub fn join(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// Writes down which VMM belongs to it.
    pub fn note_vmm(&self, vmm: ProcessId) -> io::Result<()> {
        fs::write(self.join(VMM), vmm.to_string())
    }
}

impl Drop for RunDir {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir_all(&self.path) {
            eprintln!(
                "coppice: {} could not be removed: {error}",
                self.path.display()
            );
        }
    }
}

/// Removes what runs left that were killed. What cannot be removed stays for
/// the next time.
fn sweep(parent: &Path) {
    let Ok(entries) = fs::read_dir(parent) else {
        return;
    };
    for path in entries.flatten().map(|entry| entry.path()) {
        let ours = path.file_name().is_some_and(is_name) && path.is_dir();
        if ours && lock(&path.join(LOCK), FlockArg::LockExclusiveNonblock).is_ok() {
            let vmm = fs::read_to_string(path.join(VMM)).unwrap_or_default();
            if let Some(vmm) = ProcessId::parse(&vmm) {
                vmm.kill();
            }
            let _ = fs::remove_dir_all(&path);
        }
    }
}

fn is_name(name: &OsStr) -> bool {
    let name = name.as_encoded_bytes();
    name.len() == NAME_LEN && name.iter().all(u8::is_ascii_hexdigit)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::MetadataExt;
    use std::process::Command;

    fn parent() -> (tempfile::TempDir, PathBuf) {
        let dir = tempfile::tempdir().expect("directory");
        let parent = dir.path().join("c");
        (dir, parent)
    }

    #[test]
    fn it_is_private_and_goes_with_its_value() {
        let (_dir, parent) = parent();
        let run = RunDir::create_in(&parent).expect("made");
        let path = run.path.clone();
        assert_eq!(path.metadata().expect("exists").mode() & 0o777, 0o700);
        assert_eq!(parent.metadata().expect("exists").mode() & 0o777, 0o700);
        fs::write(run.join("vsock"), b"").expect("written");
        drop(run);
        assert!(!path.exists());
    }

    #[test]
    fn living_runs_are_left_alone_and_dead_ones_swept() {
        let (_dir, parent) = parent();
        let living = RunDir::create_in(&parent).expect("made");
        let other = parent.join("m");
        fs::create_dir(&other).expect("made");

        // What SIGKILL leaves: everything but the lock.
        let dead = parent.join("0000dead");
        fs::create_dir(&dead).expect("made");
        fs::write(dead.join(LOCK), b"").expect("written");
        let mut vmm = Command::new("sleep").arg("60").spawn().expect("started");
        let id = ProcessId::of(vmm.id() as i32).expect("runs");
        fs::write(dead.join(VMM), id.to_string()).expect("written");

        let next = RunDir::create_in(&parent).expect("made");
        assert!(living.path.exists());
        assert!(next.path.exists());
        assert_ne!(living.path, next.path);
        assert!(!dead.exists());
        assert!(other.exists());
        assert!(!vmm.wait().expect("waited").success());
    }
}
