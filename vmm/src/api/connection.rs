//! One client: its bytes in, its answers out, never waiting for it.

use std::io::{ErrorKind, Read, Write};
use std::net::Shutdown;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::net::UnixStream;

use vmm_sys_util::epoll::EventSet;

use super::http::{CONTINUE, Decoder, Event, write_answer, write_refusal};
use super::router::{Request, route};
use super::{Answer, http};

/// Answers that a client has not read; with more than this waiting, its next
/// request waits too.
const MAX_WAITING: usize = 64 * 1024;
/// Bytes read from one client before others get their turn.
const MAX_TURN: usize = 128 * 1024;
/// Bytes that a refused client may still send while it has not read why.
const MAX_IGNORED: usize = 16 * 1024 * 1024;

/// Whether the connection goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    Goes,
    Ends,
}

/// What is still wanted from the client.
enum Phase {
    /// Requests.
    Open,
    /// Nothing, until the request that it made has its answer.
    Waits(Asked),
    /// Nothing: the last answer says so. What it sends all the same is read and
    /// ignored for a while, because closing a socket with unread bytes in it
    /// would make its next write fail before it has read the answer.
    Refused { ignored: usize },
    /// Nothing, and it has said that it will send nothing.
    Ended,
}

/// A request that has no answer yet.
struct Asked {
    /// Method and path, for the log.
    what: String,
    keep_alive: bool,
}

/// A connected client.
pub struct Connection {
    stream: UnixStream,
    decoder: Decoder,
    phase: Phase,
    /// Answers, of which the first `written` bytes are sent.
    output: Vec<u8>,
    written: usize,
}

impl Connection {
    /// Serves `stream`, which must not block.
    pub fn new(stream: UnixStream, max_body: usize) -> Connection {
        Connection {
            stream,
            decoder: Decoder::new(max_body),
            phase: Phase::Open,
            output: Vec::new(),
            written: 0,
        }
    }

    /// The events that are worth waking up for.
    pub fn interest(&self) -> EventSet {
        let mut interest = EventSet::empty();
        if self.waiting() > 0 {
            interest |= EventSet::OUT;
        }
        let reads = !matches!(self.phase, Phase::Ended | Phase::Waits(_));
        if self.waiting() <= MAX_WAITING && reads {
            interest |= EventSet::IN;
        }
        interest
    }

    /// Does all that can be done without waiting, up to a fair share.
    pub fn serve(&mut self, handle: &mut dyn FnMut(Request) -> Option<Answer>) -> Fate {
        let mut turn = MAX_TURN;
        loop {
            if self.waiting() <= MAX_WAITING && self.take_request(handle) {
                continue;
            }
            let was_full = self.waiting() > MAX_WAITING;
            if self.flush().is_err() {
                return Fate::Ends;
            }
            if was_full && self.waiting() > MAX_WAITING {
                return Fate::Goes;
            }
            if was_full {
                continue;
            }
            match &self.phase {
                // It is not read from meanwhile, so what it sends waits, too.
                Phase::Waits(_) => return Fate::Goes,
                Phase::Ended if self.waiting() == 0 => return Fate::Ends,
                Phase::Ended => return Fate::Goes,
                Phase::Refused { ignored } if *ignored > MAX_IGNORED => return Fate::Ends,
                Phase::Refused { .. } if self.waiting() == 0 => {
                    // The client sees the end even if it goes on sending.
                    let _ = self.stream.shutdown(Shutdown::Write);
                }
                Phase::Refused { .. } | Phase::Open => (),
            }
            if turn == 0 {
                return Fate::Goes;
            }
            match self.receive() {
                Ok(0) => self.phase = Phase::Ended,
                Ok(count) => turn = turn.saturating_sub(count),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Fate::Goes,
                Err(error) if error.kind() == ErrorKind::Interrupted => (),
                Err(_) => return Fate::Ends,
            }
        }
    }

    /// Bytes of answers that are not sent.
    fn waiting(&self) -> usize {
        self.output.len() - self.written
    }

    /// Handles the next request if one is complete. True if there was one.
    fn take_request(&mut self, handle: &mut dyn FnMut(Request) -> Option<Answer>) -> bool {
        if !matches!(self.phase, Phase::Open) {
            return false;
        }
        match self.decoder.next_event() {
            Ok(None) => return false,
            Ok(Some(Event::Continue)) => self.output.extend_from_slice(CONTINUE),
            Ok(Some(Event::Request(request))) => self.answer(&request, handle),
            Err(refusal) => {
                log::info!("refused a client: {}", refusal.message);
                write_refusal(&mut self.output, &refusal);
                self.phase = Phase::Refused { ignored: 0 };
            }
        }
        true
    }

    fn answer(
        &mut self,
        request: &http::HttpRequest,
        handle: &mut dyn FnMut(Request) -> Option<Answer>,
    ) {
        let answer = match route(request) {
            Ok(request) => handle(request),
            Err(text) => Some(Answer::Fault(text)),
        };
        let asked = Asked {
            what: format!("{} {}", request.method, request.target),
            // No answer to HEAD has a body, so a client would take ours for the
            // beginning of the next answer if there were one.
            keep_alive: request.keep_alive && request.method != "HEAD",
        };
        match answer {
            None => self.phase = Phase::Waits(asked),
            Some(answer) => self.finish(&asked, &answer),
        }
    }

    /// The client waits for an answer that comes later.
    pub fn is_waiting(&self) -> bool {
        matches!(self.phase, Phase::Waits(_))
    }

    /// Gives the client the answer that it waits for; call
    /// [`Connection::serve`] then.
    pub fn answer_later(&mut self, answer: &Answer) {
        match std::mem::replace(&mut self.phase, Phase::Open) {
            Phase::Waits(asked) => self.finish(&asked, answer),
            other => self.phase = other,
        }
    }

    fn finish(&mut self, asked: &Asked, answer: &Answer) {
        if let Answer::Fault(text) = answer {
            log::warn!("refused {}: {text}", asked.what);
        }
        write_answer(&mut self.output, answer, asked.keep_alive);
        if !asked.keep_alive {
            self.phase = Phase::Refused { ignored: 0 };
        }
    }

    /// Reads what is there, at most a buffer full; 0 is the end.
    fn receive(&mut self) -> std::io::Result<usize> {
        let mut buffer = [0; 16 * 1024];
        let count = self.stream.read(&mut buffer)?;
        match &mut self.phase {
            Phase::Open => self.decoder.push(&buffer[..count]),
            Phase::Refused { ignored } => *ignored += count,
            Phase::Ended | Phase::Waits(_) => (),
        }
        Ok(count)
    }

    /// Sends what the client takes without waiting.
    fn flush(&mut self) -> std::io::Result<()> {
        while self.waiting() > 0 {
            match self.stream.write(&self.output[self.written..]) {
                Ok(count) => self.written += count,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == ErrorKind::Interrupted => (),
                Err(error) => return Err(error),
            }
        }
        self.output.clear();
        self.written = 0;
        Ok(())
    }
}

impl AsRawFd for Connection {
    fn as_raw_fd(&self) -> RawFd {
        self.stream.as_raw_fd()
    }
}
