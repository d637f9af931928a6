//! Reading and copying blocks of files.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use nix::errno::Errno;
use nix::fcntl::copy_file_range;
use nix::unistd::{Whence, lseek};

use crate::extents::{BLOCK_SIZE, Extent, Extents};

/// Blocks are read in pieces of this many bytes.
const CHUNK: u64 = 1 << 20;
/// The kernel copies this many bytes at a time, so that progress shows.
const COPY: u64 = 64 << 20;

/// Reads `blocks` in order, as long as `take` wants more. It is told the offset
/// of the bytes, too.
pub(crate) fn read(
    file: &File,
    blocks: &Extents,
    mut take: impl FnMut(u64, &[u8]) -> io::Result<bool>,
) -> io::Result<bool> {
    let mut chunk = vec![0; CHUNK as usize];
    for (at, len) in blocks.iter().flat_map(|extent| pieces(extent, CHUNK)) {
        let chunk = &mut chunk[..len as usize];
        file.read_exact_at(chunk, at)?;
        if !take(at, chunk)? {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Copies `blocks` to the same place in `to`. A file system that can shares them
/// between the files. `progress` is told the bytes of each step.
pub(crate) fn copy(
    from: &File,
    to: &File,
    blocks: &Extents,
    progress: &mut dyn FnMut(u64),
) -> io::Result<()> {
    for (at, len) in blocks.iter().flat_map(|extent| pieces(extent, COPY)) {
        if !copy_in_kernel(from, to, at, len)? {
            let mut rest = Extents::new();
            rest.push(at / BLOCK_SIZE, len / BLOCK_SIZE);
            read(from, &rest, |at, chunk| {
                to.write_all_at(chunk, at).map(|()| true)
            })?;
        }
        progress(len);
    }
    Ok(())
}

/// Whether the kernel could copy these bytes. What it copied before it failed
/// does no harm.
fn copy_in_kernel(from: &File, to: &File, at: u64, len: u64) -> io::Result<bool> {
    let offset = |at: u64| i64::try_from(at).map_err(|_| io::ErrorKind::FileTooLarge);
    let end = at + len;
    let mut at = at;
    while at < end {
        let (mut source, mut target) = (offset(at)?, offset(at)?);
        let rest = (end - at) as usize;
        match copy_file_range(from, Some(&mut source), to, Some(&mut target), rest) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(copied) => at += copied as u64,
            Err(Errno::EINTR) => {}
            // Between file systems, or in one that does not know how.
            Err(Errno::EXDEV | Errno::EINVAL | Errno::EOPNOTSUPP | Errno::ENOSYS) => {
                return Ok(false);
            }
            Err(errno) => return Err(errno.into()),
        }
    }
    Ok(true)
}

/// The bytes of `extent` in pieces of at most `size`, as `(offset, length)`.
fn pieces(extent: &Extent, size: u64) -> impl Iterator<Item = (u64, u64)> + use<> {
    let (mut at, end) = (extent.start * BLOCK_SIZE, extent.end() * BLOCK_SIZE);
    std::iter::from_fn(move || {
        let start = at;
        at = end.min(start + size);
        (start < end).then_some((start, at - start))
    })
}

/// Those of `blocks` that the file system keeps bytes for; the others are holes
/// and read as zeroes.
pub(crate) fn stored(file: &File, blocks: &Extents) -> io::Result<Extents> {
    let mut stored = Extents::new();
    for extent in blocks {
        let (mut at, end) = (extent.start * BLOCK_SIZE, extent.end() * BLOCK_SIZE);
        while let Some((start, stop)) = next_data(file, at, end)? {
            let first = start / BLOCK_SIZE;
            let last = stop.div_ceil(BLOCK_SIZE);
            stored.push(first, last - first);
            at = last * BLOCK_SIZE;
        }
    }
    Ok(stored)
}

/// The first range of `[from, end)` that the file system keeps bytes for.
fn next_data(file: &File, from: u64, end: u64) -> io::Result<Option<(u64, u64)>> {
    if from >= end {
        return Ok(None);
    }
    let seek = |at: u64, whence| {
        let at = i64::try_from(at).map_err(|_| Errno::EINVAL)?;
        lseek(file, at, whence).map(|at| at as u64)
    };
    match seek(from, Whence::SeekData) {
        Ok(start) if start < end => {
            let stop = seek(start, Whence::SeekHole)?;
            Ok(Some((start, stop.min(end))))
        }
        Ok(_) | Err(Errno::ENXIO) => Ok(None),
        // A file system without holes.
        Err(Errno::EINVAL) => Ok(Some((from, end))),
        Err(errno) => Err(errno.into()),
    }
}
