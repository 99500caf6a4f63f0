/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * never_taken_back.c - a guest that visits with fallback=go, whose home gives up the right to take it back: it needs no
 *                      lease any more
 */
#include <errno.h>
#include <stdatomic.h>
#include <string.h>
#include <unistd.h>

#include "cleanup.h"
#include "failpoint.h"
#include "fallback.h"
#include "visits.h"

#define HEAR_MS 5000
#define NO_LINK_MS 2500
#define KEEP_MS 2000 /* it asks every 100 ms */
#define AGAIN_MS 10000

static atomic_uint stops;

static void on_lease(void *opaque, bool may_run)
{
    (void)opaque;
    atomic_fetch_add(&stops, !may_run);
}

static void *stay_main(void *arg)
{
    struct leg *l = arg;
    struct ff_error err;

    while ((l->stay_rc = ff_dest_wait_done(l->dest, &err)) && !ff_dest_recover(l->dest, AGAIN_MS, &err))
        ;
    return NULL;
}

static void go_leased(struct leg *out)
{
    char given[400];

    snprintf(given, sizeof(given), ",visit=on,timeout=5,%s", set_out(1, ""));
    loop_arm("source.resume=fail:71@2"); /* see break_twice() */
    visit_guest_new(MEM_ANON);
    visit_leg_new(out, home, away, given);
    ff_dest_on_lease(out->dest, on_lease, NULL);
    must(!visit_receive(out, away, true));
    visit_let_run(out);
    must(!pthread_create(&out->stay, NULL, stay_main, out));
    visit_work(10);
    must(ff_dest_has_fallback(out->dest) && !ff_dest_is_released(out->dest));
}

/* What home listens for: nobody comes */
static void keep(struct leg *back, const struct leg *out, const char *more)
{
    struct ff_error err;

    visit_leg_new(back, away, home, more);
    must_ok(ff_dest_keep(back->dest, out->source, &err), err);
}

static bool is_released_within(struct ff_dest *d, int limit_ms)
{
    uint64_t end_ns = ff_now_ns() + (uint64_t)limit_ms * 1000000u;

    while (!ff_dest_is_released(d) && ff_now_ns() < end_ns)
        usleep(10000);
    return ff_dest_is_released(d);
}

/* There is another link, which brings pages; then there is none any more */
static void break_twice(struct leg *out)
{
    ff_source_pause(out->source);
    visit_work(9);
    ff_source_pause(out->source);
    pthread_join(out->thread, NULL);
    must(out->rc);
}

static void given_up(void)
{
    struct leg out, back, again;
    struct ff_error err;

    go_leased(&out);
    keep(&back, &out, ",fallback=off");
    must(is_released_within(out.dest, HEAR_MS));
    ff_dest_free(back.dest); /* nobody came: that changes nothing */
    break_twice(&out);
    must(ff_dest_is_released(out.dest));
    usleep(NO_LINK_MS * 1000); /* the lease of a guest that has one ends meanwhile: see kept() */
    must(!atomic_load(&stops));
    must(ff_source_take_back(out.source, &err) == -EBUSY && strstr(err.text, "on its way back"));
    must(!is_there(record) && !is_there(fenced));
    keep(&again, &out, "");
    remove_files();
    _exit(0);
}

/* Home waits for its guest, and has given up nothing */
static void kept(void)
{
    struct leg out, back;
    struct ff_error err;

    go_leased(&out);
    keep(&back, &out, "");
    must(!is_released_within(out.dest, KEEP_MS));
    break_twice(&out);
    for (unsigned n = 0; n < AGAIN_MS / 10 && !atomic_load(&stops); n++)
        usleep(10000);
    must(atomic_load(&stops));
    must_ok(ff_source_take_back(out.source, &err), err);
    must(is_there(record) && is_there(fenced));
    remove_files();
    _exit(0);
}

int main(int argc, char **argv)
{
    static const struct loop_test tests[] = {
        {"home has given up", given_up, 60},
        {"home has not", kept, 60},
    };

    return loop_main(argc, argv, fallback_setup, tests, FF_ARRAY_LEN(tests));
}
