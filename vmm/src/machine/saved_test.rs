//! A snapshot that version 1 made of a machine with Linux is read as it was
//! written, so that no later change of a state breaks it unseen.

use std::path::Path;

use coppice_snapshot::Manifest;

use super::*;
use crate::arch::cpu_facts::CpuFacts;
use crate::spec::Spec;
use crate::state;

fn golden() -> Manifest {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/manifest");
    Manifest::read(&path).unwrap().0
}

#[test]
fn a_golden_state_is_read_as_it_was_written() {
    let manifest = golden();
    let saved: MachineState = state::decode("the machine", &manifest.state).unwrap();
    assert!(state::encode("the machine", &saved).unwrap() == manifest.state);
    let MachineState::V1(saved) = saved;
    assert_eq!(saved.vcpus.len(), 2);
    // Two drives, the vsock device and that of entropy.
    assert_eq!(saved.virtio.len(), 4);
    assert_eq!(saved.files.len(), 1);
    assert_eq!(saved.files[0].drive_id, "plain");
    // What each part believes is tested beside it.
    for vcpu in &saved.vcpus {
        let leaf = |number| vcpu.cpuid().iter().find(|entry| entry.function == number);
        assert!(leaf(1).is_some() && leaf(0x8000_0001).is_some());
    }
}

#[test]
fn a_golden_snapshot_says_what_machine_it_is_of() {
    let manifest = golden();
    let spec: Spec = serde_json::from_str(manifest.info.machine.get()).unwrap();
    assert_eq!(
        (spec.machine.vcpu_count, spec.machine.mem_size_mib),
        (2, 128)
    );
    let drives: Vec<_> = spec.drives.iter().map(|drive| &*drive.drive_id).collect();
    assert_eq!(drives, ["data", "plain"]);
    assert_eq!(manifest.memory.blocks, 128 << 8);
    assert_eq!(manifest.disks[0].drive_id, "data");
    let cpu: CpuFacts = serde_json::from_str(manifest.info.cpu.get()).unwrap();
    assert!(!cpu.vendor.is_empty() && cpu.signature != 0);
}
