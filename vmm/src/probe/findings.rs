//! What the probe found out, in sentences with remedies.

use std::fmt;
use std::io;
use std::path::Path;

use serde::Serialize;

use super::{Cost, HostFacts, Kvm, Linux};

/// Slower than this, supervisor mode is being emulated.
const EMULATED_BELOW: u64 = 50_000_000;

/// How bad a finding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Severity {
    /// As it should be.
    Fine,
    /// Linux guests run, with a drawback.
    Warning,
    /// Linux guests do not run.
    Fatal,
}

/// One fact and what to do about it.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// How bad it is.
    pub severity: Severity,
    /// The fact, as a sentence.
    pub text: String,
    /// What to do about it; empty if nothing need be done.
    pub remedy: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mark = match self.severity {
            Severity::Fine => "ok  ",
            Severity::Warning => "warn",
            Severity::Fatal => "FAIL",
        };
        write!(f, "{mark}  {}", self.text)?;
        if !self.remedy.is_empty() {
            write!(f, "\n      {}", self.remedy)?;
        }
        Ok(())
    }
}

pub(super) fn findings(
    device: &Path,
    kvm: &Kvm,
    linux: &Linux,
    host: &HostFacts,
    cost: Option<&Cost>,
) -> Vec<Finding> {
    let mut findings = vec![host_finding(host), kvm_finding(device, kvm, host)];
    if let Kvm::Present {
        missing_optional, ..
    } = kvm
        && !missing_optional.is_empty()
    {
        findings.push(warning(
            format!("This KVM lacks {}.", missing_optional.join(", ")),
            "Guests run without; a newer host kernel has them.",
        ));
    }
    if let Kvm::Present { .. } = kvm {
        findings.push(linux_finding(linux, cost));
    }
    if let (Linux::Usable, Some(speed)) = (
        linux,
        cost.and_then(|cost| cost.supervisor_instructions_per_second),
    ) && speed < EMULATED_BELOW
    {
        findings.push(warning(
            format!(
                "Guest kernels run at only {} million instructions a second: they are emulated.",
                speed / 1_000_000
            ),
            "Use a host whose KVM rests on VT-x or AMD-V.",
        ));
    }
    findings
}

fn host_finding(host: &HostFacts) -> Finding {
    let under = match &host.hypervisor {
        Some(name) => format!(" under the hypervisor {name:?}"),
        None => String::new(),
    };
    fine(format!(
        "This host runs Linux {} on a processor of {}{under}.",
        host.kernel, host.cpu_vendor
    ))
}

fn kvm_finding(device: &Path, kvm: &Kvm, host: &HostFacts) -> Finding {
    let device = device.display();
    match kvm {
        Kvm::Missing if host.virtualisation => fatal(
            format!("{device} is missing, though the processor can virtualise."),
            "Load KVM with `modprobe kvm_intel` or `modprobe kvm_amd`; in a container, pass the \
             device in.",
        ),
        Kvm::Missing => fatal(
            format!("{device} is missing, and the processor announces neither VT-x nor AMD-V."),
            "Turn virtualisation on in the firmware; in a virtual machine, choose a type with \
             nested virtualisation.",
        ),
        Kvm::NoPermission { errno } => fatal(
            format!(
                "{device} cannot be opened: {}.",
                io::Error::from_raw_os_error(*errno)
            ),
            "Add yourself to the group that owns it (`sudo usermod -aG kvm $USER`, then log in \
             again) or run as root.",
        ),
        Kvm::NotKvm { why } => fatal(
            format!("{device} is not a KVM that can be used: {why}."),
            "Remove whatever stands in its place and load the kernel's KVM module.",
        ),
        Kvm::Present { max_vcpus, .. } => fine(format!(
            "{device} is KVM, with up to {max_vcpus} vCPUs a machine."
        )),
    }
}

fn linux_finding(linux: &Linux, cost: Option<&Cost>) -> Finding {
    match linux {
        Linux::Usable => fine(match cost {
            Some(cost) => format!(
                "It runs Linux guests; a test machine was made in {}.{} ms.",
                cost.create_us / 1000,
                cost.create_us / 100 % 10
            ),
            None => "It runs Linux guests.".into(),
        }),
        Linux::Unusable {
            instruction: Some(instruction),
            why,
        } => fatal(
            format!("It cannot run Linux guests: a test guest failed at {instruction}: {why}."),
            "This is so where KVM works without VT-x and AMD-V (PVM). Use a host with hardware or \
             nested virtualisation; for tests, `./dev host --software` runs guests under \
             emulation.",
        ),
        Linux::Unusable {
            instruction: None,
            why,
        } => fatal(
            format!("It cannot run Linux guests: {why}."),
            "Use a host with a newer kernel and hardware or nested virtualisation, and end other \
             hypervisors that hold the processor's virtualisation.",
        ),
    }
}

fn fine(text: String) -> Finding {
    Finding {
        severity: Severity::Fine,
        text,
        remedy: String::new(),
    }
}

fn warning(text: String, remedy: &str) -> Finding {
    Finding {
        severity: Severity::Warning,
        text,
        remedy: remedy.into(),
    }
}

fn fatal(text: String, remedy: &str) -> Finding {
    Finding {
        severity: Severity::Fatal,
        text,
        remedy: remedy.into(),
    }
}
