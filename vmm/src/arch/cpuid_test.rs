use super::*;

fn entry(function: u32, index: u32, regs: [u32; 4]) -> kvm_cpuid_entry2 {
    let [eax, ebx, ecx, edx] = regs;
    kvm_cpuid_entry2 {
        function,
        index,
        eax,
        ebx,
        ecx,
        edx,
        ..Default::default()
    }
}

/// A host with 64 CPUs, SMT, nested virtualisation and a PMU.
fn host(vendor: &[u8; 12]) -> Vec<kvm_cpuid_entry2> {
    let word = |at: usize| u32::from_le_bytes(vendor[at..at + 4].try_into().unwrap());
    vec![
        entry(0, 0, [0x20, word(0), word(8), word(4)]),
        entry(1, 0, [0, 0x2740_0800, 1 << 5 | 1 << 15, 1 << 28]),
        entry(4, 0, [0xfc00_4121, 0, 0, 0]),
        entry(4, 3, [0xfc0f_c163, 0, 0, 0]),
        entry(4, 4, [0, 0, 0, 0]),
        entry(0xa, 0, [8, 8, 8, 8]),
        entry(0xb, 0, [1, 2, 0x100, 39]),
        entry(0x1f, 0, [1, 2, 0x100, 39]),
        entry(0x4000_0001, 0, [u32::MAX, 0, 0, 0]),
        entry(0x8000_0001, 0, [0, 0, 1 << 2, 0]),
        entry(0x8000_0008, 0, [0x3030, 0, 0x703f, 0]),
        entry(0x8000_000a, 0, [1, 1, 1, 1]),
        entry(0x8000_001d, 3, [0x0003_c163, 0, 0, 0]),
        entry(0x8000_001e, 0, [39, 0x113, 0x301, 0]),
    ]
}

fn find(entries: &[kvm_cpuid_entry2], function: u32, index: u32) -> Option<kvm_cpuid_entry2> {
    entries
        .iter()
        .copied()
        .find(|e| (e.function, e.index) == (function, index))
}

const AMD: &[u8; 12] = b"AuthenticAMD";
const INTEL: &[u8; 12] = b"GenuineIntel";

#[test]
fn every_leaf_agrees_on_the_apic_id() {
    let topology = Topology {
        vcpus: 32,
        threads_per_core: 2,
    };
    for vcpu in 0..32 {
        let entries = for_vcpu(&host(AMD), vcpu, topology);
        assert_eq!(find(&entries, 1, 0).unwrap().ebx >> 24, u32::from(vcpu));
        for index in 0..3 {
            assert_eq!(find(&entries, 0xb, index).unwrap().edx, u32::from(vcpu));
        }
        assert_eq!(find(&entries, 0x8000_001e, 0).unwrap().eax, u32::from(vcpu));
    }
}

#[test]
fn topology_is_the_machines_not_the_hosts() {
    for (vcpus, threads_per_core, core_shift, socket_shift) in [
        (1, 1, 0, 0),
        (2, 1, 0, 1),
        (2, 2, 1, 1),
        (4, 2, 1, 2),
        (6, 1, 0, 3),
        (32, 1, 0, 5),
    ] {
        let topology = Topology {
            vcpus,
            threads_per_core,
        };
        for vendor in [AMD, INTEL] {
            let entries = for_vcpu(&host(vendor), 0, topology);
            let (threads, cores) = (
                find(&entries, 0xb, 0).unwrap(),
                find(&entries, 0xb, 1).unwrap(),
            );
            assert_eq!(
                (threads.eax, cores.eax),
                (core_shift, socket_shift),
                "{topology:?}"
            );
            assert_eq!(cores.ebx, u32::from(vcpus));
            assert!(find(&entries, 0x1f, 0).is_none());
            let leaf1 = find(&entries, 1, 0).unwrap();
            assert_eq!(leaf1.ebx >> 16 & 0xff, 1 << socket_shift);
            assert_eq!(leaf1.edx >> 28 & 1 == 1, vcpus > 1);
        }
    }
}

#[test]
fn caches_span_only_existing_cpus() {
    let entries = for_vcpu(
        &host(INTEL),
        0,
        Topology {
            vcpus: 4,
            threads_per_core: 2,
        },
    );
    let sharing = |index| (find(&entries, 4, index).unwrap().eax >> 14 & 0xfff) + 1;
    assert_eq!((sharing(0), sharing(3)), (2, 4));
    assert_eq!(find(&entries, 4, 4).unwrap().eax, 0);
    let entries = for_vcpu(
        &host(AMD),
        0,
        Topology {
            vcpus: 1,
            threads_per_core: 1,
        },
    );
    assert_eq!(find(&entries, 0x8000_001d, 3).unwrap().eax >> 14, 0);
    assert_eq!(find(&entries, 0x8000_0008, 0).unwrap().ecx, 0);
}

#[test]
fn what_a_guest_cannot_have_is_hidden() {
    let entries = for_vcpu(
        &host(AMD),
        0,
        Topology {
            vcpus: 1,
            threads_per_core: 1,
        },
    );
    let leaf1 = find(&entries, 1, 0).unwrap();
    assert_eq!(leaf1.ecx & (1 << 5 | 1 << 15), 0);
    assert_eq!(leaf1.ecx & (1 << 24 | 1 << 31), 1 << 24 | 1 << 31);
    assert_eq!(find(&entries, 0x8000_0001, 0).unwrap().ecx & 4, 0);
    assert!(find(&entries, 0x8000_000a, 0).is_none());
    assert_eq!(find(&entries, 0xa, 0).unwrap().eax, 0);
    assert_eq!(
        find(&entries, 0x4000_0001, 0).unwrap().eax & (1 << 4 | 1 << 10 | 1 << 14),
        0
    );
}
