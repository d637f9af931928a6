//! Mappings that guest memory is put together from.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr;

/// A range of private, writable memory of this process, unmapped when dropped.
#[derive(Debug)]
pub struct Mapping {
    address: *mut libc::c_void,
    len: usize,
}

// SAFETY: the mapping belongs to the process, not to a thread; whoever reads or
// writes through its address proves that by itself.
unsafe impl Send for Mapping {}
// SAFETY: as above; the type gives out its address and nothing else.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// `len` bytes of zeroes, which take memory only when they are touched.
    ///
    /// # Errors
    /// The host has no address space left, or `len` is 0.
    pub fn anonymous(len: usize) -> io::Result<Self> {
        Self::new(len, libc::MAP_PRIVATE | libc::MAP_NORESERVE)
    }

    /// The same, but children of fork(2) see what the parent writes, and the
    /// other way round.
    ///
    /// # Errors
    /// As for [`Mapping::anonymous`].
    pub fn shared(len: usize) -> io::Result<Self> {
        Self::new(len, libc::MAP_SHARED)
    }

    fn new(len: usize, flags: libc::c_int) -> io::Result<Self> {
        let access = libc::PROT_READ | libc::PROT_WRITE;
        let flags = flags | libc::MAP_ANONYMOUS;
        // SAFETY: the kernel chooses an address, so nothing else is replaced.
        let address = unsafe { libc::mmap(ptr::null_mut(), len, access, flags, -1, 0) };
        match address {
            libc::MAP_FAILED => Err(io::Error::last_os_error()),
            address => Ok(Self { address, len }),
        }
    }

    /// Where it begins.
    pub fn address(&self) -> usize {
        self.address as usize
    }

    /// Its length in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Never true: there are no empty mappings.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Puts a copy-on-write view of `len` bytes of `file`, from `offset` on, at
    /// `at` bytes from the beginning of this mapping.
    ///
    /// # Errors
    /// The range is not within the mapping, or the host refuses.
    pub fn overlay(
        &self,
        file: BorrowedFd<'_>,
        offset: u64,
        at: usize,
        len: usize,
    ) -> io::Result<()> {
        if at.checked_add(len).is_none_or(|end| end > self.len) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        // SAFETY: the range lies within this mapping, which nobody holds
        // references into: it is only ever reached by raw pointers.
        unsafe { overlay(self.address.wrapping_byte_add(at), file, offset, len) }
    }
}

/// Puts a copy-on-write view of `len` bytes of `file`, from `offset` on, in place
/// of what is mapped at `address`. All three are multiples of the page size.
///
/// # Errors
/// The host refuses: the file cannot be mapped, or the process has too many
/// mappings already.
///
/// # Safety
/// The range must be a mapping of the caller's that no references point into.
pub unsafe fn overlay(
    address: *mut libc::c_void,
    file: BorrowedFd<'_>,
    offset: u64,
    len: usize,
) -> io::Result<()> {
    let offset = i64::try_from(offset).map_err(|_| io::ErrorKind::InvalidInput)?;
    let access = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_FIXED | libc::MAP_NORESERVE;
    // SAFETY: the caller gives the range up to be replaced.
    match unsafe { libc::mmap(address, len, access, flags, file.as_raw_fd(), offset) } {
        libc::MAP_FAILED => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

/// Has the kernel read the pages of a range and map them, without changing any
/// (madvise(2), `MADV_POPULATE_READ`, Linux 5.14).
///
/// # Errors
/// The kernel cannot, or a page cannot be read.
///
/// # Safety
/// The range must be mapped.
pub unsafe fn populate(address: usize, len: usize) -> io::Result<()> {
    const MADV_POPULATE_READ: libc::c_int = 22;
    // SAFETY: the caller gives a mapped range, and the advice changes no content.
    match unsafe { libc::madvise(address as *mut libc::c_void, len, MADV_POPULATE_READ) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the range was mapped by `new`, and whoever reaches it by raw
        // pointers keeps this value alive.
        unsafe { libc::munmap(self.address, self.len) };
    }
}
