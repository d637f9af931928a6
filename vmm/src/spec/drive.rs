//! `/drives/{drive_id}`: disks.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::parse::{check_path, or_default};
use super::{RateLimiter, SpecError};

/// One disk, kept in a file or block device of the host, or as a stack.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DriveConfig {
    /// Name of the drive: letters, digits and underscores.
    pub drive_id: String,
    /// The file or block device that holds the content; empty if `stack` does.
    #[serde(default, skip_serializing_if = "is_empty")]
    pub path_on_host: PathBuf,
    /// The layers that hold the content.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stack: Option<DriveStack>,
    /// Whether the kernel is told to mount it as `/`.
    pub is_root_device: bool,
    /// Whether the guest may only read it.
    #[serde(default, deserialize_with = "or_default")]
    pub is_read_only: bool,
    /// The partition of the root device to mount as `/`, by its unique id.
    pub partuuid: Option<String>,
    /// Whether the guest is offered flushes.
    #[serde(default, deserialize_with = "or_default")]
    pub cache_type: CacheType,
    /// How the file is read and written.
    #[serde(default, deserialize_with = "or_default")]
    pub io_engine: IoEngine,
    /// Limits of throughput and of operations.
    pub rate_limiter: Option<RateLimiter>,
    /// A vhost-user process that serves the drive instead of a file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub socket: Option<PathBuf>,
}

/// A disk in layers, which are never written to, and a delta, which is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DriveStack {
    /// The layers' files, topmost first.
    pub layers: Vec<PathBuf>,
    /// The file that takes the writes; made if it is missing. A drive that is
    /// only read may do without.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delta: Option<PathBuf>,
}

/// What a flush by the guest means.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum CacheType {
    /// No flush is offered: a crash of the host may lose what the guest thinks
    /// is on disk.
    #[default]
    Unsafe,
    /// A flush returns when everything written before is durable.
    Writeback,
}

/// How the backing file is accessed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum IoEngine {
    /// By system calls that wait for the result.
    #[default]
    Sync,
    /// By requests that overlap. This version takes it and serves the drive as
    /// with `Sync`, which a guest cannot tell but by the time it takes.
    Async,
}

impl DriveConfig {
    /// Checks what can be known without the host.
    ///
    /// # Errors
    /// The first field that breaks a rule.
    pub fn check(&self) -> Result<(), SpecError> {
        check_id("drive_id", &self.drive_id)?;
        match &self.stack {
            Some(stack) => self.check_stack(stack)?,
            None => check_path("path_on_host", &self.path_on_host)?,
        }
        if let Some(partuuid) = &self.partuuid {
            // It becomes part of the kernel command line. A GPT partition has a
            // UUID of 36 characters, an MBR one 8 digits, a hyphen and 2 more.
            let fits = |c: char| c.is_ascii_hexdigit() || c == '-';
            if partuuid.is_empty() || partuuid.len() > 36 || !partuuid.chars().all(fits) {
                let rule = "a partition's unique id is 1 to 36 hexadecimal digits and hyphens";
                return Err(SpecError::new("partuuid", partuuid, rule));
            }
        }
        if self.socket.is_some() {
            let remedy = "leave socket out and set path_on_host";
            return Err(SpecError::unavailable(
                "a drive served over vhost-user",
                remedy,
            ));
        }
        self.rate_limiter
            .as_ref()
            .map_or(Ok(()), RateLimiter::check)
    }

    fn check_stack(&self, stack: &DriveStack) -> Result<(), SpecError> {
        if !is_empty(&self.path_on_host) {
            let rule = "a drive with a stack has no path_on_host: leave one of the two out";
            return Err(SpecError::new("path_on_host", &self.path_on_host, rule));
        }
        if stack.layers.is_empty() {
            let rule = "a stack needs at least one layer, which tells how large the disk is";
            return Err(SpecError::new("stack.layers", &stack.layers, rule));
        }
        for layer in &stack.layers {
            check_path("stack.layers", layer)?;
        }
        match &stack.delta {
            Some(delta) => check_path("stack.delta", delta),
            None if self.is_read_only => Ok(()),
            None => {
                let rule = "a drive that is written to needs a delta: give a path for one, \
                            which is made if it is missing, or set is_read_only";
                Err(SpecError::new("stack.delta", &stack.delta, rule))
            }
        }
    }

    /// The error for a second root device.
    pub(super) fn second_root(&self, first: &DriveConfig) -> SpecError {
        let rule = format!(
            "is_root_device is true for drive {:?} already, and only one can be the root",
            first.drive_id
        );
        SpecError::new("drive_id", &self.drive_id, rule)
    }
}

fn is_empty(path: &Path) -> bool {
    path.as_os_str().is_empty()
}

/// Checks the name of a device.
pub(super) fn check_id(field: &'static str, id: &str) -> Result<(), SpecError> {
    let fits = |c: char| c.is_ascii_alphanumeric() || c == '_';
    if (1..=64).contains(&id.len()) && id.chars().all(fits) {
        return Ok(());
    }
    let rule = "an id is 1 to 64 letters, digits and underscores";
    Err(SpecError::new(field, id, rule))
}
