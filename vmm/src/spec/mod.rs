//! What was asked for: plain data, parsed and checked before anything is built.
//!
//! Every type here is at once the body of an API route, a section of the
//! configuration file and what the board is built from, so that one set of
//! rules and one set of messages serves all three. The checks need no access to
//! the host; whether a file exists or memory suffices is found out when the
//! machine is built.
//!
//! Two rules hold throughout: a field that is not known is refused by name, and
//! `null` in place of an optional field means the same as leaving it out.

mod boot;
mod drive;
mod entropy;
mod error;
mod limiter;
mod logger;
mod machine;
mod parse;
mod serial;
mod snapshot;
mod vsock;

pub use boot::BootSource;
pub use drive::{CacheType, DriveConfig, DriveStack, IoEngine};
pub use entropy::EntropyConfig;
pub use error::SpecError;
pub use limiter::{RateLimiter, TokenBucket};
pub use logger::{LogLevel, LoggerConfig};
pub use machine::{CpuTemplate, HugePages, MachineConfig, MachineConfigPatch};
pub use parse::parse;
pub use serial::SerialConfig;
pub use snapshot::{
    DriveOverride, LoadHugePages, MemoryBackend, MemoryBackendType, NetworkOverride,
    SerialOverride, SnapshotCreate, SnapshotLoad, SnapshotType, VsockOverride, WorkingSetRecord,
};
pub use vsock::VsockConfig;

use serde::{Deserialize, Serialize};

/// A whole machine as it was asked for. Serialised, it is what `GET /vm/config`
/// answers and has the form of a configuration file.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Spec {
    /// vCPUs and memory.
    #[serde(rename = "machine-config")]
    pub machine: MachineConfig,
    /// Kernel, initrd and command line; a machine cannot start without.
    #[serde(rename = "boot-source")]
    pub boot: Option<BootSource>,
    /// Disks in the order in which the guest sees them: the root device first,
    /// the others as they were added.
    pub drives: Vec<DriveConfig>,
    /// The vsock device.
    pub vsock: Option<VsockConfig>,
    /// The entropy device.
    pub entropy: Option<EntropyConfig>,
    /// Where the serial console goes; standard output by default.
    pub serial: Option<SerialConfig>,
}

impl Spec {
    /// Checks each part and what holds between parts.
    ///
    /// # Errors
    /// The first rule that is broken.
    pub fn check(&self) -> Result<(), SpecError> {
        self.machine.check()?;
        self.boot.as_ref().map_or(Ok(()), BootSource::check)?;
        for (position, drive) in self.drives.iter().enumerate() {
            drive.check()?;
            let before = &self.drives[..position];
            if before.iter().any(|other| other.drive_id == drive.drive_id) {
                return Err(SpecError::new(
                    "drive_id",
                    &drive.drive_id,
                    "each drive needs an id of its own",
                ));
            }
        }
        let mut roots = self.drives.iter().filter(|drive| drive.is_root_device);
        if let (Some(first), Some(second)) = (roots.next(), roots.next()) {
            return Err(second.second_root(first));
        }
        self.vsock.as_ref().map_or(Ok(()), VsockConfig::check)?;
        self.entropy.as_ref().map_or(Ok(()), EntropyConfig::check)?;
        self.serial.as_ref().map_or(Ok(()), SerialConfig::check)
    }

    /// Adds a drive, or replaces the one with the same id. The root device goes
    /// first; a replaced drive keeps its place otherwise.
    ///
    /// # Errors
    /// The drive breaks a rule, or another drive is the root device already.
    /// Nothing has changed then.
    pub fn put_drive(&mut self, drive: DriveConfig) -> Result<(), SpecError> {
        drive.check()?;
        let root = self.drives.iter().find(|other| other.is_root_device);
        if let Some(root) = root
            && drive.is_root_device
            && root.drive_id != drive.drive_id
        {
            return Err(drive.second_root(root));
        }
        let same = |other: &DriveConfig| other.drive_id == drive.drive_id;
        let place = match self.drives.iter().position(same) {
            Some(place) => {
                self.drives.remove(place);
                place
            }
            None => self.drives.len(),
        };
        let place = if drive.is_root_device { 0 } else { place };
        self.drives.insert(place, drive);
        Ok(())
    }
}

#[cfg(test)]
#[path = "spec_test.rs"]
mod tests;
