//! Descriptor chains, parsed once into checked ranges of guest memory.

use std::collections::VecDeque;
use std::sync::Arc;

use virtio_queue::DescriptorChain;
use vm_memory::{ByteValued, GuestMemoryBackend as _, VolatileSlice};

use super::DeviceFault;
use crate::memory::GuestMemory;
use crate::units::Gpa;

/// The most descriptors that a chain may have. A chain in the descriptor table
/// cannot exceed the queue; one in an indirect table could have 65,535, which
/// no driver needs and which would cost the event loop milliseconds to read.
pub const MAX_DESCRIPTORS: usize = 1024;

/// A non-empty range that lies in one memory region.
#[derive(Clone, Copy, Debug)]
struct Range {
    start: Gpa,
    len: usize,
}

/// The guest memory of one direction of a chain, with a cursor.
///
/// Every byte was checked to lie in guest memory when the chain was parsed, and
/// a machine's memory never shrinks, so the accesses below cannot miss. Nothing
/// here borrows from the queue: buffers may be kept while I/O is in flight.
#[derive(Debug)]
pub struct Buffers {
    memory: Arc<GuestMemory>,
    ranges: VecDeque<Range>,
    len: usize,
}

impl Buffers {
    fn new(memory: &Arc<GuestMemory>) -> Self {
        Self {
            memory: Arc::clone(memory),
            ranges: VecDeque::new(),
            len: 0,
        }
    }

    /// Bytes between the cursor and the end.
    pub fn len(&self) -> usize {
        self.len
    }

    /// No bytes are left.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Copies the next `out.len()` bytes to `out` and moves past them.
    ///
    /// # Errors
    /// Fewer bytes are left. The cursor stays.
    pub fn read_exact(&mut self, out: &mut [u8]) -> Result<(), DeviceFault> {
        self.demand(out.len())?;
        let mut rest = out;
        while let Some(range) = self.next_range(rest.len()) {
            let (part, tail) = rest.split_at_mut(range.len);
            self.slice(range).copy_to(part);
            rest = tail;
        }
        Ok(())
    }

    /// Reads a plain value and moves past it.
    ///
    /// # Errors
    /// Fewer bytes than the value has are left. The cursor stays.
    pub fn read_obj<T: ByteValued>(&mut self) -> Result<T, DeviceFault> {
        let mut value = T::zeroed();
        self.read_exact(value.as_mut_slice())?;
        Ok(value)
    }

    /// Copies `data` to the next bytes and moves past them.
    ///
    /// # Errors
    /// Fewer than `data.len()` bytes are left. The cursor stays.
    pub fn write_all(&mut self, data: &[u8]) -> Result<(), DeviceFault> {
        self.demand(data.len())?;
        let mut rest = data;
        while let Some(range) = self.next_range(rest.len()) {
            let (part, tail) = rest.split_at(range.len);
            self.slice(range).copy_from(part);
            rest = tail;
        }
        Ok(())
    }

    /// Splits off the next `n` bytes, or all that are left if they are fewer,
    /// and moves past them.
    pub fn take(&mut self, n: usize) -> Buffers {
        let mut taken = Buffers::new(&self.memory);
        while let Some(range) = self.next_range(n - taken.len) {
            taken.len += range.len;
            taken.ranges.push_back(range);
        }
        taken
    }

    /// The bytes between the cursor and the end as memory slices, for vectored
    /// I/O straight into guest memory. There may be more of them than one system
    /// call takes.
    pub fn slices(&self) -> Vec<VolatileSlice<'_>> {
        self.ranges.iter().map(|&range| self.slice(range)).collect()
    }

    /// Adds a descriptor's buffer, in as many ranges as memory regions that it
    /// touches; `false` if a part of it is not memory.
    fn push(&mut self, start: Gpa, len: usize) -> bool {
        let mut at = start.0;
        let memory = Arc::clone(&self.memory);
        for slice in memory.get_slices(start, len) {
            let Ok(slice) = slice else { return false };
            let range = Range {
                start: Gpa(at),
                len: slice.len(),
            };
            // No overflow: the slice lies in memory, and a chain's length was
            // checked by the descriptor iterator to fit in 32 bits.
            at += range.len as u64;
            self.len += range.len;
            self.ranges.push_back(range);
        }
        true
    }

    /// Takes up to `max` bytes from the first range.
    fn next_range(&mut self, max: usize) -> Option<Range> {
        if max == 0 {
            return None;
        }
        let first = self.ranges.front_mut()?;
        let taken = Range {
            start: first.start,
            len: first.len.min(max),
        };
        if taken.len == first.len {
            self.ranges.pop_front();
        } else {
            first.start.0 += taken.len as u64;
            first.len -= taken.len;
        }
        self.len -= taken.len;
        Some(taken)
    }

    fn slice(&self, range: Range) -> VolatileSlice<'_> {
        self.memory
            .get_slice(range.start, range.len)
            .expect("the range was checked when the chain was parsed")
    }

    fn demand(&self, wanted: usize) -> Result<(), DeviceFault> {
        if wanted > self.len {
            return Err(DeviceFault(format!(
                "a descriptor chain has {} bytes where the request needs {wanted}",
                self.len
            )));
        }
        Ok(())
    }
}

/// One request: a descriptor chain whose buffers were all checked.
#[derive(Debug)]
pub struct Chain {
    /// Index of the first descriptor; names the chain in the used ring.
    pub head: u16,
    /// What the driver wrote for the device.
    pub readable: Buffers,
    /// Where the device answers.
    pub writable: Buffers,
}

impl Chain {
    /// Walks a chain to its end, into the indirect table if it has one.
    pub(super) fn parse(
        mut descriptors: DescriptorChain<&GuestMemory>,
        memory: &Arc<GuestMemory>,
    ) -> Result<Self, DeviceFault> {
        let head = descriptors.head_index();
        let fault = |what: &str| DeviceFault(format!("the descriptor chain at {head} {what}"));
        let mut readable = Buffers::new(memory);
        let mut writable = Buffers::new(memory);
        let (mut count, mut more) = (0, true);
        for descriptor in descriptors.by_ref() {
            count += 1;
            if count > MAX_DESCRIPTORS {
                return Err(fault("has more than 1024 descriptors"));
            }
            more = descriptor.has_next();
            let buffers = if descriptor.is_write_only() {
                &mut writable
            } else if writable.is_empty() {
                &mut readable
            } else {
                // Virtio 1.2 §2.7.4.2.
                return Err(fault("has a readable descriptor after a writable one"));
            };
            if !buffers.push(descriptor.addr(), descriptor.len() as usize) {
                return Err(fault(&format!(
                    "has a buffer at {:#x} of {} bytes that is not all in guest memory",
                    descriptor.addr().0,
                    descriptor.len()
                )));
            }
        }
        // The iterator ends silently where it cannot go on: at an index past the
        // table, in a loop, at a bad indirect table. The last descriptor that it
        // gave then still promises a next one, or there was none at all.
        if more {
            return Err(fault(
                "does not end: it loops, leaves its table, or has a malformed indirect table",
            ));
        }
        Ok(Self {
            head,
            readable,
            writable,
        })
    }
}

#[cfg(test)]
#[path = "chain_test.rs"]
mod tests;
