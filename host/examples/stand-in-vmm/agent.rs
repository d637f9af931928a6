//! The agent's side of the protocol, as plainly as can be.

use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::net::UnixStream;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command as Process, Stdio as Pipe};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use coppice_agent_protocol::{
    AgentError, AgentHello, Command, ErrorKind, ExecRequest, ExitStatus, MessageReader, Outcome,
    STDIN_WINDOW, Stdio, ToAgent, ToHost, WindowSize, write_message,
};
use nix::pty::openpty;
use nix::sys::prctl::set_pdeathsig;
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;

type Reader = MessageReader<UnixStream, ToAgent>;

/// Where answers go; shared by the threads of one request.
#[derive(Clone)]
struct Answers(Arc<Mutex<UnixStream>>);

impl Answers {
    /// False if nobody is there any more.
    fn send(&self, message: &ToHost) -> bool {
        write_message(&mut *self.0.lock().expect("not poisoned"), message).is_ok()
    }
}

/// Serves one connection; a miser gives no credit for input.
pub fn serve(stream: UnixStream, hello: AgentHello, miser: bool) {
    let mut reader = Reader::new(stream.try_clone().expect("cloned"));
    let answers = Answers(Arc::new(Mutex::new(stream)));
    answers.send(&ToHost::Hello(hello));
    loop {
        match reader.next_message() {
            Ok(Some(ToAgent::Hello(_))) => {}
            Ok(Some(ToAgent::Exec(request))) => return exec(*request, reader, &answers, miser),
            Ok(Some(ToAgent::Shutdown(_))) => shut_down(&answers),
            other => panic!("unexpected {other:?}"),
        }
    }
}

fn shut_down(answers: &Answers) {
    if let Some(log) = std::env::var_os("STAND_IN_LOG") {
        let log = OpenOptions::new().create(true).append(true).open(log);
        writeln!(log.expect("opened"), "shutdown").expect("written");
    }
    answers.send(&ToHost::ShuttingDown);
    std::process::exit(0);
}

fn exec(request: ExecRequest, reader: Reader, answers: &Answers, miser: bool) {
    let limit = request.timeout_ms.map(Duration::from_millis);
    let started = match spawn(request) {
        Ok(started) => started,
        Err(error) => {
            let kind = match error.kind() {
                io::ErrorKind::NotFound => ErrorKind::NotFound,
                io::ErrorKind::PermissionDenied => ErrorKind::NotExecutable,
                _ => ErrorKind::BadRequest,
            };
            answers.send(&ToHost::Error(AgentError::new(kind, error.to_string())));
            return;
        }
    };
    let Started {
        mut child,
        terminal,
    } = started;
    answers.send(&ToHost::Started(child.id()));
    let group = Pid::from_raw(child.id() as i32);
    let mut outputs = Vec::new();
    let mut input: Option<Box<dyn Write + Send>> = None;
    if let Some(terminal) = &terminal {
        outputs.push(follow(clone(terminal), ToHost::Stdout, answers));
        input = Some(Box::new(clone(terminal)));
    } else {
        outputs.push(follow(
            child.stdout.take().expect("piped"),
            ToHost::Stdout,
            answers,
        ));
        outputs.push(follow(
            child.stderr.take().expect("piped"),
            ToHost::Stderr,
            answers,
        ));
        if let Some(stdin) = child.stdin.take() {
            input = Some(Box::new(stdin));
        }
    }
    let feed = Feed {
        input,
        terminal,
        group,
        answers: answers.clone(),
        hoard: miser.then_some(0),
    };
    thread::spawn(move || feed.run(reader));

    let timed_out = Arc::new(AtomicBool::new(false));
    if let Some(limit) = limit {
        let timed_out = Arc::clone(&timed_out);
        thread::spawn(move || {
            thread::sleep(limit);
            timed_out.store(true, Ordering::SeqCst);
            let _ = killpg(group, Signal::SIGKILL);
        });
    }
    let started = Instant::now();
    let status = child.wait().expect("waited");
    for output in outputs {
        output.join().expect("no panic");
    }
    answers.send(&ToHost::Exit(ExitStatus {
        outcome: match status.signal() {
            Some(signal) => Outcome::Signal(signal as u8),
            None => Outcome::Code(status.code().unwrap_or(0) as u8),
        },
        timed_out: timed_out.load(Ordering::SeqCst),
        oom_killed: false,
        elapsed_us: started.elapsed().as_micros() as u64,
    }));
}

/// A command that runs.
struct Started {
    child: Child,
    /// The near end of its terminal, if it has one.
    terminal: Option<File>,
}

fn spawn(request: ExecRequest) -> io::Result<Started> {
    let mut argv = match request.command {
        Command::Argv(argv) => argv.into_iter(),
        Command::Shell(line) => vec![b"/bin/sh".to_vec(), b"-c".to_vec(), line].into_iter(),
    };
    let program = OsString::from_vec(argv.next().unwrap_or_default());
    let mut process = Process::new(program);
    process.args(argv.map(OsString::from_vec));
    if !matches!(request.stdio, Stdio::Tty(_)) {
        process.process_group(0);
    }
    // A machine takes what runs in it along when it ends; so must this one.
    let die_with_the_machine = || Ok(set_pdeathsig(Signal::SIGKILL)?);
    // SAFETY: between fork and exec only a system call is made.
    unsafe { process.pre_exec(die_with_the_machine) };
    for (name, value) in request.env {
        process.env(OsString::from_vec(name), OsString::from_vec(value));
    }
    if let Some(dir) = request.cwd {
        process.current_dir(OsString::from_vec(dir));
    }
    let size = match request.stdio {
        Stdio::Tty(size) => size,
        Stdio::Pipes { stdin } => {
            process.stdin(if stdin { Pipe::piped() } else { Pipe::null() });
            process.stdout(Pipe::piped()).stderr(Pipe::piped());
            return Ok(Started {
                child: process.spawn()?,
                terminal: None,
            });
        }
    };
    let ends = openpty(&winsize(size), None)?;
    let far = File::from(ends.slave);
    process.stdin(clone(&far)).stdout(clone(&far)).stderr(far);
    let take_terminal = || {
        nix::unistd::setsid()?;
        // SAFETY: standard input is the terminal's far end; the argument is a
        // plain number.
        match unsafe { libc::ioctl(0, libc::TIOCSCTTY, 0) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    };
    // SAFETY: between fork and exec only system calls are made.
    unsafe { process.pre_exec(take_terminal) };
    Ok(Started {
        child: process.spawn()?,
        terminal: Some(ends.master.into()),
    })
}

fn winsize(size: WindowSize) -> libc::winsize {
    libc::winsize {
        ws_row: size.rows,
        ws_col: size.cols,
        ws_xpixel: 0,
        ws_ypixel: 0,
    }
}

fn clone(file: &File) -> File {
    file.try_clone().expect("cloned")
}

/// Sends what comes out of the command.
fn follow(
    mut from: impl Read + Send + 'static,
    message: fn(Vec<u8>) -> ToHost,
    answers: &Answers,
) -> thread::JoinHandle<()> {
    let answers = answers.clone();
    thread::spawn(move || {
        let mut chunk = [0; 64 * 1024];
        while let Ok(len @ 1..) = from.read(&mut chunk) {
            if !answers.send(&message(chunk[..len].to_vec())) {
                return;
            }
        }
    })
}

/// Passes on what the host sends.
struct Feed {
    input: Option<Box<dyn Write + Send>>,
    terminal: Option<File>,
    group: Pid,
    answers: Answers,
    /// Bytes that a miser got.
    hoard: Option<usize>,
}

impl Feed {
    /// Until the host goes, which ends the command.
    fn run(mut self, mut reader: Reader) {
        while let Ok(Some(message)) = reader.next_message() {
            self.take(message);
        }
        let _ = killpg(self.group, Signal::SIGKILL);
    }

    fn take(&mut self, message: ToAgent) {
        match message {
            ToAgent::Stdin(bytes) => {
                if let Some(input) = &mut self.input {
                    let _ = input.write_all(&bytes);
                }
                if let Some(hoard) = &mut self.hoard {
                    *hoard += bytes.len();
                    if *hoard > STDIN_WINDOW as usize {
                        std::process::abort();
                    }
                } else {
                    let credit = ToHost::StdinCredit(bytes.len() as u32);
                    self.answers.send(&credit);
                }
            }
            ToAgent::StdinClose => self.input = None,
            ToAgent::Signal(signal) => {
                let signal = Signal::try_from(i32::from(signal)).expect("a signal");
                let _ = killpg(self.group, signal);
            }
            ToAgent::Resize(size) => {
                let terminal = self.terminal.as_ref().expect("there is a terminal");
                // SAFETY: the call reads one winsize.
                let result =
                    unsafe { libc::ioctl(terminal.as_raw_fd(), libc::TIOCSWINSZ, &winsize(size)) };
                assert_eq!(result, 0);
            }
            other => panic!("unexpected {other:?}"),
        }
    }
}
