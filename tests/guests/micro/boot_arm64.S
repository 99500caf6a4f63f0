/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * boot_arm64.S - micro guest on an ARM machine of QEMU's (virt): a stack, vectors, and micro_entry()
 *
 * QEMU starts the first CPU at _start, in EL1 without MMU; platform_arm64.c starts the others at start_other,
 * with their number in x0.
 */
    .set STACK_BYTES, 12288     /* the same number in micro.h */

    .section .text.first, "ax"
    .globl _start, start_other
_start:
    mov x0, xzr
    adrp x1, first_stack
    add x1, x1, :lo12:first_stack
    b 1f
start_other:
    adrp x1, ap_stacks
    ldr x1, [x1, :lo12:ap_stacks]
    mov x2, #STACK_BYTES
    madd x1, x0, x2, x1         /* CPU 1 has the first one: its end is the stack's beginning */
    b 2f
1:  add x1, x1, #STACK_BYTES
2:  mov sp, x1
    adrp x2, vectors
    add x2, x2, :lo12:vectors
    msr vbar_el1, x2
    isb
    bl micro_entry
3:  wfe
    b 3b

/* exceptions: all fatal */
    .balign 2048
vectors:
    .rept 16
    mrs x0, esr_el1
    mrs x1, elr_el1
    mrs x2, far_el1
    b micro_panic
    .balign 128
    .endr

    .data
    .balign 8
    .globl ap_stacks
ap_stacks:
    .quad 0                     /* of CPU 1, then of CPU 2, ... */

    .bss
    .balign 16
first_stack:
    .skip STACK_BYTES
