//! The content of a layer: hashing it, and finding what is in a file.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use super::footer::{Footer, HASHED};
use crate::BLOCK_SIZE;
use crate::extents::Extents;

/// Content is read in pieces of this size.
const CHUNK: usize = 1 << 20;

/// BLAKE3 over the first bytes of the footer, the index, and the data in order.
pub(super) fn hash(
    file: &File,
    footer: &Footer,
    index: &[u8],
    data: &Extents,
    progress: &mut dyn FnMut(u64),
) -> io::Result<[u8; 32]> {
    let mut hasher = blake3::Hasher::new();
    hasher.update(&footer.encode()[..HASHED]);
    hasher.update(index);
    let mut done = 0;
    for_each_chunk(file, data, |chunk| {
        hasher.update(chunk);
        done += chunk.len() as u64;
        progress(done);
        true
    })?;
    Ok(hasher.finalize().into())
}

/// Whether all of `blocks` read as zeroes. Holes are not read.
pub(super) fn all_zero(file: &File, blocks: &Extents) -> io::Result<bool> {
    let mut data = Extents::new();
    for extent in blocks {
        let (mut at, end) = (extent.start * BLOCK_SIZE, extent.end() * BLOCK_SIZE);
        while let Some((start, stop)) = next_data(file, at, end)? {
            let first = start / BLOCK_SIZE;
            let last = stop.div_ceil(BLOCK_SIZE);
            data.push(first, last - first);
            at = last * BLOCK_SIZE;
        }
    }
    for_each_chunk(file, &data, |chunk| chunk.iter().all(|&byte| byte == 0))
}

/// The first range of `[from, end)` that the file system keeps bytes for.
pub(crate) fn next_data(file: &File, from: u64, end: u64) -> io::Result<Option<(u64, u64)>> {
    use nix::errno::Errno;
    use nix::unistd::{Whence, lseek};
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

/// Reads `blocks` in order, as long as `take` wants more.
pub(crate) fn for_each_chunk(
    file: &File,
    blocks: &Extents,
    mut take: impl FnMut(&[u8]) -> bool,
) -> io::Result<bool> {
    let mut chunk = vec![0; CHUNK];
    for extent in blocks {
        let (mut at, end) = (extent.start * BLOCK_SIZE, extent.end() * BLOCK_SIZE);
        while at < end {
            let len = (end - at).min(CHUNK as u64) as usize;
            file.read_exact_at(&mut chunk[..len], at)?;
            if !take(&chunk[..len]) {
                return Ok(false);
            }
            at += len as u64;
        }
    }
    Ok(true)
}
