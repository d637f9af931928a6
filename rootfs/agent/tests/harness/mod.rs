#![allow(dead_code, reason = "each test file uses a part of this")]
//! An agent of this build on a Unix socket, and what a host says to it.

use std::ffi::OsStr;
use std::io::{BufRead, BufReader};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use coppice_agent_protocol::*;

/// Longer than anything here may take; it only turns a hang into a failure.
const PATIENCE: Duration = Duration::from_secs(60);

/// A running agent, stopped when dropped.
pub struct Agent {
    child: Child,
    pub socket: PathBuf,
    /// The directory of its control groups.
    groups: Option<PathBuf>,
}

impl Agent {
    pub fn start() -> Self {
        Self::start_with(&[])
    }

    /// An agent to which the files of the guest are those below `root`.
    pub fn below(root: &Path) -> Self {
        Self::start_with(&["--root".as_ref(), root.as_os_str()])
    }

    fn start_with(args: &[&OsStr]) -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let socket = std::env::temp_dir().join(format!(
            "coppice-agent-{}-{number}.sock",
            std::process::id()
        ));
        let mut child = Command::new(env!("CARGO_BIN_EXE_coppice-agent"))
            .args(["serve", "--unix"])
            .arg(&socket)
            .args(args)
            .stderr(Stdio::piped())
            .spawn()
            .expect("the agent starts");
        let mut stderr = BufReader::new(child.stderr.take().expect("piped"));
        let mut line = String::new();
        stderr.read_line(&mut line).expect("the agent says a word");
        assert!(line.contains("listening"), "{line}");
        std::thread::spawn(move || {
            for line in stderr.lines().map_while(Result::ok) {
                eprintln!("{line}");
            }
        });
        let mut agent = Self {
            child,
            socket,
            groups: None,
        };
        agent.groups = agent.find_groups();
        agent
    }

    fn find_groups(&self) -> Option<PathBuf> {
        let own = self.shell("cat /proc/self/cgroup").expect("it runs");
        let group = own.text().lines().find_map(|l| l.strip_prefix("0::"))?;
        let name = format!("coppice-{}", self.child.id());
        let (parent, _) = group.split_once(&name)?;
        let mounts = std::fs::read_to_string("/proc/mounts").expect("mounts");
        let mount = mounts.lines().find_map(|l| {
            let fields: Vec<&str> = l.split(' ').collect();
            (fields[2] == "cgroup2").then(|| fields[1].to_owned())
        })?;
        Some(PathBuf::from(format!("{mount}{parent}{name}")))
    }

    /// A stream without a word said.
    pub fn connect(&self) -> UnixStream {
        let stream = UnixStream::connect(&self.socket).expect("the agent accepts");
        stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
        stream.set_write_timeout(Some(PATIENCE)).expect("a timeout");
        stream
    }

    /// A stream on which this request was made.
    pub fn request(&self, request: ToAgent) -> Call {
        let mut stream = self.connect();
        write_message(&mut stream, &ToAgent::Hello(HostHello::default())).expect("hello");
        write_message(&mut stream, &request).expect("request");
        let writer = stream.try_clone().expect("a second handle");
        let mut reader = MessageReader::new(stream);
        match reader.next_message().expect("an answer") {
            Some(ToHost::Hello(hello)) => assert_eq!(hello.protocol, PROTOCOL_VERSION),
            other => panic!("{other:?} instead of a hello"),
        }
        Call { writer, reader }
    }

    pub fn exec(&self, request: ExecRequest) -> Call {
        self.request(ToAgent::Exec(Box::new(request)))
    }

    pub fn shell(&self, line: &str) -> Result<Finished, AgentError> {
        self.exec(ExecRequest::shell(line)).finish()
    }

    pub fn info(&self) -> Info {
        match self.request(ToAgent::Info).next() {
            ToHost::Info(info) => *info,
            other => panic!("{other:?} instead of info"),
        }
    }

    /// Resident memory of the agent in KiB.
    pub fn resident_kib(&self) -> u64 {
        let path = format!("/proc/{}/status", self.child.id());
        let status = std::fs::read_to_string(path).expect("the agent lives");
        let line = status.lines().find(|l| l.starts_with("VmRSS:"));
        let value = line.and_then(|l| l.split_whitespace().nth(1));
        value.expect("VmRSS").parse().expect("a number")
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        let pid = self.child.id().to_string();
        let _ = Command::new("kill").arg(pid).status();
        let status = self.child.wait().expect("the agent ends");
        if !std::thread::panicking() {
            assert!(status.success(), "the agent ended with {status}");
            assert!(!self.socket.exists(), "the agent left its socket behind");
            if let Some(groups) = &self.groups {
                assert!(!groups.exists(), "the agent left its control groups behind");
            }
        }
    }
}

/// A request under way.
pub struct Call {
    pub writer: UnixStream,
    pub reader: MessageReader<UnixStream, ToHost>,
}

/// What a command left.
#[derive(Debug)]
pub struct Finished {
    pub status: ExitStatus,
    pub stdout: Vec<u8>,
    pub stderr: Vec<u8>,
}

impl Finished {
    pub fn code(&self) -> u8 {
        match self.status.outcome {
            Outcome::Code(code) => code,
            other => panic!("{other:?} instead of an exit code: {self:?}"),
        }
    }

    pub fn text(&self) -> &str {
        std::str::from_utf8(&self.stdout).expect("text")
    }
}

impl Call {
    pub fn send(&mut self, message: ToAgent) {
        write_message(&mut self.writer, &message).expect("the agent reads");
    }

    pub fn next(&mut self) -> ToHost {
        let message = self.reader.next_message().expect("a message");
        message.expect("the stream goes on")
    }

    /// The process id, once the command runs.
    pub fn started(&mut self) -> u32 {
        match self.next() {
            ToHost::Started(pid) => pid,
            other => panic!("{other:?} instead of a start"),
        }
    }

    /// Reads standard output until it contains `word`.
    pub fn wait_for(&mut self, word: &str) -> String {
        let mut text = String::new();
        while !text.contains(word) {
            match self.next() {
                ToHost::Stdout(bytes) => text.push_str(&String::from_utf8_lossy(&bytes)),
                ToHost::Started(_) | ToHost::StdinCredit(_) => {}
                other => panic!("{other:?} while waiting for {word:?} after {text:?}"),
            }
        }
        text
    }

    /// Reads to the end of the stream.
    pub fn finish(mut self) -> Result<Finished, AgentError> {
        let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
        let end = loop {
            match self.next() {
                ToHost::Started(_) | ToHost::StdinCredit(_) => {}
                ToHost::Stdout(bytes) => stdout.extend(bytes),
                ToHost::Stderr(bytes) => stderr.extend(bytes),
                ToHost::Exit(status) => {
                    break Ok(Finished {
                        status,
                        stdout,
                        stderr,
                    });
                }
                ToHost::Error(error) => break Err(error),
                other => panic!("{other:?} while a command runs"),
            }
        };
        let after = self.reader.next_message().expect("a clean end");
        assert_eq!(after, None, "nothing follows the last message");
        end
    }
}

/// Waits until `condition` holds; panics if it never does.
pub fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    let until = std::time::Instant::now() + PATIENCE;
    while !condition() {
        assert!(std::time::Instant::now() < until, "never: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Whether a process lives and is no zombie.
pub fn is_alive(pid: u32) -> bool {
    std::fs::read_to_string(format!("/proc/{pid}/stat"))
        .ok()
        .and_then(|stat| {
            stat.rsplit_once(") ")
                .map(|(_, rest)| !rest.starts_with('Z'))
        })
        .unwrap_or(false)
}
