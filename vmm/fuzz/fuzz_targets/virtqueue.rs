//! Rings anywhere, any content in them, and a device that does with its chains
//! whatever devices do.

#![no_main]

mod input;

use std::sync::Arc;

use coppice_vmm::memory::GuestMemory;
use coppice_vmm::units::Gpa;
use coppice_vmm::virtio::{Chain, MAX_DESCRIPTORS, QueueSetup, Virtqueue};
use input::Input;
use libfuzzer_sys::fuzz_target;
use vm_memory::Bytes as _;

const LOW: usize = 0x8000;
/// End of the memory that begins at 0: two adjoining regions.
const END: u64 = 0x1_0000;

fuzz_target!(|data: &[u8]| {
    let mut input = Input(data);
    let memory = GuestMemory::from_ranges(&[
        (Gpa(0), LOW),
        (Gpa(LOW as u64), LOW),
        (Gpa(4 << 30), 0x1000),
    ])
    .expect("memory");
    let setup = QueueSetup {
        max_size: 256,
        size: match input.byte() {
            n @ 0..=8 => 1 << n,
            n => n.into(),
        },
        ready: input.byte() != 0xff,
        descriptors: input.address(END),
        available: input.address(END),
        used: input.address(END),
    };
    let event_idx = input.byte() % 2 == 1;
    let Ok(mut queue) = Virtqueue::new(0, &setup, event_idx, Arc::new(memory.clone())) else {
        return;
    };
    let mut heads = Vec::new();
    while !input.is_empty() {
        match input.byte() % 8 {
            0 => {
                let _ = memory.write_slice(&input.bytes::<16>(), Gpa(input.address(END)));
            }
            1 => {
                // A descriptor, most often one that makes sense.
                let at = u64::from(input.byte()) * 16;
                let mut raw = Vec::new();
                raw.extend(input.address(END).to_le_bytes());
                raw.extend(u32::from(input.u16()).to_le_bytes());
                raw.extend(u16::from(input.byte() % 8).to_le_bytes());
                raw.extend(u16::from(input.byte()).to_le_bytes());
                let _ = memory.write_slice(&raw, Gpa(setup.descriptors.wrapping_add(at)));
            }
            2 => {
                let index = u16::from(input.byte());
                let _ = memory.write_obj(index, Gpa(setup.available.wrapping_add(2)));
            }
            3 => drain(&mut queue, &mut input, &mut heads),
            4 => {
                let head = heads.pop().unwrap_or_else(|| input.u16());
                let _ = queue.push_used(head, input.u32());
            }
            5 => queue.undo_pop(),
            6 => {
                let _ = queue.needs_interrupt();
            }
            _ => {
                queue.disable_notification();
                let _ = queue.enable_notification();
            }
        }
    }
});

/// Takes all that is available; while memory stays as it is, that is never more
/// than the queue's size.
fn drain(queue: &mut Virtqueue, input: &mut Input<'_>, heads: &mut Vec<u16>) {
    for _ in 0..queue.size() {
        match queue.pop() {
            Ok(Some(chain)) => {
                assert!(queue.ready() && chain.head < queue.size());
                heads.push(chain.head);
                if input.byte() % 4 == 0 {
                    // Writes to guest memory, and so perhaps to the rings.
                    return consume(chain, input, true);
                }
                consume(chain, input, false);
            }
            Ok(None) | Err(_) => return,
        }
    }
    assert!(!matches!(queue.pop(), Ok(Some(_))), "the ring never ends");
}

fn consume(chain: Chain, input: &mut Input<'_>, write: bool) {
    let (mut readable, mut writable) = (chain.readable, chain.writable);
    for buffers in [&readable, &writable] {
        let slices = buffers.slices();
        assert!(slices.len() <= 2 * MAX_DESCRIPTORS);
        assert_eq!(
            slices.iter().map(|slice| slice.len()).sum::<usize>(),
            buffers.len()
        );
    }
    let before = readable.len();
    let n = usize::from(input.byte());
    let taken = readable.take(n);
    assert_eq!(taken.len(), n.min(before));
    assert_eq!(taken.len() + readable.len(), before);
    let left = readable.len();
    match readable.read_obj::<u64>() {
        Ok(_) => assert_eq!(readable.len() + 8, left),
        Err(_) => assert!(left < 8 && readable.len() == left),
    }
    if write {
        let data = vec![input.byte(); usize::from(input.byte())];
        let room = writable.len();
        match writable.write_all(&data) {
            Ok(()) => assert_eq!(writable.len() + data.len(), room),
            Err(_) => assert!(data.len() > room && writable.len() == room),
        }
    }
}
