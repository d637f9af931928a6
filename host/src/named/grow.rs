//! A machine that grows from a snapshot, until it is one of its own.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use coppice_snapshot::Manifest;
use serde::{Deserialize, Serialize};

use super::dir::Held;
use super::name::Name;
use super::record::{Facts, Record};
use crate::api::Api;
use crate::error::Error;
use crate::process::ProcessId;
use crate::renewal;
use crate::vmm::Vmm;
use crate::wait;

/// How long the VMM may take for one request.
const PATIENCE: Duration = Duration::from_secs(10);

/// What machines grow from.
#[derive(Debug)]
pub struct Seed {
    /// The VMM.
    pub program: PathBuf,
    /// The snapshot's manifest.
    pub manifest: PathBuf,
    /// What the machines will be.
    pub facts: Facts,
    /// Drives of which each machine gets a delta of its own.
    pub stacks: Vec<String>,
    /// Where the pages are recorded that machines touch first, if they are.
    pub working_set: Option<PathBuf>,
    /// How long a machine may take until its agent has confirmed that it is
    /// another one.
    pub limit: Duration,
}

/// A machine that has grown.
#[derive(Debug)]
pub struct Grown {
    /// Its VMM.
    pub vmm: ProcessId,
    /// When its VMM was started, and when it was ready for commands.
    pub began: Instant,
    /// See `began`.
    pub ready: Instant,
}

/// The parts of a machine's specification that matter here, as the VMM writes
/// it into manifests.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
struct Spec {
    machine_config: Config,
    boot_source: Option<BootSource>,
    drives: Vec<Drive>,
}

#[derive(Debug, Deserialize)]
struct Config {
    vcpu_count: u8,
    mem_size_mib: usize,
}

#[derive(Debug, Deserialize)]
struct BootSource {
    kernel_image_path: String,
}

#[derive(Debug, Deserialize)]
struct Drive {
    drive_id: String,
    #[serde(default)]
    path_on_host: String,
    #[serde(default)]
    stack: Option<Stack>,
    #[serde(default)]
    is_read_only: bool,
}

#[derive(Debug, Deserialize)]
struct Stack {
    layers: Vec<String>,
}

/// The body of `PUT /snapshot/load`.
#[derive(Debug, Serialize)]
struct Load<'a> {
    snapshot_path: &'a Path,
    store_path: Option<&'a Path>,
    #[serde(skip_serializing_if = "Option::is_none")]
    working_set_path: Option<&'a Path>,
    resume_vm: bool,
    vsock_override: Vsock,
    drive_overrides: Vec<Override<'a>>,
}

#[derive(Debug, Serialize)]
struct Vsock {
    uds_path: PathBuf,
}

#[derive(Debug, Serialize)]
struct Override<'a> {
    drive_id: &'a str,
    path_on_host: PathBuf,
}

impl Seed {
    /// The seed in the manifest at `path`, which says `manifest`. Layers may be
    /// in `store`, too.
    pub fn new(
        program: PathBuf,
        path: PathBuf,
        manifest: &Manifest,
        store: Option<PathBuf>,
        limit: Duration,
    ) -> Result<Self, Error> {
        let spec: Spec = serde_json::from_str(manifest.info.machine.get()).map_err(|error| {
            Error::host("the snapshot's machine cannot be understood; make it anew")(error.into())
        })?;
        let shown = |drive: &Drive| match &drive.stack {
            Some(stack) => stack.layers.first().cloned().unwrap_or_default(),
            None => drive.path_on_host.clone(),
        };
        let written = |drive: &&Drive| !drive.is_read_only;
        let facts = Facts {
            image: spec.drives.first().map(shown).unwrap_or_default(),
            kernel: spec
                .boot_source
                .map_or_else(String::new, |boot| boot.kernel_image_path),
            vcpus: spec.machine_config.vcpu_count,
            memory_mib: spec.machine_config.mem_size_mib,
            writable: spec
                .drives
                .iter()
                .filter(written)
                .any(|drive| drive.stack.is_none()),
            parent: None,
            snapshot: None,
            last_snapshot: None,
            store,
        };
        let stacks = spec.drives.iter().filter(written);
        let stacks = stacks.filter(|drive| drive.stack.is_some());
        Ok(Self {
            program,
            manifest: path,
            facts,
            stacks: stacks.map(|drive| drive.drive_id.clone()).collect(),
            working_set: None,
            limit,
        })
    }

    /// Lets the machine `name` grow in its directory, makes it one of its own,
    /// and lets it go. If that fails nothing of it runs.
    pub fn grow(&self, name: &Name, held: &Held) -> Result<Grown, Error> {
        let began = Instant::now();
        let paths = &held.paths;
        let load = self.load(paths.dir(), paths.vsock())?;
        let api = paths.api();
        let vmm_args = [
            "--id".as_ref(),
            name.as_str().as_ref(),
            "--api-sock".as_ref(),
            api.as_os_str(),
            "--restore".as_ref(),
            load.as_os_str(),
        ];
        let mut vmm = Vmm::start_to_stay(&self.program, vmm_args, paths.logs())?;
        let request = renewal::request(Some(name.to_string()))?;
        let ended = |pause| wait::readable(vmm.exited(), pause).unwrap_or(true);
        let renewed = match renewal::resumed(&paths.vsock(), request, self.limit, ended) {
            Ok(renewed) => renewed,
            Err(error) => {
                return Err(match vmm.wait(Duration::ZERO) {
                    Ok(Some(status)) => Error::DidNotStart {
                        status,
                        said: vmm.last_words(true),
                    },
                    _ => error,
                });
            }
        };
        let ready = Instant::now();
        self.record_working_set(&api);
        for step in renewed.failures() {
            eprintln!(
                "coppice: {name} could not renew {}: {}",
                step.name, step.detail
            );
        }
        let failed = || Error::host("the machine cannot be written down");
        let id = vmm.id().map_err(failed())?;
        let record = Record::new(id, self.facts.clone());
        record.write(paths.dir()).map_err(failed())?;
        vmm.let_go()
            .map_err(Error::host("the machine cannot be left to itself"))?;
        Ok(Grown {
            vmm: id,
            began,
            ready,
        })
    }

    /// The first machine of a snapshot tells the next what to read ahead. It is
    /// only advice, so that a failure stops nothing.
    fn record_working_set(&self, api: &Path) {
        let Some(path) = self.working_set.as_deref().filter(|path| !path.exists()) else {
            return;
        };
        let recorded = path.parent().map_or(Ok(()), fs::create_dir_all);
        let recorded = recorded.map_err(|error| error.to_string()).and_then(|()| {
            let api = Api::new(api, PATIENCE);
            api.record_working_set(path)
                .map_err(|error| error.to_string())
        });
        if let Err(error) = recorded {
            eprintln!("coppice: which pages the machine needed first is not recorded: {error}");
        }
    }

    /// Writes down in `dir` what the VMM is to restore.
    fn load(&self, dir: &Path, vsock: PathBuf) -> Result<PathBuf, Error> {
        let deltas = self.stacks.iter().map(|drive_id| Override {
            drive_id,
            path_on_host: dir.join(format!("{drive_id}.delta")),
        });
        let load = Load {
            snapshot_path: &self.manifest,
            store_path: self.facts.store.as_deref(),
            working_set_path: self.working_set.as_deref(),
            resume_vm: true,
            vsock_override: Vsock { uds_path: vsock },
            drive_overrides: deltas.collect(),
        };
        let path = dir.join("restore.json");
        serde_json::to_vec(&load)
            .map_err(Into::into)
            .and_then(|load| fs::write(&path, load))
            .map_err(Error::host("what is to be restored cannot be written down"))?;
        Ok(path)
    }
}

#[cfg(test)]
#[path = "grow_test.rs"]
mod tests;
