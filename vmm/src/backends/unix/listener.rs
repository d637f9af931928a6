//! A listening socket that owns its path.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

use super::{PATH_MAX, Stream};

/// Why a path could not be listened at.
#[derive(Debug, thiserror::Error)]
pub enum ListenError {
    /// The path is empty, which the kernel would take for an abstract address.
    #[error("the path of the socket is empty; give the path of a file that does not exist yet")]
    Empty,
    /// The path does not fit into a socket address.
    #[error(
        "the socket path {} has {} bytes, but a Unix socket's path has at most {PATH_MAX}; choose a shorter one",
        path.display(),
        path.as_os_str().len()
    )]
    TooLong {
        /// The path that was asked for.
        path: PathBuf,
    },
    /// Another process is listening there.
    #[error(
        "the socket path {} is in use: a process is listening at it; stop that process or choose another path",
        path.display()
    )]
    InUse {
        /// The path that was asked for.
        path: PathBuf,
    },
    /// Something that is not a socket is there, and is not ours to remove.
    #[error(
        "the socket path {} is taken by a file that is not a socket; remove it or choose another path",
        path.display()
    )]
    NotASocket {
        /// The path that was asked for.
        path: PathBuf,
    },
    /// The host refused.
    #[error("listening at {} failed; its directory must exist and be writable", path.display())]
    Host {
        /// The path that was asked for.
        path: PathBuf,
        /// What the host said.
        source: io::Error,
    },
}

/// A file as the file system knows it, whatever its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Inode {
    device: u64,
    number: u64,
}

impl Inode {
    /// The inode that `path` names, without following a symbolic link.
    fn of(path: &Path) -> io::Result<Self> {
        let metadata = path.symlink_metadata()?;
        Ok(Self {
            device: metadata.dev(),
            number: metadata.ino(),
        })
    }
}

/// A listening socket. Dropping it removes its path, unless something else has
/// taken the path's place meanwhile.
#[derive(Debug)]
pub struct Listener {
    socket: UnixListener,
    path: PathBuf,
    inode: Inode,
}

impl Listener {
    /// Listens at `path`.
    ///
    /// A socket that a killed process left behind, which nobody serves any
    /// more, is replaced and the log says so. A socket that somebody serves is
    /// never touched.
    ///
    /// # Errors
    /// The path is unusable or taken; see [`ListenError`].
    pub fn bind(path: &Path) -> Result<Self, ListenError> {
        let owned = || path.to_path_buf();
        let host = |source| ListenError::Host {
            path: owned(),
            source,
        };
        match path.as_os_str().as_bytes().len() {
            0 => return Err(ListenError::Empty),
            1..=PATH_MAX => {}
            _ => return Err(ListenError::TooLong { path: owned() }),
        }
        let socket = match UnixListener::bind(path) {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
                remove_stale(path)?;
                // Whoever was quicker to bind the freed path keeps it.
                UnixListener::bind(path).map_err(|error| match error.kind() {
                    io::ErrorKind::AddrInUse => ListenError::InUse { path: owned() },
                    _ => host(error),
                })?
            }
            bound => bound.map_err(host)?,
        };
        socket.set_nonblocking(true).map_err(host)?;
        let inode = Inode::of(path).map_err(host)?;
        Ok(Self {
            socket,
            path: owned(),
            inode,
        })
    }

    /// The path that was given to [`Listener::bind`].
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The next connection that waits, if one does.
    ///
    /// # Errors
    /// The host is out of descriptors or memory, or the client went away
    /// while it waited.
    pub fn accept(&self) -> io::Result<Option<Stream>> {
        match self.socket.accept() {
            Ok((socket, _)) => Ok(Some(Stream::from(socket))),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
            Err(error) => Err(error),
        }
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if Inode::of(&self.path).is_ok_and(|inode| inode == self.inode)
            && let Err(error) = std::fs::remove_file(&self.path)
        {
            log::warn!("removing socket {}: {error}", self.path.display());
        }
    }
}

/// Removes the socket at `path` if nobody serves it.
fn remove_stale(path: &Path) -> Result<(), ListenError> {
    let owned = || path.to_path_buf();
    let host = |source| ListenError::Host {
        path: owned(),
        source,
    };
    let before = match path.symlink_metadata() {
        Ok(metadata) if metadata.file_type().is_socket() => Inode::of(path).map_err(host)?,
        Ok(_) => return Err(ListenError::NotASocket { path: owned() }),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(host(error)),
    };
    match Stream::connect(path) {
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {}
        // A full backlog (EAGAIN) has a listener too; so may have a socket
        // that this process may not connect to.
        _ => return Err(ListenError::InUse { path: owned() }),
    }
    // Another process may have replaced the stale socket since: its own
    // must stay.
    if Inode::of(path).map_err(host)? != before {
        return Err(ListenError::InUse { path: owned() });
    }
    std::fs::remove_file(path).map_err(host)?;
    log::info!(
        "replaced socket {}: its process had ended without removing it",
        path.display()
    );
    Ok(())
}

#[cfg(test)]
#[path = "listener_test.rs"]
mod tests;
