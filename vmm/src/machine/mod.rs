//! The whole running thing: memory, board, vCPUs and their threads.
//!
//! ```text
//! build ──▶ built ──start──▶ running ◀──pause/resume──▶ paused
//!             │                 │                          │
//!             └─────────────────┴────────── stop ──────────┘
//! ```
//!
//! The guest may end by itself in any running state: it resets, powers off,
//! panics, or a vCPU fails. Then [`Machine::ended`] becomes readable and
//! [`Machine::outcome`] says why; the vCPUs have left the guest or are about
//! to, and [`Machine::stop`] is all that is left to call.

mod chipset;
mod commit;
mod compact;
mod drives;
mod gate;
mod outcome;
mod restore;
mod saved;
mod snapshot;
mod targets;
mod threads;
mod working_set;

use std::io;
use std::sync::Arc;

use coppice_snapshot::{Extents, SnapshotId, Stack, WorkingSetError};
use event_manager::{EventManager, MutEventSubscriber, SubscriberOps};
use kvm_bindings::{KVM_MAX_CPUID_ENTRIES, KVM_PIT_SPEAKER_DUMMY, kvm_pit_config};
use kvm_ioctls::{Kvm, VmFd};
use vmm_sys_util::eventfd::{EFD_NONBLOCK, EventFd};

pub use outcome::Outcome;
pub use restore::RestoreError;
pub use snapshot::{Report, SnapshotError, Snapshots};

use self::outcome::Ending;
use self::threads::VcpuThreads;
use crate::arch::cpuid::{self, Topology};
use crate::arch::layout;
use crate::board::{self, Board, BoardError, BootImageError, Disks};
use crate::devices::serial::{Serial, SerialSubscriber};
use crate::devices::vmgenid::VmGenIdError;
use crate::memory::prefetch::Prefetch;
use crate::memory::tracker::Tracker;
use crate::memory::{self, GuestMemory, MemoryError};
use crate::spec::{Spec, SpecError};
use crate::state::StateError;
use crate::sys::kvm::{self, KvmError};
use crate::sys::{kick, leave};
use crate::vcpu::{FillError, Vcpu};
use crate::virtio::TransportSubscriber;

/// The event loop that serves a machine's devices.
pub type Events = EventManager<Box<dyn MutEventSubscriber>>;

/// Why a machine could not be built or driven.
#[derive(Debug, thiserror::Error)]
pub enum MachineError {
    /// The specification breaks a rule.
    #[error(transparent)]
    Spec(#[from] SpecError),
    /// There is nothing to boot.
    #[error("the machine has no kernel: set boot-source with kernel_image_path first")]
    NoKernel,
    /// KVM is missing or refused.
    #[error(transparent)]
    Kvm(#[from] KvmError),
    /// The memory cannot be had.
    #[error(transparent)]
    Memory(#[from] MemoryError),
    /// A device cannot be built.
    #[error(transparent)]
    Board(#[from] BoardError),
    /// Kernel, initrd or command line cannot be used.
    #[error(transparent)]
    Boot(#[from] BootImageError),
    /// More vCPUs than this host's KVM runs.
    #[error("vcpu_count is {wanted}, but KVM on this host runs at most {most} in one machine")]
    TooManyVcpus {
        /// What the machine asks for.
        wanted: u8,
        /// KVM's limit.
        most: usize,
    },
    /// A thread or descriptor could not be made.
    #[error("the host could not {what} ({source})")]
    Host {
        /// What was attempted.
        what: &'static str,
        /// The host's answer.
        source: io::Error,
    },
    /// The vCPUs did not come to rest.
    #[error("only {parked} of {vcpus} vCPUs came to rest within {limit_ms} ms")]
    PauseTimeout {
        /// vCPUs at rest.
        parked: usize,
        /// vCPUs in all.
        vcpus: usize,
        /// How long was waited, in milliseconds.
        limit_ms: u64,
    },
    /// The guest has ended.
    #[error("the guest has ended ({0}): there is nothing to pause or resume")]
    Ended(Outcome),
    /// A state cannot be saved, or a saved one not be taken.
    #[error(transparent)]
    State(#[from] StateError),
    /// This host cannot take the state of a vCPU.
    #[error(transparent)]
    Fill(#[from] FillError),
    /// The working set cannot be written.
    #[error(transparent)]
    WorkingSet(#[from] WorkingSetError),
    /// The machine cannot have an identity of its own.
    #[error(transparent)]
    Generation(#[from] VmGenIdError),
}

/// A machine. Dropping it without [`Machine::stop`] stops it too.
///
/// The fields are dropped in this order: threads before the VM that their
/// vCPUs belong to, and memory last.
pub struct Machine {
    threads: VcpuThreads,
    board: Board,
    ending: Arc<Ending>,
    /// What it was built from.
    spec: Spec,
    /// The snapshot that it comes from, or the last that was made of it.
    parent: Option<SnapshotId>,
    /// It was restored and has not run: its devices are still to be woken up.
    to_wake: bool,
    /// Pages to be fetched when it first runs.
    to_fetch: Option<Extents>,
    prefetch: Option<Prefetch>,
    tracker: Tracker,
    /// The snapshot that is being written, if one is.
    writing: Option<snapshot::Writing>,
    snapshot_done: EventFd,
    last_snapshot: Option<Report>,
    kvm: Kvm,
    /// Kept alive as long as the board's event descriptors are bound.
    vm: VmFd,
    /// Mapped for as long as KVM may reach it.
    memory: GuestMemory,
}

impl Machine {
    /// Builds a machine from `spec` and subscribes its devices to `events`.
    /// Everything that can fail for reasons of the specification or the host
    /// fails here, and then nothing is left behind.
    ///
    /// # Errors
    /// See [`MachineError`].
    pub fn build(spec: &Spec, events: &mut Events) -> Result<Self, MachineError> {
        spec.check()?;
        let source = spec.boot.as_ref().ok_or(MachineError::NoKernel)?;
        let kvm = kvm::open()?;
        let vcpus = spec.machine.vcpu_count;
        if usize::from(vcpus) > kvm.get_max_vcpus() {
            return Err(MachineError::TooManyVcpus {
                wanted: vcpus,
                most: kvm.get_max_vcpus(),
            });
        }
        let supported = kvm
            .get_supported_cpuid(KVM_MAX_CPUID_ENTRIES)
            .map_err(KvmError::call("tell what CPUs it supports"))?;
        let bits = cpuid::address_bits(supported.as_slice());
        let memory = memory::allocate(spec.machine.mem_size_mib as u64, bits)?;
        let (vm, board) = Self::assemble(&kvm, spec, &memory, Disks::new())?;
        let root = spec.drives.iter().find(|drive| drive.is_root_device);
        let entry = board::load_boot_image(&memory, source, root, &board.tables)?;

        let topology = Topology::new(vcpus, spec.machine.smt);
        let vcpus = (0..vcpus)
            .map(|index| {
                let vcpu = Vcpu::new(&vm, index)?;
                vcpu.set_cpuid(&cpuid::for_vcpu(supported.as_slice(), index, topology))?;
                vcpu.power_on()?;
                Ok(vcpu)
            })
            .collect::<Result<Vec<_>, KvmError>>()?;
        if let Some(boot_cpu) = vcpus.first() {
            boot_cpu.enter_kernel(entry)?;
        }
        let tracker = Tracker::new(&memory, Stack::default());
        let machine = Self::complete(kvm, vm, board, vcpus, memory, tracker, spec.clone())?;
        machine.subscribe(events);
        Ok(machine)
    }

    /// The VM with its memory, and the devices on it: what booting, restoring
    /// and forking have in common.
    fn assemble(
        kvm: &Kvm,
        spec: &Spec,
        memory: &GuestMemory,
        disks: Disks,
    ) -> Result<(VmFd, Board), MachineError> {
        let vm = new_vm(kvm, memory)?;
        let board = Board::build(spec, &vm, memory, disks)?;
        Ok((vm, board))
    }

    /// A machine of its parts. None of its vCPUs runs yet.
    fn complete(
        kvm: Kvm,
        vm: VmFd,
        board: Board,
        vcpus: Vec<Vcpu>,
        memory: GuestMemory,
        tracker: Tracker,
        spec: Spec,
    ) -> Result<Self, MachineError> {
        let host = |what| move |source| MachineError::Host { what, source };
        kick::install().map_err(host("install a signal handler"))?;
        let ending = Arc::new(Ending::new().map_err(host("make an event descriptor"))?);
        let snapshot_done = EventFd::new(EFD_NONBLOCK).map_err(host("make an event descriptor"))?;
        let threads = VcpuThreads::new(vcpus, &board.buses, &ending);
        Ok(Self {
            threads,
            board,
            ending,
            spec,
            parent: None,
            to_wake: false,
            to_fetch: None,
            prefetch: None,
            tracker,
            writing: None,
            snapshot_done,
            last_snapshot: None,
            kvm,
            vm,
            memory,
        })
    }

    /// Puts the devices on the event loop.
    fn subscribe(&self, events: &mut Events) {
        for transport in &self.board.virtio {
            events.add_subscriber(Box::new(TransportSubscriber(transport.clone())));
        }
        events.add_subscriber(Box::new(SerialSubscriber::new(self.board.serial.clone())));
    }

    /// Lets the vCPUs run for the first time.
    ///
    /// # Errors
    /// The guest has ended already.
    pub fn start(&mut self) -> Result<(), MachineError> {
        self.resume()
    }

    /// Brings all vCPUs to rest outside of the guest. Does nothing if they are.
    ///
    /// # Errors
    /// The guest has ended, or a vCPU does not come to rest in time; then all
    /// run on.
    pub fn pause(&mut self) -> Result<(), MachineError> {
        self.refuse_if_ended()?;
        self.threads.pause()
    }

    /// Lets the vCPUs run. Does nothing if they do.
    ///
    /// # Errors
    /// The guest has ended.
    pub fn resume(&mut self) -> Result<(), MachineError> {
        self.refuse_if_ended()?;
        if std::mem::take(&mut self.to_wake) {
            self.after_restore();
        }
        self.threads.resume()?;
        self.fetch_ahead();
        Ok(())
    }

    /// Presses Ctrl, Alt and Delete on the machine's keyboard. What the guest
    /// makes of it is its own affair.
    ///
    /// # Errors
    /// The guest has ended.
    pub fn ctrl_alt_del(&self) -> Result<(), MachineError> {
        self.refuse_if_ended()?;
        self.board.i8042.lock().ctrl_alt_del();
        Ok(())
    }

    /// Becomes readable when the guest has ended.
    pub fn ended(&self) -> &EventFd {
        self.ending.event()
    }

    /// What it consists of now. A snapshot gives drives that are stacks another
    /// layer and another delta.
    pub fn spec(&self) -> &Spec {
        &self.spec
    }

    /// How the guest ended, if it has.
    pub fn outcome(&self) -> Option<Outcome> {
        self.ending.outcome()
    }

    /// Ends everything: the vCPUs leave the guest and their threads end, then
    /// each device finishes what is in flight and makes it durable. What KVM has
    /// of the machine, and its memory, are left to the end of the process, which
    /// [`crate::sys::leave`] makes nobody wait for.
    pub fn stop(self) {
        leave::keep_until_exit(&self.vm);
        // A reference more, so that nothing is unmapped.
        std::mem::forget(self.memory.clone());
        drop(self);
    }

    fn refuse_if_ended(&self) -> Result<(), MachineError> {
        self.outcome()
            .map_or(Ok(()), |outcome| Err(MachineError::Ended(outcome)))
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        self.threads.stop();
        if let Some(writing) = self.writing.take() {
            writing.abandon();
        }
        for transport in &self.board.virtio {
            transport.lock().stop();
        }
        Serial::finish(&self.board.serial);
    }
}

/// A VM with memory, interrupt controllers and timer, made in the order that
/// KVM serves fastest: memory comes before the interrupt controllers.
fn new_vm(kvm: &Kvm, memory: &GuestMemory) -> Result<VmFd, KvmError> {
    let vm = kvm::create_vm(kvm)?;
    // SAFETY: `Machine` drops its memory after the VM and the vCPUs, and
    // `build` drops its own handles in the reverse order of their making.
    unsafe { kvm::set_memory(&vm, memory) }?;
    vm.set_identity_map_address(layout::KVM_IDENTITY_MAP)
        .map_err(KvmError::call("place its identity map"))?;
    vm.set_tss_address(layout::KVM_TSS as usize)
        .map_err(KvmError::call("place its TSS"))?;
    vm.create_irq_chip()
        .map_err(KvmError::call("make interrupt controllers"))?;
    // The speaker port answers in the kernel, so that a beep costs no exit.
    let pit = kvm_pit_config {
        flags: KVM_PIT_SPEAKER_DUMMY,
        ..Default::default()
    };
    vm.create_pit2(pit)
        .map_err(KvmError::call("make a timer"))?;
    Ok(vm)
}
