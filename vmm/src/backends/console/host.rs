//! The host's end of the console, served by the event loop alone.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use log::{debug, info, warn};

use super::input::{Input, Look};
use super::sink::Sink;
use super::terminal::RawMode;
use super::{Backlog, calls};

/// Bytes that one write is given.
const CHUNK: usize = 64 << 10;
/// Writes in a row before other devices get their turn.
const TURN: usize = 16;

/// What became of the backlog.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Drained {
    /// It is empty.
    Empty,
    /// The sink takes no more for now.
    Blocked,
    /// There is more, and others want their turn.
    More,
}

/// What the input has for the guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Available {
    /// The bytes of [`ConsoleHost::pending`].
    Pending,
    /// Nothing for now.
    Nothing,
    /// Nothing, and there never will be.
    Ended,
}

/// The host's end: takes output from the backlog to the sink and reads input.
pub struct ConsoleHost {
    backlog: Arc<Backlog>,
    sink: Option<Sink>,
    /// Taken from the backlog, written up to `written`.
    chunk: Vec<u8>,
    written: usize,
    /// The last write failed; the next failure is no news.
    failing: bool,
    /// The log says that bytes were dropped.
    reported: bool,
    input: Option<Input>,
    /// Only ever hang-ups from here on.
    input_ended: bool,
    /// Read and not yet taken by the guest.
    pending: Vec<u8>,
    _raw_mode: Option<RawMode>,
}

impl ConsoleHost {
    pub(super) fn new(
        backlog: Arc<Backlog>,
        sink: Option<Sink>,
        input: Option<OwnedFd>,
    ) -> io::Result<Self> {
        let raw_mode = match &input {
            Some(fd) if calls::is_terminal(fd.as_fd()) => {
                if calls::is_background(fd.as_fd()) {
                    info!("the console has no input: its terminal is used by another process");
                    None
                } else {
                    Some(RawMode::enter(fd.try_clone()?)?)
                }
            }
            _ => None,
        };
        Ok(Self {
            backlog,
            sink,
            chunk: Vec::new(),
            written: 0,
            failing: false,
            reported: false,
            input: input.map(Input::new),
            input_ended: false,
            pending: Vec::new(),
            _raw_mode: raw_mode,
        })
    }

    /// What to watch for room while [`Drained::Blocked`].
    pub fn output_fd(&self) -> Option<BorrowedFd<'_>> {
        self.sink.as_ref().map(AsFd::as_fd)
    }

    /// What to watch for input while the guest has room for some and until it has
    /// ended. It stays open, so that it can be taken out of the event loop.
    pub fn input_fd(&self) -> Option<BorrowedFd<'_>> {
        self.input.as_ref().map(AsFd::as_fd)
    }

    /// Writes as much of the backlog as the sink takes and fairness allows. What
    /// a failing sink refuses is dropped: the next bytes are tried again.
    pub fn drain(&mut self) -> Drained {
        let Some(sink) = &self.sink else {
            return Drained::Empty;
        };
        for _ in 0..TURN {
            if self.written == self.chunk.len() {
                self.chunk.clear();
                self.written = 0;
                self.backlog.take(&mut self.chunk, CHUNK);
                if self.chunk.is_empty() {
                    return Drained::Empty;
                }
            }
            match sink.write(&self.chunk[self.written..]) {
                Ok(count) => {
                    self.written += count;
                    self.failing = false;
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    return Drained::Blocked;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => {
                    if !self.failing {
                        warn!("the console's output is dropped until it can be written: {error}");
                    }
                    self.failing = true;
                    self.backlog.count_dropped(self.chunk.len() - self.written);
                    self.written = self.chunk.len();
                }
            }
        }
        Drained::More
    }

    /// Writes one byte if none waits before it and the sink takes it now. What is
    /// refused is for the backlog, and errors are for [`ConsoleHost::drain`].
    pub fn write_at_once(&mut self, byte: u8) -> bool {
        if self.written < self.chunk.len() || self.failing || self.backlog.len() > 0 {
            return false;
        }
        let sink = self.sink.as_ref();
        sink.is_some_and(|sink| matches!(sink.write(&[byte]), Ok(1)))
    }

    /// Says in the log, once, that the guest writes faster than anyone reads.
    pub fn report_dropped(&mut self) {
        if !self.reported && !self.failing && self.backlog.dropped() > 0 {
            self.reported = true;
            warn!("the console's output is not read fast enough: some of it is dropped");
        }
    }

    /// Reads up to `room` bytes, the guest's room for input, unless some are
    /// pending already.
    pub fn read_input(&mut self, room: usize) -> Available {
        if !self.pending.is_empty() {
            return Available::Pending;
        }
        let Some(input) = &self.input else {
            return Available::Ended;
        };
        if self.input_ended {
            return Available::Ended;
        }
        if room == 0 {
            return Available::Nothing;
        }
        self.pending.resize(room, 0);
        let look = input.read(&mut self.pending);
        let count = match look {
            Look::Bytes(count) => count,
            Look::Nothing | Look::End => 0,
        };
        self.pending.truncate(count);
        match look {
            Look::Bytes(_) => Available::Pending,
            Look::Nothing => Available::Nothing,
            Look::End => {
                debug!("the console's input has ended");
                self.input_ended = true;
                Available::Ended
            }
        }
    }

    /// What was read and waits for the guest.
    pub fn pending(&self) -> &[u8] {
        &self.pending
    }

    /// The guest took the first `count` pending bytes.
    pub fn taken(&mut self, count: usize) {
        self.pending.drain(..count);
    }

    /// The machine has ended: writes what is left for as long as `limit` allows,
    /// and says what was lost.
    pub fn finish(&mut self, limit: Duration) {
        let deadline = Instant::now() + limit;
        loop {
            let drained = self.drain();
            let left = deadline.saturating_duration_since(Instant::now());
            if drained == Drained::Empty || left.is_zero() {
                break;
            }
            if let (Drained::Blocked, Some(sink)) = (drained, &self.sink)
                && !sink.wait(left)
            {
                break;
            }
        }
        let unwritten = self.chunk.len() - self.written + self.backlog.len();
        self.chunk.clear();
        self.written = 0;
        self.backlog.count_dropped(unwritten);
        match self.backlog.dropped() {
            0 => {}
            dropped => warn!("{dropped} bytes of the console's output were dropped"),
        }
    }
}
