//! The VMM's process: started, watched, ended.

use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};
use std::time::Duration;

use nix::sys::prctl::set_pdeathsig;
use nix::sys::signal::{SigSet, Signal};
use nix::unistd::{getppid, setsid};

use crate::error::{Error, LastWords};
use crate::lifeline::Lifeline;
use crate::process::{self, ProcessId};
use crate::tail::{Tail, last_lines_of};
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

/// Files for what a VMM that outlives us writes.
#[derive(Debug, Clone)]
pub struct Logs {
    /// The machine's serial console.
    pub console: PathBuf,
    /// The VMM's own lines.
    pub vmm: PathBuf,
}

/// Where the last words of one output are to be found.
#[derive(Debug)]
enum Words {
    /// Nobody keeps them.
    Nowhere,
    /// With us.
    Followed(Tail),
    /// In a file.
    Logged(PathBuf),
}

/// A running VMM. It ends with this value, and with this process at the latest,
/// unless it is [let go](Self::let_go).
#[derive(Debug)]
pub struct Vmm {
    child: Child,
    exited: OwnedFd,
    stderr: Words,
    console: Words,
    /// What ties one that may be let go.
    lifeline: Option<Lifeline>,
    /// It was let go.
    free: bool,
}

impl Vmm {
    /// Starts `program` on the configuration file `config`, to end with us.
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
        end_with_us(&mut command);
        let mut vmm = Self::spawn(command)?;
        let follow = |vmm: &mut Self| -> io::Result<()> {
            if let Some(stderr) = vmm.child.stderr.take() {
                vmm.stderr = Words::Followed(Tail::follow(stderr, false)?);
            }
            if let Serial::Kept { echo } = serial
                && let Some(stdout) = vmm.child.stdout.take()
            {
                vmm.console = Words::Followed(Tail::follow(stdout, echo)?);
            }
            Ok(())
        };
        follow(&mut vmm).map_err(Error::host("the VMM cannot be watched"))?;
        Ok(vmm)
    }

    /// Starts `program` with `args` in a session of its own, so that it can be
    /// [let go](Self::let_go).
    pub fn start_to_stay<A: AsRef<OsStr>>(
        program: &Path,
        args: impl IntoIterator<Item = A>,
        logs: Logs,
    ) -> Result<Self, Error> {
        let create = |path: &Path| {
            File::create(path).map_err(Error::host("the machine's log cannot be written"))
        };
        let program = std::path::absolute(program)
            .map_err(Error::host("the working directory cannot be found"))?;
        let mut command = Command::new(program);
        command
            .args(args)
            .current_dir("/")
            .stdin(Stdio::null())
            .stdout(create(&logs.console)?)
            .stderr(create(&logs.vmm)?);
        stand_alone(&mut command);
        let lifeline = Lifeline::tie(&mut command)
            .map_err(Error::host("the VMM's life cannot be tied to this process"))?;
        let mut vmm = Self::spawn(command)?;
        vmm.lifeline = Some(lifeline);
        vmm.console = Words::Logged(logs.console);
        vmm.stderr = Words::Logged(logs.vmm);
        Ok(vmm)
    }

    fn spawn(mut command: Command) -> Result<Self, Error> {
        let mut child = command.spawn().map_err(|source| Error::File {
            what: "program",
            path: command.get_program().into(),
            source,
        })?;
        let exited = process::open(child.id() as i32)
            .inspect_err(|_| {
                let _ = child.kill().and_then(|()| child.wait());
            })
            .map_err(Error::host("the VMM cannot be watched"))?;
        Ok(Self {
            child,
            exited,
            stderr: Words::Nowhere,
            console: Words::Nowhere,
            lifeline: None,
            free: false,
        })
    }

    /// Lets it live on after this value and this process.
    ///
    /// # Errors
    /// It was started to end with us, or the system will not have it; then it
    /// ends here.
    pub fn let_go(mut self) -> io::Result<()> {
        let lifeline = self.lifeline.take().ok_or(io::ErrorKind::Unsupported)?;
        lifeline.let_go()?;
        self.free = true;
        Ok(())
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
        let last = |words: &Words| match words {
            Words::Nowhere => Vec::new(),
            Words::Followed(tail) => tail.last_lines(ended),
            Words::Logged(file) => last_lines_of(file).unwrap_or_default(),
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
        if self.free {
            return;
        }
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
fn end_with_us(command: &mut Command) {
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

/// Gives the child a session, a signal mask and descriptors of its own: what we
/// inherited from our caller is not to be held open for as long as it lives.
fn stand_alone(command: &mut Command) {
    let in_child = || {
        SigSet::empty().thread_set_mask()?;
        setsid()?;
        // Marked and not closed: the standard library reports a failure of exec
        // through one of them.
        // SAFETY: the call takes three integers; descriptors stay open here.
        let result = unsafe {
            libc::syscall(
                libc::SYS_close_range,
                libc::STDERR_FILENO + 1,
                libc::c_uint::MAX,
                libc::CLOSE_RANGE_CLOEXEC,
            )
        };
        match result {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    };
    // SAFETY: between fork and exec only async-signal-safe things may happen;
    // these are three system calls and values on the stack.
    unsafe { command.pre_exec(in_child) };
}
