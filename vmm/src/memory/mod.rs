//! Guest memory as vCPUs and devices see it.

pub mod copy;
pub mod layers;
pub mod prefetch;
pub mod tracker;

use vm_memory::GuestMemoryMmap;

use crate::arch::layout;
use crate::sys::host;
use crate::units::{Gpa, MIB};

/// All of a machine's memory. Cloning it copies references, not memory.
pub type GuestMemory = GuestMemoryMmap<()>;

/// Memory that a machine cannot have.
#[derive(Debug, thiserror::Error)]
pub enum MemoryError {
    /// More than the host's memory and swap.
    #[error(
        "mem_size_mib is {wanted_mib} MiB, but this host has only {host_mib} MiB of memory and \
         swap: ask for less"
    )]
    MoreThanHost {
        /// What the machine asks for.
        wanted_mib: u64,
        /// What the host has.
        host_mib: u64,
    },
    /// Addresses beyond what guests of this host can have.
    #[error(
        "mem_size_mib is {wanted_mib} MiB, which needs more than the {bits} address bits that \
         this host's CPUs have: ask for less"
    )]
    BeyondAddressBits {
        /// What the machine asks for.
        wanted_mib: u64,
        /// Width of physical addresses.
        bits: u32,
    },
    /// The host would not map it.
    #[error("the host could not map {wanted_mib} MiB of memory for the guest ({reason})")]
    Map {
        /// What the machine asks for.
        wanted_mib: u64,
        /// The host's answer.
        reason: String,
    },
}

/// Maps `mib` MiB of zeroed memory, laid around the MMIO gap. The host gives
/// each page when it is first touched.
///
/// `address_bits` is the width of guest physical addresses on this host.
///
/// # Errors
/// The host does not have as much, cannot address it or will not map it.
pub fn allocate(mib: u64, address_bits: u32) -> Result<GuestMemory, MemoryError> {
    let map_error = |reason: String| MemoryError::Map {
        wanted_mib: mib,
        reason,
    };
    let host_mib = host::memory_and_swap().map_err(|e| map_error(e.to_string()))? / MIB;
    if mib > host_mib {
        return Err(MemoryError::MoreThanHost {
            wanted_mib: mib,
            host_mib,
        });
    }
    // What the host has fits 64 bits in bytes, so this does not overflow.
    let regions = layout::memory_regions(mib * MIB);
    let end = regions.last().map_or(0, |(start, len)| start.0 + len);
    if address_bits < u64::BITS && end > 1 << address_bits {
        return Err(MemoryError::BeyondAddressBits {
            wanted_mib: mib,
            bits: address_bits,
        });
    }
    map_regions(mib, &regions)
}

/// As [`allocate`], for a machine that has been built before, so that its size
/// is known to make sense.
///
/// # Errors
/// The host will not map it.
pub fn map(mib: u64) -> Result<GuestMemory, MemoryError> {
    map_regions(mib, &layout::memory_regions(mib.saturating_mul(MIB)))
}

fn map_regions(mib: u64, regions: &[(Gpa, u64)]) -> Result<GuestMemory, MemoryError> {
    let ranges: Vec<_> = regions
        .iter()
        .map(|&(start, len)| (start, len as usize))
        .collect();
    GuestMemory::from_ranges(&ranges).map_err(|error| MemoryError::Map {
        wanted_mib: mib,
        reason: error.to_string(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use vm_memory::{Bytes, GuestMemoryBackend};

    #[test]
    fn memory_starts_as_zeros_and_keeps_what_is_written() {
        let memory = allocate(32, 48).unwrap();
        let last = Gpa(32 * MIB - 8);
        assert_eq!(memory.read_obj::<u64>(last).unwrap(), 0);
        memory.write_obj(0x1122_3344_5566_7788u64, last).unwrap();
        assert_eq!(memory.read_obj::<u64>(last).unwrap(), 0x1122_3344_5566_7788);
        assert!(memory.read_obj::<u64>(Gpa(32 * MIB - 4)).is_err());
    }

    #[test]
    fn the_gap_is_not_memory() {
        let memory = allocate(3329, 48).unwrap();
        assert!(!memory.address_in_range(layout::MMIO_GAP));
        assert!(memory.address_in_range(layout::MMIO_GAP_END));
    }

    #[test]
    fn more_than_the_host_has_is_refused_with_both_sizes() {
        let refused = allocate(1 << 30, 52).unwrap_err();
        assert!(
            matches!(refused, MemoryError::MoreThanHost { wanted_mib, .. } if wanted_mib == 1 << 30)
        );
    }

    #[test]
    fn more_than_can_be_addressed_is_refused() {
        let refused = allocate(4096, 32).unwrap_err();
        assert!(matches!(
            refused,
            MemoryError::BeyondAddressBits { bits: 32, .. }
        ));
    }
}
