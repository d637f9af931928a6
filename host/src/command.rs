//! A command in a machine: asked for, carried out, told about.

use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::net::UnixStream;
use std::process::ExitCode;
use std::time::Instant;

use coppice_agent_protocol::{Command, ExecRequest, Stdio};

use crate::cli::CommandArgs;
use crate::error::Error;
use crate::relay::{self, End, Relay, Times};
use crate::report::{Report, ms};
use crate::signals::Signals;
use crate::terminal::{RawMode, window_size};
use crate::values::EnvVar;

/// The exit code of a program that was killed for writing to nobody.
const BROKEN_PIPE: u8 = 128 + libc::SIGPIPE as u8;

/// Lets `attempt` carry a command out, says how it went, and answers with the
/// exit code. `attempt` gets the time at which all began.
pub fn tell(
    args: &CommandArgs,
    attempt: impl FnOnce(Instant, &mut Report) -> Result<u8, Error>,
) -> ExitCode {
    let mut report = Report::default();
    let began = Instant::now();
    match attempt(began, &mut report) {
        Ok(code) => report.exit_code = code,
        Err(error) => {
            report.exit_code = error.exit_code();
            report.timed_out |= matches!(error, Error::TimeoutIgnored(_));
            report.error = Some(error.to_string());
            if !matches!(error, Error::Signalled(_)) {
                eprintln!("coppice: {error}");
            }
        }
    }
    report.timings_ms.total = Some(ms(began, Instant::now()));
    if args.timings {
        eprintln!("{}", report.timings_ms);
    }
    if let Some(file) = &args.json
        && let Err(error) = report.write_json(file)
    {
        eprintln!(
            "coppice: the report {} cannot be written: {error}",
            file.display()
        );
        return Error::FAILURE.into();
    }
    report.exit_code.into()
}

/// Carries the command out over `stream`, a fresh connection to the agent.
/// When it started and ended is told in any case; the exit code unless
/// something else than the command failed. `lost` says why a connection ended
/// too early.
pub fn carry_out(
    args: &CommandArgs,
    stream: UnixStream,
    signals: &Signals,
    report: &mut Report,
    lost: impl FnOnce() -> Error,
) -> Result<(Times, Result<u8, Error>), Error> {
    let ready = Instant::now();
    let raw = match args.tty && args.interactive {
        true => RawMode::enter().map_err(Error::host("the terminal cannot be set"))?,
        false => None,
    };
    let stdin = args.interactive.then(relay::stdin);
    let mut relay = Relay::new(stream, request(args), stdin, signals)?;
    let end = relay.run();
    drop(raw);
    let times = relay.times;
    // Ends the connection, and with it a command that still runs.
    drop(relay);
    report.timings_ms.exec_start = times.started.map(|at| ms(ready, at));
    report.timings_ms.exec = times
        .started
        .zip(times.ended)
        .map(|(from, to)| ms(from, to));
    let code = match end {
        Ok(End::Exit(status)) => {
            report.set_status(&status);
            if status.timed_out {
                let limit = args.timeout.unwrap_or_default().as_secs_f32();
                eprintln!("coppice: the command was ended when its time of {limit} s was up");
            }
            Ok(status.shell_code())
        }
        Ok(End::OutputClosed) => Ok(BROKEN_PIPE),
        Ok(End::Abandoned(signal)) => Err(Error::Signalled(signal)),
        Ok(End::Lost) => return Err(lost()),
        Err(error) => Err(error),
    };
    Ok((times, code))
}

fn request(args: &CommandArgs) -> ExecRequest {
    let bytes = |text: &OsString| text.as_bytes().to_vec();
    let command = match args.shell {
        true => Command::Shell(args.argv.join(" ".as_ref()).into_vec()),
        false => Command::Argv(args.argv.iter().map(bytes).collect()),
    };
    let terminal = std::env::var_os("TERM").filter(|_| args.tty);
    let terminal = terminal.map(|term| (b"TERM".to_vec(), term.into_vec()));
    ExecRequest {
        env: terminal
            .into_iter()
            .chain(args.env.iter().filter_map(EnvVar::resolve))
            .collect(),
        cwd: args.cwd.as_ref().map(bytes),
        user: args.user.as_ref().map(bytes),
        stdio: match args.tty {
            true => Stdio::Tty(window_size()),
            false => Stdio::Pipes {
                stdin: args.interactive,
            },
        },
        timeout_ms: args
            .timeout
            .map(|limit| u64::try_from(limit.as_millis()).unwrap_or(u64::MAX)),
        ..ExecRequest::new(command)
    }
}
