use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use vm_memory::VolatileSlice;

use vmm_sys_util::tempdir::TempDir;

use super::*;
use crate::virtio::TURN_REQUESTS;
use crate::virtio::mock_driver::{MockDriver, env, guest_memory};

const FLUSH: u64 = 1 << VIRTIO_BLK_F_FLUSH;

fn image(sectors: usize) -> (TempDir, PathBuf) {
    let dir = TempDir::new().unwrap();
    let path = dir.as_path().join("disk.img");
    std::fs::write(&path, vec![7; sectors * 512]).unwrap();
    (dir, path)
}

fn config(path: &Path) -> DriveConfig {
    DriveConfig {
        drive_id: "data".into(),
        path_on_host: path.to_owned(),
        ..DriveConfig::default()
    }
}

fn field<const N: usize>(block: &Block, at: u64) -> [u8; N] {
    let mut out = [0; N];
    block.read_config(at, &mut out);
    out
}

fn read_request(sector: u64) -> Vec<u8> {
    let mut header = vec![0; 8];
    header.extend(sector.to_le_bytes());
    header
}

#[test]
fn features_and_limits_follow_the_drive() {
    let (_dir, path) = image(100);
    let always = 1 << VIRTIO_BLK_F_SEG_MAX | 1 << VIRTIO_BLK_F_SIZE_MAX;
    let changes = 1 << VIRTIO_BLK_F_DISCARD | 1 << VIRTIO_BLK_F_WRITE_ZEROES;
    let features = |config| Block::new(&config).unwrap().identity().features;
    assert_eq!(features(config(&path)), always | changes);
    let durable = DriveConfig {
        cache_type: CacheType::Writeback,
        ..config(&path)
    };
    assert_eq!(features(durable), always | changes | FLUSH);
    let read_only = DriveConfig {
        is_read_only: true,
        ..config(&path)
    };
    assert_eq!(features(read_only.clone()), always | 1 << VIRTIO_BLK_F_RO);

    let block = Block::new(&config(&path)).unwrap();
    assert_eq!(u64::from_le_bytes(field(&block, 0)), 100);
    assert_eq!(u32::from_le_bytes(field(&block, 12)), 254);
    for at in [8, 36, 40, 44, 48, 52] {
        assert_ne!(u32::from_le_bytes(field(&block, at)), 0, "limit at {at}");
    }
    assert_eq!(field(&block, 56), [1]);
    assert_eq!(field(&block, 60), [0; 8]);
    drop(block);
    let block = Block::new(&read_only).unwrap();
    assert_eq!(field(&block, 36), [0; 24]);
}

#[test]
fn the_configuration_space_cannot_be_written() {
    let (_dir, path) = image(1);
    let mut block = Block::new(&config(&path)).unwrap();
    let before: [u8; 60] = field(&block, 0);
    for offset in 0..70 {
        for width in 1..=8 {
            block.write_config(offset, &[0xff; 8][..width]);
        }
    }
    block.write_config(u64::MAX, &[1; 8]);
    assert_eq!(field::<60>(&block, 0), before);
}

#[test]
fn errors_name_the_image() {
    let (dir, _) = image(1);
    let missing = dir.as_path().join("missing.img");
    let error = Block::new(&config(&missing)).err().unwrap().to_string();
    assert!(error.contains("missing.img"), "{error}");
}

#[test]
fn an_async_drive_is_served_all_the_same() {
    let (_dir, path) = image(1);
    Block::new(&DriveConfig {
        io_engine: IoEngine::Async,
        ..config(&path)
    })
    .unwrap();
}

#[test]
fn requests_are_served_in_turns_until_none_is_left() {
    let (_dir, path) = image(256);
    let mut block = Block::new(&config(&path)).unwrap();
    let memory = guest_memory();
    let mut driver = MockDriver::new(&memory, 0, 256);
    block.start(env(&memory, &[&driver], 0)).unwrap();
    for sector in 0..TURN_REQUESTS as u64 + 5 {
        driver.send(&[&read_request(sector)], &[513]);
    }
    block.queue_notified(0).unwrap();
    assert_eq!(driver.used().len(), TURN_REQUESTS);
    block.backend_ready().unwrap();
    let rest = driver.used();
    assert_eq!(rest.len(), 5);
    assert!(rest.iter().all(|used| used.len == 513));
}

#[test]
fn a_file_that_shrinks_fails_requests_and_the_device_lives_on() {
    let (_dir, path) = image(8);
    let mut block = Block::new(&config(&path)).unwrap();
    let memory = guest_memory();
    let mut driver = MockDriver::new(&memory, 0, 16);
    block.start(env(&memory, &[&driver], 0)).unwrap();
    std::fs::File::options()
        .write(true)
        .open(&path)
        .unwrap()
        .set_len(2048)
        .unwrap();
    let gone = driver.send(&[&read_request(7)], &[512, 1]);
    let there = driver.send(&[&read_request(0)], &[512, 1]);
    block.queue_notified(0).unwrap();
    let lens: Vec<_> = driver.used().iter().map(|used| used.len).collect();
    assert_eq!(lens, [1, 513]);
    assert_eq!(driver.received(&gone)[512], 1);
    assert_eq!(driver.received(&there)[..512], [7; 512]);
}

#[test]
fn a_stopped_device_serves_nothing_and_starts_again() {
    let (_dir, path) = image(8);
    let mut block = Block::new(&config(&path)).unwrap();
    let memory = guest_memory();
    for _ in 0..2 {
        let mut driver = MockDriver::new(&memory, 0, 16);
        block.start(env(&memory, &[&driver], 0)).unwrap();
        block.stop();
        block.stop();
        driver.send(&[&read_request(0)], &[513]);
        block.queue_notified(0).unwrap();
        block.backend_ready().unwrap();
        assert!(driver.used().is_empty());
        block.start(env(&memory, &[&driver], 0)).unwrap();
        block.queue_notified(0).unwrap();
        assert_eq!(driver.used().len(), 1);
    }
}

#[test]
fn a_broken_queue_is_a_fault() {
    let (_dir, path) = image(8);
    let mut block = Block::new(&config(&path)).unwrap();
    let memory = guest_memory();
    let mut driver = MockDriver::new(&memory, 0, 16);
    block.start(env(&memory, &[&driver], 0)).unwrap();
    driver.set_available_index(17);
    block.queue_notified(0).unwrap_err();
}

/// Takes everything and counts flushes.
struct Counting(Arc<AtomicUsize>);

impl DiskBackend for Counting {
    fn len(&self) -> u64 {
        4096
    }
    fn read_vectored_at(&mut self, _: &[VolatileSlice<'_>], _: u64) -> io::Result<()> {
        Ok(())
    }
    fn write_vectored_at(&mut self, _: &[VolatileSlice<'_>], _: u64) -> io::Result<()> {
        Ok(())
    }
    fn flush(&mut self) -> io::Result<()> {
        self.0.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }
    fn discard(&mut self, _: u64, _: u64) -> io::Result<()> {
        Ok(())
    }
    fn write_zeroes(&mut self, _: u64, _: u64, _: bool) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn a_durable_drive_is_flushed_when_it_stops_and_something_was_written() {
    let memory = guest_memory();
    for (cache_type, write, expected) in [
        (CacheType::Writeback, true, 1),
        (CacheType::Writeback, false, 0),
        (CacheType::Unsafe, true, 0),
    ] {
        let flushes = Arc::new(AtomicUsize::new(0));
        let config = DriveConfig {
            cache_type,
            ..config(Path::new("ignored"))
        };
        let backend = Box::new(Counting(flushes.clone()));
        let mut block = Block::with_backend(&config, backend).unwrap();
        let mut driver = MockDriver::new(&memory, 0, 16);
        block.start(env(&memory, &[&driver], FLUSH)).unwrap();
        if write {
            let mut request = read_request(0);
            request[0] = 1; // A write.
            driver.send(&[&request, &[0; 512]], &[1]);
            block.queue_notified(0).unwrap();
        }
        block.stop();
        block.stop();
        assert_eq!(flushes.load(Ordering::Relaxed), expected);
    }
}

#[test]
fn a_restored_drive_knows_what_is_not_durable_yet() {
    let memory = guest_memory();
    let durable = |flushes: &Arc<AtomicUsize>| {
        let config = DriveConfig {
            cache_type: CacheType::Writeback,
            ..config(Path::new("ignored"))
        };
        Block::with_backend(&config, Box::new(Counting(flushes.clone()))).unwrap()
    };
    for write in [false, true] {
        let flushes = Arc::new(AtomicUsize::new(0));
        let mut saved = durable(&flushes);
        let mut driver = MockDriver::new(&memory, 0, 16);
        saved.start(env(&memory, &[&driver], FLUSH)).unwrap();
        let mut request = read_request(0);
        request[0] = u8::from(write);
        let data: &[u8] = if write { &[0; 512] } else { &[] };
        let room = if write { 1 } else { 513 };
        driver.send(&[&request, data], &[room]);
        saved.queue_notified(0).unwrap();
        let state = saved.save().unwrap();

        let mut child = durable(&flushes);
        child.restore(&state).unwrap();
        assert_eq!(child.save().unwrap(), state);
        child.stop();
        assert_eq!(flushes.load(Ordering::Relaxed), usize::from(write));
    }
}

#[test]
fn a_disk_of_another_length_and_damage_are_refused() {
    let (_dir, path) = image(8);
    let state = Block::new(&config(&path)).unwrap().save().unwrap();
    let (_dir, other) = image(9);
    let mut block = Block::new(&config(&other)).unwrap();
    let error = block.restore(&state).unwrap_err().to_string();
    for part in ["\"data\"", "8 sectors", "has 9"] {
        assert!(error.contains(part), "{error}");
    }
    for len in 0..state.len() {
        let error = block.restore(&state[..len]).unwrap_err().to_string();
        assert!(error.contains("\"data\""), "{error}");
    }
}
