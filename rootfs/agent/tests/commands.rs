//! Commands on a real agent: what goes in arrives, what comes out is all of it.

mod harness;

use std::collections::HashSet;
use std::time::{Duration, Instant};

use coppice_agent_protocol::*;
use harness::{Agent, eventually, is_alive};

#[test]
fn every_exit_code_arrives_while_orphans_die() {
    let agent = Agent::start();
    // Orphans that end all the while are reaped by the agent too.
    let noise = agent.exec(ExecRequest::shell(
        "while :; do (sleep 0.01 &) ; (exit 7 &) ; sleep 0.002; done",
    ));
    for chunk in (0..=255u8).collect::<Vec<_>>().chunks(50) {
        let calls: Vec<_> = chunk
            .iter()
            .map(|code| agent.exec(ExecRequest::shell(format!("exit {code}"))))
            .collect();
        for (call, code) in calls.into_iter().zip(chunk) {
            let finished = call.finish().expect("it runs");
            assert_eq!(finished.code(), *code);
            assert!(finished.stderr.is_empty(), "{finished:?}");
        }
    }
    drop(noise);
}

#[test]
fn a_signal_is_told_from_a_code() {
    let agent = Agent::start();
    for (name, number) in [("KILL", 9), ("TERM", 15), ("SEGV", 11), ("RTMIN+1", 35)] {
        let line = format!("kill -s {name} $$");
        let finished = agent.exec(ExecRequest::argv(["bash", "-c", &line]));
        let status = finished.finish().expect("it runs").status;
        assert_eq!(status.outcome, Outcome::Signal(number), "{name}");
        assert_eq!(status.shell_code(), 128 + number);
        assert!(!status.timed_out);
    }
}

#[test]
fn the_streams_are_separate_and_keep_their_bytes() {
    let agent = Agent::start();
    let finished = agent
        .shell(r"printf 'a\000\377b'; printf 'no newline' >&2")
        .expect("it runs");
    assert_eq!(finished.stdout, b"a\0\xffb");
    assert_eq!(finished.stderr, b"no newline");
    assert_eq!(finished.code(), 0);
}

#[test]
fn large_binary_output_is_whole() {
    let agent = Agent::start();
    // Numbers as bytes: a pattern that tells any loss or exchange.
    let script = "import sys,array\n\
        for i in range(64): sys.stdout.buffer.write(array.array('I', range(i*262144,(i+1)*262144)).tobytes())";
    let finished = agent
        .exec(ExecRequest::argv(["python3", "-c", script]))
        .finish()
        .expect("it runs");
    assert_eq!(
        finished.code(),
        0,
        "{}",
        String::from_utf8_lossy(&finished.stderr)
    );
    assert_eq!(finished.stdout.len(), 64 << 20);
    let words = finished.stdout.chunks_exact(4);
    let mut numbers = words.map(|word| u32::from_le_bytes(word.try_into().unwrap()));
    assert!((0..1 << 24).all(|i| numbers.next() == Some(i)));
}

#[test]
fn output_just_before_the_end_is_never_lost() {
    let agent = Agent::start();
    for round in 0..300 {
        let finished = agent
            .exec(ExecRequest::argv(["printf", "%s", &round.to_string()]))
            .finish()
            .expect("it runs");
        assert_eq!(finished.text(), round.to_string());
    }
}

#[test]
fn input_comes_back_and_its_end_arrives() {
    let agent = Agent::start();
    let mut request = ExecRequest::argv(["cat"]);
    request.stdio = Stdio::Pipes { stdin: true };
    let mut call = agent.exec(request);
    let data: Vec<u8> = (0..4_000_000u32)
        .map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8)
        .collect();
    let mut window = STDIN_WINDOW as usize;
    let (mut sent, mut got) = (0, Vec::new());
    while sent < data.len() || got.len() < data.len() {
        let count = window.min(data.len() - sent);
        if count > 0 {
            call.send(ToAgent::Stdin(data[sent..sent + count].to_vec()));
            sent += count;
            window -= count;
        }
        match call.next() {
            ToHost::Stdout(bytes) => got.extend(bytes),
            ToHost::StdinCredit(credit) => window += credit as usize,
            ToHost::Started(_) => {}
            other => panic!("{other:?}"),
        }
    }
    assert!(got == data, "the bytes that came back differ");
    call.send(ToAgent::StdinClose);
    assert_eq!(call.finish().expect("it ends").code(), 0);
}

#[test]
fn input_that_nobody_reads_is_credited_and_does_no_harm() {
    let agent = Agent::start();
    let mut request = ExecRequest::shell("exec <&-; echo closed; sleep 0.2; exit 4");
    request.stdio = Stdio::Pipes { stdin: true };
    let mut call = agent.exec(request);
    call.wait_for("closed");
    let mut credit = 0;
    call.send(ToAgent::Stdin(vec![0; STDIN_WINDOW as usize]));
    while credit < STDIN_WINDOW {
        match call.next() {
            ToHost::StdinCredit(bytes) => credit += bytes,
            other => panic!("{other:?}"),
        }
    }
    call.send(ToAgent::StdinClose);
    assert_eq!(call.finish().expect("it ends").code(), 4);
}

#[test]
fn without_input_a_command_reads_the_end_at_once() {
    let agent = Agent::start();
    assert_eq!(
        agent.shell("cat; echo end").expect("it runs").text(),
        "end\n"
    );
}

#[test]
fn two_hundred_commands_at_once() {
    let agent = Agent::start();
    let calls: Vec<_> = (0..200)
        .map(|i| {
            agent.exec(ExecRequest::shell(format!(
                "sleep 0.2; echo {i}; exit {}",
                i % 256
            )))
        })
        .collect();
    let mut seen = HashSet::new();
    for (i, call) in calls.into_iter().enumerate() {
        let finished = call.finish().expect("it runs");
        assert_eq!(finished.text(), format!("{i}\n"));
        assert_eq!(usize::from(finished.code()), i % 256);
        seen.insert(i);
    }
    assert_eq!(seen.len(), 200);
}

#[test]
fn what_cannot_run_is_refused_by_kind() {
    let agent = Agent::start();
    let refused = |change: &dyn Fn(&mut ExecRequest)| {
        let mut request = ExecRequest::argv(["true"]);
        change(&mut request);
        let asked = Instant::now();
        let error = agent.exec(request).finish().expect_err("it cannot run");
        assert!(asked.elapsed() < Duration::from_secs(1), "{error}");
        error
    };
    let argv =
        |words: &[&str]| Command::Argv(words.iter().map(|w| w.as_bytes().to_vec()).collect());

    let error = refused(&|r| r.command = argv(&["nosuchcmd"]));
    assert_eq!(error.kind, ErrorKind::NotFound);
    assert!(error.message.contains("`nosuchcmd`"), "{error}");
    let error = refused(&|r| r.command = argv(&[""]));
    assert_eq!(error.kind, ErrorKind::NotFound);
    let error = refused(&|r| r.command = argv(&["/etc/passwd"]));
    assert_eq!(error.kind, ErrorKind::NotExecutable);
    let error = refused(&|r| r.command = argv(&["/tmp"]));
    assert_eq!(error.kind, ErrorKind::NotExecutable);
    let error = refused(&|r| r.cwd = Some(b"/no/such/dir".to_vec()));
    assert_eq!(error.kind, ErrorKind::BadCwd);
    assert!(error.message.contains("/no/such/dir"), "{error}");
    let error = refused(&|r| r.user = Some(b"nosuchuser".to_vec()));
    assert_eq!(error.kind, ErrorKind::UnknownUser);
    let error =
        refused(&|r| r.command = Command::Argv(vec![b"true".to_vec(), vec![b'x'; 3 << 20]]));
    assert_eq!(error.kind, ErrorKind::ArgumentsTooLong);
    let error = refused(&|r| r.command = Command::Argv(vec![]));
    assert_eq!(error.kind, ErrorKind::BadRequest);
    // The shell answers for what the shell runs.
    assert_eq!(
        agent.shell("nosuchcmd").expect("the shell runs").code(),
        127
    );
    assert_eq!(
        agent.shell("/etc/passwd").expect("the shell runs").code(),
        126
    );
}

#[test]
fn defaults_are_those_of_a_login() {
    let agent = Agent::start();
    let show = "pwd; umask; ulimit -n; id -u; id -g; id -G; env | sort";
    let mut request = ExecRequest::argv(["sh", "-c", show]);
    request.user = Some(b"nobody".to_vec());
    let text = agent.exec(request).finish().expect("it runs");
    let expected = "/\n0022\n1024\n65534\n65534\n65534\n\
        HOME=/nonexistent\n\
        LOGNAME=nobody\n\
        PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin\n\
        PWD=/\n\
        SHELL=/usr/sbin/nologin\n\
        USER=nobody\n";
    assert_eq!(text.text(), expected);
    let root = agent.shell("pwd; echo $HOME $USER").expect("it runs");
    assert_eq!(root.text(), "/root\n/root root\n");
}

#[test]
fn environment_and_directory_are_as_asked() {
    let agent = Agent::start();
    let mut request = ExecRequest::argv([
        "sh",
        "-c",
        r#"pwd; printf '%s|' "$A" "$B" "${#C}"; env | wc -l"#,
    ]);
    request.clear_env = true;
    request.cwd = Some(b"/usr".to_vec());
    let long = vec![b'c'; 128 * 1024 - 10];
    request.env = vec![
        (b"A".to_vec(), b"x=y\nz".to_vec()),
        (b"B".to_vec(), vec![]),
        (b"C".to_vec(), long.clone()),
        (b"PATH".to_vec(), b"/usr/bin:/bin".to_vec()),
    ];
    let finished = agent.exec(request).finish().expect("it runs");
    let expected = format!("/usr\nx=y\nz||{}|6\n", long.len());
    // Six lines: the four variables, one of them on two, and the shell's PWD.
    assert_eq!(finished.text(), expected);
}

#[test]
fn a_command_inherits_nothing_of_the_agents() {
    let agent = Agent::start();
    let busy = agent.exec(ExecRequest::shell("sleep 30"));
    let finished = agent
        .exec(ExecRequest::argv([
            "python3",
            "-c",
            "import os,signal\n\
             print(sorted(int(f) for f in os.listdir('/proc/self/fd'))[:4])\n\
             print(signal.pthread_sigmask(signal.SIG_BLOCK, []))\n\
             print([l for l in open('/proc/self/status') if l.startswith('SigIgn')][0].split()[1][-5:])\n\
             print(open('/proc/self/oom_score_adj').read().strip(), os.getsid(0)==os.getpid())",
        ]))
        .finish()
        .expect("it runs");
    // Python itself ignores SIGPIPE (bit 12) and SIGXFSZ; nothing else.
    assert_eq!(finished.text(), "[0, 1, 2, 3]\nset()\n01000\n0 True\n");
    drop(busy);
}

#[test]
fn a_background_child_does_not_delay_the_result() {
    let agent = Agent::start();
    let asked = Instant::now();
    let line = "sh -c 'sleep 0.8; echo late; echo still here > $1; sleep 30' x \"$0\" & echo $! hi";
    let mark = agent.socket.with_extension("mark");
    let path = mark.to_str().expect("text");
    let finished = agent
        .exec(ExecRequest::argv(["sh", "-c", line, path]))
        .finish()
        .expect("it runs");
    assert!(asked.elapsed() < Duration::from_secs(1));
    let (pid, word) = finished.text().trim().split_once(' ').expect("two words");
    assert_eq!((word, finished.code()), ("hi", 0));
    // It lives on, and writing to where nobody listens does not kill it.
    eventually("the child writes its mark", || mark.exists());
    let pid = pid.parse().expect("a pid");
    assert!(is_alive(pid));
    std::fs::remove_file(&mark).expect("the mark");
    agent.shell(&format!("kill {pid}")).expect("it runs");
    eventually("the child ends", || !is_alive(pid));
}

#[test]
fn cleanup_always_leaves_nothing_behind() {
    let agent = Agent::start();
    if !agent.info().cgroups {
        eprintln!("skipped: no control groups here");
        return;
    }
    let mut request = ExecRequest::shell("setsid sleep 100 >/dev/null 2>&1 & echo $!; sleep 0.1");
    request.cleanup = Cleanup::Always;
    let finished = agent.exec(request).finish().expect("it runs");
    let pid = finished.text().trim().parse().expect("a pid");
    eventually("the daemon ends", || !is_alive(pid));
}

#[test]
fn descriptors_and_memory_stay_flat() {
    let agent = Agent::start();
    let round = |count| {
        for i in 0..count {
            let call = agent.exec(ExecRequest::argv(["true"]));
            // Every other host leaves without waiting.
            if i % 2 == 0 {
                assert_eq!(call.finish().expect("it runs").code(), 0);
            }
        }
    };
    let settled = || {
        let mut fds = 0;
        eventually("all commands end", || {
            let info = agent.info();
            fds = info.agent_fds;
            info.execs == 0
        });
        fds
    };
    round(100);
    eventually("the first hosts are forgotten", || settled() < 30);
    let (fds, memory) = (settled(), agent.resident_kib());
    round(1000);
    eventually("descriptors return to what they were", || {
        settled() <= fds + 18
    });
    assert!(agent.resident_kib() < memory + 2048, "memory grows");
}
