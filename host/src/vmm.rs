//! The VMM's process: started, watched, ended.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};
use std::time::Duration;

use nix::sys::prctl::set_pdeathsig;
use nix::sys::signal::{SigSet, Signal};
use nix::unistd::getppid;

use crate::error::{Error, LastWords};
use crate::process::{self, ProcessId};
use crate::tail::Tail;
use crate::wait;

/// What becomes of the machine's serial console.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Serial {
    /// Its end is kept for errors; `echo` shows it on standard error as well.
    Kept {
        /// Show it as it comes.
        echo: bool,
    },
    /// The caller takes both directions.
    Taken,
}

/// A running VMM. It ends with this value, and with this process at the latest.
#[derive(Debug)]
pub struct Vmm {
    child: Child,
    exited: OwnedFd,
    stderr: Option<Tail>,
    console: Option<Tail>,
}

impl Vmm {
    /// Starts `program` on the configuration file `config`.
    pub fn start(program: &Path, config: &Path, serial: Serial) -> Result<Self, Error> {
        let mut command = Command::new(program);
        command.arg("--no-api").arg("--config-file").arg(config);
        // A group of its own: Ctrl-C is ours to pass on.
        command
            .process_group(0)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command.stdin(match serial {
            Serial::Kept { .. } => Stdio::null(),
            Serial::Taken => Stdio::piped(),
        });
        prepare(&mut command);
        let child = command.spawn().map_err(|source| Error::File {
            what: "program",
            path: program.to_path_buf(),
            source,
        })?;
        Self::watch(child, serial).map_err(Error::host("the VMM cannot be watched"))
    }

    fn watch(mut child: Child, serial: Serial) -> io::Result<Self> {
        let exited = process::open(child.id() as i32).inspect_err(|_| {
            let _ = child.kill().and_then(|()| child.wait());
        })?;
        let mut vmm = Self {
            child,
            exited,
            stderr: None,
            console: None,
        };
        if let Some(stderr) = vmm.child.stderr.take() {
            vmm.stderr = Some(Tail::follow(stderr, false)?);
        }
        if let Serial::Kept { echo } = serial
            && let Some(stdout) = vmm.child.stdout.take()
        {
            vmm.console = Some(Tail::follow(stdout, echo)?);
        }
        Ok(vmm)
    }

    /// Both directions of the serial console, if it is [`Serial::Taken`]; once.
    pub fn take_serial(&mut self) -> Option<(ChildStdin, ChildStdout)> {
        self.child.stdin.take().zip(self.child.stdout.take())
    }

    /// Who it is.
    pub fn id(&self) -> io::Result<ProcessId> {
        ProcessId::of(self.child.id() as i32)
    }

    /// Readable once it has ended.
    pub fn exited(&self) -> BorrowedFd<'_> {
        self.exited.as_fd()
    }

    /// How it ended, if it does within `timeout`.
    pub fn wait(&mut self, timeout: Duration) -> io::Result<Option<ExitStatus>> {
        match wait::readable(self.exited(), timeout)? {
            true => self.child.wait().map(Some),
            false => Ok(None),
        }
    }

    /// Ends it in the orderly way, or by force if that takes too long.
    pub fn stop(&mut self, patience: Duration) -> io::Result<()> {
        let _ = process::send_signal(&self.exited, libc::SIGTERM);
        self.wait(patience).map(drop)
    }

    /// The last that it and its guest said.
    pub fn last_words(&self, ended: bool) -> LastWords {
        let last = |tail: &Option<Tail>| {
            let lines = tail.as_ref().map(|tail| tail.last_lines(ended));
            lines.unwrap_or_default()
        };
        LastWords {
            vmm: last(&self.stderr),
            console: last(&self.console),
            host: None,
        }
    }
}

impl Drop for Vmm {
    fn drop(&mut self) {
        // Both fail only if it has ended and was waited for.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Lets the kernel kill the child when this process ends for whatever reason,
/// and gives it a clean signal mask: ours would be inherited.
///
/// Note: "this process" is in truth the thread that starts the child. The main
/// thread does, and ends last.
fn prepare(command: &mut Command) {
    let parent = nix::unistd::getpid();
    let in_child = move || {
        SigSet::empty().thread_set_mask()?;
        set_pdeathsig(Signal::SIGKILL)?;
        // We may have been killed before the request was made.
        match getppid() == parent {
            true => Ok(()),
            false => Err(io::ErrorKind::BrokenPipe.into()),
        }
    };
    // SAFETY: between fork and exec only async-signal-safe things may happen;
    // these are three system calls and values on the stack.
    unsafe { command.pre_exec(in_child) };
}
