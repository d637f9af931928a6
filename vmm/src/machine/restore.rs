//! A machine from a snapshot: built from its specification, then filled.
//!
//! This is the fast path. The order of KVM's calls is that of
//! [`Machine::assemble`]; nothing is asked of KVM that the snapshot knows, and
//! no page is read that the guest does not touch.

use std::path::{Path, PathBuf};

use coppice_snapshot::{FindError, Kind, Manifest, ManifestError, Places};

use super::drives::NewDeltas;
use super::saved::{MachineState, MachineV1};
use super::{Events, Machine, MachineError};
use crate::arch::cpu_facts::{CpuFacts, CpuMismatch};
use crate::backends::disk_stack::{DiskStack, DiskStackError};
use crate::board::Disks;
use crate::devices::vmgenid::VmGenIdError;
use crate::memory::tracker::Tracker;
use crate::memory::{self, MemoryError, layers};
use crate::spec::{DriveConfig, DriveStack, SerialConfig, SnapshotLoad, Spec, SpecError};
use crate::state::{self, StateError};
use crate::sys::host;
use crate::sys::kvm::{self, KvmError};
use crate::vcpu::Vcpu;

/// Why a snapshot cannot be restored. Nothing is left behind.
#[derive(Debug, thiserror::Error)]
pub enum RestoreError {
    /// The manifest.
    #[error(transparent)]
    Manifest(#[from] ManifestError),
    /// A layer.
    #[error(transparent)]
    Layers(#[from] FindError),
    /// The specification in the manifest, or an override.
    #[error("in the snapshot {}: {source}", path.display())]
    Spec {
        /// The manifest.
        path: PathBuf,
        /// What is wrong.
        source: SpecError,
    },
    /// The snapshot contradicts itself.
    #[error("the snapshot {} is damaged: {what}; make it anew", path.display())]
    Damaged {
        /// The manifest.
        path: PathBuf,
        /// What is wrong.
        what: String,
    },
    /// An override names something that the machine does not have.
    #[error("{what} is overridden, but the snapshot's machine has none; leave it out")]
    NoSuchDevice {
        /// The device.
        what: String,
    },
    /// A drive that is a stack has nothing to write to.
    #[error(
        "drive {drive_id:?} is a stack, and each machine that is restored needs a delta of its \
         own: name a new file for it in drive_overrides"
    )]
    NeedsDelta {
        /// The drive.
        drive_id: String,
    },
    /// A drive's stack cannot be had.
    #[error("drive {drive_id:?}: {source}")]
    Disk {
        /// The drive.
        drive_id: String,
        /// What is wrong.
        source: Box<DiskStackError>,
    },
    /// The processors differ.
    #[error(transparent)]
    Cpu(#[from] CpuMismatch),
    /// The layers cannot be mapped.
    #[error("the layers of the machine's memory could not be mapped ({0})")]
    Map(std::io::Error),
    /// The machine cannot be built.
    #[error(transparent)]
    Machine(#[from] MachineError),
}

impl From<KvmError> for RestoreError {
    fn from(error: KvmError) -> Self {
        Self::Machine(error.into())
    }
}

impl From<MemoryError> for RestoreError {
    fn from(error: MemoryError) -> Self {
        Self::Machine(error.into())
    }
}

impl From<StateError> for RestoreError {
    fn from(error: StateError) -> Self {
        Self::Machine(error.into())
    }
}

impl From<VmGenIdError> for RestoreError {
    fn from(error: VmGenIdError) -> Self {
        Self::Machine(error.into())
    }
}

impl Machine {
    /// Restores the machine of a snapshot and subscribes its devices to
    /// `events`. Its vCPUs do not run yet.
    ///
    /// # Errors
    /// See [`RestoreError`].
    pub fn restore(load: &SnapshotLoad, events: &mut Events) -> Result<Self, RestoreError> {
        let path = load.snapshot_path.as_path();
        let (manifest, id) = Manifest::read(path)?;
        let mut spec = specification(&manifest, load)?;
        let state: MachineState = state::decode("the machine", &manifest.state)?;
        check_processors(&manifest, &state, path)?;
        if manifest.memory.layers.is_empty() {
            return Err(damaged(path, "its memory has no layer".into()));
        }
        let places = places(load);
        let stack = places.open(Kind::Memory, &manifest.memory)?;

        let kvm = kvm::open()?;
        let memory = memory::map(spec.machine.mem_size_mib as u64)?;
        if layers::blocks(&memory) != manifest.memory.blocks {
            let what = format!(
                "its memory has {} pages, and its specification says {} MiB",
                manifest.memory.blocks, spec.machine.mem_size_mib
            );
            return Err(damaged(path, what));
        }
        layers::map_stack(&memory, &stack).map_err(RestoreError::Map)?;
        let mut new = NewDeltas::default();
        let disks = open_disks(&manifest, &mut spec, &places, &mut new)?;
        let (vm, board) = Self::assemble(&kvm, &spec, &memory, disks)?;
        let vcpus = (0..spec.machine.vcpu_count)
            .map(|index| Vcpu::new(&vm, index))
            .collect::<Result<Vec<_>, _>>()?;
        let tracker = Tracker::new(&memory, stack);
        let mut machine = Self::complete(kvm, vm, board, vcpus, memory, tracker, spec)?;
        machine.parent = Some(id);
        let MachineState::V1(MachineV1 { files, .. }) = &state;
        let replaced = load.drive_overrides.iter();
        let replaced: Vec<_> = replaced.map(|drive| drive.drive_id.as_str()).collect();
        machine.check_files(files, &replaced, load.accept_changed_drives)?;
        machine.fill(state, load.clock_realtime)?;
        machine.board.vmgenid.renew(&machine.memory)?;
        machine.to_wake = true;
        if let Some(path) = &load.working_set_path {
            machine.advise(path);
        }
        machine.subscribe(events);
        new.keep();
        Ok(machine)
    }
}

fn damaged(path: &Path, what: String) -> RestoreError {
    RestoreError::Damaged {
        path: path.to_owned(),
        what,
    }
}

/// Where layers may be.
fn places(load: &SnapshotLoad) -> Places {
    let memory = load.memory_file().cloned();
    let dir_of = |path: &Path| path.parent().map(Path::to_owned);
    let dirs = [Some(load.snapshot_path.as_path()), memory.as_deref()];
    Places {
        dirs: dirs.into_iter().flatten().filter_map(dir_of).collect(),
        memory,
        store: load.store_path.clone(),
    }
}

/// The specification with the overrides in it.
fn specification(manifest: &Manifest, load: &SnapshotLoad) -> Result<Spec, RestoreError> {
    let path = load.snapshot_path.as_path();
    let mut spec: Spec = serde_json::from_str(manifest.info.machine.get())
        .map_err(|error| damaged(path, format!("its specification is unreadable ({error})")))?;
    if let Some(vsock) = &load.vsock_override {
        let config = spec.vsock.as_mut().ok_or_else(|| no_such("vsock"))?;
        config.uds_path.clone_from(&vsock.uds_path);
    }
    for drive in &load.drive_overrides {
        let same = |config: &&mut DriveConfig| config.drive_id == drive.drive_id;
        let config = spec.drives.iter_mut().find(same);
        let config = config.ok_or_else(|| no_such(&format!("drive {:?}", drive.drive_id)))?;
        match &mut config.stack {
            Some(stack) => stack.delta = Some(drive.path_on_host.clone()),
            None => config.path_on_host.clone_from(&drive.path_on_host),
        }
    }
    let lacks = |drive: &&DriveConfig| {
        let stack = drive.stack.as_ref();
        !drive.is_read_only && stack.is_some_and(|stack| stack.delta.is_none())
    };
    if let Some(drive) = spec.drives.iter().find(lacks) {
        return Err(RestoreError::NeedsDelta {
            drive_id: drive.drive_id.clone(),
        });
    }
    if let Some(serial) = &load.serial_override {
        spec.serial = Some(SerialConfig {
            serial_out_path: Some(serial.serial_out_path.clone()),
            ..spec.serial.unwrap_or_default()
        });
    }
    spec.check().map_err(|source| RestoreError::Spec {
        path: path.to_owned(),
        source,
    })?;
    Ok(spec)
}

/// Opens the stacks of drives, each with a new delta if it is written to, and
/// says in `spec` where they are.
fn open_disks(
    manifest: &Manifest,
    spec: &mut Spec,
    places: &Places,
    new: &mut NewDeltas,
) -> Result<Disks, RestoreError> {
    let mut disks = Disks::new();
    for disk in &manifest.disks {
        let same = |drive: &&mut DriveConfig| drive.drive_id == disk.drive_id;
        let Some(config) = spec.drives.iter_mut().find(same) else {
            let what = format!(
                "it has layers of a drive {:?}, which is not there",
                disk.drive_id
            );
            return Err(damaged(Path::new("that is being restored"), what));
        };
        let failed = |source: DiskStackError| RestoreError::Disk {
            drive_id: disk.drive_id.clone(),
            source: Box::new(source),
        };
        let stack = places.open(Kind::Disk, &disk.stack)?;
        let path = config.stack.take().and_then(|stack| stack.delta);
        let delta = path
            .as_ref()
            .map(|path| new.create(path, disk.stack.blocks))
            .transpose()
            .map_err(|error| failed(error.into()))?;
        config.stack = Some(DriveStack {
            layers: stack
                .layers()
                .iter()
                .map(|layer| layer.path().to_owned())
                .collect(),
            delta: path,
        });
        let disk_stack = DiskStack::new(&stack, delta).map_err(failed)?;
        disks.insert(disk.drive_id.clone(), disk_stack);
    }
    Ok(disks)
}

fn no_such(what: &str) -> RestoreError {
    RestoreError::NoSuchDevice {
        what: what.to_owned(),
    }
}

fn check_processors(
    manifest: &Manifest,
    state: &MachineState,
    path: &Path,
) -> Result<(), RestoreError> {
    let saved: CpuFacts = serde_json::from_str(manifest.info.cpu.get()).map_err(|error| {
        damaged(
            path,
            format!("its facts of processors are unreadable ({error})"),
        )
    })?;
    let boot_id = host::boot_id();
    if saved.are_of_boot(&boot_id) {
        return Ok(());
    }
    let MachineState::V1(state) = state;
    let guest = state.vcpus.first().map_or(&[][..], |vcpu| vcpu.cpuid());
    Ok(saved.suffices(&CpuFacts::of_host(boot_id), guest)?)
}
