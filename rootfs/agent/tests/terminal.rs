//! Commands on a terminal.

mod harness;

use std::time::{Duration, Instant};

use coppice_agent_protocol::*;
use harness::{Agent, Call};

fn terminal(agent: &Agent, line: &str) -> Call {
    let mut request = ExecRequest::shell(line);
    request.stdio = Stdio::Tty(WindowSize {
        rows: 31,
        cols: 124,
    });
    agent.exec(request)
}

#[test]
fn the_size_is_there_from_the_first_line_on() {
    let agent = Agent::start();
    let finished = terminal(&agent, "stty size; tty; echo $TERM")
        .finish()
        .expect("it runs");
    let text = finished.text();
    assert!(text.starts_with("31 124\r\n/dev/pts/"), "{text}");
    assert!(text.ends_with("xterm-256color\r\n"), "{text}");
}

#[test]
fn the_last_resize_wins_and_is_told() {
    let agent = Agent::start();
    let mut call = terminal(
        &agent,
        "trap 'stty size' WINCH; echo ready; while :; do sleep 0.02; done",
    );
    // Before the program may even run:
    call.send(ToAgent::Resize(WindowSize { rows: 1, cols: 1 }));
    call.wait_for("ready");
    for rows in 1..=100 {
        call.send(ToAgent::Resize(WindowSize { rows, cols: 7 }));
    }
    call.wait_for("100 7\r\n");
    call.send(ToAgent::Signal(9));
    assert_eq!(
        call.finish().expect("it ends").status.outcome,
        Outcome::Signal(9)
    );
}

#[test]
fn keys_are_signals_and_the_end_of_input() {
    let agent = Agent::start();
    let mut call = terminal(
        &agent,
        "trap 'echo caught; c=1' INT; echo ready; while [ -z \"$c\" ]; do sleep 0.02; done; cat; echo end",
    );
    call.wait_for("ready");
    call.send(ToAgent::Stdin(vec![3]));
    call.wait_for("caught");
    call.send(ToAgent::Stdin(b"hello\n\x04".to_vec()));
    let finished = call.finish().expect("it ends");
    assert!(finished.text().contains("hello\r\nend\r\n"), "{finished:?}");
    assert_eq!(finished.code(), 0);
}

#[test]
fn closing_the_input_is_the_end_of_input() {
    let agent = Agent::start();
    let mut call = terminal(&agent, "cat; exit 6");
    call.started();
    call.send(ToAgent::StdinClose);
    assert_eq!(call.finish().expect("it ends").code(), 6);
}

#[test]
fn a_child_that_keeps_the_terminal_does_not_delay_the_result() {
    let agent = Agent::start();
    let asked = Instant::now();
    let finished = terminal(&agent, "trap '' HUP; sleep 5 & echo hi; exit 3")
        .finish()
        .expect("it ends");
    assert!(asked.elapsed() < Duration::from_secs(1));
    assert_eq!((finished.text(), finished.code()), ("hi\r\n", 3));
}

#[test]
fn a_signal_goes_to_the_job_in_the_foreground() {
    let agent = Agent::start();
    let mut request = ExecRequest::argv(["bash", "-i"]);
    request.stdio = Stdio::Tty(WindowSize { rows: 24, cols: 80 });
    let mut call = agent.exec(request);
    call.send(ToAgent::Stdin(
        b"PS1=\nsh -c 'echo re''ady; exec sleep 100'; echo code $?\nexit 2\n".to_vec(),
    ));
    call.wait_for("ready");
    call.send(ToAgent::Signal(15));
    let finished = call.finish().expect("it ends");
    assert!(finished.text().contains("code 143"), "{}", finished.text());
    assert_eq!(finished.code(), 2);
}
