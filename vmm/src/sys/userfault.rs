//! Marks on pages that vanish when the page is written: userfaultfd's
//! asynchronous write protection (Linux 6.7,
//! `Documentation/admin-guide/mm/userfaultfd.rst`).
//!
//! The kernel resolves each fault by itself, so nobody has to serve the
//! descriptor, and the mode that unprivileged processes may use suffices.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

const UFFD_USER_MODE_ONLY: libc::c_int = 1;
const UFFD_API: u64 = 0xaa;
const FEATURE_WP_UNPOPULATED: u64 = 1 << 13;
const FEATURE_WP_ASYNC: u64 = 1 << 15;
const REGISTER_MODE_WP: u64 = 1 << 1;
/// `_IOWR(0xaa, 0x3f, struct uffdio_api)` and `_IOWR(0xaa, 0x00, struct
/// uffdio_register)` (`include/uapi/linux/userfaultfd.h`).
const UFFDIO_API: libc::c_ulong = 0xc018_aa3f;
const UFFDIO_REGISTER: libc::c_ulong = 0xc020_aa00;

/// Ranges of memory in which written pages can be told from marked ones. All
/// pages count as written until they are marked, and none is marked any more
/// when this is dropped.
pub struct WriteMarks {
    fd: OwnedFd,
}

impl WriteMarks {
    /// Marks for no memory yet.
    ///
    /// # Errors
    /// The kernel has no such marks.
    pub fn new() -> io::Result<Self> {
        let flags = libc::O_CLOEXEC | libc::O_NONBLOCK | UFFD_USER_MODE_ONLY;
        // SAFETY: the call takes flags and no pointers.
        let fd = unsafe { libc::syscall(libc::SYS_userfaultfd, flags) };
        let fd = i32::try_from(fd).unwrap_or(-1);
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor was just made and is owned by nobody else.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        // struct uffdio_api: api, features, ioctls.
        let mut api = [UFFD_API, FEATURE_WP_ASYNC | FEATURE_WP_UNPOPULATED, 0u64];
        ioctl(&fd, UFFDIO_API, &mut api)?;
        Ok(Self { fd })
    }

    /// Takes in `[start, start + len)`, which must be whole pages of mapped
    /// memory.
    ///
    /// # Errors
    /// The kernel refuses this kind of memory.
    pub fn add(&self, start: usize, len: usize) -> io::Result<()> {
        // struct uffdio_register: start, len, mode, ioctls.
        let mut register = [start as u64, len as u64, REGISTER_MODE_WP, 0u64];
        ioctl(&self.fd, UFFDIO_REGISTER, &mut register)
    }
}

fn ioctl<const N: usize>(
    fd: &OwnedFd,
    request: libc::c_ulong,
    argument: &mut [u64; N],
) -> io::Result<()> {
    // SAFETY: both requests take a structure of N words of 64 bits, which
    // outlives the call. Registering memory for asynchronous write protection
    // does not change its content or accessibility.
    match unsafe { libc::ioctl(fd.as_raw_fd(), request, argument.as_mut_ptr()) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
