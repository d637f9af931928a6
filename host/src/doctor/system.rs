//! The kernel's files about itself.

use std::fs;
use std::path::{Path, PathBuf};

/// A host as its files under `/proc`, `/sys` and `/dev` describe it.
#[derive(Debug)]
pub struct System {
    root: PathBuf,
}

impl System {
    /// The host whose files are below `root`.
    pub fn new(root: impl AsRef<Path>) -> Self {
        Self {
            root: root.as_ref().to_path_buf(),
        }
    }

    /// A file's contents without the last newline; `None` if it is not there.
    pub fn read(&self, path: &str) -> Option<String> {
        let text = fs::read_to_string(self.path(path)).ok()?;
        Some(text.trim_end().to_owned())
    }

    /// A file that holds one number.
    pub fn number(&self, path: &str) -> Option<u64> {
        self.read(path)?.parse().ok()
    }

    /// A path on this host.
    pub fn path(&self, path: &str) -> PathBuf {
        self.root.join(path)
    }
}
