//! One stream from the host and the one request that it carries.

use std::io;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use coppice_agent_protocol::{AgentError, ErrorKind, Outcome, PROTOCOL_VERSION, ToAgent, ToHost};

use crate::env::Env;
use crate::exec::Exec;
use crate::info;
use crate::link::{Arrival, Link};
use crate::poll::{Event, Poller, Role, Token};
use crate::renew::Renewal;
use crate::slab::Key;

/// For the hello and the request to arrive.
const GREETING_TIME: Duration = Duration::from_secs(10);

/// For the host to end its side after everything was sent.
const LINGER: Duration = Duration::from_secs(5);

/// Incomplete requests, all sessions together.
const PENDING_BUDGET: usize = 16 * 1024 * 1024;

/// Rounds of work for one session before the next one has its turn.
const ROUNDS: usize = 8;

/// What a session waits for.
#[derive(Debug)]
enum Phase {
    /// The hello, then the request.
    Greeting { greeted: bool, until: Instant },
    /// The end of a command.
    Running(Box<Exec>),
    /// The end of a renewal, which may come after its answer.
    Renewing(Box<Renewal>),
    /// Everything is said; it only has to arrive.
    Closing { until: Option<Instant> },
}

impl Phase {
    /// The program that runs now.
    fn program(&mut self) -> Option<&mut Exec> {
        match self {
            Self::Running(exec) => Some(exec),
            Self::Renewing(renewal) => renewal.program(),
            Self::Greeting { .. } | Self::Closing { .. } => None,
        }
    }
}

/// Whether a session needs another turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Turn {
    /// Not before its next event or deadline.
    Waits,
    /// At once, after the others.
    Again,
    /// Never: it is over.
    Over,
}

/// A stream and its request.
#[derive(Debug)]
pub(crate) struct Session {
    key: Key,
    /// Gone when the host is gone and a command is still to be ended.
    link: Option<Link>,
    phase: Phase,
    /// This session's share of [`Env::pending`].
    pending: usize,
    /// In the queue of sessions that have work.
    pub(crate) queued: bool,
}

impl Session {
    /// A session on a fresh stream.
    pub(crate) fn new(key: Key, stream: OwnedFd, now: Instant) -> Self {
        Self {
            key,
            link: Some(Link::new(stream)),
            phase: Phase::Greeting {
                greeted: false,
                until: now + GREETING_TIME,
            },
            pending: 0,
            queued: false,
        }
    }

    /// Has the stream's events sent to this session.
    pub(crate) fn watch(&self, poller: &Poller) -> io::Result<()> {
        let token = Token::Session(self.key, Role::Link);
        match &self.link {
            Some(link) => poller.watch(link.fd(), token),
            None => Ok(()),
        }
    }

    /// Notes an event of one of the session's descriptors.
    pub(crate) fn notice(&mut self, role: Role, event: &Event) {
        match (role, &mut self.link, &mut self.phase) {
            (Role::Link, Some(link), _) => {
                link.readable |= event.readable;
                link.writable |= event.writable;
            }
            (_, _, phase) => {
                if let Some(exec) = phase.program() {
                    exec.notice(role, event.writable);
                }
            }
        }
    }

    /// The next time at which the session has to be looked at.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        match &self.phase {
            Phase::Greeting { until, .. } => Some(*until),
            Phase::Running(exec) => exec.deadline(),
            Phase::Renewing(renewal) => renewal.deadline(),
            Phase::Closing { until } => *until,
        }
    }

    /// The command's process has ended and is about to be reaped.
    pub(crate) fn child_ended(&mut self, outcome: Outcome, env: &mut Env, now: Instant) {
        self.check_start(env);
        if let Some(exec) = self.phase.program() {
            exec.ended(outcome, now);
        }
    }

    /// Does everything that can be done without waiting.
    pub(crate) fn pump(&mut self, env: &mut Env, now: Instant) -> Turn {
        if let Some(exec) = self.phase.program() {
            exec.tick(now);
        }
        self.check_start(env);
        let mut turn = Turn::Again;
        for _ in 0..ROUNDS {
            let moved = self.round(env, now).unwrap_or_else(|_| {
                self.lose_host(now);
                true
            });
            if self.is_over(now) {
                turn = Turn::Over;
                break;
            }
            if !moved {
                turn = Turn::Waits;
                break;
            }
        }
        self.account(env);
        turn
    }

    /// Whether the end of an orphan may be what the session waits for.
    pub(crate) fn awaits_others(&self) -> bool {
        matches!(&self.phase, Phase::Running(exec) if exec.awaits_others())
    }

    /// Kills the session's command: the agent is stopping.
    pub(crate) fn kill(&mut self) {
        match &mut self.phase {
            Phase::Renewing(renewal) => renewal.cancel(),
            phase => {
                if let Some(exec) = phase.program() {
                    exec.kill();
                }
            }
        }
    }

    /// Whether a command of the session is not over yet.
    pub(crate) fn is_running(&self) -> bool {
        matches!(self.phase, Phase::Running(_) | Phase::Renewing(_))
    }

    /// Whether the session still has something to tell its host.
    pub(crate) fn is_closing(&self) -> bool {
        matches!(self.phase, Phase::Closing { until: None })
    }

    fn round(&mut self, env: &mut Env, now: Instant) -> io::Result<bool> {
        let mut moved = self.receive(env, now)?;
        if let Phase::Running(exec) = &mut self.phase {
            moved |= exec.pump(self.link.as_mut(), env);
            if let Some(status) = exec.finished() {
                self.conclude(&ToHost::Exit(status), env);
                moved = true;
            }
        }
        if let Phase::Renewing(renewal) = &mut self.phase {
            moved |= renewal.pump(self.key, env);
            let answer = renewal.answer();
            let (over, answered) = (renewal.is_over(), answer.is_some());
            if let Some(answer) = answer {
                self.say(&ToHost::Renewed(Box::new(answer)));
            }
            if over {
                self.phase = Phase::Closing { until: None };
            } else if answered && let Some(link) = &mut self.link {
                // What is left to do is no business of the host's. An answer
                // is short and the first thing on its stream: it fits.
                link.flush()?;
                link.finish();
            }
        }
        if let Some(link) = &mut self.link {
            moved |= link.flush()?;
            if let Phase::Closing {
                until: until @ None,
            } = &mut self.phase
                && link.is_flushed()
            {
                link.finish();
                *until = Some(now + LINGER);
            }
        }
        Ok(moved)
    }

    fn receive(&mut self, env: &mut Env, now: Instant) -> io::Result<bool> {
        let Some(link) = &mut self.link else {
            return Ok(false);
        };
        let count = match link.receive(&mut env.scratch)? {
            Arrival::Nothing => {
                if let Phase::Greeting { until, .. } = self.phase
                    && until <= now
                {
                    let message = "no complete request arrived in time";
                    self.refuse(ErrorKind::TooSlow, message, env, now);
                    return Ok(true);
                }
                return Ok(false);
            }
            Arrival::End => return Err(io::ErrorKind::UnexpectedEof.into()),
            Arrival::Bytes(count) => count,
        };
        if matches!(self.phase, Phase::Closing { .. }) {
            return Ok(true);
        }
        link.decoder.push(&env.scratch[..count]);
        while let Some(link) = &mut self.link {
            match link.decoder.next_message() {
                Ok(Some(message)) => self.take(message, env, now),
                Ok(None) => break,
                Err(error) => self.refuse(ErrorKind::Protocol, error.to_string(), env, now),
            }
            if matches!(self.phase, Phase::Closing { .. }) {
                break;
            }
        }
        self.account(env);
        if self.pending > 0 && env.pending > PENDING_BUDGET {
            let message = "too many large requests are arriving at once; try again later";
            self.refuse(ErrorKind::Busy, message, env, now);
        }
        Ok(true)
    }

    /// Keeps the sum of incomplete requests.
    fn account(&mut self, env: &mut Env) {
        let pending = match (&self.phase, &self.link) {
            (Phase::Greeting { .. }, Some(link)) => link.decoder.pending(),
            _ => 0,
        };
        env.pending = env.pending.saturating_sub(self.pending) + pending;
        self.pending = pending;
    }

    fn take(&mut self, message: ToAgent, env: &mut Env, now: Instant) {
        match &mut self.phase {
            Phase::Greeting { greeted, .. } if !*greeted => match message {
                ToAgent::Hello(hello) => {
                    *greeted = true;
                    let own = ToHost::Hello(env.hello.clone());
                    self.say(&own);
                    if hello.protocol != PROTOCOL_VERSION {
                        let message = format!(
                            "the host speaks protocol {}, this agent {PROTOCOL_VERSION}; use an agent and a host of the same release",
                            hello.protocol
                        );
                        self.refuse(ErrorKind::Version, message, env, now);
                    }
                }
                _ => {
                    let message = "the first message must be a hello";
                    self.refuse(ErrorKind::Protocol, message, env, now);
                }
            },
            Phase::Greeting { .. } => self.request(message, env, now),
            Phase::Running(exec) => match message {
                ToAgent::Stdin(bytes) => {
                    if !exec.feed(&bytes) {
                        let message = "more standard input than credit was given for";
                        self.refuse(ErrorKind::Protocol, message, env, now);
                    }
                }
                ToAgent::StdinClose => exec.close_stdin(),
                ToAgent::Signal(number) => exec.signal(number),
                ToAgent::Resize(size) => exec.resize(size),
                _ => {
                    let message = "a stream carries one request";
                    self.refuse(ErrorKind::Protocol, message, env, now);
                }
            },
            Phase::Renewing(_) => {
                let message = "a stream carries one request";
                self.refuse(ErrorKind::Protocol, message, env, now);
            }
            Phase::Closing { .. } => {}
        }
    }

    fn request(&mut self, message: ToAgent, env: &mut Env, now: Instant) {
        match message {
            ToAgent::Exec(request) => match Exec::start(&request, self.key, env) {
                Ok(exec) => self.phase = Phase::Running(Box::new(exec)),
                Err(error) => self.conclude(&ToHost::Error(error), env),
            },
            ToAgent::Info => {
                let info = Box::new(info::collect(env));
                self.conclude(&ToHost::Info(info), env);
            }
            ToAgent::Shutdown(action) if env.hello.init => {
                env.power = Some(action);
                self.conclude(&ToHost::ShuttingDown, env);
            }
            ToAgent::Shutdown(_) => {
                let message =
                    "this agent is not process 1 of its machine; ask the machine's own init";
                self.refuse(ErrorKind::Unsupported, message, env, now);
            }
            ToAgent::Resumed(request) => match Renewal::begin(&request, now, env) {
                Ok(renewal) => self.phase = Phase::Renewing(Box::new(renewal)),
                Err(error) => self.conclude(&ToHost::Error(error), env),
            },
            _ => {
                let message = "a request must follow the hello";
                self.refuse(ErrorKind::Protocol, message, env, now);
            }
        }
    }

    /// Learns whether a child that was forked has become the program.
    fn check_start(&mut self, env: &mut Env) {
        match &mut self.phase {
            Phase::Running(exec) => {
                if let Err(error) = exec.check_start(self.link.as_mut()) {
                    self.conclude(&ToHost::Error(error), env);
                }
            }
            Phase::Renewing(renewal) => renewal.check_start(),
            Phase::Greeting { .. } | Phase::Closing { .. } => {}
        }
    }

    fn say(&mut self, message: &ToHost) {
        if let Some(link) = &mut self.link {
            link.queue(message);
        }
    }

    /// Says why the stream ends. A command that runs is ended with it.
    fn refuse(&mut self, kind: ErrorKind, text: impl Into<String>, env: &mut Env, now: Instant) {
        let error = ToHost::Error(AgentError::new(kind, text));
        if !self.is_running() {
            self.conclude(&error, env);
            return;
        }
        self.say(&error);
        if let Some(link) = &mut self.link {
            // The host broke the rules while a command ran; if the stream is
            // full as well, it does not get the reason.
            let _ = link.flush();
            link.finish();
        }
        self.lose_host(now);
    }

    /// Says the last word; what remains is to get it across.
    fn conclude(&mut self, last: &ToHost, env: &mut Env) {
        self.say(last);
        let closing = Phase::Closing { until: None };
        if let Phase::Running(exec) = std::mem::replace(&mut self.phase, closing) {
            exec.release(env);
        }
    }

    /// The host is gone. A command lives until it has been ended.
    fn lose_host(&mut self, now: Instant) {
        self.link = None;
        if let Phase::Running(exec) = &mut self.phase {
            exec.abandon(now);
        }
    }

    fn is_over(&self, now: Instant) -> bool {
        match &self.phase {
            Phase::Running(_) | Phase::Renewing(_) => false,
            _ if self.link.is_none() => true,
            Phase::Closing { until } => until.is_some_and(|until| until <= now),
            Phase::Greeting { .. } => false,
        }
    }
}
