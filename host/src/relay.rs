//! A running command's streams: between the agent's connection and our own.
//!
//! One loop waits for everything that can happen. What arrives for our outputs
//! is queued in order and written as they take it; while the queue is full
//! nothing is read from the agent, so that a command that nobody listens to
//! waits and costs no memory. Standard input is read only as far as the agent
//! has given credit for it.

use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use coppice_agent_protocol::{
    Decoder, ExecRequest, ExitStatus, HostHello, MAX_PAYLOAD, Message, STDIN_WINDOW, Stdio,
    ToAgent, ToHost,
};
use nix::poll::{PollFd, PollFlags};

use crate::error::Error;
use crate::guest;
use crate::signals::{Arrived, Signals};
use crate::sink::Sink;
use crate::terminal::window_size;
use crate::wait;

/// Output that is held back for a slow reader before the command must wait.
const QUEUE_MAX: usize = 256 * 1024;

/// How long a command may take to end after the signal that was passed on.
const GRACE: Duration = Duration::from_secs(5);

/// How much later than its limit the agent may report a command's end.
const LATENESS: Duration = Duration::from_secs(10);

/// How a command's time with us ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// It ended, and all of its output has been written.
    Exit(ExitStatus),
    /// Nobody reads our output any more.
    OutputClosed,
    /// This signal asked twice, or the command did not heed it.
    Abandoned(u8),
    /// The agent's connection ended first; why is for the machine to say.
    Lost,
}

/// When a command started and ended, if it came to that.
#[derive(Debug, Clone, Copy, Default)]
pub struct Times {
    /// The agent said that it runs.
    pub started: Option<Instant>,
    /// The agent said that it has ended.
    pub ended: Option<Instant>,
}

#[derive(Debug, Clone, Copy)]
enum Output {
    Stdout,
    Stderr,
}

/// The loop and what it holds.
pub struct Relay<'a> {
    stream: UnixStream,
    decoder: Decoder<ToHost>,
    /// What was read last, from the stream or standard input.
    chunk: Box<[u8]>,
    /// Bytes on their way to the agent.
    outgoing: Vec<u8>,
    /// Output on its way to us, in the order of its arrival.
    queue: VecDeque<(Output, Vec<u8>)>,
    queued: usize,
    stdout: Sink,
    stderr: Sink,
    /// Our standard input until its end, if the command is to have it.
    stdin: Option<BorrowedFd<'static>>,
    credit: usize,
    signals: &'a Signals,
    terminal: bool,
    /// The first ending signal, and when it becomes an order.
    ending: Option<(u8, Instant)>,
    /// The command's time limit, and when we stop believing in the agent's.
    limit: Option<(Duration, Instant)>,
    exit: Option<ExitStatus>,
    /// For the caller, whatever the outcome.
    pub times: Times,
}

impl<'a> Relay<'a> {
    /// Asks the agent at the other end of `stream` for `request`. With `stdin`
    /// the command gets what comes from there.
    pub fn new(
        stream: UnixStream,
        request: ExecRequest,
        stdin: Option<BorrowedFd<'static>>,
        signals: &'a Signals,
    ) -> Result<Self, Error> {
        let failed = || Error::host("standard output cannot be used");
        let timeout = request.timeout_ms.map(Duration::from_millis);
        let mut relay = Self {
            stream,
            decoder: Decoder::new(),
            chunk: vec![0; MAX_PAYLOAD].into_boxed_slice(),
            outgoing: Vec::new(),
            queue: VecDeque::new(),
            queued: 0,
            stdout: Sink::new(stdout()).map_err(failed())?,
            stderr: Sink::new(stderr()).map_err(failed())?,
            stdin,
            credit: STDIN_WINDOW as usize,
            signals,
            terminal: matches!(request.stdio, Stdio::Tty(_)),
            ending: None,
            limit: timeout.and_then(|limit| {
                let late = Instant::now().checked_add(limit)?.checked_add(LATENESS)?;
                Some((limit, late))
            }),
            exit: None,
            times: Times::default(),
        };
        relay.stream.set_nonblocking(true).map_err(failed())?;
        relay.send(&ToAgent::Hello(HostHello::default()))?;
        relay.send(&ToAgent::Exec(Box::new(request)))?;
        Ok(relay)
    }

    /// Runs until there is an end.
    pub fn run(&mut self) -> Result<End, Error> {
        loop {
            if let Some(status) = self.exit
                && self.queue.is_empty()
            {
                return Ok(End::Exit(status));
            }
            let ready = self.wait().map_err(Error::host("waiting failed"))?;
            if ready.signals
                && let Some(end) = self.take_signals()?
            {
                return Ok(end);
            }
            if let Some(end) = self.check_clock()? {
                return Ok(end);
            }
            if ready.output && !self.write_output()? {
                return Ok(End::OutputClosed);
            }
            if ready.stdin {
                self.read_stdin()?;
            }
            if ready.stream {
                self.write_stream();
                if self.wants_stream() && !self.read_stream()? {
                    return Ok(End::Lost);
                }
            }
        }
    }

    /// Waits for what there is use for now.
    fn wait(&self) -> io::Result<Ready> {
        let mut stream = PollFlags::empty();
        stream.set(PollFlags::POLLIN, self.wants_stream());
        stream.set(PollFlags::POLLOUT, !self.outgoing.is_empty());
        let stream = (!stream.is_empty()).then(|| PollFd::new(self.stream.as_fd(), stream));

        let head = self.queue.front().map(|(output, _)| match output {
            Output::Stdout => self.stdout.as_fd(),
            Output::Stderr => self.stderr.as_fd(),
        });
        let output = head.map(|fd| PollFd::new(fd, PollFlags::POLLOUT));

        let wants_stdin = self.credit > 0 && self.outgoing.len() < MAX_PAYLOAD;
        let stdin = self.stdin.filter(|_| wants_stdin && self.exit.is_none());
        let stdin = stdin.map(|fd| PollFd::new(fd, PollFlags::POLLIN));

        let signals = Some(PollFd::new(self.signals.as_fd(), PollFlags::POLLIN));

        let sources = [stream, output, stdin, signals];
        let mut fds: Vec<_> = sources.iter().flatten().cloned().collect();
        let limit = self.limit.filter(|_| self.wants_stream());
        let deadline = [self.ending.map(|e| e.1), limit.map(|l| l.1)];
        wait::until(&mut fds, deadline.into_iter().flatten().min())?;

        let mut polled = fds.iter();
        let mut ready = sources.map(|source| {
            let polled = source.and_then(|_| polled.next());
            polled.is_some_and(wait::is_ready)
        });
        let [stream, output, stdin, signals] = &mut ready;
        Ok(Ready {
            stream: *stream,
            output: *output,
            stdin: *stdin,
            signals: *signals,
        })
    }

    /// Whether more output has a place to go.
    fn wants_stream(&self) -> bool {
        self.exit.is_none() && self.queued < QUEUE_MAX
    }

    fn send(&mut self, message: &ToAgent) -> Result<(), Error> {
        Ok(message.encode(&mut self.outgoing)?)
    }

    /// Passes signals on. The end, if one of them is an order.
    fn take_signals(&mut self) -> Result<Option<End>, Error> {
        let failed = || Error::host("signals cannot be read");
        while let Some(signal) = self.signals.next().map_err(failed())? {
            match signal {
                Arrived::WindowChanged if self.terminal => {
                    self.send(&ToAgent::Resize(window_size()))?;
                }
                Arrived::WindowChanged => {}
                Arrived::End(signal) if self.ending.is_some() => {
                    return Ok(Some(End::Abandoned(signal)));
                }
                Arrived::End(signal) => {
                    self.ending = Some((signal, Instant::now() + GRACE));
                    self.send(&ToAgent::Signal(signal))?;
                }
            }
        }
        Ok(None)
    }

    fn check_clock(&self) -> Result<Option<End>, Error> {
        let now = Instant::now();
        if let Some((signal, deadline)) = self.ending
            && now >= deadline
        {
            return Ok(Some(End::Abandoned(signal)));
        }
        match self.limit {
            Some((limit, late)) if now >= late && self.wants_stream() => {
                Err(Error::TimeoutIgnored(limit))
            }
            _ => Ok(None),
        }
    }

    /// Writes the oldest output; false if nobody reads it any more.
    fn write_output(&mut self) -> Result<bool, Error> {
        let Some((output, bytes)) = self.queue.front_mut() else {
            return Ok(true);
        };
        let (sink, name) = match output {
            Output::Stdout => (&mut self.stdout, "standard output cannot be written"),
            Output::Stderr => (&mut self.stderr, "standard error cannot be written"),
        };
        if let Some((_, late)) = &mut self.limit {
            // The agent's report may wait behind output that our reader was in
            // no hurry to take.
            *late = (*late).max(Instant::now() + LATENESS);
        }
        match sink.write(bytes) {
            Ok(len) if len == bytes.len() => {
                self.queued -= len;
                self.queue.pop_front();
            }
            Ok(len) => {
                self.queued -= len;
                bytes.drain(..len);
            }
            Err(error) => match error.kind() {
                io::ErrorKind::BrokenPipe => return Ok(false),
                io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted => {}
                _ => return Err(Error::host(name)(error)),
            },
        }
        Ok(true)
    }

    fn read_stdin(&mut self) -> Result<(), Error> {
        let Some(stdin) = self.stdin else {
            return Ok(());
        };
        let room = self.credit.min(MAX_PAYLOAD);
        match nix::unistd::read(stdin, &mut self.chunk[..room]) {
            Ok(len) if len > 0 => {
                self.credit -= len;
                let bytes = self.chunk[..len].to_vec();
                self.send(&ToAgent::Stdin(bytes))
            }
            Err(nix::Error::EAGAIN | nix::Error::EINTR) => Ok(()),
            // A terminal that hung up reads as an error; it is an end as well.
            Ok(_) | Err(_) => {
                self.stdin = None;
                self.send(&ToAgent::StdinClose)
            }
        }
    }

    /// Sends what goes out now. If the connection is broken, reading will tell.
    fn write_stream(&mut self) {
        while !self.outgoing.is_empty() {
            match self.stream.write(&self.outgoing) {
                Ok(len) => drop(self.outgoing.drain(..len)),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(_) => return self.outgoing.clear(),
            }
        }
    }

    /// Takes what the agent sent; false if the connection has ended.
    fn read_stream(&mut self) -> Result<bool, Error> {
        match self.stream.read(&mut self.chunk) {
            Ok(0) => return Ok(false),
            Ok(len) => self.decoder.push(&self.chunk[..len]),
            Err(error) => match error.kind() {
                io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted => {}
                io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe => return Ok(false),
                _ => return Err(Error::host("the connection to the agent failed")(error)),
            },
        }
        let broken = |error| Error::Protocol(format!("{error}"));
        while let Some(message) = self.decoder.next_message().map_err(broken)? {
            self.take(message)?;
        }
        Ok(true)
    }

    fn take(&mut self, message: ToHost) -> Result<(), Error> {
        match message {
            ToHost::Hello(hello) => drop(guest::check(hello)?),
            ToHost::Started(_) => self.times.started = Some(Instant::now()),
            ToHost::Stdout(bytes) => self.enqueue(Output::Stdout, bytes),
            ToHost::Stderr(bytes) => self.enqueue(Output::Stderr, bytes),
            ToHost::StdinCredit(bytes) => {
                // More than the window would be a lie; it costs only memory
                // for what we read ourselves, but has a bound all the same.
                self.credit = (self.credit + bytes as usize).min(STDIN_WINDOW as usize);
            }
            ToHost::Exit(status) => {
                self.times.ended = Some(Instant::now());
                self.exit = Some(status);
            }
            ToHost::Error(error) => return Err(Error::Refused(error)),
            other @ (ToHost::Info(_) | ToHost::ShuttingDown | ToHost::Renewed(_)) => {
                return Err(Error::Protocol(format!(
                    "it answered an exec with {other:?}"
                )));
            }
        }
        Ok(())
    }

    fn enqueue(&mut self, output: Output, bytes: Vec<u8>) {
        self.queued += bytes.len();
        self.queue.push_back((output, bytes));
    }
}

/// What there is something to do for.
struct Ready {
    stream: bool,
    output: bool,
    stdin: bool,
    signals: bool,
}

/// Standard input, which stays open as long as the process.
pub fn stdin() -> BorrowedFd<'static> {
    standard(libc::STDIN_FILENO)
}

fn stdout() -> BorrowedFd<'static> {
    standard(libc::STDOUT_FILENO)
}

fn stderr() -> BorrowedFd<'static> {
    standard(libc::STDERR_FILENO)
}

fn standard(fd: i32) -> BorrowedFd<'static> {
    // SAFETY: the three standard descriptors are open from the start (the
    // standard library opens /dev/null for those that are not), and nothing in
    // this program closes them.
    unsafe { BorrowedFd::borrow_raw(fd) }
}
