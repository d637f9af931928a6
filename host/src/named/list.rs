//! `coppice ls`: which machines there are.

use std::fmt::Write as _;
use std::os::fd::{AsFd, OwnedFd};
use std::process::ExitCode;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::Serialize;

use super::dir::{Files, Paths, Place, State};
use super::name::Name;
use super::record::{Facts, Record};
use crate::api::{Api, InstanceState};
use crate::cli::LsArgs;
use crate::error::Error;
use crate::snapshot::text;
use crate::wait;

/// How long a VMM may take to say how its machine is.
const PATIENCE: Duration = Duration::from_secs(1);

/// Lists the machines.
pub fn list(args: LsArgs) -> ExitCode {
    match attempt(&args) {
        Ok(list) => crate::print(list.as_bytes()),
        Err(error) => {
            eprintln!("coppice: {error}");
            error.exit_code().into()
        }
    }
}

fn attempt(args: &LsArgs) -> Result<String, Error> {
    let place = Place::open()?;
    let mut rows = Vec::new();
    for name in place.names()? {
        match place.find(&name) {
            Ok((paths, state)) => rows.push(Row::new(name, &paths, state)),
            // It has gone meanwhile, or never came up.
            Err(Error::NoMachine(_)) => {}
            Err(error) => return Err(error),
        }
    }
    match args.json {
        true => serde_json::to_string(&rows)
            .map(|line| line + "\n")
            .map_err(|error| Error::host("the list cannot be written")(error.into())),
        false => Ok(table(&rows)),
    }
}

/// How a machine is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Condition {
    Starting,
    Running,
    Paused,
    /// Its VMM is there and does not answer.
    Silent,
    Dead,
}

/// A machine in the list.
#[derive(Debug, Serialize)]
struct Row {
    name: Name,
    state: Condition,
    pid: Option<i32>,
    #[serde(flatten)]
    record: Option<Record>,
    files: Files,
}

impl Row {
    fn new(name: Name, paths: &Paths, state: State) -> Self {
        let (state, record) = match state {
            State::Starting | State::Remains => (Condition::Starting, None),
            State::Alive(record, vmm) => (condition(paths, &vmm), Some(record)),
            State::Dead(record) => (Condition::Dead, Some(record)),
        };
        Self {
            name,
            state,
            pid: record.as_ref().map(|record| record.vmm.pid),
            record,
            files: paths.files(),
        }
    }
}

fn condition(paths: &Paths, vmm: &OwnedFd) -> Condition {
    match Api::new(&paths.api(), PATIENCE).instance() {
        Ok(instance) => match instance.state {
            InstanceState::Paused => Condition::Paused,
            InstanceState::Running | InstanceState::NotStarted => Condition::Running,
        },
        // Perhaps it was about to end.
        Err(_) => match wait::readable(vmm.as_fd(), PATIENCE) {
            Ok(true) => Condition::Dead,
            Ok(false) | Err(_) => Condition::Silent,
        },
    }
}

/// For people. Nothing at all if there are no machines.
fn table(rows: &[Row]) -> String {
    if rows.is_empty() {
        return String::new();
    }
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let now = now.map(|now| now.as_secs()).unwrap_or_default();
    let mut lines = vec![
        [
            "NAME", "STATE", "PID", "VCPUS", "MEMORY", "AGE", "FROM", "IMAGE",
        ]
        .map(String::from),
    ];
    lines.extend(rows.iter().map(|row| {
        let state = format!("{:?}", row.state).to_lowercase();
        let record = row.record.as_ref();
        let of = |text: fn(&Record) -> String| record.map_or_else(String::new, text);
        [
            row.name.to_string(),
            state,
            of(|record| record.vmm.pid.to_string()),
            of(|record| record.facts.vcpus.to_string()),
            of(|record| format!("{}M", record.facts.memory_mib)),
            record.map_or_else(
                String::new,
                |record| age(now.saturating_sub(record.created)),
            ),
            of(|record| from(&record.facts)),
            of(|record| record.facts.image.clone()),
        ]
    }));
    let width = |column: usize| {
        lines
            .iter()
            .map(|line| line[column].len())
            .max()
            .unwrap_or(0)
    };
    let widths: [usize; 8] = std::array::from_fn(width);
    let mut text = String::new();
    for line in &lines {
        let mut row = String::new();
        for (cell, width) in line.iter().zip(widths) {
            // Writing to a String cannot fail.
            let _ = write!(row, "{cell:<width$}  ");
        }
        text.push_str(row.trim_end());
        text.push('\n');
    }
    text
}

/// The machine or the snapshot that a machine grew from.
fn from(facts: &Facts) -> String {
    match (&facts.parent, &facts.snapshot) {
        (Some(parent), _) => parent.to_string(),
        (None, Some(snapshot)) => text::short(snapshot),
        (None, None) => "-".into(),
    }
}

/// A number of seconds in its largest whole unit.
fn age(seconds: u64) -> String {
    match seconds {
        0..60 => format!("{seconds}s"),
        60..3600 => format!("{}m", seconds / 60),
        3600..86_400 => format!("{}h", seconds / 3600),
        _ => format!("{}d", seconds / 86_400),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages_have_one_unit() {
        for (seconds, text) in [
            (0, "0s"),
            (59, "59s"),
            (60, "1m"),
            (7199, "1h"),
            (90_000, "1d"),
        ] {
            assert_eq!(age(seconds), text);
        }
    }
}
