//! Process 1: makes the machine one in which programs can live.
//!
//! The agent comes in one of two ways. As `/init` of an initial ramdisk, with
//! `coppice.root=` on the kernel's command line, it finds the root file system
//! and moves into it; that brings the agent to any image. As the init of an
//! image it is in place already. Both then go on alike.

use std::fs;
use std::io;
use std::path::Path;

use coppice_agent_protocol::{AGENT_PORT, AgentHello, BootTimes, PROTOCOL_VERSION};
use nix::sys::reboot::{RebootMode, set_cad_enabled};

use crate::info;
use crate::listen::Address;
use crate::server::{End, Server};
use crate::signals::Signals;
use crate::sys;

mod console;
mod modules;
mod mounts;
mod params;
mod power;
mod root;

use modules::Modules;
use mounts::Kernel;
use params::Params;

/// What kept the machine from coming up.
#[derive(Debug, thiserror::Error)]
pub(crate) enum InitError {
    /// The kernel's command line asks for something impossible.
    #[error("the kernel command line: {0}")]
    Params(String),
    /// A file system cannot be mounted.
    #[error("{what} cannot be mounted at {at}: {why}")]
    Mount {
        /// What was to be mounted.
        what: String,
        /// Where.
        at: String,
        /// The kernel's answer, or ours.
        why: String,
    },
    /// The root device did not appear.
    #[error("root device {device} did not appear within {seconds} s; the kernel has: {present}")]
    NoDevice {
        /// As named on the command line.
        device: String,
        /// How long it was waited for.
        seconds: u64,
        /// The block devices that exist.
        present: String,
    },
    /// Anything else.
    #[error("{what}: {source}")]
    Io {
        /// What was attempted.
        what: String,
        /// The kernel's answer.
        source: io::Error,
    },
}

impl InitError {
    fn io(what: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let what = what.into();
        move |source| Self::Io { what, source }
    }
}

/// Runs the machine to its end. Does not return: process 1 must not.
pub(crate) fn run(started_us: u64) -> ! {
    let action = match live(started_us) {
        Ok(action) => action,
        Err(error) => {
            // On the console, because there is no other way to tell.
            eprintln!("coppice-agent: this machine cannot start: {error}");
            eprintln!("coppice-agent: powering off");
            RebootMode::RB_POWER_OFF
        }
    };
    power::down(action)
}

fn live(started_us: u64) -> Result<RebootMode, InitError> {
    // Ctrl-Alt-Del shall be a signal to this process, not a reset.
    let _ = set_cad_enabled(false);
    let signals = Signals::take().map_err(InitError::io("signals cannot be taken over"))?;
    let kernel = Kernel::mount()?;
    spare_from_oom();
    let text = fs::read_to_string("/proc/cmdline")
        .map_err(InitError::io("/proc/cmdline cannot be read"))?;
    let params = Params::parse(&text).map_err(InitError::Params)?;
    let modules = Modules::find();
    modules.load_devices();
    let mut root_us = 0;
    if params.root.is_some() {
        root::enter(&params, &kernel, &modules)?;
        root_us = info::uptime_us();
    }
    mounts::populate();
    if let Err(error) = sys::bring_up("lo") {
        eprintln!("coppice-agent: the loopback interface stays down: {error}");
    }
    set_hostname(params.hostname.as_deref());
    sys::raise_open_files();

    let hello = AgentHello {
        protocol: PROTOCOL_VERSION,
        agent_version: env!("CARGO_PKG_VERSION").into(),
        init: true,
        boot: BootTimes {
            started_us,
            root_us,
            ready_us: 0,
        },
    };
    let address = Address::Vsock(AGENT_PORT);
    let mut server = Server::listen(&address, Path::new("/"), signals, hello).map_err(InitError::io(format!(
        "the agent cannot listen on {address}; does the machine have a vsock device and the kernel its driver?"
    )))?;
    eprintln!("coppice-agent: listening on {address}");
    if params.console_shell {
        match console::start_shell() {
            Ok(pid) => server.end_with(pid),
            Err(error) => eprintln!("coppice-agent: no shell on the console: {error}"),
        }
    }
    let end = server
        .run()
        .map_err(InitError::io("the event loop failed"))?;
    Ok(match end {
        End::Power(coppice_agent_protocol::PowerAction::Reboot) => RebootMode::RB_AUTOBOOT,
        End::Power(coppice_agent_protocol::PowerAction::PowerOff) | End::Stopped => {
            RebootMode::RB_POWER_OFF
        }
    })
}

/// The agent is the last to be killed for want of memory: a machine that does
/// not answer is worth less than one that lost a command. Its own memory is
/// bounded. Children set their own score back.
pub(crate) fn spare_from_oom() {
    // A service without the privilege does without.
    let _ = fs::write("/proc/self/oom_score_adj", "-1000");
}

fn set_hostname(asked: Option<&str>) {
    let file = fs::read_to_string("/etc/hostname").unwrap_or_default();
    let from_file = file.lines().map(str::trim).find(|line| !line.is_empty());
    let name = asked.or(from_file).unwrap_or("coppice");
    if let Err(error) = nix::unistd::sethostname(name) {
        eprintln!("coppice-agent: the host name `{name}` is refused: {error}");
    }
}

/// Makes sure that the standard streams are open, so that no descriptor of the
/// agent's ever gets one of their numbers. The kernel starts process 1 without
/// them if it has no console.
pub(crate) fn open_standard_streams(init: bool) {
    if init && !Path::new("/dev/null").exists() {
        let _ = mounts::device_nodes();
    }
    while sys::lowest_free_fd_is_standard() {
        if !(sys::open_and_keep(c"/dev/console") || sys::open_and_keep(c"/dev/null")) {
            return;
        }
    }
}
