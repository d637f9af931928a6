//! `coppice console`: a machine whose serial port is this terminal.

use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::process::{ChildStdin, ChildStdout, ExitCode};
use std::time::Duration;

use nix::poll::{PollFd, PollFlags};

use crate::cli::ConsoleArgs;
use crate::config::ConsoleUse;
use crate::error::Error;
use crate::machine::Machine;
use crate::relay::stdin;
use crate::signals::{Arrived, Signals};
use crate::terminal::RawMode;
use crate::vmm::Serial;
use crate::wait;

/// Ctrl-], which telnet and virsh use for the same.
const ESCAPE: u8 = 0x1d;

/// Runs until the machine ends or the user leaves.
pub fn console(args: ConsoleArgs) -> ExitCode {
    match attempt(&args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("coppice: {error}");
            error.exit_code().into()
        }
    }
}

fn attempt(args: &ConsoleArgs) -> Result<(), Error> {
    let signals = Signals::catch().map_err(Error::host("signals cannot be caught"))?;
    let mut machine = Machine::start(&args.machine, ConsoleUse::Shell, Serial::Taken)?;
    let Some((input, output)) = machine.vmm().take_serial() else {
        unreachable!("the serial console was asked for and is taken once");
    };
    let raw = RawMode::enter().map_err(Error::host("the terminal cannot be set"))?;
    if raw.is_some() {
        eprint!("coppice: type Ctrl-] to leave\r\n");
    }
    let mut line = Line {
        input: Some(input),
        output,
        local: true,
    };
    let ended = line.run(&mut machine, &signals);
    drop(raw);
    ended.map_err(Error::host("the console failed"))?;
    if let Some(status) = machine.vmm().wait(Duration::ZERO).ok().flatten()
        && !status.success()
    {
        return Err(machine.lost());
    }
    machine.stop(&signals)
}

/// Both ends of the serial line.
struct Line {
    /// To the machine, until our side has ended.
    input: Option<ChildStdin>,
    /// From the machine.
    output: ChildStdout,
    /// Our standard input has not ended.
    local: bool,
}

impl Line {
    fn run(&mut self, machine: &mut Machine, signals: &Signals) -> io::Result<()> {
        loop {
            let from_local = self.local.then(stdin);
            let mut fds = vec![self.output.as_fd(), signals.as_fd()];
            fds.extend(from_local);
            let mut fds: Vec<_> = fds
                .into_iter()
                .map(|fd| PollFd::new(fd, PollFlags::POLLIN))
                .collect();
            wait::until(&mut fds, None)?;
            let ready: Vec<_> = fds.iter().map(wait::is_ready).collect();
            if ready[0] && !self.show()? {
                machine.vmm().wait(Duration::from_secs(1))?;
                return Ok(());
            }
            if ready[1] && matches!(signals.next()?, Some(Arrived::End(_))) {
                return Ok(());
            }
            if ready.get(2) == Some(&true) && !self.type_in()? {
                return Ok(());
            }
        }
    }

    /// Shows what the machine wrote; false at its end.
    fn show(&mut self) -> io::Result<bool> {
        let mut chunk = [0; 4096];
        let len = self.output.read(&mut chunk)?;
        let mut stdout = io::stdout();
        stdout.write_all(&chunk[..len])?;
        stdout.flush()?;
        Ok(len > 0)
    }

    /// Passes on what was typed; false if it was the way out.
    fn type_in(&mut self) -> io::Result<bool> {
        let mut chunk = [0; 4096];
        let len = nix::unistd::read(stdin(), &mut chunk)?;
        if len == 0 {
            self.local = false;
            self.input = None;
            return Ok(true);
        }
        let typed = &chunk[..len];
        let leave = typed.iter().position(|byte| *byte == ESCAPE);
        if let Some(input) = &mut self.input {
            input.write_all(&typed[..leave.unwrap_or(len)])?;
        }
        Ok(leave.is_none())
    }
}
