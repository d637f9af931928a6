//! The private directory of a running machine, and what killed runs left.
//!
//! Each run has one directory with its sockets, its configuration and its
//! initrd. It is gone when the run is over, whichever way that happens: at the
//! end of its value, or, if the process was killed, when the next run starts
//! and finds the directory's lock free. A VMM that outlived its run (it should
//! not: it asks the kernel to die with us) is killed then.

use std::fs::{self, DirBuilder, File, OpenOptions, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use nix::fcntl::{Flock, FlockArg};
use nix::unistd::geteuid;

use crate::error::Error;
use crate::process::ProcessId;

/// The longest path that a Unix socket can have (unix(7)).
const SOCKET_PATH_MAX: usize = 107;

/// Room for `/` and the name of the longest socket, `vsock_4294967295`.
const SOCKET_NAME_ROOM: usize = 17;

const LOCK: &str = "lock";
const VMM: &str = "vmm.pid";

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
        Self::create_in_first_of(&parents())
    }

    fn create_in_first_of(parents: &[PathBuf]) -> Result<Self, Error> {
        let mut errors = Vec::new();
        for parent in parents {
            match Self::create_in(parent) {
                Ok(dir) => return Ok(dir),
                Err(error) => errors.push((parent.clone(), error)),
            }
        }
        Err(Error::NoRunDir(errors))
    }

    fn create_in(parent: &Path) -> io::Result<Self> {
        // 8 digits and their slash.
        if parent.as_os_str().len() + 9 + SOCKET_NAME_ROOM > SOCKET_PATH_MAX {
            return Err(io::Error::new(
                io::ErrorKind::InvalidFilename,
                format!("the path is too long; sockets in it would exceed {SOCKET_PATH_MAX} bytes"),
            ));
        }
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

/// Where run directories may be, best first: short paths that the system
/// empties at its start.
fn parents() -> Vec<PathBuf> {
    let user = geteuid();
    let mut parents = Vec::new();
    if let Some(dir) = std::env::var_os("XDG_RUNTIME_DIR").filter(|dir| !dir.is_empty()) {
        parents.push(PathBuf::from(dir).join("coppice"));
    }
    if user.is_root() {
        parents.push("/run/coppice".into());
    }
    parents.push(format!("/tmp/coppice-{user}").into());
    parents
}

/// Makes `dir`, or sees to it that an existing one is ours alone: in `/tmp`
/// anyone could have made it.
fn make_private(dir: &Path) -> io::Result<()> {
    match DirBuilder::new().mode(0o700).create(dir) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        result => return result,
    }
    let found = fs::symlink_metadata(dir)?;
    if !found.is_dir() || found.uid() != geteuid().as_raw() {
        return Err(io::Error::new(
            io::ErrorKind::PermissionDenied,
            "exists, but is not a directory of this user",
        ));
    }
    if found.mode() & 0o077 != 0 {
        fs::set_permissions(dir, Permissions::from_mode(0o700))?;
    }
    Ok(())
}

fn lock(path: &Path, how: FlockArg) -> io::Result<Flock<File>> {
    let file = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .open(path)?;
    Flock::lock(file, how).map_err(|(_, errno)| errno.into())
}

/// Removes what runs left that were killed. What cannot be removed stays for
/// the next time.
fn sweep(parent: &Path) {
    let Ok(entries) = fs::read_dir(parent) else {
        return;
    };
    for path in entries.flatten().map(|entry| entry.path()) {
        if path.is_dir() && lock(&path.join(LOCK), FlockArg::LockExclusiveNonblock).is_ok() {
            let vmm = fs::read_to_string(path.join(VMM)).unwrap_or_default();
            if let Some(vmm) = ProcessId::parse(&vmm) {
                vmm.kill();
            }
            let _ = fs::remove_dir_all(&path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
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
        assert!(!vmm.wait().expect("waited").success());
    }

    #[test]
    fn a_place_that_will_not_do_is_passed_over() {
        let (dir, parent) = parent();
        let long = dir.path().join("x".repeat(100));
        let missing = dir.path().join("no/such");
        let file = dir.path().join("file");
        fs::write(&file, b"").expect("written");
        let bad = [long, missing, file];

        let error = RunDir::create_in_first_of(&bad)
            .expect_err("none")
            .to_string();
        for said in ["107 bytes", "No such file", "not a directory of this user"] {
            assert!(error.contains(said), "{error}");
        }
        let places = [&bad[..], std::slice::from_ref(&parent)].concat();
        let run = RunDir::create_in_first_of(&places).expect("made");
        assert!(run.path.starts_with(parent));
    }
}
