//! Lets a process outlive this one, but only once it is told so.
//!
//! The lifeline is a pipe to which nothing is ever written. The kernel is asked
//! to kill the child when the pipe's last writer is gone (O_ASYNC, F_SETOWN and
//! F_SETSIG in fcntl(2)), and the only writer is this process: however it ends,
//! the child ends, too. What a process was asked to be killed for with
//! PR_SET_PDEATHSIG only that process could take back; this belongs to the open
//! pipe, of which we have a descriptor as well, so that we can.

use std::io::{self, PipeReader, PipeWriter};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::process::CommandExt;
use std::process::Command;

use nix::fcntl::{FcntlArg, FdFlag, OFlag, fcntl};
use nix::unistd::{getpid, getppid};

/// Which signal tells of an event, from Linux' asm-generic/fcntl.h.
const F_SETSIG: libc::c_int = 10;

/// Ties a child's life to this process until it is let go.
#[derive(Debug)]
pub struct Lifeline {
    reader: PipeReader,
    _writer: PipeWriter,
}

impl Lifeline {
    /// Ties what `command` will start. The child keeps one descriptor for it.
    pub fn tie(command: &mut Command) -> io::Result<Self> {
        let (reader, writer) = io::pipe()?;
        let parent = getpid();
        let fd = reader.as_raw_fd();
        let in_child = move || {
            // SAFETY: the number is that of `reader`, which the parent has open
            // while it starts the child.
            ask_for_death(unsafe { BorrowedFd::borrow_raw(fd) })?;
            // We may have been orphaned before the request was made.
            match getppid() == parent {
                true => Ok(()),
                false => Err(io::ErrorKind::BrokenPipe.into()),
            }
        };
        // SAFETY: between fork and exec only async-signal-safe things may
        // happen; these are system calls and values on the stack.
        unsafe { command.pre_exec(in_child) };
        Ok(Self {
            reader,
            _writer: writer,
        })
    }

    /// Lets the child live on.
    pub fn let_go(self) -> io::Result<()> {
        fcntl(self.reader.as_fd(), FcntlArg::F_SETFL(OFlag::empty()))?;
        Ok(())
    }
}

/// Has the calling process killed when the pipe behind `reader` loses its last
/// writer. The pipe stays open beyond exec, or the request would end with it.
fn ask_for_death(reader: BorrowedFd<'_>) -> io::Result<()> {
    let fd = reader.as_raw_fd();
    // SAFETY: both requests take an integer and touch no memory of ours.
    let asked = unsafe {
        libc::fcntl(fd, libc::F_SETOWN, getpid().as_raw()) == 0
            && libc::fcntl(fd, F_SETSIG, libc::SIGKILL) == 0
    };
    if !asked {
        return Err(io::Error::last_os_error());
    }
    fcntl(reader, FcntlArg::F_SETFL(OFlag::O_ASYNC))?;
    fcntl(reader, FcntlArg::F_SETFD(FdFlag::empty()))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::process::ExitStatusExt;

    fn sleeper(seconds: &str) -> (std::process::Child, Lifeline) {
        let mut command = Command::new("sleep");
        command.arg(seconds);
        let line = Lifeline::tie(&mut command).expect("tied");
        (command.spawn().expect("started"), line)
    }

    #[test]
    fn a_child_dies_with_its_lifeline() {
        let (mut child, line) = sleeper("60");
        // What the end of this process would do.
        drop(line);
        let status = child.wait().expect("waited");
        assert_eq!(status.signal(), Some(libc::SIGKILL));
    }

    #[test]
    fn a_child_that_was_let_go_lives_on() {
        let (mut child, line) = sleeper("0.3");
        line.let_go().expect("let go");
        assert!(child.wait().expect("waited").success());
    }
}
