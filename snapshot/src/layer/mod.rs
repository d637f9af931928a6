//! A layer: one immutable file that holds some of the blocks of a memory or a
//! disk.
//!
//! Block `n` lies at offset `n × 4096` of the file, whatever else the layer
//! holds, so that a run of pages is mapped at the offset that it has in memory.
//! Blocks that are not held, or held and all zeroes, are holes. Somewhere behind
//! the data area comes the index and, at the very end, a footer of fixed size
//! that says where. What is cheap is checked whenever a layer is opened: magic,
//! version, length, index and name. Its content is checked by [`Layer::verify`].

mod content;
mod error;
pub(crate) mod footer;
mod name;

use std::fmt;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use nix::fcntl::{Flock, FlockArg};

use crate::blocks;
use crate::draft::lock;
use crate::extents::Extents;

pub use content::{Content, Naming};
pub use error::LayerError;
pub use name::{BadName, LayerName};

pub(crate) use error::io_error;

use footer::{FOOTER, Footer, FooterError, encode_index, hash};

/// Bytes read from the end of the file at first: the footer and, of most
/// layers, the whole index.
const TAIL: u64 = 64 << 10;

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

/// An immutable layer, opened for reading. As long as it is, its file has a
/// shared lock, so that no store's collection takes it away.
#[derive(Debug)]
pub struct Layer {
    path: PathBuf,
    file: Flock<File>,
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
        let file = lock(file, FlockArg::LockSharedNonblock).map_err(io_error(path, "locked"))?;
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
        let footer = Footer::decode(footer).map_err(|error| match error {
            FooterError::None => not_a_layer(),
            FooterError::Version(version) => LayerError::Version {
                path: path.to_owned(),
                version,
            },
            FooterError::Damaged(what) => damaged(what),
        })?;
        let (Some(index_len), Some(expected)) = (footer.index_len(), footer.file_len()) else {
            return Err(damaged("its footer speaks of too many bytes".into()));
        };
        if expected != len {
            return Err(damaged(format!(
                "it has {len} bytes where its footer speaks of {expected}"
            )));
        }
        let index = if footer.index_at >= tail_start {
            let start = (footer.index_at - tail_start) as usize;
            tail.drain(..start);
            tail.truncate(index_len as usize);
            tail
        } else {
            let mut index = vec![0; index_len as usize];
            file.read_exact_at(&mut index, footer.index_at)
                .map_err(io_error(path, "read"))?;
            index
        };
        if crc32fast::hash(&index) != footer.index_crc {
            return Err(damaged("its index does not match its checksum".into()));
        }
        let (held, zero) = footer.decode_index(&index).map_err(damaged)?;
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

    /// Bytes of the blocks that are in the file.
    pub fn data_len(&self) -> u64 {
        (self.held.blocks() - self.zero.blocks()) * crate::extents::BLOCK_SIZE
    }

    /// Reads all of the content and checks it against the name, if that is the
    /// hash of the content. `progress` is told the bytes of each step, which are
    /// those of [`Layer::data`] together.
    ///
    /// # Errors
    /// The file cannot be read, or its content is not what it was.
    pub fn verify(&self, progress: &mut dyn FnMut(u64)) -> Result<(), LayerError> {
        let damaged = |what: &str| LayerError::Damaged {
            path: self.path.clone(),
            what: what.to_owned(),
        };
        let found = self.hash(progress)?;
        if self.name.is_by_content() && found != self.name {
            return Err(damaged("its content does not match its name"));
        }
        let all_zero = blocks::stored(&self.file, &self.zero).and_then(|stored| {
            let is_zero = |chunk: &[u8]| chunk.iter().all(|&byte| byte == 0);
            blocks::read(&self.file, &stored, |_, chunk| Ok(is_zero(chunk)))
        });
        match all_zero.map_err(io_error(&self.path, "read"))? {
            true => Ok(()),
            false => Err(damaged("a block that its index calls zero is not")),
        }
    }

    /// The name that it has, or would have, by its content, all of which is
    /// read. `progress` is told as by [`Layer::verify`].
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn hash(&self, progress: &mut dyn FnMut(u64)) -> Result<LayerName, LayerError> {
        let (footer, index) = self.end();
        hash(&footer, &index, &self.file, &self.data(), progress)
            .map_err(io_error(&self.path, "read"))
    }

    /// Footer, without a name, and index of the same content in any layer's file.
    pub(crate) fn end(&self) -> (Footer, Vec<u8>) {
        let footer = Footer::new(self.kind, self.blocks, &self.held, &self.zero);
        (footer, encode_index(&self.held, &self.zero))
    }
}

#[cfg(test)]
#[path = "layer_test.rs"]
mod tests;
