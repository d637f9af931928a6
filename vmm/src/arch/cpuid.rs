//! What a guest's CPUs say of themselves.
//!
//! The base is what this KVM supports on this host. On top of it the topology
//! becomes the machine's own, so that nothing of the host's sockets, cores and
//! caches leaks in, and features are hidden that a guest cannot have here.

use kvm_bindings::{KVM_CPUID_FLAG_SIGNIFCANT_INDEX, kvm_cpuid_entry2};

/// How the CPUs of a machine hang together: one socket, and in it cores of one
/// or two threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Topology {
    /// Number of CPUs.
    pub vcpus: u8,
    /// Threads of each core: 1, or 2 with SMT.
    pub threads_per_core: u8,
}

impl Topology {
    /// One socket of `vcpus` CPUs, two to a core with `smt`.
    pub fn new(vcpus: u8, smt: bool) -> Self {
        Self {
            vcpus,
            threads_per_core: if smt && vcpus > 1 { 2 } else { 1 },
        }
    }

    fn cores(self) -> u8 {
        self.vcpus.div_ceil(self.threads_per_core)
    }

    /// Bits of the APIC id below the core's number.
    fn thread_bits(self) -> u32 {
        bits_for(self.threads_per_core)
    }

    /// Bits of the APIC id below the socket's number.
    fn socket_bits(self) -> u32 {
        self.thread_bits() + bits_for(self.cores())
    }
}

/// Bits needed to number `count` things from 0.
fn bits_for(count: u8) -> u32 {
    u32::from(count).next_power_of_two().trailing_zeros()
}

/// The width of guest physical addresses in bits (leaf 0x80000008).
pub fn address_bits(supported: &[kvm_cpuid_entry2]) -> u32 {
    /// What every 64-bit CPU has.
    const LEAST: u32 = 36;
    let leaf = supported.iter().find(|entry| entry.function == 0x8000_0008);
    leaf.map_or(LEAST, |entry| (entry.eax & 0xff).clamp(LEAST, 52))
}

/// Turns what KVM supports into what CPU number `vcpu` says.
///
/// Sources: Intel SDM vol. 2A "CPUID"; AMD APM vol. 3 appendix E;
/// `Documentation/virt/kvm/x86/cpuid.rst`.
pub fn for_vcpu(
    supported: &[kvm_cpuid_entry2],
    vcpu: u8,
    topology: Topology,
) -> Vec<kvm_cpuid_entry2> {
    let mut entries: Vec<_> = supported
        .iter()
        .copied()
        .filter(|entry| !is_rebuilt_or_hidden(entry.function))
        .collect();
    let amd = is_amd(supported);
    for entry in &mut entries {
        match entry.function {
            0x1 => identify(entry, vcpu, topology),
            0x4 => share_caches_intel(entry, topology),
            // PERFMON: there is no virtual PMU.
            0xa => (entry.eax, entry.ebx, entry.ecx, entry.edx) = (0, 0, 0, 0),
            0x4000_0001 => hide_async_page_faults(entry),
            0x8000_0001 => hide_svm(entry),
            0x8000_0008 if amd => count_cores_amd(entry, topology),
            0x8000_001d if amd => share_caches_amd(entry, topology),
            0x8000_001e if amd => place_core_amd(entry, vcpu, topology),
            _ => {}
        }
    }
    let highest = entries
        .iter()
        .find(|e| e.function == 0)
        .map_or(0, |e| e.eax);
    if highest >= 0xb {
        entries.extend(extended_topology(vcpu, topology));
    }
    entries
}

fn is_amd(entries: &[kvm_cpuid_entry2]) -> bool {
    let vendor = |e: &kvm_cpuid_entry2| [e.ebx, e.edx, e.ecx].map(u32::to_le_bytes).concat();
    entries
        .iter()
        .find(|e| e.function == 0)
        .is_some_and(|e| matches!(&vendor(e)[..], b"AuthenticAMD" | b"HygonGenuine"))
}

fn is_rebuilt_or_hidden(function: u32) -> bool {
    match function {
        // Extended topology: rebuilt below. Its successors are left out; a
        // guest then falls back to leaf 0xb.
        0xb | 0x1f | 0x8000_0026 => true,
        // SVM and SGX, nested and enclaves, are not offered. AMD's PMU leaf
        // goes with the PMU.
        0x8000_000a | 0x12 | 0x8000_0022 => true,
        _ => false,
    }
}

fn identify(entry: &mut kvm_cpuid_entry2, vcpu: u8, topology: Topology) {
    const VMX: u32 = 1 << 5;
    const PDCM: u32 = 1 << 15; // PMU capabilities MSR
    const TSC_DEADLINE: u32 = 1 << 24;
    const HYPERVISOR: u32 = 1 << 31;
    const HTT: u32 = 1 << 28;
    const CLFLUSH_8_QUADWORDS: u32 = 8 << 8;
    entry.ecx = entry.ecx & !(VMX | PDCM) | TSC_DEADLINE | HYPERVISOR;
    let addressable = 1u32 << topology.socket_bits();
    entry.ebx = u32::from(vcpu) << 24 | addressable << 16 | CLFLUSH_8_QUADWORDS | entry.ebx & 0xff;
    entry.edx = if topology.vcpus > 1 {
        entry.edx | HTT
    } else {
        entry.edx & !HTT
    };
}

/// Leaf 4: caches of level 1 and 2 belong to a core, level 3 to the socket.
fn share_caches_intel(entry: &mut kvm_cpuid_entry2, topology: Topology) {
    if entry.eax & 0x1f == 0 {
        return; // no more caches
    }
    let level = entry.eax >> 5 & 7;
    let cores = (1 << (topology.socket_bits() - topology.thread_bits())) - 1;
    entry.eax = entry.eax & 0x3fff | sharing_threads(level, topology) << 14 | cores << 26;
}

/// Leaf 0x8000001d, AMD's counterpart of leaf 4.
fn share_caches_amd(entry: &mut kvm_cpuid_entry2, topology: Topology) {
    if entry.eax & 0x1f == 0 {
        return;
    }
    let level = entry.eax >> 5 & 7;
    entry.eax = entry.eax & 0x3fff | sharing_threads(level, topology) << 14;
}

/// One less than the number of APIC ids that share a cache of `level`.
fn sharing_threads(level: u32, topology: Topology) -> u32 {
    let bits = if level >= 3 {
        topology.socket_bits()
    } else {
        topology.thread_bits()
    };
    (1 << bits) - 1
}

/// Async page faults need host swap to pay and have caused interrupt storms on
/// AMD; they are not offered.
fn hide_async_page_faults(entry: &mut kvm_cpuid_entry2) {
    const ASYNC_PF: u32 = 1 << 4;
    const ASYNC_PF_VMEXIT: u32 = 1 << 10;
    const ASYNC_PF_INT: u32 = 1 << 14;
    entry.eax &= !(ASYNC_PF | ASYNC_PF_VMEXIT | ASYNC_PF_INT);
}

fn hide_svm(entry: &mut kvm_cpuid_entry2) {
    const SVM: u32 = 1 << 2;
    const PERFCTR_CORE: u32 = 1 << 23;
    entry.ecx &= !(SVM | PERFCTR_CORE);
}

fn count_cores_amd(entry: &mut kvm_cpuid_entry2, topology: Topology) {
    entry.ecx = topology.socket_bits() << 12 | u32::from(topology.vcpus - 1);
}

fn place_core_amd(entry: &mut kvm_cpuid_entry2, vcpu: u8, topology: Topology) {
    entry.eax = u32::from(vcpu);
    entry.ebx =
        u32::from(vcpu) >> topology.thread_bits() | u32::from(topology.threads_per_core - 1) << 8;
    entry.ecx = 0; // one node
}

/// Leaf 0xb: a level for threads, one for cores, and the end mark.
fn extended_topology(vcpu: u8, topology: Topology) -> [kvm_cpuid_entry2; 3] {
    const LEVEL_THREAD: u32 = 1;
    const LEVEL_CORE: u32 = 2;
    let level = |index: u32, bits: u32, count: u8, kind: u32| kvm_cpuid_entry2 {
        function: 0xb,
        index,
        flags: KVM_CPUID_FLAG_SIGNIFCANT_INDEX,
        eax: bits,
        ebx: u32::from(count),
        ecx: kind << 8 | index,
        edx: u32::from(vcpu),
        ..Default::default()
    };
    [
        level(
            0,
            topology.thread_bits(),
            topology.threads_per_core,
            LEVEL_THREAD,
        ),
        level(1, topology.socket_bits(), topology.vcpus, LEVEL_CORE),
        level(2, 0, 0, 0),
    ]
}

#[cfg(test)]
#[path = "cpuid_test.rs"]
mod tests;
