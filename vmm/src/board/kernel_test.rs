use super::*;
use std::io::Write;

const LOW_END: u64 = 64 * MIB;

fn memory() -> GuestMemory {
    GuestMemory::from_ranges(&[(Gpa(0), LOW_END as usize)]).unwrap()
}

/// A file with `bytes`, gone when dropped.
fn file(bytes: &[u8]) -> tempfile::NamedTempFile {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(bytes).unwrap();
    file
}

fn load(bytes: &[u8]) -> Result<Kernel, BootError> {
    load_kernel(&memory(), LOW_END, file(bytes).path())
}

/// An ELF file with one segment of eight bytes at 16 MiB.
fn elf(change: impl FnOnce(&mut Elf64_Ehdr, &mut Elf64_Phdr)) -> Vec<u8> {
    let mut header = Elf64_Ehdr::default();
    header.e_ident[..6].copy_from_slice(b"\x7fELF\x02\x01");
    header.e_machine = 62;
    header.e_phoff = 64;
    header.e_phentsize = 56;
    header.e_phnum = 1;
    header.e_entry = 16 * MIB;
    let mut segment = Elf64_Phdr {
        p_type: PT_LOAD,
        p_offset: 120,
        p_filesz: 8,
        p_memsz: 4096,
        p_paddr: 16 * MIB,
        ..Default::default()
    };
    change(&mut header, &mut segment);
    [header.as_slice(), segment.as_slice(), b"kernel!!"].concat()
}

/// A bzImage of one set-up sector whose code begins with "code".
fn bzimage(change: impl FnOnce(&mut setup_header)) -> Vec<u8> {
    let mut header = setup_header {
        setup_sects: 1,
        syssize: 64,
        header: 0x5372_6448,
        version: 0x20f,
        loadflags: 1,
        xloadflags: 1,
        pref_address: 16 * MIB,
        init_size: MIB as u32,
        initrd_addr_max: 0x7fff_ffff,
        ..Default::default()
    };
    change(&mut header);
    let mut bytes = vec![0u8; 1024 + 1024];
    bytes[0x1f1..][..size_of::<setup_header>()].copy_from_slice(header.as_slice());
    bytes[1024..1028].copy_from_slice(b"code");
    bytes
}

#[test]
fn an_elf_kernel_is_loaded_where_it_says() {
    let memory = memory();
    let file = file(&elf(|_, _| {}));
    let kernel = load_kernel(&memory, LOW_END, file.path()).unwrap();
    assert_eq!(kernel.entry, Gpa(16 * MIB));
    assert_eq!(kernel.extent, 16 * MIB..16 * MIB + 4096);
    let mut bytes = [0; 8];
    memory.read_slice(&mut bytes, kernel.entry).unwrap();
    assert_eq!(&bytes, b"kernel!!");
}

#[test]
fn a_bzimage_is_entered_at_its_64_bit_entry() {
    let memory = memory();
    let file = file(&bzimage(|_| {}));
    let kernel = load_kernel(&memory, LOW_END, file.path()).unwrap();
    assert_eq!(kernel.entry, Gpa(16 * MIB + 0x200));
    assert_eq!(kernel.extent, 16 * MIB..17 * MIB);
    let mut bytes = [0; 4];
    memory.read_slice(&mut bytes, Gpa(16 * MIB)).unwrap();
    assert_eq!(&bytes, b"code");
}

#[test]
fn files_cut_anywhere_are_refused() {
    for whole in [elf(|_, _| {}), bzimage(|_| {})] {
        for len in [
            0, 1, 3, 4, 63, 64, 119, 127, 511, 512, 0x202, 0x206, 0x268, 1023, 2047,
        ] {
            if len < whole.len() {
                load(&whole[..len]).expect_err(&format!("cut at {len}"));
            }
        }
    }
    let mut all_setup = bzimage(|header| header.setup_sects = 0xff);
    assert!(matches!(load(&all_setup), Err(BootError::Truncated { .. })));
    all_setup.resize(256 * 512 + 1024, 0);
    load(&all_setup).unwrap();
}

#[test]
fn other_files_are_named_for_what_they_are() {
    let mut arm = vec![0u8; 4096];
    arm[0x38..0x3c].copy_from_slice(b"ARM\x64");
    for (bytes, why) in [
        (
            b"#!/bin/sh\n".to_vec(),
            "begins with the bytes [23, 21, 2f, 62]",
        ),
        (vec![], "it has 0 bytes"),
        (arm, "built for arm64"),
        (b"\x1f\x8b\x08\x00".to_vec(), "gzip"),
        (elf(|header, _| header.e_machine = 183), "ELF machine 183"),
        (elf(|header, _| header.e_ident[4] = 1), "not a 64-bit"),
        (elf(|header, _| header.e_phnum = 0), "nothing to load"),
        (elf(|header, _| header.e_entry = 0), "entry 0x0 is outside"),
        (elf(|_, segment| segment.p_paddr = 0x1000), "below 1 MiB"),
        (bzimage(|header| header.xloadflags = 0), "no 64-bit entry"),
    ] {
        let text = load(&bytes).unwrap_err().to_string();
        assert!(text.contains(why), "{text}");
    }
}

#[test]
fn headers_that_point_anywhere_are_refused() {
    let changes: [fn(&mut Elf64_Phdr); 6] = [
        |segment| segment.p_offset = u64::MAX,
        |segment| segment.p_filesz = u64::MAX,
        |segment| segment.p_memsz = u64::MAX,
        |segment| segment.p_paddr = u64::MAX - 1,
        |segment| segment.p_paddr = LOW_END - 8,
        |segment| (segment.p_type, segment.p_offset) = (PT_NOTE, u64::MAX - 3),
    ];
    for change in changes {
        load(&elf(|_, segment| change(segment))).unwrap_err();
    }
    load(&elf(|header, _| header.e_phoff = u64::MAX - 10)).unwrap_err();
    load(&bzimage(|header| header.pref_address = u64::MAX - 100)).unwrap_err();
    load(&bzimage(|header| header.init_size = u32::MAX)).unwrap_err();
}

#[test]
fn a_kernel_larger_than_memory_says_how_much_it_needs() {
    let text = load(&bzimage(|header| header.init_size = 60 << 20))
        .unwrap_err()
        .to_string();
    assert!(
        text.contains("up to 76 MiB") && text.contains("only 64 MiB"),
        "{text}"
    );
}

#[test]
fn an_initrd_goes_to_the_top_and_never_over_the_kernel() {
    let memory = memory();
    let kernel = Kernel {
        entry: Gpa(16 * MIB),
        extent: 16 * MIB..20 * MIB,
        header: None,
    };
    let place = |len: u64, low_end| {
        let source = file(b"");
        source.as_file().set_len(len).unwrap();
        load_initrd(&memory, low_end, &kernel, source.path())
    };
    let initrd = place(5000, LOW_END).unwrap();
    assert_eq!((initrd.start, initrd.len), (Gpa(LOW_END - 8192), 5000));
    place(44 * MIB, LOW_END).unwrap();
    for len in [44 * MIB + 1, LOW_END + 1, 1 << 33] {
        let refused = place(len, LOW_END).unwrap_err();
        assert!(
            matches!(refused, BootError::InitrdTooLarge { .. }),
            "{refused}"
        );
    }
    assert!(matches!(
        place(0, LOW_END),
        Err(BootError::InitrdEmpty { .. })
    ));
}

#[test]
fn a_missing_file_or_directory_is_named() {
    for path in ["/nonexistent/vmlinux", "/"] {
        let text = load_kernel(&memory(), LOW_END, Path::new(path))
            .unwrap_err()
            .to_string();
        assert!(text.contains(path), "{text}");
    }
}
