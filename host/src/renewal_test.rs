use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::thread::JoinHandle;

use coppice_agent_protocol::{AgentError, AgentHello, PROTOCOL_VERSION, Step, StepState};

use super::*;
use std::thread;

const LIMIT: Duration = Duration::from_secs(30);

/// The machine does not end.
fn rest(pause: Duration) -> bool {
    thread::sleep(pause);
    false
}

/// What the guest does with one connection.
#[derive(Clone, Copy)]
enum Act {
    /// Nobody listens in the guest.
    Refuse,
    /// The connection is reset after the VMM said OK.
    Reset,
    /// The agent is reset in the middle of its hello.
    Cut,
    /// Another renewal is under way.
    Busy,
    /// All is well.
    Confirm,
    /// The agent says hello and no more.
    Silent,
    /// The agent speaks another protocol.
    Foreign,
}

/// A guest that does this with one connection after the other. Its last
/// requests are the result.
fn guest(acts: &[Act]) -> (tempfile::TempDir, PathBuf, JoinHandle<Vec<Resumed>>) {
    let dir = tempfile::tempdir().expect("a directory");
    let vsock = dir.path().join("vsock");
    let listener = UnixListener::bind(&vsock).expect("listens");
    let acts = acts.to_vec();
    let guest = thread::spawn(move || {
        let mut streams = Vec::new();
        let mut requests = Vec::new();
        for act in acts {
            let (stream, _) = listener.accept().expect("a connection");
            requests.extend(serve(&stream, act));
            streams.push(stream);
        }
        requests
    });
    (dir, vsock, guest)
}

fn serve(mut stream: &UnixStream, act: Act) -> Option<Resumed> {
    let mut line = String::new();
    let mut reader = BufReader::new(stream);
    reader.read_line(&mut line).expect("a line");
    assert_eq!(line, "CONNECT 1024\n");
    let end = || drop(stream.shutdown(std::net::Shutdown::Both));
    if let Act::Refuse = act {
        end();
        return None;
    }
    stream.write_all(b"OK 1\n").expect("written");
    if let Act::Reset = act {
        end();
        return None;
    }
    if let Act::Cut = act {
        stream.write_all(&[0x41, 9, 0]).expect("written");
        end();
        return None;
    }
    let mut reader = MessageReader::<_, ToAgent>::new(reader);
    let hello = reader.next_message().expect("a message");
    assert_eq!(hello, Some(ToAgent::Hello(HostHello::default())));
    let protocol = match act {
        Act::Foreign => PROTOCOL_VERSION + 1,
        _ => PROTOCOL_VERSION,
    };
    let hello = AgentHello {
        protocol,
        ..AgentHello::default()
    };
    write_message(&mut stream, &ToHost::Hello(hello)).expect("written");
    if let Act::Foreign | Act::Silent = act {
        return None;
    }
    let Ok(Some(ToAgent::Resumed(request))) = reader.next_message() else {
        panic!("no request");
    };
    let answer = match act {
        Act::Busy => ToHost::Error(AgentError::new(ErrorKind::Busy, "busy")),
        _ => ToHost::Renewed(Box::new(renewed())),
    };
    write_message(&mut stream, &answer).expect("written");
    Some(*request)
}

fn renewed() -> Renewed {
    let step = |name, state| Step::new(name, state, "", Duration::ZERO);
    Renewed {
        steps: vec![
            step("entropy", StepState::Done),
            step("hostname", StepState::Failed),
        ],
        elapsed_us: 5,
    }
}

#[test]
fn what_a_restore_does_to_connections_is_tried_again() {
    let acts = [Act::Refuse, Act::Reset, Act::Cut, Act::Busy, Act::Confirm];
    let (_dir, vsock, guest) = guest(&acts);
    let request = request(Some("shoot".into())).expect("random bytes");
    let before = SystemTime::now();
    let answer = resumed(&vsock, request.clone(), LIMIT, rest).expect("confirmed");
    assert_eq!(answer, renewed());
    let requests = guest.join().expect("no panic");
    assert_eq!(requests.len(), 2, "one that was busy, one that was served");
    for seen in requests {
        let sent = UNIX_EPOCH + Duration::from_nanos(seen.wall_clock_ns.expect("the time"));
        assert!(before <= sent && sent <= SystemTime::now());
        let timeless = Resumed {
            wall_clock_ns: None,
            ..seen
        };
        assert_eq!(timeless, request);
    }
}

#[test]
fn two_machines_are_never_asked_to_be_the_same() {
    let (a, b) = (
        request(None).expect("random bytes"),
        request(None).expect("random bytes"),
    );
    assert_ne!(a.generation, b.generation);
    assert!(a.seed != b.seed && a.seed != Seed([0; SEED_LEN]));
}

#[test]
fn an_agent_that_does_not_confirm_is_told_of_in_time() {
    let (_dir, vsock, guest) = guest(&[Act::Silent]);
    let began = Instant::now();
    let limit = Duration::from_millis(200);
    let error =
        resumed(&vsock, request(None).expect("random"), limit, rest).expect_err("no answer");
    assert!(matches!(error, Error::NotRenewed { .. }), "{error}");
    assert!(began.elapsed() < LIMIT);
    drop(guest);
}

#[test]
fn a_machine_that_is_gone_is_told_of_in_time() {
    let limit = Duration::from_millis(50);
    let nowhere = Path::new("/nowhere/vsock");
    let error =
        resumed(nowhere, request(None).expect("random"), limit, rest).expect_err("nobody there");
    let Error::NotRenewed { why, .. } = &error else {
        panic!("{error}");
    };
    assert!(why.contains("cannot be reached"), "{why}");
}

#[test]
fn what_trying_again_cannot_help_is_told_at_once() {
    let (_dir, vsock, guest) = guest(&[Act::Foreign]);
    let error = resumed(&vsock, request(None).expect("random"), LIMIT, rest).expect_err("refused");
    assert!(matches!(error, Error::Version { .. }), "{error}");
    guest.join().expect("one connection was enough");
}
