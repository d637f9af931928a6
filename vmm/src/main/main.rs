//! The microVM process: arguments, the event loop, the end.

mod args;
mod exit;
mod signals;

use std::path::Path;
use std::process::ExitCode;

use coppice_vmm::api::{Answer, ControlError, Server, StartError, Wake, file};
use coppice_vmm::logger::Logger;
use coppice_vmm::machine::{Events, Machine, MachineError, Outcome, RestoreError};
use coppice_vmm::probe::probe;
use coppice_vmm::spec::{self, SnapshotLoad};
use coppice_vmm::sys::{host, leave};
use event_manager::SubscriberOps;

use args::{Command, RunArgs};
use exit::Exit;
use signals::Signals;

type Controller = coppice_vmm::api::Controller<Machine>;

/// A configuration file larger than this is some other file.
const MAX_CONFIG_FILE: u64 = 1 << 20;

fn main() -> ExitCode {
    let command = match args::parse(std::env::args_os().skip(1)) {
        Ok(command) => command,
        Err(text) => {
            eprintln!("coppice-vmm: {text}\nTry coppice-vmm --help.");
            return Exit::BadArguments.into();
        }
    };
    match command {
        Command::Help => print!("{}", args::help()),
        Command::Version => println!("coppice-vmm {}", env!("CARGO_PKG_VERSION")),
        Command::Probe { json } => return show_probe(json),
        Command::Run(args) => {
            let exit = match run(&args) {
                Ok(exit) => exit,
                Err(failure) => {
                    // To the log for those who follow it, and to standard error
                    // for those who started this.
                    if args.logger.log_path.is_some() {
                        log::error!("{}", failure.text);
                    }
                    eprintln!("coppice-vmm: {}", failure.text);
                    failure.exit
                }
            };
            leave::exit(exit.code());
        }
    }
    ExitCode::SUCCESS
}

fn show_probe(json: bool) -> ExitCode {
    let probe = probe();
    match serde_json::to_string_pretty(&probe) {
        Ok(text) if json => println!("{text}"),
        _ => print!("{probe}"),
    }
    if probe.is_usable() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

/// Why there is no machine.
struct Failure {
    exit: Exit,
    text: String,
}

impl Failure {
    fn host(what: &str, error: impl std::fmt::Display) -> Failure {
        Failure {
            exit: Exit::HostTrouble,
            text: format!("{what}: {error}"),
        }
    }
}

/// Runs one machine from its configuration to its end.
fn run(args: &RunArgs) -> Result<Exit, Failure> {
    host::share_one_arena();
    let logger = Logger::new(&args.id).install();
    logger
        .configure(&args.logger)
        .map_err(|error| Failure::host("cannot log", error))?;
    let signals = Signals::block().map_err(|error| Failure::host("cannot take signals", error))?;
    let mut events =
        Events::new().map_err(|error| Failure::host("cannot make an event loop", error))?;
    let mut controller = Controller::new(&args.id, logger);

    if let Some(path) = &args.config_file {
        configure(&mut controller, path, &mut events)?;
    }
    let load = match &args.restore {
        Some(path) => Some(read_load(path)?),
        None => None,
    };
    let mut server = match &args.api_sock {
        Some(path) => Some(
            Server::bind(path, args.max_payload)
                .map_err(|error| Failure::host("cannot serve the API", error))?,
        ),
        None => None,
    };
    if args.config_file.is_some() {
        controller.start(&mut events).map_err(start_failure)?;
    }
    if let Some(load) = &load {
        controller.load(load, &mut events).map_err(start_failure)?;
    }

    events.add_subscriber(Box::new(Wake::on(&signals)));
    if let Some(server) = &server {
        events.add_subscriber(Box::new(Wake::on(server)));
        log::info!(
            "the API listens at {:?}",
            args.api_sock.as_deref().unwrap_or(Path::new(""))
        );
    }
    let exit = serve(&mut controller, &mut events, &signals, server.as_mut());
    if let Some(machine) = controller.into_machine() {
        machine.stop();
    }
    exit
}

/// Serves devices, clients and signals until the guest or a signal ends it.
fn serve(
    controller: &mut Controller,
    events: &mut Events,
    signals: &Signals,
    mut server: Option<&mut Server>,
) -> Result<Exit, Failure> {
    loop {
        events
            .run()
            .map_err(|error| Failure::host("the event loop failed", error))?;
        if let Some(signal) = signals.caught() {
            log::info!("{signal} came: the machine ends");
            return Ok(Exit::Orderly);
        }
        if let Some(outcome) = controller.machine().and_then(Machine::outcome) {
            return Ok(exit_for(&outcome));
        }
        let finished = controller.finished();
        if let Some(server) = &mut server {
            if let Some(answer) = finished {
                server.answer_later(&answer, &mut |request| controller.handle(request, events));
            }
            server.serve(&mut |request| controller.handle(request, events));
        }
    }
}

fn exit_for(outcome: &Outcome) -> Exit {
    match outcome {
        Outcome::Reset | Outcome::PowerOff => Exit::Orderly,
        Outcome::GuestPanic => Exit::GuestPanic,
        Outcome::VcpuFailed { .. } => Exit::VcpuFailed,
    }
}

/// Configures a machine from a file, by the requests that a client would send.
fn configure(controller: &mut Controller, path: &Path, events: &mut Events) -> Result<(), Failure> {
    let refused = |why: String| Failure {
        exit: Exit::BadConfiguration,
        text: format!("the configuration file {path:?} was refused: {why}"),
    };
    let text = read_config_file(path).map_err(|error| refused(error.to_string()))?;
    for request in file::requests(&text).map_err(refused)? {
        if let Some(Answer::Fault(why)) = controller.handle(request, events) {
            return Err(refused(why));
        }
    }
    Ok(())
}

/// Reads what is to be restored: the body of `PUT /snapshot/load`.
fn read_load(path: &Path) -> Result<SnapshotLoad, Failure> {
    let refused = |why: String| Failure {
        exit: Exit::BadConfiguration,
        text: format!("the file {path:?} of what to restore was refused: {why}"),
    };
    let text = read_config_file(path).map_err(|error| refused(error.to_string()))?;
    spec::parse(&text).map_err(|error| refused(error.to_string()))
}

fn read_config_file(path: &Path) -> std::io::Result<Vec<u8>> {
    use std::io::Read;
    let mut text = Vec::new();
    let file = std::fs::File::open(path)?;
    file.take(MAX_CONFIG_FILE + 1).read_to_end(&mut text)?;
    if text.len() as u64 > MAX_CONFIG_FILE {
        return Err(std::io::Error::other(format!(
            "it is larger than {MAX_CONFIG_FILE} bytes"
        )));
    }
    Ok(text)
}

fn start_failure(error: StartError<ControlError>) -> Failure {
    let machine = match &error {
        StartError::Machine(ControlError::Machine(error))
        | StartError::Machine(ControlError::Restore(RestoreError::Machine(error))) => Some(error),
        _ => None,
    };
    let exit = match machine {
        Some(MachineError::Kvm(_) | MachineError::Memory(_) | MachineError::Host { .. }) => {
            Exit::HostTrouble
        }
        _ => Exit::BadConfiguration,
    };
    Failure {
        exit,
        text: error.to_string(),
    }
}
