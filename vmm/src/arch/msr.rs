//! Model-specific registers at boot.
//!
//! The policy is KVM's own: a guest reads and writes what KVM emulates, and
//! any other register faults with #GP. Only what a kernel expects of firmware
//! is set here.

use kvm_bindings::kvm_msr_entry;

/// IA32_TSC.
const TSC: u32 = 0x10;
/// IA32_MISC_ENABLE; bit 0 enables fast string operations.
const MISC_ENABLE: u32 = 0x1a0;
/// IA32_MTRR_DEF_TYPE; bit 11 enables MTRRs, type 6 is write-back.
const MTRR_DEF_TYPE: u32 = 0x2ff;

/// What each CPU starts with (Intel SDM vol. 4; Linux expects firmware to have
/// enabled write-back caching of all memory).
pub fn at_boot() -> Vec<kvm_msr_entry> {
    let entry = |index, data| kvm_msr_entry {
        index,
        data,
        ..Default::default()
    };
    vec![
        entry(TSC, 0),
        entry(MISC_ENABLE, 1),
        entry(MTRR_DEF_TYPE, 1 << 11 | 6),
    ]
}
