//! How long restores, snapshots and forks take, against a floor in the same run
//! and against Firecracker.
//!
//! The guest is a few instructions without Linux, so this runs on any KVM.

mod chain;
mod contest;
mod http;
mod hundred;
mod plot;
mod process;
mod prompt;
mod pss;
mod report;
mod rows;
mod tools;
mod vmm;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use coppice_benches::Fallible;

use crate::rows::Bench;
use crate::vmm::Vmm;

const USAGE: &str = "\
usage: bench-restore COPPICE-VMM REPORT-DIRECTORY [WORK-DIRECTORY]

Snapshots are written below the work directory, which is the report's if none is
given. FIRECRACKER=PATH has a build of Firecracker measured in the same run;
BENCH_ROWS=WORD measures only the rows with that word in their names.";

fn main() -> ExitCode {
    let arguments: Vec<PathBuf> = std::env::args_os().skip(1).map(PathBuf::from).collect();
    let result = match &arguments[..] {
        [vmm, report] => measure(vmm, report, report),
        [vmm, report, work] => measure(vmm, report, work),
        _ => Err(USAGE.into()),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("bench-restore: {error}");
            ExitCode::FAILURE
        }
    }
}

fn measure(ours: &Path, report: &Path, work: &Path) -> Fallible<()> {
    let program = |path: &Path| {
        std::fs::canonicalize(path).map_err(|error| format!("{}: {error}", path.display()))
    };
    let ours = Vmm::new(program(ours)?);
    let peer = std::env::var_os("FIRECRACKER").filter(|path| !path.is_empty());
    let peer = peer.map(|path| program(Path::new(&path))).transpose()?;
    let report = std::path::absolute(report)?;
    std::fs::create_dir_all(&report)?;
    std::fs::create_dir_all(work)?;
    // Sockets are named by relative paths, which are always short enough.
    let work = tempfile::tempdir_in(work)?;
    std::env::set_current_dir(work.path())?;

    std::fs::write(vmm::DISK, vec![0; 1 << 20])?;
    prompt::be_prompt();
    let bench = Bench {
        ours,
        peer: peer.map(Vmm::new),
        floor: tools::floor()?,
        only: std::env::var("BENCH_ROWS")
            .ok()
            .filter(|word| !word.is_empty()),
    };
    let rows = bench.run()?;
    report::print(&rows);
    report::write(&rows, &report)?;
    // The directory cannot be removed from within.
    std::env::set_current_dir(&report)?;
    Ok(())
}
