//! Snapshots for tests.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use serde_json::value::RawValue;

use crate::{
    BLOCK_SIZE, Content, DiskRef, Extents, Info, Kind, Layer, LayerRef, Manifest, Naming, Places,
    StackRef,
};

/// Writes a layer of `blocks` blocks, which holds those of `held`, each full of
/// its byte. A block of zeroes is a hole.
pub fn layer(path: &Path, kind: Kind, blocks: u64, held: &[(u64, u8)], naming: Naming) -> Layer {
    let file = File::options()
        .read(true)
        .write(true)
        .create_new(true)
        .open(path)
        .unwrap();
    let (mut all, mut zero) = (Extents::new(), Extents::new());
    for &(block, byte) in held {
        all.push(block, 1);
        match byte {
            0 => zero.push(block, 1),
            byte => file
                .write_all_at(&[byte; BLOCK_SIZE as usize], block * BLOCK_SIZE)
                .unwrap(),
        }
    }
    let content = Content {
        kind,
        blocks,
        held: all,
        zero,
    };
    content.seal(file, path, naming).unwrap()
}

/// A name for a layer that is found at its path.
pub fn reference(layer: &Layer) -> LayerRef {
    LayerRef {
        name: layer.name(),
        path: layer.path().to_owned(),
    }
}

/// A snapshot of a machine with 16 blocks of memory and a disk of 8.
pub fn manifest(memory: Vec<LayerRef>, disk: Vec<LayerRef>) -> Manifest {
    let json = |text: &str| RawValue::from_string(text.to_owned()).unwrap();
    Manifest {
        info: Info {
            created_ms: 1_800_000_000_000,
            version: "0.1.0".into(),
            parent: None,
            cpu: json("{}"),
            machine: json("{}"),
        },
        memory: StackRef {
            blocks: 16,
            layers: memory,
        },
        disks: vec![DiskRef {
            drive_id: "root".into(),
            stack: StackRef {
                blocks: 8,
                layers: disk,
            },
        }],
        state: vec![1, 2, 3],
    }
}

/// The files of a snapshot in a directory: a base and a top of a memory, of which
/// the top has a unique id, and one layer of a disk. `byte` is in some of them.
pub fn snapshot(dir: &Path, byte: u8) -> (PathBuf, Manifest, Places) {
    fs::create_dir_all(dir).unwrap();
    let base: Vec<(u64, u8)> = (0..12).map(|block| (block, 100)).collect();
    let base = layer(&dir.join("base"), Kind::Memory, 16, &base, Naming::Content);
    let top = [(1, byte), (2, 0), (15, byte)];
    let top = layer(&dir.join("memory"), Kind::Memory, 16, &top, Naming::Unique);
    let disk = layer(
        &dir.join("disk"),
        Kind::Disk,
        8,
        &[(3, byte)],
        Naming::Content,
    );
    let manifest = manifest(
        vec![reference(&top), reference(&base)],
        vec![reference(&disk)],
    );
    let path = dir.join("snapshot");
    manifest.write(&path).unwrap();
    let places = Places::beside(&path);
    (path, manifest, places)
}
