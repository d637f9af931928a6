use super::*;

fn spec() -> AcpiSpec {
    let window = |n: u64| VirtioWindow {
        base: Gpa(layout::VIRTIO_WINDOWS.0 + n * layout::VIRTIO_WINDOW_LEN),
        gsi: Gsi(layout::VIRTIO_GSIS[n as usize]),
    };
    AcpiSpec {
        vcpus: 32,
        virtio: (0..layout::VIRTIO_GSIS.len() as u64).map(window).collect(),
        power: PowerRegisters {
            control_port: 0x3c0,
            status_port: 0x3c1,
            reset_value: 1,
            s5_type: 5,
        },
        pvpanic_port: 0x505,
    }
}

fn sum(bytes: &[u8]) -> u8 {
    bytes.iter().fold(0, |sum, byte| sum.wrapping_add(*byte))
}

/// The table at guest physical address `at`, checked for length and sum.
fn table(block: &[u8], at: u64) -> &[u8] {
    let start = (at - layout::ACPI_TABLES.0) as usize;
    let len = u32::from_le_bytes(block[start + 4..start + 8].try_into().unwrap()) as usize;
    let table = &block[start..start + len];
    assert_eq!(sum(table), 0);
    table
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap())
}

#[test]
fn every_table_is_found_from_the_rsdp() {
    let block = tables(&spec());
    assert!(block.len() as u64 <= layout::GENERATION.0 - layout::ACPI_TABLES.0);
    assert_eq!(&block[..8], b"RSD PTR ");
    assert_eq!((sum(&block[..20]), sum(&block[..36])), (0, 0));
    let xsdt = table(&block, u64_at(&block, 24));
    let names: Vec<_> = xsdt[36..]
        .chunks(8)
        .map(|e| &table(&block, u64_at(e, 0))[..4])
        .collect();
    assert_eq!(names, [b"FACP", b"APIC"]);
    let fadt = table(&block, u64_at(xsdt, 36));
    assert_eq!(&table(&block, u64_at(fadt, 140))[..4], b"DSDT");
}

#[test]
fn the_dsdt_names_each_virtio_device_in_order() {
    let spec = spec();
    let block = tables(&spec);
    let mut from = 0;
    for index in 0..spec.virtio.len() {
        let name = format!("V{index:03}");
        let found = block[from..].windows(4).position(|w| w == name.as_bytes());
        from += found.expect("device named after the one before");
    }
}

#[test]
fn a_machine_without_devices_has_tables_too() {
    let spec = AcpiSpec {
        virtio: Vec::new(),
        vcpus: 1,
        ..spec()
    };
    assert!(tables(&spec).len() < 2048);
}

#[test]
fn the_dsdt_says_where_the_generation_is_and_how_its_change_is_told() {
    let block = tables(&spec());
    let find = |what: &[u8]| {
        let found = block.windows(what.len()).position(|w| w == what);
        found.unwrap_or_else(|| panic!("{} is there", what.escape_ascii()))
    };
    find(b"_CID\x0dVM_Gen_Counter\0");
    // Name ADDR, a package of two: a double word, then zero for the high half.
    let address = (layout::GENERATION.0 as u32).to_le_bytes();
    find(&[b"\x08ADDR\x12\x08\x02\x0c", &address[..], b"\0"].concat());
    // Notify(\_SB.VGEN, 0x80)
    find(b"\x86\\\x2e_SB_VGEN\x0a\x80");
    // An extended interrupt: consumer, edge, high, exclusive, one number.
    find(&[b"\x89\x06\x00\x03\x01", &23u32.to_le_bytes()[..]].concat());
}
