//! How a run went: for programs as JSON, for people as a table.

use std::fmt::{self, Write as _};
use std::fs::File;
use std::io::{self, Write};
use std::path::Path;
use std::time::{Duration, Instant};

use coppice_agent_protocol::{BootTimes, ExitStatus, Outcome};
use serde::Serialize;

/// What happened in a run.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Report {
    /// The exit code of `coppice run`.
    pub exit_code: u8,
    /// The command's own exit code, if it exited.
    pub command_exit_code: Option<u8>,
    /// The signal that killed the command.
    pub signal: Option<u8>,
    /// The command's time was up.
    pub timed_out: bool,
    /// The guest lacked memory and killed one of the command's processes.
    pub oom_killed: bool,
    /// Why coppice or the machine failed.
    pub error: Option<String>,
    /// How long each step took, in milliseconds; absent if it did not happen.
    pub timings_ms: Timings,
}

/// Milliseconds of each step.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Timings {
    /// Finding files, packing the initrd, starting the VMM's process.
    pub start: Option<f64>,
    /// From there to the agent's call.
    pub boot: Option<f64>,
    /// From the kernel's start to the agent's first instruction, by the
    /// guest's clock.
    pub guest_kernel: Option<f64>,
    /// From there until the agent listened, by the guest's clock.
    pub guest_agent: Option<f64>,
    /// From the agent's call to the command's start.
    pub exec_start: Option<f64>,
    /// From the command's start to its end.
    pub exec: Option<f64>,
    /// The rest: last output, ending the machine, removing its files.
    pub stop: Option<f64>,
    /// All of it.
    pub total: Option<f64>,
}

impl Report {
    /// Takes over how the command ended.
    pub fn set_status(&mut self, status: &ExitStatus) {
        match status.outcome {
            Outcome::Code(code) => self.command_exit_code = Some(code),
            Outcome::Signal(signal) => self.signal = Some(signal),
        }
        self.timed_out = status.timed_out;
        self.oom_killed = status.oom_killed;
    }

    /// Writes it as one line to `file`; `-` is standard error.
    pub fn write_json(&self, file: &Path) -> io::Result<()> {
        let mut line = serde_json::to_vec(self)?;
        line.push(b'\n');
        match file == Path::new("-") {
            true => io::stderr().write_all(&line),
            false => File::create(file)?.write_all(&line),
        }
    }
}

impl Timings {
    /// Takes over what the guest measured.
    pub fn set_guest(&mut self, boot: &BootTimes) {
        let ms = |us: u64| us as f64 / 1000.0;
        // 0 stands for a milestone that was not passed.
        if boot.started_us > 0 {
            self.guest_kernel = Some(ms(boot.started_us));
            self.guest_agent = boot.ready_us.checked_sub(boot.started_us).map(ms);
        }
    }
}

impl fmt::Display for Timings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut rows = String::new();
        for (name, value) in [
            ("start of the VMM", self.start),
            ("boot to agent ready", self.boot),
            ("  kernel", self.guest_kernel),
            ("  agent", self.guest_agent),
            ("start of the command", self.exec_start),
            ("command", self.exec),
            ("stop", self.stop),
            ("total", self.total),
        ] {
            if let Some(value) = value {
                writeln!(rows, "{name:<22}{value:>10.1} ms")?;
            }
        }
        f.write_str(rows.trim_end())
    }
}

/// The time between two points in milliseconds, to the microsecond.
pub fn ms(from: Instant, to: Instant) -> f64 {
    let micros = to.saturating_duration_since(from).as_micros();
    Duration::from_micros(micros as u64).as_micros() as f64 / 1000.0
}
