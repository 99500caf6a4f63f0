/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * hugetlb.c - 2 MiB pages: moved whole, while 8 threads read and write
 *
 * Adds huge pages to the pool when there are too few and it may, and gives them back.
 */
#include "loop.h"
#include "platform.h"

#define HUGE_PAGES 48
#define CELLS_PER_PAGE ((2u << 20) / CELL)

static void setup(void)
{
    image_new(HUGE_PAGES * CELLS_PER_PAGE);
}

static void move_huge(bool tcp, enum memory memory, const char *options)
{
    static struct move m;

    m = (struct move){.tcp = tcp, .options = options, .memory = memory, .touchers = 8,
                      .writes = true, .touches = 2000, .n_regions = 2,
                      .cells = {40 * CELLS_PER_PAGE, 8 * CELLS_PER_PAGE}};
    move_run(&m);
    must((m.dst.stats.bytes_zero || m.dst.stats.bytes_continued) && m.dst.stats.bytes_fault);
    move_must_succeed(&m);
}

static void loop_copy(void)
{
    move_huge(false, MEM_HUGETLB, "landing=copy");
}

static void tcp_copy(void)
{
    move_huge(true, MEM_HUGETLB, "landing=copy");
}

static void loop_continue(void)
{
    move_huge(false, MEM_HUGETLB, "landing=continue");
}

static void tcp_continue(void)
{
    move_huge(true, MEM_HUGETLB, "landing=continue");
}

static void loop_push(void)
{
    move_huge(false, MEM_HUGETLB, "prefill=push,landing=copy");
}

static void tcp_push(void)
{
    move_huge(true, MEM_HUGETLB, "prefill=push");
}

static void tcp_anon(void)
{
    move_huge(true, MEM_HUGETLB_ANON, NULL);
}

static void tcp_small_chunk(void)
{
    move_huge(true, MEM_HUGETLB, "chunk=4096,window=1");
}

static void tcp_large_chunk(void)
{
    move_huge(true, MEM_HUGETLB, "chunk=4M,window=8,landing=continue");
}

static void tcp_faults_alone(void)
{
    static struct move m;

    m = (struct move){.tcp = true, .options = "prefill=off", .memory = MEM_HUGETLB, .touchers = 2,
                      .touches = 4000, .n_regions = 1, .cells = {6 * CELLS_PER_PAGE}};
    move_run(&m);
    must(m.dst.stats.faults == 6 && !m.dst.stats.bytes_prefill);
    move_must_succeed(&m);
}

int main(int argc, char **argv)
{
    static const struct loop_test tests[] = {
        {"loop copy", loop_copy, 0},         {"tcp copy", tcp_copy, 0},
        {"loop continue", loop_continue, 0}, {"tcp continue", tcp_continue, 0},
        {"loop push", loop_push, 0},         {"tcp push", tcp_push, 0},
        {"tcp anon", tcp_anon, 0},           {"tcp small chunk", tcp_small_chunk, 0},
        {"tcp large chunk", tcp_large_chunk, 0}, {"tcp faults alone", tcp_faults_alone, 0},
    };

    signal(SIGINT, pl_on_signal); /* these give the pages back */
    signal(SIGTERM, pl_on_signal);
    const char *why = pl_huge_reserve(HUGE_PAGES);
    if (why) {
        pl_huge_restore();
        printf("SKIP: %s\n", why);
        return 77;
    }
    int rc = loop_main(argc, argv, setup, tests, sizeof(tests) / sizeof(tests[0]));
    pl_huge_restore();
    return rc;
}
