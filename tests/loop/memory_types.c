/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * memory_types.c - many pages of every kind of memory, over every link, while 8 threads
 *                  read and write
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "loop.h"

static uint64_t moved_bytes; /* by the last move */

#define PAGES (UNDER_SANITIZER ? 10000u : loop_in_lab() ? 20000u : 100000u)

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
    must(m.dst.stats.bytes_prefill && m.dst.stats.bytes_fault);
    /* in place over verbs nobody looks for zeros */
    must(m.dst.stats.bytes_zero || m.dst.stats.bytes_continued);
    moved_bytes = m.dst.stats.bytes_moved;
    must(!options || !strstr(options, "push") || m.dst.stats.prefill == FF_PREFILL_PUSH);
    must(!options || !strstr(options, "continue") || m.dst.stats.bytes_continued);
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
KIND(anon_push, MEM_ANON, "prefill=push")
KIND(memfd_copy_push, MEM_MEMFD, "landing=copy,prefill=push")
KIND(memfd_continue_push, MEM_MEMFD, "landing=continue,prefill=push")
KIND(anon_move, MEM_ANON_THP, "landing=move")
KIND(anon_move_push, MEM_ANON_THP, "landing=move,prefill=push")

/* Where nobody disturbs, whole huge pages are moved in, if the kernel can */
static void quiet_move(void)
{
    static struct move m;

    m = (struct move){.tcp = true, .options = "landing=move", .memory = MEM_ANON_THP,
                      .n_regions = 1, .cells = {PAGES / 2}};
    move_run(&m);
    moved_bytes = m.dst.stats.bytes_moved;
    move_must_succeed(&m);
    if (!moved_bytes)
        printf(
            "SKIP: quiet move: nothing could be moved: no UFFDIO_MOVE (Linux 6.8), no huge pages, or a link that pins its buffers\n");
}

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
        {"loop anon push", loop_anon_push, 40},
        {"tcp anon push", tcp_anon_push, 40},
        {"loop memfd copy push", loop_memfd_copy_push, 40},
        {"tcp memfd copy push", tcp_memfd_copy_push, 40},
        {"loop memfd continue push", loop_memfd_continue_push, 40},
        {"tcp memfd continue push", tcp_memfd_continue_push, 40},
        {"loop anon move", loop_anon_move, 40},
        {"tcp anon move", tcp_anon_move, 40},
        {"loop anon move push", loop_anon_move_push, 40},
        {"tcp anon move push", tcp_anon_move_push, 40},
        {"tcp quiet move", quiet_move, 40},
    };
    return loop_main(argc, argv, setup, tests, sizeof(tests) / sizeof(tests[0]));
}
