//! Opening KVM and making virtual machines, with errors that say what to do.

use std::io;

use kvm_bindings::kvm_userspace_memory_region;
use kvm_ioctls::{Cap, Kvm, VmFd};
use vm_memory::{Address, GuestMemoryBackend, GuestMemoryRegion};

use crate::units::Gpa;

/// The only stable version of the KVM interface.
const API_VERSION: i32 = 12;

/// What stands in the way of a virtual machine on this host.
#[derive(Debug, thiserror::Error)]
pub enum KvmError {
    /// There is no /dev/kvm.
    #[error(
        "/dev/kvm does not exist: load the kvm_intel or kvm_amd module, or enable virtualisation \
         in the firmware (in a virtual machine: nested virtualisation)"
    )]
    Missing,
    /// /dev/kvm may not be opened.
    #[error(
        "/dev/kvm may not be opened by this user ({0}): add the user to the group that owns it \
         (often kvm) or give it access with setfacl"
    )]
    Permission(io::Error),
    /// /dev/kvm is something else.
    #[error("/dev/kvm is not the KVM device ({0}): remove it and load the kvm module again")]
    NotKvm(io::Error),
    /// The interface has another version.
    #[error("/dev/kvm speaks version {0} of its interface, but version 12 is needed")]
    Version(i32),
    /// A feature is missing.
    #[error("this host's KVM lacks {0}: a newer kernel is needed")]
    Lacks(&'static str),
    /// A call failed.
    #[error("KVM could not {what} ({source})")]
    Call {
        /// What was attempted.
        what: &'static str,
        /// The kernel's answer.
        source: io::Error,
    },
}

impl KvmError {
    /// Wraps the error of a call; `what` completes "KVM could not …".
    pub fn call(what: &'static str) -> impl Fn(kvm_ioctls::Error) -> Self {
        move |errno| Self::Call {
            what,
            source: io::Error::from_raw_os_error(errno.errno()),
        }
    }
}

/// Opens /dev/kvm and checks that it has what every machine needs.
///
/// # Errors
/// KVM is missing, forbidden, or lacks a feature.
pub fn open() -> Result<Kvm, KvmError> {
    let kvm = Kvm::new().map_err(|errno| {
        let error = io::Error::from_raw_os_error(errno.errno());
        match errno.errno() {
            libc::ENOENT | libc::ENXIO | libc::ENODEV => KvmError::Missing,
            libc::EACCES | libc::EPERM => KvmError::Permission(error),
            _ => KvmError::NotKvm(error),
        }
    })?;
    match kvm.get_api_version() {
        API_VERSION => {}
        // A file that is no KVM device answers the ioctl with an error.
        negative if negative < 0 => return Err(KvmError::NotKvm(io::Error::last_os_error())),
        other => return Err(KvmError::Version(other)),
    }
    let needed = [
        (
            Cap::Irqchip,
            "an in-kernel interrupt controller (KVM_CAP_IRQCHIP)",
        ),
        (Cap::Pit2, "an in-kernel timer (KVM_CAP_PIT2)"),
        (
            Cap::Ioeventfd,
            "event descriptors for writes (KVM_CAP_IOEVENTFD)",
        ),
        (
            Cap::Irqfd,
            "event descriptors for interrupts (KVM_CAP_IRQFD)",
        ),
        (Cap::UserMemory, "user memory regions (KVM_CAP_USER_MEMORY)"),
        (Cap::SetTssAddr, "a movable TSS (KVM_CAP_SET_TSS_ADDR)"),
        (Cap::ExtCpuid, "CPUID for guests (KVM_CAP_EXT_CPUID)"),
        (
            Cap::ImmediateExit,
            "immediate exits (KVM_CAP_IMMEDIATE_EXIT)",
        ),
    ];
    for (capability, name) in needed {
        if !kvm.check_extension(capability) {
            return Err(KvmError::Lacks(name));
        }
    }
    Ok(kvm)
}

/// Makes a virtual machine. KVM_CREATE_VM answers EINTR at random under load,
/// since it waits for kernel threads interruptibly; it is tried again.
///
/// # Errors
/// KVM refuses, or interrupts too often.
pub fn create_vm(kvm: &Kvm) -> Result<VmFd, KvmError> {
    const TRIES: u32 = 64;
    let mut result = kvm.create_vm();
    for _ in 1..TRIES {
        match &result {
            Err(errno) if errno.errno() == libc::EINTR => result = kvm.create_vm(),
            _ => break,
        }
    }
    result.map_err(KvmError::call("make a virtual machine"))
}

/// Gives `vm` its memory: one memory slot for each region. On the restore path
/// this must come before the interrupt controller is made, after which each
/// call waits for a grace period of the kernel.
///
/// # Errors
/// KVM refuses a region.
///
/// # Safety
/// `memory` must stay mapped for as long as `vm` or a vCPU of it exists.
pub unsafe fn set_memory<M: GuestMemoryBackend>(vm: &VmFd, memory: &M) -> Result<(), KvmError> {
    for (slot, region) in memory.iter().enumerate() {
        let start: Gpa = region.start_addr();
        let host = region
            .get_host_address(vm_memory::MemoryRegionAddress(0))
            .map_err(|_| KvmError::Call {
                what: "map guest memory",
                source: io::ErrorKind::InvalidInput.into(),
            })?;
        let slot = kvm_userspace_memory_region {
            slot: slot as u32,
            flags: 0,
            guest_phys_addr: start.raw_value(),
            memory_size: region.len(),
            userspace_addr: host as u64,
        };
        // SAFETY: the region is mapped, and the caller keeps it mapped.
        unsafe { vm.set_user_memory_region(slot) }
            .map_err(KvmError::call("register guest memory"))?;
    }
    Ok(())
}
