//! Where this user's machines have their directories, and how those are shared.

use std::fs::{self, DirBuilder, File, OpenOptions, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use nix::fcntl::{Flock, FlockArg};
use nix::unistd::geteuid;

use crate::error::Error;

/// The file in a directory whose lock says that somebody works with it.
pub const LOCK: &str = "lock";

/// The longest path that a Unix socket can have (unix(7)).
const SOCKET_PATH_MAX: usize = 107;

/// Room for `/` and the name of the longest socket, `vsock_4294967295`.
const SOCKET_NAME_ROOM: usize = 17;

/// What `make` makes in the first of `parents` in which it can.
pub fn in_first_of<T>(
    parents: &[PathBuf],
    make: impl Fn(&Path) -> io::Result<T>,
) -> Result<T, Error> {
    let mut errors = Vec::new();
    for parent in parents {
        match make(parent) {
            Ok(made) => return Ok(made),
            Err(error) => errors.push((parent.clone(), error)),
        }
    }
    Err(Error::NoRunDir(errors))
}

/// How long the name of a directory in `parent` may be, in bytes, so that there
/// can be sockets in it.
pub fn room_for_name(parent: &Path) -> usize {
    let taken = parent.as_os_str().len() + 1 + SOCKET_NAME_ROOM;
    SOCKET_PATH_MAX.saturating_sub(taken)
}

/// Refuses a `parent` that has no room for names of `len` bytes.
pub fn check_room(parent: &Path, len: usize) -> io::Result<()> {
    if room_for_name(parent) >= len {
        return Ok(());
    }
    Err(io::Error::new(
        io::ErrorKind::InvalidFilename,
        format!("the path is too long; sockets in it would exceed {SOCKET_PATH_MAX} bytes"),
    ))
}

/// Where directories of machines may be, best first: short paths that the system
/// empties at its start.
pub fn parents() -> Vec<PathBuf> {
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
pub fn make_private(dir: &Path) -> io::Result<()> {
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

/// Locks the file `path`, which is made if it is missing.
pub fn lock(path: &Path, how: FlockArg) -> io::Result<Flock<File>> {
    let file = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .open(path)?;
    Flock::lock(file, how).map_err(|(_, errno)| errno.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_that_will_not_do_is_passed_over() {
        let dir = tempfile::tempdir().expect("directory");
        let parent = dir.path().join("c");
        let make = |parent: &Path| {
            check_room(parent, 8)?;
            make_private(parent).map(|()| parent.to_path_buf())
        };
        let long = dir.path().join("x".repeat(100));
        let missing = dir.path().join("no/such");
        let file = dir.path().join("file");
        fs::write(&file, b"").expect("written");
        let bad = [long, missing, file];

        let error = in_first_of(&bad, make).expect_err("none").to_string();
        for said in ["107 bytes", "No such file", "not a directory of this user"] {
            assert!(error.contains(said), "{error}");
        }
        let places = [&bad[..], std::slice::from_ref(&parent)].concat();
        let run = in_first_of(&places, make).expect("made");
        assert!(run == parent);
    }
}
