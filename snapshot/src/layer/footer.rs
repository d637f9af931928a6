//! The end of a layer's file, index and footer, and the name that they lead to.

use std::fs::File;
use std::io;

use super::Kind;
use super::name::LayerName;
use crate::blocks;
use crate::bytes::{u32_at, u64_at};
use crate::extents::{BLOCK_SIZE, Extent, Extents, ExtentsError};

const MAGIC: [u8; 8] = *b"COPPLAYR";
pub(crate) const VERSION: u32 = 1;
/// Bytes of the footer.
pub(crate) const FOOTER: usize = 128;
/// The part of the footer that is hashed into the name: what the layer is.
pub(crate) const HEAD: usize = 48;
/// Bytes of one range in the index.
const ENTRY: usize = 16;
/// Flag: the name is the hash of the content.
const CONTENT_NAMED: u32 = 1;

/// An index of more bytes than this is not believed: sixteen million ranges.
const MAX_INDEX: u64 = 256 << 20;

/// The fixed end of a layer.
#[derive(Debug)]
pub(crate) struct Footer {
    pub kind: Kind,
    pub blocks: u64,
    /// Ranges of held and of zero blocks in the index.
    held: u64,
    zero: u64,
    pub name: LayerName,
    pub index_crc: u32,
    /// Where the index begins in the file.
    pub index_at: u64,
}

/// Why the end of a file is no footer.
#[derive(Debug)]
pub(crate) enum FooterError {
    /// It is something else.
    None,
    Version(u32),
    Damaged(String),
}

impl Footer {
    /// The footer of a layer that is named by its content, and has no name yet.
    pub fn new(kind: Kind, blocks: u64, held: &Extents, zero: &Extents) -> Self {
        Self {
            kind,
            blocks,
            held: held.ranges() as u64,
            zero: zero.ranges() as u64,
            name: LayerName::from_parts([0; 32], true),
            index_crc: 0,
            index_at: blocks.saturating_mul(BLOCK_SIZE),
        }
    }

    pub fn decode(bytes: &[u8; FOOTER]) -> Result<Self, FooterError> {
        let damaged = |what: String| Err(FooterError::Damaged(what));
        if bytes[..8] != MAGIC {
            return Err(FooterError::None);
        }
        // Before the version, so that a damaged one is not taken for a new one.
        if crc32fast::hash(&bytes[..FOOTER - 4]) != u32_at(bytes, FOOTER - 4) {
            return damaged("its footer does not match its checksum".into());
        }
        let mut reserved = bytes[84..88].iter().chain(&bytes[96..FOOTER - 4]);
        if reserved.any(|&byte| byte != 0) {
            return damaged("its footer uses what is reserved".into());
        }
        let mut name = [0; 32];
        name.copy_from_slice(&bytes[HEAD..HEAD + 32]);
        let mut head = [0; HEAD];
        head.copy_from_slice(&bytes[..HEAD]);
        let unnamed = Self::decode_head(&head)?;
        Ok(Self {
            name: LayerName::from_parts(name, unnamed.name.is_by_content()),
            index_crc: u32_at(bytes, 80),
            index_at: u64_at(bytes, 88),
            ..unnamed
        })
    }

    /// The footer that begins like this, of which name, checksum and place of the
    /// index are not known.
    pub fn decode_head(bytes: &[u8; HEAD]) -> Result<Self, FooterError> {
        let damaged = |what: String| Err(FooterError::Damaged(what));
        if bytes[..8] != MAGIC {
            return Err(FooterError::None);
        }
        match u32_at(bytes, 8) {
            VERSION => {}
            version => return Err(FooterError::Version(version)),
        }
        let kind = match u32_at(bytes, 12) {
            1 => Kind::Memory,
            2 => Kind::Disk,
            kind => return damaged(format!("its footer says that it is of kind {kind}")),
        };
        if u64::from(u32_at(bytes, 16)) != BLOCK_SIZE {
            return damaged(format!("its blocks have {} bytes", u32_at(bytes, 16)));
        }
        let flags = u32_at(bytes, 20);
        if flags & !CONTENT_NAMED != 0 {
            return damaged(format!("its footer has unknown flags {flags:#x}"));
        }
        let blocks = u64_at(bytes, 24);
        Ok(Self {
            kind,
            blocks,
            held: u64_at(bytes, 32),
            zero: u64_at(bytes, 40),
            name: LayerName::from_parts([0; 32], flags == CONTENT_NAMED),
            index_crc: 0,
            index_at: blocks.saturating_mul(BLOCK_SIZE),
        })
    }

    pub fn encode(&self) -> [u8; FOOTER] {
        let kind: u32 = match self.kind {
            Kind::Memory => 1,
            Kind::Disk => 2,
        };
        let flags = match self.name.is_by_content() {
            true => CONTENT_NAMED,
            false => 0,
        };
        let mut bytes = [0; FOOTER];
        let mut put = |at: usize, value: &[u8]| bytes[at..at + value.len()].copy_from_slice(value);
        put(0, &MAGIC);
        put(8, &VERSION.to_le_bytes());
        put(12, &kind.to_le_bytes());
        put(16, &(BLOCK_SIZE as u32).to_le_bytes());
        put(20, &flags.to_le_bytes());
        put(24, &self.blocks.to_le_bytes());
        put(32, &self.held.to_le_bytes());
        put(40, &self.zero.to_le_bytes());
        put(HEAD, self.name.as_bytes());
        put(80, &self.index_crc.to_le_bytes());
        put(88, &self.index_at.to_le_bytes());
        let crc = crc32fast::hash(&bytes[..FOOTER - 4]);
        bytes[FOOTER - 4..].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    /// What is hashed into the name.
    pub fn head(&self) -> [u8; HEAD] {
        let mut head = [0; HEAD];
        head.copy_from_slice(&self.encode()[..HEAD]);
        head
    }

    /// Bytes of the index, unless they are beyond reason.
    pub fn index_len(&self) -> Option<u64> {
        let ranges = self.held.checked_add(self.zero)?;
        let len = ranges.checked_mul(ENTRY as u64)?;
        (len <= MAX_INDEX).then_some(len)
    }

    /// The length of the whole file, unless it is beyond reason.
    pub fn file_len(&self) -> Option<u64> {
        let data = self.blocks.checked_mul(BLOCK_SIZE)?;
        let before = (data <= self.index_at).then_some(self.index_at)?;
        before
            .checked_add(self.index_len()?)?
            .checked_add(FOOTER as u64)
            .filter(|&len| i64::try_from(len).is_ok())
    }

    /// The held and the zero blocks in `index`, which has the length that the
    /// footer says. Its checksum is the caller's.
    pub fn decode_index(&self, index: &[u8]) -> Result<(Extents, Extents), String> {
        let (held, zero) = index.split_at(self.held as usize * ENTRY);
        let ranges = |part: &[u8], what: &str| {
            let ranges = part.chunks_exact(ENTRY).map(|entry| Extent {
                start: u64_at(entry, 0),
                len: u64_at(entry, 8),
            });
            Extents::checked(ranges.collect(), self.blocks)
                .map_err(|error: ExtentsError| format!("in its index of {what}, {error}"))
        };
        let (held, zero) = (ranges(held, "held blocks")?, ranges(zero, "zero blocks")?);
        match held.covers(&zero) {
            true => Ok((held, zero)),
            false => Err("its index has zero blocks that are not held".into()),
        }
    }
}

/// The name that a layer has by its content: BLAKE3 over the first bytes of its
/// footer, the index, and the bytes of `data` in order. `progress` is told the
/// bytes of each step.
pub(crate) fn hash(
    footer: &Footer,
    index: &[u8],
    file: &File,
    data: &Extents,
    progress: &mut dyn FnMut(u64),
) -> io::Result<LayerName> {
    let mut hasher = blake3::Hasher::new();
    hasher.update(&footer.head());
    hasher.update(index);
    blocks::read(file, data, |_, chunk| {
        hasher.update(chunk);
        progress(chunk.len() as u64);
        Ok(true)
    })?;
    Ok(LayerName::from_parts(hasher.finalize().into(), true))
}

/// The index: ranges of held blocks, then ranges of zero blocks.
pub(crate) fn encode_index(held: &Extents, zero: &Extents) -> Vec<u8> {
    let mut bytes = Vec::with_capacity((held.ranges() + zero.ranges()) * ENTRY);
    for extent in held.iter().chain(zero) {
        bytes.extend(extent.start.to_le_bytes());
        bytes.extend(extent.len.to_le_bytes());
    }
    bytes
}
