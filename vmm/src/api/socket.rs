//! The listening socket's place in the file system: taken safely, left clean.

use std::fs::{self, File};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};
use nix::sys::socket::{AddressFamily, SockFlag, SockType, UnixAddr, connect, socket};
use nix::sys::stat::{Mode, umask};

/// Longest path of a Unix socket: `sun_path` has 108 bytes, one for a final NUL.
const MAX_PATH: usize = 107;

/// The API socket could not be made.
#[derive(Debug, thiserror::Error)]
pub enum SocketError {
    /// The path does not fit a socket address.
    #[error("the API socket path {0:?} has {1} bytes; a socket path has 1 to {MAX_PATH}")]
    BadLength(PathBuf, usize),
    /// Another process serves the path.
    #[error(
        "the API socket {0:?} is in use by a running process; choose another path with --api-sock"
    )]
    InUse(PathBuf),
    /// Something else is at the path; it is not touched.
    #[error("{0:?} exists and is not a socket; choose another path with --api-sock")]
    NotASocket(PathBuf),
    /// A system call failed.
    #[error("cannot {what} {path:?}: {source}")]
    Io {
        /// What was attempted.
        what: &'static str,
        /// With which path.
        path: PathBuf,
        /// Why it failed.
        source: io::Error,
    },
}

/// A listening socket that removes its file when dropped.
#[derive(Debug)]
pub struct OwnedSocket {
    listener: UnixListener,
    path: PathBuf,
    /// Device and inode, by which the file is known to be ours.
    identity: (u64, u64),
}

impl OwnedSocket {
    /// Listens at `path`, which only the own user can connect to. A socket that
    /// a dead process left there is replaced.
    ///
    /// # Errors
    /// See [`SocketError`].
    pub fn bind(path: &Path) -> Result<OwnedSocket, SocketError> {
        let length = path.as_os_str().as_bytes().len();
        if !(1..=MAX_PATH).contains(&length) {
            return Err(SocketError::BadLength(path.to_owned(), length));
        }
        let failed = |what, path: &Path| {
            let path = path.to_owned();
            move |source| SocketError::Io { what, path, source }
        };
        // Two processes that find the same dead socket must not remove each
        // other's new one, so finding and replacing happen under a lock. Where
        // the folder cannot be locked, that rare race is all that is lost.
        let folder = match path.parent() {
            Some(folder) if !folder.as_os_str().is_empty() => folder,
            _ => Path::new("."),
        };
        let _lock = File::open(folder)
            .ok()
            .and_then(|folder| Flock::lock(folder, FlockArg::LockExclusive).ok());

        remove_dead_socket(path)?;
        // The file must not be open to others for even a moment; no other thread
        // runs yet that could create a file under this mask.
        let mask = umask(Mode::from_bits_truncate(0o177));
        let listener = UnixListener::bind(path);
        umask(mask);
        let listener = listener.map_err(failed("create the API socket", path))?;
        listener
            .set_nonblocking(true)
            .map_err(failed("set up the API socket", path))?;
        let file = fs::symlink_metadata(path).map_err(failed("find the API socket", path))?;
        Ok(OwnedSocket {
            listener,
            path: path.to_owned(),
            identity: (file.dev(), file.ino()),
        })
    }

    /// The socket to accept connections from.
    pub fn listener(&self) -> &UnixListener {
        &self.listener
    }
}

impl Drop for OwnedSocket {
    fn drop(&mut self) {
        let ours = |file: &fs::Metadata| (file.dev(), file.ino()) == self.identity;
        if fs::symlink_metadata(&self.path).is_ok_and(|file| ours(&file)) {
            // Nothing is left to do about a failure at the end.
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Removes the socket at `path` if nobody listens on it.
fn remove_dead_socket(path: &Path) -> Result<(), SocketError> {
    let failed = |what, source| SocketError::Io {
        what,
        path: path.to_owned(),
        source,
    };
    match fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(failed("look at", error)),
        Ok(file) if !file.file_type().is_socket() => {
            return Err(SocketError::NotASocket(path.to_owned()));
        }
        Ok(_) => (),
    }
    let flags = SockFlag::SOCK_NONBLOCK | SockFlag::SOCK_CLOEXEC;
    let probe = socket(AddressFamily::Unix, SockType::Stream, flags, None)
        .map_err(|errno| failed("make a socket to try", errno.into()))?;
    let address = UnixAddr::new(path).map_err(|errno| failed("name", errno.into()))?;
    match connect(probe.as_raw_fd(), &address) {
        Err(Errno::ECONNREFUSED) => {
            fs::remove_file(path).map_err(|error| failed("remove the dead socket", error))
        }
        Err(Errno::ENOENT) => Ok(()),
        // EAGAIN says that its owner is slow, EACCES and EPROTOTYPE that it is
        // somebody else's.
        Ok(()) | Err(_) => Err(SocketError::InUse(path.to_owned())),
    }
}
