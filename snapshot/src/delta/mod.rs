//! A delta: the private, writable top of a disk.
//!
//! A sparse file in which block `n` lies at `n × 4096`, as in a layer, with an
//! index behind it of the blocks that it holds. A block that is held and a hole
//! is zero: that is how discarded blocks give their space back. The index is
//! kept twice.
//!
//! - The **live** index is written right after the data. It is what counts as
//!   long as the host runs, so a machine that is killed loses nothing.
//! - The **committed** index is brought up on a flush, once the data is durable,
//!   and is what counts after a power cut. The kernel writes pages back in any
//!   order; a bit of the live index may reach the disk without its block, and
//!   would then show zeroes where the layers below have the block's old content.
//!
//! Which one counts is told by the boot id in the header. A delta becomes a layer
//! by [`Delta::freeze`] and [`FrozenDelta::seal`], without a copy of its data.
//! `docs/delta-format.md` has the file byte by byte.

mod error;
mod frozen;
mod index;
mod layout;

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use nix::fcntl::{Flock, FlockArg};

use self::error::io_error;
use self::index::Index;
use self::layout::{BadHeader, BootId, HEADER, Header, Layout};
use crate::extents;
use crate::layer::{Layer, LayerError};

pub use self::error::DeltaError;
pub use self::frozen::FrozenDelta;

/// The writable top of a disk, locked against every other opener.
///
/// It leaves reading and writing of blocks to its user, through
/// [`Delta::file`], and keeps account of them.
#[derive(Debug)]
pub struct Delta {
    path: PathBuf,
    file: Arc<File>,
    layout: Layout,
    index: Index,
    lock: Flock<File>,
}

impl Delta {
    /// Makes an empty delta for a disk of `blocks` at `path`, where nothing may
    /// be yet. It is there whole or not at all; a flush makes it durable.
    ///
    /// # Errors
    /// There is a file already, or the host refuses.
    pub fn create(path: &Path, blocks: u64) -> Result<Self, DeltaError> {
        let layout = Layout::of(blocks).ok_or(DeltaError::TooLarge(blocks))?;
        let failed = io_error(path, "made");
        let boot = BootId::current().map_err(DeltaError::BootId)?;
        let draft = draft_path(path).map_err(&failed)?;
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&draft)
            .map_err(&failed)?;
        let made = lock(&file, path).and_then(|lock| {
            file.set_len(layout.end()).map_err(&failed)?;
            let header = Header { blocks, boot }.encode();
            file.write_all_at(&header, layout.header())
                .map_err(&failed)?;
            match fs::hard_link(&draft, path) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                    Err(DeltaError::Exists {
                        path: path.to_owned(),
                    })
                }
                linked => linked.map(|()| lock).map_err(&failed),
            }
        });
        // Whatever became of it: by this name nobody looks for it.
        let removed = fs::remove_file(&draft);
        let lock = made?;
        removed.map_err(&failed)?;
        let file = Arc::new(file);
        let index = Index::new(file.clone(), path, layout);
        Ok(Self {
            path: path.to_owned(),
            file,
            layout,
            index,
            lock,
        })
    }

    /// Opens the delta at `path`, which has to belong to a disk of `blocks`.
    ///
    /// # Errors
    /// The file is missing, in use, no delta, sealed, damaged, too new, or of
    /// another disk.
    pub fn open(path: &Path, blocks: u64) -> Result<Self, DeltaError> {
        let wanted = Layout::of(blocks).ok_or(DeltaError::TooLarge(blocks))?;
        refuse_layer(path)?;
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            // Opening a pipe must not wait for its other end.
            .custom_flags(nix::fcntl::OFlag::O_NONBLOCK.bits())
            .open(path)
            .map_err(io_error(path, "opened"))?;
        let metadata = file.metadata().map_err(io_error(path, "read"))?;
        let len = metadata.len();
        let not_a_delta = || DeltaError::NotADelta {
            path: path.to_owned(),
            len,
        };
        if !metadata.is_file() {
            return Err(not_a_delta());
        }
        let lock = lock(&file, path)?;
        // By its length first: what lies elsewhere may be the guest's data.
        let found = match Layout::of_len(len) {
            Some(layout) => read_header(&file, path, layout, len)?,
            None => None,
        };
        let header = match found {
            Some(header) => header,
            None if is_blank(&file, wanted, len).map_err(io_error(path, "read"))? => Header {
                blocks,
                boot: BootId::NONE,
            },
            None => {
                let header = read_header(&file, path, wanted, len)?.ok_or_else(not_a_delta)?;
                if len < wanted.end() {
                    return Err(not_a_delta());
                }
                header
            }
        };
        if header.blocks != blocks {
            return Err(DeltaError::Size {
                path: path.to_owned(),
                found: header.blocks,
                wanted: blocks,
            });
        }
        // It was made right before the host stopped, or was about to be sealed.
        if len != wanted.end() {
            file.set_len(wanted.end())
                .map_err(io_error(path, "written"))?;
        }
        Self::with_index(path, file, wanted, header, lock)
    }

    /// Opens the delta at `path`, or makes an empty one if there is none.
    ///
    /// # Errors
    /// As for [`Delta::open`] and [`Delta::create`].
    pub fn open_or_create(path: &Path, blocks: u64) -> Result<Self, DeltaError> {
        match Self::open(path, blocks) {
            Err(DeltaError::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
                Self::create(path, blocks)
            }
            opened => opened,
        }
    }

    fn with_index(
        path: &Path,
        file: File,
        layout: Layout,
        header: Header,
        lock: Flock<File>,
    ) -> Result<Self, DeltaError> {
        let (read, write) = (io_error(path, "read"), io_error(path, "written"));
        let committed = index::read(&file, layout, layout.committed()).map_err(&read)?;
        let boot = BootId::current().map_err(DeltaError::BootId)?;
        let live = if header.boot == boot {
            index::read(&file, layout, layout.live()).map_err(&read)?
        } else {
            let bytes = index::to_bytes(&committed);
            file.write_all_at(&bytes, layout.live()).map_err(&write)?;
            // Not before the live index is right: this is what makes it count.
            let header = Header { boot, ..header }.encode();
            file.write_all_at(&header, layout.header())
                .map_err(&write)?;
            committed.clone()
        };
        let damaged = |what: &str| DeltaError::Damaged {
            path: path.to_owned(),
            what: what.to_owned(),
        };
        let extra = live.len() as u64 * 64 - layout.blocks;
        if live
            .last()
            .is_some_and(|last| last.leading_zeros() < extra as u32)
        {
            return Err(damaged("its index has blocks behind the disk's end"));
        }
        if committed
            .iter()
            .zip(&live)
            .any(|(one, all)| one & !all != 0)
        {
            return Err(damaged("its two indices contradict each other"));
        }
        let file = Arc::new(file);
        let index = Index::opened(file.clone(), path, layout, live, &committed);
        Ok(Self {
            path: path.to_owned(),
            file,
            layout,
            index,
            lock,
        })
    }

    /// The file that it is in.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The open file. Block `n` lies at offset `n × 4096`; what is behind the
    /// last block is the delta's own. Whoever wrote blocks that are not held
    /// calls [`Delta::hold`], and [`Delta::touch`] otherwise.
    pub fn file(&self) -> &Arc<File> {
        &self.file
    }

    /// Blocks of the whole disk, held or not.
    pub fn blocks(&self) -> u64 {
        self.layout.blocks
    }

    /// Whether `block` is held, and the end of the run of blocks from `block` on
    /// for which this is so, at most `end`.
    pub fn run(&self, block: u64, end: u64) -> (bool, u64) {
        let index = self.index.live();
        let held = extents::next(index, block, end, true) == Some(block);
        (held, extents::next(index, block, end, !held).unwrap_or(end))
    }

    /// `len` blocks from `start` on are held from now on: they were written, all
    /// of each, or made holes to hold zeroes.
    ///
    /// # Errors
    /// The host cannot write the index; blocks that were not held are not.
    pub fn hold(&mut self, start: u64, len: u64) -> io::Result<()> {
        self.index.set(start, len)
    }

    /// Blocks that are held were written to.
    pub fn touch(&mut self) {
        self.index.touch();
    }

    /// Makes everything durable that was written so far.
    ///
    /// # Errors
    /// The host cannot promise that. It never will again if what failed was to
    /// write data out, since it is not known what was lost.
    pub fn flush(&mut self) -> io::Result<()> {
        self.index.commit()
    }

    /// Ends the writing. This is quick; what takes time is done by
    /// [`FrozenDelta::seal`] later, which any thread may call, while the blocks
    /// are read on.
    pub fn freeze(self) -> FrozenDelta {
        FrozenDelta::new(self)
    }
}

/// A name beside `path` that no other file has.
fn draft_path(path: &Path) -> io::Result<PathBuf> {
    let mut id = [0; 8];
    getrandom::fill(&mut id).map_err(|error| io::Error::other(error.to_string()))?;
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(format!(".{:016x}.new", u64::from_le_bytes(id)));
    Ok(path.with_file_name(name))
}

fn lock(file: &File, path: &Path) -> Result<Flock<File>, DeltaError> {
    // A lock belongs to the open file, which the clone shares.
    let clone = file.try_clone().map_err(io_error(path, "opened"))?;
    Flock::lock(clone, FlockArg::LockExclusiveNonblock).map_err(|(_, errno)| {
        if errno == nix::errno::Errno::EWOULDBLOCK {
            return DeltaError::InUse {
                path: path.to_owned(),
            };
        }
        io_error(path, "locked")(errno.into())
    })
}

/// The header of a file of `len` bytes, if it has one where `layout` says.
fn read_header(
    file: &File,
    path: &Path,
    layout: Layout,
    len: u64,
) -> Result<Option<Header>, DeltaError> {
    if len < layout.live() {
        return Ok(None);
    }
    let mut bytes = [0; HEADER];
    file.read_exact_at(&mut bytes, layout.header())
        .map_err(io_error(path, "read"))?;
    let path = || path.to_owned();
    match Header::parse(&bytes) {
        Ok(header) if header.blocks == layout.blocks => Ok(Some(header)),
        // Data of the guest that looks like a header of some delta.
        Ok(_) | Err(BadHeader::Foreign) => Ok(None),
        Err(BadHeader::Version(version)) => Err(DeltaError::Version {
            path: path(),
            version,
        }),
        Err(BadHeader::Damaged(what)) => Err(DeltaError::Damaged {
            path: path(),
            what: what.to_owned(),
        }),
    }
}

/// Whether the file is what a power cut may leave of a delta that was made and
/// never flushed: no header, and nothing that was committed.
fn is_blank(file: &File, layout: Layout, len: u64) -> io::Result<bool> {
    if len == 0 {
        return Ok(true);
    }
    if len != layout.end() {
        return Ok(false);
    }
    let mut header = [0; HEADER];
    file.read_exact_at(&mut header, layout.header())?;
    let committed = index::read(file, layout, layout.committed())?;
    Ok(header == [0; HEADER] && committed.iter().all(|&word| word == 0))
}

/// A sealed delta is whole as a layer. One that was being sealed is not yet.
fn refuse_layer(path: &Path) -> Result<(), DeltaError> {
    match Layer::open(path) {
        Ok(_) => Err(DeltaError::Sealed {
            path: path.to_owned(),
        }),
        Err(error @ LayerError::Version { .. }) => Err(error.into()),
        Err(_) => Ok(()),
    }
}

#[cfg(test)]
#[path = "delta_test.rs"]
mod tests;
