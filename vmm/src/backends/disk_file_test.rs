use std::os::unix::fs::{MetadataExt as _, PermissionsExt};

use vmm_sys_util::tempdir::TempDir;

use super::*;

/// A directory with a disk image of `len` bytes, all ones.
fn image(len: usize) -> (TempDir, PathBuf) {
    image_in(&std::env::temp_dir(), len)
}

fn image_in(parent: &Path, len: usize) -> (TempDir, PathBuf) {
    let dir = TempDir::new_in(parent).unwrap();
    let path = dir.as_path().join("disk.img");
    std::fs::write(&path, vec![0xff; len]).unwrap();
    (dir, path)
}

fn refusal(path: &Path, read_only: bool) -> String {
    DiskFile::open(path, read_only).unwrap_err().to_string()
}

#[test]
fn content_is_read_and_written_at_offsets() {
    let (_dir, path) = image(4096);
    let mut disk = DiskFile::open(&path, false).unwrap();
    assert_eq!(disk.len(), 4096);
    let mut data = *b"hello, disk";
    let (a, b) = data.split_at_mut(4);
    disk.write_vectored_at(&[VolatileSlice::from(a), VolatileSlice::from(b)], 1000)
        .unwrap();
    disk.flush().unwrap();
    let mut out = [0; 13];
    disk.read_vectored_at(&[VolatileSlice::from(&mut out[..])], 999)
        .unwrap();
    assert_eq!(&out, b"\xffhello, disk\xff");
}

#[test]
fn a_read_only_disk_cannot_write() {
    let (_dir, path) = image(512);
    let mut disk = DiskFile::open(&path, true).unwrap();
    let mut data = [0; 512];
    let slices = [VolatileSlice::from(&mut data[..])];
    disk.write_vectored_at(&slices, 0).unwrap_err();
    disk.discard(0, 512).unwrap_err();
    disk.write_zeroes(0, 512, true).unwrap_err();
    disk.write_zeroes(0, 512, false).unwrap_err();
    assert_eq!(std::fs::read(&path).unwrap(), [0xff; 512]);
    disk.flush().unwrap();
}

#[test]
fn an_image_that_shrank_gives_errors_not_signals() {
    let (_dir, path) = image(8192);
    let mut disk = DiskFile::open(&path, true).unwrap();
    OpenOptions::new()
        .write(true)
        .open(&path)
        .unwrap()
        .set_len(4096)
        .unwrap();
    let mut data = [0; 1024];
    let slices = [VolatileSlice::from(&mut data[..])];
    for offset in [3584, 4096, 7168] {
        let error = disk.read_vectored_at(&slices, offset).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
    }
    disk.read_vectored_at(&slices, 3072).unwrap();
    assert_eq!(disk.len(), 8192);
}

/// Writes zeroes and discards on the file system of `parent`.
fn zero_and_discard_in(parent: &Path) {
    let (_dir, path) = image_in(parent, 256 << 10);
    let mut disk = DiskFile::open(&path, false).unwrap();
    let blocks = || std::fs::metadata(&path).unwrap().blocks();
    let full = blocks();
    disk.write_zeroes(512, 65536 + 512, false).unwrap();
    assert!(blocks() >= full, "storage is kept unless it may go");
    disk.write_zeroes(128 << 10, 64 << 10, true).unwrap();
    assert!(blocks() <= full - 120, "unmapped storage is freed");
    let before = blocks();
    disk.discard(192 << 10, 64 << 10).unwrap();
    assert!(blocks() <= before - 120, "discarded storage is freed");

    let content = std::fs::read(&path).unwrap();
    assert_eq!(content.len(), 256 << 10, "the size stays");
    let zeroes = [512..66560, 131_072..262_144];
    for (at, &byte) in content.iter().enumerate() {
        let zero = zeroes.iter().any(|range| range.contains(&at));
        assert_eq!(byte, if zero { 0 } else { 0xff }, "byte {at}");
    }
}

#[test]
fn zeroes_and_discards_work_on_the_usual_file_system() {
    zero_and_discard_in(&std::env::temp_dir());
}

#[test]
fn zeroes_and_discards_work_on_tmpfs() {
    // It has no zero-range. Every Linux system has one there.
    zero_and_discard_in(Path::new("/dev/shm"));
}

#[test]
fn one_writer_or_many_readers_at_a_time() {
    let (_dir, path) = image(512);
    {
        let _writer = DiskFile::open(&path, false).unwrap();
        for read_only in [false, true] {
            let error = refusal(&path, read_only);
            assert!(error.contains("in use by another process"), "{error}");
            assert!(error.contains(path.to_str().unwrap()), "{error}");
        }
    }
    let _readers = [(); 2].map(|()| DiskFile::open(&path, true).unwrap());
    let error = refusal(&path, false);
    assert!(error.contains("set is_read_only"), "{error}");
}

#[test]
fn what_is_no_disk_image_is_refused_with_its_path_and_a_reason() {
    let (dir, odd) = image(513);
    let pipe = dir.as_path().join("pipe");
    let made = std::process::Command::new("mkfifo").arg(&pipe).status();
    assert!(made.unwrap().success());
    let missing = dir.as_path().join("missing");
    let cases = [
        (odd.as_path(), "513 bytes, which is not a multiple of 512"),
        (dir.as_path(), "a directory"),
        (&pipe, "a pipe"),
        (&missing, "No such file"),
        (Path::new("/dev/null"), "a character device"),
    ];
    for (path, reason) in cases {
        for read_only in [false, true] {
            let error = refusal(path, read_only);
            assert!(error.contains(reason), "{error}");
            assert!(error.contains(path.to_str().unwrap()), "{error}");
        }
    }
}

#[test]
fn an_image_that_cannot_be_written_says_what_may_help() {
    let (_dir, path) = image(512);
    std::fs::set_permissions(&path, PermissionsExt::from_mode(0o444)).unwrap();
    // For root the file is writable all the same; then there is nothing to see.
    if let Err(error) = DiskFile::open(&path, false) {
        let error = error.to_string();
        assert!(
            error.contains("make it writable or set is_read_only"),
            "{error}"
        );
    }
    DiskFile::open(&path, true).unwrap();
}
