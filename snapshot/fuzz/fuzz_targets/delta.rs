//! The end of a disk's delta behind a data area that is a hole: a header whose
//! checksum is right, since no fuzzer guesses it, and both indexes.
#![no_main]

use std::fs::File;
use std::os::unix::fs::FileExt;

use coppice_snapshot::{BLOCK_SIZE, Delta};
use libfuzzer_sys::fuzz_target;

/// Blocks of the disk, one more than fill a word of an index.
const BLOCKS: u64 = 65;

fuzz_target!(|input: &[u8]| {
    let mut end = input.to_vec();
    if end.len() >= 64 {
        let crc = crc32fast::hash(&end[..60]);
        end[60..64].copy_from_slice(&crc.to_le_bytes());
    }
    let dir = tempfile::tempdir_in("/dev/shm").expect("a directory");
    let path = dir.path().join("delta");
    let file = File::create(&path).expect("a file");
    file.set_len((BLOCKS + 3) * BLOCK_SIZE).expect("its length");
    let len = end.len().min(3 * BLOCK_SIZE as usize);
    file.write_all_at(&end[..len], BLOCKS * BLOCK_SIZE).expect("written");
    drop(file);
    let Ok(mut delta) = Delta::open(&path, BLOCKS) else {
        return;
    };
    // Runs follow one another and end with the disk.
    let mut at = 0;
    while at < BLOCKS {
        let (_, run_end) = delta.run(at, BLOCKS);
        assert!(at < run_end && run_end <= BLOCKS);
        at = run_end;
    }
    delta.flush().expect("flushed");
    drop(delta);
    Delta::open(&path, BLOCKS).expect("what was opened can be opened again");
});
