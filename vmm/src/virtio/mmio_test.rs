use std::os::fd::{AsRawFd as _, BorrowedFd};

use event_manager::{EventManager, MutEventSubscriber, SubscriberOps as _};

use super::super::mock_driver::{
    MockDriver, bring_up, guest_memory, read_register, write_register,
};
use super::core::{RING_EVENT_IDX, VERSION_1};
use super::*;
use crate::virtio::{DeviceEnv, DeviceFault, Identity, QueueSetup, Virtqueue};

const STATUS: u64 = 0x70;
const OWN_FEATURE: u64 = 1 << 5;
const HIGH_FEATURE: u64 = 1 << 40;

/// What happened to the device.
#[derive(Debug, Default)]
struct Record {
    running: bool,
    accepted: u64,
    starts: usize,
    notified: Vec<usize>,
    backend: usize,
    config_writes: Vec<(u64, Vec<u8>)>,
    refuse_start: bool,
}

/// Returns every chain of a notified queue at once.
struct Echo {
    record: Arc<Mutex<Record>>,
    backend: EventFd,
    env: Option<DeviceEnv>,
}

impl VirtioDevice for Echo {
    fn identity(&self) -> Identity {
        Identity {
            device_id: 42,
            features: OWN_FEATURE | HIGH_FEATURE,
            queue_sizes: &[8, 16],
        }
    }
    fn read_config(&self, offset: u64, out: &mut [u8]) {
        for (i, byte) in out.iter_mut().enumerate() {
            if offset + (i as u64) < 4 {
                *byte = offset as u8 + i as u8 + 1;
            }
        }
    }
    fn write_config(&mut self, offset: u64, data: &[u8]) {
        self.record
            .lock()
            .config_writes
            .push((offset, data.to_vec()));
    }
    fn start(&mut self, env: DeviceEnv) -> Result<(), DeviceFault> {
        let mut record = self.record.lock();
        if record.refuse_start {
            return Err(DeviceFault("refused".into()));
        }
        record.running = true;
        record.starts += 1;
        record.accepted = env.features;
        self.env = Some(env);
        Ok(())
    }
    fn stop(&mut self) {
        self.record.lock().running = false;
        self.env = None;
    }
    fn queues(&self) -> &[Virtqueue] {
        self.env.as_ref().map_or(&[], |env| &env.queues)
    }
    fn queue_notified(&mut self, index: usize) -> Result<(), DeviceFault> {
        self.record.lock().notified.push(index);
        let env = self.env.as_mut().expect("started");
        let queue = &mut env.queues[index];
        while let Some(chain) = queue.pop()? {
            queue.push_used(chain.head, 0)?;
        }
        if queue.needs_interrupt()? {
            env.interrupt.used_buffers();
        }
        Ok(())
    }
    fn backend_fd(&self) -> Option<BorrowedFd<'_>> {
        // SAFETY: the descriptor is open as long as `self`.
        Some(unsafe { BorrowedFd::borrow_raw(self.backend.as_raw_fd()) })
    }
    fn backend_ready(&mut self) -> Result<(), DeviceFault> {
        self.backend.read().expect("called when readable");
        self.record.lock().backend += 1;
        match &mut self.env {
            Some(_) => Err(DeviceFault("the backend found a broken queue".into())),
            None => Ok(()),
        }
    }
}

/// A machine with one device.
struct Rig {
    transport: Arc<Mutex<MmioTransport>>,
    events: EventManager<Box<dyn MutEventSubscriber>>,
    record: Arc<Mutex<Record>>,
    backend: EventFd,
    line: EventFd,
    memory: GuestMemory,
    drivers: [MockDriver; 2],
}

impl Rig {
    fn new() -> Self {
        let memory = guest_memory();
        let record = Arc::new(Mutex::new(Record::default()));
        let backend = EventFd::new(EFD_NONBLOCK).unwrap();
        let line = EventFd::new(EFD_NONBLOCK).unwrap();
        let device = Box::new(Echo {
            record: record.clone(),
            backend: backend.try_clone().unwrap(),
            env: None,
        });
        let drivers = [
            MockDriver::new(&memory, 0, 8),
            MockDriver::new(&memory, 1, 8),
        ];
        let transport =
            MmioTransport::new(device, memory.clone(), line.try_clone().unwrap()).unwrap();
        let transport = Arc::new(Mutex::new(transport));
        let mut events = EventManager::new().unwrap();
        let subscriber: Box<dyn MutEventSubscriber> =
            Box::new(TransportSubscriber(transport.clone()));
        events.add_subscriber(subscriber);
        Self {
            transport,
            events,
            record,
            backend,
            line,
            memory,
            drivers,
        }
    }

    fn read(&self, offset: u64) -> u32 {
        read_register(&mut self.transport.lock(), offset)
    }
    fn write(&self, offset: u64, value: u32) {
        write_register(&mut self.transport.lock(), offset, value);
    }
    /// The driver lays out its queues anew.
    fn clear_queues(&mut self) {
        self.drivers = [0, 1].map(|index| MockDriver::new(&self.memory, index, 8));
    }
    fn setups(&self) -> Vec<QueueSetup> {
        self.drivers.iter().map(MockDriver::setup).collect()
    }
    fn bring_up(&self) -> u32 {
        bring_up(&mut self.transport.lock(), &self.setups(), VERSION_1)
    }
    /// Lets the event loop run until nothing is left to do.
    fn settle(&mut self) {
        for _ in 0..100 {
            if self.events.run_with_timeout(0).unwrap() == 0 {
                return;
            }
        }
        panic!("the event loop never comes to rest");
    }
}

#[test]
fn a_driver_finds_negotiates_and_starts_the_device() {
    let mut rig = Rig::new();
    assert_eq!(rig.read(0x00), u32::from_le_bytes(*b"virt"));
    assert_eq!((rig.read(0x04), rig.read(0x08)), (2, 42));
    let page = |n| {
        rig.write(0x14, n);
        rig.read(0x10)
    };
    assert_eq!(page(0), 1 << 5 | 1 << 28 | 1 << 29);
    assert_eq!(page(1), 1 | 1 << 8);
    assert_eq!((page(2), page(u32::MAX)), (0, 0));
    rig.write(0x30, 1);
    assert_eq!(rig.read(0x34), 16);
    rig.write(0x30, 2);
    assert_eq!((rig.read(0x34), rig.read(0x44)), (0, 0));

    let features = VERSION_1 | HIGH_FEATURE | RING_EVENT_IDX;
    let status = bring_up(&mut rig.transport.lock(), &rig.setups(), features);
    assert_eq!(status, 15);
    let (running, accepted) = {
        let record = rig.record.lock();
        (record.running, record.accepted)
    };
    assert!(running);
    assert_eq!(accepted, features);
    assert_eq!(rig.read(0x44), 1);
    rig.settle();
    assert_eq!(
        rig.record.lock().notified,
        [0, 1],
        "each queue is looked at once"
    );
}

#[test]
fn requests_are_served_and_the_interrupt_is_raised_and_acknowledged() {
    let mut rig = Rig::new();
    // Offered before the device runs, and notified too early.
    let early = rig.drivers[0].send(&[b"early"], &[]);
    rig.transport.lock().notify_fds()[0].write(1).unwrap();
    rig.settle();
    rig.bring_up();
    rig.settle();
    assert_eq!(rig.drivers[0].used()[0].head, u32::from(early.head));

    let _ = rig.line.read();
    rig.write(0x64, 3);
    rig.drivers[1].send(&[b"x"], &[]);
    rig.write(MmioTransport::QUEUE_NOTIFY, 1);
    rig.settle();
    assert_eq!(rig.drivers[1].used().len(), 1);
    assert_eq!(rig.line.read().unwrap(), 1);
    assert_eq!(rig.read(0x60), 1);
    rig.write(0x64, 2);
    assert_eq!(rig.read(0x60), 1);
    rig.write(0x64, 1);
    assert_eq!(rig.read(0x60), 0);
    // A queue that does not exist.
    rig.write(MmioTransport::QUEUE_NOTIFY, 2);
    rig.write(MmioTransport::QUEUE_NOTIFY, u32::MAX);
    rig.settle();
}

#[test]
fn features_are_refused_unless_offered_and_modern() {
    for features in [0, OWN_FEATURE, VERSION_1 | 1, VERSION_1 | 1 << 63] {
        let rig = Rig::new();
        let status = bring_up(&mut rig.transport.lock(), &rig.setups(), features);
        assert_eq!(status, 3, "{features:#x}");
        assert!(!rig.record.lock().running);
    }
}

#[test]
fn a_step_out_of_order_is_ignored() {
    let rig = Rig::new();
    rig.write(0x20, 1 << 5); // No DRIVER yet.
    rig.write(STATUS, 4);
    rig.write(STATUS, 8);
    assert_eq!(rig.read(STATUS), 0);
    rig.write(STATUS, 64); // Not the driver's bit.
    assert_eq!(rig.read(STATUS), 0);
    rig.write(STATUS, 3);
    rig.write(0x38, 4); // No FEATURES_OK yet.
    rig.write(0x44, 1);
    assert_eq!(rig.read(0x44), 0);
    rig.write(0x24, 1);
    rig.write(0x20, 1);
    rig.write(STATUS, 11);
    assert_eq!(rig.read(STATUS), 11);
    rig.write(0x20, 0); // Features are settled.
    rig.write(STATUS, 1); // Bits are never cleared one by one.
    assert_eq!(rig.read(STATUS), 11);
    rig.write(STATUS, 15);
    assert!(rig.record.lock().running);
    assert_eq!(rig.record.lock().accepted, VERSION_1);
    rig.write(0x44, 1); // The queues belong to the device.
    assert_eq!(rig.read(0x44), 0);
    rig.write(STATUS, 15);
    assert_eq!(rig.record.lock().starts, 1);
}

#[test]
fn a_reset_in_any_state_leads_back_to_the_start() {
    let mut rig = Rig::new();
    for reached in [0, 1, 3, 11, 15, 15 | 128] {
        match reached {
            15.. => {
                rig.bring_up();
                rig.write(STATUS, reached);
            }
            11 => {
                rig.bring_up();
                rig.write(STATUS, 0);
                rig.write(STATUS, 3);
                rig.write(0x24, 1);
                rig.write(0x20, 1);
                rig.write(STATUS, 11);
            }
            _ => rig.write(STATUS, reached),
        }
        assert_eq!(rig.read(STATUS), reached);
        // One request is done and not acknowledged, another is on its way.
        for settled in [true, false] {
            rig.drivers[0].send(&[b"x"], &[]);
            rig.write(MmioTransport::QUEUE_NOTIFY, 0);
            if settled {
                rig.settle();
            }
        }
        assert_eq!(rig.read(0x60), u32::from(reached >= 15));
        rig.write(STATUS, 0);
        assert_eq!((rig.read(STATUS), rig.read(0x60)), (0, 0));
        rig.write(0x30, 0);
        assert_eq!(rig.read(0x44), 0);
        assert!(!rig.record.lock().running);
        rig.settle();
        rig.clear_queues();
    }
    // And it can start again.
    assert_eq!(rig.bring_up(), 15);
}

#[test]
fn a_broken_queue_takes_the_device_out_of_service_until_reset() {
    let mut rig = Rig::new();
    rig.bring_up();
    rig.settle();
    let generation = rig.read(0xfc);
    rig.drivers[0].set_available_index(0x8000);
    rig.write(MmioTransport::QUEUE_NOTIFY, 0);
    rig.settle();
    assert_eq!(rig.read(STATUS), 15 | 64);
    assert_eq!(rig.read(0x60) & 2, 2, "a configuration interrupt tells");
    assert_ne!(rig.read(0xfc), generation);
    assert!(!rig.record.lock().running);

    let before = rig.record.lock().notified.len();
    rig.drivers[1].send(&[b"x"], &[]);
    rig.write(MmioTransport::QUEUE_NOTIFY, 0);
    rig.write(MmioTransport::QUEUE_NOTIFY, 1);
    rig.write(STATUS, 15 | 64);
    rig.settle();
    assert_eq!(rig.record.lock().notified.len(), before);
    assert!(rig.drivers[1].used().is_empty());

    rig.clear_queues();
    assert_eq!(rig.bring_up(), 15);
}

#[test]
fn queues_that_cannot_be_and_devices_that_refuse_need_a_reset() {
    let rig = Rig::new();
    let mut setups = rig.setups();
    setups[1].used = 1 << 40;
    let status = bring_up(&mut rig.transport.lock(), &setups, VERSION_1);
    assert_eq!(status, 15 | 64);
    assert_eq!(rig.record.lock().starts, 0);

    rig.record.lock().refuse_start = true;
    assert_eq!(rig.bring_up(), 15 | 64);
    assert_eq!(rig.read(0x60), 2);
}

#[test]
fn a_queue_left_unready_is_not_served() {
    let mut rig = Rig::new();
    let mut setups = rig.setups();
    setups[0].ready = false;
    assert_eq!(bring_up(&mut rig.transport.lock(), &setups, VERSION_1), 15);
    rig.write(MmioTransport::QUEUE_NOTIFY, 0);
    rig.settle();
    assert_eq!(rig.record.lock().notified, [1]);
}

#[test]
fn the_backend_is_heard_in_every_state_and_its_fault_counts_when_started() {
    let mut rig = Rig::new();
    rig.backend.write(1).unwrap();
    rig.settle();
    assert_eq!(rig.record.lock().backend, 1);
    assert_eq!(rig.read(STATUS), 0);
    rig.bring_up();
    rig.backend.write(1).unwrap();
    rig.settle();
    assert_eq!(rig.read(STATUS), 15 | 64);
    rig.backend.write(1).unwrap();
    rig.settle();
    assert_eq!(rig.record.lock().backend, 3);
}

#[test]
fn stopping_the_machine_stops_the_device() {
    let mut rig = Rig::new();
    rig.bring_up();
    rig.transport.lock().stop();
    assert!(!rig.record.lock().running);
    rig.drivers[0].send(&[b"x"], &[]);
    rig.write(MmioTransport::QUEUE_NOTIFY, 0);
    rig.settle();
    assert!(rig.drivers[0].used().is_empty());
}

#[test]
fn registers_answer_only_whole_and_aligned_accesses() {
    let rig = Rig::new();
    rig.bring_up();
    let mut transport = rig.transport.lock();
    for offset in 0..0x100 {
        for width in 1..=8 {
            let mut out = [0xff; 8];
            transport.read(offset, &mut out[..width]);
            if width != 4 || offset % 4 != 0 {
                assert_eq!(out, [0xff; 8], "{width} bytes at {offset:#x}");
                // No reset, whatever is written.
                for value in [0x00, 0x01, 0xff] {
                    transport.write(offset, &[value; 8][..width]);
                }
            }
        }
    }
    assert_eq!(read_register(&mut transport, STATUS), 15);
    assert!(rig.record.lock().running);
    // Every register with every kind of value.
    for offset in (0..0x100).step_by(4) {
        for value in [0, 1, 2, 0x7fff_ffff, u32::MAX] {
            write_register(&mut transport, offset, value);
            read_register(&mut transport, offset);
        }
    }
}

#[test]
fn the_configuration_space_takes_any_width_and_zeroes_end_it() {
    let rig = Rig::new();
    let mut transport = rig.transport.lock();
    let mut out = [0xff; 8];
    transport.read(0x100, &mut out);
    assert_eq!(out, [1, 2, 3, 4, 0, 0, 0, 0]);
    let mut out = [0xff; 3];
    transport.read(0x103, &mut out);
    assert_eq!(out, [4, 0, 0]);
    let mut out = [0xff; 8];
    transport.read(MmioTransport::LEN - 1, &mut out);
    assert_eq!(out, [0; 8]);

    transport.write(0x101, &[7]);
    assert!(rig.record.lock().config_writes.is_empty(), "no driver yet");
    write_register(&mut transport, STATUS, 3);
    transport.write(0x101, &[7, 8]);
    assert_eq!(rig.record.lock().config_writes, [(1, vec![7, 8])]);
}

#[test]
fn interrupts_are_acknowledged_and_queues_notified_while_the_device_works() {
    let mut rig = Rig::new();
    rig.bring_up();
    rig.settle();
    rig.transport.lock().interrupt().used_buffers();
    let core = rig.transport.lock().core.clone();
    let working = core.lock();
    assert_eq!(rig.read(INTERRUPT_STATUS), 1);
    rig.write(INTERRUPT_ACKNOWLEDGE, 1);
    assert_eq!(rig.read(INTERRUPT_STATUS), 0);
    rig.drivers[0].send(&[b"x"], &[]);
    rig.write(MmioTransport::QUEUE_NOTIFY, 0);
    drop(working);
    rig.settle();
    assert_eq!(rig.drivers[0].used().len(), 1);
}
