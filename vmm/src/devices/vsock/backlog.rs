//! Bytes from the guest that the host's socket did not take yet.

use std::collections::VecDeque;
use std::io;

use vm_memory::VolatileSlice;

use crate::backends::unix::ByteStream;

/// Bytes copied out of guest memory at once.
const CHUNK: usize = 4096;

/// A queue of bytes. Credit bounds its length: nothing is pushed that
/// [`super::credit::ReceiveCredit::accept`] did not allow.
#[derive(Debug, Default)]
pub struct Backlog(VecDeque<u8>);

impl Backlog {
    /// Whether no byte waits.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Bytes that wait.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Copies what follows the first `skip` bytes of `data`.
    pub fn push(&mut self, data: &[VolatileSlice<'_>], mut skip: usize) {
        let mut chunk = [0; CHUNK];
        for slice in data {
            let mut at = skip.min(slice.len());
            skip -= at;
            while let Ok(rest) = slice.offset(at)
                && !rest.is_empty()
            {
                let len = rest.copy_to(&mut chunk);
                self.0.extend(&chunk[..len]);
                at += len;
            }
        }
    }

    /// Sends what `stream` takes. An empty backlog keeps no memory.
    ///
    /// # Errors
    /// The stream is broken: it takes nothing, now or later.
    pub fn flush(&mut self, stream: &impl ByteStream) -> io::Result<()> {
        while !self.0.is_empty() {
            let (front, back) = self.0.as_mut_slices();
            match stream.send(&[VolatileSlice::from(front), VolatileSlice::from(back)]) {
                Ok(len) => drop(self.0.drain(..len)),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(error),
            }
        }
        self.clear();
        Ok(())
    }

    /// Drops what waits.
    pub fn clear(&mut self) {
        self.0 = VecDeque::new();
    }
}

#[cfg(test)]
#[path = "backlog_test.rs"]
mod tests;
