//! How much of a queue is served before others get their turn.

use std::io;
use std::os::fd::{AsRawFd as _, BorrowedFd};

use vmm_sys_util::eventfd::{EFD_NONBLOCK, EventFd};

use super::{Chain, DeviceFault, Interrupt, Virtqueue};

/// The most requests in one turn.
pub const TURN_REQUESTS: usize = 64;
/// No further request is begun in a turn once those served had buffers of so
/// many bytes.
pub const TURN_BYTES: usize = 8 << 20;

/// A device's wish for another turn, which it watches through the event loop as
/// its backend descriptor.
#[derive(Debug)]
pub struct NextTurn(EventFd);

impl NextTurn {
    /// No wish yet.
    ///
    /// # Errors
    /// No event descriptor can be had.
    pub fn new() -> io::Result<Self> {
        EventFd::new(EFD_NONBLOCK).map(Self)
    }

    /// Serves `queue` for one turn: gives chains to `serve`, which returns the
    /// number of bytes that it wrote to each, hands them back and raises the
    /// interrupt if the driver wants it. What is left after a full turn is asked
    /// for again.
    ///
    /// # Errors
    /// The driver broke the queue.
    pub fn serve(
        &self,
        queue: &mut Virtqueue,
        interrupt: &Interrupt,
        mut serve: impl FnMut(Chain) -> u32,
    ) -> Result<(), DeviceFault> {
        let (mut requests, mut bytes) = (0, 0usize);
        queue.disable_notification();
        loop {
            if requests == TURN_REQUESTS || bytes >= TURN_BYTES {
                self.ask();
                break;
            }
            let Some(chain) = queue.pop()? else {
                if queue.enable_notification()? {
                    queue.disable_notification();
                    continue;
                }
                break;
            };
            requests += 1;
            bytes = bytes.saturating_add(chain.readable.len() + chain.writable.len());
            let head = chain.head;
            let written = serve(chain);
            queue.push_used(head, written)?;
        }
        if requests > 0 && queue.needs_interrupt()? {
            interrupt.used_buffers();
        }
        Ok(())
    }

    /// The descriptor to watch for input.
    pub fn fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the descriptor is open for as long as `self` is borrowed.
        unsafe { BorrowedFd::borrow_raw(self.0.as_raw_fd()) }
    }

    /// The descriptor was readable: the wish is about to be fulfilled.
    pub fn taken(&self) {
        // An error means that there was no wish, which is just as well.
        let _ = self.0.read();
    }

    fn ask(&self) {
        // Fails only if the counter is at its maximum: the wish is known.
        let _ = self.0.write(1);
    }
}

#[cfg(test)]
#[path = "turn_test.rs"]
mod tests;
