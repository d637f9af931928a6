//! After a restore the guest's connections are gone, and the device tells it so
//! with an event (virtio 1.2 §5.10.6.7). Listeners of the guest stay.
//!
//! A guest that takes the event closes every connection that it has by then, also
//! a new one: Linux handles events and packets in works of their own, in either
//! order. So no packet goes to the guest before it has dealt with the event, which
//! shows in that it offers the event's buffer again. One that never does gets its
//! packets a little later.

use std::time::Duration;

use crate::virtio::{DeviceFault, Interrupt, Virtqueue};

/// `struct virtio_vsock_event` with the id `VIRTIO_VSOCK_EVENT_TRANSPORT_RESET`.
const TRANSPORT_RESET: [u8; 4] = 0u32.to_le_bytes();

/// How long packets wait for a guest that does not confirm.
pub const CONFIRM_LIMIT: Duration = Duration::from_secs(5);

/// What the guest is still to be told, and to confirm.
#[derive(Debug, Default)]
pub struct TransportReset {
    /// The event is to be sent.
    due: bool,
    /// Events that were sent, perhaps by an earlier process, and whose buffers
    /// have not been offered again.
    unconfirmed: u16,
    /// The queue's available index up to which `unconfirmed` is counted.
    counted: u16,
}

impl TransportReset {
    /// The event is due in a device that was saved when `unconfirmed` others had
    /// been sent.
    pub fn due(unconfirmed: u16) -> Self {
        Self {
            due: true,
            unconfirmed,
            counted: 0,
        }
    }

    /// The device starts with `queue` as its event queue.
    ///
    /// # Errors
    /// The ring cannot be read.
    pub fn start(&mut self, queue: &Virtqueue) -> Result<(), DeviceFault> {
        if !queue.ready() {
            // Nothing can be told, and nobody will confirm.
            *self = Self::default();
        }
        self.counted = queue.available_index()?;
        Ok(())
    }

    /// Whether the guest has yet to hear of the reset or to deal with it.
    pub fn is_pending(&self) -> bool {
        self.due || self.unconfirmed > 0
    }

    /// Events that were sent and that the guest has not dealt with.
    ///
    /// # Errors
    /// The ring cannot be read.
    pub fn unconfirmed(&self, queue: &Virtqueue) -> Result<u16, DeviceFault> {
        let offered = queue.available_index()?.wrapping_sub(self.counted);
        Ok(self.unconfirmed.saturating_sub(offered))
    }

    /// Sends the event if it is due and the guest has a buffer for it, and takes
    /// note of what the guest has dealt with.
    ///
    /// # Errors
    /// The driver broke the queue.
    pub fn serve(
        &mut self,
        queue: &mut Virtqueue,
        interrupt: &Interrupt,
    ) -> Result<(), DeviceFault> {
        // A guest may return useless buffers for as long as it gets them back; it
        // has one round of the queue to come up with a good one.
        for _ in 0..=queue.size() {
            if !self.is_pending() {
                break;
            }
            self.unconfirmed = self.unconfirmed(queue)?;
            self.counted = queue.available_index()?;
            if self.due
                && let Some(mut chain) = queue.pop()?
            {
                // A buffer that is too small is returned, and the next one tried.
                let fits = chain.writable.write_all(&TRANSPORT_RESET).is_ok();
                let written = if fits { TRANSPORT_RESET.len() } else { 0 };
                queue.push_used(chain.head, written as u32)?;
                if queue.needs_interrupt()? {
                    interrupt.used_buffers();
                }
                self.due = !fits;
                self.unconfirmed += u16::from(fits);
            } else if !queue.enable_notification_of_next()? {
                break;
            }
        }
        Ok(())
    }
}
