//! `/entropy`: random bytes for the guest.

use serde::{Deserialize, Serialize};

use super::{RateLimiter, SpecError};

/// The entropy device.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EntropyConfig {
    /// Limits of throughput and of operations.
    pub rate_limiter: Option<RateLimiter>,
}

impl EntropyConfig {
    /// Checks what can be known without the host.
    ///
    /// # Errors
    /// The first field that breaks a rule.
    pub fn check(&self) -> Result<(), SpecError> {
        self.rate_limiter
            .as_ref()
            .map_or(Ok(()), RateLimiter::check)
    }
}
