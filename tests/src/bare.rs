//! A guest of a few instructions: it runs on any KVM, also where Linux does not,
//! and starts at once.
//!
//! It goes through its pages again and again, finds in each the number of the
//! round before and writes that of this round. A page that has not kept what was
//! written to it is told by the mark [`LOST`]; a round is told by [`ROUND`]. Any
//! input on the serial port makes it reset the machine.

use crate::guest::Guest;
use crate::machine::Machine;

/// What the guest writes after each round.
pub const ROUND: char = '.';
/// What it writes, once, when a page is not what it was.
pub const LOST: char = 'X';

/// Where it is loaded.
const CODE: u32 = 0x20_0000;
/// Its first page.
const DATA: u32 = 0x100_0000;
/// Turns of waiting between rounds.
const PAUSES: u32 = 20_000;

/// The kernel file of a guest with so many pages.
pub(crate) fn kernel(pages: u32) -> Vec<u8> {
    let code = code(pages);
    let mut elf = Vec::new();
    elf.extend(*b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0");
    // An executable for x86-64, with one program header right behind this one.
    elf.extend([2, 0, 62, 0, 1, 0, 0, 0]);
    for word in [u64::from(CODE), 64, 0] {
        elf.extend(word.to_le_bytes());
    }
    elf.extend([0, 0, 0, 0, 64, 0, 56, 0, 1, 0, 0, 0, 0, 0, 0, 0]);
    // To be loaded, readable and executable.
    elf.extend([1, 0, 0, 0, 5, 0, 0, 0]);
    let (at, len) = (u64::from(CODE), code.len() as u64);
    for word in [0x1000, at, at, len, len, 0x1000] {
        elf.extend(word.to_le_bytes());
    }
    elf.resize(0x1000, 0);
    elf.extend(code);
    elf
}

/// Its instructions, entered in 64-bit mode with low memory mapped one to one.
fn code(pages: u32) -> Vec<u8> {
    let mut code = vec![0x31, 0xdb]; // xor ebx, ebx: the number of the round
    let round = code.len();
    code.push(0xbf); // mov edi, DATA
    code.extend(DATA.to_le_bytes());
    code.push(0xb9); // mov ecx, pages
    code.extend(pages.to_le_bytes());
    let page = code.len();
    code.extend([0x48, 0x39, 0x1f]); // cmp [rdi], rbx
    code.extend([0x75, 0]); // jne lost
    let to_lost = code.len();
    code.extend([0x48, 0x8d, 0x43, 0x01]); // lea rax, [rbx + 1]
    code.extend([0x48, 0x89, 0x07]); // mov [rdi], rax
    code.extend([0x48, 0x81, 0xc7, 0x00, 0x10, 0x00, 0x00]); // add rdi, 4096
    code.extend([0xff, 0xc9]); // dec ecx
    jump(&mut code, 0x75, page); // jnz page
    code.extend([0x48, 0xff, 0xc3]); // inc rbx
    code.extend([0xb0, ROUND as u8]); // mov al, ROUND
    code.extend([0xba, 0xf8, 0x03, 0x00, 0x00, 0xee]); // mov edx, 0x3f8; out dx, al
    code.extend([0xba, 0xfd, 0x03, 0x00, 0x00, 0xec]); // mov edx, 0x3fd; in al, dx
    code.extend([0xa8, 0x01]); // test al, 1: is there input?
    code.extend([0x74, 8]); // jz wait
    code.extend([0xba, 0x64, 0x00, 0x00, 0x00]); // mov edx, 0x64
    code.extend([0xb0, 0xfe, 0xee]); // mov al, 0xfe; out dx, al: reset
    code.push(0xb9); // wait: mov ecx, PAUSES
    code.extend(PAUSES.to_le_bytes());
    let wait = code.len();
    code.extend([0xf3, 0x90, 0xff, 0xc9]); // pause; dec ecx
    jump(&mut code, 0x75, wait); // jnz wait
    jump(&mut code, 0xeb, round); // jmp round
    code[to_lost - 1] = (code.len() - to_lost) as u8;
    code.extend([0xb0, LOST as u8]); // lost: mov al, LOST
    code.extend([0xba, 0xf8, 0x03, 0x00, 0x00, 0xee]); // mov edx, 0x3f8; out dx, al
    let end = code.len();
    code.extend([0xf3, 0x90]); // pause
    jump(&mut code, 0xeb, end);
    code
}

/// A short jump back to `target`.
fn jump(code: &mut Vec<u8>, opcode: u8, target: usize) {
    let distance = code.len() + 2 - target;
    code.extend([opcode, 0_u8.wrapping_sub(distance as u8)]);
}

impl Guest {
    /// A guest without Linux, which uses `pages` pages of its memory, 8192 at most:
    /// one vCPU, 48 MiB, a vsock device and a read-only drive in the file `disk`.
    pub fn bare(pages: u32) -> Self {
        let guest = Self::without_linux();
        std::fs::write(guest.path("kernel"), kernel(pages)).expect("a file can be written");
        guest
    }
}

impl Machine {
    /// Waits until the guest of [`Guest::bare`] has gone through all of its pages
    /// once more, and found each as it left it.
    pub fn goes_on(&self) {
        let rounds = |text: &str| text.matches(ROUND).count();
        let before = rounds(&self.console().text());
        self.console().wait("two more rounds", |text| {
            assert!(!text.contains(LOST), "a page of its memory is lost");
            (rounds(text) >= before + 2).then_some(())
        });
    }
}
