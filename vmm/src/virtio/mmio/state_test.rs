use std::os::fd::BorrowedFd;
use std::sync::Arc;

use event_manager::{EventManager, MutEventSubscriber, SubscriberOps as _};
use parking_lot::Mutex;
use vmm_sys_util::eventfd::{EFD_NONBLOCK, EventFd};

use super::super::core::{RING_EVENT_IDX, VERSION_1};
use super::super::{MmioTransport, TransportSubscriber};
use super::*;
use crate::memory::GuestMemory;
use crate::state;
use crate::virtio::mock_driver::{
    MockDriver, bring_up, copy_of, guest_memory, read_register, write_register,
};
use crate::virtio::{DeviceEnv, Identity, NextTurn, VirtioDevice, Virtqueue};

const STATUS: u64 = 0x70;
const DEVICE_ID: u32 = 42;
const SIZE: u16 = 8;

/// Writes to each request how many it has served, and keeps that number.
struct Counter {
    served: u32,
    turn: NextTurn,
    env: Option<DeviceEnv>,
}

impl VirtioDevice for Counter {
    fn identity(&self) -> Identity {
        Identity {
            device_id: DEVICE_ID,
            features: 1 << 5,
            queue_sizes: &[SIZE, SIZE],
        }
    }
    fn read_config(&self, _offset: u64, _out: &mut [u8]) {}
    fn start(&mut self, env: DeviceEnv) -> Result<(), DeviceFault> {
        self.env = Some(env);
        Ok(())
    }
    fn stop(&mut self) {
        self.env = None;
    }
    fn queues(&self) -> &[Virtqueue] {
        self.env.as_ref().map_or(&[], |env| &env.queues)
    }
    fn save(&self) -> Result<Vec<u8>, StateError> {
        state::encode("the counter", &self.served)
    }
    fn restore(&mut self, state: &[u8]) -> Result<(), StateError> {
        self.served = state::decode("the counter", state)?;
        Ok(())
    }
    fn queue_notified(&mut self, index: usize) -> Result<(), DeviceFault> {
        let env = self.env.as_mut().expect("started");
        let served = &mut self.served;
        self.turn
            .serve(&mut env.queues[index], &env.interrupt, |mut chain| {
                *served += 1;
                chain
                    .writable
                    .write_all(&served.to_le_bytes())
                    .expect("room");
                4
            })
    }
    fn backend_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.turn.fd())
    }
    fn backend_ready(&mut self) -> Result<(), DeviceFault> {
        self.turn.taken();
        Ok(())
    }
}

/// A machine with that device.
struct Rig {
    transport: Arc<Mutex<MmioTransport>>,
    events: EventManager<Box<dyn MutEventSubscriber>>,
    line: EventFd,
    memory: GuestMemory,
    drivers: [MockDriver; 2],
}

impl Rig {
    fn on(memory: GuestMemory, drivers: [MockDriver; 2]) -> Self {
        let line = EventFd::new(EFD_NONBLOCK).unwrap();
        let device = Box::new(Counter {
            served: 0,
            turn: NextTurn::new().unwrap(),
            env: None,
        });
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
            line,
            memory,
            drivers,
        }
    }

    fn new() -> Self {
        let memory = guest_memory();
        let drivers = [0, 1].map(|index| MockDriver::new(&memory, index, SIZE));
        Self::on(memory, drivers)
    }

    fn started(features: u64) -> Self {
        let mut rig = Self::new();
        let setups: Vec<_> = rig.drivers.iter().map(MockDriver::setup).collect();
        let status = bring_up(&mut rig.transport.lock(), &setups, VERSION_1 | features);
        assert_eq!(status, 15);
        rig.settle();
        rig
    }

    /// Another machine, not filled yet, with a copy of this one's memory.
    fn sibling(&self) -> Self {
        let memory = copy_of(&self.memory);
        let drivers = [0, 1].map(|index: usize| self.drivers[index].moved_to(&memory));
        Self::on(memory, drivers)
    }

    /// Another machine, restored from this one's state.
    fn restored(&self) -> Self {
        let rig = self.sibling();
        rig.restore(self.save()).unwrap();
        rig
    }

    fn save(&self) -> TransportV1 {
        let TransportState::V1(state) = self.transport.lock().save().unwrap();
        state
    }

    fn restore(&self, state: TransportV1) -> Result<(), StateError> {
        self.transport.lock().restore(TransportState::V1(state))
    }

    fn read(&self, offset: u64) -> u32 {
        read_register(&mut self.transport.lock(), offset)
    }

    fn write(&self, offset: u64, value: u32) {
        write_register(&mut self.transport.lock(), offset, value);
    }

    fn notify(&self, queue: u32) {
        self.write(MmioTransport::QUEUE_NOTIFY, queue);
    }

    /// Lets the vCPUs run, as it were, and the event loop until it has nothing to do.
    fn go_on(&mut self) {
        self.transport.lock().after_restore();
        self.settle();
    }

    fn settle(&mut self) {
        for _ in 0..100 {
            if self.events.run_with_timeout(0).unwrap() == 0 {
                return;
            }
        }
        panic!("the event loop never comes to rest");
    }

    fn offer(&mut self, queue: usize, count: usize) {
        for _ in 0..count {
            self.drivers[queue].forget_data();
            self.drivers[queue].send(&[], &[4]);
        }
    }

    /// How many requests came back from `queue`, and the number in the last.
    fn answers(&mut self, queue: usize) -> (usize, u32) {
        let count = self.drivers[queue].used().len();
        self.drivers[queue].forget_data();
        let at = self.drivers[queue].alloc(4);
        let last = self.drivers[queue].get(at, 4);
        (count, u32::from_le_bytes(last.try_into().unwrap()))
    }
}

#[test]
fn traffic_goes_on_where_it_was_with_nothing_lost_or_doubled() {
    for features in [0, RING_EVENT_IDX] {
        let mut rig = Rig::started(features);
        let mut total = 0;
        // Far enough for the indices to wrap around the rings, in every place.
        for generation in 0..20 {
            rig.offer(0, 3);
            rig.notify(0);
            rig.settle();
            total += 3;
            assert_eq!(rig.answers(0), (3, total));
            // The driver offers more, and nobody hears of it before the end.
            rig.offer(0, 2 + generation % 3);
            rig.offer(1, 1);
            let mut child = rig.restored();
            child.go_on();
            let late = 2 + generation as u32 % 3;
            assert_eq!(child.answers(0), (late as usize, total + late));
            assert_eq!(child.answers(1), (1, total + late + 1));
            total += late + 1;
            rig = child;
        }
    }
}

#[test]
fn the_saved_machine_itself_goes_on_too() {
    let mut rig = Rig::started(0);
    rig.offer(0, 2);
    rig.notify(0);
    rig.save();
    rig.settle();
    assert_eq!(rig.answers(0), (2, 2));
}

#[test]
fn a_driver_that_was_not_asked_for_notifications_is_asked_anew() {
    let mut rig = Rig::started(RING_EVENT_IDX);
    let armed = rig.drivers[0].available_event();
    // This one was notified, and the notification is lost with the process.
    rig.offer(0, 1);
    rig.notify(0);
    let mut child = rig.restored();
    child.go_on();
    assert_eq!(child.answers(0).0, 1);
    assert_eq!(child.drivers[0].available_event(), armed + 1);
}

#[test]
fn what_is_saved_after_a_restore_is_what_was_saved_before() {
    let mut rig = Rig::started(RING_EVENT_IDX | 1 << 5);
    rig.write(0x14, 1);
    rig.write(0x24, 7);
    rig.write(0x30, u32::MAX);
    rig.offer(1, 5);
    rig.notify(1);
    rig.settle();
    rig.transport.lock().interrupt().config_changed();
    let state = rig.save();
    assert_eq!(rig.restored().save(), state);
    assert_ne!(Rig::started(0).save(), state);
}

#[test]
fn an_interrupt_that_may_be_lost_is_raised_again_when_the_vcpus_are_about_to_run() {
    let mut rig = Rig::started(0);
    rig.offer(0, 1);
    rig.notify(0);
    rig.settle();
    assert_eq!(rig.read(0x60), 1);
    let generation = rig.read(0xfc);
    let child = rig.restored();
    assert!(child.line.read().is_err(), "not before the controllers");
    assert_eq!(child.read(0x60), 1);
    assert_eq!(child.read(0xfc), generation);
    child.transport.lock().after_restore();
    assert_eq!(child.line.read().unwrap(), 1);
    assert_eq!(child.read(0xfc), generation, "the space did not change");

    child.write(0x64, 1);
    let quiet = child.restored();
    quiet.transport.lock().after_restore();
    assert!(quiet.line.read().is_err(), "there is nothing to tell");
}

#[test]
fn a_driver_that_has_not_started_the_device_goes_on_with_that() {
    // What the driver does, step by step, cut after each.
    let rig = Rig::new();
    let setup = rig.drivers[0].setup();
    let steps = [
        (STATUS, 1),
        (STATUS, 3),
        (0x24, 1),
        (0x20, 1),
        (STATUS, 11),
        (0x30, 0),
        (0x38, setup.size),
        (0x80, setup.descriptors as u32),
        (0x90, setup.available as u32),
        (0xa0, setup.used as u32),
        (0x44, 1),
        (STATUS, 15),
    ];
    for cut in 0..=steps.len() {
        let rig = Rig::new();
        for (register, value) in &steps[..cut] {
            rig.write(*register, *value);
        }
        let mut child = rig.restored();
        for (register, value) in &steps[cut..] {
            child.write(*register, *value);
        }
        child.offer(0, 1);
        child.go_on();
        assert_eq!(child.read(STATUS), 15);
        assert_eq!(child.answers(0), (1, 1), "cut after step {cut}");
    }
}

#[test]
fn a_broken_device_stays_broken_until_it_is_reset() {
    let mut rig = Rig::started(0);
    rig.drivers[0].set_available_index(0x8000);
    rig.notify(0);
    rig.settle();
    let mut child = rig.restored();
    child.go_on();
    assert_eq!(child.read(STATUS), 15 | 64);
    assert_eq!(child.read(0x60), 2);
    child.drivers = [0, 1].map(|index| MockDriver::new(&child.memory, index, SIZE));
    let setups: Vec<_> = child.drivers.iter().map(MockDriver::setup).collect();
    assert_eq!(
        bring_up(&mut child.transport.lock(), &setups, VERSION_1),
        15
    );
}

#[test]
fn a_queue_that_the_driver_broke_unseen_is_not_saved() {
    let mut rig = Rig::started(0);
    rig.drivers[1].set_available_index(SIZE + 1);
    let error = rig.transport.lock().save().unwrap_err();
    assert!(matches!(error, StateError::NotNow { .. }), "{error}");
    assert!(error.to_string().contains("queue 1"), "{error}");
}

#[test]
fn a_device_that_the_machine_stopped_is_not_saved() {
    let rig = Rig::started(0);
    rig.transport.lock().stop();
    let error = rig.transport.lock().save().unwrap_err();
    assert!(matches!(error, StateError::NotNow { .. }), "{error}");
}

/// Has none of what saving takes.
struct Plain;

impl VirtioDevice for Plain {
    fn identity(&self) -> Identity {
        Identity {
            device_id: DEVICE_ID,
            features: 1 << 5,
            queue_sizes: &[SIZE, SIZE],
        }
    }
    fn read_config(&self, _offset: u64, _out: &mut [u8]) {}
    fn start(&mut self, _env: DeviceEnv) -> Result<(), DeviceFault> {
        Ok(())
    }
    fn stop(&mut self) {}
    fn queues(&self) -> &[Virtqueue] {
        &[]
    }
    fn queue_notified(&mut self, _index: usize) -> Result<(), DeviceFault> {
        Ok(())
    }
}

#[test]
fn a_device_without_a_saved_form_says_so() {
    let line = EventFd::new(EFD_NONBLOCK).unwrap();
    let mut plain = MmioTransport::new(Box::new(Plain), guest_memory(), line).unwrap();
    let error = plain.save().unwrap_err();
    assert!(matches!(error, StateError::Unsupported { .. }), "{error}");
    assert!(error.to_string().contains("type 42"), "{error}");
    let state = TransportState::V1(Rig::new().save());
    let error = plain.restore(state).unwrap_err();
    assert!(matches!(error, StateError::Unsupported { .. }), "{error}");
}

/// Changes a state, and a part of the refusal's text.
type Damage = (fn(&mut TransportV1), &'static str);

#[test]
fn what_cannot_be_is_refused_by_name_and_leaves_the_device_as_after_a_reset() {
    let damages: [Damage; 24] = [
        (|s| s.device_id = 2, "type 2"),
        (|s| s.status |= 16, "0x1f"),
        (|s| s.status |= 1 << 31, "0x8000000f"),
        (|s| s.status &= !8, "0x7"),
        (|s| s.status &= !2, "0xd"),
        (|s| s.status &= !4, "not started"),
        (|s| s.status |= 64, "not started"),
        (|s| s.interrupt_status = 4, "0x4"),
        (|s| s.accepted |= 1 << 6, "features"),
        (|s| s.accepted &= !VERSION_1, "features"),
        (|s| s.queues.clear(), "[]"),
        (|s| s.queues.truncate(1), "[8]"),
        (|s| s.queues.push(s.queues[0].clone()), "[8, 8, 8]"),
        (|s| s.queues[0].max_size = 16, "[16, 8]"),
        (|s| s.queues[0].size = 3, "3 is not"),
        (|s| s.queues[0].size = 0x1_0008, "65544"),
        (|s| s.queues[0].used = u64::MAX - 3, "queue 0"),
        (|s| s.queues[1].available |= 1, "queue 1"),
        (|s| s.queues[0].ready = false, "queue 0"),
        (|s| s.queues[0].next_avail = 1, "took 1 and returned 4"),
        (|s| s.queues[0].next_avail = 57_386, "57386"),
        (|s| s.queues[0].next_used -= 1, "used index"),
        (|s| s.queues[0].next_used += SIZE + 1, "returned"),
        (|s| s.device.push(0), "counter"),
    ];
    let mut rig = Rig::started(0);
    rig.offer(0, 4);
    rig.notify(0);
    rig.settle();
    for (number, (damage, text)) in damages.into_iter().enumerate() {
        let mut state = rig.save();
        damage(&mut state);
        let mut child = rig.sibling();
        let error = child.restore(state).unwrap_err().to_string();
        assert!(error.contains(text), "damage {number}: {error}");
        assert_eq!(child.read(STATUS), 0);
        child.go_on();
        assert!(child.line.read().is_err());
        child.drivers = [0, 1].map(|index| MockDriver::new(&child.memory, index, SIZE));
        let setups: Vec<_> = child.drivers.iter().map(MockDriver::setup).collect();
        assert_eq!(
            bring_up(&mut child.transport.lock(), &setups, VERSION_1),
            15
        );
        child.offer(0, 1);
        child.notify(0);
        child.settle();
        assert_eq!(child.drivers[0].used().len(), 1);
    }
}

#[test]
fn memory_of_another_moment_is_refused() {
    let mut rig = Rig::started(0);
    let early = rig.sibling();
    rig.offer(0, 3);
    rig.notify(0);
    rig.settle();
    let error = early.restore(rig.save()).unwrap_err().to_string();
    assert!(error.contains("queue 0"), "{error}");
}

#[test]
fn damaged_bytes_are_refused_or_lead_to_a_device_that_works() {
    let mut rig = Rig::started(RING_EVENT_IDX);
    rig.offer(0, 4);
    rig.notify(0);
    rig.settle();
    let state = TransportState::V1(rig.save());
    let bytes = state::encode("a transport", &state).unwrap();
    for len in 0..bytes.len() {
        state::decode::<TransportState>("a transport", &bytes[..len]).expect_err("cut");
    }
    let mut child = rig.sibling();
    for bit in 0..8 * bytes.len() {
        let mut bytes = bytes.clone();
        bytes[bit / 8] ^= 1 << (bit % 8);
        let Ok(state) = state::decode::<TransportState>("a transport", &bytes) else {
            continue;
        };
        let before = child.transport.lock().restore(state.clone());
        if before.is_ok() {
            assert_eq!(child.transport.lock().save().unwrap(), state, "bit {bit}");
        }
        child.go_on();
    }
}
