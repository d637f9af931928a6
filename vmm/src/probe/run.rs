//! Runs the probe's guest on KVM and says how far it came.

use std::io;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use kvm_bindings::{KVM_MAX_CPUID_ENTRIES, kvm_pit_config};
use kvm_ioctls::{Kvm, VcpuExit, VcpuFd, VmFd};
use vm_memory::GuestMemoryMmap;

use super::guest::{self, DONE, FAULT_PORT, SPIN_INSTRUCTIONS, SPIN_STEP, STEP_PORT, STEPS};
use crate::arch::layout;
use crate::memory::GuestMemory;
use crate::sys::kick::{self, Kickable};
use crate::sys::kvm::{self, KvmError};
use crate::units::Gpa;

/// How long the guest may take. It needs milliseconds, so the limit is only
/// reached by a guest that hangs, however busy the host is.
const TIME_LIMIT: Duration = Duration::from_secs(2);

/// How the guest ended.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum End {
    /// It took all steps.
    Done,
    /// It got no further than `step`.
    Failed {
        /// What it was doing; `None` if it never began.
        step: Option<&'static str>,
        /// What KVM or the guest reported.
        why: String,
    },
    /// It did not come further than `step` in time.
    Hung {
        /// What it was doing; `None` if it never began.
        step: Option<&'static str>,
        /// How long it was waited for.
        why: String,
    },
}

/// What one run found out.
pub(super) struct Run {
    pub(super) end: End,
    /// Wall time of making the machine, up to its first instruction.
    pub(super) create: Duration,
    /// Speed of plain instructions in supervisor mode.
    pub(super) instructions_per_second: Option<u64>,
}

/// Makes a machine, runs the guest in it and takes the machine down again.
///
/// # Errors
/// KVM refused a call that every machine needs.
pub(super) fn run(kvm: &Kvm) -> Result<Run, RunError> {
    let begin = Instant::now();
    let machine = Machine::new(kvm)?;
    let create = begin.elapsed();

    kick::install().map_err(|source| RunError::Call {
        call: "sigaction",
        source,
    })?;

    let (report, ended) = mpsc::channel();
    let thread = thread::Builder::new()
        .name("probe".into())
        .spawn(move || {
            let outcome = machine.follow();
            // The receiver lives until this thread has been joined.
            let _ = report.send(());
            outcome
        })
        .map_err(|source| RunError::Call {
            call: "pthread_create",
            source,
        })?;
    let mut wait = TIME_LIMIT;
    // A thread that has not come as far as to be kickable loses the kick, so it
    // is repeated until the thread reports.
    while ended.recv_timeout(wait) == Err(mpsc::RecvTimeoutError::Timeout) {
        kick::kick(&thread);
        wait = Duration::from_millis(5);
    }
    let (end, instructions_per_second) = thread
        .join()
        .expect("the probe's thread does not panic on anything a guest does");
    Ok(Run {
        end,
        create,
        instructions_per_second,
    })
}

/// KVM refused a call that every machine needs.
#[derive(Debug, thiserror::Error)]
pub(super) enum RunError {
    /// A system call failed.
    #[error("{call} failed: {source}")]
    Call {
        call: &'static str,
        source: io::Error,
    },
    /// The virtual machine could not be made.
    #[error(transparent)]
    Kvm(#[from] KvmError),
    /// The guest's memory could not be made.
    #[error("the memory of the test guest could not be made: {0}")]
    Memory(String),
}

impl RunError {
    fn call(call: &'static str, error: vmm_sys_util::errno::Error) -> Self {
        Self::Call {
            call,
            source: io::Error::from_raw_os_error(error.errno()),
        }
    }
}

struct Machine {
    vcpu: VcpuFd,
    _vm: VmFd,
    // Dropped after the machine that maps it.
    _memory: GuestMemory,
}

impl Machine {
    fn new(kvm: &Kvm) -> Result<Self, RunError> {
        let call = RunError::call;
        let memory: GuestMemory = GuestMemoryMmap::from_ranges(&[(Gpa(0), guest::MEMORY)])
            .map_err(|error| RunError::Memory(error.to_string()))?;
        guest::load(&memory).map_err(|error| RunError::Memory(error.to_string()))?;

        let vm = kvm::create_vm(kvm)?;
        // SAFETY: `memory` is kept in the returned machine until the virtual
        // machine is closed.
        unsafe { kvm::set_memory(&vm, &memory) }?;
        vm.set_tss_address(layout::KVM_TSS as usize)
            .map_err(|error| call("KVM_SET_TSS_ADDR", error))?;
        vm.create_irq_chip()
            .map_err(|error| call("KVM_CREATE_IRQCHIP", error))?;
        vm.create_pit2(kvm_pit_config::default())
            .map_err(|error| call("KVM_CREATE_PIT2", error))?;

        let vcpu = vm
            .create_vcpu(0)
            .map_err(|error| call("KVM_CREATE_VCPU", error))?;
        let cpuid = kvm
            .get_supported_cpuid(KVM_MAX_CPUID_ENTRIES)
            .map_err(|error| call("KVM_GET_SUPPORTED_CPUID", error))?;
        vcpu.set_cpuid2(&cpuid)
            .map_err(|error| call("KVM_SET_CPUID2", error))?;
        let mut sregs = vcpu
            .get_sregs()
            .map_err(|error| call("KVM_GET_SREGS", error))?;
        guest::set_system_registers(&mut sregs);
        vcpu.set_sregs(&sregs)
            .map_err(|error| call("KVM_SET_SREGS", error))?;
        let mut regs = vcpu
            .get_regs()
            .map_err(|error| call("KVM_GET_REGS", error))?;
        guest::set_registers(&mut regs);
        vcpu.set_regs(&regs)
            .map_err(|error| call("KVM_SET_REGS", error))?;
        Ok(Self {
            vcpu,
            _vm: vm,
            _memory: memory,
        })
    }

    /// Follows the guest's reports until it is done or dead. Returns that and
    /// the speed of plain instructions.
    fn follow(mut self) -> (End, Option<u64>) {
        // SAFETY: `self` was there before the guard, so it is dropped after it.
        let _kickable = unsafe { Kickable::new(self.vcpu.get_kvm_run()) };
        let name = |step: u8| STEPS.get(usize::from(step)).copied();
        let mut step: Option<u8> = None;
        let mut step_began = Instant::now();
        let mut speed = None;
        let why = loop {
            let exit = self.vcpu.run();
            match exit {
                Ok(VcpuExit::IoOut(STEP_PORT, &[next])) => {
                    if step == Some(SPIN_STEP) {
                        let nanos = step_began.elapsed().as_nanos().max(1);
                        let speed_now = u128::from(SPIN_INSTRUCTIONS) * 1_000_000_000 / nanos;
                        speed = u64::try_from(speed_now).ok();
                    }
                    if next == DONE {
                        return (End::Done, speed);
                    }
                    step = Some(next);
                    step_began = Instant::now();
                }
                Ok(VcpuExit::IoOut(FAULT_PORT, &[guest::WRONG_RESULT])) => {
                    break "it gave a wrong result".to_owned();
                }
                Ok(VcpuExit::IoOut(FAULT_PORT, &[vector])) => {
                    break format!("it raised exception {vector}");
                }
                Ok(VcpuExit::InternalError) => break self.internal_error(),
                Ok(VcpuExit::FailEntry(reason, _)) => {
                    break format!(
                        "the processor refused to enter the guest \
                         (KVM_EXIT_FAIL_ENTRY, hardware reason {reason:#x})"
                    );
                }
                Ok(VcpuExit::Shutdown) => {
                    break "the guest triple-faulted (KVM_EXIT_SHUTDOWN)".to_owned();
                }
                Ok(other) => break format!("KVM stopped with {other:?}"),
                Err(error) if error.errno() == libc::EINTR => {
                    let why = format!("it did not end within {} s", TIME_LIMIT.as_secs());
                    let step = step.and_then(name);
                    return (End::Hung { step, why }, speed);
                }
                Err(error) => break format!("KVM_RUN failed: {error}"),
            }
        };
        let step = step.and_then(name);
        (End::Failed { step, why }, speed)
    }

    fn internal_error(&mut self) -> String {
        let rip = self.vcpu.get_regs().map_or(0, |regs| regs.rip);
        // SAFETY: the last exit was KVM_EXIT_INTERNAL_ERROR, for which KVM
        // fills this member of the union; it holds plain integers.
        let error = unsafe { self.vcpu.get_kvm_run().__bindgen_anon_1.internal };
        let what = match error.suberror {
            kvm_bindings::KVM_INTERNAL_ERROR_EMULATION => {
                " because its instruction emulator does not know it"
            }
            _ => "",
        };
        format!(
            "KVM gave up{what} (KVM_EXIT_INTERNAL_ERROR, suberror {}, at {rip:#x})",
            error.suberror
        )
    }
}
