/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * work.c - micro guest: the loop of every CPU
 */
#include "micro.h"

enum { REPORT_MAX_MS = 50 };

/* xorshift64*: cpu->rng is the state, and never zero. */
static uint64_t next_random(struct cpu *cpu)
{
    cpu->rng ^= cpu->rng >> 12;
    cpu->rng ^= cpu->rng << 25;
    cpu->rng ^= cpu->rng >> 27;
    return cpu->rng * 0x2545f4914f6cdd1dull;
}

static uint64_t own_page(const struct cpu *cpu, uint64_t k)
{
    return k * machine.ncpu + cpu->id;
}

/**
 * hist_bucket() - which bucket of the histogram a latency belongs to
 *
 * Log-linear, 8 buckets an octave: 0..7 one each; then for 2^e <= ns < 2^(e+1), e >= 3, bucket
 * (e - 2) * 8 + the 3 bits below the leading one. Bucket b >= 8 begins at
 * (8 + b % 8) << (b / 8 - 1) and is 1 << (b / 8 - 1) wide. The same in report.py.
 */
static uint32_t hist_bucket(uint64_t ns)
{
    uint32_t e;

    if (ns < 8) {
        return (uint32_t)ns;
    }
    e = 63 - (uint32_t)__builtin_clzll(ns);
    return (e - 2) * 8 + (uint32_t)(ns >> (e - 3) & 7);
}

/* One touch more on the time line, of @ns. The first after a pause belongs, with its gap, to the
 * slot in which it ends; slots without a touch are left out. */
static void count_touch(struct cpu *cpu, uint64_t now, uint64_t ns)
{
    uint64_t period = machine.opt.slot_ms * machine.tsc_khz;
    struct slot *s = &cpu->ring[cpu->slots_done % SLOTS];

    if (!period) {
        return;
    }
    if ((int64_t)(now - cpu->slot_end) >= 0 || cpu->slot_end - now > period) {
        if (s->touches) {
            s = &cpu->ring[++cpu->slots_done % SLOTS];
        }
        *s = (struct slot){ .index = (now - machine.tsc_boot) / period };
        cpu->slot_end = machine.tsc_boot + (s->index + 1) * period;
    }
    s->touches++;
    if (ns > STALL_NS) {
        s->stall_ns += ns;
        s->stalls[hist_bucket(ns) - STALL_BUCKET]++;
    }
    if (cpu->last_touch && (int64_t)(now - cpu->last_touch) > (int64_t)s->max_gap) {
        s->max_gap = now - cpu->last_touch;
    }
    cpu->last_touch = now;
}

/* What a report takes by itself is no gap between touches; what one takes longer than the
 * shortest so far is: a page was missing, or nothing ran. Even that one may have been slow. */
static void forgive_report(struct cpu *cpu, uint64_t start)
{
    uint64_t took = rdtsc() - start;

    cpu->report_last = took;
    took = took < REPORT_MAX_MS * machine.tsc_khz ? took : REPORT_MAX_MS * machine.tsc_khz;
    if (!cpu->report_ticks || took < cpu->report_ticks) {
        cpu->report_ticks = took;
    }
    if (cpu->last_touch) {
        cpu->last_touch += cpu->report_ticks;
    }
}

static void maybe_report(struct cpu *cpu, uint64_t now)
{
    uint64_t period = machine.opt.report_ms * machine.tsc_khz;

    if ((int64_t)(now - cpu->next_report) < 0 || !report_cpu(cpu, now)) {
        return; /* another CPU prints: ask again after the next touch */
    }
    forgive_report(cpu, now);
    /* counted from its end: where a report takes longer than the period, the CPU that has just
     * printed would else be due again at once, and no other would ever get the line */
    now = rdtsc();
    cpu->next_report += period;
    if ((int64_t)(now - cpu->next_report) >= 0 || cpu->next_report - now > period) {
        cpu->next_report = now + period; /* late, or the TSC has jumped */
    }
}

static void maybe_beat(struct cpu *cpu, uint64_t now)
{
    uint64_t period = machine.opt.beat_ms * machine.tsc_khz;

    if (!period || cpu->id ||
        ((int64_t)(now - cpu->next_beat) < 0 && cpu->next_beat - now <= period)) {
        return;
    }
    report_beat();
    cpu->next_beat = rdtsc() + period;
}

/* ring=: the second halfword of each ring counts what was asked for, and what was done */
static void maybe_ask(const struct cpu *cpu)
{
    volatile uint16_t *available = (uint16_t *)(uintptr_t)machine.opt.ring;
    volatile uint16_t *used = available + PAGE_BYTES / sizeof(*used);
    uint64_t notify;

    if (!machine.opt.ring || cpu->id) {
        return;
    }
    notify = *(volatile uint64_t *)(used + PAGE_BYTES / sizeof(*used));
    if (notify && available[1] == used[1]) {
        available[1]++;
        *(volatile uint16_t *)(uintptr_t)notify = 0;
    }
}

static void account(struct cpu *cpu, uint64_t ns)
{
    cpu->touches++;
    cpu->hist[hist_bucket(ns)]++;
    if (ns > cpu->max_ns) {
        cpu->max_ns = ns;
    }
    if (ns > STALL_NS) {
        cpu->stalls++;
        cpu->stall_ns += ns;
    }
}

static void first_pass(struct cpu *cpu)
{
    for (uint64_t k = 0; k < cpu->own; k++) {
        uint64_t page = own_page(cpu, k);

        if (ledger_initial(page)) {
            ledger_fill(page);
        }
        cpu->inited = k + 1;
        if (k % 64 == 0) {
            maybe_report(cpu, rdtsc());
        }
    }
    __atomic_add_fetch(&machine.ready, 1, __ATOMIC_ACQ_REL);
}

static void sweep_one(struct cpu *cpu)
{
    ledger_sweep(cpu, own_page(cpu, cpu->sweep_at));
    if (++cpu->sweep_at == cpu->own) {
        cpu->sweep_at = 0;
        cpu->sweeps++;
    }
}

/* Spin until the next touch is due. A CPU that is over a second late forgets the arrears. */
static void wait_for_turn(struct cpu *cpu)
{
    uint64_t now = rdtsc(), second = machine.tsc_khz * 1000;

    while ((int64_t)(now - cpu->next_touch) < 0 && cpu->next_touch - now <= second) {
        maybe_beat(cpu, now);
        maybe_report(cpu, now);
        pause_cpu();
        now = rdtsc();
    }
    cpu->next_touch += second / machine.opt.rate;
    if ((int64_t)(now - cpu->next_touch) > (int64_t)second || cpu->next_touch - now > 2 * second) {
        cpu->next_touch = now;
    }
}

/* Zipf with exponent 1, octave by octave: each has as many touches as any other. The order of
 * popularity is not that of addresses: the prime is larger than any number of pages. */
static uint64_t zipf(uint64_t random, uint64_t reach)
{
    uint32_t octaves = 64 - (uint32_t)__builtin_clzll(reach);
    uint64_t low = 1ull << (random >> 32) % octaves, k;

    k = low - 1 + ((random & UINT32_MAX) * low >> 32);
    return (k < reach ? k : k % reach) * 4294967291ull % reach;
}

static uint64_t choose(struct cpu *cpu, uint64_t reach)
{
    uint64_t k = next_random(cpu);

    switch (machine.opt.mode) {
    case MODE_SEQ:
        k = cpu->seq_at;
        cpu->seq_at = k + 1 == reach ? 0 : k + 1;
        return k;
    case MODE_ZIPF:
        return zipf(k, reach);
    case MODE_CHASE:
        k ^= cpu->chased * 0x9e3779b97f4a7c15ull; /* not known before that load is done */
        break;
    default:
        break;
    }
    return (uint64_t)((unsigned __int128)k * reach >> 64);
}

/**
 * work() - what every CPU does for the rest of its life
 *
 * First pass (write the initial pages), then touch, sweep and report.
 */
void work(struct cpu *cpu)
{
    uint64_t reach, since_sweep = 0, ticks;

    cpu->rng = machine.opt.seed * 0x9e3779b97f4a7c15ull + cpu->id + 1;
    cpu->rng += cpu->rng == 0;
    cpu->own = (machine.pages - cpu->id + machine.ncpu - 1) / machine.ncpu;
    reach = cpu->own * machine.opt.wss_percent / 100;
    reach += reach == 0;
    cpu->next_report = rdtsc() + machine.opt.report_ms * machine.tsc_khz;
    first_pass(cpu);
    cpu->next_touch = rdtsc();
    for (;;) {
        uint64_t now, ns;

        if (machine.opt.mode == MODE_IDLE) {
            pause_cpu();
            maybe_beat(cpu, rdtsc());
            maybe_report(cpu, rdtsc());
            continue;
        }
        if (machine.opt.rate) {
            wait_for_turn(cpu);
        }
        ledger_touch(cpu, own_page(cpu, choose(cpu, reach)), &ticks);
        ns = ticks_to_ns(ticks);
        account(cpu, ns);
        if (machine.opt.sweep_every && ++since_sweep >= machine.opt.sweep_every) {
            since_sweep = 0;
            sweep_one(cpu);
        }
        now = rdtsc();
        count_touch(cpu, now, ns);
        maybe_beat(cpu, now);
        maybe_report(cpu, now);
        maybe_ask(cpu);
    }
}
