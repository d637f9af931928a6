use super::*;

/// An ELF header with program headers of these types.
fn elf(machine: u16, segments: &[u32]) -> Vec<u8> {
    let mut elf = vec![0; 64 + 56 * segments.len()];
    elf[..6].copy_from_slice(b"\x7fELF\x02\x01");
    elf[18..20].copy_from_slice(&machine.to_le_bytes());
    elf[32..40].copy_from_slice(&64_u64.to_le_bytes());
    elf[54..56].copy_from_slice(&56_u16.to_le_bytes());
    elf[56..58].copy_from_slice(&(segments.len() as u16).to_le_bytes());
    for (index, kind) in segments.iter().enumerate() {
        let at = 64 + 56 * index;
        elf[at..at + 4].copy_from_slice(&kind.to_le_bytes());
    }
    elf
}

/// Name, mode, device and data.
type Entry = (String, u32, (u32, u32), Vec<u8>);

fn entries(mut bytes: &[u8]) -> Vec<Entry> {
    let mut entries = Vec::new();
    loop {
        assert_eq!(&bytes[..6], b"070701");
        let field = |index: usize| {
            let text = &bytes[6 + 8 * index..][..8];
            let text = std::str::from_utf8(text).expect("ASCII");
            u32::from_str_radix(text, 16).expect("hexadecimal")
        };
        let (mode, size, name_size) = (field(1), field(6) as usize, field(11) as usize);
        let device = (field(9), field(10));
        let name = std::str::from_utf8(&bytes[110..110 + name_size - 1]).expect("ASCII");
        assert_eq!(bytes[110 + name_size - 1], 0);
        let data_at = (110 + name_size).next_multiple_of(4);
        if name == "TRAILER!!!" {
            assert_eq!(bytes.len(), data_at);
            return entries;
        }
        let data = bytes[data_at..data_at + size].to_vec();
        entries.push((name.to_owned(), mode, device, data));
        bytes = &bytes[(data_at + size).next_multiple_of(4)..];
    }
}

#[test]
fn the_agent_is_init() {
    for extra in 0..4 {
        let agent = vec![0xa5; 1000 + extra];
        let mut out = Vec::new();
        archive(&agent, &mut out).expect("written");
        assert_eq!(
            entries(&out),
            [
                ("dev".into(), 0o040_755, (0, 0), vec![]),
                ("dev/console".into(), 0o020_600, (5, 1), vec![]),
                ("init".into(), 0o100_755, (0, 0), agent),
            ]
        );
    }
}

#[test]
fn it_goes_behind_the_users_initrd_on_a_boundary() {
    let dir = tempfile::tempdir().expect("directory");
    let [agent, base, alone, both] =
        ["agent", "base", "alone", "both"].map(|name| dir.path().join(name));
    fs::write(&agent, elf(62, &[1])).expect("agent");
    fs::write(&base, b"compressed or not").expect("base");
    write(&alone, &agent, None).expect("written");
    write(&both, &agent, Some(&base)).expect("written");

    let (alone, both) = (
        fs::read(alone).expect("read"),
        fs::read(both).expect("read"),
    );
    assert_eq!(&both[..20], b"compressed or not\0\0\0");
    assert_eq!(&both[20..], alone);
}

#[test]
fn only_a_static_program_is_packed() {
    assert_eq!(names_interpreter(&elf(62, &[1, 2])), Some(false));
    assert_eq!(names_interpreter(&elf(62, &[6, 3, 1])), Some(true));
    assert_eq!(names_interpreter(&elf(183, &[1])), None);
    assert_eq!(names_interpreter(b"#!/bin/sh\n"), None);
    let whole = elf(62, &[1, 1]);
    for len in 0..64 + 56 + 4 {
        assert_eq!(names_interpreter(&whole[..len]), None, "cut at {len}");
    }

    let dir = tempfile::tempdir().expect("directory");
    let agent = dir.path().join("agent");
    fs::write(&agent, elf(62, &[3])).expect("agent");
    let error = write(&dir.path().join("initrd"), &agent, None).expect_err("refused");
    assert!(error.to_string().contains("dynamically linked"), "{error}");
}
