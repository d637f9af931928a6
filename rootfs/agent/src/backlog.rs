//! Bytes that wait for a descriptor to take them.

use nix::errno::Errno;

/// A queue of bytes, written from its front.
#[derive(Debug, Default)]
pub(crate) struct Backlog {
    bytes: Vec<u8>,
    sent: usize,
}

impl Backlog {
    /// Bytes that wait.
    pub(crate) fn len(&self) -> usize {
        self.bytes.len() - self.sent
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The end of the queue, to append to. What was sent is dropped first
    /// when it is the larger part, so that moving bytes stays cheap.
    pub(crate) fn tail(&mut self) -> &mut Vec<u8> {
        if self.sent > self.len() {
            self.bytes.drain(..self.sent);
            self.sent = 0;
        }
        &mut self.bytes
    }

    pub(crate) fn clear(&mut self) {
        self.bytes.clear();
        self.sent = 0;
    }

    /// Writes until the queue is empty or `write` fails, `EAGAIN` included;
    /// returns how many bytes went and why no more did.
    pub(crate) fn write(
        &mut self,
        mut write: impl FnMut(&[u8]) -> Result<usize, Errno>,
    ) -> (usize, Option<Errno>) {
        let before = self.len();
        let failure = loop {
            if self.is_empty() {
                break None;
            }
            match write(&self.bytes[self.sent..]) {
                Ok(count) => self.sent += count,
                Err(Errno::EINTR) => {}
                Err(errno) => break Some(errno),
            }
        };
        let written = before - self.len();
        if self.is_empty() {
            self.clear();
        }
        (written, failure)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_leave_in_order_through_short_writes() {
        let mut backlog = Backlog::default();
        let mut got: Vec<u8> = Vec::new();
        for round in 0u8..100 {
            backlog.tail().extend([round; 7]);
            let mut room = usize::from(round % 11);
            let (written, failure) = backlog.write(|bytes| {
                let count = bytes.len().min(3).min(room);
                room -= count;
                got.extend(&bytes[..count]);
                if count == 0 {
                    Err(Errno::EAGAIN)
                } else {
                    Ok(count)
                }
            });
            assert!(written <= usize::from(round % 11));
            assert_eq!(failure.is_none(), backlog.is_empty());
        }
        backlog.write(|bytes| {
            got.extend(bytes);
            Ok(bytes.len())
        });
        let all: Vec<u8> = (0..100).flat_map(|round| [round; 7]).collect();
        assert_eq!(got, all);
    }
}
