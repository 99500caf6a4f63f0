/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * ledger.c - micro guest: what a page must hold, and whether it does
 */
/**
 * DOC: Theory of Operation
 *
 * Purpose      define all 512 words of a page from (seed, page, generation), check them, and say
 *              how a page is wrong. Every word is checked before it is overwritten, so no
 *              damage is ever wiped out unseen.
 *
 * Picture      words of page n at generation g; r = 17 g mod 61
 *                0 . . . r . . . r+61 . . . 256 . . . r+122 ... . . . 511
 *                X       X       X           X        X               X    the rest is zero
 *              X = mix(n, g, i): low half  g ^ hash(seed, n, i)  so g can be read back
 *                                high half hash(seed, n, g, i)   so that it proves itself
 *              61 is prime, so r visits every residue, and the words of two generations in a row
 *              are disjoint but for 0, 256 and 511.
 *
 * States       LOST   all 512 words zero although g > 0
 *              STALE  exactly the words of another generation: the page is older than the
 *                     ledger, or the ledger page itself is
 *              TORN   anything else: two generations mixed, a foreign page, a flipped bit
 *
 * Invariants   1. a word is loaded once: what a touch saw is what is judged, even if the page
 *                 is right a moment later (a page seen half filled is torn).
 *              2. a wrong page is counted, then rewritten whole (not in mode=readonly), so one
 *                 damage counts once.
 */
#include "micro.h"

enum { STRIDE = 61, STEP = 17, SEEN_MAX = 24 };

static const uint16_t FIXED[3] = { 0, 256, 511 };

/* What one touch loaded. */
struct seen {
    uint32_t n;
    uint16_t at[SEEN_MAX];
    uint64_t word[SEEN_MAX];
};

static uint64_t scramble(uint64_t x)
{
    x ^= x >> 32;
    x *= 0xd6e8feb86659fd93ull;
    x ^= x >> 32;
    return x;
}

static uint64_t place_hash(uint64_t page, uint32_t i)
{
    return scramble(machine.opt.seed + page * 0x9e3779b97f4a7c15ull + i * 0xc2b2ae3d27d4eb4full);
}

static uint64_t mix(uint64_t page, uint32_t gen, uint32_t i)
{
    uint64_t place = place_hash(page, i);
    uint64_t proof = (place + gen) * 0xff51afd7ed558ccdull;

    return (proof ^ proof << 32) >> 32 << 32 | (uint32_t)(place ^ gen);
}

static uint32_t gen_of(uint64_t page, uint32_t i, uint64_t word)
{
    return (uint32_t)(place_hash(page, i) ^ word);
}

static uint32_t residue(uint32_t gen)
{
    return (uint32_t)((uint64_t)gen * STEP % STRIDE);
}

static bool is_fixed(uint32_t i)
{
    return i == 0 || i == 256 || i == 511;
}

/* The definition of a page's content. */
static uint64_t expected(uint64_t page, uint32_t gen, uint32_t i)
{
    if (gen == 0 || (!is_fixed(i) && i % STRIDE != residue(gen))) {
        return 0;
    }
    return mix(page, gen, i);
}

/**
 * ledger_initial() - is @page one of those that are written before "ready"?
 */
bool ledger_initial(uint64_t page)
{
    return scramble(page * 0x9e3779b97f4a7c15ull + machine.opt.seed) % 100 <
               machine.opt.touch_percent ||
           (page >= machine.dirty_first && page < machine.dirty_end);
}

static void write_whole(uint64_t page, uint32_t gen)
{
    volatile uint64_t *p = page_words(page);

    for (uint32_t i = 0; i < PAGE_WORDS; i++) {
        p[i] = 0;
    }
    for (uint32_t i = residue(gen); i < PAGE_WORDS; i += STRIDE) {
        p[i] = mix(page, gen, i);
    }
    for (int k = 0; k < 3; k++) {
        p[FIXED[k]] = mix(page, gen, FIXED[k]);
    }
    machine.ledger[page] = gen;
}

void ledger_fill(uint64_t page)
{
    write_whole(page, 1);
}

static enum verdict classify(const uint64_t *word, uint64_t page)
{
    uint32_t gen = gen_of(page, 0, word[0]);
    bool zero = true, consistent = true;

    for (uint32_t i = 0; i < PAGE_WORDS; i++) {
        zero = zero && word[i] == 0;
        consistent = consistent && word[i] == expected(page, gen, i);
    }
    return zero ? PAGE_LOST : consistent ? PAGE_STALE : PAGE_TORN;
}

/* @word: all words of the page, as they were loaded */
static __attribute__((noinline)) enum verdict bad(struct cpu *cpu, uint64_t page,
                                                  const uint64_t *word, bool sweep)
{
    uint32_t gen = machine.ledger[page], wrong = 0;
    enum verdict kind = classify(word, page);

    cpu->bad[kind]++;
    if (!cpu->first_bad.set) {
        struct bad_page *b = &cpu->first_bad;

        while (wrong < PAGE_WORDS - 1 && word[wrong] == expected(page, gen, wrong)) {
            wrong++;
        }
        b->kind = kind;
        b->sweep = sweep;
        b->page = page;
        b->gpa = page_gpa(page);
        b->gen = gen;
        b->uptime_ms = uptime_ms(rdtsc());
        b->wrong_word = wrong;
        b->saw[0] = word[0];
        b->saw[1] = word[256];
        b->saw[2] = word[511];
        b->saw[3] = word[wrong];
        b->set = true;
    }
    if (machine.opt.mode != MODE_READONLY) {
        write_whole(page, gen + 1);
    }
    return kind;
}

/* A touch failed: load the words that it did not load, and judge the page. */
static __attribute__((noinline)) enum verdict bad_touch(struct cpu *cpu, uint64_t page,
                                                        const struct seen *seen)
{
    volatile uint64_t *p = page_words(page);
    uint64_t word[PAGE_WORDS];

    for (uint32_t i = 0; i < PAGE_WORDS; i++) {
        word[i] = p[i];
    }
    for (uint32_t k = 0; k < seen->n; k++) {
        word[seen->at[k]] = seen->word[k];
    }
    return bad(cpu, page, word, false);
}

static inline bool look(struct seen *seen, volatile uint64_t *p, uint32_t i, uint64_t want)
{
    uint64_t word = p[i];

    seen->at[seen->n] = (uint16_t)i;
    seen->word[seen->n++] = word;
    return word == want;
}

/* The first access, the one that is timed; random among the fixed words. */
static uint64_t first_access(struct cpu *cpu, volatile uint64_t *p, uint64_t *ticks)
{
    enum first how = machine.opt.first;
    uint64_t start, stop, word;

    if (how == FIRST_WRITE || (how == FIRST_MIX && (cpu->rng >> 40 & 1))) {
        start = rdtsc();
        word = load_by_write(p);
        stop = rdtsc();
    } else {
        start = rdtsc();
        word = *p;
        stop = rdtsc();
    }
    cpu->chased = word;
    *ticks = stop > start ? stop - start : 0; /* another host's TSC may lie behind */
    return word;
}

/**
 * ledger_touch() - time the first access to a page, check it, advance it by one generation
 * @ticks: TSC ticks of the first access
 *
 * Checks the words that the old generation set and those that the new one will set; the other
 * zeros are the sweep's.
 */
enum verdict ledger_touch(struct cpu *cpu, uint64_t page, uint64_t *ticks)
{
    volatile uint64_t *p = page_words(page);
    uint32_t start = (uint32_t)(cpu->rng >> 32) % 3;
    struct seen seen;
    uint32_t gen;
    bool ok;

    seen.n = 1;
    seen.at[0] = FIXED[start];
    seen.word[0] = first_access(cpu, &p[FIXED[start]], ticks);
    gen = machine.ledger[page];
    ok = seen.word[0] == expected(page, gen, FIXED[start]) && (gen || !ledger_initial(page));
    for (int k = 0; k < 3; k++) {
        if (FIXED[k] != FIXED[start]) {
            ok &= look(&seen, p, FIXED[k], expected(page, gen, FIXED[k]));
        }
    }
    if (gen) {
        for (uint32_t i = residue(gen); i < PAGE_WORDS; i += STRIDE) {
            ok &= is_fixed(i) || look(&seen, p, i, mix(page, gen, i));
        }
    }
    for (uint32_t i = residue(gen + 1); i < PAGE_WORDS; i += STRIDE) {
        ok &= is_fixed(i) || look(&seen, p, i, 0);
    }
    if (!ok) {
        return bad_touch(cpu, page, &seen);
    }
    if (machine.opt.mode == MODE_READONLY) {
        return PAGE_OK;
    }
    if (gen) {
        for (uint32_t i = residue(gen); i < PAGE_WORDS; i += STRIDE) {
            p[i] = 0;
        }
    }
    for (uint32_t i = residue(gen + 1); i < PAGE_WORDS; i += STRIDE) {
        p[i] = mix(page, gen + 1, i);
    }
    for (int k = 0; k < 3; k++) {
        p[FIXED[k]] = mix(page, gen + 1, FIXED[k]);
    }
    machine.ledger[page] = gen + 1;
    return PAGE_OK;
}

/**
 * ledger_sweep() - check all 512 words of a page
 */
enum verdict ledger_sweep(struct cpu *cpu, uint64_t page)
{
    volatile uint64_t *p = page_words(page);
    uint32_t gen = machine.ledger[page];
    uint32_t next = gen ? residue(gen) : PAGE_WORDS;
    uint64_t word[PAGE_WORDS], wrong = 0;

    for (uint32_t i = 0; i < PAGE_WORDS; i++) {
        word[i] = p[i];
        if (i == next) {
            next += STRIDE;
            wrong |= word[i] ^ mix(page, gen, i);
        } else if (gen && is_fixed(i)) {
            wrong |= word[i] ^ mix(page, gen, i);
        } else {
            wrong |= word[i];
        }
    }
    if (wrong || (!gen && ledger_initial(page))) {
        return bad(cpu, page, word, true);
    }
    return PAGE_OK;
}
