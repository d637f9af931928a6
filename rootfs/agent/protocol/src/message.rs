//! The messages of each direction and the bytes that stand for them.

use crate::error::{DecodeError, EncodeError};
use crate::exec::{ExecRequest, ExitStatus, WindowSize};
use crate::frame::{put_data, put_message};
use crate::hello::{AgentHello, HostHello, Info};
use crate::renew::{Renewed, Resumed};
use crate::wire::{Reader, Writer};

/// The kind bytes. Those of the host are below 0x40.
pub(crate) mod kind {
    pub(crate) const HOST_HELLO: u8 = 0x01;
    pub(crate) const EXEC: u8 = 0x02;
    pub(crate) const INFO: u8 = 0x03;
    pub(crate) const SHUTDOWN: u8 = 0x04;
    pub(crate) const RESUMED: u8 = 0x05;
    pub(crate) const STDIN: u8 = 0x10;
    pub(crate) const STDIN_CLOSE: u8 = 0x11;
    pub(crate) const SIGNAL: u8 = 0x12;
    pub(crate) const RESIZE: u8 = 0x13;

    pub(crate) const AGENT_HELLO: u8 = 0x41;
    pub(crate) const STARTED: u8 = 0x42;
    pub(crate) const INFO_REPLY: u8 = 0x43;
    pub(crate) const SHUTTING_DOWN: u8 = 0x44;
    pub(crate) const RENEWED: u8 = 0x45;
    pub(crate) const STDOUT: u8 = 0x50;
    pub(crate) const STDERR: u8 = 0x51;
    pub(crate) const STDIN_CREDIT: u8 = 0x52;
    pub(crate) const EXIT: u8 = 0x53;
    pub(crate) const ERROR: u8 = 0x54;
}

/// A message of one direction.
pub trait Message: Sized {
    /// Whether `kind` carries bytes of a stream, which are never split over
    /// continued frames.
    fn is_data(kind: u8) -> bool;

    /// Whether this direction has messages of this kind.
    fn is_known(kind: u8) -> bool;

    /// Reads the message of this kind from its whole body.
    fn decode(kind: u8, body: &[u8]) -> Result<Self, DecodeError>;

    /// Appends the message's frames to `out`; adds nothing if it fails.
    fn encode(&self, out: &mut Vec<u8>) -> Result<(), EncodeError>;
}

/// What a machine that shuts down does next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PowerAction {
    /// It is switched off.
    PowerOff,
    /// It is reset.
    Reboot,
}

/// From the host to the agent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ToAgent {
    /// The first message of every stream.
    Hello(HostHello),
    /// Run a command.
    Exec(Box<ExecRequest>),
    /// Tell facts about the guest.
    Info,
    /// End every process, write everything to disk, then do this.
    Shutdown(PowerAction),
    /// This is another machine now: renew what siblings must not share.
    Resumed(Box<Resumed>),
    /// Bytes for the command's standard input; never empty.
    Stdin(Vec<u8>),
    /// The command's standard input has no more bytes.
    StdinClose,
    /// Send this signal to the command's process group.
    Signal(u8),
    /// The terminal has this size now.
    Resize(WindowSize),
}

/// From the agent to the host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ToHost {
    /// The first message of every stream, and the only one to
    /// [`crate::READY_PORT`].
    Hello(AgentHello),
    /// The command runs; its process id in the guest.
    Started(u32),
    /// Facts about the guest.
    Info(Box<Info>),
    /// The shutdown has begun.
    ShuttingDown,
    /// What was renewed.
    Renewed(Box<Renewed>),
    /// Bytes from the command's standard output; never empty.
    Stdout(Vec<u8>),
    /// Bytes from the command's standard error; never empty.
    Stderr(Vec<u8>),
    /// The host may send this many more bytes of standard input.
    StdinCredit(u32),
    /// The command has ended; all of its output has been sent before.
    Exit(ExitStatus),
    /// The request cannot be served; the last message.
    Error(AgentError),
}

/// What kind of refusal an [`AgentError`] is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum ErrorKind {
    /// The host speaks another version of the protocol.
    Version = 1,
    /// The host broke the protocol.
    Protocol = 2,
    /// The agent serves as many streams as it can.
    Busy = 3,
    /// The host did not send what was due in time.
    TooSlow = 4,
    /// No such program.
    NotFound = 5,
    /// The program exists but cannot be executed.
    NotExecutable = 6,
    /// The working directory cannot be entered.
    BadCwd = 7,
    /// There is no such user or group in the guest.
    UnknownUser = 8,
    /// The request contradicts itself or the system's rules.
    BadRequest = 9,
    /// Arguments and environment exceed what the guest's kernel accepts.
    ArgumentsTooLong = 10,
    /// The guest lacks memory, processes or descriptors for it.
    NoResources = 11,
    /// Not something that this agent can do where it runs.
    Unsupported = 12,
}

impl ErrorKind {
    const ALL: [Self; 12] = [
        Self::Version,
        Self::Protocol,
        Self::Busy,
        Self::TooSlow,
        Self::NotFound,
        Self::NotExecutable,
        Self::BadCwd,
        Self::UnknownUser,
        Self::BadRequest,
        Self::ArgumentsTooLong,
        Self::NoResources,
        Self::Unsupported,
    ];

    /// The exit code that a command line shows for it: 127 and 126 as shells
    /// do, 125 for everything that is no fault of the program.
    pub fn shell_code(self) -> u8 {
        match self {
            Self::NotFound => 127,
            Self::NotExecutable => 126,
            _ => 125,
        }
    }
}

/// Why the agent refuses.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct AgentError {
    /// For programs.
    pub kind: ErrorKind,
    /// A sentence for people.
    pub message: String,
    /// The agent's protocol version, so that a mismatch can name both.
    pub protocol: u16,
}

impl AgentError {
    /// The most bytes of a message's text; what is longer is cut.
    pub const MAX_TEXT: usize = 4096;

    /// An error of this agent's protocol version.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self {
            kind,
            message: cut(message.into(), Self::MAX_TEXT),
            protocol: crate::PROTOCOL_VERSION,
        }
    }
}

/// The text's first bytes, at most `max`, without half a character.
pub(crate) fn cut(mut text: String, max: usize) -> String {
    let end = (0..=max.min(text.len()))
        .rev()
        .find(|at| text.is_char_boundary(*at));
    text.truncate(end.unwrap_or(0));
    text
}

impl Message for ToAgent {
    fn is_data(kind: u8) -> bool {
        kind == kind::STDIN
    }

    fn is_known(kind: u8) -> bool {
        matches!(
            kind,
            kind::HOST_HELLO..=kind::RESUMED | kind::STDIN..=kind::RESIZE
        )
    }

    fn decode(kind: u8, body: &[u8]) -> Result<Self, DecodeError> {
        let mut r = Reader::new(kind, body);
        let message = match kind {
            kind::HOST_HELLO => Self::Hello(HostHello::read(&mut r)?),
            kind::EXEC => Self::Exec(Box::new(ExecRequest::read(&mut r)?)),
            kind::INFO => Self::Info,
            kind::SHUTDOWN => Self::Shutdown(match r.u8("action")? {
                0 => PowerAction::PowerOff,
                1 => PowerAction::Reboot,
                _ => return Err(r.bad("action")),
            }),
            kind::RESUMED => Self::Resumed(Box::new(Resumed::read(&mut r)?)),
            kind::STDIN => return Ok(Self::Stdin(data(&r, body)?)),
            kind::STDIN_CLOSE => Self::StdinClose,
            kind::SIGNAL => match r.u8("signal")? {
                signal @ 1..=64 => Self::Signal(signal),
                _ => return Err(r.bad("signal")),
            },
            kind::RESIZE => Self::Resize(WindowSize::read(&mut r)?),
            _ => return Err(DecodeError::UnknownKind(kind)),
        };
        r.end()?;
        Ok(message)
    }

    fn encode(&self, out: &mut Vec<u8>) -> Result<(), EncodeError> {
        let mut w = Writer::default();
        let kind = match self {
            Self::Hello(hello) => {
                hello.write(&mut w);
                kind::HOST_HELLO
            }
            Self::Exec(request) => {
                request.write(&mut w);
                kind::EXEC
            }
            Self::Info => kind::INFO,
            Self::Shutdown(action) => {
                w.u8(match action {
                    PowerAction::PowerOff => 0,
                    PowerAction::Reboot => 1,
                });
                kind::SHUTDOWN
            }
            Self::Resumed(resumed) => {
                resumed.write(&mut w);
                kind::RESUMED
            }
            Self::Stdin(bytes) => {
                put_data(kind::STDIN, bytes, out);
                return Ok(());
            }
            Self::StdinClose => kind::STDIN_CLOSE,
            Self::Signal(signal) => {
                w.u8(*signal);
                kind::SIGNAL
            }
            Self::Resize(size) => {
                size.write(&mut w);
                kind::RESIZE
            }
        };
        put_message(kind, &w.into_body(), out)
    }
}

impl Message for ToHost {
    fn is_data(kind: u8) -> bool {
        matches!(kind, kind::STDOUT | kind::STDERR)
    }

    fn is_known(kind: u8) -> bool {
        matches!(
            kind,
            kind::AGENT_HELLO..=kind::RENEWED | kind::STDOUT..=kind::ERROR
        )
    }

    fn decode(kind: u8, body: &[u8]) -> Result<Self, DecodeError> {
        let mut r = Reader::new(kind, body);
        let message = match kind {
            kind::AGENT_HELLO => Self::Hello(AgentHello::read(&mut r)?),
            kind::STARTED => Self::Started(r.u32("pid")?),
            kind::INFO_REPLY => Self::Info(Box::new(Info::read(&mut r)?)),
            kind::SHUTTING_DOWN => Self::ShuttingDown,
            kind::RENEWED => Self::Renewed(Box::new(Renewed::read(&mut r)?)),
            kind::STDOUT => return Ok(Self::Stdout(data(&r, body)?)),
            kind::STDERR => return Ok(Self::Stderr(data(&r, body)?)),
            kind::STDIN_CREDIT => Self::StdinCredit(r.u32("bytes")?),
            kind::EXIT => Self::Exit(ExitStatus::read(&mut r)?),
            kind::ERROR => Self::Error(AgentError::read(&mut r)?),
            _ => return Err(DecodeError::UnknownKind(kind)),
        };
        r.end()?;
        Ok(message)
    }

    fn encode(&self, out: &mut Vec<u8>) -> Result<(), EncodeError> {
        let mut w = Writer::default();
        let kind = match self {
            Self::Hello(hello) => {
                hello.write(&mut w);
                kind::AGENT_HELLO
            }
            Self::Started(pid) => {
                w.u32(*pid);
                kind::STARTED
            }
            Self::Info(info) => {
                info.write(&mut w);
                kind::INFO_REPLY
            }
            Self::ShuttingDown => kind::SHUTTING_DOWN,
            Self::Renewed(renewed) => {
                renewed.write(&mut w);
                kind::RENEWED
            }
            Self::Stdout(bytes) => {
                put_data(kind::STDOUT, bytes, out);
                return Ok(());
            }
            Self::Stderr(bytes) => {
                put_data(kind::STDERR, bytes, out);
                return Ok(());
            }
            Self::StdinCredit(bytes) => {
                w.u32(*bytes);
                kind::STDIN_CREDIT
            }
            Self::Exit(status) => {
                status.write(&mut w);
                kind::EXIT
            }
            Self::Error(error) => {
                error.write(&mut w);
                kind::ERROR
            }
        };
        put_message(kind, &w.into_body(), out)
    }
}

/// The whole body as stream data. An empty frame would say nothing, and is
/// refused so that a stream of them cannot keep the other side busy for free.
fn data(r: &Reader<'_>, body: &[u8]) -> Result<Vec<u8>, DecodeError> {
    if body.is_empty() {
        return Err(r.bad("data"));
    }
    Ok(body.to_vec())
}

impl AgentError {
    /// The layout is the same in every version of the protocol, because a
    /// version mismatch is reported with it.
    fn write(&self, w: &mut Writer) {
        w.u8(self.kind as u8)
            .u16(self.protocol)
            .bytes(self.message.as_bytes());
    }

    fn read(r: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let number = r.u8("kind")?;
        let kind = ErrorKind::ALL.into_iter().find(|k| *k as u8 == number);
        Ok(Self {
            kind: kind.ok_or_else(|| r.bad("kind"))?,
            protocol: r.u16("protocol")?,
            message: r.string("message")?,
        })
    }
}
