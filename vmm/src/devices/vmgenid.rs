//! The generation identifier ("Virtual Machine Generation ID", Microsoft, 2012):
//! 16 random bytes in guest memory that are others in each machine that grows
//! from a snapshot.
//!
//! A guest kernel that sees them change reseeds its random number generator, so
//! that siblings do not draw the same numbers. The bytes are the device's only
//! state, and they are part of guest memory. Where they lie and which interrupt
//! tells of a change is said in the DSDT (`arch/acpi.rs`).

use std::io;

use vm_memory::{Bytes, GuestMemoryError};
use vmm_sys_util::eventfd::EventFd;

use crate::sys::file;
use crate::units::Gpa;

/// Bytes of an identifier.
pub const LEN: usize = 16;

/// A generation identifier that could not be written.
#[derive(Debug, thiserror::Error)]
pub enum VmGenIdError {
    /// The host has no random bytes.
    #[error("the host gives no random bytes for the generation identifier ({0})")]
    Random(#[from] io::Error),
    /// Guest memory does not reach as far.
    #[error("the generation identifier could not be written to guest memory ({0})")]
    Memory(#[from] GuestMemoryError),
}

/// The device: where the identifier lies, and the line that tells of a change.
#[derive(Debug)]
pub struct VmGenId {
    at: Gpa,
    line: EventFd,
}

impl VmGenId {
    /// A device whose identifier lies at `at` and whose line is an event
    /// descriptor bound to the interrupt controller (KVM_IRQFD).
    pub fn new(at: Gpa, line: EventFd) -> Self {
        Self { at, line }
    }

    /// Gives the machine a new identifier and raises the line.
    ///
    /// To be called after memory and interrupt controllers have been filled from
    /// saved state, which would overwrite the identifier and forget the interrupt,
    /// and before a vCPU runs, so that none runs as its sibling.
    ///
    /// # Errors
    /// See [`VmGenIdError`]. Then the machine must not run: it would take itself
    /// for the one that it was restored from.
    pub fn renew(
        &self,
        memory: &impl Bytes<Gpa, E = GuestMemoryError>,
    ) -> Result<(), VmGenIdError> {
        write_fresh(memory, self.at)?;
        // A failed write means that the counter is at its maximum: the line is
        // already raised, which is all that was wanted.
        let _ = self.line.write(1);
        Ok(())
    }
}

/// Writes an identifier that no other machine has at `at`, and tells nobody: for
/// a machine that boots.
///
/// # Errors
/// See [`VmGenIdError`].
pub fn write_fresh(
    memory: &impl Bytes<Gpa, E = GuestMemoryError>,
    at: Gpa,
) -> Result<(), VmGenIdError> {
    let mut identifier = [0; LEN];
    file::random(&mut identifier)?;
    memory.write_slice(&identifier, at)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use vm_memory::GuestMemoryMmap;
    use vmm_sys_util::eventfd::EFD_NONBLOCK;

    use super::*;
    use crate::units::PAGE_SIZE;

    const AT: Gpa = Gpa(PAGE_SIZE);

    fn memory() -> GuestMemoryMmap<()> {
        GuestMemoryMmap::from_ranges(&[(Gpa(0), 2 * PAGE_SIZE as usize)]).expect("two pages")
    }

    fn identifier(memory: &GuestMemoryMmap<()>) -> [u8; LEN] {
        memory.read_obj(AT).expect("in memory")
    }

    #[test]
    fn each_generation_has_another_identifier_and_is_told() {
        let line = EventFd::new(EFD_NONBLOCK).expect("a descriptor");
        let device = VmGenId::new(AT, line.try_clone().expect("a second handle"));
        let memory = memory();
        write_fresh(&memory, AT).expect("written");
        let mut seen = vec![[0; LEN], identifier(&memory)];
        assert!(line.read().is_err(), "booting tells nobody");
        for _ in 0..3 {
            device.renew(&memory).expect("renewed");
            assert_eq!(line.read().expect("raised"), 1);
            seen.push(identifier(&memory));
        }
        let count = seen.len();
        seen.sort_unstable();
        seen.dedup();
        assert_eq!(seen.len(), count);
    }

    #[test]
    fn nothing_but_the_identifier_is_written() {
        let memory = memory();
        write_fresh(&memory, AT).expect("written");
        let mut all = vec![0; 2 * PAGE_SIZE as usize];
        memory.read_slice(&mut all, Gpa(0)).expect("in memory");
        let (before, rest) = all.split_at(AT.0 as usize);
        assert!(before.iter().chain(&rest[LEN..]).all(|byte| *byte == 0));
    }

    #[test]
    fn a_line_that_cannot_be_raised_further_is_raised() {
        let line = EventFd::new(EFD_NONBLOCK).expect("a descriptor");
        line.write(u64::MAX - 1).expect("room");
        let device = VmGenId::new(AT, line);
        device.renew(&memory()).expect("raised already");
    }

    #[test]
    fn memory_that_does_not_reach_so_far_is_an_error() {
        let line = EventFd::new(EFD_NONBLOCK).expect("a descriptor");
        let device = VmGenId::new(Gpa(2 * PAGE_SIZE - 8), line.try_clone().expect("cloned"));
        let error = device.renew(&memory()).expect_err("outside");
        assert!(matches!(error, VmGenIdError::Memory(_)), "{error}");
        assert!(line.read().is_err(), "nothing changed, so nothing is told");
    }
}
