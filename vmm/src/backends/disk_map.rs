//! Which layer of a disk's stack has which blocks.

use coppice_snapshot::{Extents, Piece};

/// Runs of blocks and where they are found, in order; blocks in no run are zero.
/// Made once, so that finding a block takes the same time however many layers
/// there are.
#[derive(Debug, Default)]
pub struct DiskMap(Vec<Piece>);

impl DiskMap {
    /// The map of `pieces`, which are in order and do not overlap.
    pub fn new(pieces: Vec<Piece>) -> Self {
        Self(pieces)
    }

    /// The layer that has `block`, and the end of the run from `block` on for
    /// which that is the answer, at most `end`.
    pub fn find(&self, block: u64, end: u64) -> (Option<usize>, u64) {
        let after = self.0.partition_point(|piece| piece.start <= block);
        if let Some(piece) = after.checked_sub(1).map(|at| &self.0[at])
            && piece.start + piece.len > block
        {
            return (Some(piece.layer), end.min(piece.start + piece.len));
        }
        let next = self.0.get(after).map_or(end, |piece| piece.start);
        (None, end.min(next))
    }

    /// Puts a layer on top that holds `held`.
    pub fn cover(&mut self, held: &Extents, layer: usize) {
        let mut pieces: Vec<Piece> = Vec::with_capacity(self.0.len() + 2 * held.ranges());
        let mut push = |start: u64, end: u64, layer| {
            let len = end - start;
            pieces.push(Piece { start, len, layer });
        };
        let mut above = held.iter().peekable();
        let mut covered = 0;
        for piece in &self.0 {
            let end = piece.start + piece.len;
            let mut at = piece.start.max(covered);
            while let Some(top) = above.next_if(|top| top.start < end) {
                if top.start > at {
                    push(at, top.start, piece.layer);
                }
                push(top.start, top.end(), layer);
                covered = top.end();
                at = at.max(covered);
            }
            if at < end {
                push(at, end, piece.layer);
            }
        }
        above.for_each(|top| push(top.start, top.end(), layer));
        self.0 = pieces;
    }
}

#[cfg(test)]
#[path = "disk_map_test.rs"]
mod tests;
