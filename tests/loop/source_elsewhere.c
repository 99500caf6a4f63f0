/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * source_elsewhere.c - the source reads memory of another process: every byte arrives, and what
 *                      nobody touched there stays untouched
 *
 * Adds huge pages to the pool when there are too few and it may, and gives them back.
 */
#include <errno.h>
#include <signal.h>
#include <string.h>

#include "cleanup.h"
#include "dest.h"
#include "farfork-elsewhere.h"
#include "owner.h"
#include "pagemap.h"
#include "platform.h"
#include "source.h"

#define HUGE_PAGES 16
#define CELLS_PER_PAGE ((2u << 20) / CELL)
#define CELLS (4 * CELLS_PER_PAGE)

static const char *no_huge; /* why there are no huge pages */

static void setup(void)
{
    image_new(CELLS);
}

/* --- moves that succeed --- */

#define GUEST .touchers = 4, .writes = true
#define WHOLE .n_regions = 2, .cells = {CELLS / 2, CELLS / 2}, .add_source = owner_add

static uint64_t zero_cells(void)
{
    uint64_t n = 0;

    for (uint64_t c = 0; c < CELLS; c++)
        n += cell_is_zero(c);
    return n;
}

/* Nothing was touched for it, and zeros took no transfer */
static void must_move(struct move *m, enum owns owns)
{
    owner_start(owns);
    unsigned long long before = owner_taken();
    move_run(m);
    uint64_t zeros = m->dst.stats.bytes_zero;
    bool small = m->area[0].psize == CELL;
    move_must_succeed(m);
    if (small && zeros != zero_cells() * CELL)
        loop_fail(__FILE__, __LINE__, "%llu bytes of zeros, want %llu", (unsigned long long)zeros,
                  (unsigned long long)zero_cells() * CELL);
    if (owner_taken() != before)
        loop_fail(__FILE__, __LINE__, "the owner has %llu KiB, and had %llu", owner_taken(), before);
    owner_kill();
}

static void tcp_holes(void)
{
    static struct move m = {.tcp = true, .options = "prefill=pull", GUEST, WHOLE};

    must_move(&m, OWNS_HOLES);
}

static void tcp_huge_transparent(void)
{
    static struct move m = {.tcp = true, GUEST, WHOLE};

    must_move(&m, OWNS_IMAGE);
}

static void tcp_faults(void)
{
    static struct move m = {.tcp = true, .options = "prefill=off", GUEST, WHOLE,
                            .touches = 20 * CELLS}; /* each page, more likely than not */

    must_move(&m, OWNS_HOLES);
}

static void tcp_push(void)
{
    static struct move m = {.tcp = true, .options = "prefill=push,chunk=256K", GUEST, WHOLE,
                            .touch_late = true};

    owner_start(OWNS_HOLES);
    unsigned long long before = owner_taken();
    move_run(&m);
    must(m.dst.stats.bytes_prefill);
    move_must_succeed(&m);
    must(owner_taken() == before);
    owner_kill();
}

static void tcp_private_file(void)
{
    static struct move m = {.tcp = true, GUEST, WHOLE};

    must_move(&m, OWNS_PRIVATE_FILE);
}

static void over_loop(void)
{
    static struct move m = {GUEST, WHOLE};

    must_move(&m, OWNS_HOLES);
}

static bool scans(void)
{
    FF_AUTO_CLOSE int fd = ff_pagemap_open();

    return fd >= 0 && ff_pagemap_scans(fd);
}

static void hugetlb(void)
{
    static struct move m = {.tcp = true, .memory = MEM_HUGETLB_ANON, GUEST, WHOLE};

    if (no_huge)
        loop_skip("%s", no_huge);
    if (!scans())
        loop_skip("this kernel does not tell which huge pages are there (Linux 6.7 does): all are read");
    must_move(&m, OWNS_HUGE);
}

static void verified(void)
{
    static struct move m = {.tcp = true, GUEST, WHOLE};
    char options[200];

    snprintf(options, sizeof(options), "verify=on,key-file=%s", loop_key_file());
    m.options = options;
    must_move(&m, OWNS_HOLES);
    loop_remove_key();
}

/* Nobody writes: the log is empty */
static void pass_first(struct move *m, enum stage stage)
{
    static const uint64_t none[CELLS / 64];
    struct ff_error err;

    if (stage != S_STATE)
        return;
    must(ff_source_wants_precopy(m->source));
    must_ok(ff_source_precopy(m->source, &err), err);
    for (uint32_t i = 0; i < m->n_regions; i++)
        must_ok(ff_source_dirty(m->source, i, none, CELL, &err), err);
}

static void precopied(void)
{
    static struct move m = {.tcp = true, .options = "precopy=1,chunk=64K", WHOLE,
                            .hook = pass_first};

    must_move(&m, OWNS_HOLES);
    must(m.dst.stats.bytes_precopied);
}

static void broken_links(void)
{
    static struct move m = {.options = "chunk=64K,window=1,prefill=pull", GUEST, WHOLE,
                            .touch_late = true};

    owner_start(OWNS_HOLES);
    move_must_survive(&m, "dest.fault=delay:2000,tcp.serve.prefill=fail@3,"
                          "tcp.serve.prefill=fail@9,tcp.serve.prefill=fail@30", 3);
    owner_kill();
}

static void short_frames(void)
{
    static struct move m = {.tcp = true, .options = "chunk=64K", WHOLE};

    loop_arm("tcp.send.short=fail@1-40000");
    must_move(&m, OWNS_HOLES);
}

/* --- what cannot be read --- */

/* The file has been cut: pages of it are mapped, and SIGBUS to who touches them */
static void poisoned(void)
{
    static struct move m = {.tcp = true, WHOLE};

    owner_start(OWNS_SHORT_FILE);
    move_run(&m);
    if (m.src.rc || m.dst.rc)
        loop_fail(__FILE__, __LINE__, "%s; %s", m.src.rc ? m.src.err.text : "", m.dst.err.text);
    must(m.dst.stats.bytes_poisoned == OWNER_BAD_CELLS * CELL);
    move_free(&m);
    owner_kill();
}

/* --- kernels that cannot tell as much --- */

static void old_holes(void)
{
    owner_old_kernel();
    tcp_holes();
}

/* A page of the pool that the page tables do not show may be on its way elsewhere: it is read */
static void old_hugetlb(void)
{
    static struct move m = {.tcp = true, .memory = MEM_HUGETLB_ANON, GUEST, WHOLE};

    if (no_huge)
        loop_skip("%s", no_huge);
    owner_old_kernel();
    owner_start(OWNS_HUGE);
    move_run(&m);
    move_must_succeed(&m);
    owner_kill();
}

int main(int argc, char **argv)
{
    static const struct loop_test tests[] = {
        {"4 KiB pages and holes", tcp_holes, 0},
        {"huge pages by the kernel", tcp_huge_transparent, 0},
        {"faults alone", tcp_faults, 0},
        {"push", tcp_push, 0},
        {"a private mapping of a file", tcp_private_file, 0},
        {"over loop", over_loop, 0},
        {"hugetlb", hugetlb, 0},
        {"verify=on", verified, 0},
        {"precopy=1", precopied, 0},
        {"links that break", broken_links, 0},
        {"sent in pieces", short_frames, 0},
        {"pages that cannot be read", poisoned, 0},
        {"an older kernel: holes", old_holes, 0},
        {"an older kernel: hugetlb", old_hugetlb, 0},
    };

    signal(SIGINT, pl_on_signal); /* these give the pages back */
    signal(SIGTERM, pl_on_signal);
    no_huge = pl_huge_reserve(HUGE_PAGES);
    int rc = loop_main(argc, argv, setup, tests, FF_ARRAY_LEN(tests));
    pl_huge_restore();
    return rc;
}
