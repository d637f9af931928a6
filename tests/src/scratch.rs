//! A directory of a test's own, and what may not be left in it.

use std::fs;
use std::os::unix::fs::FileTypeExt as _;
use std::path::{Path, PathBuf};

/// A directory that vanishes with the test.
pub struct Scratch(tempfile::TempDir);

impl Scratch {
    /// A new one, with a path short enough for sockets.
    #[expect(clippy::new_without_default, reason = "it makes a directory")]
    pub fn new() -> Self {
        Self(tempfile::tempdir().expect("a directory can be made"))
    }

    /// The path of `name` in it.
    pub fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// A file in it with `content`.
    pub fn file(&self, name: &str, content: impl AsRef<[u8]>) -> PathBuf {
        let path = self.path(name);
        fs::write(&path, content).expect("a file can be written");
        path
    }

    /// The directory.
    pub fn dir(&self) -> &Path {
        self.0.path()
    }

    /// Fails if a process still knows of it or a socket is left in it.
    pub fn assert_nothing_left(&self) {
        let processes = processes_with(self.dir());
        assert!(processes.is_empty(), "processes were left: {processes:?}");
        let sockets: Vec<PathBuf> = fs::read_dir(self.dir())
            .expect("the directory can be listed")
            .map(|entry| entry.expect("its entries can be read").path())
            .filter(|path| {
                fs::symlink_metadata(path).is_ok_and(|data| data.file_type().is_socket())
            })
            .collect();
        assert!(sockets.is_empty(), "sockets were left: {sockets:?}");
    }
}

/// The command lines of the processes, other than this one, that name `path`.
pub fn processes_with(path: &Path) -> Vec<String> {
    let path = path.to_str().expect("UTF-8");
    let own = std::process::id().to_string();
    fs::read_dir("/proc")
        .expect("/proc is there")
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        .filter(|pid| pid.bytes().all(|c| c.is_ascii_digit()) && *pid != own)
        .filter_map(|pid| fs::read(format!("/proc/{pid}/cmdline")).ok())
        .map(|line| String::from_utf8_lossy(&line).replace('\0', " "))
        .filter(|line| line.contains(path))
        .collect()
}
