//! The saved form of a transport with its device.

use serde::{Deserialize, Serialize};

use super::core::Core;
use super::registers::{FeaturePage, status};
use crate::state::StateError;
use crate::virtio::{DeviceFault, QueuePosition, QueueSetup, device, interrupt};

/// What is kept of a transport.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum TransportState {
    /// Version 1.
    V1(TransportV1),
}

/// Version 1 of [`TransportState`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TransportV1 {
    /// Type of the device (virtio 1.2 §5).
    pub device_id: u32,
    /// The device status register.
    pub status: u32,
    /// `DeviceFeaturesSel`.
    pub device_page: u32,
    /// `DriverFeaturesSel`.
    pub driver_page: u32,
    /// Features that the driver accepted.
    pub accepted: u64,
    /// `QueueSel`.
    pub selected: u32,
    /// The interrupt status register.
    pub interrupt_status: u32,
    /// The configuration space's generation.
    pub config_generation: u32,
    /// All queues in their order.
    pub queues: Vec<QueueV1>,
    /// The device's own state, as `VirtioDevice::save` encoded it.
    pub device: Vec<u8>,
}

/// A queue in [`TransportV1`]: what the driver set up, and how far a started
/// device has come; 0 if it is not started.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct QueueV1 {
    /// The largest size that the device takes.
    pub max_size: u16,
    /// Size in descriptors.
    pub size: u32,
    /// The driver finished the set-up.
    pub ready: bool,
    /// Address of the descriptor table.
    pub descriptors: u64,
    /// Address of the available ring.
    pub available: u64,
    /// Address of the used ring.
    pub used: u64,
    /// Chains taken out of the available ring, wrapping.
    pub next_avail: u16,
    /// Chains put into the used ring, wrapping.
    pub next_used: u16,
}

impl QueueV1 {
    fn new(setup: &QueueSetup, position: QueuePosition) -> Self {
        let QueueSetup {
            max_size,
            size,
            ready,
            descriptors,
            available,
            used,
        } = *setup;
        Self {
            max_size,
            size,
            ready,
            descriptors,
            available,
            used,
            next_avail: position.next_avail,
            next_used: position.next_used,
        }
    }

    fn setup(&self) -> QueueSetup {
        QueueSetup {
            max_size: self.max_size,
            size: self.size,
            ready: self.ready,
            descriptors: self.descriptors,
            available: self.available,
            used: self.used,
        }
    }

    fn position(&self) -> QueuePosition {
        QueuePosition {
            next_avail: self.next_avail,
            next_used: self.next_used,
        }
    }
}

/// A device with this status has been started (virtio 1.2 §3.1.1).
fn is_started(status: u32) -> bool {
    status & status::DRIVER_OK != 0 && status & status::NEEDS_RESET == 0
}

impl Core {
    /// See [`super::MmioTransport::save`].
    pub fn save(&self) -> Result<TransportState, StateError> {
        let what = device::name(self.identity.device_id);
        let not_now = |why: String| StateError::NotNow {
            what: what.clone(),
            why,
        };
        if self.started() != is_started(self.status) {
            return Err(not_now("the machine has stopped it".into()));
        }
        let running = self.device.queues();
        let expected = match self.started() {
            true => self.queues.len(),
            false => 0,
        };
        if running.len() != expected {
            return Err(not_now(format!(
                "it has {} queues in use, not {expected}",
                running.len()
            )));
        }
        for queue in running {
            // What a restore would refuse is not saved in the first place.
            queue.check().map_err(|fault| not_now(fault.to_string()))?;
        }
        let positions = running
            .iter()
            .map(|queue| queue.position())
            .chain(std::iter::repeat(QueuePosition::default()));
        Ok(TransportState::V1(TransportV1 {
            device_id: self.identity.device_id,
            status: self.status,
            device_page: self.device_page.0,
            driver_page: self.driver_page.0,
            accepted: self.accepted,
            // The driver wrote 32 bits.
            selected: self.selected as u32,
            interrupt_status: self.interrupt.status(),
            config_generation: self.interrupt.config_generation(),
            queues: self
                .queues
                .iter()
                .zip(positions)
                .map(|(setup, position)| QueueV1::new(setup, position))
                .collect(),
            device: self.device.save()?,
        }))
    }

    /// See [`super::MmioTransport::restore`].
    pub fn restore(&mut self, state: TransportState) -> Result<(), StateError> {
        let TransportState::V1(state) = state;
        self.reset();
        let filled = self.fill(state);
        if filled.is_err() {
            self.reset();
        }
        filled
    }

    fn fill(&mut self, state: TransportV1) -> Result<(), StateError> {
        let TransportV1 {
            device_id,
            status,
            device_page,
            driver_page,
            accepted,
            selected,
            interrupt_status,
            config_generation,
            queues,
            device,
        } = state;
        let what = device::name(self.identity.device_id);
        let refuse = |why: String| Err(StateError::refused(&what, why));
        if device_id != self.identity.device_id {
            return refuse(format!("it is that of a device of type {device_id}"));
        }
        if status & !status::ALL != 0 {
            return refuse(format!("the device status {status:#x} has unknown bits"));
        }
        if interrupt_status & !interrupt::REASONS != 0 {
            return refuse(format!(
                "the interrupt status {interrupt_status:#x} has unknown bits"
            ));
        }
        let has = |bit| status & bit != 0;
        if has(status::DRIVER_OK) && !has(status::FEATURES_OK)
            || has(status::FEATURES_OK) && !has(status::DRIVER)
        {
            return refuse(format!(
                "the device status {status:#x} cannot be reached: a step is missing"
            ));
        }
        let sizes = self.identity.queue_sizes;
        if queues.len() != sizes.len()
            || queues.iter().zip(sizes).any(|(q, &max)| q.max_size != max)
        {
            let saved: Vec<_> = queues.iter().map(|queue| queue.max_size).collect();
            return refuse(format!(
                "its queues have up to {saved:?} descriptors, the device's have {sizes:?}"
            ));
        }
        self.status = status;
        self.device_page = FeaturePage(device_page);
        self.driver_page = FeaturePage(driver_page);
        self.accepted = accepted;
        self.selected = selected as usize;
        self.queues = queues.iter().map(QueueV1::setup).collect();
        if self.has(status::FEATURES_OK) && !self.features_acceptable() {
            return refuse(format!(
                "its driver uses the features {accepted:#x}, but the device offers {:#x}: is it configured as it was?",
                self.offered()
            ));
        }
        self.interrupt.restore(interrupt_status, config_generation);
        self.device.restore(&device)?;
        let positions: Vec<_> = queues.iter().map(QueueV1::position).collect();
        if is_started(status) {
            self.resume(&positions)
                .map_err(|fault| StateError::refused(&what, fault))
        } else if positions.iter().any(|&p| p != QueuePosition::default()) {
            refuse("its queues have moved, but it was not started".into())
        } else {
            Ok(())
        }
    }

    /// Starts the device with its queues at `positions`.
    fn resume(&mut self, positions: &[QueuePosition]) -> Result<(), DeviceFault> {
        let mut queues = self.set_up_queues()?;
        for (queue, &position) in queues.iter_mut().zip(positions) {
            queue.resume_at(position)?;
        }
        self.start_with(queues)
    }
}

#[cfg(test)]
#[path = "state_test.rs"]
mod tests;
