//! The end of a machine: every process ends, every write reaches its disk.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sys::reboot::{RebootMode, reboot};
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;

/// From SIGTERM to SIGKILL.
const TERM_TIME: Duration = Duration::from_secs(2);

/// For killed processes to be gone; one in the kernel's hands may not go.
const KILL_TIME: Duration = Duration::from_secs(1);

/// Between two looks.
const LOOK_EVERY: Duration = Duration::from_millis(2);

/// Takes the machine down.
pub(crate) fn down(mode: RebootMode) -> ! {
    for (signal, patience) in [(Signal::SIGTERM, TERM_TIME), (Signal::SIGKILL, KILL_TIME)] {
        // All but this process; a stopped one sees the signal when it goes on.
        let everyone = Pid::from_raw(-1);
        if kill(everyone, signal).is_err() {
            break;
        }
        let _ = kill(everyone, Signal::SIGCONT);
        if all_gone(patience) {
            break;
        }
    }
    nix::unistd::sync();
    release_file_systems();
    nix::unistd::sync();
    let Err(errno) = reboot(supported(mode));
    // Not without the privilege: a container's process 1. It may just end.
    eprintln!("coppice-agent: the machine cannot be switched off: {errno}");
    std::process::exit(1)
}

/// Without ACPI a machine cannot switch itself off, and asking for it only
/// halts the processors. A reset ends a microVM as well.
fn supported(mode: RebootMode) -> RebootMode {
    match mode {
        RebootMode::RB_POWER_OFF if !Path::new("/sys/firmware/acpi/tables/FACP").exists() => {
            RebootMode::RB_AUTOBOOT
        }
        mode => mode,
    }
}

/// Reaps until there is no child: as every orphan is adopted by this process,
/// there then is no process.
fn all_gone(patience: Duration) -> bool {
    let until = Instant::now() + patience;
    loop {
        match waitpid(None, Some(WaitPidFlag::WNOHANG)) {
            Ok(WaitStatus::StillAlive) if Instant::now() >= until => return false,
            Ok(WaitStatus::StillAlive) => std::thread::sleep(LOOK_EVERY),
            Err(nix::Error::ECHILD) => return true,
            _ => {}
        }
    }
}

/// Unmounts what can be unmounted and makes the rest read-only, newest first.
fn release_file_systems() {
    let table = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    for line in table.lines().rev() {
        let mut fields = line.split(' ');
        let (Some(device), Some(at)) = (fields.next(), fields.next()) else {
            continue;
        };
        // Only what is on a device can lose something.
        if !device.starts_with('/') {
            continue;
        }
        let at = unescape(at);
        if at != "/" && umount2(at.as_str(), MntFlags::empty()).is_ok() {
            continue;
        }
        let none = None::<&str>;
        let flags = MsFlags::MS_REMOUNT | MsFlags::MS_RDONLY;
        if let Err(errno) = mount(none, at.as_str(), none, flags, none) {
            eprintln!("coppice-agent: {at} is not made read-only: {errno}");
        }
    }
}

/// Undoes the octal escapes of proc_pid_mounts(5).
fn unescape(field: &str) -> String {
    [
        ("\\040", " "),
        ("\\011", "\t"),
        ("\\012", "\n"),
        ("\\134", "\\"),
    ]
    .iter()
    .fold(field.to_owned(), |text, (code, plain)| {
        text.replace(code, plain)
    })
}
