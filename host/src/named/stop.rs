//! `coppice stop`: the end of machines.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use super::dir::{Paths, Place, State};
use super::name::Name;
use crate::api::Api;
use crate::cli::StopArgs;
use crate::error::Error;
use crate::guest;
use crate::process;
use crate::wait;

/// How long a VMM may take to end after SIGTERM, and after SIGKILL.
const SOON: Duration = Duration::from_secs(2);

/// Ends each of the machines, all at the same time.
pub fn stop(args: StopArgs) -> ExitCode {
    let place = match Place::open() {
        Ok(place) => place,
        Err(error) => {
            eprintln!("coppice: {error}");
            return error.exit_code().into();
        }
    };
    let limit = (!args.force).then_some(args.timeout);
    let mut names = args.names;
    names.sort();
    names.dedup();
    let failures = std::thread::scope(|scope| {
        let ends: Vec<_> = names
            .iter()
            .map(|name| scope.spawn(|| stop_one(&place, name, limit)))
            .collect();
        let ends = ends.into_iter().map(|end| end.join());
        ends.filter_map(|end| {
            end.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
                .err()
        })
        .inspect(|error| eprintln!("coppice: {error}"))
        .count()
    });
    match failures {
        0 => ExitCode::SUCCESS,
        _ => Error::FAILURE.into(),
    }
}

/// Ends one machine and removes its directory. With a `limit` its guest is
/// asked first.
pub(super) fn stop_one(place: &Place, name: &Name, limit: Option<Duration>) -> Result<(), Error> {
    let (held, state) = place.hold(name)?;
    if let State::Alive(_, process) = state {
        if let Some(limit) = limit {
            ask(name, &held.paths, &process, limit);
        }
        end(&process).map_err(Error::host("the machine's VMM cannot be ended"))?;
    }
    held.remove()
}

/// Asks the guest to end. What follows does not depend on whether it does.
fn ask(name: &Name, paths: &Paths, process: &OwnedFd, limit: Duration) {
    let began = Instant::now();
    // One that is paused could not answer.
    if let Err(error) = Api::new(&paths.api(), SOON).resume() {
        eprintln!("coppice: {name}: {error}");
    }
    match guest::shut_down(&paths.vsock(), limit) {
        Ok(()) => {
            let left = limit.saturating_sub(began.elapsed());
            let _ = wait::readable(process.as_fd(), left);
        }
        Err(error) => eprintln!("coppice: {name} is switched off, because {error}"),
    }
}

/// Ends the VMM, in order if it can.
fn end(process: &OwnedFd) -> io::Result<()> {
    for signal in [libc::SIGTERM, libc::SIGKILL] {
        match process::send_signal(process, signal) {
            Err(error) if error.raw_os_error() == Some(libc::ESRCH) => return Ok(()),
            sent => sent?,
        }
        if wait::readable(process.as_fd(), SOON)? {
            return Ok(());
        }
    }
    Err(io::ErrorKind::TimedOut.into())
}
