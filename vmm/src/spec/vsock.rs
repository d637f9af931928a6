//! `/vsock`: sockets between guest and host.

use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::SpecError;
use super::parse::check_path;

/// The vsock device and the Unix sockets that stand for it on the host.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VsockConfig {
    /// The guest's address, 3 or more: the lower ones are the host's.
    pub guest_cid: u32,
    /// The socket on which the host connects to ports of the guest. What the
    /// guest connects to is this path with `_` and the port number behind it.
    pub uds_path: PathBuf,
    /// A name for the device. Accepted for old clients; it means nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vsock_id: Option<String>,
}

impl VsockConfig {
    /// Longest path of a Unix socket: `sun_path` holds 108 bytes, one of them
    /// the final NUL.
    pub const MAX_UDS_PATH: usize = 107;

    /// Checks what can be known without the host.
    ///
    /// # Errors
    /// The first field that breaks a rule.
    pub fn check(&self) -> Result<(), SpecError> {
        // virtio 1.2 §5.10.4: 0 to 2 and 2^32 - 1 are reserved.
        if !(3..u32::MAX).contains(&self.guest_cid) {
            let rule = "it must be from 3 to 4294967294";
            return Err(SpecError::new("guest_cid", &self.guest_cid, rule));
        }
        check_path("uds_path", &self.uds_path)?;
        let length = self.uds_path.as_os_str().as_bytes().len();
        if length > Self::MAX_UDS_PATH {
            let most = Self::MAX_UDS_PATH;
            let rule = format!("its {length} bytes are more than the {most} of a socket path");
            return Err(SpecError::new("uds_path", &self.uds_path, rule));
        }
        Ok(())
    }

    /// The highest number of digits that a port may have for the guest to reach
    /// it at `<uds_path>_<port>`; any port has at most 10.
    pub fn reachable_port_digits(&self) -> usize {
        let used = self.uds_path.as_os_str().as_bytes().len() + 1;
        Self::MAX_UDS_PATH.saturating_sub(used).min(10)
    }
}
