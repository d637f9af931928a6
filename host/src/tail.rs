//! The last bytes of a stream or a file that may be endless.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::Path;
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

/// Bytes that are kept. A guest may write to its console for ever.
const KEPT: usize = 64 * 1024;

/// Lines that an error shows, and the length to which each is cut.
const SHOWN_LINES: usize = 20;
const SHOWN_COLUMNS: usize = 300;

/// Follows a stream to its end and keeps the last of it, so that its writer
/// never waits and memory stays bounded.
#[derive(Debug)]
pub struct Tail {
    kept: Arc<Mutex<Vec<u8>>>,
    end: Receiver<()>,
}

impl Tail {
    /// Follows `stream` in a thread of its own, which ends with the stream.
    /// With `echo` everything goes to standard error as well.
    pub fn follow(mut stream: impl Read + Send + 'static, echo: bool) -> io::Result<Self> {
        let kept = Arc::new(Mutex::new(Vec::new()));
        let (ended, end) = channel::<()>();
        let into = Arc::clone(&kept);
        let follow = move || {
            let mut chunk = [0; 4096];
            loop {
                let len = match stream.read(&mut chunk) {
                    Ok(0) => break,
                    Ok(len) => len,
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                    Err(_) => break,
                };
                if echo {
                    let _ = io::stderr().write_all(&chunk[..len]);
                }
                keep(
                    &mut into.lock().unwrap_or_else(PoisonError::into_inner),
                    &chunk[..len],
                );
            }
            drop(ended);
        };
        thread::Builder::new().name("tail".into()).spawn(follow)?;
        Ok(Self { kept, end })
    }

    /// The last lines, fit for a terminal. Waits a moment for the stream's
    /// end if `ended` says that its writer is gone.
    pub fn last_lines(&self, ended: bool) -> Vec<String> {
        if ended {
            // Disconnected at the end; a process that was left behind may
            // hold the stream open, so this has a limit.
            let _ = self.end.recv_timeout(Duration::from_millis(300));
        }
        lines(&self.kept.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// The last lines of the file `path`, fit for a terminal.
pub fn last_lines_of(path: &Path) -> io::Result<Vec<String>> {
    let mut file = File::open(path)?;
    let len = file.metadata()?.len();
    file.seek(SeekFrom::Start(len.saturating_sub(KEPT as u64)))?;
    let mut kept = Vec::new();
    file.take(KEPT as u64).read_to_end(&mut kept)?;
    Ok(lines(&kept))
}

fn keep(kept: &mut Vec<u8>, bytes: &[u8]) {
    kept.extend_from_slice(bytes);
    // Twice the size before the front is cut off, so that not each read moves
    // all of it.
    if kept.len() > 2 * KEPT {
        kept.drain(..kept.len() - KEPT);
    }
}

/// Lines as they may be shown: a guest must not steer the terminal.
fn lines(bytes: &[u8]) -> Vec<String> {
    let bytes = &bytes[bytes.len().saturating_sub(KEPT)..];
    let text = String::from_utf8_lossy(bytes);
    let mut lines: Vec<String> = text
        .rsplit(['\n', '\r'])
        .map(|line| {
            let shown = line.chars().filter(|c| !c.is_control() || *c == '\t');
            shown.take(SHOWN_COLUMNS).collect::<String>()
        })
        .filter(|line| !line.trim().is_empty())
        .take(SHOWN_LINES)
        .collect();
    lines.reverse();
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_lines_are_kept_in_order() {
        let text: String = (0..30_000).map(|n| format!("line {n}\r\n")).collect();
        let tail = Tail::follow(io::Cursor::new(text), false).expect("thread");
        let lines = tail.last_lines(true);
        assert_eq!(lines.len(), SHOWN_LINES);
        assert_eq!(lines[0], "line 29980");
        assert_eq!(lines[19], "line 29999");
    }

    #[test]
    fn the_last_lines_of_a_file_are_read() {
        let text: String = (0..30_000).map(|n| format!("line {n}\r\n")).collect();
        let file = tempfile::NamedTempFile::new().expect("file");
        std::fs::write(file.path(), text).expect("written");
        let lines = last_lines_of(file.path()).expect("read");
        assert_eq!(lines.len(), SHOWN_LINES);
        assert_eq!(lines[19], "line 29999");
    }

    #[test]
    fn a_flood_stays_bounded() {
        let mut kept = Vec::new();
        for _ in 0..1000 {
            keep(&mut kept, &[b'x'; 4096]);
            assert!(kept.len() <= 2 * KEPT);
        }
        assert_eq!(lines(&kept), ["x".repeat(SHOWN_COLUMNS)]);
    }

    #[test]
    fn nothing_in_it_steers_the_terminal() {
        assert_eq!(
            lines(b"\x1b[2Jred\x07\x9b\xff\n"),
            ["[2Jred\u{fffd}\u{fffd}"]
        );
        assert!(lines(b"\n \n\t\n").is_empty());
    }
}
