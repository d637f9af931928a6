//! A machine from its parts to its end.

use std::fs;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::ExitStatus;
use std::time::{Duration, Instant};

use coppice_agent_protocol::AgentHello;
use nix::poll::{PollFd, PollFlags};

use crate::cli::MachineArgs;
use crate::config::{self, ConsoleUse, Files};
use crate::error::{Error, LastWords};
use crate::guest::{self, Ready};
use crate::image::{self, Image};
use crate::initrd;
use crate::locate::{self, AGENT, Places, VMM};
use crate::probe::probe;
use crate::rundir::RunDir;
use crate::signals::{Arrived, Signals};
use crate::vmm::{Serial, Vmm};
use crate::wait;

/// How long a machine that may write to its image has to write everything.
const ORDERLY: Duration = Duration::from_secs(10);

/// A guest that has said nothing for so long may be one that cannot run here.
const SILENCE: Duration = Duration::from_secs(5);

/// How long a VMM may take to end after its agent has gone, and after SIGTERM.
const SOON: Duration = Duration::from_secs(1);

/// A machine. It ends with this value, and its directory goes.
///
/// The fields go in this order: the VMM before its files.
#[derive(Debug)]
pub struct Machine {
    vmm: Vmm,
    program: PathBuf,
    ready: Ready,
    dir: RunDir,
    image: Image,
}

impl Machine {
    /// Starts a machine; its guest has yet to boot.
    pub fn start(args: &MachineArgs, console: ConsoleUse, serial: Serial) -> Result<Self, Error> {
        let places = Places::from_env();
        let program = places.program(VMM)?;
        let agent = places.program(AGENT)?;
        let kernel = places.kernel(args.kernel.as_deref())?;
        image::check_readable("kernel", &kernel)?;
        let base = args.initrd.as_deref();
        let base = base.map(|path| locate::file("initrd", path)).transpose()?;
        let image = Image::open(places.image(&args.image)?, args.writable)?;

        let dir = RunDir::create()?;
        let initrd = dir.join("initrd");
        initrd::write(&initrd, &agent, base.as_deref())?;
        let vsock = dir.join("vsock");
        let files = Files {
            kernel: &kernel,
            initrd: &initrd,
            image: &image,
            vsock: &vsock,
        };
        let config = config::config(args, &files, console)?;
        let config_file = dir.join("config.json");
        fs::write(&config_file, config.to_string())
            .map_err(Error::host("the machine's configuration cannot be written"))?;
        let ready = Ready::listen(&vsock).map_err(Error::host(
            "the socket for the agent's call cannot be made",
        ))?;

        let vmm = Vmm::start(&program, &config_file, serial)?;
        // A VMM that has ended already is found out about later.
        if let Ok(id) = vmm.id() {
            dir.note_vmm(id)
                .map_err(Error::host("the VMM's process id cannot be written down"))?;
        }
        Ok(Self {
            vmm,
            program,
            ready,
            dir,
            image,
        })
    }

    /// Waits until the agent has called.
    pub fn wait_ready(&mut self, signals: &Signals, limit: Duration) -> Result<AgentHello, Error> {
        let deadline = Instant::now().checked_add(limit);
        let mut look = Some(Instant::now() + SILENCE);
        loop {
            let mut fds = [self.ready.as_fd(), self.vmm.exited(), signals.as_fd()]
                .map(|fd| PollFd::new(fd, PollFlags::POLLIN));
            let next = [look, deadline].into_iter().flatten().min();
            let ready = wait::until(&mut fds, next).map_err(Error::host("waiting failed"))?;
            let [called, exited, signalled] = fds.map(|fd| wait::is_ready(&fd));
            if !ready {
                let said = self.last_words(false);
                if said.host.is_some() {
                    return Err(Error::HostUnfit(said));
                }
                // Looked once. From here on only the deadline counts.
                look = None;
                if deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                    return Err(Error::NeverReady { after: limit, said });
                }
                continue;
            }
            if called && let Some(hello) = self.ready.take()? {
                return Ok(hello);
            }
            if signalled {
                let next = signals
                    .next()
                    .map_err(Error::host("signals cannot be read"))?;
                if let Some(Arrived::End(signal)) = next {
                    return Err(Error::Signalled(signal));
                }
            }
            if exited {
                let status = self.exit_status(Duration::ZERO)?;
                return Err(match status {
                    Some(status) => Error::DidNotStart {
                        status,
                        said: self.last_words(true),
                    },
                    None => continue,
                });
            }
        }
    }

    /// A connection to the agent.
    pub fn connect(&mut self) -> Result<UnixStream, Error> {
        guest::connect(&self.dir.join("vsock")).map_err(|error| match self.lost() {
            gone @ Error::Gone { .. } => gone,
            _ => error,
        })
    }

    /// Why the agent's connection ended too early.
    pub fn lost(&mut self) -> Error {
        match self.exit_status(SOON) {
            Ok(Some(status)) => Error::Gone {
                status,
                said: self.vmm.last_words(true),
            },
            Ok(None) => Error::AgentGone(self.vmm.last_words(false)),
            Err(error) => error,
        }
    }

    /// The VMM, for who takes its serial console.
    pub fn vmm(&mut self) -> &mut Vmm {
        &mut self.vmm
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
        let asked = guest::shut_down(&self.dir.join("vsock"));
        let failed = || Error::host("waiting for the machine's end failed");
        if asked.is_ok() {
            let mut fds =
                [self.vmm.exited(), signals.as_fd()].map(|fd| PollFd::new(fd, PollFlags::POLLIN));
            let deadline = Instant::now() + ORDERLY;
            wait::until(&mut fds, Some(deadline)).map_err(failed())?;
        }
        self.vmm.stop(SOON).map_err(failed())?;
        asked
    }

    fn exit_status(&mut self, timeout: Duration) -> Result<Option<ExitStatus>, Error> {
        self.vmm
            .wait(timeout)
            .map_err(Error::host("the VMM cannot be waited for"))
    }

    /// What was last heard; if the guest never said a word, also whether this
    /// host is to blame.
    fn last_words(&self, ended: bool) -> LastWords {
        let mut said = self.vmm.last_words(ended);
        if said.console.is_empty()
            && let Ok(probe) = probe(&self.program)
        {
            said.host = probe.obstacle();
        }
        said
    }
}
