//! Facts about the guest.

use std::fs;
use std::time::Duration;

use coppice_agent_protocol::Info;
use nix::time::{ClockId, clock_gettime};

use crate::env::Env;

/// Collects the facts; one that this guest does not tell is empty or 0.
pub(crate) fn collect(env: &Env) -> Info {
    let memory = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let uname = nix::sys::utsname::uname().ok();
    let text = |value: &std::ffi::OsStr| value.to_string_lossy().into_owned();
    Info {
        kernel_release: uname
            .as_ref()
            .map_or_else(String::new, |u| text(u.release())),
        os_name: os_name(&fs::read_to_string("/etc/os-release").unwrap_or_default()),
        hostname: uname
            .as_ref()
            .map_or_else(String::new, |u| text(u.nodename())),
        cpus: std::thread::available_parallelism().map_or(0, |n| n.get() as u32),
        memory_bytes: meminfo(&memory, "MemTotal"),
        memory_available_bytes: meminfo(&memory, "MemAvailable"),
        uptime_us: uptime_us(),
        wall_clock_ns: wall_clock_ns(),
        execs: env.children.len() as u32,
        agent_fds: Env::count_fds().unwrap_or(0) as u32,
        cgroups: env.cgroups.is_some(),
    }
}

/// Microseconds since the kernel started, suspensions included.
pub(crate) fn uptime_us() -> u64 {
    let time = clock_gettime(ClockId::CLOCK_BOOTTIME).map_or(Duration::ZERO, Duration::from);
    time.as_micros().try_into().unwrap_or(u64::MAX)
}

fn wall_clock_ns() -> u64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    // A clock before 1970 has not been set.
    since.map_or(0, |time| time.as_nanos().try_into().unwrap_or(u64::MAX))
}

/// A field of `/proc/meminfo` in bytes.
fn meminfo(text: &str, name: &str) -> u64 {
    text.lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))
        .and_then(|value| value.trim().strip_suffix("kB")?.trim().parse::<u64>().ok())
        .map_or(0, |kib| kib.saturating_mul(1024))
}

/// `PRETTY_NAME` of os-release(5).
fn os_name(text: &str) -> String {
    let value = text
        .lines()
        .find_map(|line| line.strip_prefix("PRETTY_NAME="))
        .unwrap_or_default()
        .trim_matches(['"', '\'']);
    value.chars().take(256).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_linux_writes() {
        let memory = "MemTotal:        2030508 kB\nMemFree: 1 kB\nMemAvailable:    99 kB\n";
        assert_eq!(meminfo(memory, "MemTotal"), 2_030_508 * 1024);
        assert_eq!(meminfo(memory, "MemAvailable"), 99 * 1024);
        assert_eq!(meminfo(memory, "Swap"), 0);
        let release = "ID=debian\nPRETTY_NAME=\"Debian GNU/Linux 12 (bookworm)\"\n";
        assert_eq!(os_name(release), "Debian GNU/Linux 12 (bookworm)");
    }
}
