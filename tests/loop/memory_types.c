/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * memory_types.c - 100,000 pages of every kind of memory, over every link, while 8 threads
 *                  read and write
 */
#include "loop.h"

#define PAGES (UNDER_SANITIZER ? 10000u : 100000u)

static void setup(void)
{
    image_new(PAGES);
}

static void move_pages(bool tcp, enum memory memory, const char *options)
{
    static struct move m;

    m = (struct move){.tcp = tcp, .options = options, .memory = memory, .touchers = 8,
                      .writes = true, .touches = PAGES / 8, .n_regions = 3,
                      .cells = {PAGES * 6 / 10, 1, PAGES * 4 / 10 - 1}};
    move_run(&m);
    must(m.dst.stats.bytes_prefill && m.dst.stats.bytes_fault && m.dst.stats.bytes_zero);
    move_must_succeed(&m);
}

#define KIND(name, memory, options)                                                         \
    static void loop_##name(void)                                                           \
    {                                                                                       \
        move_pages(false, memory, options);                                                 \
    }                                                                                       \
    static void tcp_##name(void)                                                            \
    {                                                                                       \
        move_pages(true, memory, options);                                                  \
    }

KIND(anon, MEM_ANON, NULL)
KIND(anon_thp, MEM_ANON_THP, NULL)
KIND(memfd_copy, MEM_MEMFD, "landing=copy")
KIND(memfd_continue, MEM_MEMFD, "landing=continue")
KIND(memfd_private, MEM_MEMFD_PRIVATE, NULL)

int main(int argc, char **argv)
{
    static const struct loop_test tests[] = {
        {"loop anon", loop_anon, 40},
        {"tcp anon", tcp_anon, 40},
        {"loop anon thp", loop_anon_thp, 40},
        {"tcp anon thp", tcp_anon_thp, 40},
        {"loop memfd copy", loop_memfd_copy, 40},
        {"tcp memfd copy", tcp_memfd_copy, 40},
        {"loop memfd continue", loop_memfd_continue, 40},
        {"tcp memfd continue", tcp_memfd_continue, 40},
        {"loop memfd private", loop_memfd_private, 40},
        {"tcp memfd private", tcp_memfd_private, 40},
    };
    return loop_main(argc, argv, setup, tests, sizeof(tests) / sizeof(tests[0]));
}
