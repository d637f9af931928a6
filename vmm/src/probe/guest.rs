//! The guest that the probe runs: a page of code in 64-bit supervisor mode that
//! executes, one by one, what every Linux kernel executes there.
//!
//! It tells the host over two debug ports what it is about to do ([`STEP_PORT`])
//! and what went wrong ([`FAULT_PORT`]), so a run that dies names its
//! instruction.

use vm_memory::{Bytes, GuestAddress as Gpa, GuestMemoryError};

use crate::memory::GuestMemory;

/// The guest writes the number of a [`STEPS`] entry here before it begins it.
pub(super) const STEP_PORT: u16 = 0x80;
/// The guest writes here the vector of an exception that it did not expect, or
/// [`WRONG_RESULT`].
pub(super) const FAULT_PORT: u16 = 0x81;
/// Written to [`FAULT_PORT`]: the instruction ran and did the wrong thing.
pub(super) const WRONG_RESULT: u8 = 0xff;

/// Bytes of guest memory, from address 0; one large page.
pub(super) const MEMORY: usize = 2 << 20;

const PML4: u64 = 0x1000;
const PDPT: u64 = 0x2000;
const PAGE_DIRECTORY: u64 = 0x3000;
const GDT: u64 = 0x4000;
const IDT: u64 = 0x5000;
const SCRATCH: u64 = 0x8000;
const CODE: u64 = 0x1_0000;
const STACK_TOP: u64 = 0x2_0000;

const CODE_SELECTOR: u16 = 0x08;
const DATA_SELECTOR: u16 = 0x10;

/// Page-table bits: present and writable; a 2 MiB page besides (Intel SDM
/// volume 3, §4.5).
const TABLE: u64 = 0b11;
const LARGE_PAGE: u64 = 0b11 | 1 << 7;

/// Exceptions 0–31 and the timer's vector.
const VECTORS: usize = 33;
const BREAKPOINT: usize = 3;
const PAGE_FAULT: usize = 14;
const TIMER: usize = 32;
/// Bytes between two entries of the table of stubs for unexpected exceptions.
const STUB: u64 = 8;

/// The names of the steps, in the order in which the guest takes them.
pub(super) const STEPS: [&str; 13] = [
    "plain arithmetic",
    "cpuid",
    "rdmsr and wrmsr",
    "a page fault and its handler",
    "int3 and iretq",
    "popcnt",
    "cmpxchg16b",
    "fwait",
    "xsetbv",
    "xsave",
    "xrstor",
    "an interrupt of the local APIC's timer",
    "(the end)",
];
/// The step whose duration tells how fast supervisor mode runs.
pub(super) const SPIN_STEP: u8 = 0;
/// Instructions that [`SPIN_STEP`] executes.
pub(super) const SPIN_INSTRUCTIONS: u64 = 2 * SPIN_ROUNDS;
const SPIN_ROUNDS: u64 = 50_000;
/// Written to [`STEP_PORT`] when all steps are done.
pub(super) const DONE: u8 = STEPS.len() as u8 - 1;

// Position-independent, never executed on the host, hence in read-only data.
// r12 holds CPUID leaf 1 ECX: what the CPU does not announce, Linux does not
// use, so it is not tried. r13 counts breakpoints, r14 timer interrupts.
core::arch::global_asm!(
    r#"
    .pushsection .rodata.coppice_probe_guest, "a", @progbits
    .balign 16
    .globl coppice_probe_guest, coppice_probe_guest_breakpoint
    .globl coppice_probe_guest_page_fault, coppice_probe_guest_timer
    .globl coppice_probe_guest_stubs, coppice_probe_guest_end
    .hidden coppice_probe_guest, coppice_probe_guest_breakpoint
    .hidden coppice_probe_guest_page_fault, coppice_probe_guest_timer
    .hidden coppice_probe_guest_stubs, coppice_probe_guest_end

    .macro coppice_probe_step number
        mov al, \number
        out {STEP_PORT}, al
    .endm

    coppice_probe_guest:
        coppice_probe_step 0
        mov ecx, {SPIN_ROUNDS}
    2:  dec ecx
        jnz 2b

        coppice_probe_step 1
        mov eax, 1
        xor ecx, ecx
        cpuid
        mov r12d, ecx

        coppice_probe_step 2
        mov ecx, 0xc0000102         // IA32_KERNEL_GS_BASE
        mov eax, 0x5a5a5a5a
        xor edx, edx
        wrmsr
        xor eax, eax
        rdmsr
        cmp eax, 0x5a5a5a5a
        jne 9f

        coppice_probe_step 3        // the handler maps address 2 MiB to 0
        mov rax, [{CODE} + {MEMORY}]
        cmp rax, [{CODE}]
        jne 9f

        coppice_probe_step 4
        xor r13d, r13d
        int3
        cmp r13d, 1
        jne 9f

        bt r12d, 23
        jnc 2f
        coppice_probe_step 5
        mov eax, 0xff00ff
        popcnt eax, eax
        cmp eax, 16
        jne 9f

    2:  bt r12d, 13
        jnc 2f
        coppice_probe_step 6
        xor eax, eax
        xor edx, edx
        mov ebx, 1
        mov ecx, 2
        lock cmpxchg16b [{SCRATCH}]
        jnz 9f
        cmp qword ptr [{SCRATCH} + 8], 2
        jne 9f

    2:  coppice_probe_step 7
        fninit
        fwait

        bt r12d, 26
        jnc 2f
        coppice_probe_step 8
        mov rax, cr4
        or rax, 1 << 18             // OSXSAVE
        mov cr4, rax
        xor ecx, ecx
        xor edx, edx
        mov eax, 3                  // XCR0: x87 and SSE
        xsetbv
        coppice_probe_step 9
        mov eax, 3
        xsave [{SCRATCH} + 0x1000]
        coppice_probe_step 10
        mov eax, 3
        xrstor [{SCRATCH} + 0x1000]

    2:  coppice_probe_step 11
        mov ecx, 0x1b               // IA32_APIC_BASE: on, x2APIC mode
        rdmsr
        or eax, 0xc00
        wrmsr
        xor edx, edx
        mov ecx, 0x80f              // spurious vector register: software enable
        mov eax, 0x1ff
        wrmsr
        mov ecx, 0x83e              // divide by one
        mov eax, 0xb
        wrmsr
        mov ecx, 0x832              // one shot, vector {TIMER}
        mov eax, {TIMER}
        wrmsr
        xor r14d, r14d
        mov ecx, 0x838              // initial count: it runs
        mov eax, 0x10000
        wrmsr
    2:  cli
        test r14d, r14d
        jnz 2f
        sti
        hlt
        jmp 2b

    2:  coppice_probe_step {DONE}
        hlt

    9:  mov al, {WRONG_RESULT}
        out {FAULT_PORT}, al
        hlt

    coppice_probe_guest_breakpoint:
        inc r13d
        iretq

    coppice_probe_guest_page_fault:
        mov rax, cr2
        cmp rax, {CODE} + {MEMORY}
        jne 2f
        mov qword ptr [{PAGE_DIRECTORY} + 8], {LARGE_PAGE}
        add rsp, 8                  // the error code
        iretq
    2:  mov al, {PAGE_FAULT}
        out {FAULT_PORT}, al
        hlt

    coppice_probe_guest_timer:
        inc r14d
        xor eax, eax
        xor edx, edx
        mov ecx, 0x80b              // end of interrupt
        wrmsr
        iretq

        .balign {STUB}
    coppice_probe_guest_stubs:
        .irp vector, 0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22,23,24,25,26,27,28,29,30,31,32
        .balign {STUB}
        mov al, \vector
        out {FAULT_PORT}, al
        hlt
        .endr
    coppice_probe_guest_end:

    .purgem coppice_probe_step
    .popsection
    "#,
    STEP_PORT = const STEP_PORT,
    FAULT_PORT = const FAULT_PORT,
    WRONG_RESULT = const WRONG_RESULT,
    SPIN_ROUNDS = const SPIN_ROUNDS,
    CODE = const CODE,
    MEMORY = const MEMORY,
    SCRATCH = const SCRATCH,
    PAGE_DIRECTORY = const PAGE_DIRECTORY,
    LARGE_PAGE = const LARGE_PAGE,
    PAGE_FAULT = const PAGE_FAULT,
    TIMER = const TIMER,
    STUB = const STUB,
    DONE = const DONE,
);

unsafe extern "C" {
    static coppice_probe_guest: u8;
    static coppice_probe_guest_breakpoint: u8;
    static coppice_probe_guest_page_fault: u8;
    static coppice_probe_guest_timer: u8;
    static coppice_probe_guest_stubs: u8;
    static coppice_probe_guest_end: u8;
}

/// Where `label` of the guest's code lies in guest memory.
fn loaded(label: *const u8) -> u64 {
    CODE + (label.addr() - (&raw const coppice_probe_guest).addr()) as u64
}

fn code() -> &'static [u8] {
    let start = &raw const coppice_probe_guest;
    let end = &raw const coppice_probe_guest_end;
    // SAFETY: both labels stand in one read-only section of this program, the
    // second after the first, with only initialised bytes between them that
    // nothing ever writes.
    unsafe { std::slice::from_raw_parts(start, end.addr() - start.addr()) }
}

/// Writes the code and the tables that 64-bit mode needs into `memory`.
pub(super) fn load(memory: &GuestMemory) -> Result<(), GuestMemoryError> {
    memory.write_slice(code(), Gpa(CODE))?;

    memory.write_obj(PDPT | TABLE, Gpa(PML4))?;
    memory.write_obj(PAGE_DIRECTORY | TABLE, Gpa(PDPT))?;
    memory.write_obj(LARGE_PAGE, Gpa(PAGE_DIRECTORY))?;

    // 64-bit code and writable data, ring 0 (Intel SDM volume 3, §3.4.5).
    memory.write_obj(0x00af_9b00_0000_ffff_u64, Gpa(GDT + CODE_SELECTOR as u64))?;
    memory.write_obj(0x00cf_9300_0000_ffff_u64, Gpa(GDT + DATA_SELECTOR as u64))?;

    for vector in 0..VECTORS {
        let handler = match vector {
            BREAKPOINT => loaded(&raw const coppice_probe_guest_breakpoint),
            PAGE_FAULT => loaded(&raw const coppice_probe_guest_page_fault),
            TIMER => loaded(&raw const coppice_probe_guest_timer),
            other => loaded(&raw const coppice_probe_guest_stubs) + other as u64 * STUB,
        };
        memory.write_obj(interrupt_gate(handler), Gpa(IDT + vector as u64 * 16))?;
    }
    Ok(())
}

/// A present 64-bit interrupt gate to `handler` (Intel SDM volume 3, §6.14.1).
fn interrupt_gate(handler: u64) -> u128 {
    let low = handler & 0xffff
        | u64::from(CODE_SELECTOR) << 16
        | 0x8e00 << 32
        | (handler >> 16 & 0xffff) << 48;
    u128::from(low) | u128::from(handler >> 32) << 64
}

/// Sets the system registers to 64-bit supervisor mode over [`load`]'s tables.
pub(super) fn set_system_registers(sregs: &mut kvm_bindings::kvm_sregs) {
    let data = kvm_bindings::kvm_segment {
        limit: 0xffff_ffff,
        selector: DATA_SELECTOR,
        type_: 0b0011,
        present: 1,
        s: 1,
        db: 1,
        g: 1,
        ..Default::default()
    };
    sregs.cs = kvm_bindings::kvm_segment {
        selector: CODE_SELECTOR,
        type_: 0b1011,
        db: 0,
        l: 1,
        ..data
    };
    (sregs.ds, sregs.es, sregs.fs, sregs.gs, sregs.ss) = (data, data, data, data, data);
    sregs.gdt.base = GDT;
    sregs.gdt.limit = 0x17;
    sregs.idt.base = IDT;
    sregs.idt.limit = (VECTORS * 16 - 1) as u16;
    sregs.cr0 = 1 << 31 | 1 << 16 | 1 << 5 | 1 << 1 | 1; // PG, WP, NE, MP, PE
    sregs.cr3 = PML4;
    sregs.cr4 = 1 << 5 | 1 << 9 | 1 << 10; // PAE, OSFXSR, OSXMMEXCPT
    sregs.efer = 1 << 8 | 1 << 10; // LME, LMA
}

/// Sets the general registers to the guest's first instruction.
pub(super) fn set_registers(regs: &mut kvm_bindings::kvm_regs) {
    regs.rip = CODE;
    regs.rsp = STACK_TOP;
    regs.rflags = 2; // the bit that is always one
}
