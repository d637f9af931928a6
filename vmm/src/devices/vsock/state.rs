//! The saved form of the device. Connections are not part of it: a restored guest
//! is told that they are gone ([`super::reset`]).

use serde::{Deserialize, Serialize};

use super::device::QUEUE_SIZES;
use super::muxer::HOST_PORTS;
use crate::state::StateError;

/// What the device is called in messages about its state.
pub const NAME: &str = "the vsock device";

/// What is kept of a vsock device.
#[derive(Debug, Serialize, Deserialize)]
pub enum VsockState {
    V1(VsockV1),
}

/// Version 1 of [`VsockState`].
#[derive(Debug, Serialize, Deserialize)]
pub struct VsockV1 {
    /// The host's port of the next connection that a host asks for. The guest may
    /// still have sockets of the ports before it.
    pub next_host_port: u32,
    /// Transport resets that the guest was sent and has not dealt with.
    pub unconfirmed_resets: u16,
}

impl VsockState {
    /// The state, once it has been checked.
    pub fn checked(self) -> Result<VsockV1, StateError> {
        let Self::V1(state) = self;
        if !HOST_PORTS.contains(&state.next_host_port) {
            return Err(StateError::refused(
                NAME,
                format_args!(
                    "the next host port is {}, which is not in {HOST_PORTS:?}",
                    state.next_host_port
                ),
            ));
        }
        let buffers = QUEUE_SIZES[super::device::EVENT];
        if state.unconfirmed_resets > buffers {
            return Err(StateError::refused(
                NAME,
                format_args!(
                    "{} events are on their way, but the guest has buffers for {buffers} at most",
                    state.unconfirmed_resets
                ),
            ));
        }
        Ok(state)
    }
}
