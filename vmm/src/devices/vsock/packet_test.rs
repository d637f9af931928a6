use super::*;

/// The layout of virtio 1.2 §5.10.6, each byte its own position.
#[test]
fn fields_lie_where_the_specification_puts_them() {
    let bytes: [u8; HEADER_LEN] = std::array::from_fn(|at| at as u8);
    let header = Header::parse(&bytes);
    assert_eq!(header.src_cid, 0x0706_0504_0302_0100);
    assert_eq!(header.dst_cid, 0x0f0e_0d0c_0b0a_0908);
    assert_eq!(header.src_port, 0x1312_1110);
    assert_eq!(header.dst_port, 0x1716_1514);
    assert_eq!(header.len, 0x1b1a_1918);
    assert_eq!(header.kind, 0x1d1c);
    assert_eq!(header.op, 0x1f1e);
    assert_eq!(header.flags, 0x2322_2120);
    assert_eq!(header.buf_alloc, 0x2726_2524);
    assert_eq!(header.fwd_cnt, 0x2b2a_2928);
    assert_eq!(header.to_bytes(), bytes);
}

#[test]
fn operations_keep_their_numbers() {
    for number in 1..=7 {
        assert_eq!(Op::from_wire(number).map(|op| op as u16), Some(number));
    }
    assert_eq!(Op::from_wire(0), None);
    assert_eq!(Op::from_wire(8), None);
}
