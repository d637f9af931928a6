//! A disk in a file or block device of the host.

use std::fs::{File, OpenOptions};
use std::io::{self, Seek as _, SeekFrom};
use std::os::unix::fs::{FileExt as _, FileTypeExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use coppice_snapshot::Delta;
use vm_memory::VolatileSlice;

use super::disk::{DiskBackend, FileFacts, FreezeError, FrozenDisk};
use crate::sys::file;
use crate::units::SECTOR_SIZE;

/// Why a disk image cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum DiskError {
    /// The file cannot be opened.
    #[error("the disk image {} cannot be opened for {purpose}: {source}{remedy}", path.display())]
    Open {
        /// The image.
        path: PathBuf,
        /// "reading" or "reading and writing".
        purpose: &'static str,
        /// What the host said.
        source: io::Error,
        /// What may help.
        remedy: &'static str,
    },
    /// It is neither a regular file nor a block device.
    #[error("the disk image {} is {what}: give a regular file or a block device", path.display())]
    WrongKind {
        /// The image.
        path: PathBuf,
        /// What it is instead.
        what: &'static str,
    },
    /// Its size is no whole number of sectors.
    #[error(
        "the disk image {} has {len} bytes, which is not a multiple of 512: \
         pad it with `truncate -s %512 {}`",
        path.display(), path.display()
    )]
    NotSectors {
        /// The image.
        path: PathBuf,
        /// Its size in bytes.
        len: u64,
    },
    /// Somebody else holds it in a way that excludes us.
    #[error("the disk image {} is in use by another process{what}", path.display())]
    InUse {
        /// The image.
        path: PathBuf,
        /// How it is in use, and what to do.
        what: &'static str,
    },
    /// Facts about the open file cannot be had.
    #[error("the disk image {} cannot be examined: {source}", path.display())]
    Examine {
        /// The image.
        path: PathBuf,
        /// What the host said.
        source: io::Error,
    },
}

/// A disk in a file or block device, locked while it is open: by one writer or
/// by any number of readers.
#[derive(Debug)]
pub struct DiskFile {
    path: PathBuf,
    file: File,
    len: u64,
}

impl DiskFile {
    /// Opens the image at `path`; the descriptor cannot write if `read_only`.
    ///
    /// # Errors
    /// It is missing, not accessible, no disk image, or in use.
    pub fn open(path: &Path, read_only: bool) -> Result<Self, DiskError> {
        let mut file = open(path, read_only)?;
        let examine = |source| DiskError::Examine {
            path: path.to_owned(),
            source,
        };
        let kind = file.metadata().map_err(examine)?.file_type();
        if !kind.is_file() && !kind.is_block_device() {
            let what = match () {
                () if kind.is_dir() => "a directory",
                () if kind.is_fifo() => "a pipe",
                () => "a character device",
            };
            let path = path.to_owned();
            return Err(DiskError::WrongKind { path, what });
        }
        lock(&file, path, read_only)?;
        // Metadata knows the size of files only; this works for devices, too.
        let len = file.seek(SeekFrom::End(0)).map_err(examine)?;
        if !len.is_multiple_of(SECTOR_SIZE) {
            let path = path.to_owned();
            return Err(DiskError::NotSectors { path, len });
        }
        Ok(Self {
            path: path.to_owned(),
            file,
            len,
        })
    }
}

fn open(path: &Path, read_only: bool) -> Result<File, DiskError> {
    OpenOptions::new()
        .read(true)
        .write(!read_only)
        // Opening a pipe must not wait for its other end. Regular files and
        // block devices do not care.
        .custom_flags(libc::O_NONBLOCK)
        .open(path)
        .map_err(|source| {
            let path = path.to_owned();
            if source.kind() == io::ErrorKind::IsADirectory {
                let what = "a directory";
                return DiskError::WrongKind { path, what };
            }
            let (purpose, remedy) = match (read_only, source.kind()) {
                (false, io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem) => (
                    "reading and writing",
                    "; make it writable or set is_read_only",
                ),
                (false, _) => ("reading and writing", ""),
                (true, _) => ("reading", ""),
            };
            DiskError::Open {
                path,
                purpose,
                source,
                remedy,
            }
        })
}

fn lock(file: &File, path: &Path, read_only: bool) -> Result<(), DiskError> {
    match file::try_lock(file, !read_only) {
        Ok(()) => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Err(DiskError::InUse {
            path: path.to_owned(),
            what: if read_only {
                ", which may write to it: stop that process or give a copy"
            } else {
                ": to write to it, stop that process, give a copy, or set is_read_only in both"
            },
        }),
        Err(error) => {
            log::warn!(
                "the disk image {} cannot be locked ({error}): take care that no other process writes to it",
                path.display()
            );
            Ok(())
        }
    }
}

impl DiskBackend for DiskFile {
    fn len(&self) -> u64 {
        self.len
    }

    fn read_vectored_at(&mut self, slices: &[VolatileSlice<'_>], offset: u64) -> io::Result<()> {
        file::read_vectored_at(&self.file, slices, offset)
    }

    fn write_vectored_at(&mut self, slices: &[VolatileSlice<'_>], offset: u64) -> io::Result<()> {
        file::write_vectored_at(&self.file, slices, offset)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.sync_data()
    }

    fn discard(&mut self, offset: u64, len: u64) -> io::Result<()> {
        match file::punch_hole(&self.file, offset, len) {
            Err(error) if unsupported(&error) => Ok(()),
            result => result,
        }
    }

    fn write_zeroes(&mut self, offset: u64, len: u64, may_unmap: bool) -> io::Result<()> {
        zero(&self.file, offset, len, may_unmap)
    }

    fn freeze(&mut self, next: Option<Delta>) -> Result<FrozenDisk, FreezeError> {
        if next.is_some() {
            return Err(FreezeError::NotWritable);
        }
        let metadata = self
            .file
            .metadata()
            .map_err(|source| FreezeError::Examine {
                path: self.path.clone(),
                source,
            })?;
        Ok(FrozenDisk::File(FileFacts {
            path: self.path.clone(),
            len: self.len,
            modified: (metadata.mtime(), metadata.mtime_nsec()),
            device: metadata.dev(),
            inode: metadata.ino(),
        }))
    }
}

/// Makes a range of `file` read as zeroes, in the best way that the file system
/// has; only if `may_unmap` is its storage freed.
pub(super) fn zero(file: &File, offset: u64, len: u64, may_unmap: bool) -> io::Result<()> {
    if may_unmap {
        match file::punch_hole(file, offset, len) {
            Err(error) if unsupported(&error) => {}
            result => return result,
        }
    }
    match file::zero_range(file, offset, len) {
        Err(error) if unsupported(&error) => write_zeroes(file, offset, len),
        result => result,
    }
}

/// For file systems that have no better way, as tmpfs.
fn write_zeroes(file: &File, mut offset: u64, len: u64) -> io::Result<()> {
    static ZEROES: [u8; 64 << 10] = [0; 64 << 10];
    let end = offset.saturating_add(len);
    while offset < end {
        let part = (end - offset).min(ZEROES.len() as u64);
        file.write_all_at(&ZEROES[..part as usize], offset)?;
        offset += part;
    }
    Ok(())
}

/// The file system has no such call.
pub(super) fn unsupported(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(libc::EOPNOTSUPP | libc::ENOSYS | libc::ENODEV)
    )
}

#[cfg(test)]
#[path = "disk_file_test.rs"]
mod tests;
