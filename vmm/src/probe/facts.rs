//! The processor and the kernel of this host.

use std::arch::x86_64::{__cpuid_count, CpuidResult};
use std::fs;

use serde::Serialize;

/// The processor and the kernel of this host.
#[derive(Debug, Serialize)]
pub struct HostFacts {
    /// The processor's vendor, as CPUID spells it.
    pub cpu_vendor: String,
    /// The processor announces VT-x or AMD-V.
    pub virtualisation: bool,
    /// The hypervisor that this host itself runs under, as CPUID spells it.
    pub hypervisor: Option<String>,
    /// Bytes that the processor's extended state takes with all its features
    /// on; 0 if it has no XSAVE.
    pub xsave_bytes: u32,
    /// The local APIC's timer has the TSC-deadline mode.
    pub tsc_deadline_timer: bool,
    /// The running kernel's release.
    pub kernel: String,
}

impl HostFacts {
    pub(super) fn gather() -> Self {
        let highest = cpuid(0);
        let features = cpuid(1);
        let has_xsave = features.ecx & 1 << 26 != 0 && highest.eax >= 0xd;
        let under_hypervisor = features.ecx & 1 << 31 != 0;
        let vmx = features.ecx & 1 << 5 != 0;
        let svm = cpuid(0x8000_0000).eax >= 0x8000_0001 && cpuid(0x8000_0001).ecx & 1 << 2 != 0;
        Self {
            cpu_vendor: text(&[highest.ebx, highest.edx, highest.ecx]),
            virtualisation: vmx || svm,
            hypervisor: under_hypervisor.then(|| {
                let leaf = cpuid(0x4000_0000);
                text(&[leaf.ebx, leaf.ecx, leaf.edx])
            }),
            xsave_bytes: if has_xsave { cpuid(0xd).ecx } else { 0 },
            tsc_deadline_timer: features.ecx & 1 << 24 != 0,
            kernel: fs::read_to_string("/proc/sys/kernel/osrelease")
                .map(|release| release.trim().to_owned())
                .unwrap_or_default(),
        }
    }
}

/// CPUID leaf `leaf`, subleaf 0.
#[allow(
    unused_unsafe,
    reason = "the intrinsic is an unsafe function up to Rust 1.92 and a safe one since"
)]
fn cpuid(leaf: u32) -> CpuidResult {
    // SAFETY: every x86-64 processor has the instruction, and it has no effect
    // beyond its result.
    unsafe { __cpuid_count(leaf, 0) }
}

/// The characters in `registers`, without the padding.
fn text(registers: &[u32]) -> String {
    let bytes: Vec<u8> = registers.iter().flat_map(|r| r.to_le_bytes()).collect();
    String::from_utf8_lossy(&bytes)
        .trim_end_matches('\0')
        .to_owned()
}
