//! The saved state of a transport, damaged anywhere, restored over memory that
//! may be damaged too; then the machine runs.

#![no_main]

mod input;

use std::path::Path;
use std::sync::Arc;

use coppice_vmm::devices::block::Block;
use coppice_vmm::devices::rng::Rng;
use coppice_vmm::devices::vsock::Vsock;
use coppice_vmm::memory::GuestMemory;
use coppice_vmm::spec::{DriveConfig, VsockConfig};
use coppice_vmm::state;
use coppice_vmm::units::Gpa;
use coppice_vmm::virtio::mock_driver::{MockDriver, bring_up, copy_of, guest_memory};
use coppice_vmm::virtio::{MmioTransport, TransportState, TransportSubscriber, VirtioDevice};
use event_manager::{EventManager, MutEventSubscriber, SubscriberOps as _};
use input::Input;
use libfuzzer_sys::fuzz_target;
use parking_lot::Mutex;
use vm_memory::Bytes as _;
use vmm_sys_util::eventfd::{EFD_NONBLOCK, EventFd};

const VERSION_1: u64 = 1 << 32;
const EVENT_IDX: u64 = 1 << 29;
const NAME: &str = "the fuzzed device";

fn device(kind: u8, dir: &Path, name: &str) -> Box<dyn VirtioDevice> {
    match kind % 3 {
        0 => Box::new(Rng::new().expect("a device")),
        1 => {
            let path_on_host = dir.join(name);
            std::fs::write(&path_on_host, [0; 8192]).expect("an image");
            let config = DriveConfig {
                drive_id: "fuzz".into(),
                path_on_host,
                ..DriveConfig::default()
            };
            Box::new(Block::new(&config).expect("a device"))
        }
        _ => {
            let config = VsockConfig {
                guest_cid: 3,
                uds_path: dir.join(name),
                vsock_id: None,
            };
            Box::new(Vsock::new(&config).expect("a device"))
        }
    }
}

/// A machine with one device and its event loop.
struct Machine {
    transport: Arc<Mutex<MmioTransport>>,
    events: EventManager<Box<dyn MutEventSubscriber>>,
}

impl Machine {
    fn new(device: Box<dyn VirtioDevice>, memory: &GuestMemory) -> Self {
        let line = EventFd::new(EFD_NONBLOCK).expect("a descriptor");
        let transport = MmioTransport::new(device, memory.clone(), line).expect("a transport");
        let transport = Arc::new(Mutex::new(transport));
        let mut events = EventManager::new().expect("an event loop");
        let subscriber: Box<dyn MutEventSubscriber> =
            Box::new(TransportSubscriber(transport.clone()));
        events.add_subscriber(subscriber);
        Self { transport, events }
    }

    fn settle(&mut self) {
        for _ in 0..100 {
            if self.events.run_with_timeout(0).expect("the loop runs") == 0 {
                return;
            }
        }
    }
}

fuzz_target!(|data: &[u8]| {
    let mut input = Input(data);
    let dir = tempfile::tempdir().expect("a directory");
    let kind = input.byte();
    let memory = guest_memory();
    let device_before = device(kind, dir.path(), "before");
    let sizes = device_before.identity().queue_sizes;
    let mut before = Machine::new(device_before, &memory);
    let mut drivers: Vec<_> = (0..)
        .zip(sizes)
        .map(|(index, &size)| MockDriver::new(&memory, index, size))
        .collect();
    if kind < 200 {
        let setups: Vec<_> = drivers.iter().map(MockDriver::setup).collect();
        let features = VERSION_1 | if kind < 100 { EVENT_IDX } else { 0 };
        bring_up(&mut before.transport.lock(), &setups, features);
    }
    for _ in 0..input.byte() % 8 {
        let at = usize::from(input.byte()) % drivers.len();
        drivers[at].send(&[&[0; 16]], &[64, 1]);
        if input.byte() % 2 == 0 {
            let _ = before.transport.lock().notify_fds()[at].write(1);
            before.settle();
        }
    }
    let saved = before.transport.lock().save().expect("nothing is broken");
    let mut bytes = state::encode(NAME, &saved).expect("it has an encoding");

    let memory = copy_of(&memory);
    while !input.is_empty() {
        match input.byte() % 4 {
            0 => bytes.truncate(usize::from(input.byte())),
            1 => {
                let _ = memory.write_slice(&input.bytes::<2>(), Gpa(input.address(1 << 20)));
            }
            _ => {
                let at = usize::from(input.byte());
                let value = input.byte();
                if let Some(byte) = bytes.get_mut(at) {
                    *byte = value;
                }
            }
        }
    }
    let Ok(damaged) = state::decode::<TransportState>(NAME, &bytes) else {
        return;
    };
    let mut after = Machine::new(device(kind, dir.path(), "after"), &memory);
    let restored = after.transport.lock().restore(damaged.clone());
    if restored.is_ok() && damaged == saved {
        after.transport.lock().save().expect("it was just restored");
    }
    after.transport.lock().after_restore();
    after.settle();
    for (at, driver) in drivers.iter().enumerate() {
        let mut driver = driver.moved_to(&memory);
        driver.send(&[&[0; 16]], &[64, 1]);
        let _ = after.transport.lock().notify_fds()[at].write(1);
        after.settle();
    }
    let _ = after.transport.lock().save();
});
