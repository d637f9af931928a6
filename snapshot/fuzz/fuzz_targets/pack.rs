//! The stream inside a pack is anything. What it brings into the store is whole.
#![no_main]

use std::path::Path;

use coppice_snapshot::Store;
use coppice_snapshot::pack::unpack;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| {
    let dir = tempfile::tempdir_in("/dev/shm").expect("a directory");
    let store = Store::open(dir.path()).expect("a store");
    let packed = zstd::encode_all(input, 1).expect("encoded");
    let Ok(done) = unpack(&*packed, Path::new("pack"), &store, &mut |_| {}) else {
        assert!(store.ids().expect("read").is_empty());
        return;
    };
    for id in &done.snapshots {
        // Stacks may still not fit; layers may not be other than their names.
        let _ = store.open_snapshot(id);
    }
    let layers: Vec<_> = store.layers().expect("read").into_keys().collect();
    assert!(store.verify(&layers, &mut |_| {}).expect("verified").is_empty());
});
