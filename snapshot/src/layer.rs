//! A layer: one immutable file that holds some of the blocks of a memory or a
//! disk.
//!
//! Block `n` lies at offset `n × 4096` of the file, whatever else the layer
//! holds, so that a run of pages is mapped at the offset that it has in memory.
//! Blocks that are not held, or held and all zeroes, are holes. Somewhere behind
//! the data area comes the index and, at the very end, a footer of fixed size
//! that says where. What is cheap is checked whenever a layer is opened: magic,
//! version, length, index and name. Its content is checked by [`Layer::verify`].

use std::fmt;
use std::fs::{File, Permissions};
use std::io;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::str::FromStr;

use crate::BLOCK_SIZE;
use crate::bytes::{u32_at, u64_at};
use crate::draft::Draft;
use crate::extents::{Extent, Extents, ExtentsError};

const MAGIC: [u8; 8] = *b"COPPLAYR";
const VERSION: u32 = 1;
const FOOTER: usize = 128;
/// The part of the footer that is hashed into the name.
const HASHED: usize = 48;
const ENTRY: usize = 16;
/// Bytes read from the end of the file at first: the footer and, of most
/// layers, the whole index.
const TAIL: u64 = 64 << 10;
/// Flag: the name is the hash of the content.
const CONTENT_NAMED: u32 = 1;
/// Content is read in pieces of this size.
const CHUNK: usize = 1 << 20;

/// What the blocks of a layer are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Pages of a machine's memory.
    Memory,
    /// Blocks of a disk.
    Disk,
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Memory => "memory",
            Self::Disk => "disk",
        })
    }
}

/// How a layer gets its name when it is sealed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Naming {
    /// By the hash of its content, for a layer that is kept.
    Content,
    /// By a unique id, for a layer that only serves forks on this host: nobody
    /// waits for a hash.
    Unique,
}

/// The name of a layer, which is also the name of its file in a store.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LayerName {
    bytes: [u8; 32],
    by_content: bool,
}

const LOCAL: &str = "local-";

impl LayerName {
    pub(crate) fn from_parts(bytes: [u8; 32], by_content: bool) -> Self {
        Self { bytes, by_content }
    }

    /// The hash or the unique id.
    pub fn as_bytes(&self) -> &[u8; 32] {
        &self.bytes
    }

    fn unique() -> Result<Self, getrandom::Error> {
        let mut bytes = [0; 32];
        getrandom::fill(&mut bytes)?;
        Ok(Self {
            bytes,
            by_content: false,
        })
    }

    /// Whether the name is the hash of the content.
    pub fn is_by_content(&self) -> bool {
        self.by_content
    }
}

impl fmt::Display for LayerName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.by_content {
            f.write_str(LOCAL)?;
        }
        crate::hex::write(&self.bytes, f)
    }
}

impl fmt::Debug for LayerName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Text that names no layer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no name of a layer: it has 64 hexadecimal digits, after \"local-\" or nothing")]
pub struct BadName(String);

impl FromStr for LayerName {
    type Err = BadName;

    fn from_str(text: &str) -> Result<Self, BadName> {
        let local = text.strip_prefix(LOCAL);
        let bytes = crate::hex::parse(local.unwrap_or(text))
            .ok_or_else(|| BadName(text.chars().take(100).collect()))?;
        Ok(Self {
            bytes,
            by_content: local.is_none(),
        })
    }
}

/// Why a layer cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum LayerError {
    /// The host refused.
    #[error("the layer {} could not be {what} ({source})", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// "opened", "read", "written" …
        what: &'static str,
        /// The host's answer.
        source: io::Error,
    },
    /// The file does not end as a layer does.
    #[error(
        "{} is no layer, or it is truncated: its {len} bytes do not end with a layer's footer; \
         copy it again from where it was complete",
        path.display()
    )]
    NotALayer {
        /// The file.
        path: PathBuf,
        /// Its length in bytes.
        len: u64,
    },
    /// It was made by a later version.
    #[error(
        "the layer {} has version {version} of the format, and this program reads only version \
         {VERSION}: use a newer coppice",
        path.display()
    )]
    Version {
        /// The file.
        path: PathBuf,
        /// Its version.
        version: u32,
    },
    /// Footer or index contradict themselves, their checksums or the file.
    #[error(
        "the layer {} is damaged: {what}; copy it again from where it was complete",
        path.display()
    )]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        what: String,
    },
    /// It is another layer than the one that was asked for.
    #[error("{} is the layer {found}, but {wanted} is needed", path.display())]
    OtherName {
        /// The file.
        path: PathBuf,
        /// The name in its footer.
        found: LayerName,
        /// The name that was asked for.
        wanted: LayerName,
    },
    /// No random bytes for a unique id.
    #[error("the host gives no random bytes for the name of a layer ({0})")]
    Random(getrandom::Error),
}

/// An immutable layer, opened for reading.
#[derive(Debug)]
pub struct Layer {
    path: PathBuf,
    file: File,
    kind: Kind,
    blocks: u64,
    name: LayerName,
    held: Extents,
    zero: Extents,
}

impl Layer {
    /// Opens the layer at `path` and checks everything but its content.
    ///
    /// # Errors
    /// The file is unreadable, truncated, damaged, no layer, or too new.
    pub fn open(path: &Path) -> Result<Self, LayerError> {
        let file = crate::open::regular(path).map_err(io_error(path, "opened"))?;
        Self::from_file(file, path)
    }

    /// Opens the layer at `path`, which has to be the one called `name`.
    ///
    /// # Errors
    /// As for [`Layer::open`], or it is another layer.
    pub fn open_named(path: &Path, name: &LayerName) -> Result<Self, LayerError> {
        let layer = Self::open(path)?;
        match layer.name == *name {
            true => Ok(layer),
            false => Err(LayerError::OtherName {
                path: path.to_owned(),
                found: layer.name,
                wanted: *name,
            }),
        }
    }

    /// The layer in `file`; `path` is what errors call it.
    ///
    /// # Errors
    /// As for [`Layer::open`].
    pub fn from_file(file: File, path: &Path) -> Result<Self, LayerError> {
        let damaged = |what: String| LayerError::Damaged {
            path: path.to_owned(),
            what,
        };
        let len = file.metadata().map_err(io_error(path, "read"))?.len();
        let tail_start = len.saturating_sub(TAIL);
        let mut tail = vec![0; (len - tail_start) as usize];
        file.read_exact_at(&mut tail, tail_start)
            .map_err(io_error(path, "read"))?;
        let not_a_layer = || LayerError::NotALayer {
            path: path.to_owned(),
            len,
        };
        let footer = tail.last_chunk::<FOOTER>().ok_or_else(not_a_layer)?;
        if footer[..8] != MAGIC {
            return Err(not_a_layer());
        }
        if crc32fast::hash(&footer[..FOOTER - 4]) != u32_at(footer, FOOTER - 4) {
            return Err(damaged("its footer does not match its checksum".into()));
        }
        match u32_at(footer, 8) {
            VERSION => {}
            version => {
                return Err(LayerError::Version {
                    path: path.to_owned(),
                    version,
                });
            }
        }
        let footer = Footer::parse(footer).map_err(&damaged)?;
        let expected = footer.file_len();
        if expected != Some(len) {
            let expected = expected.map_or("more".to_owned(), |len| len.to_string());
            return Err(damaged(format!(
                "it has {len} bytes where its footer speaks of {expected}"
            )));
        }
        // The length has been checked, so the sums below do not overflow.
        let index_len = footer.index_len() as u64;
        let index_start = len - FOOTER as u64 - index_len;
        let mut whole = Vec::new();
        let index = if index_start >= tail_start {
            let start = (index_start - tail_start) as usize;
            &tail[start..start + index_len as usize]
        } else {
            whole.resize(index_len as usize, 0);
            file.read_exact_at(&mut whole, index_start)
                .map_err(io_error(path, "read"))?;
            &whole
        };
        if crc32fast::hash(index) != footer.index_crc {
            return Err(damaged("its index does not match its checksum".into()));
        }
        let (held, zero) = index.split_at(footer.held as usize * ENTRY);
        let ranges = |part: &[u8], what: &str| {
            let ranges = part.chunks_exact(ENTRY).map(|entry| Extent {
                start: u64_at(entry, 0),
                len: u64_at(entry, 8),
            });
            Extents::checked(ranges.collect(), footer.blocks)
                .map_err(|error: ExtentsError| damaged(format!("in its index of {what}, {error}")))
        };
        let (held, zero) = (ranges(held, "held blocks")?, ranges(zero, "zero blocks")?);
        if !held.covers(&zero) {
            return Err(damaged(
                "its index has zero blocks that are not held".into(),
            ));
        }
        Ok(Self {
            path: path.to_owned(),
            file,
            kind: footer.kind,
            blocks: footer.blocks,
            name: footer.name,
            held,
            zero,
        })
    }

    /// The file that it is in.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The open file. Block `n` lies at offset `n × 4096`.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// What its blocks are.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// Blocks of the whole memory or disk, held or not.
    pub fn blocks(&self) -> u64 {
        self.blocks
    }

    /// Its name.
    pub fn name(&self) -> LayerName {
        self.name
    }

    /// The blocks that it holds.
    pub fn held(&self) -> &Extents {
        &self.held
    }

    /// The blocks that it holds and that are all zeroes.
    pub fn zero(&self) -> &Extents {
        &self.zero
    }

    /// The blocks whose bytes are in the file.
    pub fn data(&self) -> Extents {
        self.held.minus(&self.zero)
    }

    /// Reads all of the content and checks it against the name, if that is the
    /// hash of the content. `progress` is told the bytes read so far, of
    /// [`Layer::data`].
    ///
    /// # Errors
    /// The file cannot be read, or its content is not what it was.
    pub fn verify(&self, progress: &mut dyn FnMut(u64)) -> Result<(), LayerError> {
        let damaged = |what: &str| LayerError::Damaged {
            path: self.path.clone(),
            what: what.to_owned(),
        };
        let footer = Footer::new(
            self.kind,
            self.blocks,
            &self.held,
            &self.zero,
            self.name.by_content,
        );
        let index = encode_index(&self.held, &self.zero);
        let found = hash(&self.file, &footer, &index, &self.data(), progress)
            .map_err(io_error(&self.path, "read"))?;
        if self.name.by_content && found != self.name.bytes {
            return Err(damaged("its content does not match its name"));
        }
        match all_zero(&self.file, &self.zero).map_err(io_error(&self.path, "read"))? {
            true => Ok(()),
            false => Err(damaged("a block that its index calls zero is not")),
        }
    }
}

/// What a file holds that is to become a layer: block `n` at offset
/// `n × 4096`.
#[derive(Clone, Debug)]
pub struct Content {
    /// What the blocks are.
    pub kind: Kind,
    /// Blocks of the whole memory or disk, held or not.
    pub blocks: u64,
    /// The blocks that the layer is to hold.
    pub held: Extents,
    /// Those of them that are all zeroes, and holes in the file.
    pub zero: Extents,
}

impl Content {
    /// Makes a layer of `file`, which has this content: writes index and footer
    /// behind it and takes away the right to write. A layer that is named by
    /// its content is durable when this returns. `path` is what errors call the
    /// file.
    ///
    /// # Errors
    /// The host cannot read or write the file, or is out of space. The file is
    /// then no layer.
    pub fn seal(self, file: File, path: &Path, naming: Naming) -> Result<Layer, LayerError> {
        let index_at = self.blocks.saturating_mul(BLOCK_SIZE);
        self.seal_behind(index_at, file, path, naming)
    }

    /// The same with the index at `index_at`, which is behind the data area:
    /// what lies between is kept and is no part of the layer.
    ///
    /// # Errors
    /// As for [`Content::seal`]. What lies before `index_at` is as it was.
    pub fn seal_behind(
        self,
        index_at: u64,
        file: File,
        path: &Path,
        naming: Naming,
    ) -> Result<Layer, LayerError> {
        let Self {
            kind,
            blocks,
            held,
            zero,
        } = self;
        let mut footer = Footer::new(kind, blocks, &held, &zero, naming == Naming::Content);
        let index = encode_index(&held, &zero);
        footer.name = match naming {
            Naming::Unique => LayerName::unique().map_err(LayerError::Random)?,
            Naming::Content => {
                let data = held.minus(&zero);
                let bytes = hash(&file, &footer, &index, &data, &mut |_| {})
                    .map_err(io_error(path, "read"))?;
                LayerName {
                    bytes,
                    by_content: true,
                }
            }
        };
        footer.index_crc = crc32fast::hash(&index);
        footer.index_at = index_at;
        let written = (|| {
            footer.file_len().ok_or(io::ErrorKind::FileTooLarge)?;
            file.set_len(index_at)?;
            let mut tail = index;
            tail.extend(footer.encode());
            file.write_all_at(&tail, index_at)?;
            file.set_permissions(Permissions::from_mode(0o444))?;
            match naming {
                Naming::Content => file.sync_all(),
                Naming::Unique => Ok(()),
            }
        })();
        written.map_err(io_error(path, "written"))?;
        Ok(Layer {
            path: path.to_owned(),
            file,
            kind,
            blocks,
            name: footer.name,
            held,
            zero,
        })
    }
}

impl Content {
    /// As [`Content::seal`], for the file that is being made in `draft`, which
    /// then appears as the layer. If it is named by its content, all of it
    /// survives a power cut when this returns.
    ///
    /// # Errors
    /// The host cannot read or write the file, or is out of space. Nothing has
    /// then appeared.
    pub fn publish(self, draft: Draft, naming: Naming) -> Result<Layer, LayerError> {
        let target = draft.target().to_owned();
        let file = draft
            .file()
            .try_clone()
            .map_err(io_error(&target, "written"))?;
        let layer = self.seal(file, &target, naming)?;
        let published = match naming {
            Naming::Content => draft.publish(),
            Naming::Unique => draft.reveal(),
        };
        published.map_err(io_error(&target, "written"))?;
        Ok(layer)
    }
}

/// The fixed end of a layer.
struct Footer {
    kind: Kind,
    flags: u32,
    blocks: u64,
    /// Ranges of held and of zero blocks in the index.
    held: u64,
    zero: u64,
    name: LayerName,
    index_crc: u32,
    /// Where the index begins in the file.
    index_at: u64,
}

impl Footer {
    fn new(kind: Kind, blocks: u64, held: &Extents, zero: &Extents, by_content: bool) -> Self {
        Self {
            kind,
            flags: if by_content { CONTENT_NAMED } else { 0 },
            blocks,
            held: held.ranges() as u64,
            zero: zero.ranges() as u64,
            name: LayerName {
                bytes: [0; 32],
                by_content,
            },
            index_crc: 0,
            index_at: blocks.saturating_mul(BLOCK_SIZE),
        }
    }

    /// Magic and version have been checked.
    fn parse(bytes: &[u8; FOOTER]) -> Result<Self, String> {
        let kind = match u32_at(bytes, 12) {
            1 => Kind::Memory,
            2 => Kind::Disk,
            kind => return Err(format!("its footer says that it is of kind {kind}")),
        };
        if u64::from(u32_at(bytes, 16)) != BLOCK_SIZE {
            return Err(format!("its blocks have {} bytes", u32_at(bytes, 16)));
        }
        let flags = u32_at(bytes, 20);
        if flags & !CONTENT_NAMED != 0 {
            return Err(format!("its footer has unknown flags {flags:#x}"));
        }
        let mut name = [0; 32];
        name.copy_from_slice(&bytes[HASHED..HASHED + 32]);
        Ok(Self {
            kind,
            flags,
            blocks: u64_at(bytes, 24),
            held: u64_at(bytes, 32),
            zero: u64_at(bytes, 40),
            name: LayerName {
                bytes: name,
                by_content: flags & CONTENT_NAMED != 0,
            },
            index_crc: u32_at(bytes, 80),
            index_at: u64_at(bytes, 88),
        })
    }

    fn encode(&self) -> [u8; FOOTER] {
        let kind: u32 = match self.kind {
            Kind::Memory => 1,
            Kind::Disk => 2,
        };
        let mut bytes = [0; FOOTER];
        let mut put = |at: usize, value: &[u8]| bytes[at..at + value.len()].copy_from_slice(value);
        put(0, &MAGIC);
        put(8, &VERSION.to_le_bytes());
        put(12, &kind.to_le_bytes());
        put(16, &(BLOCK_SIZE as u32).to_le_bytes());
        put(20, &self.flags.to_le_bytes());
        put(24, &self.blocks.to_le_bytes());
        put(32, &self.held.to_le_bytes());
        put(40, &self.zero.to_le_bytes());
        put(HASHED, &self.name.bytes);
        put(80, &self.index_crc.to_le_bytes());
        put(88, &self.index_at.to_le_bytes());
        let crc = crc32fast::hash(&bytes[..FOOTER - 4]);
        bytes[FOOTER - 4..].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    fn index_len(&self) -> usize {
        (self.held + self.zero) as usize * ENTRY
    }

    /// The length of the whole file, unless it is beyond reason.
    fn file_len(&self) -> Option<u64> {
        let index = self
            .held
            .checked_add(self.zero)?
            .checked_mul(ENTRY as u64)?;
        let data = self.blocks.checked_mul(BLOCK_SIZE)?;
        let before = (data <= self.index_at).then_some(self.index_at)?;
        before.checked_add(index)?.checked_add(FOOTER as u64)
    }
}

fn encode_index(held: &Extents, zero: &Extents) -> Vec<u8> {
    let mut bytes = Vec::with_capacity((held.ranges() + zero.ranges()) * ENTRY);
    for extent in held.iter().chain(zero) {
        bytes.extend(extent.start.to_le_bytes());
        bytes.extend(extent.len.to_le_bytes());
    }
    bytes
}

/// BLAKE3 over the first bytes of the footer, the index, and the data in order.
fn hash(
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
fn all_zero(file: &File, blocks: &Extents) -> io::Result<bool> {
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
fn next_data(file: &File, from: u64, end: u64) -> io::Result<Option<(u64, u64)>> {
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
fn for_each_chunk(
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

fn io_error(path: &Path, what: &'static str) -> impl Fn(io::Error) -> LayerError {
    let path = path.to_owned();
    move |source| LayerError::Io {
        path: path.clone(),
        what,
        source,
    }
}

#[cfg(test)]
#[path = "layer_test.rs"]
mod tests;
