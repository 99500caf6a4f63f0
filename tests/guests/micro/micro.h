/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * micro.h - micro guest: what its files share
 */
/**
 * DOC: Theory of Operation
 *
 * Purpose      a guest that knows what every page of its RAM must hold, touches pages as fast as
 *              it can, and tells at once when one is lost, stale or torn, and how long each touch
 *              took. It has no devices, no interrupts and no ring 0 work, so it also runs where
 *              KVM executes ring 3 alone.
 *
 * Picture      1 MiB      image_end
 *              | image     | page tables | ledger: u32 gen[pages] | pages 0, 1, 2, ...  | spare |
 *              fill= percent of each free segment (below and above 4 GiB) become pages; page n
 *              belongs to CPU n % ncpu, and nobody else ever reads or writes it or its gen.
 *
 * States       gen 0: never written, the page must read as zeros. gen g > 0: the page holds
 *              exactly the words of (n, g) that ledger.c defines, all 512 of them.
 *
 * Threads      every CPU runs work(); they share the report lock and two counters, no more.
 *
 * Limits       16 CPUs, 512 GiB. Ring 3 cannot halt: an idle or rate-limited CPU spins.
 *              Time is the TSC. Whether it stands still between "stop" on the source and "run"
 *              on the destination depends on the accelerator and the host (seen: TCG stands
 *              still; KVM mostly shows the gap as one long touch): measure downtime outside.
 *              Faults on ledger pages and in the sweep are not timed: sweep=0 when that counts.
 *
 * Usage        qemu-system-x86_64 -kernel micro.elf -append "key=value ..." -debugcon file:F
 *              options: see main.c; output: see report.c; reader: report.py
 */
#ifndef MICRO_H
#define MICRO_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    MAX_CPUS = 16,       /* the same two numbers in boot.S */
    STACK_BYTES = 12288,
    MAX_SEGMENTS = 16,
    PAGE_BYTES = 4096,
    PAGE_WORDS = 512,
    HIST_BUCKETS = 496,
    STALL_NS = 25000,
    SAW_WORDS = 4,
    SLOTS = 64,
    STALL_BUCKET = 100, /* the first of the histogram with stalls alone, from 24,576 ns on */
};

enum mode { MODE_RANDOM, MODE_SEQ, MODE_IDLE, MODE_READONLY, MODE_CHASE, MODE_ZIPF };
enum first { FIRST_READ, FIRST_WRITE, FIRST_MIX };

struct options {
    uint64_t fill_percent;  /* of the free RAM */
    uint64_t touch_percent; /* of the pages, written before "ready" */
    uint64_t wss_percent;   /* of the pages, touched after that */
    uint64_t rate;          /* touches per second and CPU; 0: no limit */
    uint64_t sweep_every;   /* touches between two pages of the sweep; 0: no sweep */
    uint64_t seed;
    uint64_t report_ms;
    uint64_t slot_ms; /* of the time line; 0: none */
    uint64_t beat_ms; /* between two empty lines; 0: none */
    uint64_t tsc_khz; /* 0: find out */
    uint64_t ring; /* a virtqueue to be kept busy; 0: none */
    enum mode mode;
    enum first first;
};

/* What a check of one page found. */
enum verdict { PAGE_OK, PAGE_LOST, PAGE_STALE, PAGE_TORN };

struct bad_page {
    bool set;
    enum verdict kind;
    bool sweep; /* found by the sweep, not by a touch */
    uint64_t page, gpa;
    uint32_t gen;
    uint64_t uptime_ms;
    uint64_t saw[SAW_WORDS]; /* words 0, 256, 511 and the first that was wrong */
    uint32_t wrong_word;
};

/* A stretch of the time line: how much work was done, how long none was */
struct slot {
    uint64_t index; /* slot_ms each, from the boot */
    uint64_t touches, stall_ns;
    uint64_t max_gap; /* TSC ticks between two touches, where the second is in here */
    uint32_t stalls[HIST_BUCKETS - STALL_BUCKET];
};

struct cpu {
    uint32_t id;
    uint64_t own;    /* pages of this CPU */
    uint64_t inited; /* of these, looked at by the first pass */
    uint64_t seq, touches, sweeps;
    uint64_t bad[4]; /* by enum verdict */
    struct bad_page first_bad;
    uint64_t stalls, stall_ns, max_ns;
    uint64_t rng, sweep_at, seq_at;
    uint64_t next_report, next_touch, next_beat; /* TSC */
    uint64_t chased; /* word that the last touch read */
    uint64_t slots_done, slots_told; /* counted from the boot; slot n is in ring[n % SLOTS] */
    uint64_t slot_end, last_touch; /* TSC */
    uint64_t report_ticks, report_last; /* the shortest report so far, and the last one */
    struct slot ring[SLOTS];
    uint64_t hist[HIST_BUCKETS];
};

struct segment {
    uint64_t gpa, first, pages;
};

struct machine {
    struct options opt;
    uint32_t ncpu;
    uint32_t ready; /* CPUs that have finished their first pass; atomic */
    uint64_t tsc_khz, tsc_boot;
    const char *clock; /* where tsc_khz comes from */
    uint32_t nsegments;
    struct segment segments[MAX_SEGMENTS];
    uint64_t ram_bytes, pages;
    uint64_t dirty_first, dirty_end; /* pages that the firmware may have written */
    uint32_t *ledger;
    char cmdline[512];
};

extern struct machine machine;
extern struct cpu *cpus; /* [ncpu] */

/* platform.c, platform_arm64.c */
void platform_init(void);
void platform_start_cpus(void);
void platform_print(const char *text, size_t len_bytes);
_Noreturn void platform_halt(void);

/* ram.c */
void ram_begin(uint64_t at);
void *ram_take(uint64_t len_bytes);
void ram_divide(void (*note)(const struct segment *s, uint64_t end));

/* ledger.c */
bool ledger_initial(uint64_t page);
void ledger_fill(uint64_t page);
enum verdict ledger_touch(struct cpu *cpu, uint64_t page, uint64_t *ticks);
enum verdict ledger_sweep(struct cpu *cpu, uint64_t page);

/* work.c */
_Noreturn void work(struct cpu *cpu);

/* report.c */
extern uint32_t print_lock;
void report_init(void);
void report_boot(void);
bool report_cpu(struct cpu *cpu, uint64_t now);
void report_beat(void);
_Noreturn void report_error(const char *what, const char *detail);
uint64_t ticks_to_ns(uint64_t ticks);
uint64_t uptime_ms(uint64_t now);

#ifdef __aarch64__
static inline uint64_t rdtsc(void)
{
    uint64_t count;

    __asm__ volatile("isb; mrs %0, cntvct_el0; isb" : "=r"(count) : : "memory");
    return count;
}

static inline void pause_cpu(void)
{
    __asm__ volatile("yield" : : : "memory");
}

/* A write that changes nothing, and loads the word */
static inline uint64_t load_by_write(volatile uint64_t *p)
{
    return __atomic_fetch_add(p, 0, __ATOMIC_SEQ_CST);
}
#else
static inline uint64_t rdtsc(void)
{
    uint32_t lo, hi;

    /* lfence: no load before it is still running, none after it has begun */
    __asm__ volatile("lfence; rdtsc; lfence" : "=a"(lo), "=d"(hi) : : "memory");
    return (uint64_t)hi << 32 | lo;
}

static inline void pause_cpu(void)
{
    __asm__ volatile("pause" : : : "memory");
}

/* A write that changes nothing, and loads the word */
static inline uint64_t load_by_write(volatile uint64_t *p)
{
    uint64_t word = 0;

    __asm__ volatile("lock xaddq %0, %1" : "+r"(word), "+m"(*p) : : "memory");
    return word;
}
#endif

static inline uint64_t page_gpa(uint64_t page)
{
    uint32_t s = 0;

    while (s + 1 < machine.nsegments && page >= machine.segments[s + 1].first) {
        s++;
    }
    return machine.segments[s].gpa + (page - machine.segments[s].first) * PAGE_BYTES;
}

static inline volatile uint64_t *page_words(uint64_t page)
{
    return (volatile uint64_t *)(uintptr_t)page_gpa(page);
}

#endif
