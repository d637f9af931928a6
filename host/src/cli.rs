//! What can be typed: subcommands, options, their help.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand};
use clap_complete::Shell;

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

/// `coppice run`.
#[derive(Debug, Args)]
pub struct RunArgs {
    #[command(flatten)]
    pub machine: MachineArgs,

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

    /// Show the machine's serial console on standard error
    #[arg(long)]
    pub show_console: bool,

    /// The command and its arguments
    #[arg(required = true, trailing_var_arg = true, value_name = "CMD")]
    pub command: Vec<OsString>,
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

const RUN_HELP: &str = "\
Examples:
  coppice run -- uname -a
  coppice run --image minimal --memory 128M -- cat /proc/meminfo
  coppice run -i -- python3 - < program.py
  coppice run -it -- bash
  coppice run --shell -- 'echo $HOME | tr a-z A-Z'
  coppice run --timeout 30s --json=result.json -- make -C /src test

CMD is executed as it stands; for pipes, variables and the like use --shell or
`sh -c`. Standard output and standard error stay separate streams.

Exit code:
  that of CMD; 128+N if signal N killed it; 124 if its time was up; 126 if it
  cannot be executed; 127 if it does not exist; 125 if coppice or the machine
  failed, with the reason on standard error.

The first SIGINT, SIGTERM, SIGHUP or SIGQUIT is passed on to CMD. A second one,
or a CMD that has not ended five seconds later, ends the machine.";

const CONSOLE_HELP: &str = "\
Examples:
  coppice console
  coppice console --image minimal --boot-args initcall_debug

The kernel's messages appear as it boots, then a root shell runs on the machine's
serial port. Type Ctrl-] to leave: that switches the machine off. It also ends
when the shell does.";

const DOCTOR_HELP: &str = "\
Examples:
  coppice doctor
  coppice doctor --json | jq '.checks[] | select(.status == \"fail\")'

Exit code: 0 if machines can run here, 1 if something is in the way.";

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
            assert_eq!(run.command, ["ls", "-l", "--json", "--", "x"]);
            assert_eq!(run.json, None);
        }
    }

    #[test]
    fn json_takes_a_file_only_behind_an_equals_sign() {
        assert_eq!(
            run(&["--json", "ls"]).expect("valid").json,
            Some("-".into())
        );
        assert_eq!(
            run(&["--json=f", "ls"]).expect("valid").json,
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
