//! The end of a layer's file, behind a data area that is a hole: index and
//! footer are anything, with checksums that are right, since no fuzzer guesses
//! them. The first byte is the number of blocks in the data area.
#![no_main]

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

use coppice_snapshot::{BLOCK_SIZE, Layer};
use libfuzzer_sys::fuzz_target;
use nix::sys::memfd::{MFdFlags, memfd_create};

const FOOTER: usize = 128;

fuzz_target!(|input: &[u8]| {
    let Some((blocks, end)) = input.split_first() else {
        return;
    };
    let mut end = end.to_vec();
    if let Some(index) = end.len().checked_sub(FOOTER) {
        let crc = crc32fast::hash(&end[..index]);
        end[index + 80..index + 84].copy_from_slice(&crc.to_le_bytes());
        let crc = crc32fast::hash(&end[index..index + FOOTER - 4]);
        end[index + FOOTER - 4..].copy_from_slice(&crc.to_le_bytes());
    }
    let file = File::from(memfd_create(c"layer", MFdFlags::empty()).expect("a file"));
    let data = u64::from(*blocks) * BLOCK_SIZE;
    file.write_all_at(&end, data).expect("written");
    let Ok(layer) = Layer::from_file(file, Path::new("layer")) else {
        return;
    };
    assert!(layer.held().covers(layer.zero()));
    assert!(layer.held().iter().all(|extent| extent.end() <= layer.blocks()));
    assert_eq!(layer.data().blocks() * BLOCK_SIZE, layer.data_len());
    let _ = layer.verify(&mut |_| {});
});
