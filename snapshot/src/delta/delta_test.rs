use super::layout::MAX_BLOCKS;
use super::*;
use crate::layer::{Kind, Naming};

const BLOCKS: u64 = 100;

fn filled(delta: &mut Delta, block: u64, byte: u8) {
    delta
        .file()
        .write_all_at(&[byte; 4096], block * 4096)
        .unwrap();
    delta.hold(block, 1).unwrap();
}

fn held(delta: &Delta) -> Vec<u64> {
    (0..delta.blocks())
        .filter(|&block| delta.run(block, block + 1).0)
        .collect()
}

/// The header of the delta at `path`, with the boot id of another start.
fn reboot(path: &Path) {
    let file = File::options().read(true).write(true).open(path).unwrap();
    let header = Header {
        blocks: BLOCKS,
        boot: BootId::NONE,
    };
    file.write_all_at(&header.encode(), BLOCKS * 4096).unwrap();
}

#[test]
fn a_killed_machine_loses_nothing_and_a_power_cut_what_was_not_flushed() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("delta");
    let mut delta = Delta::create(&path, BLOCKS).unwrap();
    filled(&mut delta, 3, 1);
    filled(&mut delta, 64, 2);
    delta.flush().unwrap();
    filled(&mut delta, 65, 3);
    drop(delta);
    let delta = Delta::open(&path, BLOCKS).unwrap();
    assert_eq!(held(&delta), [3, 64, 65]);
    assert_eq!(delta.run(64, 100), (true, 66));
    assert_eq!(delta.run(4, 100), (false, 64));
    assert_eq!(delta.run(70, 90), (false, 90));
    drop(delta);
    reboot(&path);
    let delta = Delta::open(&path, BLOCKS).unwrap();
    assert_eq!(held(&delta), [3, 64]);
    drop(delta);
    // The answer stays the same, and the next start of the host is like it.
    assert_eq!(held(&Delta::open(&path, BLOCKS).unwrap()), [3, 64]);
}

#[test]
fn a_flush_after_a_killed_machine_commits_what_it_wrote() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("delta");
    filled(&mut Delta::create(&path, BLOCKS).unwrap(), 9, 1);
    Delta::open(&path, BLOCKS).unwrap().flush().unwrap();
    reboot(&path);
    assert_eq!(held(&Delta::open(&path, BLOCKS).unwrap()), [9]);
}

#[test]
fn one_opener_at_a_time_and_no_file_replaced() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("delta");
    let delta = Delta::create(&path, BLOCKS).unwrap();
    let text = Delta::open(&path, BLOCKS).unwrap_err().to_string();
    assert!(text.contains("in use by another process"), "{text}");
    let frozen = delta.freeze();
    assert!(matches!(
        Delta::open_or_create(&path, BLOCKS),
        Err(DeltaError::InUse { .. })
    ));
    drop(frozen);
    assert!(matches!(
        Delta::create(&path, BLOCKS),
        Err(DeltaError::Exists { .. })
    ));
    assert!(Delta::open_or_create(&path, BLOCKS).is_ok());
    let names = fs::read_dir(dir.path()).unwrap().count();
    assert_eq!(names, 1, "drafts are removed");
}

#[test]
fn a_sealed_delta_is_a_layer_of_what_it_held() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("delta");
    for naming in [Naming::Content, Naming::Unique] {
        let mut delta = Delta::create(&path, BLOCKS).unwrap();
        filled(&mut delta, 1, 1);
        filled(&mut delta, 2, 0);
        filled(&mut delta, 3, 3);
        delta.hold(50, 2).unwrap();
        // A write that was cut short: it is not held.
        delta.file().write_all_at(&[7; 4096], 80 * 4096).unwrap();
        let frozen = delta.freeze();
        let layer = frozen.seal(naming).unwrap();
        let again = frozen.seal(Naming::Content).unwrap();
        assert_eq!(again.name(), layer.name(), "it is sealed once");
        drop((frozen, again));

        let layer = Layer::open_named(&path, &layer.name()).unwrap();
        layer.verify(&mut |_| {}).unwrap();
        assert_eq!((layer.kind(), layer.blocks()), (Kind::Disk, BLOCKS));
        assert_eq!(layer.held().blocks(), 5);
        // Zeroes that were written are looked for only if all is read anyhow.
        let zero = if naming == Naming::Content { 3 } else { 2 };
        assert_eq!(layer.zero().blocks(), zero);
        let mut stray = [1; 4096];
        layer.file().read_exact_at(&mut stray, 80 * 4096).unwrap();
        assert_eq!(stray, [0; 4096], "blocks that are not held are holes");

        let text = Delta::open(&path, BLOCKS).unwrap_err().to_string();
        assert!(text.contains("is a layer"), "{text}");
        fs::remove_file(&path).unwrap();
    }
}

#[test]
fn a_seal_that_was_cut_off_leaves_the_delta() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("delta");
    let mut delta = Delta::create(&path, BLOCKS).unwrap();
    filled(&mut delta, 1, 1);
    filled(&mut delta, 9, 1);
    let frozen = delta.freeze();
    let whole = frozen.path().metadata().unwrap().len();
    let sealed = frozen.seal(Naming::Content).unwrap();
    let len = sealed.path().metadata().unwrap().len();
    drop((frozen, sealed));
    let layer = fs::read(&path).unwrap();
    for cut in (whole..len).chain([len]) {
        // The host may also have written the footer without what is before it.
        let copy = dir.path().join("copy");
        fs::write(&copy, &layer[..cut as usize]).unwrap();
        if cut == len {
            let file = File::options().write(true).open(&copy).unwrap();
            file.write_all_at(&[0; 16], whole).unwrap();
        }
        let delta = Delta::open(&copy, BLOCKS).unwrap();
        assert_eq!(held(&delta), [1, 9], "{cut}");
        assert_eq!(copy.metadata().unwrap().len(), whole);
    }
}

#[test]
fn what_is_no_delta_of_the_disk_is_refused_and_not_touched() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("delta");
    let mut delta = Delta::create(&path, BLOCKS).unwrap();
    filled(&mut delta, 1, 1);
    delta.flush().unwrap();
    drop(delta);
    let good = fs::read(&path).unwrap();
    let header = BLOCKS as usize * 4096;
    let refused = |content: &[u8], blocks: u64, words: &str| {
        fs::write(&path, content).unwrap();
        let text = Delta::open(&path, blocks).unwrap_err().to_string();
        assert!(text.contains(words), "{text}");
        assert!(text.contains(path.to_str().unwrap()), "{text}");
        assert_eq!(fs::read(&path).unwrap(), content, "{words}");
    };
    let changed = |at: usize, bytes: &[u8], checked: bool| {
        let mut bad = good.clone();
        bad[at..at + bytes.len()].copy_from_slice(bytes);
        if checked {
            let crc = crc32fast::hash(&bad[header..header + HEADER - 4]);
            bad[header + HEADER - 4..header + HEADER].copy_from_slice(&crc.to_le_bytes());
        }
        bad
    };
    refused(&good, BLOCKS - 1, "belongs to a disk of 100 blocks");
    refused(&good, BLOCKS + 64, "belongs to a disk of 100 blocks");
    for len in [1, 4096, header, header + 64, header + 4096, good.len() - 1] {
        refused(&good[..len], BLOCKS, "it is truncated");
    }
    refused(&changed(header, b"X", false), BLOCKS, "is no delta");
    refused(&changed(header + 9, &[1], true), BLOCKS, "version 257");
    refused(&changed(header + 12, &[1], true), BLOCKS, "4096 bytes");
    refused(&changed(header + 16, &[99], true), BLOCKS, "is no delta");
    refused(&changed(header + 20, &[1], false), BLOCKS, "checksum");
    let last_word = header + 4096 + 8;
    refused(
        &changed(last_word + 7, &[0x80], false),
        BLOCKS,
        "behind the disk",
    );
    let committed = header + 2 * 4096;
    refused(&changed(committed + 1, &[4], false), BLOCKS, "contradict");
    // No header, but something was committed: not one that a power cut left.
    refused(&changed(header, &[0; 64], false), BLOCKS, "is no delta");
    assert!(Delta::open(dir.path(), BLOCKS).is_err());
    assert!(matches!(
        Delta::create(&dir.path().join("x"), u64::MAX),
        Err(DeltaError::TooLarge(_))
    ));
}

#[test]
fn what_a_power_cut_leaves_of_a_delta_never_flushed_is_an_empty_one() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("delta");
    fs::write(&path, "").unwrap();
    assert_eq!(held(&Delta::open(&path, BLOCKS).unwrap()), [0; 0]);
    let file = File::options().write(true).open(&path).unwrap();
    file.write_all_at(&[0; HEADER], BLOCKS * 4096).unwrap();
    file.write_all_at(&[0xff; 8], BLOCKS * 4096 + 4096).unwrap();
    assert_eq!(held(&Delta::open(&path, BLOCKS).unwrap()), [0; 0]);
}

#[test]
fn each_length_belongs_to_one_layout() {
    for blocks in [0, 1, 63, 64, 100, 32_768, 32_769, 1 << 20, MAX_BLOCKS] {
        let layout = Layout::of(blocks).unwrap();
        assert_eq!(Layout::of_len(layout.end()), Some(layout));
        assert_eq!(Layout::of_len(layout.end() + 1), None);
    }
    assert_eq!(Layout::of(MAX_BLOCKS + 1), None);
    assert_eq!(Layout::of_len(u64::MAX), None);
}
