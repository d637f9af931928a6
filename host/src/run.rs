//! `coppice run`: one machine, one command.

use std::process::ExitCode;
use std::time::Instant;

use crate::cli::RunArgs;
use crate::command;
use crate::config::ConsoleUse;
use crate::error::Error;
use crate::machine::Machine;
use crate::report::{Report, ms};
use crate::signals::Signals;
use crate::vmm::Serial;

/// Runs the command and says how it went.
pub fn run(args: RunArgs) -> ExitCode {
    command::tell(&args.command, |began, report| attempt(&args, began, report))
}

/// From start to end. The exit code, unless coppice or the machine failed.
fn attempt(args: &RunArgs, began: Instant, report: &mut Report) -> Result<u8, Error> {
    let signals = Signals::catch().map_err(Error::host("signals cannot be caught"))?;
    let serial = Serial::Kept {
        echo: args.show_console,
    };
    let mut machine = Machine::start(&args.machine, ConsoleUse::Errors, serial)?;
    let started = Instant::now();
    report.timings_ms.start = Some(ms(began, started));
    let hello = machine.wait_ready(&signals, args.machine.boot_timeout)?;
    report.timings_ms.boot = Some(ms(started, Instant::now()));
    report.timings_ms.set_guest(&hello.boot);

    let stream = machine.connect()?;
    let (times, code) =
        command::carry_out(&args.command, stream, &signals, report, || machine.lost())?;
    let stopping = Instant::now();
    let stopped = machine.stop(&signals);
    report.timings_ms.stop = Some(ms(times.ended.unwrap_or(stopping), Instant::now()));
    code.and_then(|code| stopped.map(|()| code))
}
