//! The few system calls of the console that no crate wraps.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::time::Duration;

/// Waits up to `limit` for any of `events` (`POLLIN`, `POLLOUT`), a hang-up or
/// an error.
pub(super) fn poll(fd: BorrowedFd<'_>, events: libc::c_short, limit: Duration) -> bool {
    let mut entry = libc::pollfd {
        fd: fd.as_raw_fd(),
        events,
        revents: 0,
    };
    let limit = i32::try_from(limit.as_millis()).unwrap_or(i32::MAX);
    // SAFETY: `entry` is one valid element and lives through the call.
    unsafe { libc::poll(&mut entry, 1, limit) > 0 }
}

/// Sends on a socket without waiting and without a signal if the peer is gone.
pub(super) fn send(fd: BorrowedFd<'_>, bytes: &[u8]) -> io::Result<usize> {
    let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
    // SAFETY: the pointer and the length are those of a live slice, which the
    // call only reads.
    let sent = unsafe { libc::send(fd.as_raw_fd(), bytes.as_ptr().cast(), bytes.len(), flags) };
    usize::try_from(sent).map_err(|_| io::Error::last_os_error())
}

/// Whether `fd` is a terminal.
pub(super) fn is_terminal(fd: BorrowedFd<'_>) -> bool {
    std::io::IsTerminal::is_terminal(&fd)
}

/// Whether this process is in the background of the terminal `fd`, where
/// reading or changing it would stop the process (SIGTTIN, SIGTTOU). A terminal
/// that does not control this process has no say.
pub(super) fn is_background(fd: BorrowedFd<'_>) -> bool {
    // SAFETY: both calls take and return plain integers.
    let (foreground, own) = unsafe { (libc::tcgetpgrp(fd.as_raw_fd()), libc::getpgrp()) };
    foreground != -1 && foreground != own
}

/// The settings of the terminal `fd`.
pub(super) fn get_settings(fd: BorrowedFd<'_>) -> io::Result<libc::termios> {
    let mut settings = MaybeUninit::uninit();
    // SAFETY: the call writes one whole termios to the pointer if it succeeds,
    // and only then is it taken for initialised.
    unsafe {
        match libc::tcgetattr(fd.as_raw_fd(), settings.as_mut_ptr()) {
            0 => Ok(settings.assume_init()),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

/// Changes the settings of the terminal `fd` once its output is through.
pub(super) fn set_settings(fd: BorrowedFd<'_>, settings: &libc::termios) -> io::Result<()> {
    // SAFETY: `settings` is a whole termios that the call only reads.
    match unsafe { libc::tcsetattr(fd.as_raw_fd(), libc::TCSANOW, settings) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// `settings` with all processing of input and output turned off.
pub(super) fn raw(mut settings: libc::termios) -> libc::termios {
    // SAFETY: the call only changes the fields of the struct it is given.
    unsafe { libc::cfmakeraw(&mut settings) };
    settings
}

/// Runs `at_exit` when the process ends by `exit`.
pub(super) fn on_exit(at_exit: extern "C" fn()) {
    // SAFETY: the function is static and does not unwind. Should the table be
    // full, it is not run, and nothing else happens.
    unsafe { libc::atexit(at_exit) };
}
