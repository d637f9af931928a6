//! How commands are ended: by their time limit, by the host, by its absence.

mod harness;

use std::time::{Duration, Instant};

use coppice_agent_protocol::*;
use harness::{Agent, eventually, is_alive};

fn limited(line: &str, limit: Duration) -> ExecRequest {
    let mut request = ExecRequest::shell(line);
    request.timeout_ms = Some(limit.as_millis() as u64);
    request
}

#[test]
fn a_time_limit_is_told_from_every_code() {
    let agent = Agent::start();
    let asked = Instant::now();
    let finished = agent
        .exec(limited(
            "echo partial; echo err >&2; sleep 10",
            Duration::from_millis(300),
        ))
        .finish()
        .expect("it runs");
    assert!(asked.elapsed() < Duration::from_millis(800));
    assert!(finished.status.timed_out);
    assert_eq!(finished.status.shell_code(), 124);
    assert_eq!(finished.text(), "partial\n");
    assert_eq!(finished.stderr, b"err\n");

    let finished = agent
        .exec(limited("exit 124", Duration::from_secs(50)))
        .finish()
        .expect("it runs");
    assert!(!finished.status.timed_out);
    assert_eq!(finished.code(), 124);
}

#[test]
fn a_time_limit_reaches_the_whole_family() {
    let agent = Agent::start();
    let cgroups = agent.info().cgroups;
    // A child that ignores TERM and a grandchild in a session of its own.
    let line = "trap '' TERM
        sh -c 'sleep 101 & echo $!; wait' &
        setsid sh -c 'echo $$; exec sleep 102' &
        sh -c 'trap \"\" TERM; echo $$; while :; do sleep 0.05; done' &
        wait; wait; wait; sleep 103";
    let asked = Instant::now();
    let finished = agent
        .exec(limited(line, Duration::from_millis(500)))
        .finish()
        .expect("it runs");
    assert!(finished.status.timed_out);
    assert!(
        asked.elapsed() < Duration::from_millis(1500),
        "{:?}",
        asked.elapsed()
    );
    let pids: Vec<u32> = finished
        .text()
        .lines()
        .map(|l| l.parse().unwrap())
        .collect();
    assert_eq!(pids.len(), 3);
    let own_session = pids.iter().filter(|pid| is_alive(**pid)).count();
    if cgroups {
        eventually("all are dead", || !pids.iter().any(|pid| is_alive(*pid)));
        assert!(asked.elapsed() < Duration::from_millis(1800));
    } else {
        assert!(own_session <= 1);
    }
}

#[test]
fn group_only_spares_daemons() {
    let agent = Agent::start();
    let mut request = limited(
        "setsid sleep 100 >/dev/null 2>&1 & echo $!; sleep 50",
        Duration::from_millis(300),
    );
    request.cleanup = Cleanup::GroupOnly;
    let finished = agent.exec(request).finish().expect("it runs");
    assert!(finished.status.timed_out);
    let pid: u32 = finished.text().trim().parse().expect("a pid");
    assert!(is_alive(pid), "a daemon in its own session lives on");
    agent.shell(&format!("kill -9 {pid}")).expect("it runs");
    eventually("it ends", || !is_alive(pid));
}

#[test]
fn a_host_that_leaves_takes_its_command_along() {
    let agent = Agent::start();
    let mut call = agent.exec(ExecRequest::shell("sleep 100 & echo $! $$; wait"));
    let text = call.wait_for("\n");
    let pids: Vec<u32> = text
        .split_whitespace()
        .map(|w| w.parse().unwrap())
        .collect();
    assert!(pids.iter().all(|pid| is_alive(*pid)));
    let left = Instant::now();
    drop(call);
    eventually("both are dead", || !pids.iter().any(|pid| is_alive(*pid)));
    assert!(left.elapsed() < Duration::from_secs(1));
}

#[test]
fn signals_reach_the_group_also_before_the_program_runs() {
    let agent = Agent::start();
    let mut call = agent.exec(ExecRequest::argv(["sleep", "100"]));
    // Sent at once: the child may not have become the program yet.
    call.send(ToAgent::Signal(15));
    let status = call.finish().expect("it runs").status;
    assert_eq!(status.outcome, Outcome::Signal(15));

    let mut call = agent.exec(ExecRequest::shell(
        "trap 'echo caught; exit 9' INT; echo ready; while :; do sleep 0.01; done",
    ));
    call.wait_for("ready");
    call.send(ToAgent::Signal(2));
    let finished = call.finish().expect("it runs");
    assert_eq!((finished.text(), finished.code()), ("caught\n", 9));
}

#[test]
fn a_signal_passes_input_that_nobody_reads() {
    let agent = Agent::start();
    let mut request = ExecRequest::argv(["sleep", "100"]);
    request.stdio = Stdio::Pipes { stdin: true };
    let mut call = agent.exec(request);
    call.send(ToAgent::Stdin(vec![b'x'; STDIN_WINDOW as usize]));
    call.send(ToAgent::Signal(9));
    let status = call.finish().expect("it ends").status;
    assert_eq!(status.outcome, Outcome::Signal(9));
}

#[test]
fn a_stalled_reader_gets_everything_and_costs_little() {
    let agent = Agent::start();
    let before = agent.resident_kib();
    let mut stalled = agent.exec(ExecRequest::shell("head -c 50000000 /dev/zero; echo end"));
    stalled.started();
    // Others are served while nobody reads this one.
    for _ in 0..20 {
        assert_eq!(agent.shell("exit 5").expect("it runs").code(), 5);
    }
    assert!(agent.resident_kib() < before + 4096, "memory grows");
    let finished = stalled.finish().expect("it ends");
    assert_eq!(finished.stdout.len(), 50_000_004);
    assert!(finished.stdout.ends_with(b"end\n"));
}

#[test]
fn endless_output_can_be_stopped() {
    let agent = Agent::start();
    let mut call = agent.exec(ExecRequest::argv(["yes"]));
    call.wait_for("y");
    call.send(ToAgent::Signal(15));
    assert_eq!(
        call.finish().expect("it ends").status.outcome,
        Outcome::Signal(15)
    );
}

#[test]
fn an_agent_that_stops_ends_its_commands_and_says_so() {
    let agent = Agent::start();
    let mut call = agent.exec(ExecRequest::shell("sleep 100 & echo $!; wait"));
    let child: u32 = call.wait_for("\n").trim().parse().expect("a pid");
    // Asks it to stop, and checks that it leaves nothing behind.
    drop(agent);
    let status = call.finish().expect("the end is told").status;
    assert_eq!(status.outcome, Outcome::Signal(9));
    eventually("the child is dead", || !is_alive(child));
}
