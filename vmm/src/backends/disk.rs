//! What a block device needs of its storage.

use std::io;
use std::path::PathBuf;

use coppice_snapshot::{Delta, DeltaError};
use serde::{Deserialize, Serialize};
use vm_memory::VolatileSlice;

use super::disk_stack::Level;

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

    /// What takes the writes of a disk that is a stack: where it is, and how
    /// large the next one has to be.
    fn delta(&self) -> Option<&Delta> {
        None
    }

    /// Tells what the disk's content is at this moment, between two requests. The
    /// delta of a stack, if it has one, is written no more, and `next` takes its
    /// place. This is quick: a machine may be paused for it.
    ///
    /// # Errors
    /// The storage cannot tell, or `next` does not fit; nothing has changed then.
    fn freeze(&mut self, next: Option<Delta>) -> Result<FrozenDisk, FreezeError> {
        let _ = next;
        Err(FreezeError::Unknown)
    }
}

/// The content of a disk at one moment.
#[derive(Clone, Debug)]
pub enum FrozenDisk {
    /// A plain file, which goes on to be written: the content is what it has as
    /// long as it has these facts.
    File(FileFacts),
    /// Levels, topmost first, none of which changes any more.
    Stack(Vec<Level>),
}

/// What tells whether a file is still the one that it was, with the content that
/// it had.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileFacts {
    /// Where it was opened.
    pub path: PathBuf,
    /// Its length in bytes.
    pub len: u64,
    /// When it was last written, in seconds since 1970 and nanoseconds.
    pub modified: (i64, i64),
    /// The device of its file system.
    pub device: u64,
    /// Its number there.
    pub inode: u64,
}

/// Why a disk cannot be frozen.
#[derive(Debug, thiserror::Error)]
pub enum FreezeError {
    /// The storage has no notion of it.
    #[error("the drive's storage cannot be frozen")]
    Unknown,
    /// Nothing is there to take the writes from now on.
    #[error("a drive that is written to needs a new delta when it is frozen")]
    NoDelta,
    /// There are no writes to take.
    #[error("a drive that has no delta takes none when it is frozen")]
    NotWritable,
    /// The new delta is of another disk.
    #[error(transparent)]
    Delta(#[from] DeltaError),
    /// Facts about the file cannot be had.
    #[error("the disk image {} cannot be examined: {source}", path.display())]
    Examine {
        /// The image.
        path: PathBuf,
        /// What the host said.
        source: io::Error,
    },
}
