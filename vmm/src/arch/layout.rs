//! The guest physical address map.
//!
//! ```text
//! 0x0000_0500  GDT, IDT                     ┐
//! 0x0000_7000  boot parameters (zero page)  │ boot data; free for the kernel
//! 0x0000_8ff0  boot stack (grows down)      │ once it has copied it
//! 0x0000_9000  page tables                  │
//! 0x0002_0000  kernel command line          ┘
//! 0x0009_fc00  MP table (reserved)
//! 0x000e_0000  ACPI tables (reserved)
//! 0x000f_f000  generation identifier (reserved)
//! 0x0010_0000  high memory: kernel, initrd
//! 0xd000_0000  MMIO gap: virtio windows from here
//! 0xfec0_0000  I/O APIC
//! 0xfee0_0000  local APICs
//! 0xfffb_c000  identity map page, then three TSS pages (Intel, KVM's own)
//! 0x1_0000_0000  memory above 4 GiB
//! ```

use crate::units::{GIB, Gpa, Gsi};

/// Global descriptor table of the boot CPU.
pub const GDT: Gpa = Gpa(0x500);
/// Empty interrupt descriptor table of the boot CPU.
pub const IDT: Gpa = Gpa(0x520);
/// Boot parameters, the "zero page".
pub const BOOT_PARAMS: Gpa = Gpa(0x7000);
/// Initial stack pointer of the boot CPU.
pub const BOOT_STACK: u64 = 0x8ff0;
/// Page tables of the boot CPU: one PML4 page, one PDPT page, four PD pages.
pub const PAGE_TABLES: Gpa = Gpa(0x9000);
/// Kernel command line, NUL-terminated.
pub const COMMAND_LINE: Gpa = Gpa(0x2_0000);
/// Longest command line in bytes with its NUL (`COMMAND_LINE_SIZE` of x86 Linux).
pub const COMMAND_LINE_MAX: usize = 2048;
/// MP table; also the end of conventional memory, where an EBDA would start.
pub const MP_TABLE: Gpa = Gpa(0x9_fc00);
/// End of the range reserved for the MP table.
pub const MP_TABLE_END: Gpa = Gpa(0xa_0000);
/// ACPI tables. The RSDP comes first, on the 16-byte boundary that kernels
/// without `acpi_rsdp_addr` search for in 0xe0000–0xfffff (ACPI 6.5 §5.2.5.1).
pub const ACPI_TABLES: Gpa = Gpa(0xe_0000);
/// The page of the generation identifier, and end of the ACPI tables. A page of
/// its own, so that writing it copies no page that machines of one template share.
pub const GENERATION: Gpa = Gpa(0xf_f000);
/// End of the reserved range that begins with the ACPI tables, and start of high
/// memory.
pub const HIGH_MEMORY: Gpa = Gpa(0x10_0000);
/// Start of the hole below 4 GiB that holds devices instead of memory.
pub const MMIO_GAP: Gpa = Gpa(0xd000_0000);
/// End of that hole: memory goes on here.
pub const MMIO_GAP_END: Gpa = Gpa(4 * GIB);
/// Window of the first virtio device; the others follow at [`VIRTIO_WINDOW_LEN`].
pub const VIRTIO_WINDOWS: Gpa = MMIO_GAP;
/// Bytes of each virtio device's window.
pub const VIRTIO_WINDOW_LEN: u64 = 0x1000;
/// I/O APIC, where KVM puts it.
pub const IO_APIC: u32 = 0xfec0_0000;
/// Local APIC, where KVM puts it.
pub const LOCAL_APIC: u32 = 0xfee0_0000;
/// A page that KVM uses on Intel hosts without unrestricted guest mode.
pub const KVM_IDENTITY_MAP: u64 = 0xfffb_c000;
/// Three pages that KVM uses on the same hosts.
pub const KVM_TSS: u64 = 0xfffb_d000;

/// Port of the serial device and its line.
pub const SERIAL_PORT: u16 = 0x3f8;
/// The serial device's interrupt.
pub const SERIAL_GSI: Gsi = Gsi(4);
/// First port of the keyboard controller.
pub const I8042_PORT: u16 = 0x60;
/// The keyboard's interrupt.
pub const I8042_GSI: Gsi = Gsi(1);

/// The interrupt of the generic event device, by which firmware events reach the
/// guest.
pub const EVENT_GSI: Gsi = Gsi(23);

/// Pins that virtio devices may have, in the order of use: what the I/O APIC
/// offers without the pins of the PIT (0, 2), keyboard (1), serial ports
/// (3, 4), RTC (8), mouse (12), FPU (13) and firmware events ([`EVENT_GSI`]).
pub const VIRTIO_GSIS: [u32; 15] = [5, 6, 7, 9, 10, 11, 14, 15, 16, 17, 18, 19, 20, 21, 22];

/// Splits `bytes` of memory around the MMIO gap: `(start, length)` of each
/// region, lowest first.
pub fn memory_regions(bytes: u64) -> Vec<(Gpa, u64)> {
    let below = bytes.min(MMIO_GAP.0);
    let above = bytes - below;
    let mut regions = vec![(Gpa(0), below)];
    if above > 0 {
        regions.push((MMIO_GAP_END, above));
    }
    regions
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::units::{MIB, PAGE_SIZE};

    #[test]
    fn memory_never_covers_the_gap_and_none_is_lost() {
        for mib in [32, 128, 2048, 3327, 3328, 3329, 4096, 6144, 65536] {
            let regions = memory_regions(mib * MIB);
            assert_eq!(regions.iter().map(|r| r.1).sum::<u64>(), mib * MIB);
            for (start, len) in regions {
                let end = start.0 + len;
                assert!(
                    len > 0 && (end <= MMIO_GAP.0 || start.0 >= MMIO_GAP_END.0),
                    "{mib} MiB"
                );
            }
        }
    }

    #[test]
    fn virtio_windows_end_below_the_io_apic() {
        let end = VIRTIO_WINDOWS.0 + VIRTIO_GSIS.len() as u64 * VIRTIO_WINDOW_LEN;
        assert!(end <= u64::from(IO_APIC));
    }

    #[test]
    fn every_pin_has_one_owner() {
        let mut pins = VIRTIO_GSIS.to_vec();
        pins.extend([SERIAL_GSI, I8042_GSI, EVENT_GSI].map(|gsi| gsi.0));
        pins.sort_unstable();
        pins.dedup();
        assert_eq!(pins.len(), VIRTIO_GSIS.len() + 3);
        assert!(pins.iter().all(|pin| *pin < 24), "the I/O APIC has 24 pins");
    }

    #[test]
    fn the_generation_has_a_page_of_its_own() {
        assert_eq!(GENERATION.0 % PAGE_SIZE, 0);
        assert!(GENERATION > ACPI_TABLES);
        assert_eq!(GENERATION.0 + PAGE_SIZE, HIGH_MEMORY.0);
    }
}
