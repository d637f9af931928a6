//! `coppice console`: a machine whose serial port is this terminal.
//!
//! The line is shown from the first message of the kernel on. Once the agent
//! has called, it is asked to run a shell there: as the first process of a
//! session, the shell gets the port as its controlling terminal by opening it.

use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::net::UnixStream;
use std::process::{ChildStdin, ChildStdout, ExitCode};

use coppice_agent_protocol::{
    Decoder, ExecRequest, HostHello, ToAgent, ToHost, WindowSize, write_message,
};

use crate::cli::ConsoleArgs;
use crate::config::Messages;
use crate::error::Error;
use crate::machine::Machine;
use crate::relay::stdin;
use crate::signals::{Arrived, Signals};
use crate::terminal::{RawMode, window_size};
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
    let mut machine = Machine::start(&args.machine, Messages::All, Serial::Taken)?;
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
        shell: Shell::Awaited,
    };
    let end = line.run(&mut machine, &signals);
    drop(raw);
    match end? {
        End::Machine => machine.end_of_console(),
        End::Shell | End::User => machine.stop(&signals),
    }
}

/// Why the console ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    /// The VMM closed its side.
    Machine,
    /// The shell has ended.
    Shell,
    /// The user left.
    User,
}

/// Both ends of the serial line, and the shell on it.
struct Line {
    /// To the machine, until our side has ended.
    input: Option<ChildStdin>,
    /// From the machine.
    output: ChildStdout,
    /// Our standard input has not ended.
    local: bool,
    shell: Shell,
}

/// The agent's part.
enum Shell {
    /// The agent has yet to call.
    Awaited,
    /// It was asked for a shell.
    Runs(UnixStream, Decoder<ToHost>),
    /// There is none, for a reason that was shown.
    Refused,
}

impl Line {
    fn run(&mut self, machine: &mut Machine, signals: &Signals) -> Result<End, Error> {
        let failed = || Error::host("the console failed");
        loop {
            let agent = match &self.shell {
                Shell::Awaited => Some(machine.ready().as_fd()),
                Shell::Runs(stream, _) => Some(stream.as_fd()),
                Shell::Refused => None,
            };
            let sources: [Option<BorrowedFd<'_>>; 4] = [
                Some(self.output.as_fd()),
                Some(signals.as_fd()),
                self.local.then(stdin),
                agent,
            ];
            let [output, signal, typed, agent] = wait::readable_of(sources).map_err(failed())?;
            if output && !self.show().map_err(failed())? {
                return Ok(End::Machine);
            }
            if signal && self.take_signal(signals).map_err(failed())? {
                return Ok(End::User);
            }
            if typed && !self.type_in().map_err(failed())? {
                return Ok(End::User);
            }
            if agent && !self.take_agent(machine)? {
                return Ok(End::Shell);
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

    /// Whether a signal wants an end.
    fn take_signal(&mut self, signals: &Signals) -> io::Result<bool> {
        Ok(matches!(signals.next()?, Some(Arrived::End(_))))
    }

    /// Hears the agent; false if the shell has ended.
    fn take_agent(&mut self, machine: &mut Machine) -> Result<bool, Error> {
        let heard = match &mut self.shell {
            Shell::Awaited => machine.ready().take().and_then(|hello| match hello {
                Some(_) => start_shell(machine).map(Some),
                None => Ok(None),
            }),
            Shell::Runs(stream, decoder) => match hear(stream, decoder) {
                Ok(true) => Ok(None),
                Ok(false) => return Ok(false),
                Err(error) => Err(error),
            },
            Shell::Refused => Ok(None),
        };
        match heard {
            Ok(Some(shell)) => self.shell = shell,
            Ok(None) => {}
            // The line is still of use, at least to find out why.
            Err(error) => {
                eprint!("coppice: there is no shell: {error}\r\n");
                self.shell = Shell::Refused;
            }
        }
        Ok(true)
    }
}

fn start_shell(machine: &mut Machine) -> Result<Shell, Error> {
    let mut stream = machine.connect()?;
    let WindowSize { rows, cols } = window_size();
    let line = format!(
        "exec </dev/ttyS0 >/dev/ttyS0 2>&1; stty sane rows {rows} cols {cols} 2>/dev/null; \
         exec \"${{SHELL:-/bin/sh}}\" -l"
    );
    let mut request = ExecRequest::shell(line);
    let terminal = std::env::var_os("TERM").map(|term| (b"TERM".to_vec(), term.into_vec()));
    request.env.extend(terminal);
    for message in [
        ToAgent::Hello(HostHello::default()),
        ToAgent::Exec(Box::new(request)),
    ] {
        write_message(&mut stream, &message)
            .map_err(Error::host("the agent cannot be asked for a shell"))?;
    }
    Ok(Shell::Runs(stream, Decoder::new()))
}

/// Hears the agent out; false if the shell has ended.
fn hear(stream: &mut UnixStream, decoder: &mut Decoder<ToHost>) -> Result<bool, Error> {
    let mut chunk = [0; 4096];
    let len = stream
        .read(&mut chunk)
        .map_err(Error::host("the connection to the agent failed"))?;
    decoder.push(&chunk[..len]);
    let broken = |error| Error::Protocol(format!("{error}"));
    while let Some(message) = decoder.next_message().map_err(broken)? {
        match message {
            ToHost::Exit(_) => return Ok(false),
            ToHost::Error(error) => return Err(Error::Refused(error)),
            // Why there is no shell, if the port cannot be opened.
            ToHost::Stderr(text) => eprint!("{}", String::from_utf8_lossy(&text)),
            _ => {}
        }
    }
    Ok(len > 0)
}
