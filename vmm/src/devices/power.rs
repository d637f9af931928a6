//! The sleep registers of hardware-reduced ACPI (ACPI 6.5 §4.8.3.7), by which a
//! guest powers off and resets.
//!
//! The control register doubles as the FADT's reset register (§4.8.3.6): a
//! sleep request has `SLP_EN` set and [`RESET_VALUE`] has not, so the two cannot
//! be taken for each other.

use crate::bus::{BusDevice, Effect};

/// First port. Nothing of a PC's ever lived here.
pub const PORT: u16 = 0x600;
/// Ports that the device takes.
pub const LEN: u16 = 2;
/// Where the control register lies.
pub const SLEEP_CONTROL_OFFSET: u16 = 0;
/// Where the status register lies.
pub const SLEEP_STATUS_OFFSET: u16 = 1;
/// Written to the control register, this resets the machine.
pub const RESET_VALUE: u8 = 1;
/// The sleep type that `\_S5` announces: soft off.
pub const S5_TYPE: u8 = 5;

/// Control register: go to sleep now.
const SLP_EN: u8 = 1 << 5;
const SLP_TYP_SHIFT: u8 = 2;
const SLP_TYP_MASK: u8 = 0b111;

/// The sleep control and status registers.
#[derive(Default)]
pub struct Power;

impl BusDevice for Power {
    fn read(&mut self, _offset: u64, out: &mut [u8]) {
        // The control register is write-only; the status register's one bit,
        // WAK_STS, says that the machine woke from a sleep, and it never sleeps.
        out.fill(0);
    }

    fn write(&mut self, offset: u64, data: &[u8]) -> Effect {
        match *data {
            [RESET_VALUE] if offset == u64::from(SLEEP_CONTROL_OFFSET) => Effect::Reset,
            [value]
                if offset == u64::from(SLEEP_CONTROL_OFFSET)
                    && value & SLP_EN != 0
                    && value >> SLP_TYP_SHIFT & SLP_TYP_MASK == S5_TYPE =>
            {
                Effect::PowerOff
            }
            _ => Effect::None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_soft_off_type_with_its_enable_bit_powers_off() {
        for value in 0..=u8::MAX {
            let expected = match value {
                RESET_VALUE => Effect::Reset,
                // SLP_EN and type 5; the reserved bits do not matter.
                _ if value & 0b0011_1100 == 0b0011_0100 => Effect::PowerOff,
                _ => Effect::None,
            };
            assert_eq!(Power.write(0, &[value]), expected, "{value:#x}");
            assert_eq!(Power.write(1, &[value]), Effect::None, "status {value:#x}");
        }
    }

    #[test]
    fn wider_accesses_mean_nothing() {
        assert_eq!(Power.write(0, &[0x34, 0]), Effect::None);
        let mut out = [0xff; 2];
        Power.read(0, &mut out);
        assert_eq!(out, [0, 0], "never woken from sleep");
    }
}
