//! What a command to run is, and how it ended.

use crate::error::DecodeError;
use crate::wire::{Reader, Writer};

/// What to execute. Bytes, because Linux arguments need not be UTF-8.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Command {
    /// A program and its arguments. A program without a slash is looked up in
    /// `PATH` of the command's own environment.
    Argv(Vec<Vec<u8>>),
    /// A line for `/bin/sh -c`.
    Shell(Vec<u8>),
}

/// A terminal's size in character cells.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WindowSize {
    /// Lines.
    pub rows: u16,
    /// Characters in a line.
    pub cols: u16,
}

/// What the command's standard streams are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stdio {
    /// One pipe each for standard output and error.
    Pipes {
        /// A pipe for standard input, fed by [`crate::ToAgent::Stdin`];
        /// otherwise it is `/dev/null`.
        stdin: bool,
    },
    /// A pseudo terminal of this size for all three. Its output arrives as
    /// standard output.
    Tty(WindowSize),
}

/// What happens to processes that the command leaves behind.
///
/// "Aborted" means that the time limit passed or that the host went away.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Cleanup {
    /// A command that ends by itself may leave daemons; an aborted one is
    /// killed with everything that it started.
    #[default]
    OnAbort,
    /// Everything that the command started ends with it.
    Always,
    /// Only the process group of an aborted command is killed; daemons that
    /// made a session of their own stay.
    GroupOnly,
}

/// A command to run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExecRequest {
    /// The program.
    pub command: Command,
    /// Environment on top of the defaults; the last of equal names wins.
    pub env: Vec<(Vec<u8>, Vec<u8>)>,
    /// Leave out the defaults (`PATH`, `HOME`, `USER`, `LOGNAME`, `SHELL`, and
    /// `TERM` on a terminal).
    pub clear_env: bool,
    /// Working directory; the user's home if there is none.
    pub cwd: Option<Vec<u8>>,
    /// `NAME`, `UID`, `NAME:GROUP` or `UID:GID`; root if there is none.
    pub user: Option<Vec<u8>>,
    /// The standard streams.
    pub stdio: Stdio,
    /// Milliseconds until the command is aborted: SIGTERM, then SIGKILL.
    pub timeout_ms: Option<u64>,
    /// The fate of what the command leaves behind.
    pub cleanup: Cleanup,
}

impl ExecRequest {
    /// A request for `command` with no input and every default.
    pub fn new(command: Command) -> Self {
        Self {
            command,
            env: Vec::new(),
            clear_env: false,
            cwd: None,
            user: None,
            stdio: Stdio::Pipes { stdin: false },
            timeout_ms: None,
            cleanup: Cleanup::default(),
        }
    }

    /// A request for a program and its arguments.
    pub fn argv<A: Into<Vec<u8>>>(argv: impl IntoIterator<Item = A>) -> Self {
        Self::new(Command::Argv(argv.into_iter().map(Into::into).collect()))
    }

    /// A request for a line of shell.
    pub fn shell(line: impl Into<Vec<u8>>) -> Self {
        Self::new(Command::Shell(line.into()))
    }

    pub(crate) fn write(&self, w: &mut Writer) {
        let Self {
            command,
            env,
            clear_env,
            cwd,
            user,
            stdio,
            timeout_ms,
            cleanup,
        } = self;
        match command {
            Command::Argv(argv) => {
                w.u8(0).count(argv.len());
                for arg in argv {
                    w.bytes(arg);
                }
            }
            Command::Shell(line) => {
                w.u8(1).bytes(line);
            }
        }
        w.count(env.len());
        for (name, value) in env {
            w.bytes(name).bytes(value);
        }
        w.bool(*clear_env)
            .option(cwd.as_ref(), |w, v| w.bytes(v))
            .option(user.as_ref(), |w, v| w.bytes(v));
        match stdio {
            Stdio::Pipes { stdin } => {
                w.u8(0).bool(*stdin);
            }
            Stdio::Tty(size) => {
                w.u8(1);
                size.write(w);
            }
        }
        w.option(*timeout_ms, |w, v| w.u64(v));
        w.u8(match cleanup {
            Cleanup::OnAbort => 0,
            Cleanup::Always => 1,
            Cleanup::GroupOnly => 2,
        });
    }

    pub(crate) fn read(r: &mut Reader<'_>) -> Result<Self, DecodeError> {
        Ok(Self {
            command: match r.u8("command")? {
                0 => Command::Argv(r.list("argv", Reader::bytes)?),
                1 => Command::Shell(r.bytes("shell line")?),
                _ => return Err(r.bad("command")),
            },
            env: r.list("env", |r, field| Ok((r.bytes(field)?, r.bytes(field)?)))?,
            clear_env: r.bool("clear_env")?,
            cwd: r.option("cwd", Reader::bytes)?,
            user: r.option("user", Reader::bytes)?,
            stdio: match r.u8("stdio")? {
                0 => Stdio::Pipes {
                    stdin: r.bool("stdin")?,
                },
                1 => Stdio::Tty(WindowSize::read(r)?),
                _ => return Err(r.bad("stdio")),
            },
            timeout_ms: r.option("timeout_ms", Reader::u64)?,
            cleanup: match r.u8("cleanup")? {
                0 => Cleanup::OnAbort,
                1 => Cleanup::Always,
                2 => Cleanup::GroupOnly,
                _ => return Err(r.bad("cleanup")),
            },
        })
    }
}

impl WindowSize {
    pub(crate) fn write(self, w: &mut Writer) {
        w.u16(self.rows).u16(self.cols);
    }

    pub(crate) fn read(r: &mut Reader<'_>) -> Result<Self, DecodeError> {
        Ok(Self {
            rows: r.u16("rows")?,
            cols: r.u16("cols")?,
        })
    }
}

/// How the command's own process ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// It exited with this code.
    Code(u8),
    /// This signal killed it.
    Signal(u8),
}

/// The end of a command.
///
/// Whether the time limit passed is a field of its own, so that a program
/// that exits with 124 is never taken for one that was stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ExitStatus {
    /// How the process ended.
    pub outcome: Outcome,
    /// The agent ended it because its time was up.
    pub timed_out: bool,
    /// The guest's kernel killed one of its processes for want of memory.
    pub oom_killed: bool,
    /// Microseconds from start to end.
    pub elapsed_us: u64,
}

impl ExitStatus {
    /// The exit code that a shell would show: 124 after a time-out, 128 plus
    /// the number of a signal, otherwise the program's own.
    pub fn shell_code(&self) -> u8 {
        match self.outcome {
            _ if self.timed_out => 124,
            Outcome::Code(code) => code,
            Outcome::Signal(signal) => signal.saturating_add(128),
        }
    }

    pub(crate) fn write(&self, w: &mut Writer) {
        let (tag, number) = match self.outcome {
            Outcome::Code(code) => (0, code),
            Outcome::Signal(signal) => (1, signal),
        };
        w.u8(tag)
            .u8(number)
            .bool(self.timed_out)
            .bool(self.oom_killed)
            .u64(self.elapsed_us);
    }

    pub(crate) fn read(r: &mut Reader<'_>) -> Result<Self, DecodeError> {
        Ok(Self {
            outcome: match (r.u8("outcome")?, r.u8("outcome")?) {
                (0, code) => Outcome::Code(code),
                (1, signal) => Outcome::Signal(signal),
                _ => return Err(r.bad("outcome")),
            },
            timed_out: r.bool("timed_out")?,
            oom_killed: r.bool("oom_killed")?,
            elapsed_us: r.u64("elapsed_us")?,
        })
    }
}
