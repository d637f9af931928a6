//! What is where in a delta's file.
//!
//! ```text
//! 0                  data: block n at n × 4096
//! blocks × 4096      header, one block
//!         + 4096     the live index: a bitmap of 64-bit words, padded to blocks
//!         + …        the committed index, as long
//! ```

use std::fs;
use std::io;

use crate::extents::BLOCK_SIZE;

const MAGIC: [u8; 8] = *b"COPPDELT";
/// The version of the format that this program knows.
pub(super) const VERSION: u32 = 1;
/// The largest disk; a bitmap of it takes half a gigabyte.
pub(super) const MAX_BLOCKS: u64 = 1 << 32;
/// Bytes of the header that have a meaning.
pub(super) const HEADER: usize = 64;

/// Where the parts of a delta begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Layout {
    pub blocks: u64,
}

impl Layout {
    /// The layout for a disk of `blocks`, if there is one.
    pub fn of(blocks: u64) -> Option<Self> {
        (blocks <= MAX_BLOCKS).then_some(Self { blocks })
    }

    /// The layout of a file that has `len` bytes, if there is one.
    pub fn of_len(len: u64) -> Option<Self> {
        // The length grows with the number of blocks.
        let (mut low, mut high) = (0, MAX_BLOCKS + 1);
        while low < high {
            let blocks = low + (high - low) / 2;
            match (Self { blocks }.end() < len, blocks) {
                (true, blocks) => low = blocks + 1,
                (false, blocks) => high = blocks,
            }
        }
        Self::of(low).filter(|layout| layout.end() == len)
    }

    /// Words of one bitmap.
    pub fn words(self) -> usize {
        // At most 2^26.
        self.blocks.div_ceil(64) as usize
    }

    /// The header.
    pub fn header(self) -> u64 {
        self.blocks * BLOCK_SIZE
    }

    /// The live index.
    pub fn live(self) -> u64 {
        self.header() + BLOCK_SIZE
    }

    /// The committed index.
    pub fn committed(self) -> u64 {
        self.live() + self.bitmap()
    }

    /// The end of the file.
    pub fn end(self) -> u64 {
        self.committed() + self.bitmap()
    }

    fn bitmap(self) -> u64 {
        (self.words() as u64 * 8).next_multiple_of(BLOCK_SIZE)
    }
}

/// One start of the host, which no other has the name of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct BootId([u8; 16]);

impl BootId {
    /// The one of no host.
    pub const NONE: Self = Self([0; 16]);

    /// The host's current one.
    pub fn current() -> io::Result<Self> {
        let text = fs::read_to_string("/proc/sys/kernel/random/boot_id")?;
        let digits = text.trim().replace('-', "");
        u128::from_str_radix(&digits, 16)
            .map(|id| Self(id.to_be_bytes()))
            .map_err(io::Error::other)
    }
}

/// The header's content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Header {
    pub blocks: u64,
    /// When the live index was last written.
    pub boot: BootId,
}

/// Bytes that are no header of this version.
#[derive(Debug)]
pub(super) enum BadHeader {
    Foreign,
    Version(u32),
    Damaged(&'static str),
}

impl Header {
    pub fn encode(self) -> [u8; HEADER] {
        let mut bytes = [0; HEADER];
        let mut put = |at: usize, value: &[u8]| bytes[at..at + value.len()].copy_from_slice(value);
        put(0, &MAGIC);
        put(8, &VERSION.to_le_bytes());
        put(12, &(BLOCK_SIZE as u32).to_le_bytes());
        put(16, &self.blocks.to_le_bytes());
        put(24, &self.boot.0);
        let crc = crc32fast::hash(&bytes[..HEADER - 4]);
        bytes[HEADER - 4..].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    pub fn parse(bytes: &[u8; HEADER]) -> Result<Self, BadHeader> {
        if bytes[..8] != MAGIC {
            return Err(BadHeader::Foreign);
        }
        let word = |at: usize| u32::from_le_bytes([0, 1, 2, 3].map(|n| bytes[at + n]));
        if crc32fast::hash(&bytes[..HEADER - 4]) != word(HEADER - 4) {
            return Err(BadHeader::Damaged("its header does not match its checksum"));
        }
        if word(8) != VERSION {
            return Err(BadHeader::Version(word(8)));
        }
        if u64::from(word(12)) != BLOCK_SIZE {
            return Err(BadHeader::Damaged("its blocks do not have 4096 bytes"));
        }
        let mut boot = [0; 16];
        boot.copy_from_slice(&bytes[24..40]);
        Ok(Self {
            blocks: u64::from(word(16)) | u64::from(word(20)) << 32,
            boot: BootId(boot),
        })
    }
}
