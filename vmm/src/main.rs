//! The microVM process.

use std::process::ExitCode;

use coppice_vmm::probe::probe;

const USAGE: &str = "usage: coppice-vmm --probe [--json]";

/// Exit code of `--probe` if Linux guests do not run on this host.
const UNUSABLE: u8 = 1;
/// Exit code for arguments that make no sense.
const BAD_ARGUMENTS: u8 = 2;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let json = match arguments.as_slice() {
        ["--probe"] => false,
        ["--probe", "--json"] | ["--json", "--probe"] => true,
        _ => {
            eprintln!("{USAGE}");
            return BAD_ARGUMENTS.into();
        }
    };
    let probe = probe();
    if json {
        let text = serde_json::to_string_pretty(&probe).expect("a probe is plain data");
        println!("{text}");
    } else {
        print!("{probe}");
    }
    if probe.is_usable() {
        ExitCode::SUCCESS
    } else {
        UNUSABLE.into()
    }
}
