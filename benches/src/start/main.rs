//! How long the VMM takes from its exec to the guest's first output, against a
//! floor in the same run: a program that only makes the KVM calls that no VMM
//! can do without.
//!
//! Both are whole processes, started in turn, so that what the host does
//! meanwhile falls on both. The guest is a few instructions that write a byte to
//! the serial port; it needs no Linux, so this runs on any KVM.

mod floor;
mod guest;

use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::Instant;

use coppice_benches::Fallible;
use coppice_benches::spread::Spread;
use serde_json::json;

/// Pairs of runs; the first pair is not counted.
const ROUNDS: usize = 31;
/// Guest memory of both, in MiB.
const MEMORY_MIB: usize = 128;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let result = match &arguments[..] {
        [word] if word == "--floor" => floor::run(MEMORY_MIB),
        [vmm, report] => measure(Path::new(vmm), Path::new(report)),
        _ => Err("usage: bench-start COPPICE-VMM REPORT.json".into()),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("bench-start: {error}");
            ExitCode::FAILURE
        }
    }
}

fn measure(vmm: &Path, report: &Path) -> Fallible<()> {
    let directory = tempfile::tempdir()?;
    let config = configure(directory.path())?;
    let (mut floor, mut machine) = (Vec::new(), Vec::new());
    for round in 0..ROUNDS {
        let this = std::env::current_exe()?;
        let lowest = time_to_first_byte(Command::new(this).arg("--floor"))?;
        let full = time_to_first_byte(
            Command::new(vmm)
                .args(["--no-api", "--config-file"])
                .arg(&config),
        )?;
        if round > 0 {
            floor.push(lowest);
            machine.push(full);
        }
    }
    let nothing = "nothing was measured";
    let floor = Spread::of(floor).ok_or(nothing)?;
    let machine = Spread::of(machine).ok_or(nothing)?;
    let ratio = machine.median / floor.median;
    println!(
        "exec to the guest's first output, {MEMORY_MIB} MiB, 1 vCPU, {} runs each (ms)",
        ROUNDS - 1
    );
    println!("              median     min     max");
    for (name, spread) in [("floor", &floor), ("coppice-vmm", &machine)] {
        let Spread {
            median, min, max, ..
        } = spread;
        println!("{name:<12}{median:>8.2}{min:>8.2}{max:>8.2}");
    }
    println!("ratio of the medians: {ratio:.2}");
    if let Some(parent) = report.parent() {
        std::fs::create_dir_all(parent)?;
    }
    let figures = json!({
        "what": "exec to the guest's first output",
        "unit": "ms",
        "memory_mib": MEMORY_MIB,
        "runs": ROUNDS - 1,
        "floor": floor.json(),
        "coppice_vmm": machine.json(),
        "ratio_of_medians": ratio,
    });
    std::fs::write(report, serde_json::to_string_pretty(&figures)?)?;
    Ok(())
}

/// Writes the guest and a configuration that boots it, and returns the latter.
fn configure(directory: &Path) -> Fallible<PathBuf> {
    let kernel = directory.join("guest.elf");
    std::fs::write(&kernel, guest::elf())?;
    let config = directory.join("config.json");
    let content = json!({
        "boot-source": { "kernel_image_path": kernel, "boot_args": "" },
        "machine-config": { "vcpu_count": 1, "mem_size_mib": MEMORY_MIB },
    });
    std::fs::write(&config, content.to_string())?;
    Ok(config)
}

/// Starts `command`, waits for its first byte of output and ends it.
fn time_to_first_byte(command: &mut Command) -> Fallible<f64> {
    let begin = Instant::now();
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()?;
    let mut byte = [0];
    let mut output = child.stdout.take().ok_or("there is no output to read")?;
    let came = output.read(&mut byte)?;
    let took = begin.elapsed().as_secs_f64() * 1000.0;
    child.kill()?;
    let end = child.wait_with_output()?;
    if came == 1 && byte == *b"x" {
        return Ok(took);
    }
    let said = String::from_utf8_lossy(&end.stderr);
    Err(format!("{command:?} ended without the guest's output: {said}").into())
}
