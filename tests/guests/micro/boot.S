/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * boot.S - micro guest: from multiboot (or SIPI) to ring 3 in about 50 instructions
 */
/**
 * DOC: Theory of Operation
 *
 * Purpose      bring every CPU into ring 3, long mode, IOPL 3, interrupts off. All that can be
 *              done in ring 3 is done there, in C: some KVM hosts (nested ones) run ring 3
 *              natively and emulate ring 0, slowly and not completely.
 *
 * Picture      BSP: _start ----.
 *                              v
 *              AP: 0x8000 -> ap32 -> enter -> long64 -> iretq -> micro_entry(cpu), ring 3
 *
 *              cpu is a ticket taken at "enter": the BSP takes 0, the APs 1, 2, ...
 *
 * Limits       the image is small, its zeros included: loading it is ring 0 work of the firmware,
 *              0.4 MB/s on such a host. What is large is taken from free RAM (platform.c).
 *
 * Ownership    the page tables, GDT, TSS and IDT lie in memory that ring 3 may write:
 *              platform.c completes them there (more RAM, exception gates).
 */
    .set MAX_CPUS, 16           /* the same number in micro.h */
    .set STACK_BYTES, 12288     /* the same number in micro.h; the lowest KSTACK are ring 0's */
    .set KSTACK_BYTES, 2048
    .set TSS_BYTES, 104 + 168   /* with an I/O bitmap: ports 0..0x527 */
    .set AP_PAGE, 0x8000        /* SIPI vector 8; platform.c copies ap_start there */

    .set MB_MAGIC, 0x1badb002
    .set MB_FLAGS, 0x00000002   /* we want the memory map */

    .section .multiboot, "a"
    .align 4
    .long MB_MAGIC, MB_FLAGS, -(MB_MAGIC + MB_FLAGS)

    .text
    .code32
    .globl _start
_start:
    cli
    movl %eax, boot_magic
    movl %ebx, boot_info
enter:
    movl $1, %edi
    lock xaddl %edi, cpu_ticket
    cmpl $MAX_CPUS, %edi
    jae park
    movl $pml4, %eax
    movl %eax, %cr3
    movl %cr4, %eax
    orl $0x20, %eax             /* PAE */
    movl %eax, %cr4
    movl $0xc0000080, %ecx      /* EFER */
    rdmsr
    orl $0x100, %eax            /* LME */
    wrmsr
    movl %cr0, %eax
    andl $~0x60000000, %eax     /* an AP starts with caches disabled */
    orl $0x80000001, %eax       /* PG, PE */
    movl %eax, %cr0
    lgdt gdtr
    ljmp $0x08, $long64
park:
    cli
    hlt
    jmp park

    .code64
long64:                         /* edi = cpu */
    movl $0x10, %eax
    movw %ax, %ds
    movw %ax, %es
    movw %ax, %ss
    movl $bsp_stack, %ebx
    testl %edi, %edi
    jz 1f
    imull $STACK_BYTES, %edi, %ebx
    addl ap_stacks, %ebx
    subl $STACK_BYTES, %ebx
1:  /* rbx = this CPU's stacks, rdx = its TSS descriptor, rsi = its TSS */
    movl %edi, %ecx
    shll $4, %ecx
    leaq gdt_tss(%rcx), %rdx
    imull $TSS_BYTES, %edi, %esi
    addl $tss, %esi
    leaq KSTACK_BYTES(%rbx), %rsp
    movq %rsp, 4(%rsi)          /* RSP0 */
    /* IOPL 3 would do, but a KVM that emulates ring 0 may lose it: allow the ports here too */
    movw $104, 102(%rsi)
    movb $0xff, TSS_BYTES - 1(%rsi)
    movw $TSS_BYTES - 1, (%rdx)
    movw %si, 2(%rdx)
    movl %esi, %eax
    shrl $16, %eax
    movb %al, 4(%rdx)
    movb $0x89, 5(%rdx)
    movb %ah, 7(%rdx)
    leal 0x30(%rcx), %eax
    ltr %ax
    lidt idtr
    leaq STACK_BYTES - 8(%rbx), %rax
    pushq $0x1b                 /* ss */
    pushq %rax                  /* rsp, as after a call */
    pushq $0x3002               /* rflags: IOPL 3, IF 0 */
    pushq $0x23                 /* cs */
    movl $micro_entry, %eax
    pushq %rax
    iretq

/* exceptions: all fatal; the frame goes to micro_panic() in ring 0 */
    .globl exception_stubs
    .align 16
exception_stubs:
    .set vec, 0
    .rept 32
    .align 16
    .if !((vec == 8) || ((vec >= 10) && (vec <= 14)) || (vec == 17) || (vec == 21))
    pushq $0
    .endif
    pushq $vec
    jmp exception
    .set vec, vec + 1
    .endr
exception:
    movq %rsp, %rdi
    movq %cr2, %rsi
    andq $~15, %rsp
    call micro_panic
1:  cli
    hlt
    jmp 1b

/* copied to AP_PAGE; runs in real mode */
    .code16
    .globl ap_start, ap_end
ap_start:
    cli
    xorw %ax, %ax
    movw %ax, %ds
    lgdtl AP_PAGE + (ap_gdtr - ap_start)
    movl %cr0, %eax
    orl $1, %eax
    movl %eax, %cr0
    ljmpl $0x28, $ap32
ap_gdtr:
    .word gdt_end - gdt - 1
    .long gdt
ap_end:

    .code32
ap32:
    movl $0x10, %eax
    movw %ax, %ds
    movw %ax, %es
    movw %ax, %ss
    jmp enter

    .data
    .globl boot_magic, boot_info, cpu_ticket, ap_stacks
boot_magic: .long 0
boot_info:  .long 0
cpu_ticket: .long 0
ap_stacks:  .long 0             /* of CPU 1, then of CPU 2, ... */
    .align 16
gdt:
    .quad 0
    .quad 0x00af9a000000ffff    /* 08 ring 0 code, 64 bit */
    .quad 0x00cf92000000ffff    /* 10 ring 0 data */
    .quad 0x00cff2000000ffff    /* 18 ring 3 data */
    .quad 0x00affa000000ffff    /* 20 ring 3 code, 64 bit */
    .quad 0x00cf9a000000ffff    /* 28 ring 0 code, 32 bit: the AP's first steps */
gdt_tss:
    .fill 2 * MAX_CPUS, 8, 0    /* 30, 40, ...: one TSS a CPU */
gdt_end:
gdtr:
    .word gdt_end - gdt - 1
    .quad gdt
idtr:
    .word 32 * 16 - 1
    .quad idt

/* identity map of the first GiB; platform.c adds the rest to pdpt */
    .globl pdpt
    .align 4096
pml4:
    .quad pdpt + 7
    .fill 511, 8, 0
pdpt:
    .quad pd0 + 7
    .fill 511, 8, 0
pd0:
    .set addr, 0
    .rept 512
    .quad addr + 0x87           /* present, writable, user, 2 MiB */
    .set addr, addr + 0x200000
    .endr

    .bss
    .globl idt
    .align 16
idt:        .skip 32 * 16
tss:        .skip TSS_BYTES * MAX_CPUS
    .align 16
bsp_stack:  .skip STACK_BYTES
    .section .note.GNU-stack, "", @progbits
