//! Making a layer of a plain disk image.

use std::fs::File;
use std::io::{self, Seek, SeekFrom};
use std::os::unix::fs::{FileExt, FileTypeExt};
use std::path::{Path, PathBuf};

use crate::draft::Draft;
use crate::extents::{BLOCK_SIZE, Extents};
use crate::layer::{Content, Kind, Layer, LayerError, Naming};
use crate::progress::Progress;
use crate::remedy::Remedy;
use crate::{blocks, sparse};

/// Why an image does not become a layer.
#[derive(Debug, thiserror::Error)]
pub enum ImportError {
    /// The image cannot be read.
    #[error("the disk image {} cannot be read ({source})", path.display())]
    Read {
        /// The image.
        path: PathBuf,
        /// The host's answer.
        source: io::Error,
    },
    /// It holds no disk.
    #[error("{} is no disk image: {what}", path.display())]
    NotAnImage {
        /// The image.
        path: PathBuf,
        /// What it is, and what to give.
        what: &'static str,
    },
    /// The layer cannot be written.
    #[error("the layer {} cannot be written ({source}){}", path.display(), Remedy(source))]
    Write {
        /// The layer.
        path: PathBuf,
        /// The host's answer.
        source: io::Error,
    },
    /// The layer cannot be sealed.
    #[error(transparent)]
    Layer(#[from] LayerError),
}

/// Makes a layer at `target` of the raw disk image at `image`, a file or a block
/// device that nobody writes to meanwhile. The layer appears whole or not at
/// all, in place of whatever is there; it is named by its content, and durable
/// when this returns. An image that does not end with a whole block is filled up
/// with zeroes. `progress` counts the bytes that the image stores.
///
/// # Errors
/// The image is no raw disk or cannot be read, or the layer cannot be written.
pub fn import(
    image: &Path,
    target: &Path,
    progress: &mut dyn FnMut(Progress),
) -> Result<Layer, ImportError> {
    let unreadable = |source| ImportError::Read {
        path: image.to_owned(),
        source,
    };
    let unwritable = |source| ImportError::Write {
        path: target.to_owned(),
        source,
    };
    let (file, len) = open(image)?;
    let blocks = len.div_ceil(BLOCK_SIZE);
    let stored = blocks::stored(&file, &Extents::all(blocks)).map_err(unreadable)?;
    let draft = Draft::beside(target).map_err(unwritable)?;
    draft
        .file()
        .set_len(blocks * BLOCK_SIZE)
        .map_err(unwritable)?;
    let mut copy = Copy {
        to: draft.file(),
        held: Extents::new(),
        refusal: None,
    };
    let mut done = Progress::counter(stored.blocks() * BLOCK_SIZE, progress);
    let read = each_part(&file, len, &stored, |at, bytes| {
        copy.take(at, bytes)?;
        done(bytes.len() as u64);
        Ok(true)
    });
    let Copy { held, refusal, .. } = copy;
    refusal.map_or(Ok(()), |source| Err(unwritable(source)))?;
    read.map_err(unreadable)?;
    let content = Content {
        kind: Kind::Disk,
        blocks,
        held,
        // Nothing lies below: blocks of zeroes need not be held.
        zero: Extents::new(),
    };
    Ok(content.publish(draft, Naming::Content)?)
}

/// The image and its length in bytes.
fn open(path: &Path) -> Result<(File, u64), ImportError> {
    let unreadable = |source| ImportError::Read {
        path: path.to_owned(),
        source,
    };
    let refused = |what| {
        Err(ImportError::NotAnImage {
            path: path.to_owned(),
            what,
        })
    };
    let kind = std::fs::metadata(path).map_err(unreadable)?.file_type();
    if !kind.is_file() && !kind.is_block_device() {
        return refused("it is neither a regular file nor a block device; give one of those");
    }
    let mut file = File::open(path).map_err(unreadable)?;
    // Metadata knows the size of files only; this works for devices, too.
    let len = file.seek(SeekFrom::End(0)).map_err(unreadable)?;
    let mut magic = [0; 8];
    let read = file.read_at(&mut magic, 0).map_err(unreadable)?;
    match &magic[..read] {
        [] => refused("it is empty; give a file with a file system or a partition table"),
        [b'Q', b'F', b'I', 0xfb, ..] => refused(
            "it has the form of QEMU (qcow2); make a raw one of it with `qemu-img convert -O raw`",
        ),
        _ if Layer::open(path).is_ok() => refused("it is a layer already; use it as it is"),
        _ => Ok((file, len)),
    }
}

/// Reads the blocks of `stored`; the last one of a file of `len` bytes may be cut
/// short and is filled up with zeroes.
fn each_part(
    file: &File,
    len: u64,
    stored: &Extents,
    mut take: impl FnMut(u64, &[u8]) -> io::Result<bool>,
) -> io::Result<()> {
    let whole = len / BLOCK_SIZE;
    let mut rest = Extents::new();
    rest.push(whole, len.div_ceil(BLOCK_SIZE) - whole);
    blocks::read(file, &stored.minus(&rest), &mut take)?;
    if stored.contains(whole) {
        let mut block = [0; BLOCK_SIZE as usize];
        file.read_exact_at(
            &mut block[..(len % BLOCK_SIZE) as usize],
            whole * BLOCK_SIZE,
        )?;
        take(whole * BLOCK_SIZE, &block)?;
    }
    Ok(())
}

/// Writes what is not zero, and remembers what that was.
struct Copy<'a> {
    to: &'a File,
    held: Extents,
    /// Why writing failed; reading may fail as well.
    refusal: Option<io::Error>,
}

impl Copy<'_> {
    fn take(&mut self, at: u64, bytes: &[u8]) -> io::Result<()> {
        let block_bytes = BLOCK_SIZE as usize;
        let blocks: Vec<&[u8]> = bytes.chunks(block_bytes).collect();
        let mut first = 0;
        // Runs that are written, or left out, at once.
        for run in blocks.chunk_by(|a, b| sparse::is_zero(a) == sparse::is_zero(b)) {
            if !sparse::is_zero(run[0]) {
                let start = first * block_bytes;
                let run_bytes = &bytes[start..start + run.len() * block_bytes];
                if let Err(error) = self.to.write_all_at(run_bytes, at + start as u64) {
                    let kind = error.kind();
                    self.refusal = Some(error);
                    return Err(kind.into());
                }
                self.held
                    .push(at / BLOCK_SIZE + first as u64, run.len() as u64);
            }
            first += run.len();
        }
        Ok(())
    }
}

#[cfg(test)]
#[path = "import_test.rs"]
mod tests;
