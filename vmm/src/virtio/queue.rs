//! A virtqueue together with the memory that it lives in.

use std::fmt::Display;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use virtio_bindings::virtio_ring::VRING_AVAIL_F_NO_INTERRUPT;
use virtio_queue::{Queue, QueueOwnedT as _, QueueT as _};
use vm_memory::Bytes as _;

use super::{Chain, DeviceFault};
use crate::memory::GuestMemory;
use crate::units::Gpa;

/// A virtqueue as the driver describes it to the transport. Nothing in it is
/// believed before [`Virtqueue::new`] has checked it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct QueueSetup {
    /// The largest size that the device takes; not the driver's to choose.
    pub max_size: u16,
    /// Size in descriptors.
    pub size: u32,
    /// The driver finished the set-up of this queue.
    pub ready: bool,
    /// Address of the descriptor table.
    pub descriptors: u64,
    /// Address of the available ring (driver area).
    pub available: u64,
    /// Address of the used ring (device area).
    pub used: u64,
}

impl QueueSetup {
    /// A queue that the driver has not touched.
    pub fn new(max_size: u16) -> Self {
        Self {
            max_size,
            size: max_size.into(),
            ..Self::default()
        }
    }
}

/// How far a device has come in the two rings of a virtqueue; both numbers wrap.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QueuePosition {
    /// Chains taken out of the available ring.
    pub next_avail: u16,
    /// Chains put into the used ring.
    pub next_used: u16,
}

/// A virtqueue that belongs to a started device.
#[derive(Debug)]
pub struct Virtqueue {
    index: usize,
    queue: Queue,
    memory: Arc<GuestMemory>,
}

impl Virtqueue {
    /// The queue with number `index`, after checking what the driver set up. A
    /// queue that is not ready is taken as it is: it never yields a chain.
    ///
    /// # Errors
    /// The size is not a power of two up to the maximum, a ring is misaligned or
    /// not wholly in guest memory.
    pub fn new(
        index: usize,
        setup: &QueueSetup,
        event_idx: bool,
        memory: Arc<GuestMemory>,
    ) -> Result<Self, DeviceFault> {
        let fault = |what: &dyn Display| fault(index, what);
        let mut queue = Queue::new(setup.max_size).map_err(|e| fault(&e))?;
        if setup.ready {
            let size = u16::try_from(setup.size).unwrap_or(0);
            queue.try_set_size(size).map_err(|_| {
                fault(&format!(
                    "the size {} is not a power of two up to {}",
                    setup.size, setup.max_size
                ))
            })?;
            queue
                .try_set_desc_table_address(Gpa(setup.descriptors))
                .and_then(|()| queue.try_set_avail_ring_address(Gpa(setup.available)))
                .and_then(|()| queue.try_set_used_ring_address(Gpa(setup.used)))
                .map_err(|e| fault(&e))?;
            queue.set_event_idx(event_idx);
            queue.set_ready(true);
            if !queue.is_valid(&*memory) {
                return Err(fault(&"its rings are not all in guest memory"));
            }
        }
        Ok(Self {
            index,
            queue,
            memory,
        })
    }

    /// Where a queue that was saved at this point goes on.
    ///
    /// Chains that were taken and not returned yet are not part of it, nor is
    /// whether [`Virtqueue::needs_interrupt`] was asked since the last one was
    /// returned: a device is saved between requests.
    pub fn position(&self) -> QueuePosition {
        QueuePosition {
            next_avail: self.queue.next_avail(),
            next_used: self.queue.next_used(),
        }
    }

    /// Goes on at `position`, which is compared with what the rings say.
    ///
    /// # Errors
    /// The driver cannot have offered so many chains, or the device cannot have
    /// returned so many; see [`Virtqueue::check`].
    pub fn resume_at(&mut self, position: QueuePosition) -> Result<(), DeviceFault> {
        self.queue.set_next_avail(position.next_avail);
        self.queue.set_next_used(position.next_used);
        self.check()
    }

    /// Compares the position with what the rings say: at most a queue's size of
    /// chains waits to be taken, no more are out with the device, and the used
    /// index, which only the device writes, is where it left it.
    ///
    /// # Errors
    /// One of it does not hold.
    pub fn check(&self) -> Result<(), DeviceFault> {
        let position = self.position();
        if !self.queue.ready() {
            return match position == QueuePosition::default() {
                true => Ok(()),
                false => Err(fault(self.index, "it moved without being set up")),
            };
        }
        let QueuePosition {
            next_avail,
            next_used,
        } = position;
        let size = self.queue.size();
        let available = self.available_index()?;
        if available.wrapping_sub(next_avail) > size {
            return Err(fault(
                self.index,
                format_args!(
                    "{size} chains fit in its available ring, whose index is {available}, but the device took {next_avail}"
                ),
            ));
        }
        if next_avail.wrapping_sub(next_used) > size {
            return Err(fault(
                self.index,
                format_args!(
                    "the device cannot hold more than {size} chains, but took {next_avail} and returned {next_used}"
                ),
            ));
        }
        let used = self
            .queue
            .used_idx(&*self.memory, Ordering::Relaxed)
            .map_err(|e| fault(self.index, e))?;
        if used.0 != next_used {
            return Err(fault(
                self.index,
                format_args!(
                    "the device returned {next_used} chains, but its used index in guest memory is {used}"
                ),
            ));
        }
        Ok(())
    }

    /// How many chains the driver has ever made available, wrapping; 0 for a
    /// queue that is not ready.
    ///
    /// # Errors
    /// The ring cannot be read.
    pub fn available_index(&self) -> Result<u16, DeviceFault> {
        if !self.queue.ready() {
            return Ok(0);
        }
        self.queue
            .avail_idx(&*self.memory, Ordering::Acquire)
            .map(|index| index.0)
            .map_err(|e| fault(self.index, e))
    }

    /// The number of this queue in its device.
    pub fn index(&self) -> usize {
        self.index
    }

    /// The driver set this queue up.
    pub fn ready(&self) -> bool {
        self.queue.ready()
    }

    /// Size in descriptors.
    pub fn size(&self) -> u16 {
        self.queue.size()
    }

    /// The next chain that the driver made available, if there is one.
    ///
    /// # Errors
    /// The available index ran ahead by more than the queue's size, or the chain
    /// is malformed: it loops, leaves its table or guest memory, has a readable
    /// descriptor after a writable one, or a bad indirect table.
    pub fn pop(&mut self) -> Result<Option<Chain>, DeviceFault> {
        if !self.queue.ready() {
            return Ok(None);
        }
        let memory = &self.memory;
        self.queue
            .iter(&**memory)
            .map_err(|e| fault(self.index, e))?
            .next()
            .map(|descriptors| Chain::parse(descriptors, memory))
            .transpose()
            .map_err(|e| fault(self.index, e))
    }

    /// Puts the chain that was popped last back, to be popped again.
    pub fn undo_pop(&mut self) {
        self.queue.go_to_previous_position();
    }

    /// Returns the chain that begins at `head` to the driver, with `written`
    /// bytes written to its writable buffers.
    ///
    /// # Errors
    /// `head` is not a descriptor of this queue, or the queue is not ready.
    pub fn push_used(&mut self, head: u16, written: u32) -> Result<(), DeviceFault> {
        if !self.queue.ready() {
            return Err(fault(
                self.index,
                "a chain is returned to a queue that is not ready",
            ));
        }
        self.queue
            .add_used(&*self.memory, head, written)
            .map_err(|e| fault(self.index, e))
    }

    /// Whether the driver wants to hear of the chains that were returned since
    /// the last call (virtio 1.2 §2.7.7).
    ///
    /// # Errors
    /// The rings cannot be read.
    pub fn needs_interrupt(&mut self) -> Result<bool, DeviceFault> {
        if !self.queue.ready() {
            return Ok(false);
        }
        // Also orders the used index before the reads of the driver's wishes.
        let wanted = self
            .queue
            .needs_notification(&*self.memory)
            .map_err(|e| fault(self.index, e))?;
        if self.queue.event_idx_enabled() {
            return Ok(wanted);
        }
        let flags: u16 = self
            .memory
            .load(Gpa(self.queue.avail_ring()), Ordering::Relaxed)
            .map_err(|e| fault(self.index, e))?;
        Ok(u32::from(u16::from_le(flags)) & VRING_AVAIL_F_NO_INTERRUPT == 0)
    }

    /// Asks the driver not to notify while the queue is being served. A hint:
    /// notifications may still come.
    pub fn disable_notification(&mut self) {
        if self.queue.ready() {
            // The rings were checked, so this cannot fail, and nothing depends
            // on it.
            let _ = self.queue.disable_notification(&*self.memory);
        }
    }

    /// Asks the driver to notify again; `true` if chains arrived meanwhile, of
    /// which no notification will tell.
    ///
    /// # Errors
    /// The rings cannot be accessed.
    pub fn enable_notification(&mut self) -> Result<bool, DeviceFault> {
        if !self.queue.ready() {
            return Ok(false);
        }
        self.queue
            .enable_notification(&*self.memory)
            .map_err(|e| fault(self.index, e))
    }

    /// As [`Virtqueue::enable_notification`], but of the next chain that the driver
    /// makes available, whatever waits already; `true` if one arrived meanwhile.
    ///
    /// # Errors
    /// The rings cannot be accessed.
    pub fn enable_notification_of_next(&mut self) -> Result<bool, DeviceFault> {
        // The queue names the position that it is at as the one to notify of.
        let next_avail = self.queue.next_avail();
        self.queue.set_next_avail(self.available_index()?);
        let arrived = self.enable_notification();
        self.queue.set_next_avail(next_avail);
        arrived
    }
}

fn fault(index: usize, what: impl Display) -> DeviceFault {
    DeviceFault(format!("queue {index}: {what}"))
}

#[cfg(test)]
#[path = "queue_test.rs"]
mod tests;
