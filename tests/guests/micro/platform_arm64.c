/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * platform_arm64.c - micro guest: the machine virt of qemu-system-aarch64 around it
 */
/**
 * DOC: Theory of Operation
 *
 * Purpose      memory map, command line and number of CPUs from the device tree; the others' start; the first
 *              serial port, whose output is what the PC's debug console is.
 * Limits       No MMU: all memory is as a device's, where an access has to be aligned. 8 CPUs: their
 *              affinities are 0, 1, ... up to there.
 * Sources      Devicetree Specification 0.4, 5; Arm DEN 0022 (PSCI), 5.1.4; hw/arm/virt.c of QEMU
 */
#include "micro.h"

enum { FDT_MAGIC = 0xd00dfeed, FDT_NODE = 1, FDT_NODE_END = 2, FDT_PROPERTY = 3, FDT_NOP = 4 };

static const uint64_t TREE = 0x40000000, UART = 0x09000000, CPU_ON = 0xc4000003;
static const uint32_t CPUS_MAX = 8;

struct fdt {
    const uint8_t *words, *strings;
    const char *node; /* the name of the innermost one */
};

/* boot_arm64.S, micro_arm64.ld */
extern uint64_t ap_stacks;
extern char start_other[], image_end[];

void micro_panic(uint64_t esr, uint64_t elr, uint64_t far);
void *memcpy(void *to, const void *from, size_t len);
void *memset(void *to, int byte, size_t len);

/* The compiler may call these two. */
void *memcpy(void *to, const void *from, size_t len)
{
    for (size_t i = 0; i < len; i++) {
        ((volatile uint8_t *)to)[i] = ((const uint8_t *)from)[i];
    }
    return to;
}

void *memset(void *to, int byte, size_t len)
{
    for (size_t i = 0; i < len; i++) {
        ((volatile uint8_t *)to)[i] = (uint8_t)byte;
    }
    return to;
}

void platform_print(const char *text, size_t len_bytes)
{
    for (size_t i = 0; i < len_bytes; i++) {
        *(volatile uint32_t *)(uintptr_t)UART = (uint8_t)text[i];
    }
}

void platform_halt(void)
{
    for (;;) {
        pause_cpu();
    }
}

void micro_panic(uint64_t esr, uint64_t elr, uint64_t far)
{
    static char text[64];
    const uint64_t all[3] = { esr, elr, far };
    char *p = text;

    for (int i = 0; i < 3; i++) {
        for (int shift = 60; shift >= 0; shift -= 4) {
            *p++ = "0123456789abcdef"[all[i] >> shift & 15];
        }
        *p++ = ' ';
    }
    report_error("exception: ESR, ELR, FAR", text);
}

/* --- device tree --- */

static uint32_t be32(const uint8_t *p)
{
    return (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | p[3];
}

static uint64_t be64(const uint8_t *p)
{
    return (uint64_t)be32(p) << 32 | be32(p + 4);
}

static bool begins(const char *text, const char *with)
{
    while (*with && *text == *with) {
        text++;
        with++;
    }
    return !*with;
}

static void on_property(const struct fdt *t, const char *name, const uint8_t *value, uint32_t len)
{
    if (begins(t->node, "chosen") && begins(name, "bootargs")) {
        machine.cmdline[0] = '-'; /* the name of the kernel, which a PC has first */
        machine.cmdline[1] = ' ';
        for (uint32_t i = 0; i < len && i + 3 < sizeof(machine.cmdline); i++) {
            machine.cmdline[i + 2] = (char)value[i];
        }
    }
    if (begins(t->node, "memory@") && begins(name, "reg") && len >= 16 && machine.nsegments < MAX_SEGMENTS) {
        struct segment *s = &machine.segments[machine.nsegments++];

        s->gpa = be64(value);
        s->pages = be64(value + 8) / PAGE_BYTES;
        machine.ram_bytes += be64(value + 8);
    }
}

static void read_tree(void)
{
    const uint8_t *tree = (const uint8_t *)(uintptr_t)TREE;
    struct fdt t = { tree + be32(tree + 8), tree + be32(tree + 12), "" };
    const uint8_t *p = t.words;

    if (be32(tree) != FDT_MAGIC) {
        report_error("no device tree at the start of RAM", "");
    }
    for (;;) {
        uint32_t token = be32(p), len;

        p += 4;
        if (token == FDT_NODE) {
            t.node = (const char *)p;
            machine.ncpu += begins(t.node, "cpu@");
            for (len = 1; t.node[len - 1]; len++) {
            }
            p += (len + 3) & ~3u;
        } else if (token == FDT_PROPERTY) {
            len = be32(p);
            on_property(&t, (const char *)t.strings + be32(p + 4), p + 8, len);
            p += 8 + ((len + 3) & ~3u);
        } else if (token != FDT_NODE_END && token != FDT_NOP) {
            return;
        }
    }
}

/* --- begin --- */

void platform_init(void)
{
    *(volatile uint32_t *)(uintptr_t)(UART + 0x30) = 0x301; /* enabled, and transmits */
    read_tree();
}

static int64_t start_cpu(uint64_t id)
{
    register uint64_t x0 __asm__("x0") = CPU_ON;
    register uint64_t x1 __asm__("x1") = id;
    register uint64_t x2 __asm__("x2") = (uintptr_t)start_other;
    register uint64_t x3 __asm__("x3") = id;

    __asm__ volatile("hvc #0" : "+r"(x0), "+r"(x1), "+r"(x2), "+r"(x3) : : "memory");
    return (int64_t)x0;
}

/**
 * platform_start_cpus() - divide the RAM, start the other CPUs
 *
 * Needs the options. On return machine is complete; the others come to micro_entry().
 */
void platform_start_cpus(void)
{
    uint64_t hz;

    __asm__ volatile("mrs %0, cntfrq_el0" : "=r"(hz));
    machine.tsc_khz = machine.opt.tsc_khz ? machine.opt.tsc_khz : hz / 1000;
    machine.clock = "cntfrq";
    machine.tsc_boot = rdtsc();
    if (machine.ncpu < 1 || machine.ncpu > CPUS_MAX) {
        report_error("no CPU in the device tree, or more than this guest knows", "use -smp 8 or less");
    }
    ram_begin((uintptr_t)image_end);
    cpus = ram_take(machine.ncpu * sizeof(*cpus));
    report_init();
    ap_stacks = (uintptr_t)ram_take(machine.ncpu * STACK_BYTES);
    ram_divide(NULL);
    for (uint32_t id = 1; id < machine.ncpu; id++) {
        if (start_cpu(id)) {
            report_error("a CPU does not start", "");
        }
    }
}
