//! `/serial`: where the serial console goes.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::parse::check_path;
use super::{SpecError, TokenBucket};

/// The serial console's host side.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SerialConfig {
    /// A file or named pipe for the output; standard output if left out.
    pub serial_out_path: Option<PathBuf>,
    /// Limit of the output, in bytes.
    pub rate_limiter: Option<TokenBucket>,
}

impl SerialConfig {
    /// Checks what can be known without the host.
    ///
    /// # Errors
    /// The first field that breaks a rule.
    pub fn check(&self) -> Result<(), SpecError> {
        if let Some(path) = &self.serial_out_path {
            check_path("serial_out_path", path)?;
        }
        self.rate_limiter
            .as_ref()
            .map_or(Ok(()), TokenBucket::check)
    }
}
