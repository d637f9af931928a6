//! A shell on the machine's console, for someone who watches it boot.

use std::fs;
use std::io;
use std::os::fd::OwnedFd;

use coppice_agent_protocol::{ExecRequest, Stdio, WindowSize};
use nix::fcntl::{OFlag, open};
use nix::sys::stat::Mode;
use nix::unistd::Pid;

use crate::spawn::{Plan, spawn_on};
use crate::user::Accounts;

/// Starts root's shell on the console, as a login does.
pub(crate) fn start_shell() -> Result<Pid, String> {
    let accounts = Accounts::load();
    let account = accounts.resolve(b"root").map_err(|e| e.to_string())?;
    let mut request = ExecRequest::argv([account.shell, b"-l".to_vec()]);
    // The size is what the serial port says: none.
    request.stdio = Stdio::Tty(WindowSize { rows: 0, cols: 0 });
    let plan = Plan::new(&request, &accounts).map_err(|e| e.to_string())?;
    let terminal = open_terminal().map_err(|e| format!("the console cannot be opened: {e}"))?;
    spawn_on(&plan, terminal).map_err(|e| e.to_string())
}

/// The terminal behind `/dev/console`, which itself cannot control a session.
fn open_terminal() -> io::Result<OwnedFd> {
    let active = fs::read_to_string("/sys/class/tty/console/active")?;
    // The last one is the one that /dev/console stands for.
    let name = active
        .split_whitespace()
        .last()
        .ok_or(io::ErrorKind::NotFound)?;
    let path = format!("/dev/{name}");
    let flags = OFlag::O_RDWR | OFlag::O_NOCTTY | OFlag::O_CLOEXEC;
    Ok(open(path.as_str(), flags, Mode::empty())?)
}
