//! The saved form of the chip. What the host has not taken of its output, or not
//! given of its input, belongs to the host and is not part of it.

use serde::{Deserialize, Serialize};

use super::uart::{ENABLE_MASK, FIFO, MODEM_MASK, Uart};
use crate::state::StateError;

/// What is kept of a serial port.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum UartState {
    /// Version 1.
    V1(UartV1),
}

/// Version 1 of [`UartState`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UartV1 {
    /// Received bytes that the guest has not read, the oldest first; at most 64.
    pub received: Vec<u8>,
    /// Interrupt enable register; the upper four bits are 0.
    pub interrupt_enable: u8,
    /// Bit 0 of the FIFO control register.
    pub fifo_enabled: bool,
    /// Line control register.
    pub line_control: u8,
    /// Modem control register; the upper three bits are 0.
    pub modem_control: u8,
    /// Scratch register.
    pub scratch: u8,
    /// Baud rate divisor, the lower byte first.
    pub divisor: [u8; 2],
    /// The guest has not been told that the transmitter is empty.
    pub empty_pending: bool,
}

impl Uart {
    pub(super) fn save(&self) -> UartState {
        let Self {
            received,
            interrupt_enable,
            fifo_enabled,
            line_control,
            modem_control,
            scratch,
            divisor,
            empty_pending,
            // Follows from the rest.
            raised: _,
        } = self;
        UartState::V1(UartV1 {
            received: received.iter().copied().collect(),
            interrupt_enable: *interrupt_enable,
            fifo_enabled: *fifo_enabled,
            line_control: *line_control,
            modem_control: *modem_control,
            scratch: *scratch,
            divisor: *divisor,
            empty_pending: *empty_pending,
        })
    }
}

impl TryFrom<UartState> for Uart {
    type Error = StateError;

    fn try_from(UartState::V1(state): UartState) -> Result<Self, StateError> {
        let UartV1 {
            received,
            interrupt_enable,
            fifo_enabled,
            line_control,
            modem_control,
            scratch,
            divisor,
            empty_pending,
        } = state;
        let refuse = |why: String| Err(StateError::refused("the serial port", why));
        if received.len() > FIFO {
            return refuse(format!(
                "{} received bytes wait, but the FIFO has room for {FIFO}",
                received.len()
            ));
        }
        for (register, value, mask) in [
            ("interrupt enable", interrupt_enable, ENABLE_MASK),
            ("modem control", modem_control, MODEM_MASK),
        ] {
            if value & !mask != 0 {
                return refuse(format!(
                    "the {register} register is {value:#04x}, of which only {mask:#04x} can be set"
                ));
            }
        }
        let mut uart = Self {
            received: received.into(),
            interrupt_enable,
            fifo_enabled,
            line_control,
            modem_control,
            scratch,
            divisor,
            empty_pending,
            raised: 0,
        };
        uart.raised = uart.reasons();
        Ok(uart)
    }
}

#[cfg(test)]
#[path = "state_test.rs"]
mod tests;
