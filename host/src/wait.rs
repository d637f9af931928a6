//! Waiting for descriptors, up to a point in time.

use std::io;
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

/// Waits until one of `fds` is ready; false if `deadline` came first.
pub fn until(fds: &mut [PollFd<'_>], deadline: Option<Instant>) -> io::Result<bool> {
    loop {
        match poll(fds, timeout(deadline)) {
            // Nobody waits for ten days in one call; look at the clock again.
            Ok(0) if deadline.is_none_or(|deadline| Instant::now() < deadline) => {}
            Ok(ready) => return Ok(ready > 0),
            Err(Errno::EINTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
}

/// Waits until `fd` is readable or at its end; false if that took too long.
pub fn readable(fd: BorrowedFd<'_>, timeout: Duration) -> io::Result<bool> {
    let mut fds = [PollFd::new(fd, PollFlags::POLLIN)];
    until(&mut fds, Instant::now().checked_add(timeout))
}

/// Waits until one of `sources` is readable; says which are.
pub fn readable_of<const N: usize>(sources: [Option<BorrowedFd<'_>>; N]) -> io::Result<[bool; N]> {
    let mut fds: Vec<_> = sources
        .iter()
        .flatten()
        .map(|fd| PollFd::new(*fd, PollFlags::POLLIN))
        .collect();
    until(&mut fds, None)?;
    let mut polled = fds.iter();
    Ok(sources.map(|source| {
        let polled = source.and_then(|_| polled.next());
        polled.is_some_and(is_ready)
    }))
}

/// Whether a descriptor that was waited for is ready, at its end, or broken:
/// in each case the next call on it returns at once and tells which.
pub fn is_ready(fd: &PollFd<'_>) -> bool {
    fd.any().unwrap_or(true)
}

/// The time left, rounded up, so that waiting does not end early and spin.
fn timeout(deadline: Option<Instant>) -> PollTimeout {
    let Some(deadline) = deadline else {
        return PollTimeout::NONE;
    };
    let left = deadline.saturating_duration_since(Instant::now());
    let millis = left.as_nanos().div_ceil(1_000_000);
    PollTimeout::try_from(millis).unwrap_or(PollTimeout::MAX)
}
