use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::sync::Arc;

use coppice_snapshot::layer::Content;
use coppice_snapshot::{Kind, Layer, Naming};
use vm_memory::Bytes as _;

use super::*;
use crate::units::{GIB, Gpa, MIB};

const PAGE: u64 = BLOCK_SIZE;

/// A layer in which each of `held` begins with its own number, and each of
/// `zero` is zero.
fn layer(dir: &Path, name: &str, blocks: u64, held: &[u64], zero: Range<u64>) -> Arc<Layer> {
    let path = dir.join(name);
    let file = File::create_new(&path).unwrap();
    let mut all: Vec<u64> = held.iter().copied().chain(zero.clone()).collect();
    all.sort_unstable();
    let mut content = Content {
        kind: Kind::Memory,
        blocks,
        held: Extents::new(),
        zero: Extents::new(),
    };
    for block in all {
        content.held.push(block, 1);
        if zero.contains(&block) {
            content.zero.push(block, 1);
        } else {
            let text = format!("{name} {block}");
            file.write_all_at(text.as_bytes(), block * PAGE).unwrap();
        }
    }
    drop(file);
    let file = File::options().read(true).write(true).open(&path).unwrap();
    Arc::new(content.seal(file, &path, Naming::Unique).unwrap())
}

fn text(memory: &GuestMemory, address: u64) -> String {
    let mut bytes = [0; 16];
    memory.read_slice(&mut bytes, Gpa(address)).unwrap();
    String::from_utf8_lossy(&bytes)
        .trim_end_matches('\0')
        .to_owned()
}

#[test]
fn each_page_is_that_of_the_topmost_layer_that_holds_it() {
    let dir = tempfile::tempdir().unwrap();
    let memory = super::super::allocate(32, 48).unwrap();
    let all = blocks(&memory);
    let stack = Stack::new(
        Kind::Memory,
        all,
        vec![
            layer(dir.path(), "top", all, &[5, 9], 6..7),
            layer(dir.path(), "low", all, &[4, 5, 6, 7, 8190], 1000..7000),
        ],
    )
    .unwrap();
    map_stack(&memory, &stack).unwrap();
    let pages = [
        (4, "low 4"),
        (5, "top 5"),
        (6, ""),
        (7, "low 7"),
        (9, "top 9"),
        (8190, "low 8190"),
        (3000, ""),
        (0, ""),
    ];
    for (page, expected) in pages {
        assert_eq!(text(&memory, page * PAGE), expected, "page {page}");
    }
    // 4, 5 to 6, 7, 9, 8190: the long stretch of zeroes needs none.
    assert_eq!(mappings(&stack), 5);
    memory.write_obj(7u8, Gpa(5 * PAGE)).unwrap();
    let mut byte = [0];
    stack.layers()[0]
        .file()
        .read_exact_at(&mut byte, 5 * PAGE)
        .unwrap();
    assert_eq!(&byte, b"t", "the layer itself does not change");
}

#[test]
fn the_gap_below_4_gib_is_not_part_of_a_layer() {
    let dir = tempfile::tempdir().unwrap();
    let below = 3328 * MIB / PAGE;
    let memory = super::super::allocate(3329, 48).unwrap();
    let all = blocks(&memory);
    assert_eq!(all, 3329 * MIB / PAGE);
    let low = layer(dir.path(), "low", all, &[below - 1, below, below + 1], 0..0);
    let stack = Stack::new(Kind::Memory, all, vec![low]).unwrap();
    map_stack(&memory, &stack).unwrap();
    assert_eq!(
        text(&memory, 3328 * MIB - PAGE),
        format!("low {}", below - 1)
    );
    assert_eq!(text(&memory, 4 * GIB), format!("low {below}"));
    assert_eq!(text(&memory, 4 * GIB + PAGE), format!("low {}", below + 1));
}
