//! `coppice exec`: a command in a machine that is there.

use std::os::fd::AsFd;
use std::process::ExitCode;
use std::time::Duration;

use super::dir::{Place, State};
use crate::cli::ExecArgs;
use crate::command;
use crate::error::{Error, LastWords};
use crate::guest;
use crate::report::Report;
use crate::signals::Signals;
use crate::wait;

/// How long a VMM may take to end after its agent has gone.
const SOON: Duration = Duration::from_secs(1);

/// Runs the command and says how it went.
pub fn exec(args: ExecArgs) -> ExitCode {
    command::tell(&args.command, |_, report| attempt(&args, report))
}

fn attempt(args: &ExecArgs, report: &mut Report) -> Result<u8, Error> {
    let signals = Signals::catch().map_err(Error::host("signals cannot be caught"))?;
    let (paths, state) = Place::open()?.find(&args.name)?;
    let dead = || Error::MachineDead {
        name: args.name.clone(),
        said: paths.last_words(),
    };
    let process = match state {
        State::Alive(_, process) => process,
        State::Starting => return Err(Error::MachineBusy(args.name.clone())),
        State::Dead(_) | State::Remains => return Err(dead()),
    };
    let ended = || wait::readable(process.as_fd(), SOON).unwrap_or(false);
    let stream = guest::connect(&paths.vsock()).map_err(|error| match ended() {
        true => dead(),
        false => error,
    })?;
    let lost = || match ended() {
        true => dead(),
        false => Error::AgentGone(LastWords {
            vmm: Vec::new(),
            ..paths.last_words()
        }),
    };
    let (_, code) = command::carry_out(&args.command, stream, &signals, report, lost)?;
    code
}
