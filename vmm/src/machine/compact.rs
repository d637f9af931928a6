//! Keeps stacks of memory quick to restore.
//!
//! A restore makes one mapping for each run of pages that lie in one layer, so a
//! long chain of small changes would take ever longer, and in the end meet the
//! kernel's limit on mappings (`vm.max_map_count`, 65,530). The layers above the
//! lowest, which are small, are made one when that saves much; and everything
//! is, if nothing else helps.

use std::path::Path;
use std::sync::Arc;

use coppice_snapshot::{Draft, Kind, Naming, Piece, Stack, flatten::Flatten};

use super::snapshot::SnapshotError;
use crate::memory::layers;

/// So many mappings take less time than the rest of a restore.
const FEW: usize = 512;
/// Far below the kernel's limit, since a machine has other mappings, too.
const MOST: usize = 16_000;

/// The stack that is to take the place of `stack`, if one is. Its new layer is at
/// `target`, where the topmost of `stack` was.
pub(super) fn compact(
    stack: &Stack,
    target: &Path,
    naming: Naming,
) -> Result<Option<Stack>, SnapshotError> {
    let mappings = layers::mappings(stack);
    if mappings <= FEW {
        return Ok(None);
    }
    let all = stack.layers();
    if let [upper @ .., lowest] = all
        && upper.len() > 1
    {
        let upper = upper.iter().rev().cloned();
        let upper = upper.fold(Stack::default(), |stack, layer| stack.with(layer));
        let pieces = upper.resolve();
        if pieces.len() > 2 * apart(&pieces) || mappings > MOST {
            let merged = merge(&upper, false, target, naming)?;
            let stack = Stack::default().with(lowest.clone()).with(merged);
            if layers::mappings(&stack) <= MOST {
                return Ok(Some(stack));
            }
        }
    }
    if mappings <= MOST {
        return Ok(None);
    }
    let flat = merge(stack, true, target, naming)?;
    Ok(Some(Stack::default().with(flat)))
}

/// How many of `pieces` would be left if those that touch were one.
fn apart(pieces: &[Piece]) -> usize {
    let touch = pieces
        .windows(2)
        .filter(|pair| pair[0].start + pair[0].len == pair[1].start);
    pieces.len() - touch.count()
}

fn merge(
    stack: &Stack,
    whole: bool,
    target: &Path,
    naming: Naming,
) -> Result<Arc<coppice_snapshot::Layer>, SnapshotError> {
    let blocks = stack.layers().first().map_or(0, |layer| layer.blocks());
    let draft = Draft::beside(target).map_err(|source| SnapshotError::File {
        path: target.to_owned(),
        what: "created",
        source,
    })?;
    let flatten = Flatten {
        kind: Kind::Memory,
        blocks,
        stack,
        whole,
    };
    let content = flatten.copy(draft.file(), &mut |_| {})?;
    Ok(Arc::new(content.publish(draft, naming)?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use coppice_snapshot::{BLOCK_SIZE, Content, Extents, Layer};
    use std::os::unix::fs::FileExt as _;

    const BLOCKS: u64 = 100_000;

    /// A layer that holds each of `held`, beginning with `mark`.
    fn layer(path: &Path, held: impl Iterator<Item = u64>, mark: u8) -> Arc<Layer> {
        let draft = Draft::beside(path).unwrap();
        let mut content = Content {
            kind: Kind::Memory,
            blocks: BLOCKS,
            held: Extents::new(),
            zero: Extents::new(),
        };
        for block in held {
            content.held.push(block, 1);
            let file = draft.file();
            file.write_all_at(&[mark], block * BLOCK_SIZE).unwrap();
        }
        draft.file().set_len(BLOCKS * BLOCK_SIZE).unwrap();
        Arc::new(content.publish(draft, Naming::Unique).unwrap())
    }

    fn marks(stack: &Stack) -> Vec<(u64, u8)> {
        let mut marks = Vec::new();
        for piece in stack.resolve() {
            for block in piece.start..piece.start + piece.len {
                let mut byte = [0];
                let file = stack.layers()[piece.layer].file();
                file.read_exact_at(&mut byte, block * BLOCK_SIZE).unwrap();
                marks.push((block, byte[0]));
            }
        }
        marks.retain(|&(_, mark)| mark != 0);
        marks
    }

    #[test]
    fn small_layers_above_the_lowest_become_one_if_that_saves_much() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        let mut stack = Stack::default().with(layer(&at("low"), 0..3000, 1));
        assert!(compact(&stack, &at("x"), Naming::Unique).unwrap().is_none());
        // Every fourth page in another of four layers.
        for n in 0..4u8 {
            let pages = (0..200).map(move |page| page * 4 + u64::from(n));
            stack = stack.with(layer(&at(&format!("up{n}")), pages, 2 + n));
        }
        let compacted = compact(&stack, &at("merged"), Naming::Unique).unwrap();
        let compacted = compacted.expect("800 pieces are one run");
        assert_eq!(compacted.layers().len(), 2);
        assert_eq!(layers::mappings(&compacted), 2);
        assert_eq!(marks(&compacted), marks(&stack));
    }

    #[test]
    fn what_is_scattered_stays_until_there_is_too_much_of_it() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        let low = layer(&at("low"), 0..1, 1);
        let scattered = |count: u64| layer(&at("up"), (0..count).map(|page| page * 4), 2);
        let stack = Stack::default().with(low.clone()).with(scattered(1000));
        assert!(compact(&stack, &at("x"), Naming::Unique).unwrap().is_none());
        let stack = Stack::default().with(low).with(scattered(17_000));
        let flat = compact(&stack, &at("flat"), Naming::Unique)
            .unwrap()
            .unwrap();
        assert_eq!(flat.layers().len(), 1);
        assert_eq!(marks(&flat), marks(&stack));
    }
}
