//! A delta that is written no more, on its way to become a layer.

use std::fs::{File, Permissions};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use nix::fcntl::Flock;

use super::error::io_error;
use super::index::Index;
use super::layout::Layout;
use super::{Delta, DeltaError};
use crate::blocks;
use crate::extents::Extents;
use crate::layer::{Content, Kind, Layer, Naming};
use crate::sparse;

/// A delta that is written no more. Its blocks are read through
/// [`FrozenDelta::file`] as before, whether it is sealed meanwhile or not.
#[derive(Debug)]
pub struct FrozenDelta {
    path: PathBuf,
    file: Arc<File>,
    layout: Layout,
    held: Extents,
    index: Mutex<Index>,
    layer: Mutex<Option<Arc<Layer>>>,
    _lock: Flock<File>,
}

impl FrozenDelta {
    pub(super) fn new(delta: Delta) -> Self {
        let Delta {
            path,
            file,
            layout,
            index,
            lock,
        } = delta;
        Self {
            path,
            file,
            layout,
            held: Extents::from_bitmap(index.live(), layout.blocks),
            index: Mutex::new(index),
            layer: Mutex::new(None),
            _lock: lock,
        }
    }

    /// The file that it is in.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The open file. Block `n` lies at offset `n × 4096`.
    pub fn file(&self) -> &Arc<File> {
        &self.file
    }

    /// The blocks that it holds.
    pub fn held(&self) -> &Extents {
        &self.held
    }

    /// Makes it durable, as a delta; after that nothing is left to do.
    ///
    /// # Errors
    /// As for [`Delta::flush`].
    pub fn flush(&self) -> io::Result<()> {
        locked(&self.index).commit()
    }

    /// Makes it a layer, in the same file and without a copy of its data. Named
    /// by its content, the layer is durable when this returns; with a unique
    /// name it is once [`FrozenDelta::flush`] has returned. Sealing it again
    /// gives the same layer, whose name stays, and makes it durable if
    /// [`Naming::Content`] asks for that.
    ///
    /// # Errors
    /// The host cannot read or write, or is out of space. Nothing is lost: the
    /// file is the delta that it was, also if the process or the host ends in
    /// the middle.
    pub fn seal(&self, naming: Naming) -> Result<Arc<Layer>, DeltaError> {
        let mut sealed = locked(&self.layer);
        if naming == Naming::Content {
            // Before there is a footer, so that no footer can be there without
            // the data; or now, if it was sealed for forks only.
            self.flush().map_err(io_error(&self.path, "written"))?;
        }
        if let Some(layer) = &*sealed {
            return Ok(layer.clone());
        }
        let content = Content {
            kind: Kind::Disk,
            blocks: self.layout.blocks,
            held: self.held.clone(),
            zero: self
                .zero(naming)
                .map_err(io_error(&self.path, "examined"))?,
        };
        let file = self
            .file
            .try_clone()
            .map_err(io_error(&self.path, "opened"))?;
        // Behind the delta's own index, which counts until the footer is there.
        match content.seal_behind(self.layout.end(), file, &self.path, naming) {
            Ok(sealed_here) => {
                // On its own, since the lock of this one goes with the delta's.
                let layer = Layer::open_named(&self.path, &sealed_here.name())?;
                let layer = Arc::new(layer);
                if naming == Naming::Unique {
                    // There is an index and a footer to flush now.
                    locked(&self.index).touch();
                }
                *sealed = Some(layer.clone());
                Ok(layer)
            }
            Err(error) => {
                // Opening a delta does this, too, if it cannot be done here.
                let _ = self.file.set_len(self.layout.end());
                let _ = self.file.set_permissions(Permissions::from_mode(0o600));
                Err(error.into())
            }
        }
    }

    /// The held blocks that are zero, as holes. Blocks that are not held become
    /// holes, too: a write that was cut short may have left something there.
    fn zero(&self, naming: Naming) -> io::Result<Extents> {
        let all = Extents::all(self.layout.blocks);
        let stored = blocks::stored(&self.file, &all)?;
        let stray = stored.minus(&self.held);
        sparse::punch(&self.file, &stray)?;
        let mut data = stored.minus(&stray);
        if naming == Naming::Content {
            // It is read for its name anyhow.
            let not_zero = sparse::not_zero(&self.file, &data)?;
            sparse::punch(&self.file, &data.minus(&not_zero))?;
            data = not_zero;
        }
        Ok(self.held.minus(&data))
    }
}

/// A panic elsewhere leaves nothing half done behind these locks.
fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
