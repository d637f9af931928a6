//! A guest that does what it likes with the registers, the rings and the
//! requests of a block device.

#![no_main]

mod input;

use std::io;
use std::sync::Arc;

use coppice_vmm::backends::disk::DiskBackend;
use coppice_vmm::bus::BusDevice as _;
use coppice_vmm::devices::block::Block;
use coppice_vmm::spec::{CacheType, DriveConfig};
use coppice_vmm::units::Gpa;
use coppice_vmm::virtio::mock_driver::{
    Descriptor, LOW_END, MockDriver, bring_up, guest_memory, write_register,
};
use coppice_vmm::virtio::{MmioTransport, TransportSubscriber};
use event_manager::{EventManager, MutEventSubscriber, SubscriberOps as _};
use input::Input;
use libfuzzer_sys::fuzz_target;
use parking_lot::Mutex;
use vm_memory::{Bytes as _, VolatileSlice};
use vmm_sys_util::eventfd::{EFD_NONBLOCK, EventFd};

/// A disk that insists on what its users promise.
struct StrictDisk {
    data: Vec<u8>,
    read_only: bool,
}

impl StrictDisk {
    fn check(&self, offset: u64, len: u64) {
        let end = offset.checked_add(len).expect("no overflow");
        assert!(end <= self.len(), "outside the disk");
    }

    fn check_change(&self, offset: u64, len: u64) {
        assert!(!self.read_only, "the disk is read-only");
        self.check(offset, len);
    }
}

impl DiskBackend for StrictDisk {
    fn len(&self) -> u64 {
        self.data.len() as u64
    }
    fn read_vectored_at(&mut self, slices: &[VolatileSlice<'_>], offset: u64) -> io::Result<()> {
        self.check(offset, slices.iter().map(|s| s.len() as u64).sum());
        let mut rest = &self.data[offset as usize..];
        for slice in slices {
            slice.copy_from(&rest[..slice.len()]);
            rest = &rest[slice.len()..];
        }
        Ok(())
    }
    fn write_vectored_at(&mut self, slices: &[VolatileSlice<'_>], offset: u64) -> io::Result<()> {
        self.check_change(offset, slices.iter().map(|s| s.len() as u64).sum());
        let mut rest = &mut self.data[offset as usize..];
        for slice in slices {
            let (part, tail) = rest.split_at_mut(slice.len());
            slice.copy_to(part);
            rest = tail;
        }
        Ok(())
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
    fn discard(&mut self, offset: u64, len: u64) -> io::Result<()> {
        self.check_change(offset, len);
        Err(io::ErrorKind::StorageFull.into())
    }
    fn write_zeroes(&mut self, offset: u64, len: u64, _may_unmap: bool) -> io::Result<()> {
        self.check_change(offset, len);
        self.data[offset as usize..][..len as usize].fill(0);
        Ok(())
    }
}

fuzz_target!(|data: &[u8]| {
    let mut input = Input(data);
    let config = DriveConfig {
        drive_id: "fuzz".into(),
        is_read_only: input.byte() % 4 == 0,
        cache_type: match input.byte() % 2 {
            0 => CacheType::Unsafe,
            _ => CacheType::Writeback,
        },
        ..DriveConfig::default()
    };
    let disk = StrictDisk {
        data: vec![0x5a; 64 * 512],
        read_only: config.is_read_only,
    };
    let device = Block::with_backend(&config, Box::new(disk)).expect("a device");
    let memory = guest_memory();
    let line = EventFd::new(EFD_NONBLOCK).expect("an event descriptor");
    let transport =
        MmioTransport::new(Box::new(device), memory.clone(), line).expect("a transport");
    let transport = Arc::new(Mutex::new(transport));
    let mut events = EventManager::<Box<dyn MutEventSubscriber>>::new().expect("an event loop");
    events.add_subscriber(Box::new(TransportSubscriber(Arc::clone(&transport))));
    let mut driver = MockDriver::new(&memory, 0, 32);

    while !input.is_empty() {
        let mut transport = transport.lock();
        match input.byte() % 10 {
            0 => {
                let accept = u64::from(input.u32()) | 1 << 32;
                bring_up(&mut transport, &[driver.setup()], accept);
                driver = MockDriver::new(&memory, 0, 32);
            }
            1 => write_register(&mut transport, u64::from(input.byte()) * 4, input.u32()),
            2 => {
                let (offset, width) = (input.u16() % 0x1000, input.byte() % 8 + 1);
                let data: [u8; 8] = input.bytes();
                transport.write(offset.into(), &data[..width.into()]);
            }
            3 => {
                let (offset, width) = (input.u16() % 0x1000, input.byte() % 8 + 1);
                transport.read(offset.into(), &mut [0xff; 8][..width.into()]);
            }
            4 => {
                let at = driver.setup().descriptors + u64::from(input.u16() % 1024);
                let _ = memory.write_slice(&input.bytes::<8>(), Gpa(at));
            }
            5 => {
                let descriptor = Descriptor {
                    address: input.address(LOW_END),
                    len: input.u16().into(),
                    flags: (input.byte() % 8).into(),
                    next: (input.byte() % 34).into(),
                };
                driver.set_descriptor((input.byte() % 32).into(), descriptor);
                driver.offer((input.byte() % 34).into());
            }
            6 | 7 => {
                driver.forget_data();
                let kind = u32::from(input.byte() % 16).to_le_bytes();
                let sector = u64::from(input.byte() % 66).to_le_bytes();
                let header = [&kind[..], &[0; 4], &sector].concat();
                let cut = usize::from(input.byte() % 17);
                let data = [1; 1024];
                let given = usize::from(input.byte() % 5) * 256;
                let range = [
                    &sector[..],
                    &[input.byte() % 8, 0, 0, 0],
                    &[input.byte() % 4, 0, 0, 0],
                ]
                .concat();
                let payload = if kind[0] > 8 {
                    &range[..]
                } else {
                    &data[..given]
                };
                let answer = usize::from(input.byte() % 5) * 256;
                let status = usize::from(input.byte() % 2);
                driver.send(
                    &[&header[..cut], &header[cut..], payload],
                    &[answer, status],
                );
            }
            8 => driver.set_available_index(input.byte().into()),
            _ => write_register(&mut transport, MmioTransport::QUEUE_NOTIFY, 0),
        }
        drop(transport);
        for _ in 0..16 {
            if events.run_with_timeout(0).expect("the event loop runs") == 0 {
                break;
            }
        }
        driver.used();
    }
    transport.lock().stop();
});
