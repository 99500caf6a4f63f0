/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * page_pools.c - pages made ready while the destination waits (prealloc): used, right, given back
 */
#include <time.h>

#include "loop.h"

#define CELLS (loop_in_lab() ? 1500u : 6000u)
#define MORE 501
#define ALL ((CELLS + MORE) * (uint64_t)CELL)

static void setup(void)
{
    image_new(CELLS + MORE);
}

static uint64_t resident(void)
{
    unsigned long size, rss = 0;
    FILE *f = fopen("/proc/self/statm", "re");

    must(f && fscanf(f, "%lu %lu", &size, &rss) == 2);
    fclose(f);
    return rss * 4096ull;
}

static uint64_t before;

/* The source comes when all pages that it will fill are ready */
static void come_late(struct move *m, enum stage stage)
{
    const struct timespec nap = {.tv_nsec = 2000000};

    (void)m;
    if (stage != S_CONNECT)
        return;
    for (unsigned i = 0; resident() < before + ALL; i++) {
        must(i < 5000);
        nanosleep(&nap, NULL);
    }
}

static struct move a_move(bool tcp, const char *options)
{
    before = resident();
    return (struct move){.tcp = tcp, .options = options,
                         .hook = loop_kernel()->moves ? come_late : NULL,
                         .cells = {CELLS, MORE}, .n_regions = 2};
}

/* Nobody touches anything: every page that is not zeros is moved, and what was not needed is
 * gone */
static void all_moved(bool tcp)
{
    static struct move m;

    if (!loop_kernel()->moves)
        loop_skip("this kernel moves no pages: Linux 6.8 does");
    m = a_move(tcp, "");
    move_run(&m);
    must(m.dst.stats.bytes_moved);
    if (!UNDER_SANITIZER) { /* which may be too slow for a pool that is ahead of the reads, and maps memory of its own */
        must(m.dst.stats.bytes_moved == m.dst.stats.bytes_prefill);
        must(!m.dst.stats.bytes_copied);
        must(resident() < before + ALL + ALL / 4);
    }
    move_must_succeed(&m);
}

static void loop_all_moved(void)
{
    all_moved(false);
}

static void tcp_all_moved(void)
{
    all_moved(true);
}

/* Threads write to memory meanwhile: faults have some pages of each chunk, prefill the rest */
static void under_writers(bool tcp, const char *options)
{
    static struct move m;

    m = a_move(tcp, options);
    m.touchers = 4;
    m.writes = true;
    move_run(&m);
    move_must_succeed(&m);
}

static void loop_writers(void)
{
    under_writers(false, "chunk=64K");
    under_writers(false, "");
}

static void tcp_writers(void)
{
    under_writers(true, "chunk=64K,window=8");
    under_writers(true, "");
    under_writers(true, "precopy=1");
}

/* The source comes at any moment while pages are being made ready */
static void comes_early(void)
{
    static struct move m;

    for (unsigned i = 0; i < 12; i++) {
        m = a_move(i % 2, "");
        m.hook = NULL;
        m.touchers = 2;
        m.writes = true;
        move_run(&m);
        move_must_succeed(&m);
    }
}

static void not_wanted(bool tcp, const char *options, enum memory memory)
{
    static struct move m;

    m = a_move(tcp, options);
    m.hook = NULL;
    m.memory = memory;
    move_run(&m);
    must(!m.dst.stats.bytes_moved);
    move_must_succeed(&m);
}

static void off(void)
{
    not_wanted(true, "prealloc=0", MEM_ANON);
    not_wanted(false, "prealloc=0", MEM_ANON);
    not_wanted(true, "landing=copy", MEM_ANON);
    not_wanted(true, "", MEM_MEMFD);
}

int main(int argc, char **argv)
{
    static const struct loop_test tests[] = {
        {"loop: all is moved", loop_all_moved, 0},
        {"tcp: all is moved", tcp_all_moved, 0},
        {"loop: under writers", loop_writers, 0},
        {"tcp: under writers", tcp_writers, 0},
        {"comes early", comes_early, 0},
        {"off", off, 0},
    };
    return loop_main(argc, argv, setup, tests, sizeof(tests) / sizeof(tests[0]));
}
