//! The pages that a machine touches first: recorded, and fetched for the next.

use std::path::Path;

use coppice_snapshot::{WorkingSet, WorkingSetError};

use super::{Machine, MachineError};
use crate::memory::layers;
use crate::memory::prefetch::{self, Prefetch};

impl Machine {
    /// Records the pages that the machine has touched since it was restored or
    /// started, in the file at `path`. Best called when it is ready for work.
    ///
    /// # Errors
    /// The kernel does not tell, or the file cannot be written.
    pub fn record_working_set(&self, path: &Path) -> Result<(), MachineError> {
        let touched = prefetch::touched(&self.memory).map_err(|source| MachineError::Host {
            what: "tell which pages were touched",
            source,
        })?;
        let set = WorkingSet {
            blocks: layers::blocks(&self.memory),
            touched,
        };
        Ok(set.write(path)?)
    }

    /// Takes the advice in the file at `path`, if it is any.
    pub(super) fn advise(&mut self, path: &Path) {
        match WorkingSet::read(path) {
            Ok(set) if set.blocks == layers::blocks(&self.memory) => {
                self.to_fetch = Some(set.touched);
            }
            Ok(_) => log::warn!("the working set {} is of another machine", path.display()),
            Err(WorkingSetError::Io { source, .. })
                if source.kind() == std::io::ErrorKind::NotFound =>
            {
                log::debug!("there is no working set at {}", path.display());
            }
            Err(error) => log::warn!("pages are not fetched ahead: {error}"),
        }
    }

    /// Begins to fetch pages, when the vCPUs run.
    pub(super) fn fetch_ahead(&mut self) {
        if let Some(blocks) = self.to_fetch.take() {
            match Prefetch::start(self.memory.clone(), blocks) {
                Ok(prefetch) => self.prefetch = Some(prefetch),
                Err(error) => log::warn!("pages are not fetched ahead: {error}"),
            }
        }
    }
}
