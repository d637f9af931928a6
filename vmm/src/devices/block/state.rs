//! The saved form of the device.

use serde::{Deserialize, Serialize};

/// What is kept of a block device.
#[derive(Serialize, Deserialize)]
pub enum BlockState {
    V1(BlockV1),
}

/// Version 1 of [`BlockState`].
#[derive(Serialize, Deserialize)]
pub struct BlockV1 {
    /// Length of the disk, which the guest has read; only compared.
    pub sectors: u64,
    /// Something was written that is not durable yet.
    pub dirty: bool,
}
