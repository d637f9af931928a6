//! Snapshots of a machine, also of one that runs.
//!
//! ```text
//! machine  ──runs──┤ pause: save state, fork ├──runs on──────────────────────▶
//! helper                                     └─ writes changed pages ─┐
//! thread                                      waits ──────────────────┴─ layer,
//!                                                              manifest, done
//! ```
//!
//! The new memory layer appears under its name before the manifest that names
//! it, each whole or not at all, and what was there before stays until the
//! manifest is in place. So at any moment there is the old snapshot or the new
//! one.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, TryRecvError, sync_channel};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use coppice_snapshot::{
    Content, DeltaError, Draft, Info, Kind, Layer, LayerError, LayerRef, Manifest, ManifestError,
    Naming, SnapshotId, Stack, StackRef,
};
use serde::Serialize;
use vmm_sys_util::eventfd::EventFd;

use super::commit::Commit;
use super::compact::compact;
use super::drives::FrozenDrive;
use super::saved::MachineState;
use super::targets::{Kept, Targets};
use super::{Machine, MachineError};
use crate::arch::cpu_facts::CpuFacts;
use crate::backends::disk::FreezeError;
use crate::memory::copy::CopyError;
use crate::memory::layers;
use crate::memory::tracker::Running;
use crate::spec::{SnapshotCreate, SnapshotType, Spec};
use crate::state::{self, StateError};
use crate::sys::fork::Killer;
use crate::sys::host;

/// Why there is no snapshot. The machine is as it was.
#[derive(Debug, thiserror::Error)]
pub enum SnapshotError {
    /// One at a time.
    #[error("a snapshot of this machine is being written; wait until it is done")]
    Busy,
    /// The machine runs and that was not asked for.
    #[error(
        "the machine runs; pause it first (PATCH /vm), or set live to have it paused only for as \
         long as a fork of its process takes"
    )]
    Running,
    /// A path names something that the machine uses.
    #[error(
        "{field} is {}, which is {used}; choose another path",
        path.display()
    )]
    InUse {
        /// `snapshot_path` or `mem_file_path`.
        field: &'static str,
        /// The path.
        path: PathBuf,
        /// What it is.
        used: String,
    },
    /// A file cannot be made.
    #[error(
        "{} could not be {what} ({source}): its directory must exist, be writable and have room",
        path.display()
    )]
    File {
        /// The file.
        path: PathBuf,
        /// "created", "replaced" …
        what: &'static str,
        /// The host's answer.
        source: io::Error,
    },
    /// The machine could not be paused or saved.
    #[error(transparent)]
    Machine(#[from] MachineError),
    /// Its memory could not be copied.
    #[error(transparent)]
    Copy(#[from] CopyError),
    /// The layer could not be completed.
    #[error(transparent)]
    Layer(#[from] LayerError),
    /// A drive could not be frozen.
    #[error(transparent)]
    Freeze(#[from] FreezeError),
    /// A drive's delta could not be made or sealed.
    #[error(transparent)]
    Delta(#[from] DeltaError),
    /// The manifest could not be written.
    #[error(transparent)]
    Manifest(#[from] ManifestError),
    /// The state has no encoding.
    #[error(transparent)]
    State(#[from] StateError),
    /// The thread that writes it is gone.
    #[error("the thread that writes the snapshot ended early; see the log, and try again")]
    Lost,
}

/// What became of the last snapshot, for those who measure.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// The snapshot's id.
    pub id: SnapshotId,
    /// For how long no vCPU ran, in microseconds.
    pub pause_us: u64,
    /// How long the fork within the pause took, in microseconds.
    pub fork_us: u64,
    /// From the request to the manifest's being in place, in microseconds.
    pub total_us: u64,
    /// Blocks of 4 KiB that the new memory layer holds.
    pub held_blocks: u64,
    /// Those of them whose bytes are in the file.
    pub data_blocks: u64,
    /// The name of the new memory layer.
    pub memory_layer: String,
}

/// What `GET /snapshot` answers.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Snapshots {
    /// One is being written.
    pub writing: bool,
    /// The last that was made by this process.
    pub last: Option<Report>,
}

/// A snapshot that is being written.
pub(super) struct Writing {
    result: Receiver<Result<Written, SnapshotError>>,
    helper: Killer,
    commit: Commit,
    thread: JoinHandle<()>,
}

impl Writing {
    /// The machine ends: what is not written by now is not wanted. Returns when
    /// nothing of it is left.
    pub(super) fn abandon(self) {
        self.helper.kill();
        self.commit.abandon();
        // A panic there has been reported by the panic hook.
        let _ = self.thread.join();
    }
}

/// What the thread hands back.
struct Written {
    report: Report,
    memory: Stack,
}

impl Machine {
    /// Begins a snapshot. When this returns, the machine is in the state that it
    /// was in before, and the rest happens beside it: [`Machine::snapshot_done`]
    /// becomes readable, and then [`Machine::finish_snapshot`] says what became
    /// of it.
    ///
    /// # Errors
    /// See [`SnapshotError`]; nothing has changed then.
    pub fn begin_snapshot(&mut self, request: &SnapshotCreate) -> Result<(), SnapshotError> {
        let began = Instant::now();
        self.refuse_if_ended()?;
        if self.writing.is_some() {
            return Err(SnapshotError::Busy);
        }
        let runs = self.threads.running();
        if runs && !request.live {
            return Err(SnapshotError::Running);
        }
        let targets = Targets::check(request, &self.spec)?;
        let draft = Draft::beside(&targets.memory).map_err(|source| SnapshotError::File {
            path: targets.memory.clone(),
            what: "created",
            source,
        })?;
        let commit = Commit::of(draft.file()).map_err(|source| MachineError::Host {
            what: "share a descriptor",
            source,
        })?;
        let full = request.snapshot_type == SnapshotType::Full;
        let plan = self.tracker.plan(full)?;
        let (deltas, new) = self.next_deltas()?;

        let paused = Instant::now();
        self.threads.pause()?;
        let frozen = self.save().map_err(SnapshotError::from).and_then(|state| {
            let forked = Instant::now();
            let running = self.tracker.start(plan, draft.file())?;
            let fork = forked.elapsed();
            // Last, since it cannot be undone.
            new.keep();
            let drives = self.freeze_drives(deltas)?;
            Ok((state, running, drives, fork))
        });
        if runs {
            self.threads.resume()?;
        }
        let pause = if runs {
            paused.elapsed()
        } else {
            Duration::ZERO
        };
        let (state, mut running, drives, fork) = frozen?;
        let helper = running.killer()?;
        self.tracker.proceed(&mut running)?;

        let job = Job {
            running,
            draft,
            commit: commit.clone(),
            targets,
            naming: match request.local {
                true => Naming::Unique,
                false => Naming::Content,
            },
            state,
            drives,
            spec: self.spec.clone(),
            parent: self.parent,
            began,
            pause,
            fork,
        };
        let (sender, result) = sync_channel(1);
        let done = self.snapshot_done.try_clone();
        let spawned = done.and_then(|done| {
            Builder::new().name("snapshot".to_owned()).spawn(move || {
                // Fails only if nobody waits any more: the machine is gone.
                let _ = sender.send(job.write());
                raise(&done);
            })
        });
        let thread = spawned.map_err(|source| MachineError::Host {
            what: "start a thread for the snapshot",
            source,
        })?;
        self.writing = Some(Writing {
            result,
            helper,
            commit,
            thread,
        });
        Ok(())
    }

    /// Becomes readable when a snapshot is done.
    pub fn snapshot_done(&self) -> &EventFd {
        &self.snapshot_done
    }

    /// What became of the snapshot that was begun, if it is done.
    pub fn finish_snapshot(&mut self) -> Option<Result<(), SnapshotError>> {
        let writing = self.writing.as_ref()?;
        let result = match writing.result.try_recv() {
            Err(TryRecvError::Empty) => return None,
            Err(TryRecvError::Disconnected) => Err(SnapshotError::Lost),
            Ok(result) => result,
        };
        // An error means that it was read before.
        let _ = self.snapshot_done.read();
        self.writing = None;
        Some(result.map(|written| {
            let report = written.report;
            log::info!(
                "snapshot {} is written: the machine was paused for {} us, {} of them for the \
                 fork; {} blocks held; {} us in all",
                report.id,
                report.pause_us,
                report.fork_us,
                report.held_blocks,
                report.total_us
            );
            self.parent = Some(report.id);
            self.last_snapshot = Some(report);
            self.tracker.kept(written.memory);
        }))
    }

    /// Which snapshots are and were made of it.
    pub fn snapshots(&self) -> Snapshots {
        Snapshots {
            writing: self.writing.is_some(),
            last: self.last_snapshot.clone(),
        }
    }
}

fn raise(done: &EventFd) {
    // It can only fail when the counter is full, and then it is readable.
    let _ = done.write(1);
}

/// What is left to do when the machine runs again.
struct Job {
    running: Running,
    draft: Draft,
    commit: Commit,
    targets: Targets,
    naming: Naming,
    state: MachineState,
    drives: Vec<FrozenDrive>,
    spec: Spec,
    parent: Option<SnapshotId>,
    began: Instant,
    pause: Duration,
    fork: Duration,
}

impl Job {
    /// Waits for the helper, completes the layer and writes the manifest.
    fn write(mut self) -> Result<Written, SnapshotError> {
        let MachineState::V1(machine) = &mut self.state;
        machine.files = self.drives.iter().filter_map(FrozenDrive::file).collect();
        let state = state::encode("the machine", &self.state)?;
        let (copied, base) = self.running.finish()?;
        let content = Content {
            kind: Kind::Memory,
            blocks: copied.blocks,
            held: copied.held,
            zero: copied.zero,
        };
        let disks = self
            .drives
            .iter()
            .map(|drive| drive.seal(self.naming))
            .collect::<Result<Vec<_>, _>>()?;
        if self.naming == Naming::Content {
            make_durable(&base)?;
        }
        let kept = Kept::keep(&self.targets.memory, &base)?;
        let wanted = || self.commit.make();
        let layer = content.publish_if(self.draft, self.naming, wanted)?;
        let layer = Arc::new(layer);
        // From here on the old layer is put back if anything fails.
        let kept = kept.replaced();
        let stack = base.with(layer.clone());
        let compacted = compact(&stack, &self.targets.memory, self.naming)?;
        let memory = compacted.unwrap_or(stack);
        let info = Info {
            created_ms: now_ms(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            parent: self.parent,
            cpu: raw(&CpuFacts::of_host(host::boot_id()))?,
            machine: raw(&without_deltas(self.spec))?,
        };
        let manifest = Manifest {
            info,
            memory: refer(&memory),
            disks: disks.into_iter().flatten().collect(),
            state,
        };
        let id = manifest.write(&self.targets.manifest)?;
        kept.settle();
        let report = Report {
            id,
            pause_us: micros(self.pause),
            fork_us: micros(self.fork),
            total_us: micros(self.began.elapsed()),
            held_blocks: layer.held().blocks(),
            data_blocks: layer.data().blocks(),
            memory_layer: memory
                .layers()
                .first()
                .map_or_else(String::new, |layer| layer.name().to_string()),
        };
        Ok(Written { report, memory })
    }
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| u64::try_from(since.as_millis()).unwrap_or(0))
}

fn raw(value: &impl Serialize) -> Result<Box<serde_json::value::RawValue>, SnapshotError> {
    serde_json::value::to_raw_value(value).map_err(|error| {
        let what = "the machine's specification".to_owned();
        let why = error.to_string();
        SnapshotError::State(StateError::NotNow { what, why })
    })
}

/// Layers that were made for forks only may not have reached the disk yet.
fn make_durable(base: &Stack) -> Result<(), SnapshotError> {
    let made_for_forks = |layer: &&Arc<Layer>| !layer.name().is_by_content();
    for layer in base.layers().iter().filter(made_for_forks) {
        let path = layers::place(layer).unwrap_or_else(|| layer.path().to_owned());
        let dir = path.parent().unwrap_or(Path::new("/"));
        let synced = layer.file().sync_all();
        let synced = synced.and_then(|()| File::open(dir)?.sync_all());
        synced.map_err(|source| SnapshotError::File {
            path,
            what: "made durable",
            source,
        })?;
    }
    Ok(())
}

/// A specification that names no delta: each machine that is restored from it
/// needs one of its own.
fn without_deltas(mut spec: Spec) -> Spec {
    let stacks = spec
        .drives
        .iter_mut()
        .filter_map(|drive| drive.stack.as_mut());
    stacks.for_each(|stack| stack.delta = None);
    spec
}

/// The layers of `stack` by name and place.
pub(super) fn refer(stack: &Stack) -> StackRef {
    let layers = stack.layers();
    StackRef {
        blocks: layers.first().map_or(0, |layer| layer.blocks()),
        layers: layers
            .iter()
            .map(|layer| LayerRef {
                name: layer.name(),
                path: layers::place(layer).unwrap_or_else(|| absolute(layer.path())),
            })
            .collect(),
    }
}

fn absolute(path: &Path) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned())
}
