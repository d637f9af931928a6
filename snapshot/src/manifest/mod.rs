//! A snapshot's manifest: one small file that says what the snapshot is.
//!
//! It holds the state of the machine and names the layers of its memory and
//! disks. Layers are found by name ([`crate::find`]), so that a manifest can be
//! moved with or without them.

mod file;
mod stacks;

use std::fmt;
use std::fs::File;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::draft::Draft;
use crate::layer::LayerName;
use crate::remedy::Remedy;

/// A manifest may have no more bytes than this, most of which are the state.
pub const MAX_LEN: u64 = 64 << 20;

/// What a snapshot is.
#[derive(Clone, Debug)]
pub struct Manifest {
    /// Where it comes from and what it needs.
    pub info: Info,
    /// The layers of the machine's memory.
    pub memory: StackRef,
    /// The layers of those disks that were frozen with it.
    pub disks: Vec<DiskRef>,
    /// The state of vCPUs and devices; only the VMM understands it.
    pub state: Vec<u8>,
}

/// Where a snapshot comes from and what it needs.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Info {
    /// When it was made, in milliseconds since 1970.
    pub created_ms: u64,
    /// The version of the program that made it.
    pub version: String,
    /// The snapshot that the machine had been restored from.
    pub parent: Option<SnapshotId>,
    /// What a host's CPU must be able to do; JSON that only the VMM understands.
    pub cpu: Box<RawValue>,
    /// The machine's specification; JSON that only the VMM understands.
    pub machine: Box<RawValue>,
}

/// A stack of layers by name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StackRef {
    /// Blocks of the memory or disk.
    pub blocks: u64,
    /// The layers, topmost first.
    pub layers: Vec<LayerRef>,
}

/// A layer by name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LayerRef {
    /// Its name.
    pub name: LayerName,
    /// Where its file was when the snapshot was made: a hint.
    pub path: PathBuf,
}

/// A disk's stack.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiskRef {
    /// The drive that it is, unique among the disks.
    pub drive_id: String,
    /// Its layers.
    pub stack: StackRef,
}

/// The name of a snapshot: the checksum that its manifest carries.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SnapshotId([u8; 32]);

/// Why a manifest cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum ManifestError {
    /// The host refused.
    #[error("the snapshot {} could not be {what} ({source}){}", path.display(), Remedy(source))]
    Io {
        /// The manifest.
        path: PathBuf,
        /// "read", "written".
        what: &'static str,
        /// The host's answer.
        source: io::Error,
    },
    /// The file does not begin as a manifest does.
    #[error(
        "{} is no snapshot: it does not begin as a manifest of coppice does; give the file that \
         was written as snapshot_path when the snapshot was made",
        path.display()
    )]
    NotAManifest {
        /// The file.
        path: PathBuf,
    },
    /// The file ends early.
    #[error(
        "the snapshot {} is truncated: it has {len} of {expected} bytes; copy it again from where \
         it was complete",
        path.display()
    )]
    Truncated {
        /// The manifest.
        path: PathBuf,
        /// Its length in bytes.
        len: u64,
        /// What its header says, or the length of the header.
        expected: u64,
    },
    /// It was made by a later version.
    #[error(
        "the snapshot {} has version {version} of the format, and this program reads only \
         version {}: use a newer coppice, or make the snapshot anew",
        path.display(), file::VERSION
    )]
    Version {
        /// The manifest.
        path: PathBuf,
        /// Its version.
        version: u32,
    },
    /// It contradicts itself or its checksum.
    #[error(
        "the snapshot {} is damaged: {what}; copy it again from where it was complete, or make it \
         anew",
        path.display()
    )]
    Damaged {
        /// The manifest.
        path: PathBuf,
        /// What is wrong.
        what: String,
    },
}

impl Manifest {
    /// The bytes of the manifest's file, and its id.
    pub fn encode(&self) -> (Vec<u8>, SnapshotId) {
        let info = serde_json::to_vec(&self.info).expect("maps with keys that are strings");
        let stacks = stacks::encode(&self.memory, &self.disks);
        let (bytes, checksum) = file::encode(&info, &stacks, &self.state);
        (bytes, SnapshotId(checksum))
    }

    /// The manifest in `bytes`, and its id; `path` is what errors call it.
    /// Checks everything that can be checked without the layers.
    ///
    /// # Errors
    /// It is truncated, damaged, no manifest, or too new.
    pub fn decode(bytes: &[u8], path: &Path) -> Result<(Self, SnapshotId), ManifestError> {
        let parts = file::decode(bytes, path)?;
        let damaged = |what: String| ManifestError::Damaged {
            path: path.to_owned(),
            what,
        };
        let info = serde_json::from_slice(parts.info)
            .map_err(|error| damaged(format!("its section \"info\" is unreadable ({error})")))?;
        let (memory, disks) = stacks::decode(parts.stacks)
            .map_err(|what| damaged(format!("in its section \"stacks\", {what}")))?;
        let manifest = Self {
            info,
            memory,
            disks,
            state: parts.state.to_vec(),
        };
        Ok((manifest, SnapshotId(parts.checksum)))
    }

    /// Reads the manifest at `path`, and gives its id with it.
    ///
    /// # Errors
    /// The file is unreadable, truncated, damaged, no manifest, or too new.
    pub fn read(path: &Path) -> Result<(Self, SnapshotId), ManifestError> {
        Self::decode(&read(path)?, path)
    }

    /// Writes the manifest to `path`, whole or not at all, in place of what is
    /// there. It is durable when this returns its id.
    ///
    /// # Errors
    /// The host cannot write it.
    pub fn write(&self, path: &Path) -> Result<SnapshotId, ManifestError> {
        let (bytes, id) = self.encode();
        let written = (|| {
            let draft = Draft::beside(path)?;
            draft.file().write_all(&bytes)?;
            draft.publish()
        })();
        written.map_err(|source| ManifestError::Io {
            path: path.to_owned(),
            what: "written",
            source,
        })?;
        Ok(id)
    }

    /// All layers that it names, of its memory and its disks.
    pub fn layers(&self) -> impl Iterator<Item = &LayerRef> {
        let disks = self.disks.iter().flat_map(|disk| &disk.stack.layers);
        self.memory.layers.iter().chain(disks)
    }
}

/// The bytes of a file that begins as a manifest does and has the length that
/// its header says, so that nothing else is read into memory.
pub(crate) fn read(path: &Path) -> Result<Vec<u8>, ManifestError> {
    let io = |source| ManifestError::Io {
        path: path.to_owned(),
        what: "read",
        source,
    };
    let mut file: File = crate::open::regular(path).map_err(io)?;
    let len = file.metadata().map_err(io)?.len();
    let mut bytes = vec![0; len.min(file::HEADER as u64) as usize];
    file.read_exact(&mut bytes).map_err(io)?;
    file::check_header(&bytes, len, path)?;
    // One byte more than there ought to be, to notice a file that grows.
    let rest = len - bytes.len() as u64 + 1;
    bytes.reserve_exact(rest as usize);
    file.take(rest).read_to_end(&mut bytes).map_err(io)?;
    Ok(bytes)
}

impl SnapshotId {
    /// The checksum.
    pub fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

impl fmt::Display for SnapshotId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        crate::hex::write(&self.0, f)
    }
}

impl fmt::Debug for SnapshotId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Text that is no snapshot's id.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no id of a snapshot: it has 64 hexadecimal digits")]
pub struct BadId(String);

impl FromStr for SnapshotId {
    type Err = BadId;

    fn from_str(text: &str) -> Result<Self, BadId> {
        let bytes = crate::hex::parse(text);
        bytes
            .map(Self)
            .ok_or_else(|| BadId(text.chars().take(100).collect()))
    }
}

impl Serialize for SnapshotId {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for SnapshotId {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = std::borrow::Cow::<'de, str>::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
#[path = "manifest_test.rs"]
mod tests;
