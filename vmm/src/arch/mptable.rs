//! The MP table (Intel MultiProcessor Specification 1.4), for kernels that do
//! not use ACPI.

use super::layout;

/// Version of the local APICs and of the I/O APIC that KVM emulates.
const LOCAL_APIC_VERSION: u8 = 0x14;
const IO_APIC_VERSION: u8 = 0x11;
/// Pins of KVM's I/O APIC.
const PINS: u8 = 24;
const ISA_BUS: u8 = 0;

/// The floating pointer and the configuration table behind it, to be placed at
/// [`layout::MP_TABLE`].
pub fn mp_table(vcpus: u8) -> Vec<u8> {
    let io_apic_id = vcpus; // the first id that no CPU has
    let mut entries = Vec::new();
    let mut count: u16 = 0;
    let mut push = |entry: &[u8]| {
        entries.extend_from_slice(entry);
        count += 1;
    };
    for id in 0..vcpus {
        const ENABLED: u8 = 1;
        const BOOT_CPU: u8 = 2;
        let flags = ENABLED | if id == 0 { BOOT_CPU } else { 0 };
        let mut cpu = vec![0, id, LOCAL_APIC_VERSION, flags];
        cpu.extend_from_slice(&0x600u32.to_le_bytes()); // family 6
        cpu.extend_from_slice(&0x201u32.to_le_bytes()); // FPU and APIC on chip
        cpu.extend_from_slice(&[0; 8]);
        push(&cpu);
    }
    push(&[1, ISA_BUS, b'I', b'S', b'A', b' ', b' ', b' ']);
    let mut io_apic = vec![2, io_apic_id, IO_APIC_VERSION, 1];
    io_apic.extend_from_slice(&layout::IO_APIC.to_le_bytes());
    push(&io_apic);
    for pin in 0..PINS {
        // Vectored interrupt, polarity and trigger as the bus has them (ISA:
        // edge, active high).
        push(&[3, 0, 0, 0, ISA_BUS, pin, io_apic_id, pin]);
    }
    push(&[4, 3, 0, 0, ISA_BUS, 0, 0, 0]); // ExtINT on LINT0 of the boot CPU
    push(&[4, 1, 0, 0, ISA_BUS, 0, 0xff, 1]); // NMI on LINT1 of every CPU

    const FLOATING_LEN: u32 = 16;
    const HEADER_LEN: usize = 44;
    let mut header = Vec::with_capacity(HEADER_LEN);
    header.extend_from_slice(b"PCMP");
    header.extend_from_slice(&((HEADER_LEN + entries.len()) as u16).to_le_bytes());
    header.extend_from_slice(&[4, 0]); // specification 1.4, checksum below
    header.extend_from_slice(b"COPPICE MICROVM     ");
    header.extend_from_slice(&[0; 6]); // no OEM table
    header.extend_from_slice(&count.to_le_bytes());
    header.extend_from_slice(&layout::LOCAL_APIC.to_le_bytes());
    header.extend_from_slice(&[0; 4]); // no extended table
    header[7] = checksum(&[&header, &entries]);

    let mut table = Vec::new();
    table.extend_from_slice(b"_MP_");
    table.extend_from_slice(&(layout::MP_TABLE.0 as u32 + FLOATING_LEN).to_le_bytes());
    table.extend_from_slice(&[1, 4, 0, 0, 0, 0, 0, 0]); // one paragraph, 1.4
    table[10] = checksum(&[&table]);
    table.extend_from_slice(&header);
    table.extend_from_slice(&entries);
    table
}

/// The byte that makes all bytes of `parts` add up to zero.
fn checksum(parts: &[&[u8]]) -> u8 {
    parts
        .iter()
        .copied()
        .flatten()
        .fold(0u8, |sum, byte| sum.wrapping_sub(*byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_add_up_and_fit_for_every_number_of_cpus() {
        for vcpus in 1..=32 {
            let table = mp_table(vcpus);
            assert!(table.len() as u64 <= layout::MP_TABLE_END.0 - layout::MP_TABLE.0);
            let (floating, rest) = table.split_at(16);
            for part in [floating, rest] {
                assert_eq!(part.iter().fold(0u8, |sum, b| sum.wrapping_add(*b)), 0);
            }
            let length = u16::from_le_bytes([rest[4], rest[5]]) as usize;
            assert_eq!(length, rest.len());
            let cpus = rest[44..].chunks(20).take(vcpus as usize);
            assert!(
                cpus.enumerate()
                    .all(|(id, cpu)| cpu[0] == 0 && cpu[1] as usize == id)
            );
        }
    }
}
