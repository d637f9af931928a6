//! Processes: who one is, beyond the reuse of its number, and its end.

use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::wait;

/// A process as it can be written down and recognised later: numbers are used
/// again, a number with a start time is not.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessId {
    /// Its number.
    pub pid: i32,
    /// Clock ticks from the host's start to its own.
    pub started: u64,
}

impl ProcessId {
    /// The process that has this number now.
    pub fn of(pid: i32) -> io::Result<Self> {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat"))?;
        // Field 22, counted behind the name, which may itself contain spaces
        // and parentheses (proc_pid_stat(5)).
        let started = stat
            .rsplit_once(')')
            .and_then(|(_, rest)| rest.split_ascii_whitespace().nth(19))
            .and_then(|field| field.parse().ok())
            .ok_or(io::ErrorKind::InvalidData)?;
        Ok(Self { pid, started })
    }

    /// Reads what `Display` wrote.
    pub fn parse(text: &str) -> Option<Self> {
        let (pid, started) = text.trim().split_once(' ')?;
        Some(Self {
            pid: pid.parse().ok().filter(|pid| *pid > 1)?,
            started: started.parse().ok()?,
        })
    }

    /// A descriptor of the process, as [`open`] has it, unless it has ended.
    pub fn open(self) -> io::Result<Option<OwnedFd>> {
        let process = match open(self.pid) {
            Ok(process) => process,
            Err(error) if error.raw_os_error() == Some(libc::ESRCH) => return Ok(None),
            Err(error) => return Err(error),
        };
        // Opened before the check: if the check then finds our process, the
        // descriptor is that process's too, and stays so.
        let same = Self::of(self.pid).is_ok_and(|now| now == self);
        // One that has ended and was not waited for still has its number.
        let runs = same && !wait::readable(process.as_fd(), Duration::ZERO)?;
        Ok(runs.then_some(process))
    }

    /// Kills the process and waits for its end, if it is still this one.
    pub fn kill(self) {
        if let Ok(Some(process)) = self.open() {
            let _ = send_signal(&process, libc::SIGKILL);
            let _ = wait::readable(process.as_fd(), Duration::from_secs(2));
        }
    }
}

impl std::fmt::Display for ProcessId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {}", self.pid, self.started)
    }
}

/// A descriptor that becomes readable when the process ends.
pub fn open(pid: i32) -> io::Result<OwnedFd> {
    // SAFETY: pidfd_open takes two integers and touches no memory of ours.
    let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the call has just returned this descriptor, so that nobody else
    // owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
}

/// Sends a signal to exactly the process of this descriptor.
pub fn send_signal(process: &OwnedFd, signal: i32) -> io::Result<()> {
    // SAFETY: pidfd_send_signal takes integers and an optional pointer, which
    // is null here.
    let result = unsafe {
        libc::syscall(
            libc::SYS_pidfd_send_signal,
            process.as_raw_fd(),
            signal,
            std::ptr::null::<libc::siginfo_t>(),
            0,
        )
    };
    match result {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn a_process_is_its_number_and_its_start() {
        let me = ProcessId::of(std::process::id() as i32).expect("I run");
        assert_eq!(ProcessId::parse(&me.to_string()), Some(me));
        for text in ["", "1 2", "0 5", "-3 5", "12", "a b"] {
            assert_eq!(ProcessId::parse(text), None, "{text}");
        }
    }

    #[test]
    fn only_the_very_process_is_killed() {
        let mut child = Command::new("sleep").arg("60").spawn().expect("started");
        let id = ProcessId::of(child.id() as i32).expect("runs");
        let successor = ProcessId {
            started: id.started + 1,
            ..id
        };
        successor.kill();
        assert_eq!(child.try_wait().expect("waited"), None);
        id.kill();
        assert!(!child.wait().expect("waited").success());
        id.kill();
    }
}
