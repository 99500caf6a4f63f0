/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * cancel.c - cancelling either side at every stage in which it can wait
 */
#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "cleanup.h"
#include "failpoint.h"
#include "loop.h"

static void setup(void)
{
    image_new(4000);
}

static struct {
    enum stage at;    /* the stage that is cancelled */
    enum stage holds; /* what the other side does not do before that */
    unsigned after_us;
} plan;

static void cancel(struct move *m)
{
    if (plan.at < S_END)
        ff_source_cancel(m->source);
    else
        ff_dest_cancel(m->dest);
}

static pthread_t canceller;

static void *cancel_main(void *arg)
{
    usleep(plan.after_us); /* before the wait or in the middle of it: the same */
    cancel(arg);
    return NULL;
}

static void hook(struct move *m, enum stage stage)
{
    struct side *other = plan.at < S_END ? &m->src : &m->dst;

    if (stage == (plan.at < S_END ? S_END : D_END) && plan.after_us)
        pthread_join(canceller, NULL); /* before its side is freed */
    if (stage == plan.holds)
        must(wait_flag(&other->ended, 15000));
    if (stage != plan.at)
        return;
    /* who is cut off in the middle of the state may be reset before it has read why */
    for (unsigned ms = 0; plan.at == S_READY && atomic_load(&m->stage_dst) != D_READY; ms++) {
        must(ms < 15000);
        usleep(1000);
    }
    if (!plan.after_us)
        cancel(m);
    else
        must(!pthread_create(&canceller, NULL, cancel_main, m));
}

static void try_cancel(bool tcp, enum stage at, enum stage holds, unsigned after_us)
{
    static struct move m;

    plan.at = at;
    plan.holds = holds;
    plan.after_us = after_us;
    /* a source is asked for its pages for ever when nobody touches them */
    m = (struct move){.tcp = tcp, .options = "timeout=1,prefill=off", .hook = hook, .n_first = 1};
    uint64_t t = ff_now_ns();
    move_run(&m);
    struct side *s = at < S_END ? &m.src : &m.dst;
    if (s->rc != -ECANCELED && at != D_DONE)
        loop_fail(__FILE__, __LINE__, "%s, stage %d: ended in %d: %d (%s)", tcp ? "tcp" : "loop",
                  at, s->stage, s->rc, s->err.text);
    must(s->stage == at && s->rc && s->err.text[0]);
    must(m.src.rc && m.dst.rc);
    must((ff_now_ns() - t) / 1000000 < (UNDER_SANITIZER ? 50000u : 10000u));
    if (at == D_GO) /* it left between READY and GO: the guest goes on where it is */
        must(m.src.stage == S_GO && m.src.rc == -ETIME && !m.went && !m.ran);
    if (at == S_READY && tcp && !strstr(m.dst.err.text, "canceled at the source"))
        loop_fail(__FILE__, __LINE__, "not told why, left to guess: %s", m.dst.err.text);
    move_free(&m);
}

static void at_each_stage(bool tcp)
{
    static const struct {
        enum stage at, holds;
    } waits[] = {
        {S_CONNECT, D_ACCEPT}, {S_WATCHED, D_STATE},  {S_READY, D_READY},   {S_RUNNING, D_RUNNING},
        {S_DONE, D_DONE},      {D_ACCEPT, S_CONNECT}, {D_START, S_PUBLISH}, {D_STATE, S_STATE},
        {D_GO, S_GO},          {D_DONE, S_END},
    };
    for (unsigned i = 0; i < FF_ARRAY_LEN(waits); i++) {
        try_cancel(tcp, waits[i].at, waits[i].holds, 0);
        try_cancel(tcp, waits[i].at, waits[i].holds, 20000);
    }
}

static void loop_each(void)
{
    at_each_stage(false);
}

static void tcp_each(void)
{
    at_each_stage(true);
}

/* At any moment of a move that goes on, which is the Nth pass of a fault point: it ends, one way or
 * the other */
static unsigned random_at;
static const char *const moments[] = {"control.send", "dest.install"};
static atomic_bool any_over;

static const char *moment(void)
{
    return moments[random_at / 4 % FF_ARRAY_LEN(moments)];
}

static void *cancel_any(void *arg)
{
    struct move *m = arg;
    unsigned long n = random_at * 7 % (random_at / 4 % 2 ? 90 : 24);

    while (ff_failpoint_hits(moment()) < n && !atomic_load(&any_over))
        sched_yield();
    if (random_at % 2)
        ff_source_cancel(m->source);
    else
        ff_dest_cancel(m->dest);
    return NULL;
}

static void hook_any(struct move *m, enum stage stage)
{
    if (stage == D_ACCEPT)
        must(!pthread_create(&canceller, NULL, cancel_any, m));
    if (stage == (random_at % 2 ? S_END : D_END)) {
        atomic_store(&any_over, true);
        pthread_join(canceller, NULL); /* before its side is freed */
    }
}

static void at_any_moment(void)
{
    unsigned done = 0, went = 0;
    struct ff_error err;

    for (random_at = 1; random_at <= 200; random_at++) {
        static struct move m;
        FF_AUTO_FREE char *spec = NULL;
        must(asprintf(&spec, "%s=delay:0", moment()) > 0);
        must_ok(ff_failpoints_arm(spec, &err), err);
        atomic_store(&any_over, false);
        m = (struct move){.tcp = random_at / 2 % 2, .options = "timeout=1", .hook = hook_any};
        move_run(&m);
        went += m.went;
        if (!m.src.rc && !m.dst.rc) {
            verify_all(&m);
            done++;
        }
        move_free(&m);
    }
    printf("      cancelled before GO: %u, after it: %u; %u of 200 were done before\n", 200 - went,
           went - done, done);
    must(went < 200 && done && done < went);
}

/* After ff_source_stop() the image may be unmapped at once, whatever is in flight */
static void *stop_main(void *arg)
{
    struct move *m = arg;
    struct ff_error err;

    for (enum stage s = S_CONNECT; s < S_DONE; s++)
        must_ok(move_stage(m, s, &err), err);
    usleep(random_at * 131 % 3000);
    ff_source_stop(m->source);
    image_hide(true);
    move_stage(m, S_DONE, &err); /* 0 when DONE was here already */
    atomic_store(&m->src.ended, true);
    return NULL;
}

static void stop_then_unmap(void)
{
    for (random_at = 0; random_at < 20; random_at++) {
        static struct move m;
        struct ff_error err;
        enum stage s = D_ACCEPT;
        int rc = 0;

        m = (struct move){.tcp = true, .options = "chunk=64K,window=2"};
        move_prepare(&m);
        must(!pthread_create(&m.source_thread, NULL, stop_main, &m));
        for (; s < D_END && !rc; s++)
            rc = move_stage(&m, s, &err);
        must(rc || s == D_END);
        must(wait_flag(&m.src.ended, 20000));
        pthread_join(m.source_thread, NULL);
        move_free(&m);
        image_hide(false);
    }
}

/* Given up before GO: whoever waits for memory goes on, so that the program can end */
static atomic_bool loader_ended;

static void *loader_main(void *arg)
{
    struct move *m = arg;
    volatile uint8_t *p = m->area[0].host;

    for (uint64_t c = 0; c < m->cells[0]; c += 7)
        (void)p[c * CELL]; /* what it reads is nobody's concern any more */
    atomic_store(&loader_ended, true);
    return NULL;
}

static void give_up_while_loading(struct move *m, enum stage stage)
{
    pthread_t loader;

    if (stage == S_STATE) /* never sent: faults are held */
        must(wait_flag(&m->dst.ended, 20000));
    if (stage != D_STATE)
        return;
    must(!pthread_create(&loader, NULL, loader_main, m));
    must(!wait_flag(&loader_ended, 100));
    ff_dest_give_up(m->dest);
    must(wait_flag(&loader_ended, 20000));
    pthread_join(loader, NULL);
}

static void give_up(void)
{
    for (int tcp = 0; tcp < 2; tcp++) {
        static struct move m;
        m = (struct move){.tcp = tcp, .hook = give_up_while_loading};
        atomic_store(&loader_ended, false);
        move_run(&m);
        must(!m.ran && m.dst.rc == -ECANCELED && m.src.rc);
        move_free(&m);
    }
}

int main(int argc, char **argv)
{
    static const struct loop_test tests[] = {
        {"loop: each stage", loop_each, 60},
        {"tcp: each stage", tcp_each, 90},
        {"give up", give_up, 0},
        {"stop, then unmap", stop_then_unmap, 40},
        {"any moment", at_any_moment, 90},
    };
    return loop_main(argc, argv, setup, tests, FF_ARRAY_LEN(tests));
}
