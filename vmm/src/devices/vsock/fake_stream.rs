//! A stream that a test fills, empties and ends by hand.

use std::cell::RefCell;
use std::io;
use std::net::Shutdown;
use std::rc::Rc;

use vm_memory::VolatileSlice;

use crate::backends::unix::ByteStream;

/// What happened to a [`FakeStream`], and what is to happen.
#[derive(Debug, Default)]
pub struct State {
    /// Bytes that the device sent.
    pub sent: Vec<u8>,
    /// How many more it may send.
    pub room: usize,
    /// The other end takes no more.
    pub broken: bool,
    /// What there is to receive.
    pub incoming: Vec<u8>,
    /// After `incoming` comes the end.
    pub ended: bool,
    /// Directions that the device ended.
    pub ends: Vec<Shutdown>,
}

/// A handle; clones share the state.
#[derive(Clone, Debug, Default)]
pub struct FakeStream(pub Rc<RefCell<State>>);

impl FakeStream {
    /// A stream with room for `room` bytes.
    pub fn with_room(room: usize) -> Self {
        let stream = Self::default();
        stream.0.borrow_mut().room = room;
        stream
    }

    fn waiting(&self, most: usize) -> io::Result<usize> {
        let state = self.0.borrow();
        match state.incoming.len().min(most) {
            0 if !state.ended => Err(io::ErrorKind::WouldBlock.into()),
            len => Ok(len),
        }
    }
}

impl ByteStream for FakeStream {
    fn send(&self, data: &[VolatileSlice<'_>]) -> io::Result<usize> {
        let mut state = self.0.borrow_mut();
        if state.broken {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        if state.room == 0 {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let mut bytes = Vec::new();
        for slice in data {
            let start = bytes.len();
            bytes.resize(start + slice.len(), 0);
            slice.copy_to(&mut bytes[start..]);
        }
        bytes.truncate(state.room);
        state.room -= bytes.len();
        state.sent.extend(&bytes);
        Ok(bytes.len())
    }

    fn receive(&self, room: &[VolatileSlice<'_>], limit: usize) -> io::Result<usize> {
        let most = room
            .iter()
            .map(VolatileSlice::len)
            .sum::<usize>()
            .min(limit);
        let len = self.waiting(most)?;
        let taken: Vec<u8> = self.0.borrow_mut().incoming.drain(..len).collect();
        let mut rest = &taken[..];
        for slice in room {
            let (part, tail) = rest.split_at(rest.len().min(slice.len()));
            slice.copy_from(part);
            rest = tail;
        }
        Ok(len)
    }

    fn peek(&self, room: &mut [u8]) -> io::Result<usize> {
        let len = self.waiting(room.len())?;
        room[..len].copy_from_slice(&self.0.borrow().incoming[..len]);
        Ok(len)
    }

    fn end(&self, how: Shutdown) {
        self.0.borrow_mut().ends.push(how);
    }
}
