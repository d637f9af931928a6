//! Credit: how many bytes each side may send before the other has taken some
//! (virtio 1.2 §5.10.6.3).
//!
//! All counters run modulo 2³², as on the wire; only their differences mean
//! anything.

/// What this device sets aside for one connection's bytes from the guest, and
/// announces as `buf_alloc`.
pub const BUF_ALLOC: u32 = 256 * 1024;

/// The guest claims to have taken bytes that it was never sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FalseClaim;

/// What the guest lets the device send.
#[derive(Clone, Copy, Debug)]
pub struct SendCredit {
    /// The guest's whole buffer.
    buf_alloc: u32,
    /// Bytes that the guest has taken out of it.
    taken: u32,
    /// Bytes that were sent.
    sent: u32,
}

impl SendCredit {
    /// Nothing may be sent before the guest's first packet.
    pub fn new() -> Self {
        Self {
            buf_alloc: 0,
            taken: 0,
            sent: 0,
        }
    }

    /// Believes the credit fields of a packet.
    ///
    /// A driver that builds packets on several processors may queue them in
    /// another order than it counted: an older count is ignored.
    pub fn update(&mut self, buf_alloc: u32, fwd_cnt: u32) -> Result<(), FalseClaim> {
        let newly_taken = fwd_cnt.wrapping_sub(self.taken);
        if newly_taken.cast_signed() < 0 {
            return Ok(());
        }
        if newly_taken > self.in_flight() {
            return Err(FalseClaim);
        }
        self.taken = fwd_cnt;
        self.buf_alloc = buf_alloc;
        Ok(())
    }

    /// Bytes that may be sent now. A buffer that the guest made smaller than
    /// what is under way leaves none.
    pub fn available(&self) -> u32 {
        self.buf_alloc.saturating_sub(self.in_flight())
    }

    /// Counts `len` bytes, at most [`SendCredit::available`], as sent.
    pub fn spend(&mut self, len: u32) {
        debug_assert!(len <= self.available());
        self.sent = self.sent.wrapping_add(len);
    }

    fn in_flight(&self) -> u32 {
        self.sent.wrapping_sub(self.taken)
    }
}

/// The guest sent more than it was allowed to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Overrun;

/// What the device lets the guest send: [`BUF_ALLOC`] bytes ahead of what the
/// host has taken.
#[derive(Clone, Copy, Debug)]
pub struct ReceiveCredit {
    received: u32,
    /// Bytes that went on to the host.
    forwarded: u32,
    /// `forwarded` as the guest last heard it.
    announced: u32,
}

impl ReceiveCredit {
    /// A whole empty buffer.
    pub fn new() -> Self {
        Self {
            received: 0,
            forwarded: 0,
            announced: 0,
        }
    }

    /// Counts `len` bytes from the guest.
    pub fn accept(&mut self, len: usize) -> Result<(), Overrun> {
        let room = BUF_ALLOC - self.received.wrapping_sub(self.forwarded);
        match u32::try_from(len) {
            Ok(len) if len <= room => {
                self.received = self.received.wrapping_add(len);
                Ok(())
            }
            _ => Err(Overrun),
        }
    }

    /// Counts `len` accepted bytes as gone on to the host.
    pub fn forward(&mut self, len: usize) {
        debug_assert!(len <= self.received.wrapping_sub(self.forwarded) as usize);
        self.forwarded = self.forwarded.wrapping_add(len as u32);
    }

    /// Whether the guest should hear of freed room: half the buffer is enough
    /// to keep it going and rare enough to cost little. It cannot be missed:
    /// a guest out of credit has the whole buffer unannounced or under way.
    pub fn should_announce(&self) -> bool {
        self.forwarded.wrapping_sub(self.announced) >= BUF_ALLOC / 2
    }

    /// The `fwd_cnt` to put into a packet that goes to the guest now.
    pub fn announce(&mut self) -> u32 {
        self.announced = self.forwarded;
        self.forwarded
    }
}

#[cfg(test)]
#[path = "credit_test.rs"]
mod tests;
