//! A child process that holds a frozen copy of this process's memory.
//!
//! The child of a process with several threads may only make async-signal-safe
//! calls (signal-safety(7)): another thread may have held any lock at the time
//! of the fork, the allocator's included, and in the child nobody lets it go.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

/// A child that has not been waited for. Dropping it kills and reaps it.
#[derive(Debug)]
pub struct Child(libc::pid_t);

/// Ends a child that somebody else waits for.
#[derive(Debug)]
pub struct Killer(OwnedFd);

impl Killer {
    /// Kills the child, if it has not ended.
    pub fn kill(&self) {
        let (fd, signal) = (self.0.as_raw_fd(), libc::SIGKILL);
        let nothing = std::ptr::null::<libc::siginfo_t>();
        // SAFETY: the descriptor is open, and the null pointer stands for what
        // kill(2) would send. A process that has ended makes the call fail.
        unsafe { libc::syscall(libc::SYS_pidfd_send_signal, fd, signal, nothing, 0) };
    }
}

/// How a child ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// By itself, with this code.
    Exit(i32),
    /// By this signal.
    Signal(i32),
}

impl Child {
    /// Forks, and has the child call `body` and end with the code that it
    /// returns. The child keeps only the descriptors in `keep`, and the kernel
    /// kills it when the calling thread ends.
    ///
    /// # Errors
    /// The host refuses another process.
    ///
    /// # Safety
    /// `body` must only make async-signal-safe calls: it must not allocate,
    /// take locks, or panic.
    pub unsafe fn spawn(keep: [RawFd; 2], body: impl FnOnce() -> i32) -> io::Result<Self> {
        // SAFETY: getpid and fork take no pointers. The child goes on in
        // `in_child`, which the caller vouches for.
        let (parent, pid) = unsafe { (libc::getpid(), libc::fork()) };
        match pid {
            -1 => Err(io::Error::last_os_error()),
            0 => in_child(parent, keep, body),
            pid => Ok(Self(pid)),
        }
    }

    /// Its process id.
    pub fn pid(&self) -> i32 {
        self.0
    }

    /// What can end it from another thread.
    ///
    /// # Errors
    /// The host has no descriptor left.
    pub fn killer(&self) -> io::Result<Killer> {
        // SAFETY: the call takes integers. The child has not been reaped, so its
        // id names it.
        let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, self.0, 0) };
        match i32::try_from(fd) {
            // SAFETY: the descriptor was just made and is owned by nobody else.
            Ok(fd) if fd >= 0 => Ok(Killer(unsafe { OwnedFd::from_raw_fd(fd) })),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// Waits until it has ended.
    ///
    /// # Errors
    /// Somebody else has reaped it, so that nobody knows how it ended.
    pub fn wait(self) -> io::Result<End> {
        let end = self.reap();
        // There is nothing left to kill.
        std::mem::forget(self);
        end
    }

    fn reap(&self) -> io::Result<End> {
        let mut status = 0;
        loop {
            // SAFETY: the status is a valid place for an int.
            if unsafe { libc::waitpid(self.0, &raw mut status, 0) } == self.0 {
                break;
            }
            match io::Error::last_os_error() {
                error if error.kind() == io::ErrorKind::Interrupted => {}
                error => return Err(error),
            }
        }
        Ok(match libc::WIFSIGNALED(status) {
            true => End::Signal(libc::WTERMSIG(status)),
            false => End::Exit(libc::WEXITSTATUS(status)),
        })
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        // SAFETY: the process is a child that has not been reaped, so its id
        // names it and nobody else.
        unsafe { libc::kill(self.0, libc::SIGKILL) };
        let _ = self.reap();
    }
}

/// What the child does. Async-signal-safe as far as `body` is.
fn in_child(parent: libc::pid_t, keep: [RawFd; 2], body: impl FnOnce() -> i32) -> ! {
    // SAFETY: prctl, getppid and close_range take integers. The closed
    // descriptors are the child's own copies, and nothing in the child uses
    // them again: it ends below without running destructors.
    unsafe {
        libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
        // The parent may have ended before it could be named.
        if libc::getppid() != parent {
            libc::_exit(1);
        }
        let (low, high) = (keep[0].min(keep[1]), keep[0].max(keep[1]));
        close_between(3, low);
        close_between(low.saturating_add(1), high);
        close_between(high.saturating_add(1), RawFd::MAX);
    }
    let code = body();
    // SAFETY: ends this process at once; its memory is a copy.
    unsafe { libc::_exit(code) }
}

/// Closes the descriptors from `from` up to but not including `to`. They only
/// cost something if they stay open: sockets and the KVM descriptors would
/// outlive the parent for as long as the child does.
///
/// # Safety
/// Nothing may use them again.
unsafe fn close_between(from: RawFd, to: RawFd) {
    if from < to {
        // SAFETY: the call takes integers; the caller gives the descriptors up.
        unsafe { libc::syscall(libc::SYS_close_range, from, to - 1, 0) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;

    #[test]
    fn a_child_has_only_the_descriptors_that_it_is_given() {
        let kept = tempfile::tempfile().unwrap();
        let closed: Vec<File> = (0..8).map(|_| tempfile::tempfile().unwrap()).collect();
        let (kept_fd, other) = (kept.as_raw_fd(), closed[5].as_raw_fd());
        // SAFETY: fcntl is async-signal-safe, and nothing else is called.
        let child = unsafe {
            Child::spawn([kept_fd, closed[2].as_raw_fd()], || {
                let open = |fd| libc::fcntl(fd, libc::F_GETFD) >= 0;
                i32::from(open(kept_fd)) | i32::from(open(other)) << 1
            })
        };
        assert_eq!(child.unwrap().wait().unwrap(), End::Exit(1));
    }

    #[test]
    fn a_killed_child_is_told_from_one_that_failed() {
        // SAFETY: pause is async-signal-safe.
        let child = unsafe { Child::spawn([0, 1], || libc::pause()) }.unwrap();
        child.killer().unwrap().kill();
        assert_eq!(child.wait().unwrap(), End::Signal(libc::SIGKILL));
    }
}
