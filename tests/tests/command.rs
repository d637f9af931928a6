//! `coppice run`, with real machines.

use std::io::Write as _;
use std::process::Stdio;
use std::time::{Duration, Instant};

use coppice_tests::{Run, coppice, run};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

#[test]
fn output_environment_directory_and_exit_code_come_through() {
    let ended = run(&[
        "--env",
        "GREETING=hello",
        "--cwd",
        "/tmp",
        "--",
        "sh",
        "-c",
        "echo $GREETING from $(pwd); echo oops >&2; exit 42",
    ])
    .end();
    assert_eq!(ended.code, Some(42), "{}", ended.stderr);
    assert_eq!(ended.stdout, "hello from /tmp\n");
    assert_eq!(ended.stderr, "oops\n");
}

#[test]
fn commands_that_cannot_be_executed() {
    let missing = run(&["--", "no-such-program"]).end();
    assert_eq!(missing.code, Some(127), "{}", missing.stderr);
    assert!(
        missing.stderr.contains("no-such-program"),
        "{}",
        missing.stderr
    );
    let not_executable = run(&["--", "/etc/passwd"]).end();
    assert_eq!(not_executable.code, Some(126), "{}", not_executable.stderr);
    let directory = run(&["--cwd", "/nowhere", "--", "true"]).end();
    assert_ne!(directory.code, Some(0));
    assert!(
        directory.stderr.contains("/nowhere"),
        "{}",
        directory.stderr
    );
}

#[test]
fn a_signal_and_a_time_limit_show_in_the_exit_code() {
    let killed = run(&["--", "sh", "-c", "kill -9 $$"]).end();
    assert_eq!(killed.code, Some(128 + 9), "{}", killed.stderr);
    let late = run(&[
        "--timeout",
        "1s",
        "--",
        "sh",
        "-c",
        "sleep 1000 & sleep 1000",
    ])
    .end();
    assert_eq!(late.code, Some(124), "{}", late.stderr);
}

#[test]
fn input_reaches_the_command_and_may_end_early() {
    let mut upper = run(&["-i", "--", "tr", "a-z", "A-Z"]);
    upper.command.stdin(Stdio::piped());
    let mut child = upper.start();
    let mut stdin = child.stdin.take().expect("it is piped");
    let typing = std::thread::spawn(move || stdin.write_all(&b"some words\n".repeat(50_000)));
    let ended = upper.end_of(child);
    typing.join().expect("no panic").expect("all was read");
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    assert!(
        ended.stdout == "SOME WORDS\n".repeat(50_000),
        "{} bytes",
        ended.stdout.len()
    );

    // The command ends before its input does.
    let mut head = run(&["-i", "--", "head", "-c", "4"]);
    head.command.stdin(Stdio::piped());
    let mut child = head.start();
    let mut stdin = child.stdin.take().expect("it is piped");
    let typing = std::thread::spawn(move || while stdin.write_all(&[b'x'; 4096]).is_ok() {});
    let ended = head.end_of(child);
    typing.join().expect("no panic");
    assert_eq!((ended.code, ended.stdout.as_str()), (Some(0), "xxxx"));
}

#[test]
fn an_agent_that_never_answers() {
    let ended = run(&[
        "--boot-timeout",
        "500ms",
        "--boot-args",
        "loglevel=7",
        "--",
        "true",
    ])
    .end();
    assert_eq!(ended.code, Some(125), "{}", ended.stderr);
    assert!(
        ended.stderr.contains("did not answer within 0.5 s"),
        "{}",
        ended.stderr
    );

    // A kernel that never comes as far as an agent: its last lines are shown.
    let ended = run(&["--boot-args", "rdinit=/nowhere root=", "--", "true"]).end();
    assert_eq!(ended.code, Some(125), "{}", ended.stderr);
    assert!(ended.stderr.contains("anic"), "{}", ended.stderr);
}

#[test]
fn a_guest_that_panics_in_the_middle() {
    let ended = run(&[
        "--",
        "sh",
        "-c",
        "echo before; echo c > /proc/sysrq-trigger",
    ])
    .end();
    assert_eq!(ended.code, Some(125), "{}", ended.stderr);
    assert!(ended.stderr.contains("machine is gone"), "{}", ended.stderr);
    assert!(
        ended.stderr.contains("sysrq"),
        "the console's end: {}",
        ended.stderr
    );
}

#[test]
fn a_machine_or_a_command_line_that_is_killed_leaves_nothing() {
    // The VMM.
    let mut victim = run(&["--", "sh", "-c", "echo started; sleep 1000"]);
    let child = victim.start();
    let vmm = wait_for_vmm(&victim);
    kill(Pid::from_raw(vmm), Signal::SIGKILL).expect("the machine runs");
    let ended = victim.end_of(child);
    assert_eq!(ended.code, Some(125), "{}", ended.stderr);

    // coppice itself: its machine goes with it, and the next run tidies up.
    let mut victim = run(&["--", "sleep", "1000"]);
    let mut child = victim.start();
    let vmm = wait_for_vmm(&victim);
    child.kill().expect("it runs");
    child.wait().expect("it is our child");
    let deadline = Instant::now() + Duration::from_secs(20);
    while runs(vmm) {
        assert!(Instant::now() < deadline, "the machine outlives its owner");
        std::thread::yield_now();
    }

    // Ctrl-C.
    let mut victim = run(&["--", "sh", "-c", "sleep 1000"]);
    let child = victim.start();
    wait_for_vmm(&victim);
    kill(Pid::from_raw(child.id() as i32), Signal::SIGINT).expect("it runs");
    let ended = victim.end_of(child);
    assert_eq!(ended.code, Some(128 + 2), "{}", ended.stderr);
}

fn wait_for_vmm(run: &Run) -> i32 {
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        if let Some(pid) = run.vmm() {
            return pid;
        }
        assert!(Instant::now() < deadline, "no machine was started");
        std::thread::yield_now();
    }
}

fn runs(pid: i32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ")
        .is_some_and(|(_, rest)| !rest.starts_with('Z'))
}

#[test]
fn a_command_that_floods_the_console_still_answers() {
    // Little, because each byte is a way out of the guest and back, which takes an
    // emulated processor a hundred times as long as a real one.
    let flood = "yes | head -c 10000 > /dev/console; echo through";
    let ended = run(&["--", "sh", "-c", flood]).end();
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    assert_eq!(ended.stdout, "through\n");
}

#[test]
fn doctor_says_that_machines_run_here() {
    let ended = coppice(&["doctor", "--json"]).end();
    assert_eq!(ended.code, Some(0), "{}", ended.stdout);
    let facts: serde_json::Value = serde_json::from_str(&ended.stdout).expect("JSON");
    assert!(facts["checks"].is_array(), "{facts}");
}
