//! `coppice start`: a machine that stays.

use std::fs;
use std::process::ExitCode;
use std::time::Instant;

use serde_json::json;

use super::dir::{Held, Paths, Place};
use super::record::{Facts, Record};
use crate::boot::Boot;
use crate::cli::StartArgs;
use crate::config::ConsoleUse;
use crate::error::Error;
use crate::parts::Parts;
use crate::process::ProcessId;
use crate::report::{Timings, ms};
use crate::signals::Signals;
use crate::vmm::Vmm;

/// Starts a machine, and says how to go on.
pub fn start(args: StartArgs) -> ExitCode {
    match attempt(&args) {
        Ok(started) => crate::print(started.as_bytes()),
        Err(error) => {
            if !matches!(error, Error::Signalled(_)) {
                eprintln!("coppice: {error}");
            }
            error.exit_code().into()
        }
    }
}

fn attempt(args: &StartArgs) -> Result<String, Error> {
    let began = Instant::now();
    let signals = Signals::catch().map_err(Error::host("signals cannot be caught"))?;
    let parts = Parts::find(&args.machine)?;
    let held = Place::open()?.create(&args.name)?;
    let (vmm, timings) = match boot(args, &parts, &held, &signals, began) {
        Ok(up) => up,
        Err(error) => {
            // The machine ended with the attempt; the error has its last words.
            if let Err(left) = held.remove() {
                eprintln!("coppice: {left}");
            }
            return Err(error);
        }
    };
    Ok(match args.json {
        true => told(args, &held.paths, vmm, &timings),
        false => format!(
            "The machine {name} is up. Go on with:\n  coppice exec {name} -- uname -a\n  \
             coppice stop {name}\n",
            name = args.name
        ),
    })
}

/// Boots the machine and lets it go.
fn boot(
    args: &StartArgs,
    parts: &Parts,
    held: &Held,
    signals: &Signals,
    began: Instant,
) -> Result<(ProcessId, Timings), Error> {
    let paths = &held.paths;
    let files = parts.lay_out(paths.dir(), &args.machine, ConsoleUse::Errors)?;
    let api = paths.api();
    let vmm_args = [
        "--id".as_ref(),
        args.name.as_str().as_ref(),
        "--api-sock".as_ref(),
        api.as_os_str(),
        "--config-file".as_ref(),
        files.config.as_os_str(),
    ];
    let vmm = Vmm::start_to_stay(&parts.program, vmm_args, paths.logs())?;
    let started = Instant::now();
    let mut boot = Boot {
        vmm,
        program: parts.program.clone(),
        ready: files.ready,
    };
    let hello = boot.wait_ready(signals, args.machine.boot_timeout)?;
    let mut timings = Timings {
        start: Some(ms(began, started)),
        boot: Some(ms(started, Instant::now())),
        ..Timings::default()
    };
    timings.set_guest(&hello.boot);

    let failed = || Error::host("the machine cannot be written down");
    // It has been read, and would take memory for as long as the machine lives.
    fs::remove_file(paths.initrd()).map_err(failed())?;
    let vmm = boot.vmm.id().map_err(failed())?;
    let record = Record::new(vmm, Facts::new(&args.machine, parts));
    record.write(paths.dir()).map_err(failed())?;
    boot.vmm
        .let_go()
        .map_err(Error::host("the machine cannot be left to itself"))?;
    timings.total = Some(ms(began, Instant::now()));
    Ok((vmm, timings))
}

fn told(args: &StartArgs, paths: &Paths, vmm: ProcessId, timings: &Timings) -> String {
    let told = json!({
        "name": args.name,
        "pid": vmm.pid,
        "files": paths.files(),
        "timings_ms": timings,
    });
    format!("{told}\n")
}
