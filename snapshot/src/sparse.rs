//! Zeroes in files: finding them, and giving their space back.

use std::fs::File;
use std::io;

use nix::errno::Errno;
use nix::fcntl::{FallocateFlags, fallocate};

use crate::blocks;
use crate::extents::{BLOCK_SIZE, Extents};

/// The blocks of `within` that are not zero.
pub(crate) fn not_zero(file: &File, within: &Extents) -> io::Result<Extents> {
    let mut found = Extents::new();
    blocks::read(file, within, |at, bytes| {
        for (block, bytes) in (at / BLOCK_SIZE..).zip(bytes.chunks(BLOCK_SIZE as usize)) {
            if !is_zero(bytes) {
                found.push(block, 1);
            }
        }
        Ok(true)
    })?;
    Ok(found)
}

pub(crate) fn is_zero(bytes: &[u8]) -> bool {
    // In pieces, which the compiler makes wide comparisons of.
    let (words, rest) = bytes.as_chunks::<64>();
    words.iter().all(|word| *word == [0; 64]) && rest.iter().all(|&byte| byte == 0)
}

/// Makes holes of `blocks`, where the file system has holes.
pub(crate) fn punch(file: &File, blocks: &Extents) -> io::Result<()> {
    let mode = FallocateFlags::FALLOC_FL_PUNCH_HOLE | FallocateFlags::FALLOC_FL_KEEP_SIZE;
    for extent in blocks {
        let number = |blocks: u64| {
            i64::try_from(blocks * BLOCK_SIZE).map_err(|_| io::ErrorKind::InvalidInput)
        };
        match fallocate(file, mode, number(extent.start)?, number(extent.len)?) {
            Ok(()) | Err(Errno::EOPNOTSUPP) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
    Ok(())
}
