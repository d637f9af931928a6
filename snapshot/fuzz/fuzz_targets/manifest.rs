//! A manifest is anything; its length and checksum are right if the first bit
//! says so, since no fuzzer guesses them.
#![no_main]

use std::path::Path;

use coppice_snapshot::Manifest;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| {
    let Some((first, bytes)) = input.split_first() else {
        return;
    };
    let mut bytes = bytes.to_vec();
    if first & 1 == 1 && bytes.len() >= 64 {
        let len = bytes.len() as u64;
        bytes[16..24].copy_from_slice(&len.to_le_bytes());
        bytes[24..56].fill(0);
        let checksum = blake3::hash(&bytes);
        bytes[24..56].copy_from_slice(checksum.as_bytes());
    }
    let path = Path::new("manifest");
    let Ok((manifest, _)) = Manifest::decode(&bytes, path) else {
        return;
    };
    // What was understood is written in a way that is understood as the same.
    let (again, id) = manifest.encode();
    let (decoded, found) = Manifest::decode(&again, path).expect("ours");
    assert_eq!(id, found);
    assert_eq!(decoded.memory, manifest.memory);
    assert_eq!(decoded.disks, manifest.disks);
    assert_eq!(decoded.state, manifest.state);
    assert_eq!(decoded.encode().0, again);
});
