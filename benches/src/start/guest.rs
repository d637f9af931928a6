//! A guest that writes `x` to the serial port and then only halts.

/// Where the guest is loaded and entered.
const ENTRY: u64 = 16 << 20;

/// `mov dx, 0x3f8; mov al, 'x'; out dx, al`, then `hlt` for ever, for 64-bit mode.
const LONG_MODE: [u8; 12] = [
    0x66, 0xba, 0xf8, 0x03, 0xb0, b'x', 0xee, 0xf4, 0xeb, 0xfd, 0x90, 0x90,
];
/// The same for real mode.
pub const REAL_MODE: [u8; 9] = [0xba, 0xf8, 0x03, 0xb0, b'x', 0xee, 0xf4, 0xeb, 0xfd];

/// The guest as an ELF file of one segment (ELF-64 object file format).
pub fn elf() -> Vec<u8> {
    const HEADERS: u64 = 64 + 56;
    let len = LONG_MODE.len() as u64;
    let mut elf = b"\x7fELF\x02\x01\x01".to_vec();
    elf.resize(16, 0);
    let mut push = |bytes: &[u8]| elf.extend_from_slice(bytes);
    push(&2u16.to_le_bytes()); // an executable
    push(&62u16.to_le_bytes()); // for x86-64
    push(&1u32.to_le_bytes());
    push(&ENTRY.to_le_bytes());
    push(&64u64.to_le_bytes()); // program headers follow this header
    push(&0u64.to_le_bytes()); // no section headers
    push(&0u32.to_le_bytes());
    for field in [64u16, 56, 1, 0, 0, 0] {
        push(&field.to_le_bytes());
    }
    push(&1u32.to_le_bytes()); // a segment to load
    push(&5u32.to_le_bytes()); // readable, executable
    for field in [HEADERS, ENTRY, ENTRY, len, len, 4096] {
        push(&field.to_le_bytes());
    }
    push(&LONG_MODE);
    elf
}
