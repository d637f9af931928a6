//! The command line.

mod api;
mod boot;
mod cli;
mod command;
mod config;
mod console;
mod doctor;
mod error;
mod guest;
mod help;
mod image;
mod initrd;
mod lifeline;
mod locate;
mod machine;
mod named;
mod parts;
mod probe;
mod process;
mod relay;
mod renewal;
mod report;
mod run;
mod rundir;
mod runtime;
mod signals;
mod sink;
mod snapshot;
mod tail;
mod terminal;
mod values;
mod vmm;
mod wait;

use std::process::ExitCode;

use clap::{CommandFactory, Parser};

use cli::{Cli, Command};
use error::Error;

fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(message) => {
            // Help and version are no failure.
            let code = if message.use_stderr() {
                Error::FAILURE
            } else {
                0
            };
            let _ = message.print();
            return code.into();
        }
    };
    match cli.command {
        Command::Run(args) => run::run(args),
        Command::Start(args) => named::start(args),
        Command::Exec(args) => named::exec(args),
        Command::Ls(args) => named::list(args),
        Command::Logs(args) => named::logs(args),
        Command::Stop(args) => named::stop(args),
        Command::Restore(args) => named::restore(args),
        Command::Fork(args) => named::fork(args),
        Command::Snapshot(args) => snapshot::snapshot(args),
        Command::Console(args) => console::console(args),
        Command::Doctor(args) => doctor::doctor(args),
        Command::Completions { shell } => {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut Cli::command(), "coppice", &mut script);
            print(&script)
        }
    }
}

/// Writes a whole answer to standard output. A reader that wants no more of it
/// is not worth a message.
fn print(answer: &[u8]) -> ExitCode {
    use std::io::{ErrorKind, Write};
    match std::io::stdout().write_all(answer) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) if error.kind() == ErrorKind::BrokenPipe => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("coppice: standard output cannot be written: {error}");
            Error::FAILURE.into()
        }
    }
}
