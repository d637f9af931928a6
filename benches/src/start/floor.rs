//! The calls that no VMM can do without, in the order that KVM serves fastest.

use std::io::Write;

use coppice_benches::Fallible;
use kvm_bindings::{KVM_MAX_CPUID_ENTRIES, kvm_pit_config, kvm_userspace_memory_region};
use kvm_ioctls::{Kvm, VcpuExit};
use vm_memory::{Bytes, GuestAddress, GuestMemoryBackend, GuestMemoryMmap};

use crate::guest::REAL_MODE;

/// Where the guest's code lies.
const CODE: u64 = 0x1000;

/// Runs a guest of `memory_mib` MiB until its first output, which is passed on.
pub fn run(memory_mib: usize) -> Fallible<()> {
    let bytes = memory_mib << 20;
    let kvm = Kvm::new()?;
    let vm = kvm.create_vm()?;
    let memory = GuestMemoryMmap::<()>::from_ranges(&[(GuestAddress(0), bytes)])?;
    let slot = kvm_userspace_memory_region {
        slot: 0,
        flags: 0,
        guest_phys_addr: 0,
        memory_size: bytes as u64,
        userspace_addr: memory.get_host_address(GuestAddress(0))? as u64,
    };
    // SAFETY: `memory` is mapped with this size and is dropped after the VM, at
    // the end of the process.
    unsafe { vm.set_user_memory_region(slot)? };
    vm.set_tss_address(0xfffb_d000)?;
    vm.create_irq_chip()?;
    vm.create_pit2(kvm_pit_config::default())?;
    let mut vcpu = vm.create_vcpu(0)?;
    vcpu.set_cpuid2(&kvm.get_supported_cpuid(KVM_MAX_CPUID_ENTRIES)?)?;
    memory.write_slice(&REAL_MODE, GuestAddress(CODE))?;
    let mut sregs = vcpu.get_sregs()?;
    (sregs.cs.base, sregs.cs.selector) = (0, 0);
    vcpu.set_sregs(&sregs)?;
    let mut regs = vcpu.get_regs()?;
    (regs.rip, regs.rflags) = (CODE, 2);
    vcpu.set_regs(&regs)?;
    match vcpu.run()? {
        VcpuExit::IoOut(0x3f8, data) => {
            let mut output = std::io::stdout();
            output.write_all(data)?;
            output.flush()?;
        }
        other => return Err(format!("the guest did not come to its output: {other:?}").into()),
    }
    std::process::exit(0)
}
