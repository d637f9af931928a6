//! A running `coppice-vmm` and everything one can do to it from outside.

use std::ffi::OsString;
use std::io::Write as _;
use std::path::PathBuf;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

use crate::api::{self, Answer};
use crate::guest::Guest;
use crate::output::{Output, PATIENCE};
use crate::place::program;
use crate::scratch::Scratch;

/// A running machine. It is killed if the test ends before it.
pub struct Machine {
    process: Child,
    stdin: Option<ChildStdin>,
    console: Output,
    stderr: Output,
    pub(crate) scratch: Scratch,
}

/// How a machine ended.
#[derive(Debug)]
pub struct End {
    /// The exit code; `None` if a signal killed the process.
    pub code: Option<i32>,
    /// What it wrote to standard error.
    pub stderr: String,
    /// What its guest wrote to the console.
    pub console: String,
}

impl Machine {
    pub(crate) fn start(guest: Guest, configured: bool) -> Self {
        let config = guest.config();
        let scratch = guest.scratch;
        if configured {
            let file = scratch.file("config.json", config.to_string());
            return Self::spawn(scratch, &["--config-file".into(), file.into()]);
        }
        Self::idle(scratch)
    }

    /// A process with an API socket and nothing else yet.
    pub fn empty() -> Self {
        Self::idle(Scratch::new())
    }

    /// A process with an API socket in `scratch` and no configuration.
    pub(crate) fn idle(scratch: Scratch) -> Self {
        let machine = Self::spawn(scratch, &[]);
        machine.wait_for_api();
        machine
    }

    /// A process with an API socket in `scratch` and more arguments.
    pub(crate) fn spawn(scratch: Scratch, args: &[OsString]) -> Self {
        let mut command = Command::new(program("coppice-vmm"));
        command
            .arg("--api-sock")
            .arg(scratch.path("api"))
            .args(args);
        let mut process = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("coppice-vmm starts");
        let stdin = process.stdin.take();
        let stderr = Output::follow(process.stderr.take().expect("it is piped"));
        let console = Output::follow(process.stdout.take().expect("it is piped")).beside(&stderr);
        Self {
            process,
            stdin,
            console,
            stderr,
            scratch,
        }
    }

    fn wait_for_api(&self) {
        let deadline = Instant::now() + PATIENCE;
        while !api::answers(&self.path("api")) {
            assert!(
                Instant::now() < deadline && !self.stderr.text().contains("cannot"),
                "the API does not answer: {}",
                self.stderr.text()
            );
            std::thread::yield_now();
        }
    }

    /// The path of `name` in the machine's own directory.
    pub fn path(&self, name: &str) -> PathBuf {
        self.scratch.path(name)
    }

    /// What the guest writes to its serial port.
    pub fn console(&self) -> &Output {
        &self.console
    }

    /// What the process writes to standard error.
    pub fn stderr(&self) -> &Output {
        &self.stderr
    }

    /// Types on the serial console.
    pub fn type_in(&mut self, text: &str) {
        let stdin = self.stdin.as_mut().expect("the console's input is open");
        stdin.write_all(text.as_bytes()).expect("it takes input");
    }

    /// Ends the console's input.
    pub fn close_input(&mut self) {
        self.stdin = None;
    }

    /// A request to the API, whatever comes of it.
    pub fn request(&self, method: &str, path: &str, body: Option<&Value>) -> Answer {
        let body = body.map(Value::to_string);
        api::request(&self.path("api"), method, path, body.as_deref())
    }

    /// A PUT that succeeds.
    pub fn put(&self, path: &str, body: &Value) {
        let answer = self.request("PUT", path, Some(body));
        assert_eq!(answer.status, 204, "PUT {path} {body}: {}", answer.body);
    }

    /// A PATCH of the machine's state that succeeds: `Paused` or `Resumed`.
    pub fn set_state(&self, state: &str) {
        let body = serde_json::json!({ "state": state });
        let answer = self.request("PATCH", "/vm", Some(&body));
        assert_eq!(answer.status, 204, "{state}: {}", answer.body);
    }

    /// Sends a whole configuration, section by section.
    pub fn configure(&self, config: &Value) {
        for (section, body) in config.as_object().expect("a configuration is an object") {
            match section.as_str() {
                "drives" => {
                    for drive in body.as_array().expect("drives are a list") {
                        let id = drive["drive_id"].as_str().expect("a drive has an id");
                        self.put(&format!("/drives/{id}"), drive);
                    }
                }
                section => self.put(&format!("/{section}"), body),
            }
        }
    }

    /// Sends a signal to the process.
    pub fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(self.process.id() as i32);
        kill(pid, signal).expect("the process is there");
    }

    /// The process.
    pub fn pid(&self) -> u32 {
        self.process.id()
    }

    /// How many descriptors the process has, apart from sockets, which come and go
    /// with clients.
    pub fn descriptors(&self) -> usize {
        let dir = std::fs::read_dir(format!("/proc/{}/fd", self.pid()));
        let links = dir.expect("the process is there").filter_map(Result::ok);
        let targets = links.filter_map(|link| std::fs::read_link(link.path()).ok());
        targets
            .filter(|target| !target.to_string_lossy().starts_with("socket:"))
            .count()
    }

    /// Waits for the machine's own end and checks that nothing of it is left.
    pub fn end(&mut self) -> End {
        let status = self.wait();
        let end = End {
            code: status.code(),
            stderr: self.stderr.to_end(),
            console: self.console.to_end(),
        };
        self.scratch.assert_nothing_left();
        end
    }

    fn wait(&mut self) -> std::process::ExitStatus {
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Some(status) = self.process.try_wait().expect("it is our child") {
                return status;
            }
            assert!(
                Instant::now() < deadline,
                "the machine did not end; its console:\n{}\nstandard error:\n{}",
                self.console.text(),
                self.stderr.text()
            );
            // Not to synchronise: a child cannot be waited for with a limit.
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        // Both fail only if it has ended.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Starts a machine that cannot be, and returns what it says. It must end by
/// itself with the exit code of a refused configuration or host, and leave
/// nothing.
pub fn refusal(guest: Guest) -> End {
    let mut machine = Machine::start(guest, true);
    let end = machine.end();
    assert!(
        matches!(end.code, Some(1 | 152)),
        "exit code {:?}: {}",
        end.code,
        end.stderr
    );
    end
}
