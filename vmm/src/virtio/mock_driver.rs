//! A driver that lives in guest memory, for tests and fuzz targets: it lays out
//! a virtqueue, offers chains of any shape, well-formed or not, and reads the
//! used ring.

#![expect(clippy::missing_panics_doc, reason = "a test fails by panicking")]

use std::sync::Arc;

use vm_memory::{ByteValued, Bytes as _, GuestMemoryBackend as _, GuestMemoryRegion as _};

use vmm_sys_util::eventfd::{EFD_NONBLOCK, EventFd};

use super::{DeviceEnv, Interrupt, MmioTransport, QueuePosition, QueueSetup, Virtqueue};
use crate::bus::BusDevice as _;
use crate::memory::GuestMemory;
use crate::units::{Gpa, MIB};

/// Descriptor flag: another descriptor follows.
pub const NEXT: u16 = 1;
/// Descriptor flag: the device writes the buffer.
pub const WRITE: u16 = 2;
/// Descriptor flag: the buffer is a table of descriptors.
pub const INDIRECT: u16 = 4;

/// First address past the low region of [`guest_memory`]; a hole follows.
pub const LOW_END: u64 = 16 * MIB;
/// First address of the high region of [`guest_memory`].
pub const HIGH_START: u64 = 4096 * MIB;

/// 16 MiB of memory from address 0 in two adjoining regions of 8 MiB, a hole as
/// below 4 GiB in real machines, and 1 MiB above it.
pub fn guest_memory() -> GuestMemory {
    GuestMemory::from_ranges(&[
        (Gpa(0), 8 << 20),
        (Gpa(8 * MIB), 8 << 20),
        (Gpa(HIGH_START), 1 << 20),
    ])
    .expect("memory for a test")
}

/// Memory of its own with the same content as `memory`, which is that of
/// [`guest_memory`], as a restored machine has.
pub fn copy_of(memory: &GuestMemory) -> GuestMemory {
    let copy = guest_memory();
    for region in memory.iter() {
        let mut content = vec![0; region.len() as usize];
        memory
            .read_slice(&mut content, region.start_addr())
            .expect("in memory");
        copy.write_slice(&content, region.start_addr())
            .expect("in memory");
    }
    copy
}

/// One entry of a descriptor table (virtio 1.2 §2.7.5).
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Descriptor {
    /// Guest address of the buffer.
    pub address: u64,
    /// Length of the buffer in bytes.
    pub len: u32,
    /// [`NEXT`], [`WRITE`], [`INDIRECT`].
    pub flags: u16,
    /// Index of the descriptor that follows.
    pub next: u16,
}

// SAFETY: plain integers without padding: 8 + 4 + 2 + 2 bytes.
unsafe impl ByteValued for Descriptor {}

impl Descriptor {
    /// A buffer that the device reads.
    pub fn readable(address: u64, len: u32) -> Self {
        Self {
            address,
            len,
            ..Self::default()
        }
    }

    /// A buffer that the device writes.
    pub fn writable(address: u64, len: u32) -> Self {
        Self {
            flags: WRITE,
            ..Self::readable(address, len)
        }
    }
}

/// A chain that was offered.
#[derive(Clone, Debug)]
pub struct Offered {
    /// Its first descriptor.
    pub head: u16,
    /// Address and length of each writable buffer.
    pub writable: Vec<(u64, usize)>,
}

/// An element of the used ring.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Used {
    /// First descriptor of the chain that came back.
    pub head: u32,
    /// Bytes that the device says it wrote.
    pub len: u32,
}

// SAFETY: two plain integers without padding.
unsafe impl ByteValued for Used {}

/// The driver's side of one virtqueue. Queue `n` lives in the `n + 1`st MiB of
/// memory: rings in its first half, data in its second.
#[derive(Debug)]
pub struct MockDriver {
    memory: GuestMemory,
    index: usize,
    size: u16,
    next_data: u64,
    next_descriptor: u16,
    available: u16,
    used: u16,
}

impl MockDriver {
    /// Lays out queue number `index` with `size` descriptors, rings all zero.
    pub fn new(memory: &GuestMemory, index: usize, size: u16) -> Self {
        let mut driver = Self {
            memory: memory.clone(),
            index,
            size,
            next_data: 0,
            next_descriptor: 0,
            available: 0,
            used: 0,
        };
        driver.forget_data();
        // The rings have 26 bytes for each descriptor and a few besides.
        let zeroes = vec![0; 26 * usize::from(size) + 32];
        memory
            .write_slice(&zeroes, Gpa(driver.base()))
            .expect("in memory");
        driver
    }

    /// The same driver in a machine that was restored with `memory`.
    pub fn moved_to(&self, memory: &GuestMemory) -> Self {
        Self {
            memory: memory.clone(),
            ..*self
        }
    }

    fn base(&self) -> u64 {
        (self.index as u64 + 1) * MIB
    }

    /// Where the rings are, as the driver tells the transport.
    pub fn setup(&self) -> QueueSetup {
        let available = self.base() + 16 * u64::from(self.size);
        QueueSetup {
            max_size: self.size,
            size: self.size.into(),
            ready: true,
            descriptors: self.base(),
            available,
            used: (available + 6 + 2 * u64::from(self.size)).next_multiple_of(4),
        }
    }

    /// The device's side of this queue.
    pub fn virtqueue(&self, event_idx: bool) -> Virtqueue {
        let memory = Arc::new(self.memory.clone());
        Virtqueue::new(self.index, &self.setup(), event_idx, memory).expect("a valid queue")
    }

    /// The device's side of this queue in a device that was restored.
    pub fn virtqueue_at(&self, event_idx: bool, position: QueuePosition) -> Virtqueue {
        let mut queue = self.virtqueue(event_idx);
        queue.resume_at(position).expect("a possible position");
        queue
    }

    /// Takes `len` bytes of the data area.
    pub fn alloc(&mut self, len: usize) -> u64 {
        let at = self.next_data;
        self.next_data += (len as u64).next_multiple_of(8);
        assert!(
            self.next_data <= self.base() + MIB,
            "the data area of a test is full"
        );
        at
    }

    /// Lets the data area be used from its start again.
    pub fn forget_data(&mut self) {
        self.next_data = self.base() + MIB / 2;
    }

    /// Puts `data` somewhere in memory and says where.
    pub fn put(&mut self, data: &[u8]) -> u64 {
        let at = self.alloc(data.len());
        self.memory.write_slice(data, Gpa(at)).expect("in memory");
        at
    }

    /// Reads guest memory.
    pub fn get(&self, address: u64, len: usize) -> Vec<u8> {
        let mut data = vec![0; len];
        self.memory
            .read_slice(&mut data, Gpa(address))
            .expect("in memory");
        data
    }

    /// Offers a chain with one descriptor for each element of `readable`, filled
    /// with it, and one for each length in `writable`.
    pub fn send(&mut self, readable: &[&[u8]], writable: &[usize]) -> Offered {
        let mut chain: Vec<_> = readable
            .iter()
            .map(|data| Descriptor::readable(self.put(data), data.len() as u32))
            .collect();
        let writable: Vec<_> = writable.iter().map(|&len| (self.alloc(len), len)).collect();
        chain.extend(
            writable
                .iter()
                .map(|&(at, len)| Descriptor::writable(at, len as u32)),
        );
        let head = self.offer_chain(&chain);
        Offered { head, writable }
    }

    /// What the device wrote to the writable buffers of `chain`, joined.
    pub fn received(&self, chain: &Offered) -> Vec<u8> {
        chain
            .writable
            .iter()
            .flat_map(|&(at, len)| self.get(at, len))
            .collect()
    }

    /// Links `chain` in the next free descriptors, offers it and returns its head.
    pub fn offer_chain(&mut self, chain: &[Descriptor]) -> u16 {
        let head = self.next_descriptor;
        let last = chain.len() - 1;
        for (i, &descriptor) in chain.iter().enumerate() {
            let at = self.next_descriptor;
            self.next_descriptor = (at + 1) % self.size;
            let linked = Descriptor {
                flags: descriptor.flags | if i < last { NEXT } else { 0 },
                next: self.next_descriptor,
                ..descriptor
            };
            self.set_descriptor(at, linked);
        }
        self.offer(head);
        head
    }

    /// Puts `chain`, linked, into a table of its own and returns the descriptor
    /// that refers to it.
    pub fn indirect(&mut self, chain: &[Descriptor]) -> Descriptor {
        let last = chain.len().saturating_sub(1);
        let table: Vec<u8> = chain
            .iter()
            .enumerate()
            .flat_map(|(i, &descriptor)| {
                let linked = Descriptor {
                    flags: descriptor.flags | if i < last { NEXT } else { 0 },
                    next: (i + 1) as u16,
                    ..descriptor
                };
                linked.as_slice().to_vec()
            })
            .collect();
        Descriptor {
            flags: INDIRECT,
            ..Descriptor::readable(self.put(&table), table.len() as u32)
        }
    }

    /// Writes entry `at` of the descriptor table as it is.
    pub fn set_descriptor(&mut self, at: u16, descriptor: Descriptor) {
        let address = self.setup().descriptors + 16 * u64::from(at);
        self.write(address, descriptor);
    }

    /// Makes the chain that begins at `head` available.
    pub fn offer(&mut self, head: u16) {
        let slot = u64::from(self.available % self.size);
        self.write(self.setup().available + 4 + 2 * slot, head);
        self.set_available_index(self.available.wrapping_add(1));
    }

    /// Sets the index of the available ring, whatever that makes of it.
    pub fn set_available_index(&mut self, index: u16) {
        self.available = index;
        self.write(self.setup().available + 2, index);
    }

    /// Sets the flags of the available ring (1: no interrupts, please).
    pub fn set_available_flags(&mut self, flags: u16) {
        self.write(self.setup().available, flags);
    }

    /// Sets the used index after which the driver wants an interrupt.
    pub fn set_used_event(&mut self, index: u16) {
        self.write(self.setup().available + 4 + 2 * u64::from(self.size), index);
    }

    /// The flags of the used ring (1: no notifications, please).
    pub fn used_flags(&self) -> u16 {
        self.read(self.setup().used)
    }

    /// The available index at which the device wants to be notified.
    pub fn available_event(&self) -> u16 {
        self.read(self.setup().used + 4 + 8 * u64::from(self.size))
    }

    /// The chains that came back since the last call.
    pub fn used(&mut self) -> Vec<Used> {
        let ring = self.setup().used;
        let end: u16 = self.read(ring + 2);
        let mut fresh = Vec::new();
        while self.used != end {
            let slot = u64::from(self.used % self.size);
            fresh.push(self.read(ring + 4 + 8 * slot));
            self.used = self.used.wrapping_add(1);
        }
        fresh
    }

    fn write<T: ByteValued>(&self, address: u64, value: T) {
        self.memory
            .write_obj(value, Gpa(address))
            .expect("in memory");
    }

    fn read<T: ByteValued>(&self, address: u64) -> T {
        self.memory.read_obj(Gpa(address)).expect("in memory")
    }
}

/// What a device is started with, made of the device's sides of `drivers`.
pub fn env(memory: &GuestMemory, drivers: &[&MockDriver], features: u64) -> DeviceEnv {
    DeviceEnv {
        memory: memory.clone(),
        queues: drivers.iter().map(|d| d.virtqueue(false)).collect(),
        interrupt: Arc::new(Interrupt::new(
            EventFd::new(EFD_NONBLOCK).expect("an event descriptor"),
        )),
        features,
    }
}

/// What a device is started with that was saved with its queues at `positions`.
pub fn env_at(
    memory: &GuestMemory,
    drivers: &[&MockDriver],
    positions: &[QueuePosition],
    event_idx: bool,
    features: u64,
) -> DeviceEnv {
    let queues = drivers.iter().zip(positions);
    DeviceEnv {
        queues: queues
            .map(|(driver, &at)| driver.virtqueue_at(event_idx, at))
            .collect(),
        ..env(memory, &[], features)
    }
}

/// Reads a register of a transport.
pub fn read_register(transport: &mut MmioTransport, offset: u64) -> u32 {
    let mut value = [0xff; 4];
    transport.read(offset, &mut value);
    u32::from_le_bytes(value)
}

/// Writes a register of a transport.
pub fn write_register(transport: &mut MmioTransport, offset: u64, value: u32) {
    transport.write(offset, &value.to_le_bytes());
}

/// Takes a transport from reset to `DRIVER_OK`, accepting `features`, with the
/// queues as `setups` describes them. Returns the status register.
pub fn bring_up(transport: &mut MmioTransport, setups: &[QueueSetup], features: u64) -> u32 {
    write_register(transport, 0x70, 0);
    write_register(transport, 0x70, 1);
    write_register(transport, 0x70, 3);
    for page in 0..2 {
        write_register(transport, 0x24, page);
        write_register(transport, 0x20, (features >> (32 * page)) as u32);
    }
    write_register(transport, 0x70, 11);
    for (index, setup) in setups.iter().enumerate() {
        write_register(transport, 0x30, index as u32);
        write_register(transport, 0x38, setup.size);
        let addresses = [
            (0x80, setup.descriptors),
            (0x90, setup.available),
            (0xa0, setup.used),
        ];
        for (register, address) in addresses {
            write_register(transport, register, address as u32);
            write_register(transport, register + 4, (address >> 32) as u32);
        }
        write_register(transport, 0x44, setup.ready.into());
    }
    write_register(transport, 0x70, 15);
    read_register(transport, 0x70)
}
