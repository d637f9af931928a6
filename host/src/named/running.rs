//! Machines that run, in the hands of a command that freezes them.

use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

use coppice_snapshot::SnapshotId;

use super::dir::{Held, Place, State};
use super::name::Name;
use super::record::{Facts, Record};
use crate::api::{Api, ApiError, Freeze, Frozen};
use crate::error::Error;
use crate::wait;

/// How long a snapshot may take. That the VMM is gone is noticed at once.
const PATIENCE: Duration = Duration::from_secs(60 * 60);

/// How long a VMM may take to end after its socket has closed.
const SOON: Duration = Duration::from_secs(1);

/// A machine that runs, and that no other command stops or freezes meanwhile.
#[derive(Debug)]
pub struct Running {
    name: Name,
    held: Held,
    record: Record,
    process: OwnedFd,
}

impl Running {
    /// Holds the machine `name`.
    pub fn hold(place: &Place, name: &Name) -> Result<Self, Error> {
        let (held, state) = place.hold(name)?;
        match state {
            State::Alive(record, process) => Ok(Self {
                name: name.clone(),
                held,
                record,
                process,
            }),
            State::Starting | State::Remains => Err(Error::NoMachine(name.clone())),
            State::Dead(_) => Err(dead(name, &held)),
        }
    }

    /// What it was made of.
    pub fn facts(&self) -> &Facts {
        &self.record.facts
    }

    /// Its VMM's process.
    pub fn pid(&self) -> i32 {
        self.record.vmm.pid
    }

    /// Freezes it into files, and lets it run on. They are complete when this
    /// returns.
    pub fn freeze(&self, freeze: &Freeze<'_>) -> Result<Frozen, Error> {
        let api = self.held.paths.api();
        Api::new(&api, PATIENCE).freeze(freeze).map_err(|source| {
            let lost = !matches!(source, ApiError::Refused(_));
            let ended = || wait::readable(self.process.as_fd(), SOON).unwrap_or(false);
            match lost && ended() {
                true => dead(&self.name, &self.held),
                false => Error::NotFrozen {
                    name: self.name.clone(),
                    source,
                },
            }
        })
    }

    /// Writes down that the store at `store` has its layers, and the snapshot
    /// that was made of it last.
    pub fn is_kept_in(&mut self, store: &Path, snapshot: SnapshotId) -> Result<(), Error> {
        self.record.facts.store = Some(store.to_owned());
        self.record.facts.last_snapshot = Some(snapshot);
        let written = self.record.write(self.held.paths.dir());
        written.map_err(Error::host("the machine's snapshot cannot be written down"))
    }
}

fn dead(name: &Name, held: &Held) -> Error {
    Error::MachineDead {
        name: name.clone(),
        said: held.paths.last_words(),
    }
}
