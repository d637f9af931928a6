//! Model-specific registers at boot.
//!
//! The policy is KVM's own: a guest reads and writes what KVM emulates, and
//! any other register faults with #GP. Only what a kernel expects of firmware
//! is set here.

use kvm_bindings::{kvm_lapic_state, kvm_msr_entry};

/// IA32_TSC.
const TSC: u32 = 0x10;
/// IA32_TSC_DEADLINE.
const TSC_DEADLINE: u32 = 0x6e0;
/// IA32_XSS, which not every kernel lists.
const XSS: u32 = 0xda0;
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

/// MSRs that KVM keeps and does not list among those to save: the MTRRs
/// (Intel SDM vol. 4: eight variable ranges, eleven fixed ones, the default
/// type) and, in older kernels, IA32_XSS.
pub fn unlisted() -> impl Iterator<Item = u32> {
    let variable = 0x200..0x210;
    let fixed = [0x250, 0x258, 0x259].into_iter().chain(0x268..0x270);
    variable.chain(fixed).chain([MTRR_DEF_TYPE, XSS])
}

/// Between a deadline's passing and its interrupt, KVM reports the deadline as
/// 0, which means that no timer is armed, and holds the interrupt where no call
/// shows it. A deadline of now makes the timer fire again; a guest that was
/// not waiting for it sees one interrupt too many, which it ignores.
pub fn fire_lost_deadline(msrs: &mut [kvm_msr_entry], lapic: &kvm_lapic_state) {
    /// Local vector table: the timer's entry, its mode, which is bits 17–18, and
    /// the mode that is meant (Intel SDM vol. 3A §11.5.4).
    const LVT_TIMER: usize = 0x320;
    const MODE_TSC_DEADLINE: u8 = 0b10;
    if lapic.regs[LVT_TIMER + 2] as u8 >> 1 & 0b11 != MODE_TSC_DEADLINE {
        return;
    }
    let value = |index| {
        msrs.iter()
            .find(|entry| entry.index == index)
            .map(|entry| entry.data)
    };
    let Some(now) = value(TSC) else { return };
    for entry in msrs.iter_mut() {
        if entry.index == TSC_DEADLINE && entry.data == 0 {
            entry.data = now;
        }
    }
}
