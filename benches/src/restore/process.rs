//! Processes that have a guest: how they are started, watched and ended.

use std::fs::File;
use std::io::Read as _;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use coppice_benches::Fallible;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

use crate::http;

/// What a guest writes; no log line has it.
const MARK: u8 = 0xb5;
/// Nothing that is measured takes longer.
const LIMIT: Duration = Duration::from_secs(60);

/// A name that no other process of this run has.
pub fn unique(what: &str) -> PathBuf {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    format!("{what}{}", NEXT.fetch_add(1, Ordering::Relaxed)).into()
}

/// A process with a guest. Dropping it kills and reaps it.
pub struct Process {
    child: Child,
    /// When it was about to be started.
    began: Instant,
    output: Option<ChildStdout>,
    /// Where it says what went wrong.
    log: PathBuf,
    /// Files that it makes, removed in the end.
    files: Vec<PathBuf>,
}

impl Process {
    /// Starts `command`. `files` are removed when the process has ended.
    pub fn start(command: &mut Command, mut files: Vec<PathBuf>) -> Fallible<Self> {
        let log = unique("log");
        command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(File::create(&log)?);
        files.push(log.clone());
        let began = Instant::now();
        let mut child = command
            .spawn()
            .map_err(|error| format!("{command:?} could not be started: {error}"))?;
        let output = child.stdout.take();
        Ok(Self {
            child,
            began,
            output,
            log,
            files,
        })
    }

    /// Waits for the guest's first mark; returns the time since the start of the
    /// process, in milliseconds.
    pub fn first_mark(&mut self) -> Fallible<f64> {
        let output = self.output.as_mut().ok_or("somebody else reads")?;
        let mut bytes = [0; 4096];
        loop {
            let count = output.read(&mut bytes)?;
            let took = self.began.elapsed();
            if bytes[..count].contains(&MARK) {
                return Ok(took.as_secs_f64() * 1000.0);
            }
            if count == 0 {
                return Err(self.trouble("ended before its guest wrote anything"));
            }
        }
    }

    /// Counts the guest's marks from now on, so that it never has to wait for
    /// somebody to read them.
    pub fn watch(&mut self) -> Fallible<Marks> {
        let output = self.output.take().ok_or("somebody else reads")?;
        Ok(Marks::count(output))
    }

    /// Sends a request to the API at `socket`, which may not be there yet.
    /// Returns the answer's body and how long it took, in milliseconds.
    pub fn request(
        &mut self,
        socket: &Path,
        method: &str,
        path: &str,
        body: Option<&Value>,
    ) -> Fallible<(String, f64)> {
        let stream = self.connect(socket)?;
        stream.set_read_timeout(Some(LIMIT))?;
        let begin = Instant::now();
        let answer = http::request(&stream, method, path, body)
            .map_err(|error| self.trouble(&format!("{method} {path}: {error}")))?;
        Ok((answer, begin.elapsed().as_secs_f64() * 1000.0))
    }

    fn connect(&mut self, socket: &Path) -> Fallible<UnixStream> {
        loop {
            match UnixStream::connect(socket) {
                Ok(stream) => return Ok(stream),
                Err(error) if self.began.elapsed() > LIMIT => {
                    return Err(self.trouble(&format!("has no API: {error}")));
                }
                Err(_) if self.child.try_wait()?.is_some() => {
                    return Err(self.trouble("ended before it had an API"));
                }
                // There is nothing to wait for before the socket exists.
                Err(_) => thread::sleep(Duration::from_micros(50)),
            }
        }
    }

    /// Stops the process where it is, so that its guest needs no CPU.
    pub fn halt(&self) -> Fallible<()> {
        Ok(kill(Pid::from_raw(self.pid()), Signal::SIGSTOP)?)
    }

    /// The process's id.
    pub fn pid(&self) -> i32 {
        self.child.id().cast_signed()
    }

    fn trouble(&self, what: &str) -> Box<dyn std::error::Error + Send + Sync> {
        let said = std::fs::read_to_string(&self.log).unwrap_or_default();
        format!("process {} {what}\n{said}", self.pid()).into()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
        for file in &self.files {
            let _ = std::fs::remove_file(file);
        }
    }
}

/// How many marks a guest has written.
pub struct Marks(Arc<(Mutex<u64>, Condvar)>);

impl Marks {
    fn count(mut output: ChildStdout) -> Self {
        let marks = Self(Arc::default());
        let shared = marks.0.clone();
        thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(count @ 1..) = output.read(&mut bytes) {
                let new = bytes[..count].iter().filter(|&&byte| byte == MARK).count();
                let (total, changed) = &*shared;
                *total.lock().unwrap_or_else(|error| error.into_inner()) += new as u64;
                changed.notify_all();
            }
        });
        marks
    }

    /// Waits for `more` marks.
    pub fn wait(&self, more: u64) -> Fallible<()> {
        let (total, changed) = &*self.0;
        let guard = total.lock().unwrap_or_else(|error| error.into_inner());
        let goal = *guard + more;
        let (_guard, result) = changed
            .wait_timeout_while(guard, LIMIT, |total| *total < goal)
            .unwrap_or_else(|error| error.into_inner());
        if result.timed_out() {
            return Err(format!("the guest did not write {more} marks in {LIMIT:?}").into());
        }
        Ok(())
    }
}
