//! The command line, as users start it.

use std::fs;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};

use crate::place::{program, require_kvm};
use crate::scratch::{Scratch, processes_with};

/// A `coppice` command in a run directory of its own.
pub struct Run {
    scratch: Scratch,
    /// The command, for what the verbs do not say.
    pub command: Command,
}

/// How it ended.
#[derive(Debug)]
pub struct Ended {
    /// The exit code; `None` if a signal killed it.
    pub code: Option<i32>,
    /// What it wrote to standard output.
    pub stdout: String,
    /// What it wrote to standard error.
    pub stderr: String,
}

/// `coppice` with these arguments.
pub fn coppice(args: &[&str]) -> Run {
    let scratch = Scratch::new();
    let command = coppice_in(&scratch, args);
    Run { scratch, command }
}

/// `coppice` with these arguments, of a user whose machines have their
/// directories in `scratch`.
pub fn coppice_in(scratch: &Scratch, args: &[&str]) -> Command {
    let mut command = Command::new(program("coppice"));
    command
        .args(args)
        .env("XDG_RUNTIME_DIR", scratch.dir())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

impl Ended {
    /// What a process that has ended wrote.
    pub fn of(output: Output) -> Self {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        Self {
            code: output.status.code(),
            stdout: text(&output.stdout),
            stderr: text(&output.stderr),
        }
    }
}

/// `coppice run` of a command in the minimal image; `args` end with it.
pub fn run(args: &[&str]) -> Run {
    require_kvm();
    let all = [&["run", "--image", "minimal", "--memory", "128M"], args].concat();
    coppice(&all)
}

impl Run {
    /// Starts it.
    pub fn start(&mut self) -> Child {
        self.command.spawn().expect("coppice starts")
    }

    /// Runs it to its end and checks that nothing is left.
    pub fn end(mut self) -> Ended {
        let child = self.start();
        self.end_of(child)
    }

    /// The end of a child that [`Run::start`] started.
    pub fn end_of(&self, child: Child) -> Ended {
        let output = child.wait_with_output().expect("it is our child");
        self.assert_nothing_left();
        Ended::of(output)
    }

    /// The process of the machine, once it runs.
    pub fn vmm(&self) -> Option<i32> {
        let dir = self.machines().pop()?;
        let text = fs::read_to_string(dir.join("vmm.pid")).ok()?;
        text.split_whitespace().next()?.parse().ok()
    }

    /// Fails if a process or a directory of a machine is left.
    pub fn assert_nothing_left(&self) {
        let machines = self.machines();
        assert!(machines.is_empty(), "directories were left: {machines:?}");
        let processes = processes_with(self.scratch.dir());
        assert!(processes.is_empty(), "processes were left: {processes:?}");
    }

    fn machines(&self) -> Vec<PathBuf> {
        let Ok(entries) = fs::read_dir(self.scratch.path("coppice")) else {
            return Vec::new();
        };
        let entries = entries.map(|entry| entry.expect("its entries can be read").path());
        entries.filter(|path| path.is_dir()).collect()
    }
}
