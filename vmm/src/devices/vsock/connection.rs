//! One connection between a port of the guest and a stream of the host.
//!
//! This is the protocol without its plumbing: packets and socket events go in,
//! packets come out, and [`Fate`] says when it is over. Payload moves straight
//! between guest memory and the stream.
//!
//! ```text
//! guest asked:  Answering ──Response──▶ Open
//! host asked:   Asking ──Request──▶ Asked ──guest's Response──▶ Open
//! ```
//!
//! Each direction ends by itself. The guest's half is over when it said so and
//! the backlog has gone to the host; the host's half when its stream ended and
//! every byte before has gone to the guest.

use std::io;
use std::net::Shutdown;
use std::time::{Duration, Instant};

use vm_memory::VolatileSlice;

use super::backlog::Backlog;
use super::credit::{ReceiveCredit, SendCredit};
use super::packet::{Header, Op, SHUTDOWN_BOTH, SHUTDOWN_RECEIVE, SHUTDOWN_SEND};
use crate::backends::unix::ByteStream;

/// How long a guest may take to answer a connection request. Far longer than
/// any guest needs, even an emulated one, and short enough that a guest that
/// never answers gathers no clients.
pub const ANSWER_TIMEOUT: Duration = Duration::from_secs(20);

/// How far the connection has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// The guest asked; its answer is still to be sent.
    Answering,
    /// The host asked; the request is still to be sent to the guest.
    Asking { until: Instant },
    /// The guest has the request.
    Asked { until: Instant },
    /// Both sides agreed.
    Open,
}

/// Whether the connection goes on, and if not, what is left to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It goes on.
    Live,
    /// It broke: the guest is to be told with a reset.
    Reset,
    /// The guest broke a rule, and is to be told with a reset.
    Misbehaved(&'static str),
    /// The guest ended it. What it sent before still goes to the host.
    Over {
        /// Whether the guest waits for a reset as confirmation.
        answer: bool,
    },
    /// The host ended it and the guest was told everything; it will confirm
    /// with a reset. The stream has nothing left in either direction.
    Told,
}

/// A packet to the guest, except for the addresses that the connection does
/// not know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outgoing {
    pub op: Op,
    pub len: u32,
    pub flags: u32,
    pub fwd_cnt: u32,
}

/// The state of one connection.
#[derive(Debug)]
pub struct Connection<S> {
    stream: S,
    phase: Phase,
    fate: Fate,
    to_guest: SendCredit,
    from_guest: ReceiveCredit,
    /// Accepted from the guest, not yet taken by the stream.
    backlog: Backlog,
    /// Directions that the guest ended, as flags of [`Op::Shutdown`].
    guest_ended: u32,
    /// Directions that the host ended, as the same flags.
    host_ended: u32,
    /// What the guest was told of `host_ended`.
    told: u32,
    /// The stream may have something to receive. Set by its events, cleared
    /// by finding that it has not.
    readable: bool,
    /// The stream's other end was closed altogether.
    hung_up: bool,
    /// The guest asked for the credit fields.
    update_due: bool,
    /// The guest was asked for credit since it last had some.
    credit_asked: bool,
}

impl<S: ByteStream> Connection<S> {
    /// A connection that the guest asked for with `request`.
    pub fn from_guest(stream: S, request: &Header) -> Self {
        let mut connection = Self::new(stream, Phase::Answering);
        connection.believe(request);
        connection
    }

    /// A connection that the client at `stream` asked for.
    pub fn from_host(stream: S, now: Instant) -> Self {
        let until = now + ANSWER_TIMEOUT;
        Self::new(stream, Phase::Asking { until })
    }

    fn new(stream: S, phase: Phase) -> Self {
        Self {
            stream,
            phase,
            fate: Fate::Live,
            to_guest: SendCredit::new(),
            from_guest: ReceiveCredit::new(),
            backlog: Backlog::default(),
            guest_ended: 0,
            host_ended: 0,
            told: 0,
            readable: true,
            hung_up: false,
            update_due: false,
            credit_asked: false,
        }
    }

    /// Whether the connection goes on.
    pub fn fate(&self) -> Fate {
        self.fate
    }

    /// Whether to watch for room in the stream.
    pub fn wants_room(&self) -> bool {
        !self.backlog.is_empty()
    }

    /// When the guest has to have answered, if it still has to.
    pub fn deadline(&self) -> Option<Instant> {
        match self.phase {
            Phase::Asking { until } | Phase::Asked { until } => Some(until),
            Phase::Answering | Phase::Open => None,
        }
    }

    /// Gives up on a guest that did not answer in time, or for a client that
    /// went away before.
    pub fn give_up(&mut self) {
        self.fate = match self.phase {
            // The guest knows nothing of it.
            Phase::Asking { .. } => Fate::Over { answer: false },
            _ => Fate::Reset,
        };
    }

    /// The host's side.
    pub fn stream(&self) -> &S {
        &self.stream
    }

    /// The stream and what is still to be sent to it.
    pub fn into_parts(self) -> (S, Backlog) {
        (self.stream, self.backlog)
    }

    /// Takes in a packet of the guest. `greeting` is what the host's client
    /// is to read before anything else once the guest accepts.
    pub fn packet(
        &mut self,
        op: Op,
        header: &Header,
        payload: &[VolatileSlice<'_>],
        greeting: impl FnOnce() -> String,
    ) {
        if op == Op::Reset {
            self.fate = Fate::Over { answer: false };
            return;
        }
        self.believe(header);
        if self.fate != Fate::Live {
            return;
        }
        match (op, self.phase) {
            (Op::Response, Phase::Asked { .. }) => self.accepted(greeting()),
            (Op::Shutdown, Phase::Open | Phase::Answering) => self.guest_ends(header.flags),
            (Op::Data, Phase::Open) => self.data(header.len as usize, payload),
            // Linux sends one whenever a program sets its buffer's size, be the
            // connection complete or not.
            (Op::CreditUpdate, _) => {}
            (Op::CreditRequest, _) => self.update_due = true,
            _ => self.fate = Fate::Misbehaved("a packet does not fit the state of its connection"),
        }
    }

    /// The stream has something to receive, or has ended.
    pub fn readable(&mut self) {
        self.readable = true;
    }

    /// The stream's other end was closed; what it sent before may still wait.
    pub fn hung_up(&mut self) {
        self.hung_up = true;
        self.readable = true;
        if self.host_ended & SHUTDOWN_SEND != 0 {
            self.host_takes_no_more();
        }
        let waiting = matches!(self.phase, Phase::Asking { .. } | Phase::Asked { .. });
        if waiting && matches!(self.stream.peek(&mut [0]), Ok(0) | Err(_)) {
            self.give_up();
        }
    }

    /// The stream has room again.
    pub fn has_room(&mut self) {
        let before = self.backlog.len();
        let flushed = self.backlog.flush(&self.stream);
        self.from_guest.forward(before - self.backlog.len());
        if flushed.is_err() {
            self.host_takes_no_more();
        }
        self.pass_on_guest_end();
    }

    /// Whether [`Connection::next`] may have a packet.
    pub fn has_packet(&self) -> bool {
        self.fate == Fate::Live
            && match self.phase {
                Phase::Answering | Phase::Asking { .. } => true,
                Phase::Asked { .. } => false,
                Phase::Open => {
                    self.host_ended != self.told
                        || self.credit_is_due()
                        || self.wants_to_send()
                            && (self.to_guest.available() > 0 || !self.credit_asked)
                }
            }
    }

    /// The next packet for the guest, its payload already in `room`.
    pub fn next(&mut self, room: &[VolatileSlice<'_>]) -> Option<Outgoing> {
        match self.phase {
            Phase::Asking { until } => {
                self.phase = Phase::Asked { until };
                Some(self.outgoing(Op::Request, 0, 0))
            }
            Phase::Answering => {
                self.phase = Phase::Open;
                Some(self.outgoing(Op::Response, 0, 0))
            }
            Phase::Asked { .. } => None,
            Phase::Open => self.next_open(room),
        }
    }

    fn next_open(&mut self, room: &[VolatileSlice<'_>]) -> Option<Outgoing> {
        if self.credit_is_due() {
            self.update_due = false;
            return Some(self.outgoing(Op::CreditUpdate, 0, 0));
        }
        if self.wants_to_send() && self.host_ended == self.told {
            let credit = self.to_guest.available();
            if credit == 0 && !self.credit_asked {
                self.credit_asked = true;
                return Some(self.outgoing(Op::CreditRequest, 0, 0));
            }
            let len = if credit > 0 {
                self.receive(room, credit)
            } else {
                0
            };
            if len > 0 {
                return Some(self.outgoing(Op::Data, len, 0));
            }
        }
        if self.host_ended == self.told {
            return None;
        }
        self.told = self.host_ended;
        if self.told == SHUTDOWN_BOTH {
            self.fate = Fate::Told;
        }
        Some(self.outgoing(Op::Shutdown, 0, self.told))
    }

    /// Receives up to `credit` bytes into `room`, and notices the end.
    fn receive(&mut self, room: &[VolatileSlice<'_>], credit: u32) -> u32 {
        match self.stream.receive(room, credit as usize) {
            Ok(0) => {
                self.readable = false;
                self.host_ended |= SHUTDOWN_SEND;
                if self.hung_up {
                    self.host_takes_no_more();
                }
                0
            }
            Ok(len) => {
                let len = len as u32;
                self.to_guest.spend(len);
                len
            }
            Err(error) => {
                self.readable = false;
                if error.kind() != io::ErrorKind::WouldBlock {
                    self.fate = Fate::Reset;
                }
                0
            }
        }
    }

    fn outgoing(&mut self, op: Op, len: u32, flags: u32) -> Outgoing {
        Outgoing {
            op,
            len,
            flags,
            fwd_cnt: self.from_guest.announce(),
        }
    }

    /// A guest that ended its half needs no credit.
    fn credit_is_due(&self) -> bool {
        self.update_due
            || self.from_guest.should_announce() && self.guest_ended & SHUTDOWN_SEND == 0
    }

    fn wants_to_send(&self) -> bool {
        self.readable && self.host_ended & SHUTDOWN_SEND == 0
    }

    /// Takes the credit fields of any packet.
    fn believe(&mut self, header: &Header) {
        if self
            .to_guest
            .update(header.buf_alloc, header.fwd_cnt)
            .is_err()
        {
            self.fate = Fate::Misbehaved("it claims to have read bytes that it was never sent");
        }
        if self.to_guest.available() > 0 {
            self.credit_asked = false;
        }
    }

    /// The guest accepts. The stream is new, so the greeting fits.
    fn accepted(&mut self, greeting: String) {
        self.phase = Phase::Open;
        let mut bytes = greeting.into_bytes();
        match self.stream.send(&[VolatileSlice::from(&mut bytes[..])]) {
            Ok(sent) if sent == bytes.len() => {}
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => self.host_takes_no_more(),
            _ => self.fate = Fate::Reset,
        }
    }

    fn data(&mut self, len: usize, payload: &[VolatileSlice<'_>]) {
        let broken = if payload.iter().map(VolatileSlice::len).sum::<usize>() != len {
            Some("a packet is shorter than its header says")
        } else if self.guest_ended & SHUTDOWN_SEND != 0 {
            Some("it sent data after it said that it would not")
        } else if self.from_guest.accept(len).is_err() {
            Some("it sent more than it had credit for")
        } else {
            None
        };
        if let Some(rule) = broken {
            self.fate = Fate::Misbehaved(rule);
            return;
        }
        if self.host_ended & SHUTDOWN_RECEIVE != 0 {
            // It was sent before the guest heard that nobody reads it.
            self.from_guest.forward(len);
            return;
        }
        let mut sent = 0;
        if self.backlog.is_empty() {
            match self.stream.send(payload) {
                Ok(len) => sent = len,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(_) => {
                    self.from_guest.forward(len);
                    self.host_takes_no_more();
                    return;
                }
            }
        }
        self.from_guest.forward(sent);
        self.backlog.push(payload, sent);
    }

    fn guest_ends(&mut self, flags: u32) {
        self.guest_ended |= flags & SHUTDOWN_BOTH;
        if self.guest_ended == SHUTDOWN_BOTH {
            self.fate = Fate::Over { answer: true };
            return;
        }
        if self.guest_ended & SHUTDOWN_RECEIVE != 0 {
            // Nobody is left to read what the host would send.
            self.stream.end(Shutdown::Read);
            self.host_ended |= SHUTDOWN_SEND;
        }
        self.pass_on_guest_end();
    }

    /// Ends the stream's direction to the host once everything is in it.
    fn pass_on_guest_end(&mut self) {
        if self.guest_ended & SHUTDOWN_SEND != 0 && self.backlog.is_empty() {
            self.stream.end(Shutdown::Write);
        }
    }

    /// The host reads no more: what waits for it is of no use.
    fn host_takes_no_more(&mut self) {
        self.host_ended |= SHUTDOWN_RECEIVE;
        self.from_guest.forward(self.backlog.len());
        self.backlog.clear();
    }
}

#[cfg(test)]
#[path = "connection_test.rs"]
mod tests;
