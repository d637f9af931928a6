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
const DATA: u64 = 0x100_0000;
/// Turns of waiting between rounds.
const PAUSES: u32 = 20_000;
/// Where the devices' windows begin and memory goes on behind them.
const GAP: (u64, u64) = (0xd000_0000, 0x1_0000_0000);

/// Pages that lie together: the address of the first, and how many.
type Run = (u64, u32);

/// The kernel file of a guest with these pages.
fn kernel(runs: &[Run]) -> Vec<u8> {
    let code = code(runs);
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

/// Its instructions, entered in 64-bit mode with the first 4 GiB mapped one to one
/// by page tables that begin at 0x9000.
fn code(runs: &[Run]) -> Vec<u8> {
    let mut code = Vec::new();
    // Two more megabytes: an entry for the fifth gigabyte, and a table of one page.
    for (at, entry) in [(0xa020_u32, 0x30_0003), (0x30_0000, GAP.1 | 0x83)] {
        code.extend([0x48, 0xb8]); // mov rax, entry
        code.extend(u64::to_le_bytes(entry));
        code.extend([0x48, 0x89, 0x04, 0x25]); // mov [at], rax
        code.extend(at.to_le_bytes());
    }
    code.extend([0x31, 0xdb]); // xor ebx, ebx: the number of the round
    let round = code.len();
    let mut to_lost = Vec::new();
    for (start, pages) in runs {
        code.extend([0x48, 0xbf]); // mov rdi, start
        code.extend(start.to_le_bytes());
        code.push(0xb9); // mov ecx, pages
        code.extend(pages.to_le_bytes());
        let page = code.len();
        code.extend([0x48, 0x39, 0x1f]); // cmp [rdi], rbx
        code.extend([0x0f, 0x85, 0, 0, 0, 0]); // jne lost
        to_lost.push(code.len());
        code.extend([0x48, 0x8d, 0x43, 0x01]); // lea rax, [rbx + 1]
        code.extend([0x48, 0x89, 0x07]); // mov [rdi], rax
        code.extend([0x48, 0x81, 0xc7, 0x00, 0x10, 0x00, 0x00]); // add rdi, 4096
        code.extend([0xff, 0xc9]); // dec ecx
        jump(&mut code, 0x75, page); // jnz page
    }
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
    let back = code.len() + 5 - round;
    code.push(0xe9); // jmp round
    code.extend(0_u32.wrapping_sub(back as u32).to_le_bytes());
    for from in to_lost {
        let distance = (code.len() - from) as u32;
        code[from - 4..from].copy_from_slice(&distance.to_le_bytes());
    }
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
        Self::of_runs(&[(DATA, pages)])
    }

    /// The same with memory on both sides of the devices' windows, and `pages`
    /// pages in the middle, at the end below and at the beginning above, 512 at
    /// most.
    pub fn bare_around_the_gap(pages: u32) -> Self {
        let end = GAP.0 - u64::from(pages) * 4096;
        let guest = Self::of_runs(&[(DATA, pages), (end, pages), (GAP.1, pages)]);
        guest.memory_mib((GAP.0 >> 20) + 2)
    }

    fn of_runs(runs: &[Run]) -> Self {
        let guest = Self::without_linux();
        std::fs::write(guest.path("kernel"), kernel(runs)).expect("a file can be written");
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
