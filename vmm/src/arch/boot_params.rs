//! The boot parameters ("zero page") of the Linux boot protocol.

use linux_loader::bootparam::{boot_e820_entry, boot_params, setup_header};

use super::layout;
use crate::units::Gpa;

const E820_RAM: u32 = 1;
const E820_RESERVED: u32 = 2;

/// Where the initrd lies in guest memory.
#[derive(Clone, Copy, Debug)]
pub struct Initrd {
    /// First byte.
    pub start: Gpa,
    /// Length in bytes.
    pub len: u32,
}

/// Builds the boot parameters. `header` is the set-up header that came with a
/// bzImage: what the kernel says of itself in it is kept as it is, and only
/// the fields that a boot loader owns are written.
pub fn boot_params(
    header: Option<setup_header>,
    command_line_len: u32,
    initrd: Option<Initrd>,
    memory: &[(Gpa, u64)],
) -> boot_params {
    /// "HdrS", the magic of the set-up header.
    const HEADER_MAGIC: u32 = 0x5372_6448;
    /// Oldest protocol with everything that is written here (2.12).
    const PROTOCOL: u16 = 0x020c;
    /// A loader without an assigned number.
    const LOADER_UNDEFINED: u8 = 0xff;
    const BOOT_FLAG: u16 = 0xaa55;

    let mut params = boot_params {
        hdr: header.unwrap_or_default(),
        ..Default::default()
    };
    if header.is_none() {
        params.hdr.boot_flag = BOOT_FLAG;
        params.hdr.header = HEADER_MAGIC;
        params.hdr.version = PROTOCOL;
        params.hdr.kernel_alignment = 0x0100_0000;
    }
    params.hdr.type_of_loader = LOADER_UNDEFINED;
    params.hdr.cmd_line_ptr = layout::COMMAND_LINE.0 as u32;
    params.hdr.cmdline_size = command_line_len;
    if let Some(initrd) = initrd {
        params.hdr.ramdisk_image = initrd.start.0 as u32;
        params.hdr.ramdisk_size = initrd.len;
    }
    params.acpi_rsdp_addr = layout::ACPI_TABLES.0;
    let map = address_map(memory);
    params.e820_entries = map.len() as u8;
    params.e820_table[..map.len()].copy_from_slice(&map);
    params
}

/// The e820 map: memory without the ranges of the MP and ACPI tables.
fn address_map(memory: &[(Gpa, u64)]) -> Vec<boot_e820_entry> {
    let entry = |start: Gpa, end: u64, kind: u32| boot_e820_entry {
        addr: start.0,
        size: end - start.0,
        r#type: kind,
    };
    let mut map = vec![
        entry(Gpa(0), layout::MP_TABLE.0, E820_RAM),
        entry(layout::MP_TABLE, layout::MP_TABLE_END.0, E820_RESERVED),
        entry(layout::ACPI_TABLES, layout::HIGH_MEMORY.0, E820_RESERVED),
    ];
    for &(start, len) in memory {
        let end = start.0 + len;
        let start = Gpa(start.0.max(layout::HIGH_MEMORY.0));
        map.push(entry(start, end, E820_RAM));
    }
    map
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::units::MIB;

    #[test]
    fn the_map_is_sorted_disjoint_and_spares_the_gap() {
        for mib in [32, 3327, 3328, 3329, 6144] {
            let map = address_map(&layout::memory_regions(mib * MIB));
            for pair in map.windows(2) {
                let (a, b) = (pair[0], pair[1]);
                assert!(a.addr + a.size <= b.addr, "{mib} MiB");
            }
            let high: u64 = map.iter().skip(3).map(|e| e.size).sum();
            assert_eq!(high, mib * MIB - MIB);
        }
    }

    #[test]
    fn a_header_from_the_image_keeps_what_the_kernel_says() {
        let header = setup_header {
            kernel_alignment: 0x20_0000,
            version: 0x20f,
            ..Default::default()
        };
        let params = boot_params(Some(header), 10, None, &layout::memory_regions(64 * MIB));
        let (alignment, version) = (params.hdr.kernel_alignment, params.hdr.version);
        assert_eq!((alignment, version), (0x20_0000, 0x20f));
        assert_eq!(params.hdr.type_of_loader, 0xff);
    }
}
