//! What a block device needs of its storage.

use std::io;

use vm_memory::VolatileSlice;

/// The content of a disk. Offsets and lengths are in bytes; callers stay within
/// [`DiskBackend::len`], which they learn once.
pub trait DiskBackend: Send {
    /// Size of the disk. Does not change, whatever becomes of the storage.
    fn len(&self) -> u64;

    /// The disk has no bytes at all.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Fills all of `slices` from `offset` on.
    ///
    /// # Errors
    /// The storage fails or ends early; what was read by then is in `slices`.
    fn read_vectored_at(&mut self, slices: &[VolatileSlice<'_>], offset: u64) -> io::Result<()>;

    /// Writes all of `slices` from `offset` on.
    ///
    /// # Errors
    /// The storage fails or is full; a part may have been written.
    fn write_vectored_at(&mut self, slices: &[VolatileSlice<'_>], offset: u64) -> io::Result<()>;

    /// Returns when all that was written before survives a crash of the host.
    ///
    /// # Errors
    /// The storage cannot promise that.
    fn flush(&mut self) -> io::Result<()>;

    /// The content of this range is needed no more. A hint: storage that cannot
    /// free it keeps it.
    ///
    /// # Errors
    /// The storage fails.
    fn discard(&mut self, offset: u64, len: u64) -> io::Result<()>;

    /// Makes this range read as zeroes; only if `may_unmap` may its storage be
    /// freed.
    ///
    /// # Errors
    /// The storage fails or is full.
    fn write_zeroes(&mut self, offset: u64, len: u64, may_unmap: bool) -> io::Result<()>;
}
