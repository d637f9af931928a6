//! What the guest wrote and the host has not taken yet.

use std::collections::VecDeque;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use vmm_sys_util::eventfd::EventFd;

/// Bytes that wait at most. A kernel's whole boot log is a tenth of it.
pub const CAPACITY: usize = 1 << 20;

/// A bounded queue of bytes from vCPU threads to the event loop, which it wakes.
pub struct Backlog {
    bytes: Mutex<VecDeque<u8>>,
    dropped: AtomicU64,
    wake: EventFd,
    /// Without a sink, bytes vanish right here.
    has_sink: bool,
}

impl Backlog {
    pub(super) fn new(has_sink: bool) -> io::Result<Self> {
        Ok(Self {
            bytes: Mutex::default(),
            dropped: AtomicU64::new(0),
            wake: EventFd::new(libc::EFD_NONBLOCK | libc::EFD_CLOEXEC)?,
            has_sink,
        })
    }

    /// Queues `byte`, or drops and counts it if there is no room. Never waits
    /// for the sink.
    pub fn push(&self, byte: u8) {
        if !self.has_sink {
            return;
        }
        let mut bytes = self.bytes.lock();
        if bytes.len() >= CAPACITY {
            drop(bytes);
            self.count_dropped(1);
            return;
        }
        let was_empty = bytes.is_empty();
        bytes.push_back(byte);
        drop(bytes);
        if was_empty {
            self.wake();
        }
    }

    /// Wakes the event loop: there is output, or the guest has room for input.
    pub fn wake(&self) {
        // A write fails only if the counter is full: the loop is awake already.
        let _ = self.wake.write(1);
    }

    /// What the event loop watches to be woken.
    pub fn wake_fd(&self) -> &EventFd {
        &self.wake
    }

    /// Bytes that were dropped so far.
    pub fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }

    pub(super) fn count_dropped(&self, bytes: usize) {
        self.dropped.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// Moves up to `limit` bytes to the end of `out`.
    pub(super) fn take(&self, out: &mut Vec<u8>, limit: usize) {
        let mut bytes = self.bytes.lock();
        let count = limit.min(bytes.len());
        out.extend(bytes.drain(..count));
    }

    pub(super) fn len(&self) -> usize {
        self.bytes.lock().len()
    }
}
