//! Machines that stay, with real guests.

use std::time::{Duration, Instant};

use coppice_tests::{Ended, Scratch, coppice_in, processes_with, request, require_kvm};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

/// A user's machines; all of them are gone in the end.
struct User(Scratch);

impl User {
    fn new() -> Self {
        require_kvm();
        Self(Scratch::new())
    }

    /// `coppice` with these arguments, to its end.
    fn coppice(&self, args: &[&str]) -> Ended {
        Ended::of(coppice_in(&self.0, args).output().expect("coppice starts"))
    }

    /// Starts a machine; its VMM's process.
    fn start(&self, name: &str) -> Pid {
        let args = ["start", "--json", "--image", "minimal", "--memory", "128M"];
        let ended = self.coppice(&[&args[..], &[name]].concat());
        assert_eq!(ended.code, Some(0), "{}", ended.stderr);
        let told: Value = serde_json::from_str(&ended.stdout).expect("JSON");
        Pid::from_raw(told["pid"].as_i64().expect("a number") as i32)
    }

    /// Name and state of each machine.
    fn list(&self) -> Vec<(String, String)> {
        let ended = self.coppice(&["ls", "--json"]);
        assert_eq!(ended.code, Some(0), "{}", ended.stderr);
        let list: Vec<Value> = serde_json::from_str(&ended.stdout).expect("JSON");
        let text = |value: &Value| value.as_str().expect("text").to_owned();
        let pair = |machine: &Value| (text(&machine["name"]), text(&machine["state"]));
        list.iter().map(pair).collect()
    }

    /// A command in the machine `a`, in its shell.
    fn shell(&self, script: &str) -> Ended {
        self.coppice(&["exec", "a", "--", "sh", "-c", script])
    }

    fn assert_nothing_runs(&self) {
        let processes = processes_with(self.0.dir());
        assert!(processes.is_empty(), "processes were left: {processes:?}");
    }
}

impl Drop for User {
    fn drop(&mut self) {
        let _ = coppice_in(&self.0, &["stop", "--force", "a", "b"]).output();
    }
}

fn state(name: &str, state: &str) -> (String, String) {
    (name.to_owned(), state.to_owned())
}

fn wait_for_end(pid: Pid) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while kill(pid, None).is_ok() {
        assert!(Instant::now() < deadline, "{pid} still runs");
        std::thread::yield_now();
    }
}

#[test]
fn what_a_command_leaves_is_there_for_the_next_until_the_machine_is_stopped() {
    let user = User::new();
    user.start("a");
    assert_eq!(user.list(), [state("a", "running")]);

    let first = user.shell("echo kept > /root/file; sleep 1000 >/dev/null 2>&1 & echo $!");
    assert_eq!(first.code, Some(0), "{}", first.stderr);
    let second = user.shell("cat /root/file; echo oops >&2; exit 3");
    assert_eq!(second.code, Some(3), "{}", second.stderr);
    assert_eq!((&*second.stdout, &*second.stderr), ("kept\n", "oops\n"));
    let killed = user.shell("kill -9 $$");
    assert_eq!(killed.code, Some(128 + 9), "{}", killed.stderr);
    let late = user.coppice(&["exec", "--timeout", "1s", "a", "--", "sleep", "1000"]);
    assert_eq!(late.code, Some(124), "{}", late.stderr);

    // A second machine of the same name, which does the first no harm.
    let twice = user.coppice(&["start", "--image", "minimal", "a"]);
    assert_eq!(twice.code, Some(125));
    assert!(twice.stderr.contains("there already"), "{}", twice.stderr);
    assert_eq!(user.shell("cat /root/file").stdout, "kept\n");

    // One that is paused can be asked to end all the same.
    let api = user.0.path("coppice/m/a/api.sock");
    let paused = request(&api, "PATCH", "/vm", Some(r#"{"state": "Paused"}"#));
    assert_eq!(paused.status, 204, "{}", paused.body);
    assert_eq!(user.list(), [state("a", "paused")]);
    let stopped = user.coppice(&["stop", "a"]);
    assert_eq!((stopped.code, &*stopped.stderr), (Some(0), ""));
    assert_eq!(user.list(), []);
    user.assert_nothing_runs();
}

#[test]
fn a_machine_that_dies_is_shown_and_swept() {
    let user = User::new();
    let killed = user.start("a");
    kill(killed, Signal::SIGKILL).expect("it runs");
    wait_for_end(killed);
    assert_eq!(user.list(), [state("a", "dead")]);
    let refused = user.shell("true");
    assert_eq!(refused.code, Some(125));
    assert!(refused.stderr.contains("has ended"), "{}", refused.stderr);

    user.start("b");
    assert_eq!(user.list(), [state("b", "running")]);
    // One that switches itself off has died, too.
    let args = ["exec", "b", "--", "sh", "-c", "poweroff -f"];
    assert_eq!(user.coppice(&args).code, Some(125));
    assert_eq!(user.list(), [state("b", "dead")]);
    assert_eq!(user.coppice(&["stop", "b"]).code, Some(0));
    assert_eq!(user.list(), []);
    user.assert_nothing_runs();
}

#[test]
fn a_start_that_is_killed_leaves_nothing_running() {
    let user = User::new();
    let mut start = coppice_in(&user.0, &["start", "--image", "minimal", "a"]);
    let mut child = start.spawn().expect("coppice starts");
    // The guest boots for a while after its VMM has written its first line.
    let log = user.0.path("coppice/m/a/vmm.log");
    let deadline = Instant::now() + Duration::from_secs(60);
    while std::fs::metadata(&log).map_or(0, |log| log.len()) == 0 {
        assert!(Instant::now() < deadline, "no VMM was started");
        std::thread::yield_now();
    }
    child.kill().expect("it runs");
    child.wait().expect("it is our child");
    let deadline = Instant::now() + Duration::from_secs(20);
    while !processes_with(user.0.dir()).is_empty() {
        assert!(Instant::now() < deadline, "the machine outlives its start");
        std::thread::yield_now();
    }
    assert_eq!(user.list(), []);
    user.start("a");
    assert_eq!(user.shell("echo up").stdout, "up\n");
}
