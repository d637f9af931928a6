//! `coppice console`: a machine whose serial port is this terminal.
//!
//! The line is shown from the kernel's first message on. In the end the agent
//! runs a shell there, and switches the machine off when the shell ends.

use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::process::{ChildStdin, ChildStdout, ExitCode};

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
    let end = line.run(&signals);
    drop(raw);
    match end.map_err(Error::host("the console failed"))? {
        End::Machine => machine.end_of_console(),
        End::User => machine.stop(&signals),
    }
}

/// Why the console ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    /// The VMM closed its side.
    Machine,
    /// The user left.
    User,
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
    fn run(&mut self, signals: &Signals) -> io::Result<End> {
        loop {
            let [output, signal, typed] = wait::readable_of([
                Some(self.output.as_fd()),
                Some(signals.as_fd()),
                self.local.then(stdin),
            ])?;
            if output && !self.show()? {
                return Ok(End::Machine);
            }
            if signal && matches!(signals.next()?, Some(Arrived::End(_))) {
                return Ok(End::User);
            }
            if typed && !self.type_in()? {
                return Ok(End::User);
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
