use super::super::mock_driver::{
    Descriptor, HIGH_START, INDIRECT, LOW_END, MockDriver, NEXT, WRITE, guest_memory,
};
use super::*;
use crate::units::MIB;

/// Offers `chain` and parses it.
fn parse(chain: impl FnOnce(&mut MockDriver) -> Vec<Descriptor>) -> Result<Chain, DeviceFault> {
    let mut driver = MockDriver::new(&guest_memory(), 0, 16);
    let chain = chain(&mut driver);
    driver.offer_chain(&chain);
    let mut queue = driver.virtqueue(false);
    queue.pop().map(|chain| chain.expect("a chain was offered"))
}

/// Offers descriptor 0 of a table that `fill` writes as it likes, and parses it.
fn parse_raw(fill: impl FnOnce(&mut MockDriver)) -> Result<Chain, DeviceFault> {
    let mut driver = MockDriver::new(&guest_memory(), 0, 16);
    fill(&mut driver);
    driver.offer(0);
    let mut queue = driver.virtqueue(false);
    queue.pop().map(|chain| chain.expect("a chain was offered"))
}

#[test]
fn buffers_are_read_and_written_across_descriptors_of_odd_lengths() {
    let mut driver = MockDriver::new(&guest_memory(), 0, 64);
    let data: Vec<u8> = (0..=255).collect();
    let pieces: Vec<&[u8]> = data.chunks(17).collect();
    let sent = driver.send(&pieces, &[1, 3, 0, 7, 50]);
    let mut chain = driver.virtqueue(false).pop().unwrap().unwrap();
    assert_eq!((chain.readable.len(), chain.writable.len()), (256, 61));

    assert_eq!(
        chain.readable.read_obj::<u64>().unwrap(),
        0x0706_0504_0302_0100
    );
    let mut middle = chain.readable.take(40);
    let mut out = [0; 40];
    middle.read_exact(&mut out).unwrap();
    assert_eq!(out[..], data[8..48]);
    assert!(middle.is_empty());
    let mut rest = vec![0; chain.readable.len()];
    chain.readable.read_exact(&mut rest).unwrap();
    assert_eq!(rest, data[48..]);

    chain.writable.write_all(&data[..30]).unwrap();
    assert_eq!(chain.writable.len(), 31);
    chain.writable.write_all(&data[30..61]).unwrap();
    assert_eq!(driver.received(&sent), data[..61]);
}

#[test]
fn too_short_a_chain_is_a_fault_and_moves_nothing() {
    let mut chain = parse(|d| vec![Descriptor::readable(d.put(b"abc"), 3)]).unwrap();
    let error = chain.readable.read_obj::<u32>().unwrap_err();
    assert_eq!(
        error.to_string(),
        "a descriptor chain has 3 bytes where the request needs 4"
    );
    assert!(chain.writable.write_all(b"x").is_err());
    assert_eq!(chain.readable.take(100).len(), 3);
    assert!(chain.readable.is_empty());
}

#[test]
fn slices_reach_the_same_memory() {
    let mut chain = parse(|d| {
        let (a, b) = (d.alloc(4), d.alloc(4));
        vec![Descriptor::writable(a, 4), Descriptor::writable(b, 4)]
    })
    .unwrap();
    let slices = chain.writable.slices();
    assert_eq!(slices.iter().map(VolatileSlice::len).sum::<usize>(), 8);
    slices[1].copy_from(b"done");
    drop(slices);
    let mut out = [0; 8];
    chain.writable.read_exact(&mut out).unwrap();
    assert_eq!(&out, b"\0\0\0\0done");
}

#[test]
fn a_buffer_over_two_adjoining_regions_is_one_buffer() {
    let mut chain = parse(|_| vec![Descriptor::writable(8 * MIB - 3, 6)]).unwrap();
    assert_eq!(chain.writable.slices().len(), 2);
    chain.writable.write_all(b"bridge").unwrap();
    assert!(chain.writable.is_empty());
}

#[test]
fn buffers_outside_memory_are_refused() {
    for (address, len) in [
        (LOW_END - 1, 2),
        (LOW_END, 1),
        (HIGH_START - 1, 2),
        (HIGH_START + MIB - 1, 2),
        (u64::MAX - 0xff, 512),
        (u64::MAX, 1),
        (0, u32::MAX),
    ] {
        for descriptor in [
            Descriptor::readable(address, len),
            Descriptor::writable(address, len),
        ] {
            let error = parse(|_| vec![descriptor]).unwrap_err().to_string();
            assert!(error.contains("not all in guest memory"), "{error}");
        }
    }
    // The last byte of each region is memory.
    for address in [LOW_END - 1, HIGH_START + MIB - 1] {
        assert_eq!(
            parse(|_| vec![Descriptor::readable(address, 1)])
                .unwrap()
                .readable
                .len(),
            1
        );
    }
}

#[test]
fn loops_and_indices_past_the_table_are_refused() {
    let link = |next| Descriptor {
        flags: NEXT,
        next,
        ..Descriptor::readable(0x10_0000, 1)
    };
    type Fill = Box<dyn Fn(&mut MockDriver)>;
    let cases: [Fill; 4] = [
        Box::new(move |d| d.set_descriptor(0, link(0))),
        Box::new(move |d| {
            d.set_descriptor(0, link(1));
            d.set_descriptor(1, link(0));
        }),
        Box::new(move |d| d.set_descriptor(0, link(16))),
        // A self-loop of huge buffers, whose sum would pass 32 bits.
        Box::new(move |d| {
            let huge = Descriptor {
                len: u32::MAX,
                ..link(0)
            };
            d.set_descriptor(0, huge);
        }),
    ];
    for fill in cases {
        assert!(parse_raw(fill).is_err());
    }
    // A chain as long as the table is fine.
    let whole = parse_raw(|d| {
        for i in 0..15 {
            d.set_descriptor(i, link(i + 1));
        }
        d.set_descriptor(15, Descriptor::readable(0x10_0000, 1));
    });
    assert_eq!(whole.unwrap().readable.len(), 16);
}

#[test]
fn a_readable_descriptor_after_a_writable_one_is_refused() {
    let error = parse(|d| {
        let at = d.alloc(8);
        vec![Descriptor::writable(at, 4), Descriptor::readable(at, 4)]
    });
    assert!(error.unwrap_err().to_string().contains("after a writable"));
}

#[test]
fn an_indirect_table_after_direct_descriptors_is_followed() {
    for flags in [0, WRITE] {
        let mut chain = parse(|d| {
            let header = d.put(b"head");
            let body = d.put(b"body");
            let answer = d.alloc(9);
            let mut table = d.indirect(&[
                Descriptor::readable(body, 4),
                Descriptor::writable(answer, 9),
            ]);
            table.flags |= flags;
            vec![Descriptor::readable(header, 4), table]
        })
        .unwrap();
        let mut out = [0; 8];
        chain.readable.read_exact(&mut out).unwrap();
        assert_eq!(&out, b"headbody");
        assert_eq!(chain.writable.len(), 9);
    }
}

#[test]
fn malformed_indirect_tables_are_refused() {
    let one = |d: &mut MockDriver| Descriptor::readable(d.put(b"x"), 1);
    let nested = parse(|d| {
        let inner = one(d);
        let inner = d.indirect(&[inner]);
        vec![d.indirect(&[inner])]
    });
    let empty = parse(|_| {
        vec![Descriptor {
            flags: INDIRECT,
            ..Descriptor::readable(0x10_0000, 0)
        }]
    });
    let ragged = parse(|d| {
        let inner = one(d);
        let table = d.indirect(&[inner, inner]);
        vec![Descriptor { len: 17, ..table }]
    });
    let outside = parse(|_| {
        vec![Descriptor {
            flags: INDIRECT,
            ..Descriptor::readable(LOW_END - 8, 16)
        }]
    });
    let too_long = parse(|d| {
        let one = one(d);
        vec![d.indirect(&vec![one; MAX_DESCRIPTORS + 1])]
    });
    let leaves = parse(|d| {
        let inner = one(d);
        let table = d.indirect(&[inner, inner]);
        vec![Descriptor { len: 16, ..table }]
    });
    let after_direct = parse(|d| {
        let direct = one(d);
        vec![
            direct,
            Descriptor {
                flags: INDIRECT,
                ..Descriptor::readable(0x10_0000, 0)
            },
        ]
    });
    for (name, result) in [
        ("nested", nested),
        ("empty", empty),
        ("ragged", ragged),
        ("outside", outside),
        ("too long", too_long),
        ("leaves", leaves),
        ("empty after direct", after_direct),
    ] {
        assert!(result.is_err(), "{name}");
    }
    let longest = parse(|d| {
        let one = one(d);
        vec![d.indirect(&vec![one; MAX_DESCRIPTORS])]
    });
    assert_eq!(longest.unwrap().readable.len(), MAX_DESCRIPTORS);
}
