//! A stand-in for coppice-vmm that needs no KVM: the tests' "machine" is this
//! process, its "guest" an agent that runs commands right here.
//!
//! `STAND_IN` says what is to go wrong:
//!
//! | value | |
//! |---|---|
//! | `dies` | complains on standard error and exits with 3 |
//! | `silent` | shows a boot on the console, then nothing ever happens |
//! | `echo` | as `silent`, but the console says again what is typed |
//! | `flood` | writes to the console for ever, and nothing else |
//! | `foreign` | its agent calls and speaks protocol 99 |
//! | `garbage` | its agent calls and speaks no protocol at all |
//! | `deaf` | its agent calls, and then answers nobody |
//! | `babbles` | its agent answers a request with garbage |
//! | `miser` | its agent never gives credit, and aborts if it gets more than it gave |
//! | `no-kvm` | as `dies`, on a host whose probe fails |
//!
//! `STAND_IN_CONFIG` names a file that gets a copy of the configuration, and
//! `STAND_IN_LOG` one that tells when it was asked to shut down.

mod agent;
mod api;

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::fd::AsFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::process::ExitCode;
use std::thread;

use coppice_agent_protocol::{
    AGENT_PORT, AgentHello, BootTimes, PROTOCOL_VERSION, READY_PORT, ToHost, write_message,
};

fn main() -> ExitCode {
    let mode = std::env::var("STAND_IN").unwrap_or_default();
    let args: Vec<String> = std::env::args().skip(1).collect();
    match args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["--probe", "--json"] => probe(&mode),
        ["--no-api", "--config-file", file] => machine(&mode, file),
        ["--id", _, "--api-sock", socket, "--config-file", file] => {
            api::serve(socket);
            machine(&mode, file)
        }
        ref other => panic!("unknown arguments {other:?}"),
    }
}

fn probe(mode: &str) -> ExitCode {
    if mode != "no-kvm" {
        println!(r#"{{"linux":{{"state":"usable"}},"findings":[]}}"#);
        return ExitCode::SUCCESS;
    }
    println!(
        r#"{{"linux":{{"state":"unusable","instruction":null,"why":"there is none"}},
        "findings":[{{"severity":"fatal","text":"/dev/kvm is missing.","remedy":"Find one."}}]}}"#
    );
    1.into()
}

fn machine(mode: &str, file: &str) -> ExitCode {
    let config = fs::read_to_string(file).expect("the configuration can be read");
    if let Some(copy) = std::env::var_os("STAND_IN_CONFIG") {
        fs::write(copy, &config).expect("the copy can be written");
    }
    let config: serde_json::Value = serde_json::from_str(&config).expect("it is JSON");
    let vsock = config["vsock"]["uds_path"]
        .as_str()
        .expect("it has a vsock");

    println!("stand-in: booting");
    match mode {
        "dies" | "no-kvm" => {
            eprintln!("stand-in: this machine is not to be");
            return 3.into();
        }
        "silent" => sleep_for_ever(),
        "echo" => {
            // Not by way of a buffer that waits for whole lines.
            let out = std::io::stdout()
                .as_fd()
                .try_clone_to_owned()
                .expect("cloned");
            std::io::copy(&mut std::io::stdin(), &mut fs::File::from(out)).expect("echoed");
            sleep_for_ever()
        }
        "flood" => loop {
            println!("stand-in: the same line over and over");
        },
        _ => {}
    }
    let listener = UnixListener::bind(vsock).expect("the vsock can be listened on");
    call(mode, &format!("{vsock}_{READY_PORT}"));
    for stream in listener.incoming() {
        let stream = stream.expect("a connection comes in");
        let mode = mode.to_owned();
        thread::spawn(move || accept(&mode, stream));
    }
    ExitCode::SUCCESS
}

/// What the agent does when it is ready.
fn call(mode: &str, path: &str) {
    let mut stream = UnixStream::connect(path).expect("somebody waits for the call");
    if mode == "garbage" {
        stream
            .write_all(b"HTTP/1.1 200 OK\r\n\r\n")
            .expect("written");
        return;
    }
    write_message(&mut stream, &ToHost::Hello(hello(mode))).expect("written");
}

fn hello(mode: &str) -> AgentHello {
    AgentHello {
        protocol: if mode == "foreign" {
            99
        } else {
            PROTOCOL_VERSION
        },
        agent_version: "stand-in".into(),
        init: true,
        boot: BootTimes {
            started_us: 1_000,
            root_us: 1_500,
            ready_us: 2_000,
        },
    }
}

/// The vsock device's part: `CONNECT <port>`, `OK <port>`.
fn accept(mode: &str, mut stream: UnixStream) {
    if mode == "deaf" {
        return;
    }
    let mut line = String::new();
    let mut byte_wise = BufReader::with_capacity(1, stream.try_clone().expect("cloned"));
    byte_wise.read_line(&mut line).expect("a line comes in");
    assert_eq!(line, format!("CONNECT {AGENT_PORT}\n"));
    writeln!(stream, "OK 1073741824").expect("written");
    if mode == "babbles" {
        stream.write_all(&[0xff; 64]).expect("written");
        return;
    }
    agent::serve(stream, hello(mode), mode == "miser");
}

fn sleep_for_ever() -> ! {
    loop {
        thread::park();
    }
}
