//! Why a machine could not be run.

use std::fmt;
use std::io;
use std::path::PathBuf;
use std::process::ExitStatus;
use std::time::Duration;

use coppice_agent_protocol::{AgentError, EncodeError, ReadError};

use crate::api::ApiError;
use crate::named::Name;
use crate::snapshot::Failure;

/// What went wrong outside the command itself.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// One of our own programs is nowhere to be found.
    #[error(
        "the program {name} was not found (looked for {}); build it with \
         `./dev build` or say where it is with {variable}",
        list(.tried)
    )]
    NoProgram {
        /// Its file name.
        name: &'static str,
        /// The variable that can name it.
        variable: &'static str,
        /// Where it was looked for.
        tried: Vec<PathBuf>,
    },

    /// The agent needs libraries that the guest need not have.
    #[error(
        "the agent {} is dynamically linked and cannot start as the first process of any \
         image; build it with `./dev build`",
        .0.display()
    )]
    AgentNotStatic(PathBuf),

    /// The agent is something else altogether.
    #[error("the agent {} is no x86-64 program", .0.display())]
    AgentNotProgram(PathBuf),

    /// No image of this name was built.
    #[error(
        "there is no image named `{name}` (looked for {}); build it with `./dev build`, \
         or give a path with a slash in it (./{name}) if you mean a file",
        .tried.display()
    )]
    NoImage {
        /// The name that was asked for.
        name: String,
        /// Where its file would be.
        tried: PathBuf,
    },

    /// No kernel was built, and none was named.
    #[error(
        "there is no guest kernel (looked for {}); build it with `./dev build` or name one \
         with --kernel",
        .0.display()
    )]
    NoKernel(PathBuf),

    /// A named file cannot be read.
    #[error("the {what} {} cannot be used: {source}", .path.display())]
    File {
        /// What it is for.
        what: &'static str,
        /// Its path.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },

    /// A named file is a directory or the like.
    #[error("the {what} {} is not a file", .path.display())]
    NotAFile {
        /// What it is for.
        what: &'static str,
        /// Its path.
        path: PathBuf,
    },

    /// The image holds nothing that the agent could mount.
    #[error(
        "the image {} holds no file system that is known here (ext2/3/4, squashfs, erofs, xfs, btrfs); \
         a disk with a partition table must be cut into its partitions first",
        .0.display()
    )]
    UnknownFileSystem(PathBuf),

    /// There is no place for sockets and the like.
    #[error("no directory for a running machine could be made: {}", list_errors(.0))]
    NoRunDir(Vec<(PathBuf, io::Error)>),

    /// Something that this host should be able to do failed.
    #[error("{what}: {source}")]
    Host {
        /// What was attempted.
        what: &'static str,
        /// The system's answer.
        source: io::Error,
    },

    /// The VMM ended before the guest's agent was up.
    #[error("the machine did not come up: coppice-vmm ended ({status}){said}")]
    DidNotStart {
        /// How it ended.
        status: ExitStatus,
        /// The last it said.
        said: LastWords,
    },

    /// The agent did not answer in time.
    #[error(
        "the guest's agent did not answer within {} s; if the guest is only slow, give it more \
         with --boot-timeout; --boot-args loglevel=7 shows more of its boot{said}",
        .after.as_secs_f32()
    )]
    NeverReady {
        /// How long it had.
        after: Duration,
        /// The last it said.
        said: LastWords,
    },

    /// Nothing is heard of the guest, and this host explains it.
    #[error("this host cannot run the machine (see `coppice doctor`){0}")]
    HostUnfit(LastWords),

    /// The VMM ended while a command ran.
    #[error("the machine is gone: coppice-vmm ended ({status}) before its time{said}")]
    Gone {
        /// How it ended.
        status: ExitStatus,
        /// The last it said.
        said: LastWords,
    },

    /// The agent closed the stream although the machine still runs.
    #[error("the guest's agent closed the connection before the command had ended{0}")]
    AgentGone(LastWords),

    /// The agent did not keep to the time limit that it was given.
    #[error("the command's time of {} s was up, but the guest did not end it", .0.as_secs_f32())]
    TimeoutIgnored(Duration),

    /// The agent refused.
    #[error("{0}")]
    Refused(AgentError),

    /// The agent speaks another protocol.
    #[error(
        "the guest's agent speaks protocol version {agent}, this coppice speaks {ours}; use the \
         coppice-agent of the same build"
    )]
    Version {
        /// The agent's.
        agent: u16,
        /// Ours.
        ours: u16,
    },

    /// The agent's bytes make no sense.
    #[error("the guest's agent broke the protocol: {0}")]
    Protocol(String),

    /// The command line is too long for the protocol.
    #[error(transparent)]
    TooLong(#[from] EncodeError),

    /// The agent of a restored machine did not confirm that it is another one.
    #[error(
        "the restored machine did not confirm within {} s that it has random numbers, keys and a \
         clock of its own, so nothing may run in it ({why}); give it more time, or look at its \
         console",
        .after.as_secs_f32()
    )]
    NotRenewed {
        /// How long it had.
        after: Duration,
        /// What went wrong last.
        why: String,
    },

    /// No machine has this name.
    #[error(
        "there is no machine named `{0}`; `coppice ls` lists those that there are, \
         `coppice start {0}` starts one"
    )]
    NoMachine(Name),

    /// Another machine has this name.
    #[error(
        "a machine named `{0}` is there already; choose another name, or end that one with \
         `coppice stop {0}`"
    )]
    MachineExists(Name),

    /// Another command works on this machine.
    #[error(
        "another command is starting, stopping or freezing the machine `{0}` right now; try again \
         when it has ended"
    )]
    MachineBusy(Name),

    /// The machine's VMM has ended.
    #[error("the machine `{name}` has ended; `coppice start {name}` starts a new one{said}")]
    MachineDead {
        /// Its name.
        name: Name,
        /// The last it said.
        said: LastWords,
    },

    /// The sockets of a machine with this name would have paths that are too
    /// long.
    #[error(
        "the name `{name}` is too long for a directory in {}; use at most {max} characters",
        .place.display()
    )]
    NameTooLong {
        /// The name.
        name: Name,
        /// Where machines are kept.
        place: PathBuf,
        /// What there is room for.
        max: usize,
    },

    /// A machine's directory cannot be used.
    #[error("the directory {} of a machine cannot be used: {source}", .path.display())]
    MachineDir {
        /// The directory.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },

    /// A running machine's VMM makes no snapshot of it.
    #[error("there is no snapshot of the machine `{name}`: {source}")]
    NotFrozen {
        /// The machine.
        name: Name,
        /// What its VMM says.
        source: ApiError,
    },

    /// The machine writes to a file that its forks would write to, too.
    #[error(
        "the machine `{name}` writes to its image {image} itself and cannot be forked: two \
         machines cannot write to one file; start it without --writable, so that what it writes \
         stays in its memory"
    )]
    ForkWritable {
        /// The machine.
        name: Name,
        /// Its image.
        image: String,
    },

    /// A fork would have a name that no machine can have.
    #[error("{0}; give a shorter one with --prefix")]
    ChildName(String),

    /// A snapshot cannot be had, or not be kept.
    #[error(transparent)]
    Snapshot(Box<Failure>),

    /// A signal ended us before a command was there to pass it on to.
    #[error("ended by signal {0}")]
    Signalled(u8),
}

impl Error {
    /// The exit code if coppice or the machine failed, as `env` and `timeout`
    /// have it.
    pub const FAILURE: u8 = 125;

    /// `Host` with the system's answer.
    pub fn host(what: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Host { what, source }
    }

    /// The exit code that stands for it.
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Refused(error) => error.kind.shell_code(),
            Self::Signalled(signal) => signal.saturating_add(128),
            Self::TimeoutIgnored(_) => 124,
            _ => Self::FAILURE,
        }
    }
}

impl From<Failure> for Error {
    fn from(failure: Failure) -> Self {
        Self::Snapshot(Box::new(failure))
    }
}

impl From<ReadError> for Error {
    fn from(error: ReadError) -> Self {
        match error {
            // What a read says whose time limit passed.
            ReadError::Io(source) if source.kind() == io::ErrorKind::WouldBlock => Self::Host {
                what: "the guest's agent stopped answering: the host may be overloaded or the \
                       guest stuck; try again",
                source: io::ErrorKind::TimedOut.into(),
            },
            ReadError::Io(source) => Self::Host {
                what: "the connection to the guest's agent failed",
                source,
            },
            other => Self::Protocol(other.to_string()),
        }
    }
}

/// The last lines of the machine's console and of the VMM itself.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LastWords {
    /// What the VMM wrote to its standard error.
    pub vmm: Vec<String>,
    /// What the guest wrote to its serial console.
    pub console: Vec<String>,
    /// Why this host's KVM is no good, if that is so.
    pub host: Option<String>,
}

impl fmt::Display for LastWords {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(host) = &self.host {
            write!(f, "\nKVM here: {host}")?;
        }
        for (title, lines) in [
            ("coppice-vmm said", &self.vmm),
            ("the guest's console ended with", &self.console),
        ] {
            if !lines.is_empty() {
                write!(f, "\n{title}:")?;
                for line in lines {
                    write!(f, "\n  {line}")?;
                }
            }
        }
        Ok(())
    }
}

fn list(paths: &[PathBuf]) -> String {
    let paths: Vec<_> = paths.iter().map(|p| p.display().to_string()).collect();
    paths.join(", ")
}

fn list_errors(errors: &[(PathBuf, io::Error)]) -> String {
    let errors: Vec<_> = errors
        .iter()
        .map(|(path, error)| format!("{}: {error}", path.display()))
        .collect();
    errors.join("; ")
}
