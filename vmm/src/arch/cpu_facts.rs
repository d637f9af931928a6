//! What a host's processors can do, as far as a guest that has seen them would
//! miss it on another host.
//!
//! Kept with a snapshot and compared when it is loaded, unless the host has not
//! been booted since: a CPUID instruction costs tens of microseconds where the
//! host is itself a virtual machine, and asking KVM for all that it supports
//! takes longer than the rest of a restore.

use std::arch::x86_64::__cpuid_count;

use kvm_bindings::kvm_cpuid_entry2;
use serde::{Deserialize, Serialize};

/// A register of a CPUID leaf.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum Register {
    Eax,
    Ebx,
    Ecx,
    Edx,
}

/// The leaves whose bits are features (Intel SDM vol. 2, CPUID; AMD APM vol. 3,
/// appendix E).
const FEATURES: &[(u32, u32, Register)] = &[
    (1, 0, Register::Ecx),
    (1, 0, Register::Edx),
    (7, 0, Register::Ebx),
    (7, 0, Register::Ecx),
    (7, 0, Register::Edx),
    (7, 1, Register::Eax),
    (0xd, 1, Register::Eax),
    (0x8000_0001, 0, Register::Ecx),
    (0x8000_0001, 0, Register::Edx),
];

/// Features of leaf 1 that KVM gives a guest whatever the processor has: x2APIC,
/// TSC deadline timer, hypervisor; and OSXSAVE, which is the state of a control
/// register.
const NOT_THE_HOSTS: u32 = 1 << 21 | 1 << 24 | 1 << 27 | 1 << 31;

/// See the module's description.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CpuFacts {
    /// The id of the host's boot; empty if unknown.
    boot_id: String,
    /// "GenuineIntel", "AuthenticAMD" …
    pub vendor: String,
    /// Family, model and stepping, as leaf 1 has them in EAX.
    pub signature: u32,
    /// The registers of [`FEATURES`], in their order.
    features: Vec<u32>,
}

/// Why guests of one host cannot go on on another.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CpuMismatch {
    /// Another maker's processors.
    #[error(
        "the snapshot was made on processors of {saved}, and this host's are of {here}: restore it \
         on a host with processors of {saved}"
    )]
    Vendor {
        /// Where it was made.
        saved: String,
        /// This host.
        here: String,
    },
    /// Features are missing.
    #[error(
        "the snapshot's guest uses processor features that this host lacks: {}; restore it on a \
         host that has them",
        missing.join(", ")
    )]
    Features {
        /// Each as a bit of a register of a CPUID leaf.
        missing: Vec<String>,
    },
}

impl CpuFacts {
    /// Those of the processor that this runs on, found in the boot called
    /// `boot_id`.
    pub fn of_host(boot_id: String) -> Self {
        let mut last: Option<((u32, u32), std::arch::x86_64::CpuidResult)> = None;
        let mut leaf = |leaf: u32, subleaf: u32| match last {
            Some((at, result)) if at == (leaf, subleaf) => result,
            _ => {
                let result = __cpuid_count(leaf, subleaf);
                last = Some(((leaf, subleaf), result));
                result
            }
        };
        let zero = leaf(0, 0);
        let vendor: Vec<u8> = [zero.ebx, zero.edx, zero.ecx]
            .iter()
            .flat_map(|word| word.to_le_bytes())
            .collect();
        let features = FEATURES
            .iter()
            .map(|&(number, subleaf, register)| {
                // Leaves beyond the last repeat another's values.
                if number < 0x8000_0000 && number > zero.eax {
                    return 0;
                }
                let result = leaf(number, subleaf);
                match register {
                    Register::Eax => result.eax,
                    Register::Ebx => result.ebx,
                    Register::Ecx => result.ecx,
                    Register::Edx => result.edx,
                }
            })
            .collect();
        Self {
            boot_id,
            vendor: String::from_utf8_lossy(&vendor).into_owned(),
            signature: leaf(1, 0).eax,
            features,
        }
    }

    /// Whether they were found on the host whose boot this is.
    pub fn are_of_boot(&self, boot_id: &str) -> bool {
        !boot_id.is_empty() && self.boot_id == boot_id
    }

    /// Whether a guest that ran where `self` was found, and sees the leaves
    /// `guest`, can go on where `here` was found.
    ///
    /// # Errors
    /// It would miss something.
    pub fn suffices(&self, here: &Self, guest: &[kvm_cpuid_entry2]) -> Result<(), CpuMismatch> {
        if self.vendor != here.vendor {
            return Err(CpuMismatch::Vendor {
                saved: self.vendor.clone(),
                here: here.vendor.clone(),
            });
        }
        let mut missing = Vec::new();
        for (index, &(leaf, subleaf, register)) in FEATURES.iter().enumerate() {
            let had = self.features.get(index).copied().unwrap_or(0);
            let has = here.features.get(index).copied().unwrap_or(0);
            let mut lost = had & !has;
            if leaf == 1 && register == Register::Ecx {
                lost &= !NOT_THE_HOSTS;
            }
            if lost == 0 {
                continue;
            }
            // What the guest was never shown it cannot miss.
            lost &= shown(guest, leaf, subleaf, register);
            for bit in (0..32).filter(|bit| lost >> bit & 1 == 1) {
                missing.push(format!("CPUID {leaf:#x}.{subleaf} {register:?} bit {bit}"));
            }
        }
        match missing.is_empty() {
            true => Ok(()),
            false => Err(CpuMismatch::Features { missing }),
        }
    }
}

/// What the guest sees in a register.
fn shown(guest: &[kvm_cpuid_entry2], leaf: u32, subleaf: u32, register: Register) -> u32 {
    guest
        .iter()
        .find(|entry| entry.function == leaf && entry.index == subleaf)
        .map_or(0, |entry| match register {
            Register::Eax => entry.eax,
            Register::Ebx => entry.ebx,
            Register::Ecx => entry.ecx,
            Register::Edx => entry.edx,
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn guest(ebx_of_7: u32) -> Vec<kvm_cpuid_entry2> {
        vec![kvm_cpuid_entry2 {
            function: 7,
            ebx: ebx_of_7,
            ..Default::default()
        }]
    }

    #[test]
    fn a_host_suffices_for_itself_and_one_that_lacks_what_the_guest_saw_does_not() {
        let here = CpuFacts::of_host(String::new());
        assert!(here.suffices(&here, &guest(u32::MAX)).is_ok());
        let mut richer = here.clone();
        // A bit that this host may or may not have, had by the other for sure.
        richer.features[2] |= 1 << 5;
        let mut lesser = here.clone();
        lesser.features[2] &= !(1 << 5);
        assert!(lesser.suffices(&richer, &guest(u32::MAX)).is_ok());
        assert!(richer.suffices(&lesser, &guest(!(1 << 5))).is_ok());
        let error = richer.suffices(&lesser, &guest(1 << 5)).unwrap_err();
        assert!(
            error.to_string().contains("CPUID 0x7.0 Ebx bit 5"),
            "{error}"
        );
    }

    #[test]
    fn another_makers_processors_never_suffice() {
        let here = CpuFacts::of_host(String::new());
        let mut other = here.clone();
        other.vendor = "CyrixInstead".into();
        assert!(other.suffices(&here, &[]).is_err());
    }
}
