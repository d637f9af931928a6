//! Making a layer.

use std::fs::{File, Permissions};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::Path;

use nix::fcntl::FlockArg;

use super::error::{LayerError, io_error};
use super::footer::{Footer, encode_index, hash};
use super::name::LayerName;
use super::{Kind, Layer};
use crate::draft::{Draft, lock};
use crate::extents::{BLOCK_SIZE, Extents};

/// How a layer gets its name when it is sealed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Naming {
    /// By the hash of its content, for a layer that is kept.
    Content,
    /// By a unique id, for a layer that only serves forks on this host: nobody
    /// waits for a hash.
    Unique,
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
        let name = match naming {
            Naming::Unique => LayerName::unique().map_err(LayerError::Random)?,
            Naming::Content => {
                // A hole at the end of the data may not be part of the file yet.
                file.set_len(index_at).map_err(io_error(path, "written"))?;
                let (footer, index) = self.end();
                let data = self.held.minus(&self.zero);
                hash(&footer, &index, &file, &data, &mut |_| {}).map_err(io_error(path, "read"))?
            }
        };
        self.finish(name, index_at, file, path)
    }

    /// Makes a layer of `file` that is called `name`: the caller knows it.
    pub(crate) fn finish(
        self,
        name: LayerName,
        index_at: u64,
        file: File,
        path: &Path,
    ) -> Result<Layer, LayerError> {
        let (mut footer, index) = self.end();
        footer.name = name;
        footer.index_crc = crc32fast::hash(&index);
        footer.index_at = index_at;
        let written = (|| {
            footer.file_len().ok_or(io::ErrorKind::FileTooLarge)?;
            file.set_len(index_at)?;
            let mut tail = index;
            tail.extend(footer.encode());
            file.write_all_at(&tail, index_at)?;
            let mode = file.metadata()?.mode();
            file.set_permissions(Permissions::from_mode(mode & 0o7777 & !0o222))?;
            match name.is_by_content() {
                true => file.sync_all(),
                false => Ok(()),
            }
        })();
        written.map_err(io_error(path, "written"))?;
        let file = lock(file, FlockArg::LockSharedNonblock).map_err(io_error(path, "locked"))?;
        Ok(Layer {
            path: path.to_owned(),
            file,
            kind: self.kind,
            blocks: self.blocks,
            name,
            held: self.held,
            zero: self.zero,
        })
    }

    /// The footer, without a name, and the index that it gets.
    fn end(&self) -> (Footer, Vec<u8>) {
        let footer = Footer::new(self.kind, self.blocks, &self.held, &self.zero);
        (footer, encode_index(&self.held, &self.zero))
    }

    /// As [`Content::seal`], for the file that is being made in `draft`, which
    /// then appears as the layer. If it is named by its content, all of it
    /// survives a power cut when this returns.
    ///
    /// # Errors
    /// The host cannot read or write the file, or is out of space. Nothing has
    /// then appeared.
    pub fn publish(self, draft: Draft, naming: Naming) -> Result<Layer, LayerError> {
        self.publish_if(draft, naming, || true)
    }

    /// As [`Content::publish`], unless `wanted` says that nobody wants it any more
    /// when it is complete.
    ///
    /// # Errors
    /// As for [`Content::publish`], or it is not wanted.
    pub fn publish_if(
        self,
        draft: Draft,
        naming: Naming,
        wanted: impl FnOnce() -> bool,
    ) -> Result<Layer, LayerError> {
        let target = draft.target().to_owned();
        let file = draft
            .file()
            .try_clone()
            .map_err(io_error(&target, "written"))?;
        let layer = self.seal(file, &target, naming)?;
        if !wanted() {
            let stopped = io::ErrorKind::Interrupted.into();
            return Err(io_error(&target, "written")(stopped));
        }
        let published = match naming {
            Naming::Content => draft.publish(),
            Naming::Unique => draft.reveal(),
        };
        published.map_err(io_error(&target, "written"))?;
        // The draft and the layer are one open file, which the draft has just
        // unlocked.
        let locked = layer.file.relock(FlockArg::LockSharedNonblock);
        locked.map_err(|errno| io_error(&target, "locked")(errno.into()))?;
        Ok(layer)
    }
}
