//! Where the serial console's output goes and its input comes from.
//!
//! ```text
//! vCPU ────────────────── at once ───────────────────▶ sink: stdout, a file
//! vCPU ── push ─▶ backlog (bounded) ── event loop ───▶ the same, if it was busy
//! vCPU ◀─ FIFO ◀──────────────────── event loop ────── input: stdin
//! ```
//!
//! A vCPU never waits for a reader. A sink that nobody reads fills the
//! backlog, and what does not fit is dropped and counted, so that a guest is
//! never stopped by its own console. Input is only read while the guest has room
//! for it, so none is lost.

mod backlog;
mod calls;
mod host;
mod input;
mod sink;
mod terminal;

use std::fs::OpenOptions;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

pub use backlog::Backlog;
pub use host::{Available, ConsoleHost, Drained};
pub use terminal::restore as restore_terminal;

use sink::Sink;

/// A console that could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum ConsoleError {
    /// The file for the output cannot be opened.
    #[error("the console's output cannot go to {path:?}: {source}")]
    Open {
        /// The file that was asked for.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// The host lacks descriptors or memory for it.
    #[error("the console cannot be set up: {0}")]
    Host(#[source] io::Error),
}

/// A console's two ends: what the device writes to, and what the event loop
/// serves.
pub struct Console {
    /// What the guest wrote and the host has not taken yet.
    pub backlog: Arc<Backlog>,
    /// The host's end.
    pub host: ConsoleHost,
}

impl Console {
    /// A console on this process's standard input and output. A terminal is put
    /// into raw mode if this process is in its foreground.
    ///
    /// # Errors
    /// The host lacks descriptors.
    pub fn stdio() -> Result<Self, ConsoleError> {
        let duplicate =
            |fd: std::os::fd::BorrowedFd<'_>| fd.try_clone_to_owned().map_err(ConsoleError::Host);
        let output = duplicate(io::stdout().as_fd())?;
        let input = duplicate(io::stdin().as_fd())?;
        Self::new(Some(output), Some(input))
    }

    /// A console whose output is appended to the file or named pipe at `path`,
    /// without input.
    ///
    /// # Errors
    /// The file cannot be opened or made.
    pub fn file(path: &Path) -> Result<Self, ConsoleError> {
        // Readable as well, because a named pipe without a reader could not be
        // opened otherwise.
        let file = OpenOptions::new()
            .read(true)
            .append(true)
            .create(true)
            .mode(0o600)
            .custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY)
            .open(path)
            .map_err(|source| ConsoleError::Open {
                path: path.into(),
                source,
            })?;
        Self::with_sink(Some(Sink::own(file)), None)
    }

    /// A console whose output vanishes, without input.
    ///
    /// # Errors
    /// The host lacks descriptors.
    pub fn nothing() -> Result<Self, ConsoleError> {
        Self::new(None, None)
    }

    /// A console on any descriptors. Flags of their open file descriptions,
    /// which other processes may share, are left alone.
    ///
    /// # Errors
    /// The host lacks descriptors.
    pub fn new(output: Option<OwnedFd>, input: Option<OwnedFd>) -> Result<Self, ConsoleError> {
        let sink = output
            .map(Sink::shared)
            .transpose()
            .map_err(ConsoleError::Host)?;
        Self::with_sink(sink, input)
    }

    fn with_sink(sink: Option<Sink>, input: Option<OwnedFd>) -> Result<Self, ConsoleError> {
        let backlog = Arc::new(Backlog::new(sink.is_some()).map_err(ConsoleError::Host)?);
        let host = ConsoleHost::new(backlog.clone(), sink, input).map_err(ConsoleError::Host)?;
        Ok(Self { backlog, host })
    }
}

#[cfg(test)]
#[path = "console_test.rs"]
pub(crate) mod tests;
