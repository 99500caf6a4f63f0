/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * shortage.c - no memory to install a page: after GO the guest waits until there is some, and its
 *              owner hears of it; before GO the move ends
 */
#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "cleanup.h"
#include "failpoint.h"
#include "loop.h"

static void setup(void)
{
    image_new(16000);
}

static unsigned n_short, n_again;

static void on_shortage(void *opaque, const char *why)
{
    must(opaque == &n_short);
    if (!why) {
        n_again++;
        return;
    }
    must(strstr(why, "region0"));
    n_short++;
}

static void listen_for_it(struct move *m, enum stage stage)
{
    if (stage == D_DONE)
        ff_dest_on_shortage(m->dest, on_shortage, &n_short);
}

/* Both threads find no memory for some seconds, longer than a silent link would be borne */
static void goes_on(bool tcp, const char *options)
{
    static struct move m;
    struct ff_error err;

    must_ok(ff_failpoints_arm("dest.install=fail:12@3-900", &err), err);
    m = (struct move){.tcp = tcp, .options = options, .n_regions = 1, .cells = {16000},
                      .touchers = 2, .writes = true, .touch_late = true, .hook = listen_for_it};
    uint64_t t = ff_now_ns();
    move_run(&m);
    must(ff_failpoint_hits("dest.install") > 900 && n_short == 1 && n_again == 1);
    printf("      short for %u ms\n", (unsigned)((ff_now_ns() - t) / 1000000));
    move_must_succeed(&m);
}

static void tcp_pull(void)
{
    goes_on(true, "timeout=1,chunk=1M,window=32");
}

static void tcp_push(void)
{
    goes_on(true, "timeout=1,prefill=push,chunk=1M");
}

static void loop_pull(void)
{
    goes_on(false, "timeout=1");
}

/* A hole in a file takes its first memory when it is touched */
static void a_hole(void)
{
    static struct move m;
    struct ff_error err;

    must_ok(ff_failpoints_arm("dest.install=fail:12@3-400", &err), err);
    m = (struct move){.tcp = true, .n_regions = 1, .cells = {4000}, .memory = MEM_MEMFD,
                      .touchers = 2, .touch_late = true, .hook = listen_for_it};
    move_run(&m);
    must(ff_failpoint_hits("dest.install") > 400);
    move_must_succeed(&m);
}

/* What was read before the link broke is the guest's, as soon as there is memory */
static struct peek waits;

static void break_meanwhile(struct move *m, enum stage stage)
{
    uint64_t cell = 0;

    if (stage != D_DONE)
        return;
    while (cell_is_zero(cell))
        cell++;
    peek_start(&waits, m, cell);
    while (ff_failpoint_hits("dest.install") < 5) /* the test's limit bounds it */
        usleep(1000);
    move_cancel_source(m);
}

static void breaks_meanwhile(void)
{
    static struct move m;
    struct ff_error err;

    must_ok(ff_failpoints_arm("dest.install=fail:12@1-200", &err), err);
    m = (struct move){.tcp = true, .options = "prefill=off", .hook = break_meanwhile};
    move_run(&m);
    must(m.ran && m.dst.rc && m.src.rc);
    must(ff_failpoint_hits("dest.install") < 200 && !atomic_load(&waits.ended));
    must(wait_flag(&waits.ended, 15000));
    must(ff_failpoint_hits("dest.install") == 201);
    _exit(0); /* the link is broken for good */
}

static atomic_bool told;

static void on_break(void *opaque, const char *why)
{
    (void)opaque;
    (void)why;
    atomic_store(&told, true);
}

static void wait_told(struct move *m, enum stage stage)
{
    if (stage == D_STATE)
        ff_dest_on_break(m->dest, on_break, NULL);
    if (stage == D_READY)
        must(wait_flag(&told, 15000));
}

/* The source has its guest: there is nothing to wait for */
static void before_go(void)
{
    static struct move m;
    struct ff_error err;

    must_ok(ff_failpoints_arm("dest.install=fail:12", &err), err);
    m = (struct move){.tcp = true, .n_first = 1, .hook = wait_told};
    move_run(&m);
    must(!m.ran && !m.went && m.src.rc && m.dst.rc == -ENOMEM);
    move_free(&m);
}

int main(int argc, char **argv)
{
    static const struct loop_test tests[] = {
        {"tcp: goes on", tcp_pull, 60},
        {"tcp: goes on, push", tcp_push, 60},
        {"loop: goes on", loop_pull, 60},
        {"holes", a_hole, 60},
        {"the link breaks meanwhile", breaks_meanwhile, 30},
        {"before GO", before_go, 30},
    };
    return loop_main(argc, argv, setup, tests, FF_ARRAY_LEN(tests));
}
