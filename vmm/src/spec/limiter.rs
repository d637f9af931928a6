//! Rate limits, part of several devices.

use serde::{Deserialize, Serialize};

use super::SpecError;

/// Limits of a device, independent of each other.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RateLimiter {
    /// Limit of throughput; its tokens are bytes.
    pub bandwidth: Option<TokenBucket>,
    /// Limit of operations; its tokens are requests.
    pub ops: Option<TokenBucket>,
}

/// A bucket of tokens that refills at a constant rate.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TokenBucket {
    /// Most tokens that the bucket holds; 0 switches the limit off.
    pub size: u64,
    /// Tokens that can be used once before the limit begins.
    pub one_time_burst: Option<u64>,
    /// Milliseconds in which an empty bucket fills; 0 switches the limit off.
    pub refill_time: u64,
}

impl RateLimiter {
    /// Checks that the limits can be honoured.
    ///
    /// # Errors
    /// A limit is set that is not switched off.
    pub fn check(&self) -> Result<(), SpecError> {
        [&self.bandwidth, &self.ops]
            .into_iter()
            .flatten()
            .try_for_each(TokenBucket::check)
    }
}

impl TokenBucket {
    /// Checks that the limit can be honoured: none can yet, so only a bucket
    /// that limits nothing passes.
    ///
    /// # Errors
    /// The bucket limits something.
    pub fn check(&self) -> Result<(), SpecError> {
        if self.size == 0 || self.refill_time == 0 {
            return Ok(());
        }
        let what = format!(
            "a rate_limiter (size = {}, refill_time = {})",
            self.size, self.refill_time
        );
        Err(SpecError::unavailable(what, "leave rate_limiter out"))
    }
}
