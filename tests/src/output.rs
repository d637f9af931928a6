//! What a process writes, followed while it runs.

use std::io::Read;
use std::sync::{Arc, Condvar, Mutex};
use std::thread;
use std::time::{Duration, Instant};

/// How long a step of a guest may take. On an emulated processor with other
/// guests beside it a boot takes half a minute.
pub const PATIENCE: Duration = Duration::from_secs(150);

#[derive(Default)]
struct Text {
    bytes: Vec<u8>,
    ended: bool,
}

/// Everything that was written so far, and more to come.
#[derive(Clone)]
pub struct Output {
    text: Arc<(Mutex<Text>, Condvar)>,
    /// What else to show when something is waited for in vain.
    beside: Option<Arc<Output>>,
}

impl Output {
    /// Follows `stream` to its end in a thread.
    pub fn follow(mut stream: impl Read + Send + 'static) -> Self {
        let output = Self {
            text: Arc::default(),
            beside: None,
        };
        let shared = output.text.clone();
        thread::spawn(move || {
            let mut chunk = [0; 65536];
            loop {
                let count = stream.read(&mut chunk).unwrap_or(0);
                let mut text = shared.0.lock().expect("no thread panics with it");
                text.bytes.extend(&chunk[..count]);
                text.ended = count == 0;
                shared.1.notify_all();
                if text.ended {
                    return;
                }
            }
        });
        output
    }

    /// Shows the end of `other` too when something is waited for in vain.
    pub fn beside(mut self, other: &Output) -> Self {
        self.beside = Some(Arc::new(other.clone()));
        self
    }

    /// What was written so far, without carriage returns.
    pub fn text(&self) -> String {
        let text = self.text.0.lock().expect("no thread panics with it");
        String::from_utf8_lossy(&text.bytes).replace('\r', "")
    }

    /// Bytes that were written so far.
    pub fn len(&self) -> usize {
        self.text
            .0
            .lock()
            .expect("no thread panics with it")
            .bytes
            .len()
    }

    /// Whether nothing was written so far.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Waits until `found` finds something in the text.
    ///
    /// # Panics
    /// It does not in time, or the stream ends without it.
    pub fn wait<T>(&self, what: &str, found: impl Fn(&str) -> Option<T>) -> T {
        let deadline = Instant::now() + PATIENCE;
        let mut text = self.text.0.lock().expect("no thread panics with it");
        loop {
            let now = String::from_utf8_lossy(&text.bytes).replace('\r', "");
            if let Some(found) = found(&now) {
                return found;
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if text.ended || left.is_zero() {
                let why = if text.ended {
                    "the stream ended"
                } else {
                    "time is up"
                };
                let beside = self.beside.as_ref().map(|other| other.text());
                panic!(
                    "waiting for {what}: {why}; there was:\n{}\nand beside it:\n{}",
                    tail(&now),
                    tail(&beside.unwrap_or_default())
                );
            }
            let waited = self.text.1.wait_timeout(text, left);
            text = waited.expect("no thread panics with it").0;
        }
    }

    /// Waits for `wanted`.
    pub fn wait_for(&self, wanted: &str) {
        self.wait(wanted, |text| text.contains(wanted).then_some(()));
    }

    /// Waits for a line that begins with `key` and `=`, and returns the rest.
    pub fn value(&self, key: &str) -> String {
        self.wait(key, |text| {
            let mut lines = text.split_inclusive('\n');
            lines.find_map(|line| {
                let value = line.strip_prefix(key)?.strip_prefix('=')?;
                Some(value.strip_suffix('\n')?.to_owned())
            })
        })
    }

    /// Waits for the end and returns everything.
    pub fn to_end(&self) -> String {
        let mut text = self.text.0.lock().expect("no thread panics with it");
        let deadline = Instant::now() + PATIENCE;
        while !text.ended {
            let left = deadline.saturating_duration_since(Instant::now());
            assert!(!left.is_zero(), "the stream did not end");
            let waited = self.text.1.wait_timeout(text, left);
            text = waited.expect("no thread panics with it").0;
        }
        String::from_utf8_lossy(&text.bytes).replace('\r', "")
    }
}

/// The last lines of a text that may be long.
fn tail(text: &str) -> &str {
    let at = text.len().saturating_sub(4000);
    let at = (at..text.len()).find(|at| text.is_char_boundary(*at));
    &text[at.unwrap_or(0)..]
}
