//! What goes through `coppice run`: streams, exit codes, the report.

use std::fs;
use std::io::{Read, Write};
use std::process::Stdio;
use std::time::{Duration, Instant};

use nix::sys::resource::{UsageWho, getrusage};

use crate::bed::{Bed, outcome, texts};

#[test]
fn output_arrives_on_its_own_stream_with_the_commands_code() {
    let bed = Bed::new();
    let (code, out, err) = outcome(bed.run(&["--", "sh", "-c", "echo out; echo err >&2; exit 7"]));
    assert_eq!(
        (code, out.as_str(), err.as_str()),
        (Some(7), "out\n", "err\n")
    );
}

#[test]
fn ends_of_every_kind_have_their_code() {
    let bed = Bed::new();
    for (args, code) in [
        (&["--", "true"][..], 0),
        (&["--", "sh", "-c", "exit 255"], 255),
        (&["--", "sh", "-c", "kill -9 $$"], 137),
        (&["--", "sh", "-c", "kill -15 $$"], 143),
        (&["--", "/nosuch"], 127),
        (&["--", "/etc/passwd"], 126),
        (&["--cwd", "/nosuch", "--", "/bin/true"], 127),
        (&["--shell", "--", "exit", "5"], 5),
    ] {
        let (got, out, err) = outcome(bed.run(args));
        assert_eq!(got, Some(code), "{args:?}: {err}");
        assert_eq!(out, "");
        // The agent's refusals come with a sentence, ends of commands without.
        assert_eq!(
            err.is_empty(),
            !matches!(code, 126 | 127),
            "{args:?}: {err}"
        );
    }
}

#[test]
fn a_words_meaning_is_not_the_shells() {
    let bed = Bed::new();
    let (_, out, _) = outcome(bed.run(&["--", "echo", "$HOME", "a  b", "*", ";"]));
    assert_eq!(out, "$HOME a  b * ;\n");
    let (_, out, _) = outcome(bed.run(&[
        "--env", "A=b c", "--shell", "--", "echo", "\"$A\"", "|", "rev",
    ]));
    assert_eq!(out, "c b\n");
}

#[test]
fn the_working_directory_and_environment_are_the_commands() {
    let bed = Bed::new();
    let mut command = bed.run(&[
        "--cwd",
        "/usr",
        "-e",
        "ONE=1",
        "-e",
        "TWO",
        "-e",
        "NONE",
        "--",
        "sh",
        "-c",
        "pwd; echo $ONE $TWO ${NONE-unset}",
    ]);
    command.env("TWO", "from here").env_remove("NONE");
    assert_eq!(outcome(command).1, "/usr\n1 from here unset\n");
}

#[test]
fn without_i_the_command_gets_no_input() {
    let bed = Bed::new();
    let mut command = bed.run(&["--", "cat"]);
    command.stdin(Stdio::piped());
    let mut child = command.stdout(Stdio::piped()).spawn().expect("started");
    // Held open: only /dev/null ends.
    let _stdin = child.stdin.take();
    let mut out = String::new();
    child
        .stdout
        .take()
        .expect("piped")
        .read_to_string(&mut out)
        .expect("read");
    assert_eq!(child.wait().expect("waited").code(), Some(0));
    assert_eq!(out, "");
}

#[test]
fn gigabytes_would_pass_both_ways_unharmed() {
    let bed = Bed::new();
    let mut command = bed.run(&["-i", "--", "cat"]);
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.spawn().expect("started");
    let mut stdin = child.stdin.take().expect("piped");
    // Every byte value, no period that divides a buffer's size.
    let data: Vec<u8> = (0..32_000_000_u32).map(|n| (n % 257 % 256) as u8).collect();
    let sent = data.clone();
    let feeder = std::thread::spawn(move || stdin.write_all(&sent));
    let mut received = Vec::new();
    child
        .stdout
        .take()
        .expect("piped")
        .read_to_end(&mut received)
        .expect("read");
    feeder.join().expect("no panic").expect("all was taken");
    assert_eq!(child.wait().expect("waited").code(), Some(0));
    assert!(received == data, "{} bytes came back", received.len());
}

#[test]
fn a_command_that_does_not_read_may_end() {
    let bed = Bed::new();
    let mut command = bed.run(&["-i", "--", "true"]);
    command.stdin(Stdio::piped());
    let mut child = command.spawn().expect("started");
    let mut stdin = child.stdin.take().expect("piped");
    let feeder = std::thread::spawn(move || while stdin.write_all(&[0; 65_536]).is_ok() {});
    assert_eq!(child.wait().expect("waited").code(), Some(0));
    feeder.join().expect("the pipe was closed");
}

#[test]
fn a_reader_that_has_enough_ends_everything_quietly() {
    let bed = Bed::new();
    let mut command = bed.run(&["--", "yes"]);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("started");
    let mut stdout = child.stdout.take().expect("piped");
    let mut two = [0; 2];
    stdout.read_exact(&mut two).expect("read");
    drop(stdout);
    let (code, _, err) = texts(&child.wait_with_output().expect("waited"));
    assert_eq!((code, err.as_str()), (Some(141), ""));
}

#[test]
fn a_reader_that_is_slow_costs_no_memory() {
    let bed = Bed::new();
    let mut command = bed.run(&["--", "head", "-c", "100000000", "/dev/zero"]);
    command.stdout(Stdio::piped());
    let mut child = command.spawn().expect("started");
    let mut stdout = child.stdout.take().expect("piped");
    // A few bytes a call: the other side is always faster.
    let mut chunk = [0; 512];
    let mut total = 0;
    while let len @ 1.. = stdout.read(&mut chunk).expect("read") {
        total += len;
    }
    assert_eq!(total, 100_000_000);
    assert_eq!(child.wait().expect("waited").code(), Some(0));
    let usage = getrusage(UsageWho::RUSAGE_CHILDREN).expect("known");
    assert!(usage.max_rss() < 32 * 1024, "{} KiB", usage.max_rss());
}

#[test]
fn no_more_input_is_sent_than_the_agent_takes() {
    let bed = Bed::new();
    let mut command = bed.run_on("miser", &["-i", "--timeout", "1s", "--", "cat"]);
    let zeros = fs::File::open("/dev/zero").expect("opened");
    command.stdin(zeros).stdout(Stdio::null());
    // The time is up with the input still to come; a stand-in that got more
    // than it gave credit for would have ended the machine before.
    assert_eq!(outcome(command).0, Some(124));
}

#[test]
fn time_that_is_up_is_told_from_a_code_of_124() {
    let bed = Bed::new();
    let report = bed.path("report");
    let json = format!("--json={}", report.display());
    let read = || -> serde_json::Value {
        serde_json::from_slice(&fs::read(&report).expect("written")).expect("JSON")
    };

    let began = Instant::now();
    let args = [
        "--timeout",
        "300ms",
        &json,
        "--",
        "sh",
        "-c",
        "echo some; sleep 60",
    ];
    let (code, out, err) = outcome(bed.run(&args));
    assert_eq!((code, out.as_str()), (Some(124), "some\n"));
    assert!(err.contains("time of 0.3 s was up"), "{err}");
    assert!(began.elapsed() < Duration::from_secs(10));
    assert_eq!(read()["timed_out"], true);
    assert_eq!(read()["command_exit_code"], serde_json::Value::Null);

    let (code, _, err) = outcome(bed.run(&[&json, "--", "sh", "-c", "exit 124"]));
    assert_eq!((code, err.as_str()), (Some(124), ""));
    assert_eq!(read()["timed_out"], false);
    assert_eq!(read()["command_exit_code"], 124);
}

#[test]
fn the_report_holds_times_and_the_error() {
    let bed = Bed::new();
    let (code, _, err) = outcome(bed.run(&["--json", "--", "true"]));
    assert_eq!(code, Some(0));
    let report: serde_json::Value = serde_json::from_str(&err).expect("one line of JSON");
    assert_eq!(report["exit_code"], 0);
    for step in ["start", "boot", "exec_start", "exec", "stop", "total"] {
        assert!(report["timings_ms"][step].is_number(), "{step}: {report}");
    }
    assert_eq!(report["timings_ms"]["guest_kernel"], 1.0);
    assert_eq!(report["timings_ms"]["guest_agent"], 1.0);

    let (code, _, err) = outcome(bed.run(&["--json", "--image", "nosuch", "--", "true"]));
    assert_eq!(code, Some(125));
    let line = err.lines().last().expect("JSON comes last");
    let report: serde_json::Value = serde_json::from_str(line).expect("one line of JSON");
    assert!(report["error"].as_str().expect("a text").contains("nosuch"));

    let (_, _, err) = outcome(bed.run(&["--timings", "--", "true"]));
    assert!(err.contains("boot to agent ready"), "{err}");
}

#[test]
fn the_machine_is_what_was_asked_for() {
    let bed = Bed::new();
    let copy = bed.path("config");
    let mut command = bed.run(&[
        "--vcpus",
        "3",
        "--memory",
        "1G",
        "--boot-args",
        "quiet loglevel=7",
        "--",
        "true",
    ]);
    command.env("STAND_IN_CONFIG", &copy);
    assert_eq!(outcome(command).0, Some(0));
    let config: serde_json::Value =
        serde_json::from_slice(&fs::read(copy).expect("written")).expect("JSON");
    assert_eq!(config["machine-config"]["vcpu_count"], 3);
    assert_eq!(config["machine-config"]["mem_size_mib"], 1024);
    assert_eq!(config["drives"][0]["is_read_only"], true);
    let args = config["boot-source"]["boot_args"].as_str().expect("a text");
    assert!(
        args.contains("coppice.rootfstype=squashfs coppice.overlay=tmpfs"),
        "{args}"
    );
    assert!(args.ends_with(" quiet loglevel=7"), "{args}");
}

#[test]
fn a_machine_that_may_write_ends_in_order() {
    let bed = Bed::new();
    let log = bed.path("log");
    let writable = |args: &[&str]| {
        let mut command = bed.run(&[&["--writable"], args].concat());
        command
            .env("STAND_IN_LOG", &log)
            .env("STAND_IN_CONFIG", bed.path("config"));
        command
    };
    assert_eq!(outcome(writable(&["--", "true"])).0, Some(0));
    assert_eq!(fs::read_to_string(&log).expect("written"), "shutdown\n");
    let config: serde_json::Value =
        serde_json::from_slice(&fs::read(bed.path("config")).expect("written")).expect("JSON");
    assert_eq!(config["drives"][0]["is_read_only"], false);
    let args = config["boot-source"]["boot_args"].as_str().expect("a text");
    assert!(!args.contains("overlay"), "{args}");
}
