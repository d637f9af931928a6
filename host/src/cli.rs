//! What can be typed: subcommands, options, their help.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand};
use clap_complete::Shell;

use crate::help::{
    CONSOLE_HELP, DOCTOR_HELP, EXEC_HELP, FORK_HELP, LOGS_HELP, LS_HELP, RESTORE_HELP, RUN_HELP,
    START_HELP, STOP_HELP,
};
use crate::named::Name;
use crate::snapshot::SnapshotArgs;
use crate::values::{EnvVar, duration, memory_mib};

/// Runs commands in microVMs of their own.
#[derive(Debug, Parser)]
#[command(name = "coppice", version, about, max_term_width = 100)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// The subcommands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Boot a machine, run one command in it, and return its exit code
    #[command(after_long_help = RUN_HELP)]
    Run(RunArgs),
    /// Boot a machine that stays until it is stopped
    #[command(after_long_help = START_HELP)]
    Start(StartArgs),
    /// Run a command in a machine that was started
    #[command(after_long_help = EXEC_HELP)]
    Exec(ExecArgs),
    /// List the machines that were started
    #[command(after_long_help = LS_HELP)]
    Ls(LsArgs),
    /// Show what a machine wrote to its serial console
    #[command(after_long_help = LOGS_HELP)]
    Logs(LogsArgs),
    /// End machines that were started
    #[command(after_long_help = STOP_HELP)]
    Stop(StopArgs),
    /// Start a machine from a snapshot, where it was frozen
    #[command(after_long_help = RESTORE_HELP)]
    Restore(RestoreArgs),
    /// Start machines from one that runs, which runs on
    #[command(after_long_help = FORK_HELP)]
    Fork(ForkArgs),
    /// Make snapshots, and look after them and the store that they are in
    Snapshot(SnapshotArgs),
    /// Boot a machine with its serial console on this terminal
    #[command(after_long_help = CONSOLE_HELP)]
    Console(ConsoleArgs),
    /// Say whether this host can run machines, and what to do if it cannot
    #[command(after_long_help = DOCTOR_HELP)]
    Doctor(DoctorArgs),
    /// Write a completion script for a shell
    #[command(
        after_long_help = "Example:\n  coppice completions bash > ~/.local/share/bash-completion/completions/coppice"
    )]
    Completions {
        /// The shell to write it for
        shell: Shell,
    },
}

/// What a machine is made of.
#[derive(Debug, Args)]
pub struct MachineArgs {
    /// Root file system: the name of a built image, or a path to a file
    #[arg(long, value_name = "NAME|PATH", default_value = "base")]
    pub image: OsString,

    /// Kernel: vmlinux or bzImage [default: the one that was built]
    #[arg(long, value_name = "PATH")]
    pub kernel: Option<PathBuf>,

    /// Initial RAM disk to load below the agent, say one with modules
    #[arg(long, value_name = "PATH")]
    pub initrd: Option<PathBuf>,

    /// More kernel parameters; they override those that coppice sets
    #[arg(long, value_name = "PARAMETERS", allow_hyphen_values = true)]
    pub boot_args: Option<String>,

    /// Virtual processors
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=32))]
    pub vcpus: u8,

    /// Memory: 512M, 2G, or a plain number of MiB
    #[arg(long, value_name = "SIZE", default_value = "512M", value_parser = memory_mib)]
    pub memory: usize,

    /// Let the machine change the image itself
    ///
    /// Without it the image is read-only, changes go to the machine's memory
    /// and end with it, and any number of machines can share one image. With
    /// it the image belongs to this machine alone for as long as it runs.
    #[arg(long)]
    pub writable: bool,

    /// How long the machine may take until its agent answers
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = duration)]
    pub boot_timeout: Duration,
}

/// What is to be executed in a machine, and how.
#[derive(Debug, Args)]
pub struct CommandArgs {
    /// Environment of the command: NAME=VALUE, or NAME for its value here
    #[arg(long, short, value_name = "NAME[=VALUE]", value_parser = EnvVar::parse)]
    pub env: Vec<EnvVar>,

    /// Working directory in the guest [default: the user's home]
    #[arg(long, value_name = "DIR")]
    pub cwd: Option<OsString>,

    /// User in the guest: NAME, UID, NAME:GROUP or UID:GID [default: root]
    #[arg(long, short, value_name = "USER")]
    pub user: Option<OsString>,

    /// Time limit of the command; it and what it started are then killed
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub timeout: Option<Duration>,

    /// Pass standard input to the command; without it the command gets none
    #[arg(long, short)]
    pub interactive: bool,

    /// Give the command a terminal
    #[arg(long, short)]
    pub tty: bool,

    /// Join CMD with spaces and let the guest's /bin/sh run it
    #[arg(long)]
    pub shell: bool,

    /// Write how it went as one line of JSON to FILE; - is standard error
    #[arg(
        long,
        value_name = "FILE",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "-"
    )]
    pub json: Option<PathBuf>,

    /// Show on standard error how long each step took
    #[arg(long)]
    pub timings: bool,

    /// The command and its arguments
    #[arg(required = true, trailing_var_arg = true, value_name = "CMD")]
    pub argv: Vec<OsString>,
}

/// `coppice run`.
#[derive(Debug, Args)]
pub struct RunArgs {
    #[command(flatten)]
    pub machine: MachineArgs,

    /// Show the machine's serial console on standard error
    #[arg(long)]
    pub show_console: bool,

    #[command(flatten)]
    pub command: CommandArgs,
}

/// `coppice start`.
#[derive(Debug, Args)]
pub struct StartArgs {
    /// What to call the machine: up to 64 letters, digits and hyphens
    pub name: Name,

    #[command(flatten)]
    pub machine: MachineArgs,

    /// Write where the machine is as one line of JSON to standard output
    #[arg(long)]
    pub json: bool,
}

/// `coppice exec`.
#[derive(Debug, Args)]
pub struct ExecArgs {
    /// The machine
    pub name: Name,

    #[command(flatten)]
    pub command: CommandArgs,
}

/// `coppice ls`.
#[derive(Debug, Args)]
pub struct LsArgs {
    /// Write the list as JSON
    #[arg(long)]
    pub json: bool,
}

/// `coppice logs`.
#[derive(Debug, Args)]
pub struct LogsArgs {
    /// The machine
    pub name: Name,

    /// What its VMM wrote, not what its guest did
    #[arg(long)]
    pub vmm: bool,
}

/// `coppice stop`.
#[derive(Debug, Args)]
pub struct StopArgs {
    /// The machines
    #[arg(required = true, value_name = "NAME")]
    pub names: Vec<Name>,

    /// How long the guest may take to end in order
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = duration)]
    pub timeout: Duration,

    /// Do not ask the guest: what it has not written to disk is lost
    #[arg(long, conflicts_with = "timeout")]
    pub force: bool,
}

/// `coppice restore`.
#[derive(Debug, Args)]
pub struct RestoreArgs {
    /// Tag, beginning of an id, or path of a manifest (with a slash)
    pub snapshot: String,

    /// What to call the machine: up to 64 letters, digits and hyphens
    pub name: Name,

    /// The store [default: $COPPICE_STORE, or coppice/snapshots in the user's data directory]
    #[arg(long, value_name = "DIR")]
    pub store: Option<PathBuf>,

    /// Write where the machine is as one line of JSON to standard output
    #[arg(long)]
    pub json: bool,

    /// Do not read ahead the pages that the first machine of this snapshot needed
    /// until it was ready, and do not record them
    #[arg(long)]
    pub no_prefetch: bool,

    /// How long the machine may take until it is one of its own
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = duration)]
    pub restore_timeout: Duration,

    /// Environment of the command: NAME=VALUE, or NAME for its value here
    #[arg(long, short, value_name = "NAME[=VALUE]", value_parser = EnvVar::parse)]
    pub env: Vec<EnvVar>,

    /// Time limit of the command; it and what it started are then killed
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub timeout: Option<Duration>,

    /// A command to run in it at once, and its arguments
    #[arg(last = true, value_name = "CMD")]
    pub argv: Vec<OsString>,
}

/// `coppice fork`.
#[derive(Debug, Args)]
pub struct ForkArgs {
    /// The machine
    pub name: Name,

    /// How many forks
    #[arg(long, short = 'n', value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=1000))]
    pub count: u16,

    /// What to call them: P-1, P-2 … [default: the machine's name]
    #[arg(long, value_name = "P")]
    pub prefix: Option<Name>,

    /// End the forks when their commands have ended
    #[arg(long, requires = "argv")]
    pub rm: bool,

    /// Write what became of them as one line of JSON to standard output
    ///
    /// All output of the commands then goes to standard error.
    #[arg(long)]
    pub json: bool,

    /// How long a fork may take until it is one of its own
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = duration)]
    pub restore_timeout: Duration,

    /// Environment of the command: NAME=VALUE, or NAME for its value here
    #[arg(long, short, value_name = "NAME[=VALUE]")]
    pub env: Vec<OsString>,

    /// Time limit of the command: 30s, 500ms, 2m
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub timeout: Option<Duration>,

    /// A command to run in each of them at once, and its arguments
    #[arg(last = true, value_name = "CMD")]
    pub argv: Vec<OsString>,
}

impl ForkArgs {
    /// Those options that are meant for the command, for `coppice exec`.
    pub fn options(&self) -> Vec<OsString> {
        let mut options = Vec::new();
        for env in &self.env {
            options.extend(["--env".into(), env.clone()]);
        }
        if let Some(limit) = self.timeout {
            options.push("--timeout".into());
            options.push(format!("{}ms", limit.as_millis()).into());
        }
        options
    }
}

impl CommandArgs {
    /// A command with nothing about it.
    pub fn new(argv: Vec<OsString>) -> Self {
        Self {
            env: Vec::new(),
            cwd: None,
            user: None,
            timeout: None,
            interactive: false,
            tty: false,
            shell: false,
            json: None,
            timings: false,
            argv,
        }
    }
}

/// `coppice console`.
#[derive(Debug, Args)]
pub struct ConsoleArgs {
    #[command(flatten)]
    pub machine: MachineArgs,
}

/// `coppice doctor`.
#[derive(Debug, Args)]
pub struct DoctorArgs {
    /// Write the facts as JSON
    #[arg(long)]
    pub json: bool,
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    fn run(args: &[&str]) -> Result<RunArgs, clap::Error> {
        let args = ["coppice", "run"].iter().chain(args);
        match Cli::try_parse_from(args)?.command {
            Command::Run(run) => Ok(run),
            other => panic!("not a run: {other:?}"),
        }
    }

    #[test]
    fn clap_finds_no_contradiction() {
        Cli::command().debug_assert();
    }

    #[test]
    fn the_command_keeps_its_own_options() {
        for args in [
            &["ls", "-l", "--json", "--", "x"][..],
            &["--", "ls", "-l", "--json", "--", "x"],
        ] {
            let run = run(args).expect("valid");
            assert_eq!(run.command.argv, ["ls", "-l", "--json", "--", "x"]);
            assert_eq!(run.command.json, None);
        }
    }

    #[test]
    fn json_takes_a_file_only_behind_an_equals_sign() {
        assert_eq!(
            run(&["--json", "ls"]).expect("valid").command.json,
            Some("-".into())
        );
        assert_eq!(
            run(&["--json=f", "ls"]).expect("valid").command.json,
            Some("f".into())
        );
    }

    #[test]
    fn what_cannot_be_is_refused_by_name() {
        for (args, named) in [
            (&["--vcpus", "0", "ls"][..], "--vcpus"),
            (&["--vcpus", "33", "ls"], "--vcpus"),
            (&["--memory", "0", "ls"], "--memory"),
            (&["--timeout", "soon", "ls"], "--timeout"),
            (&["--env", "=x", "ls"], "--env"),
            (&[], "CMD"),
        ] {
            let error = run(args).expect_err("refused").to_string();
            assert!(error.contains(named), "{args:?}: {error}");
        }
    }
}
