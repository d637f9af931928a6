//! The line with which a program on the host asks for a port of the guest.

use std::io;
use std::time::{Duration, Instant};

use vm_memory::VolatileSlice;

use crate::backends::unix::ByteStream;

/// How long a client may take for its line.
const LINE_TIMEOUT: Duration = Duration::from_secs(30);

/// The longest line, its end included: ample for `CONNECT 4294967295\r\n`.
const LINE_MAX: usize = 32;

/// A client that was accepted and has not said yet what it wants.
#[derive(Debug)]
pub struct Handshake<S> {
    pub stream: S,
    pub deadline: Instant,
    line: [u8; LINE_MAX],
    len: usize,
}

/// How far a handshake has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// The line is not complete.
    Waiting,
    /// The client wants this port.
    Port(u32),
    /// The client went away or speaks something else.
    Refused,
}

impl<S: ByteStream> Handshake<S> {
    /// A client that has just been accepted.
    pub fn new(stream: S, now: Instant) -> Self {
        Self {
            stream,
            deadline: now + LINE_TIMEOUT,
            line: [0; LINE_MAX],
            len: 0,
        }
    }

    /// Takes what has arrived of the line and nothing behind it: that is
    /// payload for the guest, and stays in the socket until the guest accepts.
    pub fn advance(&mut self) -> Progress {
        loop {
            let room = &mut self.line[self.len..];
            let seen = match self.stream.peek(room) {
                Ok(0) => return Progress::Refused,
                Ok(len) => &room[..len],
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    return Progress::Waiting;
                }
                Err(_) => return Progress::Refused,
            };
            let end = seen.iter().position(|&byte| byte == b'\n');
            let wanted = end.map_or(seen.len(), |at| at + 1);
            match self.stream.receive(&[VolatileSlice::from(room)], wanted) {
                Ok(len) if len == wanted => self.len += len,
                _ => return Progress::Refused,
            }
            if end.is_some() {
                return parse(&self.line[..self.len]).map_or(Progress::Refused, Progress::Port);
            }
            if self.len == LINE_MAX {
                return Progress::Refused;
            }
        }
    }
}

/// The port that a line asks for.
pub fn parse(line: &[u8]) -> Option<u32> {
    let line = std::str::from_utf8(line).ok()?;
    let mut words = line.split_ascii_whitespace();
    let verb = words.next()?;
    let port = words.next()?;
    let only_digits = port.bytes().all(|byte| byte.is_ascii_digit());
    if !verb.eq_ignore_ascii_case("connect") || !only_digits || words.next().is_some() {
        return None;
    }
    port.parse().ok()
}

#[cfg(test)]
#[path = "handshake_test.rs"]
mod tests;
