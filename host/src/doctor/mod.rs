//! `coppice doctor`: can machines run here, and if not, what to do?

mod kernel;
mod parts;
mod sharing;
mod system;

use std::process::ExitCode;

use serde::Serialize;
use serde_json::json;

use crate::cli::DoctorArgs;
use crate::locate::{Places, VMM};
use crate::probe::{Probe, Severity, probe};
use system::System;

/// How bad a fact is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Status {
    /// As it should be.
    Ok,
    /// Machines run, with the drawback that the text names.
    Warn,
    /// Machines do not run.
    Fail,
}

/// One fact about this host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Check {
    /// A name for programs, which stays.
    pub id: &'static str,
    /// How bad it is.
    pub status: Status,
    /// The fact, as a sentence.
    pub text: String,
    /// What to do about it; empty if nothing need be done.
    pub remedy: String,
}

impl Check {
    fn ok(id: &'static str, text: impl Into<String>) -> Self {
        Self::new(id, Status::Ok, text, "")
    }

    fn warn(id: &'static str, text: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self::new(id, Status::Warn, text, remedy)
    }

    fn fail(id: &'static str, text: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self::new(id, Status::Fail, text, remedy)
    }

    fn new(
        id: &'static str,
        status: Status,
        text: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Self {
        Self {
            id,
            status,
            text: text.into(),
            remedy: remedy.into(),
        }
    }
}

/// Prints the facts.
pub fn doctor(args: DoctorArgs) -> ExitCode {
    let places = Places::from_env();
    let vmm = places.program(VMM);
    let probe = vmm.ok().map(|vmm| probe(&vmm));
    let system = System::new("/");

    let mut checks = kvm(probe.as_ref());
    checks.extend(parts::checks(&places));
    checks.extend(kernel::checks(&system));
    checks.extend(sharing::checks(&system));

    let usable = checks.iter().all(|check| check.status != Status::Fail);
    let answer = match args.json {
        true => {
            let probe = probe.and_then(Result::ok);
            let probe = probe.map(|probe| json!({ "linux": probe.linux, "facts": probe.rest }));
            let answer = json!({ "usable": usable, "checks": checks, "probe": probe });
            format!("{answer:#}\n")
        }
        false => table(&checks, usable),
    };
    let printed = crate::print(answer.as_bytes());
    match usable {
        true => printed,
        false => 1.into(),
    }
}

fn table(checks: &[Check], usable: bool) -> String {
    let mut text = String::new();
    for check in checks {
        let mark = match check.status {
            Status::Ok => "ok  ",
            Status::Warn => "warn",
            Status::Fail => "FAIL",
        };
        text += &format!("{mark}  {}\n", check.text);
        if !check.remedy.is_empty() {
            text += &format!("      {}\n", check.remedy);
        }
    }
    text + match usable {
        true => "\nMachines can run here.\n",
        false => "\nMachines cannot run here until what is marked FAIL is put right.\n",
    }
}

/// What the VMM found out about KVM. It alone touches it.
fn kvm(probe: Option<&Result<Probe, String>>) -> Vec<Check> {
    match probe {
        // That the VMM is missing is a fact of its own.
        None => Vec::new(),
        Some(Err(error)) => vec![Check::fail(
            "kvm",
            format!("KVM could not be examined: {error}."),
            "Use a coppice-vmm of the same build as this program.",
        )],
        Some(Ok(probe)) => probe
            .findings
            .iter()
            .map(|finding| {
                let status = match finding.severity {
                    Severity::Fine => Status::Ok,
                    Severity::Warning => Status::Warn,
                    Severity::Fatal => Status::Fail,
                };
                Check::new("kvm", status, &finding.text, &finding.remedy)
            })
            .collect(),
    }
}

#[cfg(test)]
#[path = "doctor_test.rs"]
mod tests;
