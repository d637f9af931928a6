//! What a machine is made of: found on this host, laid out in its directory.

use std::fs;
use std::path::{Path, PathBuf};

use crate::cli::MachineArgs;
use crate::config::{self, ConsoleUse, Files};
use crate::error::Error;
use crate::guest::Ready;
use crate::image::{self, Image};
use crate::initrd;
use crate::locate::{self, AGENT, Places, VMM};

/// The socket for connections to the guest, in a machine's directory.
pub const VSOCK: &str = "vsock";

/// The initial RAM disk with the agent, in a machine's directory.
pub const INITRD: &str = "initrd";

/// The files that a machine needs, all of them there.
#[derive(Debug)]
pub struct Parts {
    /// The VMM.
    pub program: PathBuf,
    /// vmlinux or bzImage.
    pub kernel: PathBuf,
    /// The root file system.
    pub image: Image,
    agent: PathBuf,
    /// An initrd of the user.
    base: Option<PathBuf>,
}

/// What has been made for one machine.
#[derive(Debug)]
pub struct LaidOut {
    /// The VMM's configuration file.
    pub config: PathBuf,
    /// Where the agent will call.
    pub ready: Ready,
}

impl Parts {
    /// Finds the files that `args` name or imply.
    pub fn find(args: &MachineArgs) -> Result<Self, Error> {
        let places = Places::from_env();
        let program = places.program(VMM)?;
        let agent = places.program(AGENT)?;
        let kernel = places.kernel(args.kernel.as_deref())?;
        image::check_readable("kernel", &kernel)?;
        let base = args.initrd.as_deref();
        let base = base.map(|path| locate::file("initrd", path)).transpose()?;
        let image = Image::open(places.image(&args.image)?, args.writable)?;
        Ok(Self {
            program,
            kernel,
            image,
            agent,
            base,
        })
    }

    /// Packs the initrd, writes the configuration, and listens for the agent.
    pub fn lay_out(
        &self,
        dir: &Path,
        args: &MachineArgs,
        console: ConsoleUse,
    ) -> Result<LaidOut, Error> {
        let initrd = dir.join(INITRD);
        initrd::write(&initrd, &self.agent, self.base.as_deref())?;
        let vsock = dir.join(VSOCK);
        let files = Files {
            kernel: &self.kernel,
            initrd: &initrd,
            image: &self.image,
            vsock: &vsock,
        };
        let contents = config::config(args, &files, console)?;
        let config = dir.join("config.json");
        fs::write(&config, contents.to_string())
            .map_err(Error::host("the machine's configuration cannot be written"))?;
        let ready = Ready::listen(&vsock).map_err(Error::host(
            "the socket for the agent's call cannot be made",
        ))?;
        Ok(LaidOut { config, ready })
    }
}
