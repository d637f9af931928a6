//! `/snapshot/create` and `/snapshot/load`.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::SpecError;
use super::parse::{check_path, or_default};

/// What goes into a new snapshot's memory layer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum SnapshotType {
    /// All of the memory, so that the snapshot needs no other layer of it.
    #[default]
    Full,
    /// What has changed since the last snapshot, or since the machine was
    /// restored. Such a snapshot can be loaded as it is: it names the layers
    /// below.
    Diff,
}

/// Body of `PUT /snapshot/create`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SnapshotCreate {
    /// What goes into the memory layer.
    #[serde(default, deserialize_with = "or_default")]
    pub snapshot_type: SnapshotType,
    /// The manifest to be written.
    pub snapshot_path: PathBuf,
    /// The memory layer to be written.
    pub mem_file_path: PathBuf,
    /// Take it of a machine that runs, and let it run on. Without this the
    /// machine has to be paused, and stays so.
    #[serde(default, deserialize_with = "or_default")]
    pub live: bool,
    /// The snapshot only serves to start forks on this host: it is not hashed
    /// and need not survive a crash of the host.
    #[serde(default, deserialize_with = "or_default")]
    pub local: bool,
}

impl SnapshotCreate {
    /// Checks what can be known without the host.
    ///
    /// # Errors
    /// The first field that breaks a rule.
    pub fn check(&self) -> Result<(), SpecError> {
        check_path("snapshot_path", &self.snapshot_path)?;
        check_path("mem_file_path", &self.mem_file_path)?;
        if self.snapshot_path == self.mem_file_path {
            let rule = "snapshot_path names the same file, and two are written";
            return Err(SpecError::new("mem_file_path", &self.mem_file_path, rule));
        }
        Ok(())
    }
}

/// Body of `PUT /snapshot/working-set`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WorkingSetRecord {
    /// The file to be written.
    pub path: PathBuf,
}

impl WorkingSetRecord {
    /// Checks what can be known without the host.
    ///
    /// # Errors
    /// The path cannot be one.
    pub fn check(&self) -> Result<(), SpecError> {
        check_path("path", &self.path)
    }
}

/// How memory that has not been touched yet is provided.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum MemoryBackendType {
    /// By the file itself.
    File,
    /// By another process, over a Unix socket.
    Uffd,
}

/// Where the memory of a snapshot comes from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MemoryBackend {
    /// What `backend_path` is.
    pub backend_type: MemoryBackendType,
    /// The memory layer, or a socket.
    pub backend_path: PathBuf,
}

/// Another host device for a network interface.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[expect(missing_docs, reason = "the fields are those of a network interface")]
pub struct NetworkOverride {
    pub iface_id: String,
    pub host_dev_name: String,
}

/// Another socket for the vsock device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VsockOverride {
    /// As in `/vsock`.
    pub uds_path: PathBuf,
}

/// Another file for a drive.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DriveOverride {
    /// The drive.
    pub drive_id: String,
    /// The file to serve instead of the one that the snapshot names. A drive
    /// that is a stack takes it for its delta.
    pub path_on_host: PathBuf,
}

/// Another place for the console's output.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SerialOverride {
    /// As in `/serial`.
    pub serial_out_path: PathBuf,
}

/// How the pages of a restored machine's memory are backed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum LoadHugePages {
    /// As when the snapshot was made.
    #[default]
    Snapshot,
    /// Pages of 4 KiB.
    None,
    /// Huge pages where the kernel finds them by itself.
    Transparent,
    /// Reserved pages of 2 MiB.
    #[serde(rename = "2M")]
    TwoMiB,
}

/// Body of `PUT /snapshot/load`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SnapshotLoad {
    /// The manifest.
    pub snapshot_path: PathBuf,
    /// The topmost memory layer; found by its name if this is left out.
    pub mem_file_path: Option<PathBuf>,
    /// The same, in the newer form.
    pub mem_backend: Option<MemoryBackend>,
    /// Directory of a store in which layers are looked for, too.
    pub store_path: Option<PathBuf>,
    /// A recorded working set: its pages are fetched while the machine runs
    /// already. One that is missing or damaged is as good as none.
    pub working_set_path: Option<PathBuf>,
    /// Let the machine run at once.
    #[serde(default, deserialize_with = "or_default")]
    pub resume_vm: bool,
    /// Let the guest's kvm-clock go on by the time that has passed since the
    /// snapshot was made.
    #[serde(default, deserialize_with = "or_default")]
    pub clock_realtime: bool,
    /// Accepted for clients that ask for it: changes are always known.
    #[serde(default, deserialize_with = "or_default")]
    pub track_dirty_pages: bool,
    /// The old name of the same.
    #[serde(default, deserialize_with = "or_default")]
    pub enable_diff_snapshots: bool,
    /// How memory is backed.
    #[serde(default, deserialize_with = "or_default")]
    pub huge_pages: LoadHugePages,
    /// Other host devices for network interfaces.
    #[serde(default, deserialize_with = "or_default")]
    pub network_overrides: Vec<NetworkOverride>,
    /// Another socket for the vsock device.
    pub vsock_override: Option<VsockOverride>,
    /// Other files for drives.
    #[serde(default, deserialize_with = "or_default")]
    pub drive_overrides: Vec<DriveOverride>,
    /// Another place for the console's output.
    pub serial_override: Option<SerialOverride>,
    /// Take drives whose files have been written to since the snapshot was
    /// made. What the guest remembers of them may then be wrong.
    #[serde(default, deserialize_with = "or_default")]
    pub accept_changed_drives: bool,
}

impl SnapshotLoad {
    /// Checks what can be known without the host.
    ///
    /// # Errors
    /// The first field that breaks a rule.
    pub fn check(&self) -> Result<(), SpecError> {
        check_path("snapshot_path", &self.snapshot_path)?;
        if let Some(path) = &self.mem_file_path {
            check_path("mem_file_path", path)?;
        }
        if let Some(path) = &self.store_path {
            check_path("store_path", path)?;
        }
        if let Some(path) = &self.working_set_path {
            check_path("working_set_path", path)?;
        }
        if let Some(backend) = &self.mem_backend {
            if self.mem_file_path.is_some() {
                let rule = "mem_file_path is set as well, and it is the older form of the same; \
                            leave one out";
                return Err(SpecError::new("mem_backend", &backend.backend_path, rule));
            }
            if backend.backend_type == MemoryBackendType::Uffd {
                let what = "a memory backend of the type Uffd";
                return Err(SpecError::unavailable(what, "set backend_type to File"));
            }
            check_path("backend_path", &backend.backend_path)?;
        }
        if let Some(network) = self.network_overrides.first() {
            let rule = "the snapshot has no such network interface; leave it out";
            return Err(SpecError::new("iface_id", &network.iface_id, rule));
        }
        if !matches!(
            self.huge_pages,
            LoadHugePages::Snapshot | LoadHugePages::None
        ) {
            let what = format!("huge_pages = {:?}", self.huge_pages);
            return Err(SpecError::unavailable(what, "leave it out"));
        }
        Ok(())
    }

    /// The file that was named for the topmost memory layer, if one was.
    pub fn memory_file(&self) -> Option<&PathBuf> {
        let backend = self
            .mem_backend
            .as_ref()
            .map(|backend| &backend.backend_path);
        backend.or(self.mem_file_path.as_ref())
    }
}
