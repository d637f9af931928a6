//! Why a command about snapshots failed.

use std::io;
use std::path::PathBuf;

use coppice_snapshot::pack::PackError;
use coppice_snapshot::{FindError, ManifestError, StoreError};

/// Why a command about snapshots failed.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// The store cannot do it.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// A snapshot outside the store is unreadable.
    #[error(transparent)]
    Manifest(#[from] ManifestError),
    /// One of its layers is.
    #[error(transparent)]
    Find(#[from] FindError),
    /// It cannot be packed or unpacked.
    #[error(transparent)]
    Pack(#[from] PackError),
    /// The machine is not there, or cannot be frozen.
    #[error(transparent)]
    Machine(Box<crate::error::Error>),
    /// A file on the command line cannot be used.
    #[error("{} could not be {what} ({source})", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// "read", "written".
        what: &'static str,
        /// The host's answer.
        source: io::Error,
    },
    /// A list of layers has something else in it.
    #[error("in line {line} of {}, {error}", path.display())]
    List {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: usize,
        /// What is wrong with it.
        error: coppice_snapshot::layer::BadName,
    },
    /// Bytes for a file would go to a terminal.
    #[error("a pack is not written to a terminal: give a file with -o, or use a pipe")]
    Terminal,
}

impl From<crate::error::Error> for Failure {
    fn from(error: crate::error::Error) -> Self {
        Self::Machine(Box::new(error))
    }
}

impl Failure {
    /// `Io` with the host's answer.
    pub fn io(path: &std::path::Path, what: &'static str) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::Io { path, what, source }
    }
}
