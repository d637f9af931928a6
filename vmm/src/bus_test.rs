use super::*;

/// Remembers the last access and answers reads with its offset.
#[derive(Default)]
struct Probe {
    last_write: Option<(u64, Vec<u8>)>,
}

impl BusDevice for Probe {
    fn read(&mut self, offset: u64, out: &mut [u8]) {
        out.fill(offset as u8);
    }
    fn write(&mut self, offset: u64, data: &[u8]) -> Effect {
        self.last_write = Some((offset, data.to_vec()));
        Effect::Reset
    }
}

fn probe() -> Arc<Mutex<Probe>> {
    Arc::new(Mutex::new(Probe::default()))
}

#[test]
fn accesses_reach_the_device_with_its_own_offsets() {
    let mut bus = Bus::default();
    let (low, high) = (probe(), probe());
    bus.insert(0x1000, 0x10, low.clone()).unwrap();
    bus.insert(0x1010, 0x10, high.clone()).unwrap();

    let mut byte = [0u8];
    bus.read(0x1013, &mut byte);
    assert_eq!(byte, [3]);
    assert_eq!(bus.write(0x1008, &[1, 2]), Effect::Reset);
    assert_eq!(low.lock().last_write, Some((8, vec![1, 2])));
    assert_eq!(high.lock().last_write, None);
}

#[test]
fn accesses_that_no_device_serves_whole_read_ones() {
    let mut bus = Bus::default();
    let device = probe();
    bus.insert(0x1000, 0x10, device.clone()).unwrap();
    for address in [0, 0xfff, 0x100d, 0x1010, u64::MAX - 3] {
        let mut out = [0u8; 4];
        bus.read(address, &mut out);
        assert_eq!(out, [0xff; 4], "read at {address:#x}");
        assert_eq!(bus.write(address, &out), Effect::None);
    }
    assert_eq!(device.lock().last_write, None);
}

#[test]
fn ranges_never_overlap_or_wrap() {
    let mut bus = Bus::default();
    bus.insert(0x1000, 0x10, probe()).unwrap();
    for (base, len) in [(0xff1, 0x10), (0x100f, 1), (0, 0x2000), (0x1004, 4)] {
        let refused = bus.insert(base, len, probe());
        assert!(matches!(
            refused,
            Err(BusError::Overlap { taken: 0x1000, .. })
        ));
    }
    for (base, len) in [(0x5000, 0), (u64::MAX, 2)] {
        let refused = bus.insert(base, len, probe());
        assert_eq!(refused, Err(BusError::BadRange { base, len }));
    }
    bus.insert(u64::MAX, 1, probe()).unwrap();
}
