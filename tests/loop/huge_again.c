/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * huge_again.c - anonymous memory is in huge pages again after a move: every byte right while
 * threads
 *              read and write, what holds little left alone, an end at any time
 */
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

#include "cleanup.h"
#include "loop.h"

#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25
#endif
#define HUGE_BYTES (2ull << 20)
#define CELLS_PER_HUGE (HUGE_BYTES / CELL)
#define RANGES (UNDER_SANITIZER ? 12u : 48u)
#define LIMIT_MS (LAB_PATIENCE * (UNDER_SANITIZER ? 100000 : 40000))

static const char *why_not; /* this host makes no huge pages of what was small ones */

/* Between guards, so that the kernel joins it with no other mapping: smaps speaks of it alone. In
 * small pages, as memory is that a caller has watched. */
static struct area area_of(unsigned ranges)
{
    uint64_t len = ranges * HUGE_BYTES;
    uint8_t *room = mmap(NULL, len + 3 * HUGE_BYTES, PROT_NONE,
                         MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

    must(room != MAP_FAILED);
    struct area a = {.host = (uint8_t *)(((uintptr_t)room + 2 * HUGE_BYTES) & ~(HUGE_BYTES - 1)),
                     .len_bytes = len, .psize = CELL, .fd = -1};
    must(!mprotect(a.host, len, PROT_READ | PROT_WRITE));
    must(!madvise(a.host, len, MADV_NOHUGEPAGE) || errno == EINVAL);
    return a;
}

static uint64_t smaps_kib(const struct area *a, const char *name)
{
    FILE *f = fopen("/proc/self/smaps", "re");
    unsigned long from, to, kib = 0, sum = 0;
    char line[256], want[64];
    bool here = false;

    must(f);
    snprintf(want, sizeof(want), "%s: %%lu", name);
    while (fgets(line, sizeof(line), f)) {
        if (sscanf(line, "%lx-%lx ", &from, &to) == 2)
            here = from < (uintptr_t)a->host + a->len_bytes && (uintptr_t)a->host < to;
        if (here && sscanf(line, want, &kib) == 1)
            sum += kib;
    }
    fclose(f);
    return sum;
}

static void setup(void)
{
    struct area a = area_of(1);
    struct ff_region r = {.name = "r", .host = a.host, .len_bytes = a.len_bytes, .psize = CELL,
                          .fd = -1, .zero_fill = true};
    struct ff_collapse *c;
    static struct ff_error err;

    image_new(RANGES * CELLS_PER_HUGE);
    memset(a.host, 1, a.len_bytes);
    if (madvise(a.host, a.len_bytes, MADV_HUGEPAGE) || madvise(a.host, a.len_bytes, MADV_COLLAPSE))
        why_not = errno == EINVAL ? "no MADV_COLLAPSE (Linux 6.1)" : "no free huge page";
    else if (ff_collapse_start(&r, 1, &c, &err))
        why_not = err.text;
    else
        ff_collapse_stop(c);
    munmap(a.host, a.len_bytes);
}

static struct ff_collapse *start(const struct area *a)
{
    struct ff_region r = {.name = "r", .host = a->host, .len_bytes = a->len_bytes,
                          .psize = a->psize, .fd = a->fd, .zero_fill = true};
    struct ff_collapse *c;
    struct ff_error err;

    must_ok(ff_collapse_start(&r, 1, &c, &err), err);
    return c;
}

static struct ff_collapse_counts wait_end(struct ff_collapse *c)
{
    uint64_t end = ff_now_ns() + LIMIT_MS * 1000000ull;
    struct ff_collapse_counts st;

    do {
        usleep(2000);
        ff_collapse_stats(c, &st);
        must(ff_now_ns() < end);
    } while (!st.ended);
    printf("%llu ranges: %llu huge, %llu sparse, %llu failed; %llu ms of CPU\n",
           (unsigned long long)st.ranges, (unsigned long long)st.huge,
           (unsigned long long)st.sparse, (unsigned long long)st.failed,
           (unsigned long long)st.cpu_ns / 1000000);
    return st;
}

/* A move of the whole image to small pages, which may be huge from now on */
static void move_to(struct move *m, unsigned touchers)
{
    if (why_not)
        loop_skip("%s", why_not);
    *m = (struct move){.tcp = true, .n_regions = 1, .cells = {RANGES * CELLS_PER_HUGE},
                       .area = {area_of(RANGES)}, .touchers = touchers, .writes = true,
                       .touches = UINT64_MAX};
    move_run(m);
    must(!m->src.rc && !m->dst.rc);
    must(!madvise(m->area[0].host, m->area[0].len_bytes, MADV_HUGEPAGE));
}

static void huge_again(void)
{
    static struct move m;

    move_to(&m, 3);
    struct ff_collapse *c = start(&m.area[0]);
    struct ff_collapse_counts st = wait_end(c);
    ff_collapse_stop(c);
    atomic_store(&m.stop_touching, true);
    must(st.ranges == RANGES && st.huge + st.sparse + st.failed == RANGES);
    must(st.huge > st.failed);
    must(smaps_kib(&m.area[0], "AnonHugePages") >= st.huge * HUGE_BYTES / 1024);
    move_must_succeed(&m);
}

static void sparse_stays(void)
{
    static struct move m;
    unsigned dense = 0;

    for (unsigned i = 0; i < RANGES; i++) {
        unsigned content = 0;
        for (unsigned k = 0; k < CELLS_PER_HUGE; k++)
            content += !cell_is_zero(i * CELLS_PER_HUGE + k);
        dense += content >= CELLS_PER_HUGE / 2;
    }
    must(dense && dense < RANGES);
    move_to(&m, 0);
    struct ff_collapse *c = start(&m.area[0]);
    struct ff_collapse_counts st = wait_end(c);
    ff_collapse_stop(c);
    must(st.sparse == RANGES - dense);
    must(st.huge > st.failed && st.huge + st.failed == dense);
    uint64_t kib = smaps_kib(&m.area[0], "Anonymous");
    if (kib > dense * HUGE_BYTES / 1024)
        loop_fail(__FILE__, __LINE__, "%llu KiB take memory, at most %llu may",
                  (unsigned long long)kib, (unsigned long long)(dense * HUGE_BYTES / 1024));
    move_must_succeed(&m);
}

static unsigned threads(void)
{
    DIR *d = opendir("/proc/self/task");
    unsigned n = 0;

    must(d);
    while (readdir(d))
        n++;
    closedir(d);
    return n;
}

/* Ended at any moment, and begun again, while threads write */
static void stopped(void)
{
    static struct move m;

    move_to(&m, 2);
    unsigned before = threads();
    for (unsigned i = 0; i < 40; i++) {
        struct ff_collapse *c = start(&m.area[0]);
        usleep(i * 200);
        ff_collapse_stop(c);
        uint64_t end = ff_now_ns() + LIMIT_MS * 1000000ull; /* /proc forgets a thread with delay */
        while (threads() > before)
            must(ff_now_ns() < end);
    }
    atomic_store(&m.stop_touching, true);
    move_must_succeed(&m);
}

/* Files, huge pages of a pool, what is no whole range: nothing to do, and no mistake */
static void passed_over(void)
{
    struct area file, small = area_of(1);

    if (why_not)
        loop_skip("%s", why_not);
    area_new(&file, MEM_MEMFD, 4 * HUGE_BYTES);
    struct ff_region r[] = {
        {.name = "file", .host = file.host, .len_bytes = file.len_bytes, .psize = CELL,
         .fd = file.fd, .zero_fill = true},
        {.name = "private", .host = file.host, .len_bytes = file.len_bytes, .psize = CELL,
         .fd = -1},
        {.name = "pool", .host = file.host, .len_bytes = file.len_bytes, .psize = HUGE_BYTES,
         .fd = -1, .zero_fill = true},
        {.name = "small", .host = small.host + CELL, .len_bytes = HUGE_BYTES - CELL, .psize = CELL,
         .fd = -1, .zero_fill = true},
    };
    struct ff_collapse *c;
    struct ff_error err;

    must_ok(ff_collapse_start(r, FF_ARRAY_LEN(r), &c, &err), err);
    struct ff_collapse_counts st = wait_end(c);
    ff_collapse_stop(c);
    must(!st.ranges && !st.huge && !st.sparse && !st.failed);
    ff_collapse_stop(NULL);
}

/* Memory that went away, or may not be huge, harms nobody */
static void of_no_use(void)
{
    struct area a = area_of(4);

    if (why_not)
        loop_skip("%s", why_not);
    memset(a.host, 1, a.len_bytes);
    struct ff_collapse *c = start(&a); /* MADV_NOHUGEPAGE: refused, not tried for each range */
    struct ff_collapse_counts st = wait_end(c);
    ff_collapse_stop(c);
    must(!st.huge && st.failed == 1);
    must(!munmap(a.host, a.len_bytes));
    c = start(&a);
    st = wait_end(c);
    ff_collapse_stop(c);
    must(!st.huge && st.sparse == st.ranges);
}

int main(int argc, char **argv)
{
    static const struct loop_test tests[] = {
        {"huge again", huge_again, 60},
        {"sparse stays", sparse_stays, 60},
        {"stopped", stopped, 60},
        {"passed over", passed_over, 20},
        {"of no use", of_no_use, 20},
    };
    return loop_main(argc, argv, setup, tests, FF_ARRAY_LEN(tests));
}
