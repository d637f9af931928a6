//! A command while it runs: its streams, its time limit, its end.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use coppice_agent_protocol::{
    AgentError, Cleanup, DataFrame, ErrorKind, ExecRequest, ExitStatus, MAX_PAYLOAD, Outcome,
    STDIN_WINDOW, Stdio, ToHost, WindowSize,
};
use nix::errno::Errno;
use nix::sys::signal::Signal;
use nix::unistd::{Pid, read};

use crate::cgroup::Cgroup;
use crate::env::Env;
use crate::input::Input;
use crate::link::Link;
use crate::poll::{Role, Token};
use crate::slab::Key;
use crate::spawn::{Failure, Plan, spawn};
use crate::sys;

/// From SIGTERM to SIGKILL when a command is aborted.
const TERM_GRACE: Duration = Duration::from_millis(500);

/// How long processes that outlive the command may keep its output open.
const DRAIN_GRACE: Duration = Duration::from_millis(500);

/// Bytes of output that are kept of a command that runs for the agent.
const TAIL: usize = 1024;

/// One of the command's output streams.
#[derive(Debug)]
struct Output {
    fd: OwnedFd,
    readable: bool,
    role: Role,
    /// Bytes that still belong to the command, once its grace is over.
    left: Option<usize>,
}

/// How far a pump got.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Read {
    Some,
    Nothing,
    End,
}

/// A command from its fork to its last byte.
#[derive(Debug)]
pub(crate) struct Exec {
    plan: Plan,
    pid: Pid,
    started: Instant,
    /// Open until the program runs; it then closes without a word.
    report: Option<OwnedFd>,
    /// Signals that arrived before the program ran, by number.
    early_signals: u64,
    input: Option<Input>,
    outputs: [Option<Output>; 2],
    cgroup: Option<Cgroup>,
    cleanup: Cleanup,
    timeout_at: Option<Instant>,
    kill_at: Option<Instant>,
    drain_until: Option<Instant>,
    timed_out: bool,
    /// SIGTERM was sent because of the time limit or because the host left.
    aborted: bool,
    /// Nobody wants the output, or not any more.
    discard: bool,
    /// The end of discarded output, if that is wanted.
    tail: Option<Vec<u8>>,
    ended: Option<(Outcome, Duration)>,
}

impl Exec {
    /// Starts a command for the session `key`.
    pub(crate) fn start(
        request: &ExecRequest,
        key: Key,
        env: &mut Env,
    ) -> Result<Self, AgentError> {
        let plan = Plan::new(request, &crate::user::Accounts::load())?;
        let cgroup = env.cgroups.as_mut().and_then(|groups| groups.take());
        let spawned = match spawn(&plan, cgroup.as_ref()) {
            Ok(spawned) => spawned,
            Err(error) => {
                env.release(cgroup);
                return Err(error);
            }
        };
        let started = Instant::now();
        env.children.insert(spawned.pid, key);

        let terminal = matches!(plan.stdio, Stdio::Tty(_));
        let output = |fd, role| Output {
            fd,
            readable: true,
            role,
            left: None,
        };
        let exec = Self {
            plan,
            pid: spawned.pid,
            started,
            report: Some(spawned.report),
            early_signals: 0,
            input: spawned.stdin.map(|fd| Input::new(fd, terminal)),
            outputs: [
                Some(output(spawned.stdout, Role::Stdout)),
                spawned.stderr.map(|fd| output(fd, Role::Stderr)),
            ],
            cgroup,
            cleanup: request.cleanup,
            timeout_at: request
                .timeout_ms
                .and_then(|ms| started.checked_add(Duration::from_millis(ms))),
            kill_at: None,
            drain_until: None,
            timed_out: false,
            aborted: false,
            discard: false,
            tail: None,
            ended: None,
        };
        if let Err(error) = exec.watch(key, env) {
            // Without events the command could not be served.
            exec.signal_group(Signal::SIGKILL);
            exec.release(env);
            return Err(AgentError::new(
                ErrorKind::NoResources,
                format!("the command's streams cannot be watched: {error}"),
            ));
        }
        Ok(exec)
    }

    /// Keeps only the end of what the command writes: it runs for the agent.
    pub(crate) fn keep_tail(&mut self) {
        self.discard = true;
        self.tail = Some(Vec::new());
    }

    /// The end of what the command wrote, see [`Self::keep_tail`].
    pub(crate) fn tail(&self) -> String {
        let tail = self.tail.as_deref().unwrap_or_default();
        String::from_utf8_lossy(tail).trim().to_owned()
    }

    /// The command's own process.
    pub(crate) fn pid(&self) -> Pid {
        self.pid
    }

    fn watch(&self, key: Key, env: &Env) -> io::Result<()> {
        let watch = |fd: &OwnedFd, role| env.poller.watch(fd, Token::Session(key, role));
        if let Some(report) = &self.report {
            watch(report, Role::Report)?;
        }
        if let Some(fd) = self.input.as_ref().and_then(Input::fd) {
            watch(fd, Role::Stdin)?;
        }
        for output in self.outputs.iter().flatten() {
            watch(&output.fd, output.role)?;
        }
        Ok(())
    }

    /// Notes an event of one of the command's descriptors.
    pub(crate) fn notice(&mut self, role: Role, writable: bool) {
        match role {
            Role::Stdin => {
                if let Some(input) = &mut self.input {
                    input.writable |= writable;
                }
            }
            Role::Stdout | Role::Stderr => {
                for output in self.outputs.iter_mut().flatten() {
                    output.readable |= output.role == role;
                }
            }
            Role::Link | Role::Report => {}
        }
    }

    /// Takes standard input; tells whether the host kept to its window.
    #[must_use]
    pub(crate) fn feed(&mut self, bytes: &[u8]) -> bool {
        match &mut self.input {
            Some(input) => input.feed(bytes),
            None => bytes.len() <= STDIN_WINDOW as usize,
        }
    }

    /// No more standard input will come.
    pub(crate) fn close_stdin(&mut self) {
        if let Some(input) = &mut self.input {
            input.close();
        }
    }

    /// Sends a signal of the host's.
    pub(crate) fn signal(&mut self, number: u8) {
        if self.ended.is_some() {
            return;
        }
        if self.report.is_some() {
            self.early_signals |= 1u64.checked_shl(u32::from(number) - 1).unwrap_or(0);
            return;
        }
        // In a terminal, signals go where its keys would send them.
        let group = match (self.plan.stdio, &self.outputs[0]) {
            (Stdio::Tty(_), Some(output)) => nix::unistd::tcgetpgrp(&output.fd).ok(),
            _ => None,
        };
        let group = group.filter(|group| group.as_raw() > 1).unwrap_or(self.pid);
        // A group that has just ended needs no signal.
        let _ = sys::signal_group(group, number);
    }

    /// Resizes the terminal.
    pub(crate) fn resize(&self, size: WindowSize) {
        if let (Stdio::Tty(_), Some(output)) = (self.plan.stdio, &self.outputs[0]) {
            // The terminal of a command that just ended may be gone.
            let _ = sys::set_window_size(&output.fd, size);
        }
    }

    /// The host is gone: nobody wants the command or its output.
    pub(crate) fn abandon(&mut self, now: Instant) {
        self.discard = true;
        self.input = None;
        if self.ended.is_none() {
            self.abort(now);
        }
    }

    fn abort(&mut self, now: Instant) {
        if self.aborted {
            return;
        }
        self.aborted = true;
        self.signal_group(Signal::SIGTERM);
        // A stopped process sees the signal only when it goes on.
        self.signal_group(Signal::SIGCONT);
        self.kill_at = Some(now + TERM_GRACE);
    }

    /// Signals the command's process group. Its leader has not been reaped,
    /// so the number is still this group's and nobody else's.
    fn signal_group(&self, signal: Signal) {
        if self.ended.is_some() {
            return;
        }
        if sys::signal_group(self.pid, signal as u8).is_err() {
            // Forked, but not yet the leader of a group.
            let _ = nix::sys::signal::kill(self.pid, signal);
        }
    }

    /// Kills everything that belongs to the command by its clean-up rule.
    pub(crate) fn kill(&mut self) {
        self.kill_at = None;
        self.signal_group(Signal::SIGKILL);
        if self.cleanup != Cleanup::GroupOnly
            && let Some(cgroup) = &mut self.cgroup
            && let Err(error) = cgroup.kill()
        {
            eprintln!("coppice-agent: a control group cannot be killed: {error}");
        }
    }

    /// The next time at which [`Self::tick`] has something to do.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        [self.timeout_at, self.kill_at, self.drain_until]
            .into_iter()
            .flatten()
            .min()
    }

    /// Does what is due.
    pub(crate) fn tick(&mut self, now: Instant) {
        let due = |at: Option<Instant>| at.is_some_and(|at| at <= now);
        if due(self.timeout_at) {
            self.timeout_at = None;
            self.timed_out = true;
            self.abort(now);
        }
        if due(self.kill_at) {
            self.kill();
        }
        if due(self.drain_until) {
            self.drain_until = None;
            for output in self.outputs.iter_mut().flatten() {
                output.left = Some(sys::readable_bytes(&output.fd));
                output.readable = true;
            }
        }
    }

    /// The command's own process has ended but is not reaped yet.
    pub(crate) fn ended(&mut self, outcome: Outcome, now: Instant) {
        let killing = self.cleanup == Cleanup::Always || (self.aborted && self.cgroup.is_none());
        if killing {
            self.kill();
        }
        self.ended = Some((outcome, now.duration_since(self.started)));
        self.timeout_at = None;
        self.input = None;
        self.drain_until = Some(now + DRAIN_GRACE);
    }

    /// Reads the report of a child that has not become the program yet.
    pub(crate) fn check_start(&mut self, link: Option<&mut Link>) -> Result<(), AgentError> {
        let Some(report) = &self.report else {
            return Ok(());
        };
        let mut bytes = [0; 16];
        let count = match read(report, &mut bytes) {
            Err(Errno::EAGAIN | Errno::EINTR) => return Ok(()),
            Ok(count) => count,
            Err(_) => 0,
        };
        self.report = None;
        if let Some(failure) = Failure::from_bytes(&bytes[..count]) {
            return Err(failure.explain(&self.plan));
        }
        if let Some(link) = link {
            link.queue(&ToHost::Started(self.pid.as_raw().unsigned_abs()));
        }
        let early = std::mem::take(&mut self.early_signals);
        for number in (1..=64).filter(|n| early & (1 << (n - 1)) != 0) {
            self.signal(number);
        }
        Ok(())
    }

    /// Moves what can be moved; tells whether anything was.
    pub(crate) fn pump(&mut self, mut link: Option<&mut Link>, env: &mut Env) -> bool {
        if self.report.is_some() {
            // Nothing may come before `Started`.
            return false;
        }
        let mut moved = false;
        if let Some(input) = &mut self.input {
            moved |= input.pump();
            if let Some(link) = &mut link
                && link.room().is_some()
                && let Some(credit) = input.take_credit()
            {
                link.queue(&ToHost::StdinCredit(credit));
            }
        }
        for index in 0..self.outputs.len() {
            let room = link.as_mut().and_then(|link| link.room());
            match self.pump_output(index, room, env) {
                Read::Some => moved = true,
                Read::Nothing => {}
                Read::End => {
                    moved = true;
                    if let Some(output) = self.outputs[index].take() {
                        self.retire(output, env);
                    }
                }
            }
        }
        moved
    }

    fn pump_output(&mut self, index: usize, room: Option<&mut Vec<u8>>, env: &mut Env) -> Read {
        let Some(output) = &mut self.outputs[index] else {
            return Read::Nothing;
        };
        if !output.readable && output.left.is_none() {
            return Read::Nothing;
        }
        let space = output.left.unwrap_or(MAX_PAYLOAD).min(env.frame_size());
        if output.left == Some(0) || (output.left.is_some() && self.discard) {
            return Read::End;
        }
        let mut result = Ok(0);
        let fd = output.fd.as_fd();
        let mut take = |buffer: &mut [u8]| {
            result = read(fd, buffer);
            result.unwrap_or(0)
        };
        match room {
            _ if self.discard => {
                let count = take(&mut env.scratch[..]);
                if let Some(tail) = &mut self.tail {
                    tail.extend_from_slice(&env.scratch[..count]);
                    tail.drain(..tail.len().saturating_sub(TAIL));
                }
            }
            Some(out) => {
                let frame = match output.role {
                    Role::Stderr => DataFrame::stderr(out),
                    _ => DataFrame::stdout(out),
                };
                frame.fill(space, take);
            }
            None => return Read::Nothing,
        }
        match result {
            Ok(0) => Read::End,
            Ok(count) => {
                if let Some(left) = &mut output.left {
                    *left = left.saturating_sub(count);
                }
                Read::Some
            }
            Err(Errno::EAGAIN) if output.left.is_some() => Read::End,
            Err(Errno::EAGAIN) => {
                output.readable = false;
                Read::Nothing
            }
            Err(Errno::EINTR) => Read::Some,
            // EIO: every process has closed the terminal.
            Err(_) => Read::End,
        }
    }

    /// Lets go of an output. If processes that outlive the command still write
    /// to it, closing it would kill them; so it is read and dropped instead. A
    /// terminal ends with its command, as at the end of a login.
    fn retire(&self, output: Output, env: &mut Env) {
        if output.left.is_some() && matches!(self.plan.stdio, Stdio::Pipes { .. }) {
            env.sink(output.fd);
        }
    }

    /// Whether the command waits for processes that it left behind to end.
    pub(crate) fn awaits_others(&self) -> bool {
        self.ended.is_some() && self.kill_at.is_some()
    }

    /// The status, once nothing more will come.
    pub(crate) fn finished(&self) -> Option<ExitStatus> {
        let (outcome, elapsed) = self.ended?;
        if self.outputs.iter().any(Option::is_some) {
            return None;
        }
        // What is left of an aborted command has until SIGKILL to end well.
        if let (Some(_), Some(cgroup)) = (self.kill_at, &self.cgroup)
            && self.cleanup != Cleanup::GroupOnly
            && cgroup.populated()
        {
            return None;
        }
        Some(ExitStatus {
            outcome,
            timed_out: self.timed_out,
            oom_killed: self.cgroup.as_ref().is_some_and(Cgroup::oom_killed),
            elapsed_us: elapsed.as_micros().try_into().unwrap_or(u64::MAX),
        })
    }

    /// Gives back what the command held.
    pub(crate) fn release(self, env: &mut Env) {
        env.release(self.cgroup);
    }
}
