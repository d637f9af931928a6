//! The entropy device (virtio 1.2 §5.4): random bytes of the host for the guest.
//!
//! A request may ask for any amount; it gets at most [`MAX_REQUEST`] bytes, as the
//! used length tells, so that none occupies the event loop for long.

use std::io;
use std::os::fd::BorrowedFd;

use serde::{Deserialize, Serialize};
use virtio_bindings::virtio_ids::VIRTIO_ID_RNG;

use crate::state::{self, StateError};
use crate::sys::file;
use crate::virtio::{Chain, DeviceEnv, DeviceFault, Identity, NextTurn, VirtioDevice, Virtqueue};

/// The most bytes that one request gets.
pub const MAX_REQUEST: usize = 64 << 10;
/// Random bytes are copied through a buffer of this size.
const CHUNK: usize = 4 << 10;

/// What the device is called in messages about its state.
const NAME: &str = "the entropy device";

/// What is kept of the device: nothing, so far.
#[derive(Serialize, Deserialize)]
enum RngState {
    V1,
}

/// An entropy device.
pub struct Rng {
    turn: NextTurn,
    env: Option<DeviceEnv>,
}

impl Rng {
    /// A device that takes its bytes from the kernel.
    ///
    /// # Errors
    /// The host has no event descriptor left.
    pub fn new() -> io::Result<Self> {
        Ok(Self {
            turn: NextTurn::new()?,
            env: None,
        })
    }

    fn serve(&mut self) -> Result<(), DeviceFault> {
        match &mut self.env {
            Some(env) => self.turn.serve(&mut env.queues[0], &env.interrupt, fill),
            None => Ok(()),
        }
    }
}

/// Fills the writable buffers of `chain` and returns how many bytes they got.
fn fill(chain: Chain) -> u32 {
    let mut wanted = chain.writable;
    let mut wanted = wanted.take(MAX_REQUEST);
    let mut written = 0;
    let mut chunk = [0; CHUNK];
    while !wanted.is_empty() {
        let part = &mut chunk[..wanted.len().min(CHUNK)];
        let filled = file::random(part)
            .map_err(|error| error.to_string())
            .and_then(|()| wanted.write_all(part).map_err(|fault| fault.to_string()));
        if let Err(error) = filled {
            log::error!("the guest asked for random bytes and none can be had: {error}");
            break;
        }
        written += part.len() as u32;
    }
    written
}

impl VirtioDevice for Rng {
    fn identity(&self) -> Identity {
        Identity {
            device_id: VIRTIO_ID_RNG,
            features: 0,
            queue_sizes: &[256],
        }
    }

    /// There is no configuration space.
    fn read_config(&self, _offset: u64, _out: &mut [u8]) {}

    fn start(&mut self, env: DeviceEnv) -> Result<(), DeviceFault> {
        self.env = Some(env);
        Ok(())
    }

    fn stop(&mut self) {
        self.env = None;
    }

    fn queues(&self) -> &[Virtqueue] {
        self.env.as_ref().map_or(&[], |env| &env.queues)
    }

    fn save(&self) -> Result<Vec<u8>, StateError> {
        state::encode(NAME, &RngState::V1)
    }

    fn restore(&mut self, state: &[u8]) -> Result<(), StateError> {
        let RngState::V1 = state::decode(NAME, state)?;
        Ok(())
    }

    fn queue_notified(&mut self, _index: usize) -> Result<(), DeviceFault> {
        self.serve()
    }

    fn backend_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.turn.fd())
    }

    fn backend_ready(&mut self) -> Result<(), DeviceFault> {
        self.turn.taken();
        self.serve()
    }
}

#[cfg(test)]
#[path = "rng_test.rs"]
mod tests;
