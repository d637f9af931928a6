//! The state of what KVM emulates for a whole machine: interrupt controllers,
//! timer, clock.

use kvm_bindings::{
    KVM_IRQCHIP_IOAPIC, KVM_IRQCHIP_PIC_MASTER, KVM_IRQCHIP_PIC_SLAVE, kvm_clock_data, kvm_irqchip,
    kvm_pit_state2,
};
use kvm_ioctls::VmFd;
use serde::{Deserialize, Serialize};

use crate::sys::kvm::KvmError;

/// The chips' state, as it is kept in a snapshot.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum ChipsetState {
    /// The first version.
    V1(Box<ChipsetV1>),
}

/// See [`ChipsetState`]. The structures are KVM's own, byte by byte.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ChipsetV1 {
    pics: [kvm_irqchip; 2],
    ioapic: kvm_irqchip,
    pit: kvm_pit_state2,
    clock: kvm_clock_data,
}

impl ChipsetState {
    /// Reads the chips of `vm`, whose vCPUs are at rest.
    ///
    /// # Errors
    /// KVM refuses a call.
    pub fn save(vm: &VmFd) -> Result<Self, KvmError> {
        let chip = |chip_id| {
            let mut chip = kvm_irqchip {
                chip_id,
                ..Default::default()
            };
            vm.get_irqchip(&mut chip)
                .map_err(KvmError::call("read an interrupt controller"))?;
            Ok(chip)
        };
        Ok(Self::V1(Box::new(ChipsetV1 {
            pics: [chip(KVM_IRQCHIP_PIC_MASTER)?, chip(KVM_IRQCHIP_PIC_SLAVE)?],
            ioapic: chip(KVM_IRQCHIP_IOAPIC)?,
            pit: vm
                .get_pit2()
                .map_err(KvmError::call("read the timer (PIT)"))?,
            clock: vm
                .get_clock()
                .map_err(KvmError::call("read the clock of the machine"))?,
        })))
    }

    /// Fills the chips of a new `vm`. Before the first vCPU runs, so that none
    /// sees the clock of a machine that has just been made.
    ///
    /// With `advance`, the guest's kvm-clock goes on by the time that has passed
    /// on the host since it was saved; otherwise it goes on from where it was.
    ///
    /// # Errors
    /// KVM refuses a call.
    pub fn fill(&self, vm: &VmFd, advance: bool) -> Result<(), KvmError> {
        let Self::V1(state) = self;
        for chip in state.pics.iter().chain([&state.ioapic]) {
            vm.set_irqchip(chip)
                .map_err(KvmError::call("set an interrupt controller"))?;
        }
        vm.set_pit2(&state.pit)
            .map_err(KvmError::call("set the timer (PIT)"))?;
        // What the kernel read besides the clock itself is not for it to take,
        // but for KVM_CLOCK_REALTIME.
        let flags = match advance {
            true => state.clock.flags & kvm_bindings::KVM_CLOCK_REALTIME,
            false => 0,
        };
        if advance && flags == 0 {
            log::warn!(
                "clock_realtime has no effect: the snapshot was made on a host whose kernel is \
                 older than Linux 5.16, and does not say when that was"
            );
        }
        let clock = kvm_clock_data {
            flags,
            ..state.clock
        };
        vm.set_clock(&clock)
            .map_err(KvmError::call("set the clock of the machine"))
    }
}
