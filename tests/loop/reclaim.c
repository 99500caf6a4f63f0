/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * reclaim.c - a page that is here, and that the kernel takes out of the page table again, as it
 *             does under pressure: whoever touches it goes on, also when the link is broken
 */
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cleanup.h"
#include "failpoint.h"
#include "loop.h"

static bool breaks; /* the source leaves first */
static bool waits;  /* it comes when all pages are ready */
static uint64_t cell;

static void setup(void)
{
    image_new(4000);
    while (cell_is_zero(cell))
        cell++;
}

static void touch(struct move *m)
{
    struct peek p;

    peek_start(&p, m, cell);
    if (!wait_flag(&p.ended, 10000))
        loop_fail(__FILE__, __LINE__, "a thread hangs in a page that is here");
    pthread_join(p.thread, NULL);
}

static void wait_until_ready(const struct move *m)
{
    struct stat st;

    for (unsigned i = 0; !fstat(m->area[0].fd, &st) &&
                         (uint64_t)st.st_blocks * 512 < m->area[0].len_bytes; i++) {
        must(i < 10000);
        usleep(2000);
    }
}

static void reclaim(struct move *m, enum stage stage)
{
    struct ff_stats before, after;

    if (stage == S_CONNECT && waits)
        wait_until_ready(m);
    if (stage == D_DONE)
        touch(m);
    if (stage == D_DONE && breaks)
        move_cancel_source(m);
    if (stage != (breaks ? D_END : D_DONE))
        return;
    ff_dest_stats(m->dest, &before);
    for (unsigned i = 0; i < 20; i++) {
        /* what reclaim does to a shared mapping: the page stays in the file */
        must(!madvise(m->area[0].host + cell * CELL, CELL, MADV_DONTNEED));
        touch(m);
    }
    ff_dest_stats(m->dest, &after);
    must(after.faults == before.faults);
    /* an event a touch, or a few: not one after the other for as long as the thread waits */
    must(after.faults_late - before.faults_late <= 200);
}

static void move_and_reclaim(bool and_break, const char *options)
{
    static struct move m;
    struct ff_error err;

    breaks = and_break;
    must_ok(ff_failpoints_arm("tcp.serve.prefill=delay:20000", &err), err);
    m = (struct move){.tcp = true, .options = options, .memory = MEM_MEMFD, .n_regions = 1,
                      .cells = {1500}, .hook = reclaim};
    move_run(&m);
    must(m.ran && !m.dst.rc == !and_break);
    if (and_break)
        _exit(0); /* the link is broken for good, and with it the move */
    move_must_succeed(&m);
}

static void by_continue(void)
{
    move_and_reclaim(false, "landing=continue,chunk=64K,window=1");
}

static void by_copy(void)
{
    move_and_reclaim(false, "landing=copy,chunk=64K,window=1");
}

static void by_pages_that_are_ready(void)
{
    if (!loop_kernel()->continues)
        loop_skip("this kernel has no minor faults of shared memory: Linux 5.14 has");
    waits = true;
    move_and_reclaim(false, "chunk=64K,window=1");
}

static void after_a_break(void)
{
    move_and_reclaim(true, "landing=continue,prefill=off");
}

int main(int argc, char **argv)
{
    static const struct loop_test tests[] = {
        {"landing=continue", by_continue, 60},
        {"landing=copy", by_copy, 60},
        {"pages that are ready", by_pages_that_are_ready, 60},
        {"landing=continue, after a break", after_a_break, 60},
    };
    return loop_main(argc, argv, setup, tests, FF_ARRAY_LEN(tests));
}
