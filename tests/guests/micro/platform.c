/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * platform.c - micro guest: the PC around it, driven from ring 3
 */
/**
 * DOC: Theory of Operation
 *
 * Purpose      memory map, page tables above 1 GiB, TSC rate, number of CPUs and their start,
 *              the debug console. All of it works in ring 3: IOPL is 3, and page tables, GDT and
 *              the local APIC are mapped for ring 3.
 *
 * Threads      the BSP alone, before the APs run; platform_print() needs the report lock then.
 *
 * Limits       TSC rate: 5 rounds of 10 ms on PIT channel 0, the median; about 0.1 %.
 *              APs: 10 ms after INIT, then at most 2 s until all have come.
 *
 * Sources      Multiboot Specification 0.6.96, 3.3; Intel SDM 3A, 8.4.4 (INIT, SIPI);
 *              QEMU docs/specs/fw_cfg.rst
 */
#include "micro.h"

enum {
    MB_LOADED = 0x2badb002,
    MB_HAS_CMDLINE = 1 << 2,
    MB_HAS_MMAP = 1 << 6,
    RAM_USABLE = 1,
    AP_PAGE = 0x8000, /* the same number in boot.S */
    PIT_HZ = 1193182,
    PIT_ROUNDS = 5,
    PIT_ROUND_TICKS = PIT_HZ / 100,
    FW_CFG_SIGNATURE = 0,
    FW_CFG_NB_CPUS = 5,
};

static const uint64_t GIB = 1ull << 30;
/* SeaBIOS works in up to 17 MiB below the end of the RAM under 4 GiB, and leaves it unclean. */
static const uint64_t FIRMWARE_BYTES = 18ull << 20;
static const uint64_t APIC_ICR = 0xfee00300;
static const uint64_t LARGE_USER_RW = 0x87, NO_CACHE = 0x18;

struct mb_info {
    uint32_t flags, mem_lower, mem_upper, boot_device, cmdline, mods_count, mods_addr, syms[4];
    uint32_t mmap_bytes, mmap_addr;
};

struct mb_range {
    uint32_t size; /* of what follows */
    uint64_t base, len;
    uint32_t type;
} __attribute__((packed));

struct frame {
    uint64_t vector, error, rip, cs, rflags, rsp, ss;
};

/* boot.S, micro.ld */
extern uint32_t boot_magic, boot_info, cpu_ticket, ap_stacks;
extern char ap_start[], ap_end[], exception_stubs[], image_end[];
extern uint64_t pdpt[512], idt[64];

void micro_panic(const struct frame *frame, uint64_t cr2);
void *memcpy(void *to, const void *from, size_t len);
void *memset(void *to, int byte, size_t len);

static uint64_t ram_end;

/* The compiler may call these two. */
void *memcpy(void *to, const void *from, size_t len)
{
    void *ret = to;

    __asm__ volatile("rep movsb" : "+D"(to), "+S"(from), "+c"(len) : : "memory");
    return ret;
}

void *memset(void *to, int byte, size_t len)
{
    void *ret = to;

    __asm__ volatile("rep stosb" : "+D"(to), "+c"(len) : "a"(byte) : "memory");
    return ret;
}

static void outb(uint16_t port, uint8_t value)
{
    __asm__ volatile("outb %0, %1" : : "a"(value), "Nd"(port));
}

static void outw(uint16_t port, uint16_t value)
{
    __asm__ volatile("outw %0, %1" : : "a"(value), "Nd"(port));
}

static uint8_t inb(uint16_t port)
{
    uint8_t value;

    __asm__ volatile("inb %1, %0" : "=a"(value) : "Nd"(port));
    return value;
}

static void cpuid(uint32_t leaf, uint32_t r[4])
{
    __asm__ volatile("cpuid" : "=a"(r[0]), "=b"(r[1]), "=c"(r[2]), "=d"(r[3]) : "0"(leaf), "2"(0));
}

void platform_print(const char *text, size_t len_bytes)
{
    __asm__ volatile("rep outsb" : "+S"(text), "+c"(len_bytes) : "d"(0xe9) : "memory");
}

/* Nothing wakes a CPU here, and ring 3 must not hlt. */
void platform_halt(void)
{
    for (;;) {
        pause_cpu();
    }
}

static char *hex(char *to, const char *name, uint64_t v)
{
    while (*name) {
        *to++ = *name++;
    }
    for (int shift = 60; shift >= 0; shift -= 4) {
        *to++ = "0123456789abcdef"[v >> shift & 15];
    }
    *to++ = '"';
    return to;
}

/* In ring 0, on the exception stack; boot.S halts afterwards. Depends on as little as it can:
 * the reason may be that our own pages were lost. Only the first CPU to panic prints, and it
 * waits for a line under way, but not for ever. */
void micro_panic(const struct frame *frame, uint64_t cr2)
{
    static uint32_t panicked;
    char line[256], *p = line;

    if (__atomic_exchange_n(&panicked, 1, __ATOMIC_ACQ_REL)) {
        return;
    }
    for (int tries = 0; tries < 100000; tries++) {
        if (!__atomic_exchange_n(&print_lock, 1, __ATOMIC_ACQUIRE)) {
            break; /* and keep it: nothing after this counts */
        }
        pause_cpu();
    }
    p = hex(p, "\n{\"farfork\":\"micro\",\"event\":\"panic\",\"vector\":\"0x", frame->vector);
    p = hex(p, ",\"error\":\"0x", frame->error);
    p = hex(p, ",\"rip\":\"0x", frame->rip);
    p = hex(p, ",\"cr2\":\"0x", cr2);
    *p++ = '}';
    *p++ = '\n';
    platform_print(line, (size_t)(p - line));
}

static void init_exceptions(void)
{
    for (uint32_t v = 0; v < 32; v++) {
        uint64_t stub = (uintptr_t)exception_stubs + v * 16;

        idt[2 * v] = (stub & 0xffff) | 0x08ull << 16 | 0x8eull << 40 | (stub >> 16 & 0xffff) << 48;
        idt[2 * v + 1] = stub >> 32;
    }
}

/* Identity map of the GiB around @gpa; a no-op when it is mapped. Not-present entries are never
 * cached, so no flush. */
static void map_gib(uint64_t gpa)
{
    uint64_t gib = gpa / GIB;
    uint64_t *pd;

    if (pdpt[gib]) {
        return;
    }
    pd = ram_take(PAGE_BYTES);
    for (uint64_t i = 0; i < 512; i++) {
        pd[i] = (gib * GIB + (i << 21)) | LARGE_USER_RW;
        if (gib * GIB + (i << 21) == (APIC_ICR & ~0x1fffffull)) {
            pd[i] |= NO_CACHE;
        }
    }
    __atomic_store_n(&pdpt[gib], (uint64_t)(uintptr_t)pd | 7, __ATOMIC_RELEASE);
}

/* The usable ranges above 1 MiB into machine.segments, as whole pages; fill comes later. */
static void read_memory_map(const struct mb_info *info)
{
    uint64_t at = info->mmap_addr, end = at + info->mmap_bytes;

    while (at < end) {
        const struct mb_range *r = (const struct mb_range *)(uintptr_t)at;
        uint64_t base = (r->base + PAGE_BYTES - 1) & ~(uint64_t)(PAGE_BYTES - 1);
        uint64_t stop = (r->base + r->len) & ~(uint64_t)(PAGE_BYTES - 1);
        struct segment *s = &machine.segments[machine.nsegments];

        at += r->size + 4;
        if (r->type != RAM_USABLE || base < 0x100000 || stop <= base ||
            stop > 512 * GIB || machine.nsegments == MAX_SEGMENTS) {
            continue;
        }
        s->gpa = base;
        s->pages = (stop - base) / PAGE_BYTES;
        machine.ram_bytes += stop - base;
        machine.nsegments++;
        if (stop > ram_end) {
            ram_end = stop;
        }
    }
}

/* Everything that the loader left lies below 1 MiB or right behind the image: copy it before
 * the first ram_take(). */
static void read_boot_info(void)
{
    const struct mb_info *info = (const struct mb_info *)(uintptr_t)boot_info;

    if (boot_magic != MB_LOADED || !(info->flags & MB_HAS_MMAP)) {
        report_error("not started by a multiboot loader with a memory map", "");
    }
    if (info->flags & MB_HAS_CMDLINE) {
        const char *from = (const char *)(uintptr_t)info->cmdline;

        for (size_t i = 0; i + 1 < sizeof(machine.cmdline) && from[i]; i++) {
            machine.cmdline[i] = from[i];
        }
    }
    read_memory_map(info);
}

static uint16_t pit_count(uint64_t *tsc)
{
    uint16_t count = 0;

    /* Take the TSC from an undisturbed latch: at most 50 us wide at 2 GHz; 20 tries. */
    for (int i = 0; i < 20; i++) {
        uint64_t before = rdtsc(), after;

        outb(0x43, 0x00);
        after = rdtsc();
        count = inb(0x40);
        count |= (uint16_t)(inb(0x40) << 8);
        *tsc = before + (after - before) / 2;
        if (after - before < 100000) {
            break;
        }
    }
    return count;
}

/* 0: there is no PIT. */
static uint64_t khz_from_pit(void)
{
    uint64_t khz[PIT_ROUNDS];

    outb(0x43, 0x34); /* channel 0, mode 2, from 65536 down */
    outb(0x40, 0);
    outb(0x40, 0);
    for (int round = 0; round < PIT_ROUNDS; round++) {
        uint64_t t0, t1;
        uint16_t from = pit_count(&t0), ticks = 0;
        uint32_t reads = 0;
        int at = round;

        do {
            ticks = (uint16_t)(from - pit_count(&t1));
        } while (ticks < PIT_ROUND_TICKS && ++reads < 100000 && (ticks || reads < 1000));
        if (ticks < PIT_ROUND_TICKS) {
            return 0;
        }
        khz[round] = (t1 - t0) * PIT_HZ / ticks / 1000;
        for (; at > 0 && khz[at - 1] > khz[at]; at--) {
            uint64_t swap = khz[at];

            khz[at] = khz[at - 1];
            khz[at - 1] = swap;
        }
    }
    outb(0x43, 0x30); /* mode 0 without a count: the PIT is still again */
    return khz[PIT_ROUNDS / 2];
}

static uint64_t khz_from_cpuid(void)
{
    uint32_t r[4];

    cpuid(0x40000000, r);
    if (r[0] >= 0x40000010 && r[0] < 0x40000100) {
        cpuid(0x40000010, r);
        if (r[0]) {
            return r[0];
        }
    }
    cpuid(0, r);
    if (r[0] >= 0x15) {
        cpuid(0x15, r);
        if (r[0] && r[1] && r[2]) {
            return (uint64_t)r[2] * r[1] / r[0] / 1000;
        }
    }
    return 0;
}

/* CPUID is exact, but not to be trusted alone: a hypervisor may show the host's leaf and scale. */
static void calibrate(void)
{
    uint64_t pit, leaf;

    if (machine.opt.tsc_khz) {
        machine.tsc_khz = machine.opt.tsc_khz;
        machine.clock = "option";
        return;
    }
    pit = khz_from_pit();
    leaf = khz_from_cpuid();
    if (leaf && (!pit || (leaf < pit + pit / 50 && leaf > pit - pit / 50))) {
        machine.tsc_khz = leaf;
        machine.clock = "cpuid";
    } else if (pit) {
        machine.tsc_khz = pit;
        machine.clock = "pit";
    } else {
        report_error("no PIT and no TSC rate in CPUID", "give the option tsc_khz=");
    }
}

/* The last segment that is called below 4 GiB is the highest of them. */
static void note_firmware(const struct segment *s, uint64_t end)
{
    uint64_t from = end - s->gpa > FIRMWARE_BYTES ? end - FIRMWARE_BYTES : s->gpa;

    if (end <= 4 * GIB) {
        machine.dirty_first = s->first + (from - s->gpa) / PAGE_BYTES;
        machine.dirty_end = s->first + s->pages;
    }
}

void platform_init(void)
{
    init_exceptions();
    outb(0x21, 0xff); /* no PIC interrupt may become pending */
    outb(0xa1, 0xff);
    read_boot_info();
}

/* How many CPUs there are; 1 when nobody tells. */
static uint32_t count_cpus(void)
{
    uint32_t n, signature = 0;

    outw(0x510, FW_CFG_SIGNATURE);
    for (int i = 0; i < 4; i++) {
        signature |= (uint32_t)inb(0x511) << (8 * i);
    }
    if (signature != 0x554d4551) { /* "QEMU" */
        return 1;
    }
    outw(0x510, FW_CFG_NB_CPUS);
    n = inb(0x511);
    n |= (uint32_t)inb(0x511) << 8;
    return n;
}

static void send_to_others(uint32_t command)
{
    *(volatile uint32_t *)(uintptr_t)APIC_ICR = 0xc0000 | command;
}

/**
 * platform_start_cpus() - find the TSC rate, divide the RAM, start the other CPUs
 *
 * Needs the options. On return machine is complete, and all CPUs are in micro_entry().
 */
void platform_start_cpus(void)
{
    uint64_t limit;

    ram_begin((uintptr_t)image_end);
    for (uint64_t gpa = 0; gpa < ram_end; gpa += GIB) {
        map_gib(gpa);
    }
    map_gib(APIC_ICR);
    calibrate();
    machine.tsc_boot = rdtsc();
    machine.ncpu = count_cpus();
    if (machine.ncpu > MAX_CPUS) {
        report_error("more CPUs than this guest knows", "use -smp 16 or less");
    }
    cpus = ram_take(machine.ncpu * sizeof(*cpus));
    report_init();
    ap_stacks = (uint32_t)(uintptr_t)ram_take(machine.ncpu * STACK_BYTES);
    ram_divide(note_firmware);
    if (machine.ncpu == 1) {
        return;
    }
    memcpy((void *)AP_PAGE, ap_start, (size_t)(ap_end - ap_start));
    send_to_others(0x4500); /* INIT, assert */
    limit = rdtsc() + machine.tsc_khz * 10;
    while (rdtsc() < limit) {
        pause_cpu();
    }
    send_to_others(0x4600 | AP_PAGE >> 12);
    limit = rdtsc() + machine.tsc_khz * 2000;
    while (__atomic_load_n(&cpu_ticket, __ATOMIC_ACQUIRE) < machine.ncpu) {
        if (rdtsc() > limit) {
            report_error("not all CPUs started within 2 s", "");
        }
        pause_cpu();
    }
}
