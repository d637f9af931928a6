//! What a host may not send: it gets an answer, and nothing else happens.

mod harness;

use std::io::{Read, Write};
use std::net::Shutdown;

use coppice_agent_protocol::*;
use harness::{Agent, eventually, is_alive};

/// Sends bytes, and returns the error that comes back.
fn refusal(agent: &Agent, bytes: &[u8]) -> AgentError {
    let mut stream = agent.connect();
    stream.write_all(bytes).expect("the agent reads");
    let mut reader = MessageReader::<_, ToHost>::new(stream);
    loop {
        match reader.next_message().expect("messages") {
            Some(ToHost::Error(error)) => {
                assert_eq!(reader.next_message().expect("a clean end"), None);
                return error;
            }
            Some(_) => {}
            None => panic!("no error came"),
        }
    }
}

fn bytes(messages: &[ToAgent]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for message in messages {
        message.encode(&mut bytes).expect("it fits");
    }
    bytes
}

fn hello() -> ToAgent {
    ToAgent::Hello(HostHello::default())
}

#[test]
fn garbage_closes_its_stream_and_nothing_else() {
    let agent = Agent::start();
    let bystander = agent.exec(ExecRequest::shell("sleep 0.3; exit 8"));
    let mut state = 1u64;
    for _ in 0..200 {
        let mut stream = agent.connect();
        let noise: Vec<u8> = (0..4096)
            .map(|_| {
                state = state
                    .wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(1);
                (state >> 56) as u8
            })
            .collect();
        // The agent may have ended the stream before all of it is written.
        let _ = stream.write_all(&noise);
        let _ = stream.shutdown(Shutdown::Write);
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
    }
    assert_eq!(
        refusal(&agent, b"GET / HTTP/1.1\r\n\r\n").kind,
        ErrorKind::Protocol
    );
    assert_eq!(bystander.finish().expect("it runs").code(), 8);
    assert_eq!(agent.info().execs, 0);
}

#[test]
fn another_version_is_refused_with_both_named() {
    let agent = Agent::start();
    let error = refusal(
        &agent,
        &bytes(&[ToAgent::Hello(HostHello { protocol: 99 })]),
    );
    assert_eq!(
        (error.kind, error.protocol),
        (ErrorKind::Version, PROTOCOL_VERSION)
    );
    assert!(error.message.contains("99"), "{error}");
}

#[test]
fn the_order_of_messages_is_kept() {
    let agent = Agent::start();
    let exec = || ToAgent::Exec(Box::new(ExecRequest::argv(["sleep", "50"])));
    for messages in [
        vec![exec()],
        vec![hello(), hello()],
        vec![hello(), ToAgent::StdinClose],
        vec![hello(), exec(), exec()],
        vec![hello(), exec(), ToAgent::Info],
    ] {
        let error = refusal(&agent, &bytes(&messages));
        assert_eq!(error.kind, ErrorKind::Protocol, "{messages:?}");
    }
    eventually("no command is left", || agent.info().execs == 0);
}

#[test]
fn input_beyond_the_window_ends_the_command() {
    let agent = Agent::start();
    let mut request = ExecRequest::shell("echo $$; exec sleep 100");
    request.stdio = Stdio::Pipes { stdin: true };
    let mut call = agent.exec(request);
    let pid: u32 = call.wait_for("\n").trim().parse().expect("a pid");
    let mut got = 0;
    // A pipe takes some itself, so the breach comes somewhat later.
    let error = loop {
        let _ = write_message(&mut call.writer, &ToAgent::Stdin(vec![0; 65536]));
        got += 1;
        assert!(got < 100, "never refused");
        if got < 10 {
            continue;
        }
        match call.reader.next_message() {
            Ok(Some(ToHost::Error(error))) => break error,
            Ok(Some(ToHost::StdinCredit(_))) => {}
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(error.kind, ErrorKind::Protocol);
    eventually("the command ends", || !is_alive(pid));
}

#[test]
fn only_process_one_shuts_a_machine_down() {
    let agent = Agent::start();
    let action = ToAgent::Shutdown(PowerAction::PowerOff);
    let error = refusal(&agent, &bytes(&[hello(), action]));
    assert_eq!(error.kind, ErrorKind::Unsupported);
}

#[test]
fn one_stream_too_many_is_told_so() {
    let agent = Agent::start();
    let mut silent: Vec<_> = (0..1024).map(|_| agent.connect()).collect();
    let error = refusal(&agent, b"");
    assert_eq!(error.kind, ErrorKind::Busy);
    // Room is made by leaving.
    silent.truncate(1000);
    let mut stream = None;
    eventually("there is room again", || {
        let mut candidate = agent.connect();
        let asked = write_message(&mut candidate, &hello())
            .and_then(|()| write_message(&mut candidate, &ToAgent::Info));
        let mut reader = MessageReader::<_, ToHost>::new(candidate);
        while let Ok(Some(message)) = reader.next_message() {
            if let ToHost::Info(info) = message {
                stream = Some(info);
            }
        }
        asked.is_ok() && stream.is_some()
    });
}

#[test]
fn requests_that_never_end_are_bounded_together() {
    let agent = Agent::start();
    let before = agent.resident_kib();
    let mut part = vec![0x82];
    part.extend_from_slice(&65536u32.to_le_bytes());
    part.resize(HEADER_LEN + 65536, 0);
    let mut streams = Vec::new();
    for _ in 0..12 {
        let mut stream = agent.connect();
        stream.write_all(&bytes(&[hello()])).expect("hello");
        for _ in 0..60 {
            stream.write_all(&part).expect("the agent reads");
        }
        streams.push(stream);
    }
    let last = streams.pop().expect("twelve");
    let mut reader = MessageReader::<_, ToHost>::new(last);
    let error = loop {
        match reader.next_message().expect("messages") {
            Some(ToHost::Error(error)) => break error,
            Some(_) => {}
            None => panic!("no error came"),
        }
    };
    assert_eq!(error.kind, ErrorKind::Busy);
    assert!(agent.resident_kib() < before + 40 * 1024, "memory grows");
    assert_eq!(
        agent.shell("exit 1").expect("small ones still pass").code(),
        1
    );
}

#[test]
fn a_silent_stream_is_dropped() {
    let agent = Agent::start();
    let error = refusal(&agent, &bytes(&[hello()]));
    assert_eq!(error.kind, ErrorKind::TooSlow);
}
