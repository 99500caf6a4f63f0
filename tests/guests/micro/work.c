/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * work.c - micro guest: the loop of every CPU
 */
#include "micro.h"

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

static void maybe_report(struct cpu *cpu, uint64_t now)
{
    uint64_t period = machine.opt.report_ms * machine.tsc_khz;

    if ((int64_t)(now - cpu->next_report) < 0 || !report_cpu(cpu, now)) {
        return; /* another CPU prints: ask again after the next touch */
    }
    cpu->next_report += period;
    if ((int64_t)(now - cpu->next_report) >= 0 || cpu->next_report - now > period) {
        cpu->next_report = now + period; /* late, or the TSC has jumped */
    }
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
        maybe_report(cpu, now);
        pause_cpu();
        now = rdtsc();
    }
    cpu->next_touch += second / machine.opt.rate;
    if ((int64_t)(now - cpu->next_touch) > (int64_t)second || cpu->next_touch - now > 2 * second) {
        cpu->next_touch = now;
    }
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
        uint64_t k;

        if (machine.opt.mode == MODE_IDLE) {
            pause_cpu();
            maybe_report(cpu, rdtsc());
            continue;
        }
        if (machine.opt.rate) {
            wait_for_turn(cpu);
        }
        k = next_random(cpu);
        if (machine.opt.mode == MODE_SEQ) {
            k = cpu->seq_at;
            cpu->seq_at = cpu->seq_at + 1 == reach ? 0 : cpu->seq_at + 1;
        } else {
            k = (uint64_t)((unsigned __int128)k * reach >> 64);
        }
        ledger_touch(cpu, own_page(cpu, k), &ticks);
        account(cpu, ticks_to_ns(ticks));
        if (machine.opt.sweep_every && ++since_sweep >= machine.opt.sweep_every) {
            since_sweep = 0;
            sweep_one(cpu);
        }
        maybe_report(cpu, rdtsc());
    }
}
