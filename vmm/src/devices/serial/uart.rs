//! The 16550A chip by itself: registers in, bytes and interrupt requests out.
//!
//! It transmits in no time, so the transmitter is always empty, and it has no
//! modem: the far end is always there. Baud rate and framing are remembered and
//! mean nothing. Section numbers are those of TI's PC16550D data sheet.

use std::collections::VecDeque;

/// Bytes that the receiver holds for the guest. The 16550A has 16; more costs
/// nothing and saves interrupts.
pub(super) const FIFO: usize = 64;

const DATA: u64 = 0;
const INTERRUPT_ENABLE: u64 = 1;
const INTERRUPT_IDENTITY: u64 = 2;
const LINE_CONTROL: u64 = 3;
const MODEM_CONTROL: u64 = 4;
const LINE_STATUS: u64 = 5;
const MODEM_STATUS: u64 = 6;
const SCRATCH: u64 = 7;

/// Interrupt enable register: received data, transmitter empty (§8.6).
const ENABLE_RECEIVED: u8 = 1 << 0;
const ENABLE_EMPTY: u8 = 1 << 1;
pub(super) const ENABLE_MASK: u8 = 0x0f;

/// Interrupt identity register (§8.5).
const IDENTITY_NONE: u8 = 0x01;
const IDENTITY_EMPTY: u8 = 0x02;
const IDENTITY_RECEIVED: u8 = 0x04;
const IDENTITY_FIFO: u8 = 0xc0;

/// FIFO control register: enable, clear the receiver's (§8.4).
const FIFO_ENABLE: u8 = 1 << 0;
const FIFO_CLEAR_RECEIVER: u8 = 1 << 1;

/// Line control register: registers 0 and 1 are the baud rate divisor (§8.1).
const DIVISOR_ACCESS: u8 = 1 << 7;

/// Modem control register (§8.7).
pub(super) const MODEM_MASK: u8 = 0x1f;
const LOOPBACK: u8 = 1 << 4;

/// Line status register (§8.2).
const DATA_READY: u8 = 1 << 0;
const TRANSMITTER_EMPTY: u8 = 1 << 5 | 1 << 6;

/// Modem status register: carrier, data set ready, clear to send (§8.8).
const MODEM_READY: u8 = 1 << 7 | 1 << 5 | 1 << 4;

/// What a register access asks of the wiring.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Wants {
    /// Send this byte to the far end.
    pub(super) transmit: Option<u8>,
    /// Raise the interrupt line: a reason came up that was not there before.
    pub(super) interrupt: bool,
    /// The receiver's FIFO has just become empty.
    pub(super) drained: bool,
}

/// The chip's state.
pub(super) struct Uart {
    pub(super) received: VecDeque<u8>,
    pub(super) interrupt_enable: u8,
    pub(super) fifo_enabled: bool,
    pub(super) line_control: u8,
    pub(super) modem_control: u8,
    pub(super) scratch: u8,
    pub(super) divisor: [u8; 2],
    /// The transmitter became empty and the guest has not been told: reading
    /// the identity register tells it (§8.5).
    pub(super) empty_pending: bool,
    /// The reasons for which the line has been raised and that still hold.
    pub(super) raised: u8,
}

impl Uart {
    pub(super) fn new() -> Self {
        Self {
            received: VecDeque::with_capacity(FIFO),
            interrupt_enable: 0,
            fifo_enabled: false,
            line_control: 0b11,
            modem_control: 0,
            scratch: 0,
            divisor: [12, 0], // 9600 baud
            empty_pending: false,
            raised: 0,
        }
    }

    /// Bytes that [`Uart::receive`] would take now.
    pub(super) fn room(&self) -> usize {
        FIFO.saturating_sub(self.received.len())
    }

    /// Bytes from the far end. Returns how many were taken and whether to raise
    /// the line. In loopback mode the far end is cut off and none is taken
    /// (§8.7).
    pub(super) fn receive(&mut self, bytes: &[u8]) -> (usize, bool) {
        if self.modem_control & LOOPBACK != 0 {
            return (0, false);
        }
        let taken = bytes.len().min(self.room());
        self.received.extend(&bytes[..taken]);
        (taken, self.update())
    }

    pub(super) fn read(&mut self, register: u64) -> (u8, Wants) {
        let mut wants = Wants::default();
        let divisor = self.line_control & DIVISOR_ACCESS != 0;
        let value = match register {
            DATA if divisor => self.divisor[0],
            INTERRUPT_ENABLE if divisor => self.divisor[1],
            DATA => {
                let byte = self.received.pop_front();
                wants.drained = byte.is_some() && self.received.is_empty();
                self.update();
                byte.unwrap_or(0)
            }
            INTERRUPT_ENABLE => self.interrupt_enable,
            INTERRUPT_IDENTITY => self.identify(),
            LINE_CONTROL => self.line_control,
            MODEM_CONTROL => self.modem_control,
            LINE_STATUS if self.received.is_empty() => TRANSMITTER_EMPTY,
            LINE_STATUS => TRANSMITTER_EMPTY | DATA_READY,
            MODEM_STATUS => self.modem_status(),
            SCRATCH => self.scratch,
            _ => 0xff,
        };
        (value, wants)
    }

    pub(super) fn write(&mut self, register: u64, value: u8) -> Wants {
        let mut wants = Wants::default();
        let divisor = self.line_control & DIVISOR_ACCESS != 0;
        match register {
            DATA if divisor => self.divisor[0] = value,
            INTERRUPT_ENABLE if divisor => self.divisor[1] = value,
            DATA => {
                if self.modem_control & LOOPBACK == 0 {
                    wants.transmit = Some(value);
                } else if self.room() > 0 {
                    self.received.push_back(value);
                }
                self.empty_pending = true;
            }
            INTERRUPT_ENABLE => {
                let value = value & ENABLE_MASK;
                // Turning the reason on while the transmitter is empty is an
                // event of its own (§8.6); drivers start sending by it.
                if value & !self.interrupt_enable & ENABLE_EMPTY != 0 {
                    self.empty_pending = true;
                }
                self.interrupt_enable = value;
            }
            INTERRUPT_IDENTITY => {
                self.fifo_enabled = value & FIFO_ENABLE != 0;
                if value & FIFO_CLEAR_RECEIVER != 0 {
                    wants.drained = !self.received.is_empty();
                    self.received.clear();
                }
            }
            LINE_CONTROL => self.line_control = value,
            MODEM_CONTROL => {
                // Leaving loopback reconnects the far end, which may have
                // waited for that.
                wants.drained = self.modem_control & !value & LOOPBACK != 0;
                self.modem_control = value & MODEM_MASK;
            }
            SCRATCH => self.scratch = value,
            _ => {}
        }
        wants.interrupt = self.update();
        wants
    }

    /// The identity register: the most urgent reason. Reading that the
    /// transmitter is empty settles it.
    fn identify(&mut self) -> u8 {
        let fifo = if self.fifo_enabled { IDENTITY_FIFO } else { 0 };
        let reasons = self.reasons();
        fifo | if reasons & ENABLE_RECEIVED != 0 {
            IDENTITY_RECEIVED
        } else if reasons & ENABLE_EMPTY != 0 {
            self.empty_pending = false;
            self.update();
            IDENTITY_EMPTY
        } else {
            IDENTITY_NONE
        }
    }

    /// In loopback, the modem's outputs are its inputs (§8.7).
    fn modem_status(&self) -> u8 {
        if self.modem_control & LOOPBACK == 0 {
            return MODEM_READY;
        }
        let out = self.modem_control;
        (out & 0b0010) << 3 | (out & 0b0001) << 5 | (out & 0b1100) << 4
    }

    /// The reasons that hold and are enabled.
    pub(super) fn reasons(&self) -> u8 {
        let mut reasons = 0;
        if !self.received.is_empty() {
            reasons |= ENABLE_RECEIVED;
        }
        if self.empty_pending {
            reasons |= ENABLE_EMPTY;
        }
        reasons & self.interrupt_enable
    }

    /// Whether a reason came up. The line is edge-triggered, as ISA lines are:
    /// a reason that was masked and is enabled again counts as new, or its
    /// interrupt would be lost.
    fn update(&mut self) -> bool {
        let reasons = self.reasons();
        let new = reasons & !self.raised != 0;
        self.raised = reasons;
        new
    }
}

#[cfg(test)]
#[path = "uart_test.rs"]
mod tests;
