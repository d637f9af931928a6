//! The way to the agent: it calls when it is ready, then we call it.

use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

use coppice_agent_protocol::{
    AGENT_PORT, AgentHello, HostHello, MessageReader, PROTOCOL_VERSION, PowerAction, READY_PORT,
    ToAgent, ToHost, write_message,
};

use crate::error::Error;

/// How long a part of a conversation may take that both sides should finish
/// at once. A stuck guest must not hold us, but an emulated one may be slow.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// The longest answer to CONNECT: `OK 4294967295`.
const ANSWER_MAX: usize = 32;

/// Where the agent reports that it is ready.
#[derive(Debug)]
pub struct Ready(UnixListener);

impl Ready {
    /// Listens. To be done before the machine starts, so that its agent finds
    /// somebody.
    pub fn listen(vsock: &Path) -> io::Result<Self> {
        let mut path = vsock.as_os_str().to_owned();
        path.push(format!("_{READY_PORT}"));
        UnixListener::bind(PathBuf::from(path)).map(Self)
    }

    /// Takes a call; `None` if the caller says nothing.
    pub fn take(&self) -> Result<Option<AgentHello>, Error> {
        let failed = Error::host("the agent's call could not be taken");
        let stream = match self
            .0
            .accept()
            .and_then(|(stream, _)| patient(stream, PATIENCE))
        {
            Ok(stream) => stream,
            Err(error) => return Err(failed(error)),
        };
        match MessageReader::<_, ToHost>::new(stream).next_message()? {
            Some(ToHost::Hello(hello)) => check(hello).map(Some),
            Some(ToHost::Error(error)) => Err(Error::Refused(error)),
            Some(other) => Err(Error::Protocol(format!("a call began with {other:?}"))),
            None => Ok(None),
        }
    }
}

impl AsFd for Ready {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Refuses an agent of another protocol.
pub fn check(hello: AgentHello) -> Result<AgentHello, Error> {
    match hello.protocol == PROTOCOL_VERSION {
        true => Ok(hello),
        false => Err(Error::Version {
            agent: hello.protocol,
            ours: PROTOCOL_VERSION,
        }),
    }
}

/// A connection to the agent's port.
pub fn connect(vsock: &Path) -> Result<UnixStream, Error> {
    connect_within(vsock, PATIENCE)
}

/// The same; no single step of what is said on it may take longer than
/// `patience`.
pub fn connect_within(vsock: &Path, patience: Duration) -> Result<UnixStream, Error> {
    open(vsock, patience).map_err(Error::host("the guest's agent cannot be reached"))
}

fn open(vsock: &Path, patience: Duration) -> io::Result<UnixStream> {
    let mut stream = patient(UnixStream::connect(vsock)?, patience)?;
    let answer = ask_for_agent(&mut stream).map_err(|error| match error.kind() {
        // How it looks depends on who is faster.
        io::ErrorKind::UnexpectedEof
        | io::ErrorKind::ConnectionReset
        | io::ErrorKind::BrokenPipe => io::Error::new(
            io::ErrorKind::ConnectionRefused,
            format!("nobody answers on port {AGENT_PORT}"),
        ),
        // What a read says whose time limit passed.
        io::ErrorKind::WouldBlock => io::Error::new(
            io::ErrorKind::TimedOut,
            format!("no answer within {} s", patience.as_secs_f32()),
        ),
        _ => error,
    })?;
    if !answer.starts_with(b"OK ") {
        let said = String::from_utf8_lossy(&answer).into_owned();
        return Err(io::Error::new(io::ErrorKind::InvalidData, said));
    }
    Ok(stream)
}

/// The VMM's part of a connection: a line each way.
fn ask_for_agent(stream: &mut UnixStream) -> io::Result<Vec<u8>> {
    writeln!(stream, "CONNECT {AGENT_PORT}")?;
    let mut answer = Vec::new();
    let mut byte = [0];
    // One at a time: what follows the line belongs to the agent.
    while !answer.ends_with(b"\n") && answer.len() < ANSWER_MAX {
        stream.read_exact(&mut byte)?;
        answer.extend(byte);
    }
    Ok(answer)
}

/// Asks the agent to end everything, write everything to disk, and switch the
/// machine off. No single step of the conversation may take longer than
/// `patience`.
pub fn shut_down(vsock: &Path, patience: Duration) -> Result<(), Error> {
    let mut stream = connect_within(vsock, patience)?;
    let failed = || Error::host("the guest's agent cannot be told to shut down");
    for message in [
        ToAgent::Hello(HostHello::default()),
        ToAgent::Shutdown(PowerAction::PowerOff),
    ] {
        write_message(&mut stream, &message).map_err(failed())?;
    }
    let mut reader = MessageReader::<_, ToHost>::new(stream);
    loop {
        match reader.next_message()? {
            Some(ToHost::Hello(hello)) => drop(check(hello)?),
            Some(ToHost::Error(error)) => return Err(Error::Refused(error)),
            Some(_) | None => return Ok(()),
        }
    }
}

fn patient(stream: UnixStream, patience: Duration) -> io::Result<UnixStream> {
    stream.set_read_timeout(Some(patience))?;
    stream.set_write_timeout(Some(patience))?;
    Ok(stream)
}
