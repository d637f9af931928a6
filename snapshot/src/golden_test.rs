//! The format's version 1 never changes: what `tests/golden` has is read as it
//! was written, and written as it is read.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use crate::{
    BLOCK_SIZE, Content, DiskRef, Extents, Info, Kind, Layer, LayerError, LayerName, LayerRef,
    Manifest, Places, StackRef,
};

const ID: &str = "a6e44dc9116d724e3360b332d3ec9f1ac165534ea159fde23a96bcec109ef8d0";

/// What a layer is known to be.
struct Known {
    file: &'static str,
    kind: Kind,
    name: &'static str,
    held: &'static [u64],
    zero: &'static [u64],
}

const LAYERS: [Known; 3] = [
    Known {
        file: "top",
        kind: Kind::Memory,
        name: "local-000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f",
        held: &[0, 2],
        zero: &[2],
    },
    Known {
        file: "base",
        kind: Kind::Memory,
        name: "82da1b38e46f9329bb37e49a7d75bd03f8e45a2ef82193889d7beb631ccc2dc2",
        held: &[1, 2],
        zero: &[],
    },
    Known {
        file: "disk",
        kind: Kind::Disk,
        name: "f95ff5946c348709864b142f195aaaa6e1b663f0b72e899b889cf363298dfc94",
        held: &[3],
        zero: &[],
    },
];
/// Blocks of the memory and of the disk.
const BLOCKS: u64 = 4;

fn golden(file: &str) -> PathBuf {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
    dir.join(file)
}

fn blocks(blocks: &[u64]) -> Extents {
    let mut set = Extents::new();
    blocks.iter().for_each(|&block| set.push(block, 1));
    set
}

/// What the block of a layer holds.
fn bytes(layer: usize, block: u64) -> Vec<u8> {
    let byte = |n: u64| (n / 16 + block * 16 + layer as u64 * 64 + 1) as u8;
    (0..BLOCK_SIZE).map(byte).collect()
}

fn manifest() -> Manifest {
    let json = |text: &str| serde_json::from_str(text).unwrap();
    let stack = |layers: &[usize]| StackRef {
        blocks: BLOCKS,
        layers: layers
            .iter()
            .map(|&n| LayerRef {
                name: LAYERS[n].name.parse().unwrap(),
                path: Path::new("/snapshots").join(LAYERS[n].file),
            })
            .collect(),
    };
    Manifest {
        info: Info {
            created_ms: 1_796_000_000_123,
            version: "0.1.0".into(),
            parent: Some("ab".repeat(32).parse().unwrap()),
            cpu: json(r#"{"vendor":"GenuineIntel","features":[1,2]}"#),
            machine: json(r#"{"machine-config":{"vcpu_count":1}}"#),
        },
        memory: stack(&[0, 1]),
        disks: vec![DiskRef {
            drive_id: "rootfs".into(),
            stack: stack(&[2]),
        }],
        state: (0..100).collect(),
    }
}

#[test]
fn the_manifest_says_what_it_said() {
    let (found, id) = Manifest::read(&golden("snapshot")).unwrap();
    let wanted = manifest();
    assert_eq!(id.to_string(), ID);
    assert_eq!(found.info.created_ms, wanted.info.created_ms);
    assert_eq!(found.info.version, wanted.info.version);
    assert_eq!(found.info.parent, wanted.info.parent);
    assert_eq!(found.info.cpu.get(), wanted.info.cpu.get());
    assert_eq!(found.info.machine.get(), wanted.info.machine.get());
    assert_eq!(found.memory, wanted.memory);
    assert_eq!(found.disks, wanted.disks);
    assert_eq!(found.state, wanted.state);
}

#[test]
fn the_layers_hold_what_they_held() {
    let places = Places::beside(&golden("snapshot"));
    let manifest = manifest();
    let memory = places.open(Kind::Memory, &manifest.memory).unwrap();
    let disk = places.open(Kind::Disk, &manifest.disks[0].stack).unwrap();
    let layers = memory.layers().iter().chain(disk.layers()).enumerate();
    for (n, layer) in layers {
        let known = &LAYERS[n];
        assert_eq!(layer.path(), golden(known.file));
        assert_eq!((layer.kind(), layer.blocks()), (known.kind, BLOCKS));
        assert_eq!(layer.name().to_string(), known.name);
        assert_eq!(*layer.held(), blocks(known.held));
        assert_eq!(*layer.zero(), blocks(known.zero));
        layer.verify(&mut |_| {}).unwrap();
        for extent in &layer.data() {
            for block in extent.range() {
                let mut found = vec![0; BLOCK_SIZE as usize];
                let at = block * BLOCK_SIZE;
                layer.file().read_exact_at(&mut found, at).unwrap();
                assert_eq!(found, bytes(n, block));
            }
        }
    }
}

#[test]
fn the_same_is_written_again_byte_by_byte() {
    let dir = tempfile::tempdir().unwrap();
    assert!(manifest().encode().0 == fs::read(golden("snapshot")).unwrap());
    for (n, known) in LAYERS.iter().enumerate() {
        let path = dir.path().join(known.file);
        write_layer(n, known, &path);
        let (written, wanted) = (fs::read(&path), fs::read(golden(known.file)));
        assert!(written.unwrap() == wanted.unwrap(), "{}", known.file);
    }
}

fn write_layer(n: usize, known: &Known, path: &Path) {
    let mut options = File::options();
    let file = options.read(true).write(true).create_new(true).open(path);
    let file = file.unwrap();
    let data = known
        .held
        .iter()
        .filter(|block| !known.zero.contains(block));
    for &block in data {
        file.write_all_at(&bytes(n, block), block * BLOCK_SIZE)
            .unwrap();
    }
    let content = Content {
        kind: known.kind,
        blocks: BLOCKS,
        held: blocks(known.held),
        zero: blocks(known.zero),
    };
    let name: LayerName = known.name.parse().unwrap();
    match name.is_by_content() {
        true => content.seal(file, path, crate::Naming::Content),
        false => content.finish(name, BLOCKS * BLOCK_SIZE, file, path),
    }
    .unwrap();
}

#[cfg(feature = "pack")]
#[test]
fn the_pack_contains_what_it_contained() {
    use crate::pack::{Packer, Source, unpack};
    let dir = tempfile::tempdir().unwrap();
    let store = crate::Store::open(&dir.path().join("store")).unwrap();
    let path = golden("pack");
    let file = File::open(&path).unwrap();
    let done = unpack(file, &path, &store, &mut |_| {}).unwrap();
    assert_eq!(done.written.len(), 3);
    let opened = store.open_snapshot(&done.snapshots[0]).unwrap();
    assert_eq!(opened.manifest.state, manifest().state);

    let mut packer = Packer::default();
    packer
        .add(Source::file(&golden("snapshot")).unwrap())
        .unwrap();
    let mut packed = Vec::new();
    packer.write(&mut packed, &path, 3, &mut |_| {}).unwrap();
    // What zstd makes of the same bytes may change.
    let plain = |bytes: &[u8]| zstd::decode_all(bytes).unwrap();
    assert!(plain(&packed) == plain(&fs::read(&path).unwrap()));
}

/// All files of a layer that differ in one bit, with the bit's byte.
fn with_a_bit_flipped(bytes: &[u8]) -> impl Iterator<Item = (usize, Vec<u8>)> + '_ {
    (0..bytes.len() * 8).map(|bit| {
        let mut flipped = bytes.to_vec();
        flipped[bit / 8] ^= 1 << (bit % 8);
        (bit / 8, flipped)
    })
}

fn open(dir: &Path, bytes: &[u8]) -> Result<Layer, LayerError> {
    let path = dir.join("layer");
    fs::write(&path, bytes).unwrap();
    Layer::open(&path)
}

#[test]
fn no_bit_of_a_layers_end_can_change() {
    let dir = tempfile::tempdir().unwrap();
    for Known { file, .. } in LAYERS {
        let whole = fs::read(golden(file)).unwrap();
        let end = (BLOCKS * BLOCK_SIZE) as usize;
        let flipped = with_a_bit_flipped(&whole[end..]);
        for (at, flipped) in flipped {
            let changed = [&whole[..end], &flipped].concat();
            let error = open(dir.path(), &changed).unwrap_err();
            let text = error.to_string();
            assert!(
                text.contains("/layer") && text.contains("copy it again"),
                "{at}: {text}"
            );
        }
    }
}

#[test]
fn no_byte_of_a_layers_blocks_can_change_without_being_found() {
    let dir = tempfile::tempdir().unwrap();
    let whole = fs::read(golden("base")).unwrap();
    for at in (BLOCK_SIZE as usize..3 * BLOCK_SIZE as usize).step_by(97) {
        let mut changed = whole.clone();
        changed[at] ^= 1;
        let error = open(dir.path(), &changed).unwrap().verify(&mut |_| {});
        let text = error.unwrap_err().to_string();
        assert!(text.contains("does not match its name"), "{text}");
    }
}

#[test]
fn no_beginning_of_a_layer_passes_for_one() {
    let dir = tempfile::tempdir().unwrap();
    for Known { file, .. } in LAYERS {
        let whole = fs::read(golden(file)).unwrap();
        let path = dir.path().join("layer");
        let target = File::create(&path).unwrap();
        target.write_all_at(&whole, 0).unwrap();
        for len in (0..whole.len()).rev() {
            target.set_len(len as u64).unwrap();
            Layer::open(&path).unwrap_err();
        }
        let longer = [&whole[..], &[0]].concat();
        open(dir.path(), &longer).unwrap_err();
    }
}

/// A footer whose checksum is right may still say anything.
#[test]
fn nothing_in_a_layers_end_is_believed() {
    let dir = tempfile::tempdir().unwrap();
    let whole = fs::read(golden("top")).unwrap();
    let end = (BLOCKS * BLOCK_SIZE) as usize;
    let footer = whole.len() - 128;
    for at in end..whole.len() - 4 {
        for value in [0, 0x7f, 0xff, whole[at] ^ 1] {
            let mut changed = whole.clone();
            changed[at] = value;
            let index = crc32fast::hash(&changed[end..footer]);
            if at < footer {
                changed[footer + 80..footer + 84].copy_from_slice(&index.to_le_bytes());
            }
            let crc = crc32fast::hash(&changed[footer..footer + 124]);
            changed[footer + 124..].copy_from_slice(&crc.to_le_bytes());
            // Only its name may be another one then, and what it holds.
            if let Ok(layer) = open(dir.path(), &changed) {
                assert!(
                    layer
                        .held()
                        .iter()
                        .all(|extent| extent.end() <= layer.blocks())
                );
                assert_eq!(layer.blocks(), BLOCKS);
            }
        }
    }
    let mut future = whole;
    future[footer + 8] = 2;
    let crc = crc32fast::hash(&future[footer..footer + 124]);
    future[footer + 124..].copy_from_slice(&crc.to_le_bytes());
    let error = open(dir.path(), &future).unwrap_err();
    assert!(
        matches!(error, LayerError::Version { version: 2, .. }),
        "{error}"
    );
}
