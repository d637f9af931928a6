//! One command in many machines at the same time, with its output line by line.
//!
//! Each is a `coppice exec` of its own, which sees to time limits, signals and
//! the machine's end; here its lines get the machine's name in front.

use std::ffi::OsString;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use super::name::Name;
use crate::error::Error;
use crate::process;

/// A longer line is shown in pieces.
const LINE_MAX: u64 = 64 * 1024;

/// What each of the machines is to do.
#[derive(Debug)]
pub struct Chorus {
    /// The command and its arguments.
    pub argv: Vec<OsString>,
    /// More options of `coppice exec`.
    pub options: Vec<OsString>,
    /// Standard output goes to standard error, too.
    pub quiet: bool,
    /// Those that run, and the signal that ended all, if one has.
    voices: Mutex<(Vec<u32>, Option<u8>)>,
}

/// How it went in one machine.
#[derive(Debug)]
pub struct Sung {
    /// The exit code, as `coppice exec` has it.
    pub code: u8,
    /// When the first byte of output came.
    pub first_output: Option<Instant>,
}

impl Chorus {
    /// Nothing runs yet.
    pub fn new(argv: Vec<OsString>, options: Vec<OsString>, quiet: bool) -> Self {
        Self {
            argv,
            options,
            quiet,
            voices: Mutex::default(),
        }
    }

    /// Runs the command in the machine `name`, the `number`th of them, to its end.
    pub fn sing(&self, name: &Name, number: usize) -> Result<Sung, Error> {
        let failed = || Error::host("the command cannot be run");
        let Some(mut child) = self.start(name, number).map_err(failed())? else {
            return Ok(Sung {
                code: Error::FAILURE,
                first_output: None,
            });
        };
        let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
        let prefix = format!("{name}: ");
        let first_output = thread::scope(|scope| {
            let errors = scope.spawn(|| show(stderr, &prefix, io::stderr));
            let first = match self.quiet {
                true => show(stdout, &prefix, io::stderr),
                false => show(stdout, &prefix, io::stdout),
            };
            let other = errors
                .join()
                .unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            first.into_iter().chain(other).min()
        });
        let status = child.wait().map_err(failed())?;
        let mut voices = self.voices();
        voices.0.retain(|pid| *pid != child.id());
        let code = status.code().or(status.signal().map(|signal| 128 + signal));
        Ok(Sung {
            code: code
                .and_then(|code| u8::try_from(code).ok())
                .unwrap_or(Error::FAILURE),
            first_output,
        })
    }

    /// `None` if all have been ended before.
    fn start(&self, name: &Name, number: usize) -> io::Result<Option<Child>> {
        let mut voices = self.voices();
        if voices.1.is_some() {
            return Ok(None);
        }
        let child = Command::new("/proc/self/exe")
            .args(["exec", "--env", &format!("COPPICE_FORK={number}")])
            .args(&self.options)
            .args([name.as_str(), "--"])
            .args(&self.argv)
            // Ctrl-C is ours to pass on.
            .process_group(0)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()?;
        voices.0.push(child.id());
        Ok(Some(child))
    }

    /// Passes a signal on to all commands; no more are started.
    pub fn end(&self, signal: u8) {
        let mut voices = self.voices();
        voices.1 = Some(signal);
        for pid in &voices.0 {
            // None of them has been waited for, so the numbers are theirs.
            if let Ok(process) = process::open(*pid as i32) {
                let _ = process::send_signal(&process, i32::from(signal));
            }
        }
    }

    /// The signal that ended all, if one has.
    pub fn ended(&self) -> Option<u8> {
        self.voices().1
    }

    fn voices(&self) -> std::sync::MutexGuard<'_, (Vec<u32>, Option<u8>)> {
        self.voices.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Shows each line of `from`; when the first came. Ends early if nobody reads.
fn show<W: Write>(from: Option<impl Read>, prefix: &str, to: impl Fn() -> W) -> Option<Instant> {
    let mut from = BufReader::new(from?);
    let mut first = None;
    let mut line = Vec::new();
    loop {
        line.clear();
        line.extend_from_slice(prefix.as_bytes());
        if first.is_none() {
            let there = from.fill_buf().is_ok_and(|bytes| !bytes.is_empty());
            first = there.then(Instant::now);
        }
        let read = from.by_ref().take(LINE_MAX).read_until(b'\n', &mut line);
        if !read.is_ok_and(|len| len > 0) {
            return first;
        }
        if line.last() != Some(&b'\n') {
            line.push(b'\n');
        }
        // In one piece: others write there as well.
        let mut to = to();
        if to.write_all(&line).and_then(|()| to.flush()).is_err() {
            return first;
        }
    }
}

/// How long commands have to end after a signal before there is another.
pub const GRACE: Duration = Duration::from_secs(5);

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    #[derive(Clone, Default)]
    struct Shown(Arc<Mutex<Vec<u8>>>);

    impl Write for Shown {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().expect("no panics").extend(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn each_line_is_shown_whole_and_with_its_name() {
        let shown = Shown::default();
        let first = show(Some(&b"one\n\ntwo"[..]), "a: ", || shown.clone());
        assert!(first.is_some());
        let text = shown.0.lock().expect("no panics").clone();
        assert_eq!(text, b"a: one\na: \na: two\n");
        assert_eq!(show(Some(&b""[..]), "a: ", || shown.clone()), None);
    }

    #[test]
    fn a_line_without_an_end_costs_no_memory_without_an_end() {
        let shown = Shown::default();
        show(Some(io::repeat(b'x').take(2 * LINE_MAX + 1)), "", || {
            shown.clone()
        });
        let text = shown.0.lock().expect("no panics").clone();
        assert_eq!(text.iter().filter(|&&byte| byte == b'\n').count(), 3);
    }
}
