//! Makes a machine that was restored one of its own: the agent is told, renews
//! what siblings must not share, and confirms it.

use std::fs::File;
use std::io::{self, ErrorKind as Io, Read};
use std::path::Path;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use coppice_agent_protocol::{
    ErrorKind, HostHello, MessageReader, Renewed, Resumed, SEED_LEN, Seed, ToAgent, ToHost,
    write_message,
};

use crate::error::Error;
use crate::guest;

/// No machine is waited for longer than a day.
const LONGEST_LIMIT: Duration = Duration::from_secs(24 * 60 * 60);

/// Between two attempts at first, and at most. A machine that has just begun to
/// run answers in less than a millisecond.
const FIRST_PAUSE: Duration = Duration::from_millis(1);
const LONGEST_PAUSE: Duration = Duration::from_millis(50);

/// What to ask of a machine that was restored: everything, with random bytes
/// that no other machine gets.
pub fn request(hostname: Option<String>) -> Result<Resumed, Error> {
    let mut generation = [0; coppice_agent_protocol::GENERATION_LEN];
    let mut seed = [0; SEED_LEN];
    File::open("/dev/urandom")
        .and_then(|mut random| {
            random.read_exact(&mut generation)?;
            random.read_exact(&mut seed)
        })
        .map_err(Error::host("this host gives no random bytes"))?;
    Ok(Resumed {
        hostname,
        ..Resumed::everything(generation, Seed(seed))
    })
}

/// Tells the agent at `vsock` that its machine was restored and waits until it
/// has renewed what `request` asks for, at most for `limit`. The time is filled
/// in here, when the request goes out. Steps that failed are in the answer.
/// `rest` passes the time between two attempts, and says whether the machine has
/// ended meanwhile, so that there need not be another.
///
/// What the connection suffers from the restore itself is tried again: the
/// guest resets its streams with its first instructions, and an earlier renewal
/// may have to be ended. Asking twice is safe.
///
/// # Errors
/// [`Error::NotRenewed`] if there was no confirmation in time: nothing may run
/// in the machine then. Others if trying again is of no use.
pub fn resumed(
    vsock: &Path,
    request: Resumed,
    limit: Duration,
    mut rest: impl FnMut(Duration) -> bool,
) -> Result<Renewed, Error> {
    let deadline = Instant::now() + limit.min(LONGEST_LIMIT);
    let mut pause = FIRST_PAUSE;
    loop {
        let why = match attempt(vsock, request.clone(), deadline) {
            Ok(renewed) => return Ok(renewed),
            Err(Failure::Final(error)) => return Err(error),
            Err(Failure::Passing(error)) => error,
        };
        if Instant::now() + pause >= deadline || rest(pause) {
            return Err(Error::NotRenewed {
                after: limit,
                why: why.to_string(),
            });
        }
        pause = (2 * pause).min(LONGEST_PAUSE);
    }
}

/// Why an attempt failed.
enum Failure {
    /// The next one may succeed.
    Passing(Error),
    /// None will.
    Final(Error),
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        let passing = match &error {
            Error::Refused(refusal) => {
                matches!(refusal.kind, ErrorKind::Busy | ErrorKind::TooSlow)
            }
            Error::Host { source, .. } => matches!(
                source.kind(),
                Io::ConnectionRefused
                    | Io::ConnectionReset
                    | Io::BrokenPipe
                    | Io::UnexpectedEof
                    | Io::NotFound
                    | Io::TimedOut
                    | Io::WouldBlock
            ),
            _ => false,
        };
        match passing {
            true => Self::Passing(error),
            false => Self::Final(error),
        }
    }
}

fn attempt(vsock: &Path, mut request: Resumed, deadline: Instant) -> Result<Renewed, Failure> {
    let failed = || Error::host("the guest's agent cannot be told of the restore");
    // No time at all would mean no limit.
    let left = || {
        deadline
            .saturating_duration_since(Instant::now())
            .max(FIRST_PAUSE)
    };
    let mut stream = guest::connect_within(vsock, left())?;
    stream.set_read_timeout(Some(left())).map_err(failed())?;
    write_message(&mut stream, &ToAgent::Hello(HostHello::default())).map_err(failed())?;
    let mut reader = MessageReader::<_, ToHost>::new(stream.try_clone().map_err(failed())?);
    // Only once the agent runs is the time written down: what it takes the guest
    // to come to itself is no part of the clock's error.
    match next(&mut reader)? {
        ToHost::Hello(hello) => drop(guest::check(hello)?),
        other => return Err(unexpected(&other).into()),
    }
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    request.wall_clock_ns = now.ok().and_then(|now| u64::try_from(now.as_nanos()).ok());
    write_message(&mut stream, &ToAgent::Resumed(Box::new(request))).map_err(failed())?;
    stream.set_read_timeout(Some(left())).map_err(failed())?;
    match next(&mut reader)? {
        ToHost::Renewed(renewed) => Ok(*renewed),
        other => Err(unexpected(&other).into()),
    }
}

/// The next message; a stream that ends instead was reset by the restore.
fn next(reader: &mut MessageReader<impl Read, ToHost>) -> Result<ToHost, Error> {
    match reader.next_message() {
        Ok(Some(ToHost::Error(error))) => Err(Error::Refused(error)),
        Ok(Some(message)) => Ok(message),
        Ok(None) | Err(coppice_agent_protocol::ReadError::Cut) => {
            Err(Error::host("the guest's agent ended the connection")(
                io::ErrorKind::ConnectionReset.into(),
            ))
        }
        Err(error) => Err(error.into()),
    }
}

fn unexpected(message: &ToHost) -> Error {
    Error::Protocol(format!("it answered a renewal with {message:?}"))
}

#[cfg(test)]
#[path = "renewal_test.rs"]
mod tests;
