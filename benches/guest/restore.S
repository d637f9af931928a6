# A guest for measuring, entered in 64-bit mode with the low memory mapped one to
# one. It touches TOUCH pages from DATA on, and then, for ever, writes to WINDOW
# pages, STRIDE bytes apart, and MARK to the serial port. The window moves on with
# each round until END, and begins again.
#
# It needs nothing but a handful of instructions, so that it also runs where KVM
# has to emulate supervisor mode.

    .set DATA, 0x1000000
    .set MARK, 0xb5
    .globl _start
    .section .text
    .code64
_start:
    xor %ebx, %ebx              # the number of the round
    mov $DATA, %edi
    mov $TOUCH, %ecx
1:  inc %rbx
    mov %rbx, (%rdi)
    add $4096, %rdi
    dec %ecx
    jnz 1b

    mov $DATA, %edi
round:
    inc %rbx
    mov $WINDOW, %ecx
    test %ecx, %ecx
    jz mark
2:  mov %rbx, (%rdi)
    add $STRIDE, %rdi
    dec %ecx
    jnz 2b
    cmp $END, %rdi
    jb mark
    mov $DATA, %edi
mark:
    mov $0x3f8, %edx
    mov $MARK, %al
    out %al, %dx
    mov $PAUSES, %ecx
3:  pause
    dec %ecx
    jnz 3b
    jmp round
