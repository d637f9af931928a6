//! One connection of a Unix stream socket.

use std::io;
use std::mem;
use std::net::Shutdown;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::UnixStream;
use std::path::Path;

use vm_memory::VolatileSlice;

use super::PATH_MAX;

/// A two-way stream of bytes that never waits: where nothing can be done now,
/// the answer is [`io::ErrorKind::WouldBlock`].
pub trait ByteStream {
    /// Sends the front of `data` and returns how many bytes were taken.
    ///
    /// # Errors
    /// Nothing could be sent; `BrokenPipe` if the other end takes no more.
    fn send(&self, data: &[VolatileSlice<'_>]) -> io::Result<usize>;

    /// Fills the front of `room` with at most `limit` bytes. 0 means that the
    /// other end sends no more (or that there is no room).
    ///
    /// # Errors
    /// Nothing could be received.
    fn receive(&self, room: &[VolatileSlice<'_>], limit: usize) -> io::Result<usize>;

    /// Copies what waits to be received without taking it.
    ///
    /// # Errors
    /// As [`ByteStream::receive`].
    fn peek(&self, room: &mut [u8]) -> io::Result<usize>;

    /// Ends one or both directions. Ending a direction twice is harmless.
    fn end(&self, how: Shutdown);
}

/// A connected Unix stream socket.
#[derive(Debug)]
pub struct Stream(UnixStream);

impl From<UnixStream> for Stream {
    fn from(socket: UnixStream) -> Self {
        Self(socket)
    }
}

impl Stream {
    /// Connects to the socket at `path` if its listener has room for one more
    /// connection right now. A symbolic link is refused, so that whoever may
    /// only create names beside the socket cannot redirect the connection.
    ///
    /// # Errors
    /// `ConnectionRefused` if there is no listener, `WouldBlock` if its
    /// backlog is full, `InvalidInput` if the path is no socket or too long.
    pub fn connect(path: &Path) -> io::Result<Self> {
        let invalid = |why| io::Error::new(io::ErrorKind::InvalidInput, why);
        let bytes = path.as_os_str().as_bytes();
        if bytes.is_empty() || bytes.len() > PATH_MAX || bytes.contains(&0) {
            return Err(invalid("not a path of a Unix socket"));
        }
        if !path.symlink_metadata()?.file_type().is_socket() {
            return Err(invalid("not a socket"));
        }
        // SAFETY: sockaddr_un is a plain C struct of integers; all zeroes is
        // a value of it.
        let mut address: libc::sockaddr_un = unsafe { mem::zeroed() };
        address.sun_family = libc::AF_UNIX as libc::sa_family_t;
        for (to, from) in address.sun_path.iter_mut().zip(bytes) {
            *to = *from as libc::c_char;
        }
        let socket = new_socket()?;
        // SAFETY: `address` is an initialised sockaddr_un, lives across the
        // call, and the length given is its own.
        let connected = unsafe {
            libc::connect(
                socket.as_raw_fd(),
                (&raw const address).cast(),
                mem::size_of::<libc::sockaddr_un>() as libc::socklen_t,
            )
        };
        if connected < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(Self(UnixStream::from(socket)))
    }
}

impl AsFd for Stream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl ByteStream for Stream {
    fn send(&self, data: &[VolatileSlice<'_>]) -> io::Result<usize> {
        let mut vector = IoVector::new(data, usize::MAX);
        let message = vector.message();
        retry(|| {
            // SAFETY: `message` points to `vector`, whose entries lie within
            // volatile slices borrowed for the whole call; the kernel only
            // reads them. Guest memory may change meanwhile, which the kernel
            // copes with.
            unsafe {
                libc::sendmsg(
                    self.0.as_raw_fd(),
                    &raw const message,
                    libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL,
                )
            }
        })
    }

    fn receive(&self, room: &[VolatileSlice<'_>], limit: usize) -> io::Result<usize> {
        let mut vector = IoVector::new(room, limit);
        let mut message = vector.message();
        retry(|| {
            // SAFETY: as in `send`; the kernel writes within the entries, and
            // nobody holds a Rust reference into volatile memory.
            unsafe { libc::recvmsg(self.0.as_raw_fd(), &raw mut message, libc::MSG_DONTWAIT) }
        })
    }

    fn peek(&self, room: &mut [u8]) -> io::Result<usize> {
        retry(|| {
            // SAFETY: the pointer and length are those of a mutable slice
            // that is borrowed for the whole call.
            unsafe {
                libc::recv(
                    self.0.as_raw_fd(),
                    room.as_mut_ptr().cast(),
                    room.len(),
                    libc::MSG_DONTWAIT | libc::MSG_PEEK,
                )
            }
        })
    }

    fn end(&self, how: Shutdown) {
        // The only failure is that the other end is gone (ENOTCONN): then the
        // direction has ended as was wanted.
        let _ = self.0.shutdown(how);
    }
}

/// A stream socket of which no call waits.
fn new_socket() -> io::Result<OwnedFd> {
    let kind = libc::SOCK_STREAM | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
    // SAFETY: no pointers are passed.
    let fd = unsafe { libc::socket(libc::AF_UNIX, kind, 0) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has just made `fd`, and nothing else knows it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Calls until the answer is something else than EINTR.
fn retry(mut call: impl FnMut() -> isize) -> io::Result<usize> {
    loop {
        let done = call();
        if done >= 0 {
            return Ok(done as usize);
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
}

/// Scatter-gather entries over volatile slices. What does not fit into it is
/// left to the next call, as with any short read or write.
struct IoVector {
    entries: [libc::iovec; Self::ENTRIES],
    len: usize,
}

impl IoVector {
    /// Drivers give a packet in a handful of pieces.
    const ENTRIES: usize = 32;

    /// The first `limit` bytes of `slices`.
    fn new(slices: &[VolatileSlice<'_>], limit: usize) -> Self {
        let mut vector = Self {
            entries: [libc::iovec {
                iov_base: std::ptr::null_mut(),
                iov_len: 0,
            }; Self::ENTRIES],
            len: 0,
        };
        let mut left = limit;
        let filled = slices.iter().filter(|slice| !slice.is_empty());
        for (entry, slice) in vector.entries.iter_mut().zip(filled) {
            if left == 0 {
                break;
            }
            let len = slice.len().min(left);
            *entry = libc::iovec {
                iov_base: slice.ptr_guard_mut().as_ptr().cast(),
                iov_len: len,
            };
            vector.len += 1;
            left -= len;
        }
        vector
    }

    /// A message header over the entries; valid while `self` stays in place.
    fn message(&mut self) -> libc::msghdr {
        // SAFETY: msghdr is a plain C struct of integers and pointers; all
        // zeroes (no name, no control data) is a value of it.
        let mut message: libc::msghdr = unsafe { mem::zeroed() };
        message.msg_iov = self.entries.as_mut_ptr();
        message.msg_iovlen = self.len as _;
        message
    }
}

#[cfg(test)]
#[path = "stream_test.rs"]
mod tests;
