//! The index of a delta: which blocks it holds, now and after a power cut.

use std::collections::BTreeSet;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::layout::Layout;

/// Words of the committed index that are written together: 512 bytes, the least
/// that a disk writes whole, for 16 MiB of the guest's disk.
const CHUNK: usize = 64;

/// The bitmaps of one delta. Bits are set and never cleared.
#[derive(Debug)]
pub(super) struct Index {
    file: Arc<File>,
    path: PathBuf,
    layout: Layout,
    live: Vec<u64>,
    /// Chunks in which the live index is ahead of the committed one.
    pending: BTreeSet<usize>,
    /// Something was written that may not be durable.
    dirty: bool,
    /// Whether the file's name in its directory may not be durable.
    is_new: bool,
    /// A promise of durability was broken.
    failed: bool,
}

impl Index {
    /// The index of an empty delta that was just made.
    pub fn new(file: Arc<File>, path: &Path, layout: Layout) -> Self {
        Self {
            file,
            path: path.to_owned(),
            layout,
            live: vec![0; layout.words()],
            pending: BTreeSet::new(),
            dirty: false,
            is_new: true,
            failed: false,
        }
    }

    /// The index of one that was there.
    pub fn opened(
        file: Arc<File>,
        path: &Path,
        layout: Layout,
        live: Vec<u64>,
        committed: &[u64],
    ) -> Self {
        let chunks = live.chunks(CHUNK).zip(committed.chunks(CHUNK));
        let pending = chunks
            .enumerate()
            .filter(|(_, (live, committed))| live != committed)
            .map(|(chunk, _)| chunk)
            .collect();
        Self {
            live,
            pending,
            // What its last user wrote may not be durable, and neither its name.
            dirty: true,
            is_new: committed.iter().all(|&word| word == 0),
            ..Self::new(file, path, layout)
        }
    }

    pub fn live(&self) -> &[u64] {
        &self.live
    }

    /// The data area was written to, which is not durable yet.
    pub fn touch(&mut self) {
        self.dirty = true;
    }

    /// Sets the bits of `len` blocks from `start` on, in the file and here.
    pub fn set(&mut self, start: u64, len: u64) -> io::Result<()> {
        let end = start
            .checked_add(len)
            .filter(|&end| end <= self.layout.blocks)
            .ok_or(io::ErrorKind::InvalidInput)?;
        if len == 0 {
            return Ok(());
        }
        self.dirty = true;
        let (first, last) = ((start / 64) as usize, ((end - 1) / 64) as usize);
        let mut words = self.live[first..=last].to_vec();
        for (word, at) in words.iter_mut().zip(first as u64..) {
            let from = start.max(at * 64) - at * 64;
            let to = end.min((at + 1) * 64) - at * 64;
            *word |= (u64::MAX >> (64 - (to - from))) << from;
        }
        if words == self.live[first..=last] {
            return Ok(());
        }
        let offset = self.layout.live() + first as u64 * 8;
        self.file.write_all_at(&to_bytes(&words), offset)?;
        self.live[first..=last].copy_from_slice(&words);
        self.pending.extend(first / CHUNK..=last / CHUNK);
        Ok(())
    }

    /// Makes everything durable that was written: first the data, then the bits
    /// that speak of it, so that after a power cut no bit promises a block that
    /// was never written.
    pub fn commit(&mut self) -> io::Result<()> {
        if self.failed {
            // The kernel forgets what it could not write: a second attempt would
            // succeed and commit bits whose data is lost.
            return Err(io::Error::other(
                "an earlier flush of the delta failed, and what it was to keep may be lost",
            ));
        }
        if !self.dirty && !self.is_new {
            return Ok(());
        }
        self.sync()?;
        if !self.pending.is_empty() {
            for &chunk in &self.pending {
                let from = chunk * CHUNK;
                let words = &self.live[from..self.live.len().min(from + CHUNK)];
                let offset = self.layout.committed() + from as u64 * 8;
                self.file.write_all_at(&to_bytes(words), offset)?;
            }
            self.sync()?;
        }
        if self.is_new {
            sync_parent(&self.path)?;
        }
        self.pending.clear();
        (self.dirty, self.is_new) = (false, false);
        Ok(())
    }

    fn sync(&mut self) -> io::Result<()> {
        self.file.sync_data().inspect_err(|_| self.failed = true)
    }
}

/// Makes the name of `path` in its directory durable. A file that was moved away
/// is the mover's care.
fn sync_parent(path: &Path) -> io::Result<()> {
    let parent = path.parent().filter(|parent| *parent != Path::new(""));
    match File::open(parent.unwrap_or(Path::new("."))) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        parent => parent?.sync_all(),
    }
}

pub(super) fn to_bytes(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

/// The bitmap at `offset`.
pub(super) fn read(file: &File, layout: Layout, offset: u64) -> io::Result<Vec<u64>> {
    let mut words = vec![0; layout.words()];
    let mut bytes = vec![0; 64 << 10];
    for (part, at) in words.chunks_mut(bytes.len() / 8).zip(0..) {
        let bytes = &mut bytes[..part.len() * 8];
        file.read_exact_at(bytes, offset + at * (64 << 10))?;
        for (word, bytes) in part.iter_mut().zip(bytes.chunks_exact(8)) {
            *word = u64::from_le_bytes([0, 1, 2, 3, 4, 5, 6, 7].map(|n| bytes[n]));
        }
    }
    Ok(words)
}
