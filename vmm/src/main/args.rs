//! The command line.

use std::ffi::OsString;
use std::fmt::Write;
use std::path::PathBuf;

use coppice_vmm::spec::{LogLevel, LoggerConfig};
use lexopt::prelude::*;

use crate::exit::EXITS;

/// Where the API listens if nothing else is said.
const DEFAULT_API_SOCK: &str = "/run/coppice.socket";
/// What the machine is called if nothing else is said.
const DEFAULT_ID: &str = "anonymous-instance";
/// Longest body of an API request, in bytes, if nothing else is said.
const DEFAULT_MAX_PAYLOAD: usize = 51_200;

/// Flags that are known from elsewhere and cannot be honoured.
const LATER: &[&str] = &[
    "boot-timer",
    "describe-snapshot",
    "enable-pci",
    "metadata",
    "metrics-path",
    "mmds-size-limit",
    "seccomp-filter",
    "snapshot-version",
];

const HELP: &str = "\
coppice-vmm runs one microVM.

usage: coppice-vmm [--api-sock PATH] [--id ID] [LOG FLAGS]
                   [--config-file FILE | --restore FILE] [--no-api]
       coppice-vmm --probe [--json]
       coppice-vmm --help | --version

      --api-sock PATH       Unix socket of the HTTP API (default /run/coppice.socket)
      --config-file FILE    configure the machine from this JSON file and start it
      --restore FILE        restore the machine of a snapshot: FILE has the JSON that
                            PUT /snapshot/load takes
      --no-api              no API socket; needs --config-file or --restore
      --id ID               name of the machine: up to 64 letters, digits and hyphens
      --http-api-max-payload-size BYTES
                            longest body of an API request (default 51200)

      --log-path PATH       file or named pipe for log lines (default standard error)
      --level LEVEL         Off, Error, Warning, Info (default), Debug or Trace
      --module PREFIX       only lines from modules whose path begins so
      --show-level          lines show their level
      --show-log-origin     lines show the source file and line

      --probe               say whether this host runs Linux guests; exit 0 if so, else 1
      --json                with --probe: as JSON
      --version, --help

Accepted for existing launchers: --start-time-us, --start-time-cpu-us and
--parent-cpu-time-us (each with a number), --no-seccomp (no filter is there).

examples:
  coppice-vmm --api-sock /tmp/vm1.socket &
  curl --unix-socket /tmp/vm1.socket http://localhost/version
  coppice-vmm --no-api --config-file vm.json

exit codes:
";

/// What the process is asked to do.
#[derive(Debug, PartialEq, Eq)]
pub enum Command {
    /// Run a machine.
    Run(Box<RunArgs>),
    /// Say whether the host runs Linux guests.
    Probe {
        /// As JSON.
        json: bool,
    },
    /// Print the version.
    Version,
    /// Print the help text.
    Help,
}

/// How to run a machine.
#[derive(Debug, PartialEq, Eq)]
pub struct RunArgs {
    /// Name of the machine.
    pub id: String,
    /// Where the API listens, if it does.
    pub api_sock: Option<PathBuf>,
    /// Longest body of an API request, in bytes.
    pub max_payload: usize,
    /// The configuration file of a machine to start at once.
    pub config_file: Option<PathBuf>,
    /// What to restore at once.
    pub restore: Option<PathBuf>,
    /// Changes to logging.
    pub logger: LoggerConfig,
}

/// The help text.
pub fn help() -> String {
    let mut text = HELP.to_owned();
    for (_, code, meaning) in EXITS {
        // Writing to a String cannot fail.
        let _ = writeln!(text, "  {code:>3}  {meaning}");
    }
    text
}

/// Flags as they come, before it is known whether they fit together.
#[derive(Default)]
struct Flags {
    api_sock: Option<PathBuf>,
    config_file: Option<PathBuf>,
    restore: Option<PathBuf>,
    id: Option<String>,
    max_payload: Option<usize>,
    no_api: bool,
    probe: bool,
    json: bool,
    logger: LoggerConfig,
}

/// Reads the command line, without the program's name.
///
/// # Errors
/// A sentence on what is wrong with it.
pub fn parse(args: impl IntoIterator<Item = OsString>) -> Result<Command, String> {
    let mut parser = lexopt::Parser::from_args(args);
    let mut flags = Flags::default();
    while let Some(arg) = parser.next().map_err(in_words)? {
        let Long(name) = arg else {
            return Err(in_words(arg.unexpected()));
        };
        let name = name.to_owned();
        match name.as_str() {
            "help" => return Ok(Command::Help),
            "version" => return Ok(Command::Version),
            name if LATER.contains(&name) => {
                return Err(format!(
                    "--{name} is not available yet in this version; leave it out"
                ));
            }
            name => flags.take(name, &mut parser)?,
        }
    }
    flags.command()
}

impl Flags {
    /// Takes in the flag `name`, whose value `parser` has.
    fn take(&mut self, name: &str, parser: &mut lexopt::Parser) -> Result<(), String> {
        match name {
            "api-sock" => once(name, &mut self.api_sock, path(name, parser)?),
            "config-file" => once(name, &mut self.config_file, path(name, parser)?),
            "restore" => once(name, &mut self.restore, path(name, parser)?),
            "id" => once(name, &mut self.id, text(name, parser)?),
            "http-api-max-payload-size" => {
                let bytes = number(name, parser)?;
                let bytes = usize::try_from(bytes).map_err(|_| format!("--{name} is too large"))?;
                once(name, &mut self.max_payload, bytes)
            }
            "log-path" => once(name, &mut self.logger.log_path, path(name, parser)?),
            "module" => once(name, &mut self.logger.module, text(name, parser)?),
            "level" => {
                let level = LogLevel::from_name(&text(name, parser)?);
                let level = level.map_err(|error| format!("--{error}"))?;
                once(name, &mut self.logger.level, level)
            }
            "show-level" => once(name, &mut self.logger.show_level, true),
            "show-log-origin" => once(name, &mut self.logger.show_log_origin, true),
            // When the launcher was started, for statistics that nobody keeps.
            "start-time-us" | "start-time-cpu-us" | "parent-cpu-time-us" => {
                number(name, parser).map(drop)
            }
            "no-seccomp" => Ok(()),
            "no-api" => set(&mut self.no_api),
            "probe" => set(&mut self.probe),
            "json" => set(&mut self.json),
            name => Err(format!("there is no flag --{name}")),
        }
    }

    /// What all flags together ask for.
    fn command(self) -> Result<Command, String> {
        if self.probe {
            return Ok(Command::Probe { json: self.json });
        }
        if self.json {
            return Err("--json belongs to --probe".to_owned());
        }
        if self.no_api && self.config_file.is_none() && self.restore.is_none() {
            return Err(
                "--no-api leaves nobody to configure the machine; add --config-file or --restore"
                    .into(),
            );
        }
        if self.config_file.is_some() && self.restore.is_some() {
            return Err(
                "--restore brings the configuration that the snapshot was made with; leave \
                 --config-file out"
                    .to_owned(),
            );
        }
        if self.no_api && self.api_sock.is_some() {
            return Err("--no-api and --api-sock contradict each other; leave one out".to_owned());
        }
        self.logger.check().map_err(|error| error.to_string())?;
        let id = self.id.unwrap_or_else(|| DEFAULT_ID.to_owned());
        let fits = |c: char| c.is_ascii_alphanumeric() || c == '-';
        if !(1..=64).contains(&id.len()) || !id.chars().all(fits) {
            return Err(format!(
                "--id is {id:?}; it must be 1 to 64 letters, digits and hyphens"
            ));
        }
        let api_sock = self
            .api_sock
            .unwrap_or_else(|| PathBuf::from(DEFAULT_API_SOCK));
        Ok(Command::Run(Box::new(RunArgs {
            id,
            api_sock: (!self.no_api).then_some(api_sock),
            max_payload: self.max_payload.unwrap_or(DEFAULT_MAX_PAYLOAD),
            config_file: self.config_file,
            restore: self.restore,
            logger: self.logger,
        })))
    }
}

fn once<T>(name: &str, slot: &mut Option<T>, value: T) -> Result<(), String> {
    match slot.replace(value) {
        None => Ok(()),
        Some(_) => Err(format!("--{name} is given twice")),
    }
}

fn set(flag: &mut bool) -> Result<(), String> {
    *flag = true;
    Ok(())
}

fn path(name: &str, parser: &mut lexopt::Parser) -> Result<PathBuf, String> {
    match parser.value().map_err(in_words)? {
        value if value.is_empty() => Err(format!("--{name} needs a path")),
        value => Ok(value.into()),
    }
}

fn text(name: &str, parser: &mut lexopt::Parser) -> Result<String, String> {
    let value = parser.value().map_err(in_words)?;
    value
        .into_string()
        .map_err(|value| format!("--{name} is {value:?}; it must be UTF-8"))
}

fn number(name: &str, parser: &mut lexopt::Parser) -> Result<u64, String> {
    let value = text(name, parser)?;
    value
        .parse()
        .map_err(|_| format!("--{name} is {value:?}; it must be a whole number"))
}

fn in_words(error: lexopt::Error) -> String {
    error.to_string()
}

#[cfg(test)]
#[path = "args_test.rs"]
mod tests;
