//! What each request does, and when it is allowed.
//!
//! ```text
//!              PUT, PATCH: the specification changes
//!            ┌──┐
//!            │  ▼       InstanceStart                  Paused
//!         Not started ────────────────▶ Running ◀────────────────▶ Paused
//!              │         (fails: stays)              Resumed
//!              │       /snapshot/load                    ▲
//!              └─────────────────────────────────────────┘
//! ```
//!
//! A request is carried out whole or changes nothing.

use std::path::Path;

use serde::Serialize;
use serde_json::json;

use super::Answer;
use super::router::{ActionType, DrivePatch, Request, StateWanted};
use crate::logger::Logger;
use crate::machine::{Events, Snapshots};
use crate::spec::{
    LoggerConfig, SnapshotCreate, SnapshotLoad, Spec, SpecError, VsockConfig, WorkingSetRecord,
};

/// What the controller needs of a machine. Tests put a pretended one in its
/// place.
pub trait MachineControl: Sized {
    /// Why something cannot be done; shown to the client with its sources.
    type Error: std::error::Error + 'static;

    /// Makes a machine that does not run yet.
    ///
    /// # Errors
    /// What was asked for cannot be had on this host. Nothing is left behind.
    fn build(spec: &Spec, events: &mut Events) -> Result<Self, Self::Error>;
    /// Lets the vCPUs run for the first time.
    ///
    /// # Errors
    /// They cannot run.
    fn start(&mut self) -> Result<(), Self::Error>;
    /// Stops all vCPUs; no harm if they are stopped.
    ///
    /// # Errors
    /// One does not stop.
    fn pause(&mut self) -> Result<(), Self::Error>;
    /// Lets all vCPUs go on; no harm if they run.
    ///
    /// # Errors
    /// One does not go on.
    fn resume(&mut self) -> Result<(), Self::Error>;
    /// Presses Ctrl, Alt and Del.
    ///
    /// # Errors
    /// The keyboard has no room for it.
    fn ctrl_alt_del(&self) -> Result<(), Self::Error>;

    /// Makes the machine of a snapshot, which does not run yet.
    ///
    /// # Errors
    /// The snapshot is unusable, or this host cannot have its machine. Nothing
    /// is left behind.
    fn restore(load: &SnapshotLoad, events: &mut Events) -> Result<Self, Self::Error>;

    /// Begins a snapshot; the event loop comes back when it is done.
    ///
    /// # Errors
    /// It cannot be made; the machine is as it was.
    fn begin_snapshot(&mut self, request: &SnapshotCreate) -> Result<(), Self::Error>;

    /// What became of the snapshot that was begun, if it is done.
    fn finish_snapshot(&mut self) -> Option<Result<(), Self::Error>>;

    /// Records the pages that it has touched so far.
    ///
    /// # Errors
    /// The kernel does not tell, or they cannot be written.
    fn record_working_set(&self, path: &Path) -> Result<(), Self::Error>;

    /// What it consists of now, which snapshots change.
    fn spec(&self) -> &Spec;

    /// Which snapshots are and were made.
    fn snapshots(&self) -> Snapshots;
}

/// Why a machine was not started.
#[derive(Debug, thiserror::Error)]
pub enum StartError<E: std::error::Error + 'static> {
    /// There is one already.
    #[error("the machine has been started already; InstanceStart works once")]
    Started,
    /// Something was configured, and a snapshot brings all of it.
    #[error(
        "something has been configured already, and a snapshot brings its own configuration; \
         load it in a new process, before anything but the logger"
    )]
    Configured,
    /// There is nothing to boot.
    #[error(
        "there is no kernel to boot; PUT /boot-source (boot-source in a configuration file) \
         with kernel_image_path first"
    )]
    NoKernel,
    /// The specification breaks a rule.
    #[error(transparent)]
    Spec(#[from] SpecError),
    /// The machine cannot be had.
    #[error("{}", chain(.0))]
    Machine(E),
}

/// Holds the specification before the start and the machine after it.
pub struct Controller<M: MachineControl> {
    id: String,
    logger: &'static Logger,
    logger_config: Option<LoggerConfig>,
    spec: Spec,
    machine: Option<M>,
    paused: bool,
}

/// `GET /vm/config`, in the form of a configuration file.
#[derive(Serialize)]
struct FullConfig<'a> {
    #[serde(flatten)]
    spec: &'a Spec,
    logger: Option<&'a LoggerConfig>,
}

impl<M: MachineControl> Controller<M> {
    /// A controller for the machine that clients know as `id`.
    pub fn new(id: impl Into<String>, logger: &'static Logger) -> Self {
        Controller {
            id: id.into(),
            logger,
            logger_config: None,
            spec: Spec::default(),
            machine: None,
            paused: false,
        }
    }

    /// The machine, once it has been started.
    pub fn machine(&self) -> Option<&M> {
        self.machine.as_ref()
    }

    /// Hands the machine over, to end it.
    pub fn into_machine(self) -> Option<M> {
        self.machine
    }

    /// Carries out one request; without an answer, [`Controller::finished`] has it
    /// later. `events` is where a machine that is started
    /// adds what the event loop has to serve.
    pub fn handle(&mut self, request: Request, events: &mut Events) -> Option<Answer> {
        log::debug!("request: {request:?}");
        let outcome = match request {
            Request::GetInstance => return Some(Answer::Json(self.instance())),
            Request::GetVersion => return Some(Answer::Json(version())),
            Request::GetMachineConfig => return Some(to_json(&self.spec.machine)),
            Request::GetSpec => {
                let logger = self.logger_config.as_ref();
                return Some(to_json(&FullConfig {
                    spec: self.machine.as_ref().map_or(&self.spec, M::spec),
                    logger,
                }));
            }
            Request::PutMachineConfig(config) => self.configure(|spec| {
                config.check()?;
                spec.machine = config;
                Ok(())
            }),
            Request::PatchMachineConfig(patch) => self.configure(|spec| {
                spec.machine = patch.applied_to(&spec.machine)?;
                Ok(())
            }),
            Request::PutBootSource(config) => self.configure(|spec| {
                config.check()?;
                spec.boot = Some(config);
                Ok(())
            }),
            Request::PutDrive(config) => self.configure(|spec| spec.put_drive(config)),
            Request::PutVsock(config) => self.configure(|spec| {
                config.check()?;
                warn_of_unreachable_ports(&config);
                spec.vsock = Some(config);
                Ok(())
            }),
            Request::PutEntropy(config) => self.configure(|spec| {
                config.check()?;
                spec.entropy = Some(config);
                Ok(())
            }),
            Request::PutSerial(config) => self.configure(|spec| {
                config.check()?;
                spec.serial = Some(config);
                Ok(())
            }),
            Request::PutLogger(config) => self.put_logger(config),
            Request::PatchDrive(patch) => self.patch_drive(&patch),
            Request::SetState(wanted) => self.set_state(wanted),
            Request::GetSnapshot => {
                let machine = self.machine.as_ref();
                return Some(to_json(
                    &machine.map_or_else(Snapshots::default, M::snapshots),
                ));
            }
            Request::CreateSnapshot(request) => match self.create_snapshot(&request) {
                Ok(()) => return None,
                Err(text) => Err(text),
            },
            Request::RecordWorkingSet(record) => self.record_working_set(&record),
            Request::LoadSnapshot(load) => {
                self.load(&load, events).map_err(|error| error.to_string())
            }
            Request::Act(ActionType::InstanceStart) => {
                self.start(events).map_err(|error| error.to_string())
            }
            Request::Act(ActionType::SendCtrlAltDel) => self.ctrl_alt_del(),
            Request::Act(ActionType::FlushMetrics) => {
                Err("metrics are not available yet in this version (FlushMetrics)".to_owned())
            }
        };
        Some(match outcome {
            Ok(()) => Answer::Done,
            Err(text) => Answer::Fault(text),
        })
    }

    /// Changes the specification, which is possible only before the start.
    fn configure(
        &mut self,
        change: impl FnOnce(&mut Spec) -> Result<(), SpecError>,
    ) -> Result<(), String> {
        if self.machine.is_some() {
            let text = "the machine has been started and this can be set only before that; \
                        start another process for another machine";
            return Err(text.to_owned());
        }
        change(&mut self.spec).map_err(|error| error.to_string())
    }

    fn put_logger(&mut self, config: LoggerConfig) -> Result<(), String> {
        config.check().map_err(|error| error.to_string())?;
        self.logger
            .configure(&config)
            .map_err(|error| error.to_string())?;
        self.logger_config = Some(config);
        Ok(())
    }

    /// Builds the machine that was specified and lets it run.
    ///
    /// # Errors
    /// There is no machine then, and the specification is as it was.
    pub fn start(&mut self, events: &mut Events) -> Result<(), StartError<M::Error>> {
        if self.machine.is_some() {
            return Err(StartError::Started);
        }
        if self.spec.boot.is_none() {
            return Err(StartError::NoKernel);
        }
        self.spec.check()?;
        let mut machine = M::build(&self.spec, events).map_err(StartError::Machine)?;
        machine.start().map_err(StartError::Machine)?;
        self.machine = Some(machine);
        log::info!("the machine runs");
        Ok(())
    }

    fn set_state(&mut self, wanted: StateWanted) -> Result<(), String> {
        let machine = self.machine.as_mut().ok_or_else(not_started)?;
        match wanted {
            StateWanted::Paused => machine.pause(),
            StateWanted::Resumed => machine.resume(),
        }
        .map_err(|error| chain(&error))?;
        self.paused = wanted == StateWanted::Paused;
        Ok(())
    }

    fn create_snapshot(&mut self, request: &SnapshotCreate) -> Result<(), String> {
        request.check().map_err(|error| error.to_string())?;
        self.machine
            .as_mut()
            .ok_or_else(not_started)?
            .begin_snapshot(request)
            .map_err(|error| chain(&error))
    }

    fn record_working_set(&self, record: &WorkingSetRecord) -> Result<(), String> {
        record.check().map_err(|error| error.to_string())?;
        self.machine
            .as_ref()
            .ok_or_else(not_started)?
            .record_working_set(&record.path)
            .map_err(|error| chain(&error))
    }

    /// The answer to the client that asked for a snapshot, when it is done.
    pub fn finished(&mut self) -> Option<Answer> {
        let result = self.machine.as_mut()?.finish_snapshot()?;
        Some(match result {
            Ok(()) => Answer::Done,
            Err(error) => Answer::Fault(chain(&error)),
        })
    }

    /// Restores the machine of a snapshot, and lets it run if that is asked for.
    ///
    /// # Errors
    /// There is no machine then, and nothing is configured.
    pub fn load(
        &mut self,
        load: &SnapshotLoad,
        events: &mut Events,
    ) -> Result<(), StartError<M::Error>> {
        if self.machine.is_some() {
            return Err(StartError::Started);
        }
        if self.spec != Spec::default() {
            return Err(StartError::Configured);
        }
        load.check()?;
        let mut machine = M::restore(load, events).map_err(StartError::Machine)?;
        if load.resume_vm {
            machine.start().map_err(StartError::Machine)?;
        }
        self.spec = machine.spec().clone();
        self.machine = Some(machine);
        self.paused = !load.resume_vm;
        log::info!("the machine of {:?} is restored", load.snapshot_path);
        Ok(())
    }

    fn ctrl_alt_del(&self) -> Result<(), String> {
        self.machine
            .as_ref()
            .ok_or_else(not_started)?
            .ctrl_alt_del()
            .map_err(|error| chain(&error))
    }

    fn patch_drive(&self, patch: &DrivePatch) -> Result<(), String> {
        if self.machine.is_none() {
            return Err(format!(
                "{}; before that, PUT the drive again",
                not_started()
            ));
        }
        if !self
            .spec
            .drives
            .iter()
            .any(|drive| drive.drive_id == patch.drive_id)
        {
            return Err(format!(
                "there is no drive {:?} in this machine",
                patch.drive_id
            ));
        }
        Err("changing a drive of a running machine is not available yet in this version".to_owned())
    }

    fn instance(&self) -> String {
        let state = match (&self.machine, self.paused) {
            (None, _) => "Not started",
            (Some(_), false) => "Running",
            (Some(_), true) => "Paused",
        };
        json!({
            "app_name": "Coppice",
            "id": self.id,
            "state": state,
            "vmm_version": env!("CARGO_PKG_VERSION"),
        })
        .to_string()
    }
}

/// The field has the name that clients look for.
fn version() -> String {
    json!({ "firecracker_version": env!("CARGO_PKG_VERSION") }).to_string()
}

fn to_json(value: &impl Serialize) -> Answer {
    match serde_json::to_string(value) {
        Ok(json) => Answer::Json(json),
        // Only a path that is not UTF-8 could do this, and those that came as
        // JSON are.
        Err(error) => Answer::Fault(format!(
            "the configuration cannot be shown as JSON: {error}"
        )),
    }
}

fn not_started() -> String {
    "the machine has not been started; PUT /actions with InstanceStart first".to_owned()
}

/// An error with all its sources that it does not quote itself.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(source) = next {
        let more = source.to_string();
        if !text.contains(&more) {
            text = format!("{text}: {more}");
        }
        next = source.source();
    }
    text
}

/// A path of 107 bytes serves the host's connections and leaves no room for the
/// port number that the guest's connections need.
fn warn_of_unreachable_ports(config: &VsockConfig) {
    let digits = config.reachable_port_digits();
    if digits < 10 {
        log::warn!(
            "uds_path {:?} is so long that the guest can reach only ports of up to {digits} digits",
            config.uds_path
        );
    }
}

#[cfg(test)]
#[path = "controller_test.rs"]
pub(super) mod tests;
