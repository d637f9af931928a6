//! Where hosts reach the agent: a vsock port, or a Unix socket for tests and
//! for containers.

use std::fmt;
use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::PathBuf;

use nix::errno::Errno;
use nix::sys::socket::{
    AddressFamily, Backlog, SockFlag, SockType, UnixAddr, VsockAddr, accept4, bind, connect,
    listen, socket,
};

/// An address to listen on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Address {
    /// A vsock port of this machine.
    Vsock(u32),
    /// A Unix socket; the file is removed at the end.
    Unix(PathBuf),
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Vsock(port) => write!(f, "vsock port {port}"),
            Self::Unix(path) => write!(f, "{}", path.display()),
        }
    }
}

/// A listening socket.
#[derive(Debug)]
pub(crate) struct Listener {
    fd: OwnedFd,
    path: Option<PathBuf>,
}

fn stream_socket(family: AddressFamily) -> io::Result<OwnedFd> {
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    Ok(socket(family, SockType::Stream, flags, None)?)
}

impl Listener {
    pub(crate) fn bind(address: &Address) -> io::Result<Self> {
        let (fd, path) = match address {
            Address::Vsock(port) => {
                let fd = stream_socket(AddressFamily::Vsock)?;
                bind(fd.as_raw_fd(), &VsockAddr::new(libc::VMADDR_CID_ANY, *port))?;
                (fd, None)
            }
            Address::Unix(path) => {
                let fd = stream_socket(AddressFamily::Unix)?;
                bind(fd.as_raw_fd(), &UnixAddr::new(path)?)?;
                (fd, Some(path.clone()))
            }
        };
        listen(&fd, Backlog::MAXCONN)?;
        Ok(Self { fd, path })
    }

    pub(crate) fn fd(&self) -> impl AsFd + '_ {
        self.fd.as_fd()
    }

    /// The next stream that waits.
    pub(crate) fn accept(&self) -> Result<OwnedFd, Errno> {
        let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
        accept4(&self.fd, flags)
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if let Some(path) = &self.path {
            let _ = fs::remove_file(path);
        }
    }
}

/// Begins a connection to a port of the host.
pub(crate) fn call_host(port: u32) -> io::Result<OwnedFd> {
    let fd = stream_socket(AddressFamily::Vsock)?;
    match connect(fd.as_raw_fd(), &VsockAddr::new(libc::VMADDR_CID_HOST, port)) {
        Ok(()) | Err(Errno::EINPROGRESS) => Ok(fd),
        Err(errno) => Err(errno.into()),
    }
}
