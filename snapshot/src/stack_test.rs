use super::*;
use crate::extents::Extents;

/// Which layer of `held` has each of `blocks`.
fn model(held: &[Extents], blocks: u64) -> Vec<Option<usize>> {
    (0..blocks)
        .map(|block| held.iter().position(|held| held.contains(block)))
        .collect()
}

fn resolved(held: &[Extents]) -> Vec<Piece> {
    let mut pieces = Vec::new();
    for (layer, held) in held.iter().enumerate() {
        pieces = below(&pieces, held.iter().copied(), layer);
    }
    pieces
}

#[test]
fn the_topmost_layer_that_holds_a_block_has_it() {
    let mut seed = 1_234_567u64;
    let mut random = || {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        seed >> 20
    };
    for _ in 0..2000 {
        let blocks = 1 + random() % 150;
        let layers = 1 + random() % 5;
        let held: Vec<_> = (0..layers)
            .map(|_| {
                let mut map: Vec<u64> = (0..3).map(|_| random() << 32 | random()).collect();
                if random() % 2 == 0 {
                    map.iter_mut()
                        .for_each(|word| *word &= random() << 30 | random());
                }
                Extents::from_bitmap(&map, blocks)
            })
            .collect();
        let pieces = resolved(&held);
        let mut found = vec![None; blocks as usize];
        let mut free = 0;
        for piece in &pieces {
            assert!(piece.start >= free && piece.len > 0, "{pieces:?}");
            free = piece.start + piece.len;
            found[piece.start as usize..free as usize].fill(Some(piece.layer));
        }
        assert_eq!(found, model(&held, blocks), "{held:?}");
    }
}
