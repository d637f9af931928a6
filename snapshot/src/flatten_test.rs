use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use super::*;
use crate::testing::layer;
use crate::{BLOCK_SIZE, Draft, Layer, Naming};

/// The first byte of each block, as the stack shows it.
fn bytes(stack: &Stack) -> Vec<u8> {
    let mut bytes = vec![0; 10];
    for piece in stack.resolve() {
        for block in piece.start..piece.start + piece.len {
            let file = stack.layers()[piece.layer].file();
            let at = &mut bytes[block as usize..][..1];
            file.read_exact_at(at, block * BLOCK_SIZE).unwrap();
        }
    }
    bytes
}

fn stack(dir: &Path) -> Stack {
    let make = |name: &str, held: &[(u64, u8)]| {
        Arc::new(layer(
            &dir.join(name),
            Kind::Disk,
            10,
            held,
            Naming::Content,
        ))
    };
    let layers = vec![
        make("top", &[(0, 9), (1, 0), (2, 9), (8, 0)]),
        make("middle", &[(2, 8), (3, 8), (4, 0)]),
        make("base", &[(1, 7), (3, 7), (4, 7), (5, 7), (6, 7)]),
    ];
    Stack::new(Kind::Disk, 10, layers).unwrap()
}

fn flatten(stack: &Stack, whole: bool, target: &Path) -> Arc<Layer> {
    let draft = Draft::beside(target).unwrap();
    let flatten = Flatten {
        kind: Kind::Disk,
        blocks: 10,
        stack,
        whole,
    };
    let content = flatten.copy(draft.file(), &mut |_| {}).unwrap();
    Arc::new(content.publish(draft, Naming::Content).unwrap())
}

#[test]
fn one_layer_shows_what_the_stack_showed() {
    let dir = tempfile::tempdir().unwrap();
    let stack = stack(dir.path());
    assert_eq!(bytes(&stack), [9, 0, 9, 8, 0, 7, 7, 0, 0, 0]);
    let flat = flatten(&stack, true, &dir.path().join("flat"));
    assert!(flat.zero().is_empty());
    assert_eq!(flat.held().blocks(), 5);
    flat.verify(&mut |_| {}).unwrap();
    let alone = Stack::new(Kind::Disk, 10, vec![flat]).unwrap();
    assert_eq!(bytes(&alone), bytes(&stack));
}

#[test]
fn a_part_of_a_stack_still_hides_what_lies_below_it() {
    let dir = tempfile::tempdir().unwrap();
    let stack = stack(dir.path());
    let upper = Stack::new(Kind::Disk, 10, stack.layers()[..2].to_vec()).unwrap();
    let merged = flatten(&upper, false, &dir.path().join("merged"));
    assert_eq!((merged.held().blocks(), merged.zero().blocks()), (6, 3));
    let base = stack.layers()[2].clone();
    let compacted = Stack::new(Kind::Disk, 10, vec![merged, base]).unwrap();
    assert_eq!(bytes(&compacted), bytes(&stack));
}

#[test]
fn nothing_flattens_to_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let flat = flatten(&Stack::default(), true, &dir.path().join("flat"));
    assert!(flat.held().is_empty());
}
