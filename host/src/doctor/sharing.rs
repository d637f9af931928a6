//! What lets machines of one host learn about each other, or slows them down.
//! It matters if their owners do not trust each other.

use super::Check;
use super::system::System;

/// All of them.
pub fn checks(system: &System) -> Vec<Check> {
    let mut checks = vec![smt(system), ksm(system), swap(system)];
    checks.extend(vulnerabilities(system));
    checks
}

fn smt(system: &System) -> Check {
    const ID: &str = "smt";
    match system.number("sys/devices/system/cpu/smt/active") {
        Some(1) => Check::warn(
            ID,
            "SMT is on: two machines on one core share its caches and can spy on each other.",
            "If their owners do not trust each other, boot with `nosmt`, or give each machine \
             whole cores.",
        ),
        _ => Check::ok(ID, "SMT is off."),
    }
}

fn ksm(system: &System) -> Check {
    const ID: &str = "ksm";
    match system.number("sys/kernel/mm/ksm/run") {
        Some(1) => Check::warn(
            ID,
            "KSM merges equal pages: how long a write takes tells what other machines hold.",
            "If their owners do not trust each other, `echo 2 > /sys/kernel/mm/ksm/run`.",
        ),
        _ => Check::ok(ID, "KSM is off."),
    }
}

fn swap(system: &System) -> Check {
    const ID: &str = "swap";
    // A line for each area follows the heading.
    let areas = system
        .read("proc/swaps")
        .unwrap_or_default()
        .lines()
        .skip(1)
        .count();
    match areas {
        0 => Check::ok(ID, "There is no swap."),
        _ => Check::warn(
            ID,
            "There is swap: memory of machines may be written to disk and outlive them.",
            "Encrypt it, or do without (`swapoff -a`).",
        ),
    }
}

fn vulnerabilities(system: &System) -> Option<Check> {
    const ID: &str = "cpu-vulnerabilities";
    let entries = std::fs::read_dir(system.path("sys/devices/system/cpu/vulnerabilities")).ok()?;
    let mut open: Vec<_> = entries
        .flatten()
        .filter(|entry| {
            let text = std::fs::read_to_string(entry.path()).unwrap_or_default();
            text.starts_with("Vulnerable")
        })
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .collect();
    open.sort();
    Some(match open.is_empty() {
        true => Check::ok(
            ID,
            "The kernel knows of no open weakness of this processor.",
        ),
        false => Check::warn(
            ID,
            format!(
                "The processor's weaknesses are not all covered: {}.",
                open.join(", ")
            ),
            "Update microcode and kernel, and do not boot with `mitigations=off`.",
        ),
    })
}
