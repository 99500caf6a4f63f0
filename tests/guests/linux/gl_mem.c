/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * gl_mem.c - memory workers: every page of a big area must be what was last written
 */
/**
 * DOC: Theory of Operation
 *
 * Purpose      Find lost, stale, torn, swapped and zeroed pages, and say which.
 * Picture      page p of generation g: word[i] = key(p, g) ^ ramp[i], where the
 *              ramp repeats every 127 words and key() is a bijection, so no two
 *              (page, generation) look alike and no shift inside a page does.
 * Threads      one worker a vCPU, each with its own slice: no lock.
 * Failure      a wrong page is counted once, described if it is the first error
 *              of all, and rewritten, so that the next finding is a new one.
 * Limits       generations are 32 bits and start at 1; the table of them lies in
 *              the guest's memory as well: losing a piece of it shows the same way.
 */
#include "guestload.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <unistd.h>

#define MAX_WORKERS 16
#define BATCH 64u                      /* pages between two looks at the clock */
#define LOOK_BACK 64u                  /* generations searched to name a stale page */

struct slice {
    uint64_t *base;
    uint32_t *gen;
    uint64_t first, pages;             /* in pages of the whole area */
    uint64_t rng;
};

static uint64_t seed;

static uint64_t page_key(uint64_t page, uint32_t gen)
{
    return gl_mix(seed ^ (page << 32 | gen));
}

static void fill(uint64_t *w, uint64_t key)
{
    for (unsigned i = 0; i < GL_WORDS; i++)
        w[i] = key ^ gl_ramp[i];
}

static int differs(const uint64_t *w, uint64_t key)
{
    uint64_t diff = 0;

    for (unsigned i = 0; i < GL_WORDS; i++)
        diff |= w[i] ^ key ^ gl_ramp[i];
    return diff != 0;
}

/* What is in this page instead? Works on a copy, as the page may be changing. */
static void describe(uint64_t page, const uint64_t *now, uint32_t gen)
{
    uint64_t w[GL_WORDS], key = page_key(page, gen), got;
    unsigned bad = 0, zero = 0, first = GL_WORDS;
    uint32_t old = 0;

    memcpy(w, now, sizeof(w));
    for (unsigned i = 0; i < GL_WORDS; i++) {
        zero += w[i] == 0;
        if (w[i] != (key ^ gl_ramp[i])) {
            if (!bad++)
                first = i;
        }
    }
    if (!bad) {
        gl_fail(&gl_stats.mem_errors, "mem: page %" PRIu64 " generation %" PRIu32
                ": was wrong, and right when read again", page, gen);
        return;
    }
    got = w[first] ^ gl_ramp[first];
    for (uint32_t back = 1; back <= LOOK_BACK && back < gen && !old; back++)
        if (got == page_key(page, gen - back))
            old = gen - back;
    gl_fail(&gl_stats.mem_errors, "mem: page %" PRIu64 " generation %" PRIu32 ": %u of %u words "
            "wrong from word %u, %u zero; that word %016" PRIx64 " is %s (generation %" PRIu32 ")",
            page, gen, bad, GL_WORDS, first, zero, w[first],
            !w[first] ? "zero" : old ? "stale" : "foreign", old);
}

static void visit(struct slice *s, uint64_t i, int rewrite)
{
    uint64_t *w = s->base + i * GL_WORDS;
    uint64_t page = s->first + i;

    if (differs(w, page_key(page, s->gen[i]))) {
        describe(page, w, s->gen[i]);
        rewrite = 1;
    }
    if (rewrite) {
        s->gen[i]++;
        fill(w, page_key(page, s->gen[i]));
    }
}

static void *run_slice(void *arg)
{
    struct slice *s = arg;
    uint64_t walk = 0, start, used;

    for (uint64_t i = 0; i < s->pages; i++) {
        s->gen[i] = 1;
        fill(s->base + i * GL_WORDS, page_key(s->first + i, 1));
    }
    for (;;) {
        start = gl_now_ns();
        for (unsigned n = 0; n < BATCH; n += 2) {
            uint64_t r = gl_random(&s->rng);

            visit(s, walk, (r & 3) == 0);
            if (++walk == s->pages) {
                walk = 0;
                atomic_fetch_add(&gl_stats.mem_passes, 1);
            }
            visit(s, (r >> 8) % s->pages, (r & 12) == 0);
        }
        atomic_fetch_add(&gl_stats.mem_checked, BATCH);
        used = gl_now_ns() - start;
        if (gl_config.duty_percent < 100)
            gl_sleep_ns(used * (100 - gl_config.duty_percent) / gl_config.duty_percent);
    }
    return NULL;
}

static uint64_t available_mib(void)
{
    char line[128];
    uint64_t kib = 0;
    FILE *f = fopen("/proc/meminfo", "re");

    while (f && fgets(line, sizeof(line), f))
        if (sscanf(line, "MemAvailable: %" SCNu64, &kib) == 1)
            break;
    if (f)
        fclose(f);
    return kib / 1024;
}

void gl_mem_start(void)
{
    uint64_t mib = gl_config.mem_mib ? gl_config.mem_mib : available_mib() * 60 / 100;
    uint64_t pages, done = 0;
    long cpus = sysconf(_SC_NPROCESSORS_ONLN);
    uint64_t workers = cpus < 1 ? 1 : cpus > MAX_WORKERS ? MAX_WORKERS : (uint64_t)cpus;
    void *area;
    uint32_t *gen;

    if (!mib)
        mib = 1;
    pages = mib << 8;
    area = mmap(NULL, mib << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    gen = calloc(pages, sizeof(*gen));
    if (area == MAP_FAILED || !gen) {
        gl_fail(&gl_stats.mem_errors, "mem: allocate %" PRIu64 " MiB: failed", mib);
        return;
    }
    if (getrandom(&seed, sizeof(seed), 0) != sizeof(seed))
        seed = gl_now_ns();
    gl_stats.mem_mib = mib;
    for (uint64_t i = 0; i < workers; i++) {
        struct slice *s = calloc(1, sizeof(*s));

        if (!s)
            abort();
        s->first = done;
        s->pages = (pages - done) / (workers - i);
        s->base = (uint64_t *)area + done * GL_WORDS;
        s->gen = gen + done;
        s->rng = seed + i;
        done += s->pages;
        gl_start(run_slice, s, 10);
    }
}
