//! One virtual processor: its registers, and the run loop's single step.

mod state;

use std::sync::Arc;

use kvm_bindings::{CpuId, Msrs, kvm_cpuid_entry2};
use kvm_ioctls::{VcpuExit, VcpuFd, VmFd};
use parking_lot::Mutex;

pub use state::{FillError, Limits, VcpuState, saved_msrs};

use crate::arch::{msr, registers};
use crate::bus::{Bus, Effect};
use crate::sys::kick::Kickable;
use crate::sys::kvm::KvmError;

/// The two address spaces in which devices live.
#[derive(Default)]
pub struct Buses {
    /// Memory-mapped devices.
    pub mmio: Bus,
    /// Port-mapped devices.
    pub ports: Bus,
}

/// Why a vCPU came back from the guest.
#[derive(Debug, PartialEq, Eq)]
pub enum Turn {
    /// An access was served; run on.
    Again,
    /// Somebody kicked the thread; look what is wanted.
    Kicked,
    /// A device wants something of the machine.
    Effect(Effect),
    /// The vCPU cannot go on, and why.
    Failed(String),
}

/// One virtual processor. It is made on the thread that builds the machine and
/// moves to the thread that runs it.
pub struct Vcpu {
    fd: VcpuFd,
    index: u8,
}

impl Vcpu {
    /// Makes vCPU number `index`, whose APIC id is the same.
    ///
    /// # Errors
    /// KVM refuses.
    pub fn new(vm: &VmFd, index: u8) -> Result<Self, KvmError> {
        let fd = vm
            .create_vcpu(u64::from(index))
            .map_err(KvmError::call("make a virtual processor"))?;
        Ok(Self { fd, index })
    }

    /// The vCPU's number, counted from 0.
    pub fn index(&self) -> u8 {
        self.index
    }

    /// Sets what the CPU says of itself.
    ///
    /// # Errors
    /// KVM refuses the leaves.
    pub fn set_cpuid(&self, entries: &[kvm_cpuid_entry2]) -> Result<(), KvmError> {
        let cpuid = CpuId::from_entries(entries)
            .map_err(|_| KvmError::Lacks("room for this many CPUID leaves"))?;
        self.fd
            .set_cpuid2(&cpuid)
            .map_err(KvmError::call("set a processor's CPUID"))
    }

    /// Sets the state that firmware would leave behind. CPUID must be set.
    ///
    /// # Errors
    /// KVM refuses a register.
    pub fn power_on(&self) -> Result<(), KvmError> {
        let mut lapic = self
            .fd
            .get_lapic()
            .map_err(KvmError::call("read a local APIC"))?;
        registers::set_local_interrupts(&mut lapic);
        self.fd
            .set_lapic(&lapic)
            .map_err(KvmError::call("set a local APIC"))?;
        let entries = msr::at_boot();
        let msrs =
            Msrs::from_entries(&entries).map_err(|_| KvmError::Lacks("room for this many MSRs"))?;
        let set = self
            .fd
            .set_msrs(&msrs)
            .map_err(KvmError::call("set a processor's MSRs"))?;
        if set != entries.len() {
            return Err(KvmError::Lacks("an MSR that every kernel expects"));
        }
        self.fd
            .set_fpu(&registers::fpu())
            .map_err(KvmError::call("set a processor's FPU"))
    }

    /// Points the boot CPU at the kernel's 64-bit entry. The others wait for
    /// the kernel's INIT and SIPI.
    ///
    /// # Errors
    /// KVM refuses a register.
    pub fn enter_kernel(&self, entry: u64) -> Result<(), KvmError> {
        let mut sregs = self
            .fd
            .get_sregs()
            .map_err(KvmError::call("read segment registers"))?;
        registers::enter_long_mode(&mut sregs);
        self.fd
            .set_sregs(&sregs)
            .map_err(KvmError::call("set segment registers"))?;
        self.fd
            .set_regs(&registers::at_entry(entry))
            .map_err(KvmError::call("set general registers"))
    }

    /// Makes the current thread kickable out of this vCPU.
    ///
    /// # Safety
    /// The guard must be dropped before the vCPU.
    pub unsafe fn kickable(&mut self) -> Kickable {
        // SAFETY: the page stays mapped while the vCPU exists, which the
        // caller makes outlive the guard.
        unsafe { Kickable::new(self.fd.get_kvm_run()) }
    }

    /// Forgets a kick that has been taken note of.
    pub fn clear_kick(&mut self) {
        self.fd.set_kvm_immediate_exit(0);
    }

    /// Tells the guest's kvm-clock that it was paused, so that watchdogs do not
    /// take the pause for a lock-up. A guest that does not use kvm-clock makes
    /// KVM refuse, which is no error.
    pub fn tell_paused(&self) {
        let _ = self.fd.kvmclock_ctrl();
    }

    /// Runs the guest until it needs something, and serves that.
    pub fn run(&mut self, buses: &Buses) -> Turn {
        let effect = match self.fd.run() {
            Ok(VcpuExit::MmioRead(address, out)) => {
                buses.mmio.read(address, out);
                Effect::None
            }
            Ok(VcpuExit::MmioWrite(address, data)) => buses.mmio.write(address, data),
            Ok(VcpuExit::IoIn(port, out)) => {
                buses.ports.read(u64::from(port), out);
                Effect::None
            }
            Ok(VcpuExit::IoOut(port, data)) => buses.ports.write(u64::from(port), data),
            Ok(VcpuExit::Intr) => return Turn::Kicked,
            Ok(VcpuExit::Shutdown) => return Turn::Failed(self.describe("triple fault")),
            Ok(VcpuExit::FailEntry(reason, cpu)) => {
                return Turn::Failed(self.describe(&format!(
                    "entry failed on host CPU {cpu}, reason {reason:#x}"
                )));
            }
            Ok(VcpuExit::InternalError) => {
                let what = self.internal_error();
                return Turn::Failed(self.describe(&what));
            }
            Ok(other) => {
                let what = format!("unexpected exit {other:?}");
                return Turn::Failed(self.describe(&what));
            }
            Err(errno) if matches!(errno.errno(), libc::EINTR | libc::EAGAIN) => {
                return Turn::Kicked;
            }
            Err(errno) => {
                return Turn::Failed(self.describe(&format!("KVM_RUN failed ({errno})")));
            }
        };
        match effect {
            Effect::None => Turn::Again,
            effect => Turn::Effect(effect),
        }
    }

    /// The details of KVM_EXIT_INTERNAL_ERROR.
    fn internal_error(&mut self) -> String {
        // SAFETY: the exit reason says that this member of the union is set.
        let internal = unsafe { self.fd.get_kvm_run().__bindgen_anon_1.internal };
        let known = match internal.suberror {
            1 => {
                " (an instruction that KVM cannot emulate: this host's KVM may be unable to run \
                  Linux guests)"
            }
            2 => " (two exceptions at once)",
            3 => " (a fault while delivering an event)",
            _ => "",
        };
        format!("KVM internal error, suberror {}{known}", internal.suberror)
    }

    fn describe(&self, what: &str) -> String {
        match self.fd.get_regs() {
            Ok(regs) => format!("{what}, RIP {:#x}", regs.rip),
            Err(_) => what.to_owned(),
        }
    }
}

/// What the thread of a vCPU and the machine tell each other.
pub trait Supervisor {
    /// Asked before the first entry and after each kick; may wait. False when
    /// the thread is to end.
    fn may_run(&mut self, vcpu: &Mutex<Vcpu>) -> bool;
    /// The guest's kernel says that it panicked. It runs on, since its last
    /// words may still be on their way to the console.
    fn panicked(&mut self);
    /// The guest has ended on this vCPU, which has left it for good.
    fn ended(&mut self, vcpu: &Vcpu, turn: Turn);
}

/// The vCPU loop of one thread: runs `vcpu` until `supervisor` says otherwise
/// or the guest ends. The lock is held while the guest runs and free while the
/// thread rests, so that others can save its state then.
pub fn run_loop(vcpu: &Mutex<Vcpu>, buses: &Arc<Buses>, supervisor: &mut dyn Supervisor) {
    // SAFETY: the caller keeps `vcpu` until this function returns, and the guard
    // is dropped before that.
    let _kickable = unsafe { vcpu.lock().kickable() };
    while supervisor.may_run(vcpu) {
        let mut vcpu = vcpu.lock();
        loop {
            match vcpu.run(buses) {
                Turn::Again => {}
                Turn::Effect(Effect::GuestPanic) => supervisor.panicked(),
                Turn::Kicked => {
                    vcpu.clear_kick();
                    break;
                }
                end => return supervisor.ended(&vcpu, end),
            }
        }
    }
}
