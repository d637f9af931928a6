//! Machines that stay.

use std::fs;
use std::process::Stdio;

use nix::fcntl::{FcntlArg, FdFlag, fcntl};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

use crate::bed::{Bed, eventually, outcome, runs, signal};

/// A bed whose machines are stopped in the end.
struct Beds(Bed);

impl Beds {
    fn new() -> Self {
        Self(Bed::new())
    }

    /// Starts a machine; what `start --json` tells.
    fn start(&self, name: &str) -> Value {
        let (code, out, err) = self.0.end(["start", "--json", name]);
        assert_eq!(code, Some(0), "{err}");
        serde_json::from_str(&out).expect("JSON")
    }

    /// States by name.
    fn list(&self) -> Vec<(String, String)> {
        let (code, out, err) = self.0.end(["ls", "--json"]);
        assert_eq!(code, Some(0), "{err}");
        let list: Vec<Value> = serde_json::from_str(&out).expect("JSON");
        let text = |value: &Value| value.as_str().expect("text").to_owned();
        let pair = |machine: &Value| (text(&machine["name"]), text(&machine["state"]));
        list.iter().map(pair).collect()
    }

    fn refused(&self, args: &[&str], said: &str) {
        let (code, out, err) = self.0.end(args.iter().copied());
        assert_eq!((code, out.as_str()), (Some(125), ""), "{args:?}: {err}");
        assert!(err.contains(said), "{args:?}: {err}");
    }

    fn pid(machine: &Value) -> i32 {
        machine["pid"].as_i64().expect("a number") as i32
    }
}

impl Drop for Beds {
    fn drop(&mut self) {
        for machine in self.0.machines() {
            let name = machine
                .file_name()
                .expect("has one")
                .to_str()
                .expect("text");
            let _ = self.0.coppice(["stop", "--force", name]).output();
        }
    }
}

fn state(name: &str, state: &str) -> (String, String) {
    (name.to_owned(), state.to_owned())
}

#[test]
fn a_machine_stays_until_it_is_stopped() {
    let bed = Beds::new();
    assert_eq!(bed.list(), []);
    let web = bed.start("web");
    let other = bed.start("other");
    assert_eq!(
        bed.list(),
        [state("other", "running"), state("web", "running")]
    );
    let (_, table, _) = bed.0.end(["ls"]);
    assert!(
        table.starts_with("NAME ") && table.contains("512M"),
        "{table}"
    );
    assert!(runs(Beds::pid(&web)));
    let (code, log, _) = bed.0.end(["logs", "web"]);
    assert_eq!((code, log.as_str()), (Some(0), "stand-in: booting\n"));

    let mark = bed.0.path("mark");
    let mark = mark.to_str().expect("UTF-8");
    let (code, ..) = bed
        .0
        .end(["exec", "web", "--", "sh", "-c", "echo one >$0", mark]);
    assert_eq!(code, Some(0));
    let script = "cat $0; echo oops >&2; exit 7";
    let (code, out, err) = bed.0.end(["exec", "web", "sh", "-c", script, mark]);
    assert_eq!(
        (code, out.as_str(), err.as_str()),
        (Some(7), "one\n", "oops\n")
    );
    let (code, ..) = bed
        .0
        .end(["exec", "--timeout", "200ms", "web", "--", "sleep", "60"]);
    assert_eq!(code, Some(124));

    let log = bed.0.path("log");
    let mut stop = bed.0.coppice(["stop", "web", "other"]);
    stop.env("STAND_IN_LOG", &log);
    assert_eq!(outcome(stop), (Some(0), String::new(), String::new()));
    assert!(!runs(Beds::pid(&web)) && !runs(Beds::pid(&other)));
    assert_eq!(bed.list(), []);
    assert_eq!(bed.0.machines(), Vec::<std::path::PathBuf>::new());
}

#[test]
fn a_guest_is_asked_to_end_and_switched_off_if_it_does_not() {
    let bed = Beds::new();
    for (args, asked) in [
        (&["stop", "a"][..], true),
        (&["stop", "--force", "a"], false),
    ] {
        let log = bed.0.path("log");
        let mut start = bed.0.coppice(["start", "a"]);
        start.env("STAND_IN_LOG", &log);
        assert_eq!(outcome(start).0, Some(0));
        assert_eq!(bed.0.end(args.iter().copied()).0, Some(0));
        assert_eq!(fs::remove_file(&log).is_ok(), asked);
    }
    // One that answers nobody is gone all the same.
    let mut start = bed.0.coppice(["start", "--json", "a"]);
    start.env("STAND_IN", "deaf");
    let (_, out, _) = outcome(start);
    let machine: Value = serde_json::from_str(&out).expect("JSON");
    assert_eq!(bed.0.end(["stop", "a"]).0, Some(0));
    assert!(!runs(Beds::pid(&machine)));
}

#[test]
fn a_name_is_taken_once_and_the_machine_that_has_it_is_unharmed() {
    let bed = Beds::new();
    let machine = bed.start("a");
    bed.refused(&["start", "a"], "there already");
    assert!(runs(Beds::pid(&machine)));
    assert_eq!(bed.0.end(["exec", "a", "true"]).0, Some(0));
    assert_eq!(bed.0.end(["stop", "a"]).0, Some(0));

    for name in ["", ".", "a/b", "a_b", &"x".repeat(65)] {
        bed.refused(&["start", name], "letters, digits and hyphens");
    }
    for args in [&["exec", "b", "true"][..], &["stop", "b"], &["logs", "b"]] {
        bed.refused(args, "no machine named `b`");
    }
}

#[test]
fn one_that_died_is_shown_and_swept() {
    let bed = Beds::new();
    let machine = bed.start("a");
    kill(Pid::from_raw(Beds::pid(&machine)), Signal::SIGKILL).expect("it runs");
    eventually("its end", || (!runs(Beds::pid(&machine))).then_some(()));
    assert_eq!(bed.list(), [state("a", "dead")]);
    bed.refused(&["exec", "a", "true"], "stand-in: booting");
    let (code, log, _) = bed.0.end(["logs", "a"]);
    assert_eq!((code, log.as_str()), (Some(0), "stand-in: booting\n"));

    bed.start("b");
    assert_eq!(bed.list(), [state("b", "running")]);
    bed.start("a");
    let dead = bed.start("c");
    kill(Pid::from_raw(Beds::pid(&dead)), Signal::SIGKILL).expect("it runs");
    assert_eq!(bed.0.end(["stop", "a", "b", "c"]).0, Some(0));
    assert_eq!(bed.list(), []);
}

#[test]
fn a_machine_that_dies_under_a_command_is_told_of() {
    let bed = Beds::new();
    let machine = bed.start("a");
    let mut exec = bed
        .0
        .coppice(["exec", "a", "--", "sh", "-c", "echo up; exec sleep 60"]);
    let mut child = exec
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("started");
    crate::failures::wait_for_line(&mut child);
    kill(Pid::from_raw(Beds::pid(&machine)), Signal::SIGKILL).expect("it runs");
    let (code, _, err) = crate::bed::texts(&child.wait_with_output().expect("waited"));
    assert_eq!(code, Some(125));
    assert!(err.contains("the machine `a` has ended"), "{err}");
}

#[test]
fn a_command_that_is_given_up_leaves_the_machine() {
    let bed = Beds::new();
    bed.start("a");
    let mut exec = bed
        .0
        .coppice(["exec", "a", "--", "sh", "-c", "echo up; exec sleep 60"]);
    let mut child = exec.stdout(Stdio::piped()).spawn().expect("started");
    crate::failures::wait_for_line(&mut child);
    signal(&child, Signal::SIGTERM);
    assert_eq!(child.wait().expect("waited").code(), Some(128 + 15));
    assert_eq!(bed.0.end(["exec", "a", "true"]).0, Some(0));
}

#[test]
fn a_start_that_does_not_come_to_its_end_leaves_nothing() {
    let bed = Beds::new();
    let silent = |args: &[&'static str]| {
        let mut start = bed
            .0
            .coppice(["start"].into_iter().chain(args.iter().copied()));
        start.env("STAND_IN", "silent").stderr(Stdio::piped());
        start
    };
    let (code, _, err) = outcome(silent(&["--boot-timeout", "300ms", "a"]));
    assert_eq!(code, Some(125));
    for said in ["within 0.3 s", "stand-in: booting"] {
        assert!(err.contains(said), "{said}: {err}");
    }
    assert_eq!(bed.0.machines(), Vec::<std::path::PathBuf>::new());

    for how in [Signal::SIGINT, Signal::SIGKILL] {
        let mut child = silent(&["a"]).spawn().expect("started");
        // The VMM says so when it runs.
        let log = bed.0.path("run/coppice/m/a/console.log");
        eventually("a VMM", || {
            fs::read(&log)
                .is_ok_and(|log| !log.is_empty())
                .then_some(())
        });
        assert_eq!(bed.list(), [state("a", "starting")]);
        bed.refused(&["stop", "a"], "starting, stopping or freezing");
        bed.refused(&["exec", "a", "true"], "starting, stopping or freezing");
        bed.refused(&["start", "a"], "there already");
        let vmm = vmm_of(&bed.0);
        assert!(runs(vmm));
        signal(&child, how);
        child.wait().expect("waited");
        eventually("the VMM's end", || (!runs(vmm)).then_some(()));
        assert_eq!(bed.list(), []);
    }
    bed.start("a");
    assert_eq!(bed.0.machines().len(), 1);
}

/// The only process that has its configuration in the bed.
fn vmm_of(bed: &Bed) -> i32 {
    let config = bed.path("run/coppice/m/a/config.json");
    let config = config.to_str().expect("UTF-8");
    let processes = fs::read_dir("/proc").expect("read").flatten();
    let mut found = processes.filter_map(|process| {
        let pid = process.file_name().to_str()?.parse().ok()?;
        let line = fs::read_to_string(process.path().join("cmdline")).ok()?;
        line.contains(config).then_some(pid)
    });
    found.next().expect("it runs")
}

#[test]
fn nothing_of_the_caller_is_held_by_what_stays() {
    let bed = Beds::new();
    let (reader, writer) = std::io::pipe().expect("a pipe");
    // One that every program which is started inherits.
    let inherited = writer.try_clone().expect("cloned");
    fcntl(&inherited, FcntlArg::F_SETFD(FdFlag::empty())).expect("set");
    let mut start = bed.0.coppice(["start", "a"]);
    start
        .stdout(writer.try_clone().expect("cloned"))
        .stderr(writer);
    assert!(start.status().expect("started").success());
    drop((start, inherited));
    // Comes to its end although the machine runs.
    let said = std::io::read_to_string(reader).expect("read");
    assert!(said.contains("coppice exec a -- uname -a"), "{said}");
    assert_eq!(bed.list(), [state("a", "running")]);
}
