//! What is written down about a machine that is up.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use coppice_snapshot::SnapshotId;
use serde::{Deserialize, Serialize};

use super::name::Name;
use crate::cli::MachineArgs;
use crate::parts::Parts;
use crate::process::ProcessId;

/// The record's file in the machine's directory.
const FILE: &str = "machine.json";

/// Which process a machine is, and what it was made of.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// Its VMM.
    pub vmm: ProcessId,
    /// When it was started, in seconds since 1970.
    pub created: u64,
    /// What it was made of.
    #[serde(flatten)]
    pub facts: Facts,
}

/// What a machine was made of.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Facts {
    /// Its image's file.
    pub image: String,
    /// Its kernel's file.
    pub kernel: String,
    /// Virtual processors.
    pub vcpus: u8,
    /// Memory in MiB.
    pub memory_mib: usize,
    /// Whether it may write to its image.
    pub writable: bool,
    /// The machine that it was forked from.
    #[serde(default)]
    pub parent: Option<Name>,
    /// The kept snapshot that it, or what it was forked from, grew from.
    #[serde(default)]
    pub snapshot: Option<SnapshotId>,
    /// The last kept snapshot that was made of it.
    #[serde(default)]
    pub last_snapshot: Option<SnapshotId>,
    /// The store in which layers of its memory may be.
    #[serde(default)]
    pub store: Option<PathBuf>,
}

impl Facts {
    /// Those of a machine that boots.
    pub fn new(args: &MachineArgs, parts: &Parts) -> Self {
        Self {
            image: parts.image.path.display().to_string(),
            kernel: parts.kernel.display().to_string(),
            vcpus: args.vcpus,
            memory_mib: args.memory,
            writable: args.writable,
            ..Self::default()
        }
    }

    /// The kept snapshot from which its memory differs least.
    pub fn base(&self) -> Option<SnapshotId> {
        self.last_snapshot.or(self.snapshot)
    }
}

impl Record {
    /// The record of a machine that starts now.
    pub fn new(vmm: ProcessId, facts: Facts) -> Self {
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        Self {
            vmm,
            created: now.map(|now| now.as_secs()).unwrap_or_default(),
            facts,
        }
    }

    /// Writes it into `dir`, whole or not at all.
    pub fn write(&self, dir: &Path) -> io::Result<()> {
        let draft = dir.join("machine.json.new");
        let mut file = fs::File::create(&draft)?;
        serde_json::to_writer(&mut file, self)?;
        file.write_all(b"\n")?;
        fs::rename(draft, dir.join(FILE))
    }

    /// The record in `dir`, if there is one.
    pub fn read(dir: &Path) -> io::Result<Option<Self>> {
        match fs::read(dir.join(FILE)) {
            Ok(bytes) => Ok(Some(serde_json::from_slice(&bytes)?)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_read_as_it_was_written() {
        let dir = tempfile::tempdir().expect("directory");
        assert_eq!(Record::read(dir.path()).expect("read"), None);
        let record = Record {
            vmm: ProcessId {
                pid: 12,
                started: 345,
            },
            created: 1_800_000_000,
            facts: Facts {
                image: "/images/base.ext4".into(),
                kernel: "/vmlinux".into(),
                vcpus: 2,
                memory_mib: 512,
                writable: true,
                parent: Some("base".parse().expect("a name")),
                snapshot: None,
                last_snapshot: None,
                store: Some("/store".into()),
            },
        };
        record.write(dir.path()).expect("written");
        assert_eq!(Record::read(dir.path()).expect("read"), Some(record));
        fs::write(dir.path().join(FILE), b"{\"vmm\":").expect("written");
        assert!(Record::read(dir.path()).is_err());
    }
}
