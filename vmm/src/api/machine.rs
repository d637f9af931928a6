//! The real machine behind the API.

use std::path::Path;

use event_manager::SubscriberOps;

use super::{MachineControl, Wake};
use crate::machine::{Events, Machine, MachineError, RestoreError, SnapshotError, Snapshots};
use crate::spec::{SnapshotCreate, SnapshotLoad, Spec};

/// Why the machine does not do what a client wants.
#[derive(Debug, thiserror::Error)]
pub enum ControlError {
    /// It cannot be built or driven.
    #[error(transparent)]
    Machine(#[from] MachineError),
    /// There is no snapshot of it.
    #[error(transparent)]
    Snapshot(#[from] SnapshotError),
    /// It cannot be restored.
    #[error(transparent)]
    Restore(#[from] RestoreError),
}

/// Has the event loop come back when the machine wants something.
fn watch(machine: &Machine, events: &mut Events) {
    events.add_subscriber(Box::new(Wake::on(machine.ended())));
    events.add_subscriber(Box::new(Wake::on(machine.snapshot_done())));
}

impl MachineControl for Machine {
    type Error = ControlError;

    fn build(spec: &Spec, events: &mut Events) -> Result<Self, ControlError> {
        let machine = Machine::build(spec, events)?;
        watch(&machine, events);
        Ok(machine)
    }

    fn start(&mut self) -> Result<(), ControlError> {
        Ok(Machine::start(self)?)
    }

    fn pause(&mut self) -> Result<(), ControlError> {
        Ok(Machine::pause(self)?)
    }

    fn resume(&mut self) -> Result<(), ControlError> {
        Ok(Machine::resume(self)?)
    }

    fn ctrl_alt_del(&self) -> Result<(), ControlError> {
        Ok(Machine::ctrl_alt_del(self)?)
    }

    fn restore(load: &SnapshotLoad, events: &mut Events) -> Result<Self, ControlError> {
        let machine = Machine::restore(load, events)?;
        watch(&machine, events);
        Ok(machine)
    }

    fn begin_snapshot(&mut self, request: &SnapshotCreate) -> Result<(), ControlError> {
        Ok(Machine::begin_snapshot(self, request)?)
    }

    fn finish_snapshot(&mut self) -> Option<Result<(), ControlError>> {
        let result = Machine::finish_snapshot(self)?;
        Some(result.map_err(ControlError::from))
    }

    fn record_working_set(&self, path: &Path) -> Result<(), ControlError> {
        Ok(Machine::record_working_set(self, path)?)
    }

    fn spec(&self) -> &Spec {
        Machine::spec(self)
    }

    fn snapshots(&self) -> Snapshots {
        Machine::snapshots(self)
    }
}
