//! The state of a whole machine apart from its memory and disks, saved and
//! filled back in.

use serde::{Deserialize, Serialize};

use super::chipset::ChipsetState;
use super::drives::DriveFile;
use super::{Machine, MachineError};
use crate::devices::i8042::I8042State;
use crate::devices::serial::UartState;
use crate::state::StateError;
use crate::vcpu::{Limits, VcpuState, saved_msrs};
use crate::virtio::TransportState;

/// What the section "state" of a manifest holds.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum MachineState {
    /// The first version.
    V1(MachineV1),
}

/// See [`MachineState`].
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct MachineV1 {
    /// In the order of their numbers.
    pub vcpus: Vec<VcpuState>,
    /// Interrupt controllers, timer, clock.
    pub chipset: ChipsetState,
    /// The serial port.
    pub serial: UartState,
    /// The keyboard controller.
    pub i8042: I8042State,
    /// The virtio devices in the order of their windows.
    pub virtio: Vec<TransportState>,
    /// Facts about the files of drives that are no stacks.
    pub files: Vec<DriveFile>,
}

impl Machine {
    /// Saves the machine, which must be at rest: first the vCPUs, then the
    /// devices, and last the interrupt controllers, which then know of
    /// everything that the others have raised.
    pub(super) fn save(&self) -> Result<MachineState, MachineError> {
        let msrs = saved_msrs(&self.kvm)?;
        let limits = Limits::of(&self.vm);
        let vcpus = self.threads.vcpus().iter();
        let vcpus = vcpus
            .map(|vcpu| vcpu.lock().save(&msrs, &limits))
            .collect::<Result<_, _>>()?;
        let transports = self.board.virtio.iter();
        let virtio = transports
            .map(|transport| transport.lock().save())
            .collect::<Result<_, _>>()?;
        Ok(MachineState::V1(MachineV1 {
            vcpus,
            serial: self.board.serial.lock().save(),
            i8042: self.board.i8042.lock().save(),
            virtio,
            files: Vec::new(),
            chipset: ChipsetState::save(&self.vm)?,
        }))
    }

    /// Fills a machine that has just been built, whose memory is filled already
    /// and whose vCPUs are made and have not run.
    pub(super) fn fill(&self, state: MachineState, advance: bool) -> Result<(), MachineError> {
        let MachineState::V1(state) = state;
        let limits = Limits::of(&self.vm);
        let vcpus = self.threads.vcpus();
        agree("vCPUs", state.vcpus.len(), vcpus.len())?;
        agree(
            "virtio devices",
            state.virtio.len(),
            self.board.virtio.len(),
        )?;
        for (vcpu, state) in vcpus.iter().zip(&state.vcpus) {
            vcpu.lock().fill(state, &limits)?;
        }
        state.chipset.fill(&self.vm, advance)?;
        self.board.serial.lock().restore(state.serial)?;
        self.board.i8042.lock().restore(state.i8042)?;
        for (transport, state) in self.board.virtio.iter().zip(state.virtio) {
            transport.lock().restore(state)?;
        }
        Ok(())
    }

    /// Raises what has to reach the guest once it runs. To be called right before
    /// that: the vsock device begins to wait for the guest's answer.
    pub(super) fn after_restore(&self) {
        self.board.serial.lock().after_restore();
        self.board.i8042.lock().after_restore();
        for transport in &self.board.virtio {
            transport.lock().after_restore();
        }
    }
}

fn agree(what: &str, saved: usize, here: usize) -> Result<(), StateError> {
    if saved == here {
        return Ok(());
    }
    let why = format!("it is of {saved} {what}, but its own specification has {here}");
    Err(StateError::refused("the machine", why))
}

#[cfg(test)]
#[path = "saved_test.rs"]
mod tests;
