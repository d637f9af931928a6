//! Signals to `coppice run`.

use std::process::Stdio;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;

use crate::bed::{Bed, runs, signal, texts};
use crate::failures::wait_for_line;

#[test]
fn the_first_goes_to_the_command() {
    let bed = Bed::new();
    for (sent, name) in [
        (Signal::SIGINT, "INT"),
        (Signal::SIGTERM, "TERM"),
        (Signal::SIGHUP, "HUP"),
    ] {
        let script =
            format!("trap 'echo got {name}; exit 42' {name}; echo up; while :; do sleep 0.1; done");
        let mut command = bed.run(&["--", "sh", "-c", &script]);
        let mut child = command.stdout(Stdio::piped()).spawn().expect("started");
        wait_for_line(&mut child);
        signal(&child, sent);
        let (code, out, _) = texts(&child.wait_with_output().expect("waited"));
        assert_eq!((code, out), (Some(42), format!("got {name}\n")));
    }
}

#[test]
fn a_command_that_dies_of_it_has_its_code() {
    let bed = Bed::new();
    let mut command = bed.run(&["--", "sh", "-c", "echo up; exec sleep 60"]);
    let mut child = command.stdout(Stdio::piped()).spawn().expect("started");
    wait_for_line(&mut child);
    signal(&child, Signal::SIGINT);
    assert_eq!(child.wait().expect("waited").code(), Some(130));
}

#[test]
fn the_second_ends_the_machine() {
    let bed = Bed::new();
    let script = "trap 'echo no' TERM; echo up; while :; do sleep 0.1; done";
    let mut command = bed.run(&["--", "sh", "-c", script]);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("started");
    wait_for_line(&mut child);
    let vmm = bed.vmm();
    let began = Instant::now();
    signal(&child, Signal::SIGTERM);
    wait_for_line(&mut child);
    signal(&child, Signal::SIGTERM);
    let (code, _, err) = texts(&child.wait_with_output().expect("waited"));
    assert_eq!(code, Some(143));
    assert!(!err.contains("coppice"), "{err}");
    assert!(began.elapsed() < Duration::from_secs(4));
    assert!(!runs(vmm));
}

#[test]
fn a_command_that_ignores_it_is_given_five_seconds() {
    let bed = Bed::new();
    let script = "trap '' INT; echo up; while :; do sleep 0.1; done";
    let mut command = bed.run(&["--", "sh", "-c", script]);
    let mut child = command.stdout(Stdio::piped()).spawn().expect("started");
    wait_for_line(&mut child);
    let began = Instant::now();
    signal(&child, Signal::SIGINT);
    assert_eq!(child.wait().expect("waited").code(), Some(130));
    assert!(
        (4..8).contains(&began.elapsed().as_secs()),
        "{:?}",
        began.elapsed()
    );
}

#[test]
fn before_the_command_there_is_nothing_to_wait_for() {
    let bed = Bed::new();
    let mut command = bed.run_on("silent", &["--", "true"]);
    let child = command.stderr(Stdio::piped()).spawn().expect("started");
    let vmm = bed.vmm();
    signal(&child, Signal::SIGTERM);
    let (code, _, err) = texts(&child.wait_with_output().expect("waited"));
    assert_eq!((code, err.as_str()), (Some(143), ""));
    assert!(!runs(vmm));
}
