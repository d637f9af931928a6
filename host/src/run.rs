//! `coppice run`: one machine, one command.

use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::process::ExitCode;
use std::time::Instant;

use coppice_agent_protocol::{Command, ExecRequest, Stdio};

use crate::cli::RunArgs;
use crate::config::ConsoleUse;
use crate::error::Error;
use crate::machine::Machine;
use crate::relay::{self, End, Relay};
use crate::report::{Report, ms};
use crate::signals::Signals;
use crate::terminal::{RawMode, window_size};
use crate::values::EnvVar;
use crate::vmm::Serial;

/// The exit code of a program that was killed for writing to nobody.
const BROKEN_PIPE: u8 = 128 + libc::SIGPIPE as u8;

/// Runs the command and says how it went.
pub fn run(args: RunArgs) -> ExitCode {
    let mut report = Report::default();
    let began = Instant::now();
    match attempt(&args, began, &mut report) {
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

/// From start to end. The exit code, unless coppice or the machine failed.
fn attempt(args: &RunArgs, began: Instant, report: &mut Report) -> Result<u8, Error> {
    let signals = Signals::catch().map_err(Error::host("signals cannot be caught"))?;
    let request = request(args);
    let serial = Serial::Kept {
        echo: args.show_console,
    };
    let mut machine = Machine::start(&args.machine, ConsoleUse::Errors, serial)?;
    let started = Instant::now();
    report.timings_ms.start = Some(ms(began, started));
    let hello = machine.wait_ready(&signals, args.machine.boot_timeout)?;
    let ready = Instant::now();
    report.timings_ms.boot = Some(ms(started, ready));
    report.timings_ms.set_guest(&hello.boot);

    let stream = machine.connect()?;
    let raw = match args.tty && args.interactive {
        true => RawMode::enter().map_err(Error::host("the terminal cannot be set"))?,
        false => None,
    };
    let stdin = args.interactive.then(relay::stdin);
    let mut relay = Relay::new(stream, request, stdin, &signals)?;
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
        Ok(End::Lost) => return Err(machine.lost()),
        Err(error) => Err(error),
    };
    let stopping = Instant::now();
    let stopped = machine.stop(&signals);
    report.timings_ms.stop = Some(ms(times.ended.unwrap_or(stopping), Instant::now()));
    code.and_then(|code| stopped.map(|()| code))
}

fn request(args: &RunArgs) -> ExecRequest {
    let bytes = |text: &OsString| text.as_bytes().to_vec();
    let command = match args.shell {
        true => Command::Shell(args.command.join(" ".as_ref()).into_vec()),
        false => Command::Argv(args.command.iter().map(bytes).collect()),
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
