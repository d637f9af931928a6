use std::sync::Arc;

use parking_lot::Mutex;
use vm_memory::VolatileSlice;

use super::super::config::MAX_SEGMENT_SIZE;
use super::*;
use crate::virtio::mock_driver::{Descriptor, MockDriver, Used, guest_memory};

/// What a [`MemoryDisk`] holds and did.
#[derive(Debug, Default)]
struct Store {
    data: Vec<u8>,
    flushes: usize,
    calls: Vec<String>,
    fail: Option<i32>,
}

impl Store {
    fn check(&self) -> io::Result<()> {
        match self.fail {
            Some(errno) => Err(io::Error::from_raw_os_error(errno)),
            None => Ok(()),
        }
    }
}

struct MemoryDisk(Arc<Mutex<Store>>);

impl DiskBackend for MemoryDisk {
    fn len(&self) -> u64 {
        self.0.lock().data.len() as u64
    }
    fn read_vectored_at(&mut self, slices: &[VolatileSlice<'_>], offset: u64) -> io::Result<()> {
        let store = self.0.lock();
        store.check()?;
        let mut at = offset as usize;
        for slice in slices {
            slice.copy_from(&store.data[at..at + slice.len()]);
            at += slice.len();
        }
        Ok(())
    }
    fn write_vectored_at(&mut self, slices: &[VolatileSlice<'_>], offset: u64) -> io::Result<()> {
        let mut store = self.0.lock();
        store.check()?;
        let mut at = offset as usize;
        for slice in slices {
            slice.copy_to(&mut store.data[at..at + slice.len()]);
            at += slice.len();
        }
        Ok(())
    }
    fn flush(&mut self) -> io::Result<()> {
        let mut store = self.0.lock();
        store.check()?;
        store.flushes += 1;
        Ok(())
    }
    fn discard(&mut self, offset: u64, len: u64) -> io::Result<()> {
        let mut store = self.0.lock();
        store.check()?;
        store.calls.push(format!("discard {offset}+{len}"));
        Ok(())
    }
    fn write_zeroes(&mut self, offset: u64, len: u64, may_unmap: bool) -> io::Result<()> {
        let mut store = self.0.lock();
        store.check()?;
        store.calls.push(format!("zero {offset}+{len} {may_unmap}"));
        Ok(())
    }
}

const ALL: u64 =
    1 << VIRTIO_BLK_F_FLUSH | 1 << VIRTIO_BLK_F_DISCARD | 1 << VIRTIO_BLK_F_WRITE_ZEROES;
const OK: u8 = 0;
const IOERR: u8 = 1;
const UNSUPP: u8 = 2;

/// A disk of 64 sectors and a driver that puts requests to it.
struct Rig {
    disk: Disk,
    store: Arc<Mutex<Store>>,
    driver: MockDriver,
    queue: crate::virtio::Virtqueue,
    features: u64,
}

impl Rig {
    fn new() -> Self {
        let data = (0..64 * 512u32).map(|i| (i / 7) as u8).collect();
        let store = Arc::new(Mutex::new(Store {
            data,
            ..Store::default()
        }));
        let driver = MockDriver::new(&guest_memory(), 0, 64);
        Self {
            disk: Disk {
                backend: Box::new(MemoryDisk(store.clone())),
                read_only: false,
                write_back: true,
                id: *b"a drive of 20 bytes!",
                dirty: false,
            },
            store,
            queue: driver.virtqueue(false),
            driver,
            features: ALL,
        }
    }

    /// Serves the chain that was offered last and returns its used length.
    fn serve(&mut self) -> u32 {
        let chain = self.queue.pop().unwrap().expect("a chain was offered");
        let head = chain.head;
        let served = self.disk.serve(chain, self.features);
        self.queue.push_used(head, served.written).unwrap();
        let Used { len, .. } = self.driver.used()[0];
        len
    }

    /// A request with its header, `data` to read and `room` for an answer, each
    /// in one descriptor: answer, status, used length.
    fn request(&mut self, kind: u32, sector: u64, data: &[u8], room: usize) -> (Vec<u8>, u8, u32) {
        self.driver.forget_data();
        let header = header(kind, sector);
        let mut readable: Vec<&[u8]> = vec![&header];
        if !data.is_empty() {
            readable.push(data);
        }
        let sent = match room {
            0 => self.driver.send(&readable, &[1]),
            _ => self.driver.send(&readable, &[room, 1]),
        };
        let written = self.serve();
        let mut answer = self.driver.received(&sent);
        let status = answer.pop().unwrap();
        (answer, status, written)
    }

    fn status(&mut self, kind: u32, sector: u64, data: &[u8]) -> u8 {
        self.request(kind, sector, data, 0).1
    }
}

fn header(kind: u32, sector: u64) -> Vec<u8> {
    let mut header = kind.to_le_bytes().to_vec();
    header.extend([0xee; 4]); // Reserved: must be ignored.
    header.extend(sector.to_le_bytes());
    header
}

fn range(sector: u64, sectors: u32, flags: u32) -> Vec<u8> {
    let mut range = sector.to_le_bytes().to_vec();
    range.extend(sectors.to_le_bytes());
    range.extend(flags.to_le_bytes());
    range
}

#[test]
fn reads_and_writes_move_whole_sectors() {
    let mut rig = Rig::new();
    let (answer, status, used) = rig.request(VIRTIO_BLK_T_IN, 3, &[], 1024);
    assert_eq!((status, used), (OK, 1025));
    assert_eq!(answer, rig.store.lock().data[1536..2560]);

    let data = [0xab; 1536];
    let (_, status, used) = rig.request(VIRTIO_BLK_T_OUT, 61, &data, 0);
    assert_eq!((status, used), (OK, 1));
    assert_eq!(rig.store.lock().data[61 * 512..], data);
    assert!(rig.disk.dirty);
}

#[test]
fn requests_cut_into_odd_pieces_are_the_same_requests() {
    for pieces in [2, 17, 40] {
        let mut rig = Rig::new();
        let mut request = header(VIRTIO_BLK_T_OUT, 5);
        let data: Vec<u8> = (0..1024u32).map(|i| (i * 3) as u8).collect();
        request.extend(&data);
        // The first cut goes through the header.
        let (first, rest) = request.split_at(7);
        let mut readable = vec![first];
        readable.extend(rest.chunks(rest.len().div_ceil(pieces - 1)));
        let sent = rig.driver.send(&readable, &[1]);
        assert_eq!(rig.serve(), 1);
        assert_eq!(rig.driver.received(&sent), [OK]);
        assert_eq!(rig.store.lock().data[2560..3584], data);

        let mut writable = vec![1024 / pieces; pieces - 1];
        // The last piece of the data and the status share a descriptor.
        writable.push(1025 - writable.iter().sum::<usize>());
        rig.driver.forget_data();
        let header = header(VIRTIO_BLK_T_IN, 5);
        let sent = rig.driver.send(&[&header[..3], &header[3..]], &writable);
        assert_eq!(rig.serve(), 1025);
        let mut answer = rig.driver.received(&sent);
        assert_eq!(answer.pop(), Some(OK));
        assert_eq!(answer, data);
    }
}

#[test]
fn a_request_in_an_indirect_table_is_the_same_request() {
    let mut rig = Rig::new();
    let header = rig.driver.put(&header(VIRTIO_BLK_T_IN, 0));
    let answer = rig.driver.alloc(513);
    let table = rig.driver.indirect(&[
        Descriptor::readable(header, 16),
        Descriptor::writable(answer, 512),
        Descriptor::writable(answer + 512, 1),
    ]);
    rig.driver.offer_chain(&[table]);
    assert_eq!(rig.serve(), 513);
    assert_eq!(rig.driver.get(answer, 512), rig.store.lock().data[..512]);
}

#[test]
fn the_id_takes_twenty_bytes() {
    let mut rig = Rig::new();
    let (answer, status, used) = rig.request(VIRTIO_BLK_T_GET_ID, 0, &[], 20);
    assert_eq!((status, used), (OK, 21));
    assert_eq!(answer, b"a drive of 20 bytes!");
    let (answer, status, used) = rig.request(VIRTIO_BLK_T_GET_ID, 0, &[], 32);
    assert_eq!((status, used), (OK, 21));
    assert_eq!(&answer[20..], [0; 12]);
    let (_, status, used) = rig.request(VIRTIO_BLK_T_GET_ID, 0, &[], 19);
    assert_eq!((status, used), (IOERR, 1));
}

#[test]
fn sectors_outside_the_disk_are_refused() {
    let mut rig = Rig::new();
    let before = rig.store.lock().data.clone();
    for sector in [63, 64, u64::MAX / 512, u64::MAX / 512 + 1, u64::MAX] {
        let (_, status, used) = rig.request(VIRTIO_BLK_T_IN, sector, &[], 1024);
        assert_eq!((status, used), (IOERR, 1), "sector {sector}");
        assert_eq!(rig.status(VIRTIO_BLK_T_OUT, sector, &[0; 1024]), IOERR);
        let range = range(sector, 2, 0);
        assert_eq!(rig.status(VIRTIO_BLK_T_DISCARD, 0, &range), IOERR);
        assert_eq!(rig.status(VIRTIO_BLK_T_WRITE_ZEROES, 0, &range), IOERR);
    }
    assert_eq!(rig.store.lock().data, before);
    assert!(rig.store.lock().calls.is_empty());
    assert_eq!(rig.request(VIRTIO_BLK_T_IN, 63, &[], 512).1, OK);
}

#[test]
fn data_that_is_no_whole_number_of_sectors_is_refused() {
    let mut rig = Rig::new();
    for len in [1, 511, 513] {
        assert_eq!(rig.request(VIRTIO_BLK_T_IN, 0, &[], len).1, IOERR);
        assert_eq!(rig.status(VIRTIO_BLK_T_OUT, 0, &vec![0; len]), IOERR);
    }
    assert_eq!(rig.request(VIRTIO_BLK_T_IN, 0, &[], 0).1, OK);
}

#[test]
fn more_data_than_announced_is_refused() {
    let mut rig = Rig::new();
    rig.store.lock().data = vec![0; MAX_TRANSFER as usize + 512];
    let header_at = rig.driver.put(&header(VIRTIO_BLK_T_IN, 0));
    let status_at = rig.driver.alloc(1);
    let send = |rig: &mut Rig, last: u32| {
        // Eight MiB of guest memory over and over.
        let mut chain = vec![Descriptor::readable(header_at, 16)];
        let step = 32 * MAX_SEGMENT_SIZE;
        chain.extend([Descriptor::writable(8 << 20, step); 7]);
        chain.push(Descriptor::writable(8 << 20, step - 2 * MAX_SEGMENT_SIZE));
        if last > 0 {
            chain.push(Descriptor::writable(8 << 20, last));
        }
        chain.push(Descriptor::writable(status_at, 1));
        rig.driver.offer_chain(&chain);
        rig.serve();
        rig.driver.get(status_at, 1)[0]
    };
    assert_eq!(send(&mut rig, 0), OK);
    assert_eq!(send(&mut rig, 512), IOERR);
}

#[test]
fn a_flush_reaches_the_storage_before_it_is_completed() {
    let mut rig = Rig::new();
    rig.status(VIRTIO_BLK_T_OUT, 0, &[1; 512]);
    assert_eq!(rig.store.lock().flushes, 0);
    let (_, status, used) = rig.request(VIRTIO_BLK_T_FLUSH, 0, &[], 0);
    assert_eq!((status, used), (OK, 1));
    assert_eq!(rig.store.lock().flushes, 1);
    assert!(!rig.disk.dirty);

    rig.store.lock().fail = Some(libc::EIO);
    assert_eq!(rig.status(VIRTIO_BLK_T_FLUSH, 0, &[]), IOERR);
}

#[test]
fn writes_are_stable_at_once_for_a_driver_that_cannot_flush() {
    let mut rig = Rig::new();
    rig.features &= !(1 << VIRTIO_BLK_F_FLUSH);
    assert_eq!(rig.status(VIRTIO_BLK_T_OUT, 0, &[1; 512]), OK);
    assert_eq!(rig.store.lock().flushes, 1);
    rig.status(VIRTIO_BLK_T_WRITE_ZEROES, 0, &range(0, 1, 0));
    assert_eq!(rig.store.lock().flushes, 2);
    // Without the promise of durability nobody waits for it.
    rig.disk.write_back = false;
    rig.status(VIRTIO_BLK_T_OUT, 0, &[1; 512]);
    assert_eq!(rig.store.lock().flushes, 2);
}

#[test]
fn what_was_not_negotiated_or_is_unknown_is_unsupported() {
    let mut rig = Rig::new();
    for kind in [2, 3, 9, 12, 14, 0x8000_0000, u32::MAX] {
        assert_eq!(rig.status(kind, 0, &[]), UNSUPP, "type {kind}");
    }
    rig.features = 0;
    assert_eq!(rig.status(VIRTIO_BLK_T_FLUSH, 0, &[]), UNSUPP);
    let range = range(0, 1, 0);
    assert_eq!(rig.status(VIRTIO_BLK_T_DISCARD, 0, &range), UNSUPP);
    assert_eq!(rig.status(VIRTIO_BLK_T_WRITE_ZEROES, 0, &range), UNSUPP);
    assert!(rig.store.lock().calls.is_empty());
}

#[test]
fn ranges_are_discarded_and_zeroed() {
    let mut rig = Rig::new();
    let two = [range(1, 2, 0), range(63, 1, 0)].concat();
    assert_eq!(rig.status(VIRTIO_BLK_T_DISCARD, 0, &two), OK);
    assert_eq!(
        rig.status(VIRTIO_BLK_T_WRITE_ZEROES, 0, &range(4, 1, 0)),
        OK
    );
    assert_eq!(
        rig.status(VIRTIO_BLK_T_WRITE_ZEROES, 0, &range(5, 1, 1)),
        OK
    );
    assert_eq!(rig.status(VIRTIO_BLK_T_DISCARD, 0, &range(0, 0, 0)), OK);
    assert_eq!(
        rig.store.lock().calls,
        [
            "discard 512+1024",
            "discard 32256+512",
            "zero 2048+512 false",
            "zero 2560+512 true"
        ]
    );
}

#[test]
fn malformed_ranges_do_nothing() {
    let mut rig = Rig::new();
    rig.store.lock().data = vec![0; 65 << 20];
    let discard = VIRTIO_BLK_T_DISCARD;
    let zero = VIRTIO_BLK_T_WRITE_ZEROES;
    let good = range(0, 1, 0);
    for (kind, data, status) in [
        (discard, vec![], IOERR),
        (discard, good[..15].to_vec(), IOERR),
        (discard, [&good[..], &[0]].concat(), IOERR),
        (discard, good.repeat(33), IOERR),
        (discard, range(0, 1, 1), UNSUPP),
        (discard, range(0, 1, 2), UNSUPP),
        (discard, range(0, u32::MAX, 0), IOERR),
        (
            discard,
            [good.clone(), range(u64::MAX, 1, 0)].concat(),
            IOERR,
        ),
        (zero, good.repeat(2), IOERR),
        (zero, range(0, 1, 2), UNSUPP),
        (zero, range(0, 1, 0x8000_0001), UNSUPP),
        (zero, range(0, (64 << 11) + 1, 0), IOERR),
    ] {
        assert_eq!(rig.status(kind, 0, &data), status, "{kind}: {data:?}");
    }
    assert!(rig.store.lock().calls.is_empty());
    assert_eq!(rig.status(zero, 0, &range(0, 64 << 11, 0)), OK);
}

#[test]
fn a_read_only_disk_never_changes() {
    let mut rig = Rig::new();
    rig.disk.read_only = true;
    let before = rig.store.lock().data.clone();
    assert_eq!(rig.status(VIRTIO_BLK_T_OUT, 0, &[0; 512]), IOERR);
    assert_eq!(rig.status(VIRTIO_BLK_T_DISCARD, 0, &range(0, 1, 0)), IOERR);
    assert_eq!(
        rig.status(VIRTIO_BLK_T_WRITE_ZEROES, 0, &range(0, 1, 0)),
        IOERR
    );
    assert_eq!(rig.store.lock().data, before);
    assert!(rig.store.lock().calls.is_empty());
    assert_eq!(rig.request(VIRTIO_BLK_T_IN, 0, &[], 512).1, OK);
    assert_eq!(rig.status(VIRTIO_BLK_T_FLUSH, 0, &[]), OK);
}

#[test]
fn storage_that_fails_or_is_full_is_an_io_error() {
    let mut rig = Rig::new();
    rig.store.lock().fail = Some(libc::ENOSPC);
    let (_, status, used) = rig.request(VIRTIO_BLK_T_IN, 0, &[], 512);
    assert_eq!((status, used), (IOERR, 1));
    assert_eq!(rig.status(VIRTIO_BLK_T_OUT, 0, &[0; 512]), IOERR);
    assert_eq!(rig.status(VIRTIO_BLK_T_DISCARD, 0, &range(0, 1, 0)), IOERR);
    rig.store.lock().fail = None;
    assert_eq!(rig.status(VIRTIO_BLK_T_OUT, 0, &[0; 512]), OK);
}

#[test]
fn chains_without_header_or_status_are_returned() {
    let mut rig = Rig::new();
    let header = header(VIRTIO_BLK_T_IN, 0);
    // No room for a status.
    rig.driver.send(&[&header], &[]);
    assert_eq!(rig.serve(), 0);
    rig.driver.send(&[&header], &[0]);
    assert_eq!(rig.serve(), 0);
    // No header, or half of one.
    for readable in [&[][..], &[&header[..15]]] {
        let sent = rig.driver.send(readable, &[1]);
        assert_eq!(rig.serve(), 1);
        assert_eq!(rig.driver.received(&sent), [IOERR]);
    }
}
