//! From a request to a running process.
//!
//! Everything that can fail by a rule is checked before the fork; what only
//! the kernel can judge is judged in the child, which reports the step and the
//! error number on a pipe that a successful execve closes.

use std::ffi::{CStr, CString};
use std::os::fd::{AsFd, OwnedFd};

use coppice_agent_protocol::{AgentError, Command, ErrorKind, ExecRequest, Stdio, WindowSize};
use nix::errno::Errno;
use nix::fcntl::{FcntlArg, FdFlag, OFlag, fcntl, open};
use nix::pty::openpty;
use nix::sys::stat::Mode;
use nix::unistd::{Pid, pipe2};

use crate::cgroup::Cgroup;
use crate::child;
use crate::environment::{DEFAULT_PATH, Environment};
use crate::sys;
use crate::user::{Account, Accounts};

/// Where a command starts.
#[derive(Debug)]
pub(crate) enum Cwd {
    /// Here, or not at all.
    Asked(CString),
    /// In the user's home, or else in `/`.
    Home(CString),
}

/// A request after its checks, in the form that the kernel takes.
#[derive(Debug)]
pub(crate) struct Plan {
    /// As the user wrote it, for messages.
    pub(crate) program: Vec<u8>,
    /// Paths to try, in order.
    pub(crate) candidates: Vec<CString>,
    pub(crate) argv: Vec<CString>,
    pub(crate) env: Vec<CString>,
    pub(crate) account: Account,
    pub(crate) cwd: Cwd,
    pub(crate) stdio: Stdio,
}

impl Plan {
    /// Checks a request against the guest's users.
    pub(crate) fn new(request: &ExecRequest, accounts: &Accounts) -> Result<Self, AgentError> {
        if request.timeout_ms == Some(0) {
            return Err(bad_request(
                "a time limit of 0 ms leaves no time to run; leave it out for none",
            ));
        }
        let own_uid = nix::unistd::geteuid().to_string().into_bytes();
        let account = accounts.resolve(request.user.as_deref().unwrap_or(&own_uid))?;
        let terminal = matches!(request.stdio, Stdio::Tty(_));
        let mut env = match request.clear_env {
            true => Environment::default(),
            false => Environment::defaults(&account, terminal),
        };
        env.extend(&request.env)?;

        let argv = match &request.command {
            Command::Argv(argv) => argv.clone(),
            Command::Shell(line) => vec![b"/bin/sh".to_vec(), b"-c".to_vec(), line.clone()],
        };
        let program = argv
            .first()
            .ok_or_else(|| bad_request("the command is empty; name a program"))?
            .clone();
        let path = env.get(b"PATH").unwrap_or(DEFAULT_PATH);
        let cwd = match &request.cwd {
            Some(cwd) => Cwd::Asked(c_string("the working directory", cwd.clone())?),
            None => Cwd::Home(c_string("the home directory", account.home.clone())?),
        };
        Ok(Self {
            candidates: candidates(&program, path)?,
            argv: argv
                .into_iter()
                .map(|arg| c_string("an argument", arg))
                .collect::<Result<_, _>>()?,
            env: env.to_strings()?,
            program,
            account,
            cwd,
            stdio: request.stdio,
        })
    }
}

fn bad_request(message: impl Into<String>) -> AgentError {
    AgentError::new(ErrorKind::BadRequest, message)
}

fn c_string(what: &str, bytes: Vec<u8>) -> Result<CString, AgentError> {
    CString::new(bytes).map_err(|_| {
        bad_request(format!(
            "{what} contains a NUL byte, which Linux cannot pass on"
        ))
    })
}

/// The paths that execvp(3) would try; none for the empty name.
fn candidates(program: &[u8], path: &[u8]) -> Result<Vec<CString>, AgentError> {
    let candidate = |bytes| c_string("the program's name", bytes);
    if program.is_empty() {
        return Ok(Vec::new());
    }
    if program.contains(&b'/') {
        return Ok(vec![candidate(program.to_vec())?]);
    }
    path.split(|b| *b == b':')
        // An empty entry means the working directory.
        .map(|dir| if dir.is_empty() { &b"."[..] } else { dir })
        .map(|dir| candidate([dir, b"/", program].concat()))
        .collect()
}

/// A process between fork and execve, and our ends of its streams.
#[derive(Debug)]
pub(crate) struct Spawned {
    pub(crate) pid: Pid,
    /// Closes without a word when the program runs.
    pub(crate) report: OwnedFd,
    pub(crate) stdin: Option<OwnedFd>,
    pub(crate) stdout: OwnedFd,
    pub(crate) stderr: Option<OwnedFd>,
}

/// The child's ends.
#[derive(Debug)]
pub(crate) struct ChildStdio {
    pub(crate) stdin: OwnedFd,
    pub(crate) stdout: OwnedFd,
    /// Nothing means: the same as `stdout`.
    pub(crate) stderr: Option<OwnedFd>,
    pub(crate) terminal: bool,
}

/// Starts the process.
pub(crate) fn spawn(plan: &Plan, cgroup: Option<&Cgroup>) -> Result<Spawned, AgentError> {
    start(plan, cgroup).map_err(no_process)
}

fn start(plan: &Plan, cgroup: Option<&Cgroup>) -> Result<Spawned, Errno> {
    let (report, report_child) = pipe2(OFlag::O_CLOEXEC)?;
    non_blocking(&report)?;
    let (stdin, stdout, stderr, ends) = match plan.stdio {
        Stdio::Pipes { stdin } => {
            let (stdin, stdin_child) = if stdin {
                let (read, write) = pipe2(OFlag::O_CLOEXEC)?;
                non_blocking(&write)?;
                (Some(write), read)
            } else {
                let flags = OFlag::O_RDONLY | OFlag::O_CLOEXEC;
                (None, open(c"/dev/null", flags, Mode::empty())?)
            };
            let (stdout, stdout_child) = pipe2(OFlag::O_CLOEXEC)?;
            let (stderr, stderr_child) = pipe2(OFlag::O_CLOEXEC)?;
            non_blocking(&stdout)?;
            non_blocking(&stderr)?;
            let ends = ChildStdio {
                stdin: stdin_child,
                stdout: stdout_child,
                stderr: Some(stderr_child),
                terminal: false,
            };
            (stdin, stdout, Some(stderr), ends)
        }
        Stdio::Tty(size) => {
            let (master, slave) = terminal(size, plan.account.uid)?;
            let ends = ChildStdio {
                stdin: slave.try_clone().map_err(errno)?,
                stdout: slave,
                stderr: None,
                terminal: true,
            };
            (Some(master.try_clone().map_err(errno)?), master, None, ends)
        }
    };
    let pid = match sys::fork(cgroup.map(Cgroup::fd)).map_err(errno)? {
        Some(pid) => pid,
        None => child::run(plan, &ends, &report_child),
    };
    Ok(Spawned {
        pid,
        report,
        stdin,
        stdout,
        stderr,
    })
}

/// Starts the process on a terminal that exists already, and waits until its
/// program runs.
pub(crate) fn spawn_on(plan: &Plan, terminal: OwnedFd) -> Result<Pid, AgentError> {
    let fork = || {
        let (report, report_child) = pipe2(OFlag::O_CLOEXEC)?;
        let ends = ChildStdio {
            stdin: terminal.try_clone().map_err(errno)?,
            stdout: terminal,
            stderr: None,
            terminal: true,
        };
        let pid = match sys::fork(None).map_err(errno)? {
            Some(pid) => pid,
            None => child::run(plan, &ends, &report_child),
        };
        Ok((pid, report))
    };
    let (pid, report) = fork().map_err(no_process)?;
    let mut bytes = [0; 16];
    let count = nix::unistd::read(&report, &mut bytes).unwrap_or(0);
    match Failure::from_bytes(&bytes[..count]) {
        Some(failure) => Err(failure.explain(plan)),
        None => Ok(pid),
    }
}

fn no_process(errno: Errno) -> AgentError {
    AgentError::new(
        ErrorKind::NoResources,
        format!(
            "the guest cannot start another process: {}; end some or give the machine more memory",
            errno.desc()
        ),
    )
}

/// A terminal of this size that belongs to the user.
fn terminal(size: WindowSize, uid: u32) -> Result<(OwnedFd, OwnedFd), Errno> {
    let pty = openpty(&sys::window_size(size), None)?;
    for fd in [&pty.master, &pty.slave] {
        // No other thread can fork between openpty and this.
        fcntl(fd, FcntlArg::F_SETFD(FdFlag::FD_CLOEXEC))?;
    }
    non_blocking(&pty.master)?;
    // Without this, a command of another user could not open /dev/tty's
    // device by its path, as screen and sudo do. On a devpts of another user
    // namespace it may fail; the terminal still works.
    let _ = nix::unistd::fchown(&pty.slave, Some(uid.into()), None);
    Ok((pty.master, pty.slave))
}

fn non_blocking(fd: impl AsFd) -> Result<(), Errno> {
    fcntl(fd, FcntlArg::F_SETFL(OFlag::O_NONBLOCK)).map(drop)
}

fn errno(error: std::io::Error) -> Errno {
    error.raw_os_error().map_or(Errno::EIO, Errno::from_raw)
}

/// What the child was doing when it failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Step {
    Setup = 0,
    Terminal = 1,
    User = 2,
    Cwd = 3,
    Exec = 4,
}

/// Why a child did not become the program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Failure {
    pub(crate) step: Step,
    pub(crate) errno: Errno,
}

impl Failure {
    /// The bytes of a report.
    pub(crate) fn to_bytes(self) -> [u8; 5] {
        let [a, b, c, d] = (self.errno as i32).to_le_bytes();
        [self.step as u8, a, b, c, d]
    }

    /// Reads a report; the child writes it whole or not at all.
    pub(crate) fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let [step, a, b, c, d] = *bytes.first_chunk()?;
        let steps = [
            Step::Setup,
            Step::Terminal,
            Step::User,
            Step::Cwd,
            Step::Exec,
        ];
        Some(Self {
            step: *steps.get(usize::from(step))?,
            errno: Errno::from_raw(i32::from_le_bytes([a, b, c, d])),
        })
    }

    /// The answer to the host.
    pub(crate) fn explain(self, plan: &Plan) -> AgentError {
        let Self { step, errno } = self;
        let why = errno.desc();
        let program = plan.program.escape_ascii();
        let (kind, message) = match step {
            Step::Exec => match errno {
                Errno::ENOENT | Errno::ENOTDIR => (
                    ErrorKind::NotFound,
                    format!("`{program}`: no such program, or its interpreter is missing"),
                ),
                Errno::E2BIG => (
                    ErrorKind::ArgumentsTooLong,
                    format!(
                        "`{program}`: the arguments and environment are longer than the guest's kernel accepts"
                    ),
                ),
                Errno::ENOMEM | Errno::EAGAIN | Errno::ENFILE => (
                    ErrorKind::NoResources,
                    format!("`{program}` cannot be started: {why}"),
                ),
                _ => (
                    ErrorKind::NotExecutable,
                    format!("`{program}` cannot be executed: {why}"),
                ),
            },
            Step::Cwd => {
                let path = plan.cwd.path().to_bytes().escape_ascii();
                (
                    ErrorKind::BadCwd,
                    format!("the working directory `{path}` cannot be entered: {why}"),
                )
            }
            Step::User => {
                let name = plan.account.name.escape_ascii();
                (
                    ErrorKind::Unsupported,
                    format!(
                        "the agent cannot run commands as `{name}`: {why}; it must run as root for that"
                    ),
                )
            }
            Step::Terminal => (
                ErrorKind::NoResources,
                format!("the terminal cannot be set up: {why}"),
            ),
            Step::Setup => (
                ErrorKind::NoResources,
                format!("the process cannot be set up: {why}"),
            ),
        };
        AgentError::new(kind, message)
    }
}

impl Cwd {
    pub(crate) fn path(&self) -> &CStr {
        let (Self::Asked(path) | Self::Home(path)) = self;
        path
    }
}

#[cfg(test)]
#[path = "spawn_test.rs"]
mod tests;
