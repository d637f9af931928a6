//! Commands in a guest, through its agent.

use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;

use coppice_agent_protocol::{
    AGENT_PORT, ExecRequest, HostHello, Info, MessageReader, Renewed, Resumed, ToAgent, ToHost,
    write_message,
};

use crate::machine::Machine;
use crate::output::PATIENCE;

/// How a command ended.
#[derive(Debug)]
pub struct Done {
    /// As a shell gives it.
    pub code: u8,
    /// What it wrote to standard output.
    pub stdout: Vec<u8>,
    /// What it wrote to standard error.
    pub stderr: Vec<u8>,
}

impl Machine {
    /// Waits for the agent of [`crate::Guest::serving`].
    pub fn wait_for_agent(&self) {
        self.console().wait_for("coppice-agent: listening");
    }

    /// A connection to the agent that was asked for and not yet answered.
    pub fn connect_unanswered(&self) -> UnixStream {
        let mut stream = UnixStream::connect(self.path("vsock")).expect("the machine listens");
        writeln!(stream, "CONNECT {AGENT_PORT}").expect("it takes a line");
        stream
    }

    /// A connection to `port` of the guest.
    pub fn connect(&self, port: u32) -> std::io::Result<UnixStream> {
        let mut stream = UnixStream::connect(self.path("vsock"))?;
        stream.set_read_timeout(Some(PATIENCE))?;
        writeln!(stream, "CONNECT {port}")?;
        let mut answer = Vec::new();
        let mut byte = [0];
        while !answer.ends_with(b"\n") {
            stream.read_exact(&mut byte)?;
            answer.extend(byte);
        }
        assert!(answer.starts_with(b"OK "), "{answer:?}");
        Ok(stream)
    }

    /// A stream to the agent with a request on its way.
    pub fn start_exec(&self, request: ExecRequest) -> UnixStream {
        let mut stream = self.connect(AGENT_PORT).expect("the agent listens");
        for message in [
            ToAgent::Hello(HostHello::default()),
            ToAgent::Exec(Box::new(request)),
        ] {
            write_message(&mut stream, &message).expect("the agent reads");
        }
        stream
    }

    /// Runs a line of shell in the guest to its end.
    pub fn exec(&self, line: &str) -> Done {
        let stream = self.start_exec(ExecRequest::shell(line));
        let mut reader = MessageReader::<_, ToHost>::new(stream);
        let mut done = Done {
            code: 0,
            stdout: Vec::new(),
            stderr: Vec::new(),
        };
        loop {
            match reader
                .next_message()
                .expect("the agent speaks the protocol")
            {
                Some(ToHost::Stdout(data)) => done.stdout.extend(data),
                Some(ToHost::Stderr(data)) => done.stderr.extend(data),
                Some(ToHost::Exit(status)) => {
                    done.code = status.shell_code();
                    return done;
                }
                Some(ToHost::Error(error)) => panic!("{line}: {error:?}"),
                Some(_) => {}
                None => panic!("{line}: the stream ended before the command"),
            }
        }
    }

    /// Tells the agent that the machine is another one, and returns what it did.
    pub fn renew(&self, request: Resumed) -> Renewed {
        match self.ask(ToAgent::Resumed(Box::new(request))) {
            ToHost::Renewed(renewed) => *renewed,
            other => panic!("{other:?} instead of a confirmation"),
        }
    }

    /// Facts about the guest.
    pub fn info(&self) -> Info {
        match self.ask(ToAgent::Info) {
            ToHost::Info(info) => *info,
            other => panic!("{other:?} instead of facts"),
        }
    }

    /// The agent's one answer to a request.
    fn ask(&self, request: ToAgent) -> ToHost {
        let mut stream = self.connect(AGENT_PORT).expect("the agent listens");
        for message in [ToAgent::Hello(HostHello::default()), request] {
            write_message(&mut stream, &message).expect("the agent reads");
        }
        let mut reader = MessageReader::<_, ToHost>::new(stream);
        loop {
            let message = reader.next_message().expect("the protocol is kept");
            match message.expect("the agent answers") {
                ToHost::Hello(_) => {}
                answer => return answer,
            }
        }
    }

    /// The output of a line of shell that succeeds, without the last newline.
    pub fn output(&self, line: &str) -> String {
        let done = self.exec(line);
        let stderr = String::from_utf8_lossy(&done.stderr);
        assert_eq!(done.code, 0, "{line}: {stderr}");
        let stdout = String::from_utf8(done.stdout).expect("UTF-8");
        stdout.trim_end_matches('\n').to_owned()
    }
}
