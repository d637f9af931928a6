//! The event loop: accepts streams, hands events to sessions, reaps children.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};

use coppice_agent_protocol::{
    AgentError, AgentHello, ErrorKind, Message, PowerAction, READY_PORT, ToHost,
};
use nix::errno::Errno;
use nix::sys::signal::Signal;
use nix::sys::socket::{MsgFlags, send};
use nix::unistd::Pid;

use crate::cgroup::Cgroups;
use crate::env::Env;
use crate::info;
use crate::listen::{Address, Listener, call_host};
use crate::poll::{Event, Poller, Token};
use crate::session::{Session, Turn};
use crate::signals::{self, Signals};
use crate::slab::{Key, Slab};

/// Streams at once.
const MAX_SESSIONS: usize = 1024;

/// Before accepting is tried again when descriptors or memory ran out.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// For the last answers to leave before the machine goes down.
const FAREWELL: Duration = Duration::from_millis(500);

/// For killed commands to be gone when the agent stops.
const STOP_TIME: Duration = Duration::from_secs(2);

/// Why the loop ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    /// A service was asked to stop.
    Stopped,
    /// The machine is to do this.
    Power(PowerAction),
}

/// The agent at work.
#[derive(Debug)]
pub(crate) struct Server {
    listener: Listener,
    accepting: bool,
    accept_again: Option<Instant>,
    signals: Signals,
    /// The stream that tells the host that the agent listens.
    ready: Option<OwnedFd>,
    sessions: Slab<Session>,
    work: VecDeque<Work>,
    env: Env,
    /// The machine is switched off when this process ends.
    console: Option<Pid>,
    end: Option<End>,
}

/// Something that can go on without waiting for an event.
#[derive(Debug, Clone, Copy)]
enum Work {
    Session(Key),
    Sink(Key),
}

impl Server {
    /// Listens at `address`. From here on hosts can connect; they are served
    /// by [`Self::run`]. The guest's files are below `root`.
    pub(crate) fn listen(
        address: &Address,
        root: &Path,
        signals: Signals,
        mut hello: AgentHello,
    ) -> io::Result<Self> {
        let poller = Poller::new()?;
        let listener = Listener::bind(address)?;
        poller.watch(listener.fd(), Token::Listener)?;
        poller.watch(signals.fd(), Token::Signals)?;
        hello.boot.ready_us = info::uptime_us();
        let ready = match address {
            // A host that does not want to know refuses the connection.
            Address::Vsock(_) => call_host(READY_PORT).ok(),
            Address::Unix(_) => None,
        };
        if let Some(ready) = &ready {
            poller.watch(ready, Token::Ready)?;
        }
        Ok(Self {
            listener,
            accepting: true,
            accept_again: None,
            signals,
            ready,
            sessions: Slab::new(),
            work: VecDeque::new(),
            env: Env::new(poller, Cgroups::open(), hello, root.to_owned()),
            console: None,
            end: None,
        })
    }

    /// Has the machine end with this process.
    pub(crate) fn end_with(&mut self, console: Pid) {
        self.console = Some(console);
    }

    /// Serves until a signal or a host ends it.
    pub(crate) fn run(mut self) -> io::Result<End> {
        while self.end.is_none() {
            self.turn(None)?;
        }
        self.say_farewell()?;
        self.stop()?;
        // Those whose commands were just killed are told so.
        self.say_farewell()?;
        Ok(self.end.unwrap_or(End::Stopped))
    }

    /// Waits once, and does what there is to do.
    fn turn(&mut self, until: Option<Instant>) -> io::Result<()> {
        let timeout = if self.work.is_empty() {
            let deadlines = self.sessions.iter().filter_map(|(_, s)| s.deadline());
            let deadline = deadlines.chain(self.accept_again).chain(until).min();
            deadline.map(|at| at.saturating_duration_since(Instant::now()))
        } else {
            Some(Duration::ZERO)
        };
        for event in self.env.poller.wait(timeout)? {
            self.dispatch(&event);
        }
        let now = Instant::now();
        if self.accept_again.is_some_and(|at| at <= now) {
            self.accept_again = None;
            self.accepting = true;
        }
        if self.accepting {
            self.accept(now);
        }
        let due: Vec<Key> = self
            .sessions
            .iter()
            .filter(|(_, session)| session.deadline().is_some_and(|at| at <= now))
            .map(|(key, _)| key)
            .collect();
        for key in due {
            self.enqueue(key);
        }
        // What is queued during this pass waits for the next one, behind new events.
        for _ in 0..self.work.len() {
            match self.work.pop_front() {
                Some(Work::Session(key)) => self.pump(key, now),
                Some(Work::Sink(key)) => self.drain(key),
                None => break,
            }
        }
        if let Some(action) = self.env.power {
            self.end = Some(End::Power(action));
        }
        Ok(())
    }

    fn dispatch(&mut self, event: &Event) {
        match event.token {
            Token::Listener => self.accepting = true,
            Token::Signals => self.take_signals(),
            Token::Ready => self.tell_ready(),
            Token::Sink(key) => self.drain(key),
            Token::Session(key, role) => {
                if let Some(session) = self.sessions.get_mut(key) {
                    session.notice(role, event);
                    self.enqueue(key);
                }
            }
        }
    }

    fn enqueue(&mut self, key: Key) {
        if let Some(session) = self.sessions.get_mut(key)
            && !session.queued
        {
            session.queued = true;
            self.work.push_back(Work::Session(key));
        }
    }

    fn pump(&mut self, key: Key, now: Instant) {
        let Some(session) = self.sessions.get_mut(key) else {
            return;
        };
        session.queued = false;
        match session.pump(&mut self.env, now) {
            Turn::Waits => {}
            Turn::Again => self.enqueue(key),
            Turn::Over => {
                self.sessions.remove(key);
                self.env.sessions = self.sessions.len();
            }
        }
    }

    fn drain(&mut self, key: Key) {
        if self.env.drain(key) {
            self.work.push_back(Work::Sink(key));
        }
    }

    fn accept(&mut self, now: Instant) {
        loop {
            let stream = match self.listener.accept() {
                Ok(stream) => stream,
                // The host gave up before it was accepted.
                Err(Errno::EINTR | Errno::ECONNABORTED) => continue,
                Err(Errno::EAGAIN) => {
                    self.accepting = false;
                    return;
                }
                Err(errno) => {
                    eprintln!("coppice-agent: a stream cannot be accepted: {errno}");
                    self.accepting = false;
                    self.accept_again = Some(now + ACCEPT_PAUSE);
                    return;
                }
            };
            if self.sessions.len() >= MAX_SESSIONS {
                refuse(&stream, &self.env.hello);
                continue;
            }
            let key = self
                .sessions
                .insert_with(|key| Session::new(key, stream, now));
            self.env.sessions = self.sessions.len();
            let watched = self.sessions.get_mut(key).is_some_and(|session| {
                let poller = &self.env.poller;
                session.watch(poller).is_ok()
            });
            if watched {
                self.enqueue(key);
            } else {
                self.sessions.remove(key);
            }
        }
    }

    fn take_signals(&mut self) {
        while let Some(signal) = self.signals.next() {
            self.end = match (signal, self.env.hello.init) {
                (Signal::SIGCHLD, _) => {
                    self.reap();
                    continue;
                }
                // Process 1 is told by the kernel (Ctrl-Alt-Del) and by the
                // usual programs: busybox sends TERM for reboot, USR2 for
                // poweroff and USR1 for halt.
                (Signal::SIGINT | Signal::SIGTERM, true) => Some(End::Power(PowerAction::Reboot)),
                (Signal::SIGUSR1 | Signal::SIGUSR2, true) => {
                    Some(End::Power(PowerAction::PowerOff))
                }
                (Signal::SIGINT | Signal::SIGTERM, false) => Some(End::Stopped),
                _ => continue,
            };
        }
    }

    fn reap(&mut self) {
        let now = Instant::now();
        let mut keys = Vec::new();
        let mut orphans = false;
        let (env, sessions) = (&mut self.env, &mut self.sessions);
        signals::reap(|pid, outcome| {
            if self.console == Some(pid) {
                env.power = Some(PowerAction::PowerOff);
            }
            let Some(key) = env.children.remove(&pid) else {
                orphans = true;
                return;
            };
            if let Some(session) = sessions.get_mut(key) {
                session.child_ended(outcome, env, now);
                keys.push(key);
            }
        });
        if orphans {
            let waiting = self.sessions.iter().filter(|(_, s)| s.awaits_others());
            keys.extend(waiting.map(|(key, _)| key));
        }
        for key in keys {
            self.enqueue(key);
        }
        if let Some(groups) = &mut self.env.cgroups {
            groups.settle();
        }
    }

    /// The connection to the host's ready port was made or refused.
    fn tell_ready(&mut self) {
        if let Some(stream) = self.ready.take() {
            say(&stream, &[ToHost::Hello(self.env.hello.clone())]);
        }
    }

    /// Lets answers that are on their way reach their hosts.
    fn say_farewell(&mut self) -> io::Result<()> {
        let until = Instant::now() + FAREWELL;
        while self.sessions.iter().any(|(_, s)| s.is_closing()) && Instant::now() < until {
            self.turn(Some(until))?;
        }
        Ok(())
    }

    /// Kills every command and waits until they are gone.
    fn stop(&mut self) -> io::Result<()> {
        let keys: Vec<Key> = self.sessions.iter().map(|(key, _)| key).collect();
        for key in keys {
            if let Some(session) = self.sessions.get_mut(key) {
                session.kill();
            }
        }
        if let Some(groups) = &mut self.env.cgroups {
            groups.kill_lingering();
        }
        let until = Instant::now() + STOP_TIME;
        while self.sessions.iter().any(|(_, s)| s.is_running()) && Instant::now() < until {
            self.turn(Some(until))?;
        }
        Ok(())
    }
}

/// Answers a stream that is one too many.
fn refuse(stream: &OwnedFd, hello: &AgentHello) {
    let text = format!("the agent serves {MAX_SESSIONS} streams already; end some first");
    let error = AgentError::new(ErrorKind::Busy, text);
    say(
        stream,
        &[ToHost::Hello(hello.clone()), ToHost::Error(error)],
    );
}

/// Sends a few words to a stream whose buffer is empty; a host that is gone
/// does not need them.
fn say(stream: &OwnedFd, messages: &[ToHost]) {
    let mut bytes = Vec::new();
    for message in messages {
        if message.encode(&mut bytes).is_err() {
            return;
        }
    }
    let _ = send(stream.as_raw_fd(), &bytes, MsgFlags::MSG_NOSIGNAL);
}
