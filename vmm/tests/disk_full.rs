//! A delta whose file system takes no more. The limit on the size of files, which
//! stands for it, is the whole process's: hence one test in a file of its own.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

use coppice_snapshot::{BLOCK_SIZE, Content, Delta, Extents, Kind, Naming};
use coppice_vmm::backends::disk::{DiskBackend, FrozenDisk};
use coppice_vmm::backends::disk_stack::DiskStack;
use vm_memory::VolatileSlice;

const BLOCKS: u64 = 64;
const BLOCK: usize = BLOCK_SIZE as usize;

fn limit(bytes: u64) {
    let limit = libc::rlimit {
        rlim_cur: bytes,
        rlim_max: libc::RLIM_INFINITY,
    };
    // SAFETY: the pointer is to a valid structure; the signal's action is to do
    // nothing, so that a write over the limit fails with EFBIG instead.
    unsafe {
        libc::signal(libc::SIGXFSZ, libc::SIG_IGN);
        assert_eq!(libc::setrlimit(libc::RLIMIT_FSIZE, &limit), 0);
    }
}

fn base(path: &Path) {
    let file = File::options()
        .read(true)
        .write(true)
        .create_new(true)
        .open(path)
        .unwrap();
    file.write_all_at(&[1; 8 * BLOCK], 0).unwrap();
    let mut held = Extents::new();
    held.push(0, 8);
    let content = Content {
        kind: Kind::Disk,
        blocks: BLOCKS,
        held,
        zero: Extents::new(),
    };
    content.seal(file, path, Naming::Unique).unwrap();
}

fn write(disk: &mut DiskStack, offset: u64, byte: u8, len: usize) -> io::Result<()> {
    let mut data = vec![byte; len];
    disk.write_vectored_at(&[VolatileSlice::from(data.as_mut_slice())], offset)
}

fn block(disk: &mut DiskStack, block: u64) -> u8 {
    let mut data = [0xee; BLOCK];
    disk.read_vectored_at(&[VolatileSlice::from(&mut data[..])], block * BLOCK_SIZE)
        .unwrap();
    assert!(data.iter().all(|&byte| byte == data[0]), "torn");
    data[0]
}

#[test]
fn a_full_file_system_gives_errors_and_loses_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name);
    base(&path("base"));
    let open = |delta: &str| DiskStack::open(&[path("base")], Some(&path(delta))).unwrap();
    let mut disk = open("delta");
    write(&mut disk, 0, 2, BLOCK).unwrap();
    disk.flush().unwrap();
    let expect = |disk: &mut DiskStack| {
        let found: Vec<_> = [0, 1, 2, 3, 20].map(|n| block(disk, n)).into();
        assert_eq!(found, [2, 1, 1, 1, 0]);
    };

    // The data is refused in the middle.
    limit(2 * BLOCK_SIZE);
    write(&mut disk, BLOCK_SIZE, 3, 3 * BLOCK).unwrap_err();
    write(&mut disk, 3 * BLOCK_SIZE + 512, 3, 512).unwrap_err();
    expect(&mut disk);
    // The data has room and the index has not.
    limit(BLOCKS * BLOCK_SIZE);
    write(&mut disk, BLOCK_SIZE, 3, 3 * BLOCK).unwrap_err();
    write(&mut disk, 20 * BLOCK_SIZE, 3, BLOCK).unwrap_err();
    disk.discard(BLOCK_SIZE, 3 * BLOCK_SIZE).unwrap_err();
    disk.write_zeroes(BLOCK_SIZE, 3 * BLOCK_SIZE, true)
        .unwrap_err();
    expect(&mut disk);
    write(&mut disk, 0, 2, BLOCK).expect("blocks that are held need no index");
    drop(disk);

    // So it is for the next opener, and when there is room again.
    limit(libc::RLIM_INFINITY);
    let mut disk = open("delta");
    expect(&mut disk);
    write(&mut disk, BLOCK_SIZE, 4, BLOCK).unwrap();

    // A new delta that has no room is not there.
    limit(1);
    Delta::create(&path("next"), BLOCKS).unwrap_err();
    limit(libc::RLIM_INFINITY);
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 2);

    // A seal that has no room leaves the delta, and may be repeated.
    let next = Delta::create(&path("next"), BLOCKS).unwrap();
    let FrozenDisk::Stack(levels) = disk.freeze(Some(next)).unwrap() else {
        panic!("it is a stack");
    };
    let len = path("delta").metadata().unwrap().len();
    for room in [0, 20] {
        limit(len + room);
        let text = levels[0].seal(Naming::Content).unwrap_err().to_string();
        assert!(text.contains("delta could not be written"), "{text}");
        assert_eq!((block(&mut disk, 0), block(&mut disk, 1)), (2, 4));
    }
    limit(libc::RLIM_INFINITY);
    drop((disk, levels));
    let mut disk = open("delta");
    assert_eq!((block(&mut disk, 0), block(&mut disk, 1)), (2, 4));
    let next = Delta::create(&path("other"), BLOCKS).unwrap();
    let FrozenDisk::Stack(levels) = disk.freeze(Some(next)).unwrap() else {
        panic!("it is a stack");
    };
    let layer = levels[0].seal(Naming::Content).unwrap();
    layer.verify(&mut |_| {}).unwrap();
    assert_eq!(layer.held().blocks(), 2);
}
