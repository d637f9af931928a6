//! The process as a supervisor sees it: sockets, signals, log and exit codes.
//! Needs no KVM, since no machine is started.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, ChildStderr, Command, Output, Stdio};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tempfile::TempDir;

fn vmm() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_coppice-vmm"));
    command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

fn run(args: &[&str]) -> Output {
    vmm().args(args).output().expect("runs")
}

#[track_caller]
fn refused(output: &Output, code: i32, part: &str) {
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{text}");
    assert!(text.contains(part), "{text}");
}

/// A process that serves its API.
struct Running {
    child: Child,
    log: BufReader<ChildStderr>,
}

impl Running {
    fn at(socket: &Path) -> Running {
        let mut child = vmm().arg("--api-sock").arg(socket).spawn().expect("runs");
        let mut log = BufReader::new(child.stderr.take().expect("is piped"));
        let mut line = String::new();
        while !line.contains("the API listens") {
            line.clear();
            assert_ne!(
                log.read_line(&mut line).expect("reads"),
                0,
                "it ended early"
            );
        }
        Running { child, log }
    }

    fn send(&self, signal: Signal) {
        let id = i32::try_from(self.child.id()).expect("is a pid");
        kill(Pid::from_raw(id), signal).expect("is there");
    }

    /// Sends a signal and waits for the end. Returns exit code and signal.
    fn end_by(mut self, signal: Signal) -> (Option<i32>, Option<i32>) {
        self.send(signal);
        let mut rest = String::new();
        self.log.read_to_string(&mut rest).expect("reads");
        let status = self.child.wait().expect("ends");
        (status.code(), status.signal())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // Both fail if it has ended, which is what is wanted.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// One request on a connection of its own.
fn ask(socket: &Path, method: &str, path: &str, body: &str) -> String {
    let mut client = UnixStream::connect(socket).expect("connects");
    let length = body.len();
    let request = format!(
        "{method} {path} HTTP/1.1\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n{body}"
    );
    client.write_all(request.as_bytes()).expect("sends");
    let mut answer = String::new();
    client.read_to_string(&mut answer).expect("reads");
    answer
}

#[test]
fn command_lines_that_are_refused() {
    refused(&run(&["--nonsense"]), 153, "no flag --nonsense");
    refused(&run(&["--no-api"]), 153, "--config-file");
    refused(&run(&["--log-path", "/nowhere/log"]), 1, "/nowhere/log");
    let help = run(&["--help"]);
    assert!(help.status.success() && String::from_utf8_lossy(&help.stdout).contains("--api-sock"));
    let version = run(&["--version"]);
    assert!(String::from_utf8_lossy(&version.stdout).starts_with("coppice-vmm "));
}

#[test]
fn bad_configuration_files_leave_no_socket() {
    let folder = TempDir::new().expect("a folder");
    let socket = folder.path().join("api");
    let file = folder.path().join("vm.json");
    let start = || {
        let mut command = vmm();
        command
            .arg("--api-sock")
            .arg(&socket)
            .arg("--config-file")
            .arg(&file);
        command.output().expect("runs")
    };
    refused(&start(), 152, "vm.json");
    for (text, part) in [
        ("{", "EOF"),
        ("{}", "no kernel to boot"),
        (
            r#"{"machine-config":{"vcpu_count":33,"mem_size_mib":64}}"#,
            "vcpu_count is 33",
        ),
        (
            r#"{"machine-config":{"vcpu_count":1}}"#,
            "machine-config: missing field `mem_size_mib`",
        ),
        (
            r#"{"vsock":{"guest_cid":2,"uds_path":"v"}}"#,
            "guest_cid is 2",
        ),
    ] {
        fs::write(&file, text).expect("writes");
        refused(&start(), 152, part);
        assert!(!socket.exists(), "{text}");
    }
    fs::write(&file, vec![b' '; 2 << 20]).expect("writes");
    refused(&start(), 152, "larger than");
}

#[test]
fn signals_end_it_in_order() {
    let folder = TempDir::new().expect("a folder");
    let socket = folder.path().join("api");
    for signal in [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP] {
        let running = Running::at(&socket);
        assert!(ask(&socket, "GET", "/", "").contains("Not started"));
        assert_eq!(running.end_by(signal), (Some(0), None));
        assert!(!socket.exists(), "{signal}");
    }
    // A write past RLIMIT_FSIZE is an error of that write.
    let running = Running::at(&socket);
    running.send(Signal::SIGXFSZ);
    assert!(ask(&socket, "GET", "/", "").contains("Not started"));
}

#[test]
fn the_socket_of_a_dead_process_is_replaced_and_of_a_live_one_not() {
    let folder = TempDir::new().expect("a folder");
    let socket = folder.path().join("api");
    let first = Running::at(&socket);
    let path = socket.to_str().expect("is text");
    refused(
        &run(&["--api-sock", path]),
        1,
        "in use by a running process",
    );
    assert!(ask(&socket, "GET", "/version", "").contains("200 OK"));

    assert_eq!(first.end_by(Signal::SIGKILL), (None, Some(9)));
    assert!(socket.exists());
    let second = Running::at(&socket);
    assert!(ask(&socket, "GET", "/version", "").contains("200 OK"));
    assert_eq!(second.end_by(Signal::SIGTERM), (Some(0), None));
}

#[test]
fn a_start_that_fails_leaves_the_process_there() {
    let folder = TempDir::new().expect("a folder");
    let socket = folder.path().join("api");
    let _running = Running::at(&socket);
    let kernel = r#"{"kernel_image_path":"/nowhere/vmlinux"}"#;
    assert!(ask(&socket, "PUT", "/boot-source", kernel).contains("204"));
    let start = r#"{"action_type":"InstanceStart"}"#;
    let answer = ask(&socket, "PUT", "/actions", start);
    assert!(
        answer.contains("400 Bad Request") && answer.contains("fault_message"),
        "{answer}"
    );
    assert!(ask(&socket, "GET", "/", "").contains("Not started"));
    assert!(ask(&socket, "PUT", "/boot-source", kernel).contains("204"));
}

#[test]
fn the_log_has_each_line_at_once() {
    let folder = TempDir::new().expect("a folder");
    let socket = folder.path().join("api");
    let log = folder.path().join("log");
    let _running = Running::at(&socket);
    let body = format!(r#"{{"log_path":{log:?},"level":"debug","show_level":true}}"#);
    assert!(ask(&socket, "PUT", "/logger", &body).contains("204"));
    assert!(ask(&socket, "PUT", "/vsock", "{}").contains("400"));
    let text = fs::read_to_string(&log).expect("is there");
    assert!(
        text.contains(":WARN] refused PUT /vsock: missing field"),
        "{text}"
    );
}
