//! Registers and tables of a CPU that enters a kernel in 64-bit mode (Linux
//! boot protocol, `Documentation/arch/x86/boot.rst`, "64-bit boot protocol").

use kvm_bindings::{kvm_fpu, kvm_lapic_state, kvm_regs, kvm_segment, kvm_sregs};

use super::layout;
use crate::units::PAGE_SIZE;

/// 64-bit code, selector 0x10 (`__BOOT_CS`).
const CODE_SELECTOR: u16 = 0x10;
/// Flat data, selector 0x18 (`__BOOT_DS`).
const DATA_SELECTOR: u16 = 0x18;
/// The descriptor table: null, unused, code (execute/read, L=1), data
/// (read/write, G=1, D=1).
pub const GDT: [u64; 4] = [0, 0, 0x00af_9b00_0000_ffff, 0x00cf_9300_0000_ffff];

const CR0_PE: u64 = 1;
const CR0_ET: u64 = 1 << 4;
const CR0_PG: u64 = 1 << 31;
const CR4_PAE: u64 = 1 << 5;
const EFER_LME: u64 = 1 << 8;
const EFER_LMA: u64 = 1 << 10;

/// Pages of [`page_tables`], in bytes.
pub const PAGE_TABLES_LEN: u64 = 6 * PAGE_SIZE;

/// Page tables that map the first 4 GiB one to one in 2 MiB pages: the kernel,
/// boot parameters and command line lie in it wherever they are loaded.
pub fn page_tables() -> Vec<u64> {
    const PRESENT_WRITABLE: u64 = 0b11;
    const HUGE: u64 = 1 << 7;
    let entries = (PAGE_SIZE / 8) as usize;
    let base = layout::PAGE_TABLES.0;
    let mut tables = vec![0; 6 * entries];
    tables[0] = (base + PAGE_SIZE) | PRESENT_WRITABLE;
    for gib in 0..4 {
        tables[entries + gib] = (base + (2 + gib as u64) * PAGE_SIZE) | PRESENT_WRITABLE;
    }
    for (page, entry) in tables[2 * entries..].iter_mut().enumerate() {
        *entry = (page as u64) << 21 | PRESENT_WRITABLE | HUGE;
    }
    tables
}

/// Segments, control registers and tables for 64-bit mode, over what KVM gave.
pub fn enter_long_mode(sregs: &mut kvm_sregs) {
    let code = kvm_segment {
        base: 0,
        limit: u32::MAX,
        selector: CODE_SELECTOR,
        type_: 0xb,
        present: 1,
        dpl: 0,
        db: 0,
        s: 1,
        l: 1,
        g: 1,
        ..Default::default()
    };
    let data = kvm_segment {
        selector: DATA_SELECTOR,
        type_: 3,
        db: 1,
        l: 0,
        ..code
    };
    sregs.cs = code;
    (sregs.ds, sregs.es, sregs.fs, sregs.gs, sregs.ss) = (data, data, data, data, data);
    sregs.gdt.base = layout::GDT.0;
    sregs.gdt.limit = (size_of_val(&GDT) - 1) as u16;
    sregs.idt.base = layout::IDT.0;
    sregs.idt.limit = 7;
    sregs.cr0 = CR0_PE | CR0_ET | CR0_PG;
    sregs.cr3 = layout::PAGE_TABLES.0;
    sregs.cr4 = CR4_PAE;
    sregs.efer = EFER_LME | EFER_LMA;
}

/// General registers at the kernel's entry: RSI points to the boot parameters.
pub fn at_entry(entry: u64) -> kvm_regs {
    kvm_regs {
        rflags: 2, // bit 1 is always set
        rip: entry,
        rsp: layout::BOOT_STACK,
        rbp: layout::BOOT_STACK,
        rsi: layout::BOOT_PARAMS.0,
        ..Default::default()
    }
}

/// x87 and SSE state after `fninit` with all exceptions masked.
pub fn fpu() -> kvm_fpu {
    kvm_fpu {
        fcw: 0x37f,
        mxcsr: 0x1f80,
        ..Default::default()
    }
}

/// Wires LINT0 to the PIC (ExtINT) and LINT1 to NMI, as firmware does (Intel
/// MP specification 1.4, §3.6.2.2).
pub fn set_local_interrupts(lapic: &mut kvm_lapic_state) {
    const LVT_LINT0: usize = 0x350;
    const LVT_LINT1: usize = 0x360;
    const DELIVERY_NMI: u32 = 0b100;
    const DELIVERY_EXTINT: u32 = 0b111;
    for (register, delivery) in [(LVT_LINT0, DELIVERY_EXTINT), (LVT_LINT1, DELIVERY_NMI)] {
        let bytes: Vec<u8> = lapic.regs[register..register + 4]
            .iter()
            .map(|b| *b as u8)
            .collect();
        let old = u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
        let new = (old & !0x700) | delivery << 8;
        for (i, byte) in new.to_le_bytes().into_iter().enumerate() {
            lapic.regs[register + i] = byte as _;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Walks the tables as the MMU would.
    fn translate(tables: &[u64], address: u64) -> Option<u64> {
        let base = layout::PAGE_TABLES.0;
        let at = |entry: u64| ((entry & !0xfff) - base) as usize / 8;
        let pml4 = tables[(address >> 39 & 511) as usize];
        if pml4 & 1 == 0 {
            return None;
        }
        let pdpt = tables[at(pml4) + (address >> 30 & 511) as usize];
        if pdpt & 1 == 0 {
            return None;
        }
        let pd = tables[at(pdpt) + (address >> 21 & 511) as usize];
        assert_eq!(pd & 0x83, 0x83);
        Some((pd & !0x1f_ffff) | (address & 0x1f_ffff))
    }

    #[test]
    fn page_tables_map_four_gib_one_to_one() {
        let tables = page_tables();
        assert_eq!(tables.len() as u64 * 8, PAGE_TABLES_LEN);
        for address in [
            0,
            0x1234,
            0x20_0000,
            0x3fff_ffff,
            0x4000_0000,
            0xd012_3456,
            0xffff_ffff,
        ] {
            assert_eq!(translate(&tables, address), Some(address), "{address:#x}");
        }
        assert_eq!(translate(&tables, 0x1_0000_0000), None);
    }

    #[test]
    fn boot_data_does_not_overlap() {
        let pieces = [
            (layout::GDT.0, size_of_val(&GDT) as u64),
            (layout::IDT.0, 8),
            (layout::BOOT_PARAMS.0, PAGE_SIZE),
            (layout::PAGE_TABLES.0, PAGE_TABLES_LEN),
            (layout::COMMAND_LINE.0, layout::COMMAND_LINE_MAX as u64),
            (
                layout::MP_TABLE.0,
                layout::MP_TABLE_END.0 - layout::MP_TABLE.0,
            ),
        ];
        for pair in pieces.windows(2) {
            assert!(pair[0].0 + pair[0].1 <= pair[1].0, "{pair:x?}");
        }
    }

    #[test]
    fn local_interrupt_lines_are_extint_and_nmi() {
        let mut lapic = kvm_lapic_state::default();
        set_local_interrupts(&mut lapic);
        assert_eq!((lapic.regs[0x351], lapic.regs[0x361]), (7, 4));
    }
}
