//! A disk that is a stack: immutable layers, shared with other machines, and a
//! private delta that takes the writes.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use coppice_snapshot::{
    BLOCK_SIZE, Delta, DeltaError, FrozenDelta, Kind, Layer, LayerError, Naming, Piece, Stack,
    StackError,
};
use vm_memory::VolatileSlice;

use super::disk::{DiskBackend, FreezeError, FrozenDisk};
use super::disk_file::{unsupported, zero};
use super::disk_map::DiskMap;
use crate::sys::file;

/// Why a disk's stack cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum DiskStackError {
    /// One of its layers is unusable.
    #[error(transparent)]
    Layer(#[from] LayerError),
    /// The layers do not belong together.
    #[error(transparent)]
    Stack(#[from] StackError),
    /// Its delta is unusable.
    #[error(transparent)]
    Delta(#[from] DeltaError),
    /// Nothing says how large the disk is.
    #[error("a disk's stack needs at least one layer")]
    Empty,
}

/// One level of a disk's stack below the delta.
#[derive(Clone, Debug)]
pub enum Level {
    /// A layer.
    Layer(Arc<Layer>),
    /// What was the delta until the disk was frozen. It is read in the same way,
    /// sealed or not.
    Frozen(Arc<FrozenDelta>),
}

impl Level {
    /// The level as a layer, sealed now unless it was. Takes time, and is for a
    /// thread that may take it.
    ///
    /// # Errors
    /// It cannot be sealed; the disk goes on as it is, and this may be repeated.
    pub fn seal(&self, naming: Naming) -> Result<Arc<Layer>, DeltaError> {
        match self {
            Self::Layer(layer) => Ok(layer.clone()),
            Self::Frozen(frozen) => frozen.seal(naming),
        }
    }

    /// The file that it is in.
    pub fn path(&self) -> &Path {
        match self {
            Self::Layer(layer) => layer.path(),
            Self::Frozen(frozen) => frozen.path(),
        }
    }

    fn file(&self) -> &File {
        match self {
            Self::Layer(layer) => layer.file(),
            Self::Frozen(frozen) => frozen.file(),
        }
    }
}

/// A disk on a stack. Without a delta it can only be read.
#[derive(Debug)]
pub struct DiskStack {
    len: u64,
    /// The lowest first, so that what is put on top keeps the others' numbers.
    levels: Vec<Level>,
    map: DiskMap,
    delta: Option<Delta>,
    /// Frozen levels that may not be durable yet.
    unflushed: Vec<Arc<FrozenDelta>>,
}

impl DiskStack {
    /// Opens `layers`, topmost first, and the delta at `delta`, which is made
    /// unless it is there.
    ///
    /// # Errors
    /// A file is missing, damaged or of another disk, or the delta is in use.
    pub fn open(layers: &[PathBuf], delta: Option<&Path>) -> Result<Self, DiskStackError> {
        let layers = layers
            .iter()
            .map(|path| Layer::open(path).map(Arc::new))
            .collect::<Result<Vec<_>, _>>()?;
        let blocks = layers.first().ok_or(DiskStackError::Empty)?.blocks();
        let stack = Stack::new(Kind::Disk, blocks, layers)?;
        let delta = delta
            .map(|path| Delta::open_or_create(path, blocks))
            .transpose()?;
        Self::new(&stack, delta)
    }

    /// A disk on a stack of opened layers.
    ///
    /// # Errors
    /// There are no layers, or the delta is of another size.
    pub fn new(stack: &Stack, delta: Option<Delta>) -> Result<Self, DiskStackError> {
        let layers = stack.layers();
        let blocks = layers.first().ok_or(DiskStackError::Empty)?.blocks();
        check_size(delta.as_ref(), blocks)?;
        let lowest = layers.len() - 1;
        let pieces = stack.resolve().into_iter().map(|piece| Piece {
            layer: lowest - piece.layer,
            ..piece
        });
        let map = DiskMap::new(pieces.collect());
        let levels = layers.iter().rev().cloned().map(Level::Layer).collect();
        Ok(Self {
            // The layer's file has this length and more.
            len: blocks * BLOCK_SIZE,
            levels,
            map,
            delta,
            unflushed: Vec::new(),
        })
    }

    /// Where `block` is read from, `None` if it is zero, and the end of the run
    /// from it for which this is so, at most `end`.
    fn find(&self, block: u64, end: u64) -> (Option<&File>, u64) {
        let (held, end) = self
            .delta
            .as_ref()
            .map_or((false, end), |d| d.run(block, end));
        match &self.delta {
            Some(delta) if held => (Some(delta.file()), end),
            _ => {
                let (level, end) = self.map.find(block, end);
                (level.map(|level| self.levels[level].file()), end)
            }
        }
    }

    /// The bytes from `offset` to `end`.
    fn read(&mut self, offset: u64, end: u64) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; (end - offset) as usize];
        self.read_vectored_at(&[VolatileSlice::from(bytes.as_mut_slice())], offset)?;
        Ok(bytes)
    }

    /// Marks those of the blocks from `first` to `last`, which are holes in the
    /// delta, that something below would show through.
    fn hold_holes(&mut self, first: u64, last: u64) -> io::Result<()> {
        let delta = writable(&mut self.delta)?;
        let mut block = first;
        while block < last {
            let (level, end) = self.map.find(block, last);
            if level.is_some() {
                delta.hold(block, end - block)?;
            }
            block = end;
        }
        delta.touch();
        Ok(())
    }
}

fn check_size(delta: Option<&Delta>, blocks: u64) -> Result<(), DeltaError> {
    match delta {
        Some(delta) if delta.blocks() != blocks => Err(DeltaError::Size {
            path: delta.path().to_owned(),
            found: delta.blocks(),
            wanted: blocks,
        }),
        _ => Ok(()),
    }
}

fn writable(delta: &mut Option<Delta>) -> io::Result<&mut Delta> {
    delta.as_mut().ok_or_else(|| {
        io::Error::new(
            io::ErrorKind::ReadOnlyFilesystem,
            "the disk's stack has no delta that takes writes",
        )
    })
}

impl DiskBackend for DiskStack {
    fn len(&self) -> u64 {
        self.len
    }

    fn read_vectored_at(&mut self, slices: &[VolatileSlice<'_>], offset: u64) -> io::Result<()> {
        let mut rest = Rest::of(slices);
        let end = offset.saturating_add(rest.len());
        let mut at = offset;
        while at < end {
            let (file, run) = self.find(at / BLOCK_SIZE, end.div_ceil(BLOCK_SIZE));
            let stop = end.min(run.saturating_mul(BLOCK_SIZE));
            let part = rest.take(stop - at);
            match file {
                Some(file) => file::read_vectored_at(file, &part, at)?,
                None => part.iter().for_each(|slice| fill_with_zeroes(slice)),
            }
            at = stop;
        }
        Ok(())
    }

    /// One write to the delta. Blocks that it does not hold and that are written
    /// in part are completed from below in the same write; they count as held
    /// only after it, so none ever shows a part.
    fn write_vectored_at(&mut self, slices: &[VolatileSlice<'_>], offset: u64) -> io::Result<()> {
        let end = offset.saturating_add(Rest::of(slices).len());
        if end == offset {
            return Ok(());
        }
        let (first, last) = (offset / BLOCK_SIZE, (end - 1) / BLOCK_SIZE);
        let delta = writable(&mut self.delta)?;
        let lacks = |block| !delta.run(block, block + 1).0;
        let (lacks_first, lacks_last) = (lacks(first), lacks(last));
        let start = if lacks_first {
            first * BLOCK_SIZE
        } else {
            offset
        };
        let stop = if lacks_last {
            (last + 1) * BLOCK_SIZE
        } else {
            end
        };
        let (mut before, mut after) = (self.read(start, offset)?, self.read(end, stop)?);
        let mut whole = Vec::with_capacity(slices.len() + 2);
        whole.push(VolatileSlice::from(before.as_mut_slice()));
        whole.extend_from_slice(slices);
        whole.push(VolatileSlice::from(after.as_mut_slice()));
        let delta = writable(&mut self.delta)?;
        delta.touch();
        file::write_vectored_at(delta.file(), &whole, start)?;
        delta.hold(first, last - first + 1)
    }

    fn flush(&mut self) -> io::Result<()> {
        while let Some(frozen) = self.unflushed.last() {
            frozen.flush()?;
            self.unflushed.pop();
        }
        self.delta.as_mut().map_or(Ok(()), Delta::flush)
    }

    /// Whole blocks become holes; the edges, parts of blocks, stay.
    fn discard(&mut self, offset: u64, len: u64) -> io::Result<()> {
        let (first, last) = whole_blocks(offset, len);
        if first >= last {
            return Ok(());
        }
        let delta = writable(&mut self.delta)?;
        match file::punch_hole(
            delta.file(),
            first * BLOCK_SIZE,
            (last - first) * BLOCK_SIZE,
        ) {
            Ok(()) => self.hold_holes(first, last),
            Err(error) if unsupported(&error) => Ok(()),
            Err(error) => Err(error),
        }
    }

    fn write_zeroes(&mut self, offset: u64, len: u64, may_unmap: bool) -> io::Result<()> {
        let end = offset.saturating_add(len);
        let (first, last) = whole_blocks(offset, len);
        let mut zeroes = [0; 2 * BLOCK_SIZE as usize];
        let mut edge = |from: u64, to: u64| {
            let bytes = &mut zeroes[..(to - from) as usize];
            self.write_vectored_at(&[VolatileSlice::from(bytes)], from)
        };
        if first >= last {
            return edge(offset, end);
        }
        edge(offset, first * BLOCK_SIZE)?;
        edge(last * BLOCK_SIZE, end)?;
        let delta = writable(&mut self.delta)?;
        delta.touch();
        zero(
            delta.file(),
            first * BLOCK_SIZE,
            (last - first) * BLOCK_SIZE,
            may_unmap,
        )?;
        match may_unmap {
            true => self.hold_holes(first, last),
            false => delta.hold(first, last - first),
        }
    }

    fn delta(&self) -> Option<&Delta> {
        self.delta.as_ref()
    }

    fn freeze(&mut self, next: Option<Delta>) -> Result<FrozenDisk, FreezeError> {
        match (&self.delta, &next) {
            (Some(_), None) => return Err(FreezeError::NoDelta),
            (None, Some(_)) => return Err(FreezeError::NotWritable),
            _ => check_size(next.as_ref(), self.len / BLOCK_SIZE)?,
        }
        if let Some(delta) = std::mem::replace(&mut self.delta, next) {
            let frozen = Arc::new(delta.freeze());
            self.map.cover(frozen.held(), self.levels.len());
            self.levels.push(Level::Frozen(frozen.clone()));
            self.unflushed.push(frozen);
        }
        Ok(FrozenDisk::Stack(
            self.levels.iter().rev().cloned().collect(),
        ))
    }
}

/// The blocks that lie whole between `offset` and `offset + len`: the first, and
/// the one after the last.
fn whole_blocks(offset: u64, len: u64) -> (u64, u64) {
    let end = offset.saturating_add(len);
    (offset.div_ceil(BLOCK_SIZE), end / BLOCK_SIZE)
}

fn fill_with_zeroes(slice: &VolatileSlice<'_>) {
    static ZEROES: [u8; BLOCK_SIZE as usize] = [0; BLOCK_SIZE as usize];
    let mut at = 0;
    while let Ok(part) = slice.offset(at)
        && !part.is_empty()
    {
        let len = part.len().min(ZEROES.len());
        part.copy_from(&ZEROES[..len]);
        at += len;
    }
}

/// What is left of some slices of memory.
struct Rest<'a, 'm> {
    slices: &'a [VolatileSlice<'m>],
    /// Bytes of the first slice that are gone.
    gone: usize,
}

impl<'a, 'm> Rest<'a, 'm> {
    fn of(slices: &'a [VolatileSlice<'m>]) -> Self {
        Self { slices, gone: 0 }
    }

    fn len(&self) -> u64 {
        let all: u64 = self.slices.iter().map(|slice| slice.len() as u64).sum();
        all - self.gone as u64
    }

    /// The next `len` bytes, or what there is.
    fn take(&mut self, len: u64) -> Vec<VolatileSlice<'m>> {
        let mut len = usize::try_from(len).unwrap_or(usize::MAX);
        let mut taken = Vec::new();
        while len > 0
            && let Some((first, others)) = self.slices.split_first()
        {
            let count = len.min(first.len() - self.gone);
            taken.extend(first.subslice(self.gone, count).ok());
            self.gone += count;
            len -= count;
            if self.gone == first.len() {
                (self.slices, self.gone) = (others, 0);
            }
        }
        taken
    }
}

#[cfg(test)]
#[path = "disk_stack_test.rs"]
mod tests;
