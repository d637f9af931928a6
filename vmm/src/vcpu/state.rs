//! The whole state of a virtual processor, saved and filled back in.
//!
//! KVM's calls depend on one another, so their order matters
//! (`Documentation/virt/kvm/api.rst`):
//! - Saving begins with the MP state, since reading it takes in INIT and SIPI
//!   that are on their way, which changes registers.
//! - Filling sets CPUID before anything that it governs; system registers
//!   before the local APIC, whose base and mode they hold; the local APIC before
//!   the MSRs, since a TSC deadline is dropped unless the APIC's timer is in
//!   that mode; the TSC before its deadline, which is compared with it; and
//!   pending events last, so that nothing clears them.

use std::collections::BTreeSet;

use kvm_bindings::{
    KVM_MAX_CPUID_ENTRIES, Msrs, Xsave, kvm_cpuid_entry2, kvm_debugregs, kvm_lapic_state,
    kvm_mp_state, kvm_msr_entry, kvm_regs, kvm_sregs, kvm_vcpu_events, kvm_xcrs, kvm_xsave,
};
use kvm_ioctls::{Cap, Kvm, VmFd};
use serde::{Deserialize, Serialize};

use super::Vcpu;
use crate::arch::msr;
use crate::sys::kvm::KvmError;

/// MSRs that one call reads or writes at most; KVM's own limit is 256.
const MSRS_AT_ONCE: usize = 255;
/// Words of 32 bits in the part of the XSAVE area that every KVM has.
const XSAVE_WORDS: usize = 1024;
/// How far two TSC frequencies may be apart and still be the same to a guest, in
/// parts of a million: what KVM tolerates by default (`tsc_tolerance_ppm`).
const TSC_TOLERANCE_PPM: u64 = 250;

/// What KVM of this host has, asked once for all vCPUs of a machine.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Words of 32 bits of an XSAVE area.
    xsave_words: usize,
    /// The TSC can be scaled to another frequency.
    tsc_scales: bool,
}

impl Limits {
    /// What the KVM behind `vm` has.
    pub fn of(vm: &VmFd) -> Self {
        let xsave = usize::try_from(vm.check_extension_int(Cap::Xsave2)).unwrap_or(0);
        Self {
            xsave_words: xsave.div_ceil(size_of::<u32>()).max(XSAVE_WORDS),
            tsc_scales: vm.check_extension_raw(u64::from(kvm_bindings::KVM_CAP_TSC_CONTROL)) > 0,
        }
    }
}

/// The MSRs that are saved: those that KVM lists, and those that it keeps
/// without listing them.
///
/// # Errors
/// KVM does not tell.
pub fn saved_msrs(kvm: &Kvm) -> Result<Vec<u32>, KvmError> {
    let listed = kvm
        .get_msr_index_list()
        .map_err(KvmError::call("list the MSRs that it saves"))?;
    let all: BTreeSet<u32> = listed
        .as_slice()
        .iter()
        .copied()
        .chain(msr::unlisted())
        .collect();
    Ok(all.into_iter().collect())
}

/// The state of one vCPU, as it is kept in a snapshot.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum VcpuState {
    /// The first version.
    V1(Box<VcpuV1>),
}

/// See [`VcpuState`]. The structures are KVM's own, byte by byte.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct VcpuV1 {
    cpuid: Vec<kvm_cpuid_entry2>,
    /// 0 if KVM did not tell.
    tsc_khz: u32,
    mp_state: kvm_mp_state,
    regs: kvm_regs,
    sregs: kvm_sregs,
    xcrs: kvm_xcrs,
    /// The XSAVE area, as long as it was.
    xsave: Vec<u32>,
    debug: kvm_debugregs,
    lapic: kvm_lapic_state,
    msrs: Vec<kvm_msr_entry>,
    events: kvm_vcpu_events,
}

/// A state that this host cannot take.
#[derive(Debug, thiserror::Error)]
pub enum FillError {
    /// A call failed.
    #[error(transparent)]
    Kvm(#[from] KvmError),
    /// The XSAVE area holds more than this host's processors have.
    #[error(
        "the snapshot has {saved} bytes of extended processor state, but this host's processors \
         have {here}: restore it on a host with the same kind of processor"
    )]
    Xsave {
        /// Bytes in the snapshot.
        saved: usize,
        /// Bytes that this host has.
        here: usize,
    },
    /// The clock rates differ and cannot be reconciled.
    #[error(
        "the snapshot's time stamp counter runs at {saved} kHz, but this host's at {here} kHz, and \
         its KVM cannot scale it: restore it on a host with the same frequency"
    )]
    TscFrequency {
        /// In the snapshot.
        saved: u32,
        /// Of this host.
        here: u32,
    },
    /// KVM refuses a register.
    #[error(
        "KVM on this host does not take the value {value:#x} of MSR {index:#x} from the snapshot: \
         restore it on a host with the same kind of processor and kernel"
    )]
    Msr {
        /// The register.
        index: u32,
        /// Its value.
        value: u64,
    },
}

impl VcpuState {
    /// The CPUID leaves that the guest sees.
    pub fn cpuid(&self) -> &[kvm_cpuid_entry2] {
        let Self::V1(state) = self;
        &state.cpuid
    }
}

impl Vcpu {
    /// Saves everything. The vCPU must be at rest outside of the guest, with no
    /// access left unserved.
    ///
    /// # Errors
    /// KVM refuses a call.
    pub fn save(&self, msrs: &[u32], limits: &Limits) -> Result<VcpuState, KvmError> {
        let fd = &self.fd;
        let mp_state = fd
            .get_mp_state()
            .map_err(KvmError::call("read a processor's MP state"))?;
        let lapic = fd
            .get_lapic()
            .map_err(KvmError::call("read a local APIC"))?;
        let mut msrs = self.read_msrs(msrs)?;
        msr::fire_lost_deadline(&mut msrs, &lapic);
        let state = VcpuV1 {
            cpuid: fd
                .get_cpuid2(KVM_MAX_CPUID_ENTRIES)
                .map_err(KvmError::call("read a processor's CPUID"))?
                .as_slice()
                .to_vec(),
            tsc_khz: fd.get_tsc_khz().unwrap_or(0),
            mp_state,
            regs: fd
                .get_regs()
                .map_err(KvmError::call("read general registers"))?,
            sregs: fd
                .get_sregs()
                .map_err(KvmError::call("read segment registers"))?,
            xcrs: fd
                .get_xcrs()
                .map_err(KvmError::call("read extended control registers"))?,
            xsave: self.read_xsave(limits)?,
            debug: fd
                .get_debug_regs()
                .map_err(KvmError::call("read debug registers"))?,
            lapic,
            msrs,
            events: fd
                .get_vcpu_events()
                .map_err(KvmError::call("read pending events"))?,
        };
        Ok(VcpuState::V1(Box::new(state)))
    }

    /// Fills a new vCPU with a saved state.
    ///
    /// # Errors
    /// This host cannot take it; the vCPU is of no use then.
    pub fn fill(&self, state: &VcpuState, limits: &Limits) -> Result<(), FillError> {
        let VcpuState::V1(state) = state;
        let fd = &self.fd;
        self.set_cpuid(&state.cpuid)?;
        self.set_tsc_frequency(state.tsc_khz, limits)?;
        fd.set_mp_state(state.mp_state)
            .map_err(KvmError::call("set a processor's MP state"))?;
        fd.set_regs(&state.regs)
            .map_err(KvmError::call("set general registers"))?;
        fd.set_sregs(&state.sregs)
            .map_err(KvmError::call("set segment registers"))?;
        // What XCR0 enables decides which parts of the area count.
        fd.set_xcrs(&state.xcrs)
            .map_err(KvmError::call("set extended control registers"))?;
        self.write_xsave(&state.xsave, limits)?;
        fd.set_debug_regs(&state.debug)
            .map_err(KvmError::call("set debug registers"))?;
        fd.set_lapic(&state.lapic)
            .map_err(KvmError::call("set a local APIC"))?;
        self.write_msrs(&state.msrs)?;
        fd.set_vcpu_events(&state.events)
            .map_err(KvmError::call("set pending events"))?;
        // A request of this kind that came with the pause is in no state. It
        // keeps the guest's watchdogs from taking the time away for a lock-up.
        self.tell_paused();
        Ok(())
    }

    fn read_xsave(&self, limits: &Limits) -> Result<Vec<u32>, KvmError> {
        let failed = KvmError::call("read extended processor state");
        if limits.xsave_words == XSAVE_WORDS {
            let xsave = self.fd.get_xsave().map_err(failed)?;
            return Ok(xsave.region.to_vec());
        }
        let mut xsave = new_xsave(limits)?;
        // SAFETY: the area is as long as KVM says that it writes.
        unsafe { self.fd.get_xsave2(&mut xsave) }.map_err(failed)?;
        let mut words = xsave.as_fam_struct_ref().xsave.region.to_vec();
        words.extend(xsave.as_slice());
        Ok(words)
    }

    fn write_xsave(&self, words: &[u32], limits: &Limits) -> Result<(), FillError> {
        // What is beyond the state that this host has may only be zeroes.
        let used = words.len() - words.iter().rev().take_while(|&&word| word == 0).count();
        if used > limits.xsave_words {
            return Err(FillError::Xsave {
                saved: used * size_of::<u32>(),
                here: limits.xsave_words * size_of::<u32>(),
            });
        }
        let words = &words[..used];
        let (region, extra) = words.split_at(words.len().min(XSAVE_WORDS));
        let failed = KvmError::call("set extended processor state");
        if limits.xsave_words == XSAVE_WORDS {
            let mut xsave = kvm_xsave::default();
            xsave.region[..region.len()].copy_from_slice(region);
            // SAFETY: the area is as long as KVM reads: it has no larger one.
            return unsafe { self.fd.set_xsave(&xsave) }.map_err(|e| failed(e).into());
        }
        let mut xsave = new_xsave(limits)?;
        xsave.as_mut_slice()[..extra.len()].copy_from_slice(extra);
        // SAFETY: only the fixed part is written to, not the length.
        let fixed = unsafe { xsave.as_mut_fam_struct() };
        fixed.xsave.region[..region.len()].copy_from_slice(region);
        // SAFETY: the area is as long as KVM says that it reads.
        unsafe { self.fd.set_xsave2(&xsave) }.map_err(|e| failed(e).into())
    }

    /// Reads those of `indices` that this processor has.
    fn read_msrs(&self, indices: &[u32]) -> Result<Vec<kvm_msr_entry>, KvmError> {
        let mut found = Vec::with_capacity(indices.len());
        let mut rest = indices;
        while !rest.is_empty() {
            let asked: Vec<_> = rest
                .iter()
                .take(MSRS_AT_ONCE)
                .map(|&i| entry(i, 0))
                .collect();
            let mut msrs = msrs(&asked)?;
            let count = self
                .fd
                .get_msrs(&mut msrs)
                .map_err(KvmError::call("read a processor's MSRs"))?;
            found.extend_from_slice(&msrs.as_slice()[..count]);
            // KVM stops at the first that this processor lacks.
            let skipped = usize::from(count < asked.len());
            rest = &rest[count + skipped..];
        }
        Ok(found)
    }

    /// Writes all of `entries`. One that KVM refuses to set must at least have
    /// the value already.
    fn write_msrs(&self, entries: &[kvm_msr_entry]) -> Result<(), FillError> {
        let mut rest = entries;
        while !rest.is_empty() {
            let part = &rest[..rest.len().min(MSRS_AT_ONCE)];
            let count = self
                .fd
                .set_msrs(&msrs(part)?)
                .map_err(KvmError::call("set a processor's MSRs"))?;
            if let Some(refused) = part.get(count) {
                let now = self.read_msrs(&[refused.index])?;
                if now.first().map(|entry| entry.data) != Some(refused.data) {
                    return Err(FillError::Msr {
                        index: refused.index,
                        value: refused.data,
                    });
                }
                rest = &rest[count + 1..];
            } else {
                rest = &rest[count..];
            }
        }
        Ok(())
    }

    /// Makes the TSC run as fast as it did. Most often it does already.
    fn set_tsc_frequency(&self, khz: u32, limits: &Limits) -> Result<(), FillError> {
        let here = self.fd.get_tsc_khz().unwrap_or(0);
        let apart = u64::from(here.abs_diff(khz)) * 1_000_000;
        if khz == 0 || apart <= u64::from(khz) * TSC_TOLERANCE_PPM {
            return Ok(());
        }
        if !limits.tsc_scales {
            return Err(FillError::TscFrequency { saved: khz, here });
        }
        self.fd
            .set_tsc_khz(khz)
            .map_err(|_| FillError::TscFrequency { saved: khz, here })
    }
}

fn entry(index: u32, data: u64) -> kvm_msr_entry {
    kvm_msr_entry {
        index,
        data,
        ..Default::default()
    }
}

fn msrs(entries: &[kvm_msr_entry]) -> Result<Msrs, KvmError> {
    Msrs::from_entries(entries).map_err(|_| KvmError::Lacks("room for this many MSRs"))
}

fn new_xsave(limits: &Limits) -> Result<Xsave, KvmError> {
    Xsave::new(limits.xsave_words - XSAVE_WORDS)
        .map_err(|_| KvmError::Lacks("room for this much extended processor state"))
}
