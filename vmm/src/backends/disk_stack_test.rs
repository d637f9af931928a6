use std::os::unix::fs::FileExt as _;

use coppice_snapshot::{Content, Extents};
use tempfile::TempDir;

use super::*;

const BLOCK: usize = BLOCK_SIZE as usize;

/// A layer of a disk of `blocks`, in which `block` is filled with `byte`; a zero
/// makes it a held hole.
fn layer(path: &Path, blocks: u64, content: &[(u64, u8)]) -> Arc<Layer> {
    let file = File::options()
        .read(true)
        .write(true)
        .create_new(true)
        .open(path)
        .unwrap();
    let (mut held, mut zero) = (Extents::new(), Extents::new());
    for &(block, byte) in content {
        held.push(block, 1);
        match byte {
            0 => zero.push(block, 1),
            byte => file
                .write_all_at(&[byte; BLOCK], block * BLOCK_SIZE)
                .unwrap(),
        }
    }
    let content = Content {
        kind: Kind::Disk,
        blocks,
        held,
        zero,
    };
    Arc::new(content.seal(file, path, Naming::Unique).unwrap())
}

fn write(disk: &mut DiskStack, offset: u64, data: &[u8]) -> io::Result<()> {
    // In odd pieces, as a guest's buffers may lie.
    let mut data = data.to_vec();
    let pieces: Vec<_> = data.chunks_mut(1000).map(VolatileSlice::from).collect();
    disk.write_vectored_at(&pieces, offset)
}

fn read(disk: &mut DiskStack, offset: u64, len: u64) -> Vec<u8> {
    let mut data = vec![0xee; len as usize];
    let pieces: Vec<_> = data.chunks_mut(777).map(VolatileSlice::from).collect();
    disk.read_vectored_at(&pieces, offset).unwrap();
    data
}

fn read_all(disk: &mut DiskStack) -> Vec<u8> {
    let len = disk.len();
    read(disk, 0, len)
}

/// What a power cut does to the live index: it is whatever reached the disk, and
/// the host has started anew.
fn cut_power(delta: &Path, blocks: u64) {
    let file = File::options().read(true).write(true).open(delta).unwrap();
    let at = blocks * BLOCK_SIZE;
    let mut header = [0; 64];
    file.read_exact_at(&mut header, at).unwrap();
    header[24..40].fill(0x55);
    let crc = crc32fast::hash(&header[..60]);
    header[60..].copy_from_slice(&crc.to_le_bytes());
    file.write_all_at(&header, at).unwrap();
    let all = vec![0xff; blocks as usize / 8];
    file.write_all_at(&all, at + BLOCK_SIZE).unwrap();
}

struct Random(u64);

impl Random {
    fn next(&mut self, below: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % below
    }
}

/// A disk, and the plain bytes that it has to be.
struct Pair {
    dir: TempDir,
    blocks: u64,
    layers: Vec<PathBuf>,
    delta: PathBuf,
    deltas: u64,
    disk: Option<DiskStack>,
    model: Vec<u8>,
    /// What a power cut would leave of blocks that the delta holds for sure.
    flushed: Vec<u8>,
    /// Blocks that may have been changed since.
    unflushed: Vec<bool>,
    /// Of these, those that the delta held when it was flushed.
    overwritten: Vec<bool>,
}

impl Pair {
    fn new(seed: u64) -> Self {
        // Flushes are quick on a tmpfs, of which every Linux system has one there;
        // zeroes and holes differ between file systems.
        let parent = match seed % 5 {
            0 => std::env::temp_dir(),
            _ => "/dev/shm".into(),
        };
        let dir = tempfile::tempdir_in(parent).unwrap();
        let mut random = Random(seed * 2_654_435_761 + 1);
        let blocks = 64 + random.next(3) * 64;
        let mut model = vec![0; blocks as usize * BLOCK];
        let mut layers = Vec::new();
        for depth in 0..1 + random.next(4) {
            let mut content = Vec::new();
            for block in 0..blocks {
                if random.next(3) == 0 {
                    let byte = random.next(4) as u8 * (depth as u8 + 1);
                    content.push((block, byte));
                    let at = block as usize * BLOCK;
                    model[at..at + BLOCK].fill(byte);
                }
            }
            let path = dir.path().join(format!("layer{depth}"));
            layer(&path, blocks, &content);
            layers.insert(0, path);
        }
        let delta = dir.path().join("delta0");
        let mut pair = Self {
            dir,
            blocks,
            layers,
            delta,
            deltas: 0,
            disk: None,
            flushed: model.clone(),
            model,
            unflushed: vec![false; blocks as usize],
            overwritten: vec![false; blocks as usize],
        };
        pair.reopen();
        pair
    }

    fn reopen(&mut self) {
        drop(self.disk.take());
        self.disk = Some(DiskStack::open(&self.layers, Some(&self.delta)).unwrap());
    }

    fn disk(&mut self) -> &mut DiskStack {
        self.disk.as_mut().unwrap()
    }

    /// Notes that `offset..offset + len` is about to change.
    fn changing(&mut self, offset: usize, len: usize) {
        for block in offset / BLOCK..(offset + len).div_ceil(BLOCK) {
            let delta = self.disk.as_ref().unwrap().delta().unwrap();
            if delta.run(block as u64, block as u64 + 1).0 && !self.unflushed[block] {
                self.overwritten[block] = true;
            }
            self.unflushed[block] = true;
        }
    }

    fn step(&mut self, random: &mut Random) {
        let sectors = self.blocks * 8;
        let first = random.next(sectors);
        let most = if random.next(4) == 0 { 200 } else { 20 };
        let count = 1 + random.next(most.min(sectors - first));
        let (mut offset, mut len) = (first * 512, count * 512);
        if random.next(3) == 0 {
            // Whole blocks, as guests mostly write.
            offset = offset / BLOCK_SIZE * BLOCK_SIZE;
            len = len
                .next_multiple_of(BLOCK_SIZE)
                .min(self.disk().len() - offset);
        }
        let range = offset as usize..(offset + len) as usize;
        match random.next(20) {
            0..8 => {
                let byte = 100 + random.next(100) as u8;
                let data: Vec<u8> = (0..len)
                    .map(|at| byte.wrapping_add((at / 512) as u8))
                    .collect();
                self.changing(range.start, range.len());
                write(self.disk(), offset, &data).unwrap();
                self.model[range].copy_from_slice(&data);
            }
            8..12 => assert_eq!(read(self.disk(), offset, len), self.model[range]),
            12..14 => {
                let (first, last) = whole_blocks(offset, len);
                self.changing(range.start, range.len());
                self.disk().discard(offset, len).unwrap();
                if first < last {
                    self.model[first as usize * BLOCK..last as usize * BLOCK].fill(0);
                }
            }
            14..16 => {
                self.changing(range.start, range.len());
                self.disk()
                    .write_zeroes(offset, len, first.is_multiple_of(2))
                    .unwrap();
                self.model[range].fill(0);
            }
            16 => {
                self.disk().flush().unwrap();
                self.flushed.clone_from(&self.model);
                self.unflushed.fill(false);
                self.overwritten.fill(false);
            }
            17 => self.reopen(),
            18 => self.freeze(random),
            _ => self.power_cut(),
        }
    }

    /// The delta becomes a layer, while the disk is in use.
    fn freeze(&mut self, random: &mut Random) {
        self.deltas += 1;
        let next = self.dir.path().join(format!("delta{}", self.deltas));
        let delta = Delta::create(&next, self.blocks).unwrap();
        let FrozenDisk::Stack(levels) = self.disk().freeze(Some(delta)).unwrap() else {
            panic!("it is a stack");
        };
        self.layers
            .insert(0, std::mem::replace(&mut self.delta, next));
        let naming = match random.next(2) {
            0 => Naming::Unique,
            _ => Naming::Content,
        };
        assert_eq!(read_all(self.disk()), self.model, "not sealed yet");
        let sealed: Vec<_> = levels
            .iter()
            .map(|level| level.seal(naming).unwrap())
            .collect();
        let paths: Vec<_> = sealed.iter().map(|layer| layer.path().to_owned()).collect();
        assert_eq!(paths, self.layers);
        sealed[0].verify(&mut |_| {}).unwrap();
        assert_eq!(read_all(self.disk()), self.model, "sealed");
        self.disk().flush().unwrap();
        self.flushed.clone_from(&self.model);
        self.unflushed.fill(false);
        self.overwritten.fill(false);
    }

    /// Flushed content is there, and what was not flushed is old or new, unless
    /// the delta did not hold it: then it is old.
    fn power_cut(&mut self) {
        drop(self.disk.take());
        cut_power(&self.delta, self.blocks);
        self.reopen();
        let found = read_all(self.disk());
        for (block, bytes) in found.chunks(BLOCK).enumerate() {
            let old = &self.flushed[block * BLOCK..][..BLOCK];
            let new = &self.model[block * BLOCK..][..BLOCK];
            if self.overwritten[block] {
                assert_eq!(
                    bytes, new,
                    "block {block}: its page was not lost in this test"
                );
            } else {
                assert_eq!(bytes, old, "block {block}");
            }
        }
        self.flushed.clone_from(&found);
        self.model = found;
        self.unflushed.fill(false);
        self.overwritten.fill(false);
    }
}

#[test]
fn a_disk_is_what_a_plain_array_is_whatever_happens_to_it() {
    for seed in 1..=25 {
        let mut pair = Pair::new(seed);
        assert_eq!(read_all(pair.disk()), pair.model, "seed {seed}");
        let mut random = Random(seed * 7_919);
        for _ in 0..150 {
            pair.step(&mut random);
        }
        assert_eq!(read_all(pair.disk()), pair.model, "seed {seed}");
    }
}

#[test]
fn a_chain_of_fifty_layers_is_read_as_one() {
    let dir = tempfile::tempdir().unwrap();
    let mut model = [0; 100];
    let mut layers = Vec::new();
    for depth in 0..50 {
        let blocks = [depth, depth + 1, depth + 50];
        let content = blocks.map(|block| (block, depth as u8 + 1));
        for block in blocks {
            model[block as usize] = depth as u8 + 1;
        }
        let path = dir.path().join(depth.to_string());
        layer(&path, 100, &content);
        layers.insert(0, path);
    }
    let mut disk = DiskStack::open(&layers, Some(&dir.path().join("delta"))).unwrap();
    let found = read_all(&mut disk);
    for (block, bytes) in found.chunks(BLOCK).enumerate() {
        assert_eq!(bytes, [model[block]; BLOCK], "block {block}");
    }
}

#[test]
fn two_forks_write_the_same_blocks_and_neither_sees_the_other() {
    let dir = tempfile::tempdir().unwrap();
    let base = dir.path().join("base");
    layer(&base, 20, &[(1, 1), (2, 2), (3, 3)]);
    let before = std::fs::read(&base).unwrap();
    let layers = [base.clone()];
    let fork = |name: &str| DiskStack::open(&layers, Some(&dir.path().join(name))).unwrap();
    let (mut one, mut other) = (fork("one"), fork("other"));
    write(&mut one, 4096, &[0x11; 5000]).unwrap();
    write(&mut other, 4096 + 512, &[0x22; 5120]).unwrap();
    one.discard(3 * BLOCK_SIZE, BLOCK_SIZE).unwrap();
    one.flush().unwrap();
    let expect = |disk: &mut DiskStack, parts: &[(u64, usize, u8)]| {
        for &(offset, len, byte) in parts {
            assert_eq!(read(disk, offset, len as u64), vec![byte; len], "{offset}");
        }
    };
    expect(
        &mut one,
        &[(4096, 5000, 0x11), (9096, 3192, 2), (12288, 4096, 0)],
    );
    expect(
        &mut other,
        &[
            (4096, 512, 1),
            (4608, 5120, 0x22),
            (9728, 2560, 2),
            (12288, 4096, 3),
        ],
    );
    assert_eq!(std::fs::read(&base).unwrap(), before);
    let text = DiskStack::open(&layers, Some(&dir.path().join("one")))
        .unwrap_err()
        .to_string();
    assert!(text.contains("in use by another process"), "{text}");
}

#[test]
fn a_layer_that_was_truncated_gives_errors_and_the_rest_works_on() {
    let dir = tempfile::tempdir().unwrap();
    let base = dir.path().join("base");
    layer(&base, 20, &[(1, 1), (10, 2)]);
    let mut disk =
        DiskStack::open(std::slice::from_ref(&base), Some(&dir.path().join("d"))).unwrap();
    std::fs::set_permissions(&base, std::os::unix::fs::PermissionsExt::from_mode(0o644)).unwrap();
    let file = File::options().write(true).open(&base).unwrap();
    file.set_len(5 * BLOCK_SIZE).unwrap();
    let mut data = [0; 512];
    let at = 10 * BLOCK_SIZE + 512;
    let refused = disk.read_vectored_at(&[VolatileSlice::from(&mut data[..])], at);
    assert_eq!(refused.unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
    // Nor can a part of the block be written, whose other parts are lost.
    write(&mut disk, at, &[3; 512]).unwrap_err();
    write(&mut disk, 10 * BLOCK_SIZE, &[3; BLOCK]).unwrap();
    assert_eq!(read(&mut disk, at, 512), [3; 512]);
    assert_eq!(read(&mut disk, BLOCK_SIZE, 4096), [1; BLOCK]);
}

#[test]
fn what_is_no_stack_of_a_disk_is_refused_with_its_path() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name);
    layer(&path("small"), 10, &[(1, 1)]);
    layer(&path("large"), 20, &[(1, 1)]);
    std::fs::write(path("text"), "no layer").unwrap();
    let refused = |layers: &[&str], delta: &str, words: &str| {
        let layers: Vec<_> = layers.iter().map(|name| path(name)).collect();
        let text = DiskStack::open(&layers, Some(&path(delta)))
            .unwrap_err()
            .to_string();
        assert!(text.contains(words), "{text}");
    };
    refused(&[], "delta", "at least one layer");
    refused(&["missing"], "delta", "missing could not be opened");
    refused(&["text"], "delta", "text is no layer");
    refused(
        &["small", "large"],
        "delta",
        "large belongs to a disk of 20 blocks",
    );
    refused(&["small"], "large", "large is a layer");
    refused(&["small"], "text", "text is no delta");
    refused(&["small"], "no/delta", "no/delta could not be made");
    drop(Delta::create(&path("delta"), 20).unwrap());
    refused(&["small"], "delta", "belongs to a disk of 20 blocks");
}

#[test]
fn without_a_delta_a_stack_is_only_read() {
    let dir = tempfile::tempdir().unwrap();
    let base = dir.path().join("base");
    layer(&base, 10, &[(1, 1)]);
    let mut disk = DiskStack::open(&[base], None).unwrap();
    let refused = |result: io::Result<()>| {
        assert_eq!(
            result.unwrap_err().kind(),
            io::ErrorKind::ReadOnlyFilesystem
        );
    };
    refused(write(&mut disk, 0, &[1; 512]));
    refused(disk.discard(0, BLOCK_SIZE));
    refused(disk.write_zeroes(0, BLOCK_SIZE, true));
    disk.flush().unwrap();
    let next = Delta::create(&dir.path().join("next"), 10).unwrap();
    assert!(matches!(
        disk.freeze(Some(next)),
        Err(FreezeError::NotWritable)
    ));
    let FrozenDisk::Stack(levels) = disk.freeze(None).unwrap() else {
        panic!("it is a stack");
    };
    assert!(matches!(levels[..], [Level::Layer(_)]));
}

#[test]
fn a_freeze_that_is_refused_changes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let base = dir.path().join("base");
    layer(&base, 10, &[(1, 1)]);
    let mut disk = DiskStack::open(&[base], Some(&dir.path().join("delta"))).unwrap();
    write(&mut disk, 0, &[5; 512]).unwrap();
    assert!(matches!(disk.freeze(None), Err(FreezeError::NoDelta)));
    let wrong = Delta::create(&dir.path().join("wrong"), 11).unwrap();
    let text = disk.freeze(Some(wrong)).unwrap_err().to_string();
    assert!(text.contains("belongs to a disk of 11 blocks"), "{text}");
    assert_eq!(disk.delta().unwrap().path(), dir.path().join("delta"));
    assert_eq!(read(&mut disk, 0, 512), [5; 512]);
}

#[test]
fn discarded_and_zeroed_blocks_give_their_space_back() {
    for parent in [std::env::temp_dir(), "/dev/shm".into()] {
        let dir = tempfile::tempdir_in(parent).unwrap();
        let (base, delta) = (dir.path().join("base"), dir.path().join("delta"));
        layer(&base, 256, &[(1, 1), (200, 2)]);
        let mut disk = DiskStack::open(&[base], Some(&delta)).unwrap();
        let stored = || std::os::unix::fs::MetadataExt::blocks(&delta.metadata().unwrap()) / 8;
        write(&mut disk, 0, &[9; 256 * BLOCK]).unwrap();
        disk.flush().unwrap();
        assert!(stored() >= 256);
        disk.discard(512, 100 * BLOCK_SIZE).unwrap();
        assert!(stored() < 256 - 90);
        disk.write_zeroes(100 * BLOCK_SIZE, 156 * BLOCK_SIZE, true)
            .unwrap();
        disk.flush().unwrap();
        assert!(stored() < 20, "{}", stored());
        assert_eq!(read(&mut disk, 0, 512), [9; 512], "the edge stays");
        assert_eq!(read(&mut disk, BLOCK_SIZE, 4096), [0; BLOCK]);
        assert_eq!(read(&mut disk, 200 * BLOCK_SIZE, 4096), [0; BLOCK]);
    }
}

#[test]
fn a_flush_after_a_freeze_keeps_what_was_written_before() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name);
    layer(&path("base"), 64, &[(1, 1)]);
    let mut disk = DiskStack::open(&[path("base")], Some(&path("d0"))).unwrap();
    write(&mut disk, BLOCK_SIZE, &[5; BLOCK]).unwrap();
    let next = Delta::create(&path("d1"), 64).unwrap();
    disk.freeze(Some(next)).unwrap();
    disk.flush().unwrap();
    drop(disk);
    // The power goes before the frozen delta was sealed.
    cut_power(&path("d0"), 64);
    let mut disk = DiskStack::open(&[path("base")], Some(&path("d0"))).unwrap();
    assert_eq!(read(&mut disk, BLOCK_SIZE, 4096), [5; BLOCK]);
}
