//! A stack: layers in order, of which the topmost that holds a block has it.

use std::sync::Arc;

use crate::extents::Extent;
use crate::layer::{Kind, Layer};

/// Layers of one memory or disk, topmost first.
#[derive(Clone, Debug, Default)]
pub struct Stack(Vec<Arc<Layer>>);

/// A run of blocks that one layer of a stack has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// The first block.
    pub start: u64,
    /// How many blocks.
    pub len: u64,
    /// The layer's place in the stack; 0 is the topmost.
    pub layer: usize,
}

/// Layers that do not make a stack.
#[derive(Debug, thiserror::Error)]
pub enum StackError {
    /// A layer of a memory in a disk's stack, or the other way round.
    #[error("the layer {} is one of a {found}, in the stack of a {wanted}", path.display())]
    Kind {
        /// The layer.
        path: std::path::PathBuf,
        /// What it is.
        found: Kind,
        /// What it ought to be.
        wanted: Kind,
    },
    /// A layer of something larger or smaller.
    #[error(
        "the layer {} belongs to a {kind} of {found} blocks, and this one has {wanted}",
        path.display()
    )]
    Size {
        /// The layer.
        path: std::path::PathBuf,
        /// Memory or disk.
        kind: Kind,
        /// Its number of blocks.
        found: u64,
        /// What it ought to be.
        wanted: u64,
    },
}

impl Stack {
    /// A stack of `layers`, topmost first, for a memory or disk of `blocks`.
    ///
    /// # Errors
    /// A layer is of another kind or size.
    pub fn new(kind: Kind, blocks: u64, layers: Vec<Arc<Layer>>) -> Result<Self, StackError> {
        for layer in &layers {
            let path = || layer.path().to_owned();
            if layer.kind() != kind {
                return Err(StackError::Kind {
                    path: path(),
                    found: layer.kind(),
                    wanted: kind,
                });
            }
            if layer.blocks() != blocks {
                return Err(StackError::Size {
                    path: path(),
                    kind,
                    found: layer.blocks(),
                    wanted: blocks,
                });
            }
        }
        Ok(Self(layers))
    }

    /// The layers, topmost first.
    pub fn layers(&self) -> &[Arc<Layer>] {
        &self.0
    }

    /// This stack with `top` on it.
    pub fn with(&self, top: Arc<Layer>) -> Self {
        let mut layers = Vec::with_capacity(self.0.len() + 1);
        layers.push(top);
        layers.extend(self.0.iter().cloned());
        Self(layers)
    }

    /// Which layer has which blocks: pieces in order, two neighbours of one
    /// layer merged. Blocks that no layer holds are all zeroes and in no piece.
    ///
    /// Takes time in the number of ranges of all layers, not in blocks.
    pub fn resolve(&self) -> Vec<Piece> {
        let mut resolved: Vec<Piece> = Vec::new();
        for (layer, held) in self.0.iter().map(|layer| layer.held()).enumerate() {
            if resolved.is_empty() {
                resolved = held.iter().map(|extent| piece(extent, layer)).collect();
            } else {
                resolved = below(&resolved, held.iter().copied(), layer);
            }
        }
        resolved
    }
}

fn piece(extent: &Extent, layer: usize) -> Piece {
    Piece {
        start: extent.start,
        len: extent.len,
        layer,
    }
}

/// `upper` with what shows of `lower`, the ranges of `layer`, between it.
fn below(upper: &[Piece], lower: impl Iterator<Item = Extent>, layer: usize) -> Vec<Piece> {
    let mut merged = Vec::with_capacity(upper.len() * 2);
    let mut above = upper.iter().copied().peekable();
    for extent in lower {
        let mut at = extent.start;
        while at < extent.end() {
            match above.peek().copied() {
                // What is above starts later: the lower one shows until then.
                Some(next) if next.start > at => {
                    let end = next.start.min(extent.end());
                    merged.push(Piece {
                        start: at,
                        len: end - at,
                        layer,
                    });
                    at = end;
                }
                Some(next) => {
                    at = at.max(next.start + next.len);
                    // One that reaches past this range may hide the next, too.
                    if at > extent.end() {
                        break;
                    }
                    merged.push(next);
                    above.next();
                }
                None => {
                    merged.push(Piece {
                        start: at,
                        len: extent.end() - at,
                        layer,
                    });
                    at = extent.end();
                }
            }
        }
    }
    merged.extend(above);
    merged
}

#[cfg(test)]
#[path = "stack_test.rs"]
mod tests;
