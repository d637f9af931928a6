//! The panic notifier that QEMU defined (docs/specs/pvpanic): a guest kernel
//! reports its own panic before it halts.

use crate::bus::{BusDevice, Effect};

/// The port that drivers expect, announced in the DSDT as well.
pub const PORT: u16 = 0x505;
/// Ports that the device takes.
pub const LEN: u16 = 1;

/// The guest kernel panicked: the one event that is offered. Left out is bit 1,
/// by which a kernel says that it goes on to a crash kernel by itself.
const PANICKED: u8 = 1 << 0;

/// The panic notifier.
#[derive(Default)]
pub struct Pvpanic;

impl BusDevice for Pvpanic {
    /// The events that may be reported.
    fn read(&mut self, _offset: u64, out: &mut [u8]) {
        out.fill(0);
        if let [first, ..] = out {
            *first = PANICKED;
        }
    }

    fn write(&mut self, _offset: u64, data: &[u8]) -> Effect {
        match data.first() {
            Some(events) if events & PANICKED != 0 => Effect::GuestPanic,
            _ => Effect::None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_is_offered_and_reported() {
        let mut out = [0xff];
        Pvpanic.read(0, &mut out);
        assert_eq!(out, [1]);
        assert_eq!(Pvpanic.write(0, &[1]), Effect::GuestPanic);
        assert_eq!(Pvpanic.write(0, &[2]), Effect::None, "not offered");
        assert_eq!(Pvpanic.write(0, &[]), Effect::None);
    }
}
