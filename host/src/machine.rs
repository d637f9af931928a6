//! A machine from its parts to its end.

use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::process::ExitStatus;
use std::time::{Duration, Instant};

use coppice_agent_protocol::AgentHello;
use nix::poll::{PollFd, PollFlags};

use crate::boot::Boot;
use crate::cli::MachineArgs;
use crate::config::ConsoleUse;
use crate::error::Error;
use crate::guest;
use crate::image::Image;
use crate::parts::{Parts, VSOCK};
use crate::rundir::RunDir;
use crate::signals::Signals;
use crate::vmm::{Serial, Vmm};
use crate::wait;

/// How long a machine that may write to its image has to write everything.
const ORDERLY: Duration = Duration::from_secs(10);

/// How long a VMM may take to end after its agent has gone, and after SIGTERM.
const SOON: Duration = Duration::from_secs(1);

/// A machine. It ends with this value, and its directory goes.
///
/// The fields go in this order: the VMM before its files.
#[derive(Debug)]
pub struct Machine {
    boot: Boot,
    dir: RunDir,
    image: Image,
}

impl Machine {
    /// Starts a machine; its guest has yet to boot.
    pub fn start(args: &MachineArgs, console: ConsoleUse, serial: Serial) -> Result<Self, Error> {
        let parts = Parts::find(args)?;
        let dir = RunDir::create()?;
        let files = parts.lay_out(dir.path(), args, console)?;
        let vmm = Vmm::start(&parts.program, &files.config, serial)?;
        // A VMM that has ended already is found out about later.
        if let Ok(id) = vmm.id() {
            dir.note_vmm(id)
                .map_err(Error::host("the VMM's process id cannot be written down"))?;
        }
        Ok(Self {
            boot: Boot {
                vmm,
                program: parts.program,
                ready: files.ready,
            },
            dir,
            image: parts.image,
        })
    }

    /// Waits until the agent has called.
    pub fn wait_ready(&mut self, signals: &Signals, limit: Duration) -> Result<AgentHello, Error> {
        self.boot.wait_ready(signals, limit)
    }

    /// A connection to the agent.
    pub fn connect(&mut self) -> Result<UnixStream, Error> {
        guest::connect(&self.dir.join(VSOCK)).map_err(|error| match self.lost() {
            gone @ Error::Gone { .. } => gone,
            _ => error,
        })
    }

    /// Why the agent's connection ended too early.
    pub fn lost(&mut self) -> Error {
        match self.exit_status(SOON) {
            Ok(Some(status)) => Error::Gone {
                status,
                said: self.boot.vmm.last_words(true),
            },
            Ok(None) => Error::AgentGone(self.boot.vmm.last_words(false)),
            Err(error) => error,
        }
    }

    /// The VMM, for who takes its serial console.
    pub fn vmm(&mut self) -> &mut Vmm {
        &mut self.boot.vmm
    }

    /// What to say of a machine that ended by itself: nothing, if it did so in
    /// order.
    pub fn end_of_console(mut self) -> Result<(), Error> {
        match self.exit_status(SOON)? {
            Some(status) if status.success() => Ok(()),
            _ => Err(self.lost()),
        }
    }

    /// Ends the machine. If its image is writable, the guest ends in order, so
    /// that what was written is there; a signal cuts that short. A machine
    /// that cannot have changed anything is simply killed.
    pub fn stop(mut self, signals: &Signals) -> Result<(), Error> {
        if !self.image.writable {
            return Ok(());
        }
        let asked = guest::shut_down(&self.dir.join(VSOCK), guest::PATIENCE);
        let failed = || Error::host("waiting for the machine's end failed");
        if asked.is_ok() {
            let mut fds = [self.boot.vmm.exited(), signals.as_fd()]
                .map(|fd| PollFd::new(fd, PollFlags::POLLIN));
            let deadline = Instant::now() + ORDERLY;
            wait::until(&mut fds, Some(deadline)).map_err(failed())?;
        }
        self.boot.vmm.stop(SOON).map_err(failed())?;
        asked
    }

    fn exit_status(&mut self, timeout: Duration) -> Result<Option<ExitStatus>, Error> {
        self.boot
            .vmm
            .wait(timeout)
            .map_err(Error::host("the VMM cannot be waited for"))
    }
}
