//! The pages that machines of a snapshot touch first, in a small file beside it.
//!
//! It is only advice: a machine restores without it, and one that is damaged or
//! of another snapshot is as good as none.

use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use crate::bytes::{u32_at, u64_at};
use crate::draft::Draft;
use crate::extents::{Extent, Extents};

const MAGIC: [u8; 8] = *b"COPPWSET";
const VERSION: u32 = 1;
/// Magic, version, checksum, blocks, number of ranges.
const HEADER: usize = 32;
const ENTRY: usize = 16;
/// More ranges than this are no working set.
const MOST_RANGES: u64 = 1 << 20;

/// Why there is no advice.
#[derive(Debug, thiserror::Error)]
pub enum WorkingSetError {
    /// The host refused.
    #[error("the working set {} could not be {what} ({source})", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// "read", "written".
        what: &'static str,
        /// The host's answer.
        source: io::Error,
    },
    /// The file is something else.
    #[error("{} is no working set, or it is damaged: remove it and record another", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
    },
}

/// Blocks of a memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkingSet {
    /// Blocks of the whole memory.
    pub blocks: u64,
    /// Those that are touched first.
    pub touched: Extents,
}

impl WorkingSet {
    /// Writes it to `path`, whole or not at all, in place of what is there.
    ///
    /// # Errors
    /// The host cannot write it.
    pub fn write(&self, path: &Path) -> Result<(), WorkingSetError> {
        let mut body = Vec::new();
        body.extend(self.blocks.to_le_bytes());
        body.extend((self.touched.ranges() as u64).to_le_bytes());
        for extent in &self.touched {
            body.extend(extent.start.to_le_bytes());
            body.extend(extent.len.to_le_bytes());
        }
        let mut bytes = MAGIC.to_vec();
        bytes.extend(VERSION.to_le_bytes());
        bytes.extend(crc32fast::hash(&body).to_le_bytes());
        bytes.extend(body);
        let written = (|| {
            let draft = Draft::beside(path)?;
            draft.file().write_all(&bytes)?;
            draft.publish()
        })();
        written.map_err(|source| WorkingSetError::Io {
            path: path.to_owned(),
            what: "written",
            source,
        })
    }

    /// Reads the one at `path`.
    ///
    /// # Errors
    /// It is missing, unreadable, damaged or something else.
    pub fn read(path: &Path) -> Result<Self, WorkingSetError> {
        let read = || {
            let most = HEADER as u64 + MOST_RANGES * ENTRY as u64;
            let mut bytes = Vec::new();
            let file = crate::open::regular(path)?;
            file.take(most + 1).read_to_end(&mut bytes)?;
            Ok(bytes)
        };
        let bytes = read().map_err(|source| WorkingSetError::Io {
            path: path.to_owned(),
            what: "read",
            source,
        })?;
        Self::decode(&bytes).ok_or_else(|| WorkingSetError::Damaged {
            path: path.to_owned(),
        })
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let (header, ranges) = bytes.split_at_checked(HEADER)?;
        let (blocks, count) = (u64_at(header, 16), u64_at(header, 24));
        let sound = header[..8] == MAGIC
            && u32_at(header, 8) == VERSION
            && u32_at(header, 12) == crc32fast::hash(&bytes[16..])
            && count <= MOST_RANGES
            && ranges.len() as u64 == count * ENTRY as u64;
        if !sound {
            return None;
        }
        let ranges = ranges.chunks_exact(ENTRY).map(|entry| Extent {
            start: u64_at(entry, 0),
            len: u64_at(entry, 8),
        });
        let touched = Extents::checked(ranges.collect(), blocks).ok()?;
        Some(Self { blocks, touched })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_and_every_damage_is_noticed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("set");
        let mut touched = Extents::new();
        touched.push(16, 16);
        touched.push(64, 48);
        let set = WorkingSet {
            blocks: 1000,
            touched,
        };
        set.write(&path).unwrap();
        assert_eq!(WorkingSet::read(&path).unwrap(), set);
        let bytes = std::fs::read(&path).unwrap();
        for len in 0..bytes.len() {
            assert_eq!(WorkingSet::decode(&bytes[..len]), None, "cut at {len}");
        }
        for bit in 0..bytes.len() * 8 {
            let mut flipped = bytes.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(WorkingSet::decode(&flipped), None, "bit {bit}");
        }
        assert!(WorkingSet::read(&dir.path().join("none")).is_err());
    }
}
