//! Several layers made one.

use std::fs::File;

use crate::blocks;
use crate::extents::{Extent, Extents};
use crate::layer::{Content, Kind, LayerError, io_error};
use crate::progress::Progress;
use crate::stack::Stack;

/// Layers that are to become one.
#[derive(Clone, Copy, Debug)]
pub struct Flatten<'a> {
    /// What the layers' blocks are.
    pub kind: Kind,
    /// Blocks of the whole memory or disk.
    pub blocks: u64,
    /// The layers.
    pub stack: &'a Stack,
    /// Whether nothing is to lie below the new layer. Then it need not hold
    /// blocks of zeroes.
    pub whole: bool,
}

impl Flatten<'_> {
    /// Copies the blocks that show into `file`, which is new, and gives what is
    /// to be sealed. A file system that can shares the blocks.
    ///
    /// # Errors
    /// A layer cannot be read, or `file` cannot be written.
    pub fn copy(
        &self,
        file: &File,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<Content, LayerError> {
        let layers = self.stack.layers();
        let mut shown = vec![Extents::new(); layers.len()];
        for piece in self.stack.resolve() {
            shown[piece.layer].push(piece.start, piece.len);
        }
        let parts = shown.iter().zip(layers);
        let data: Vec<Extents> = parts
            .map(|(shown, layer)| shown.minus(layer.zero()))
            .collect();
        let total = data.iter().map(Extents::blocks).sum::<u64>() * crate::extents::BLOCK_SIZE;
        let mut progress = Progress::counter(total, progress);
        for (data, layer) in data.iter().zip(layers) {
            blocks::copy(layer.file(), file, data, &mut progress)
                .map_err(io_error(layer.path(), "copied"))?;
        }
        let data = union(&data);
        let held = match self.whole {
            true => data.clone(),
            false => union(&shown),
        };
        Ok(Content {
            kind: self.kind,
            blocks: self.blocks,
            zero: held.minus(&data),
            held,
        })
    }
}

/// All blocks of sets that have none in common.
fn union(sets: &[Extents]) -> Extents {
    let mut all: Vec<Extent> = sets.iter().flatten().copied().collect();
    all.sort_unstable();
    let mut union = Extents::new();
    for extent in all {
        union.push(extent.start, extent.len);
    }
    union
}

#[cfg(test)]
#[path = "flatten_test.rs"]
mod tests;
