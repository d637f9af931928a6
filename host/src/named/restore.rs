//! `coppice restore`: a machine from a snapshot.

use std::path::Path;
use std::process::ExitCode;
use std::time::Instant;

use coppice_snapshot::Store;
use serde_json::json;

use super::dir::{Paths, Place};
use super::grow::{Grown, Seed};
use crate::cli::{CommandArgs, ExecArgs, RestoreArgs};
use crate::error::Error;
use crate::locate::{self, VMM};
use crate::report::ms;
use crate::snapshot::{Failure, Named, store_dir};

/// Restores a machine, says how to go on, and runs the command if there is one.
pub fn restore(args: RestoreArgs) -> ExitCode {
    let began = Instant::now();
    let (paths, grown) = match attempt(&args) {
        Ok(restored) => restored,
        Err(error) => {
            eprintln!("coppice: {error}");
            return error.exit_code().into();
        }
    };
    let told = match (args.json, args.argv.is_empty()) {
        (true, _) => told(&args, &paths, &grown, began),
        (false, true) => format!(
            "The machine {name} is up. Go on with:\n  coppice exec {name} -- uname -a\n  \
             coppice stop {name}\n",
            name = args.name
        ),
        (false, false) => String::new(),
    };
    let printed = crate::print(told.as_bytes());
    if args.argv.is_empty() || printed != ExitCode::SUCCESS {
        return printed;
    }
    super::exec(ExecArgs {
        name: args.name,
        command: CommandArgs {
            env: args.env,
            timeout: args.timeout,
            ..CommandArgs::new(args.argv)
        },
    })
}

fn attempt(args: &RestoreArgs) -> Result<(Paths, Grown), Error> {
    let store = Store::open(&store_dir(args.store.as_deref())).map_err(Failure::from)?;
    // Until the machine has them open, nobody is to remove its layers.
    let _share = store.share().map_err(Failure::from)?;
    let named = Named::new(&store, &args.snapshot).map_err(Failure::from)?;
    let (id, manifest, places) = named.read(&store)?;
    let path = match &named {
        Named::InStore(id) => store.manifest_path(id),
        Named::File(path) => locate::file("snapshot", Path::new(path))?,
    };
    let program = locate::Places::from_env().program(VMM)?;
    let mut seed = Seed::new(program, path, &manifest, places.store, args.restore_timeout)?;
    seed.facts.snapshot = Some(id);
    if let (Named::InStore(id), false) = (&named, args.no_prefetch) {
        seed.working_set = Some(store.working_set_path(id));
    }
    let held = Place::open()?.create(&args.name)?;
    match seed.grow(&args.name, &held) {
        Ok(grown) => Ok((held.paths, grown)),
        Err(error) => {
            // The machine ended with the attempt; the error has its last words.
            if let Err(left) = held.remove() {
                eprintln!("coppice: {left}");
            }
            Err(error)
        }
    }
}

fn told(args: &RestoreArgs, paths: &Paths, grown: &Grown, began: Instant) -> String {
    let told = json!({
        "name": args.name,
        "pid": grown.vmm.pid,
        "files": paths.files(),
        "timings_ms": {
            "restore": ms(grown.began, grown.ready),
            "total": ms(began, grown.ready),
        },
    });
    format!("{told}\n")
}
