/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * tunnels.c - moves with a tunnel: bytes both ways, and nobody waits for ever, however it ends
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "by_hand.h"
#include "failpoint.h"
#include "tunnel_programs.h"

static void setup(void)
{
    image_new(4000);
}

/* --- both ways, from the hello on --- */

static void both_ways(bool tcp, unsigned most)
{
    static struct move m;

    plan.bytes[0] = LOT;
    plan.bytes[1] = LOT / 2 + 1;
    plan.most = most;
    m = (struct move){.tcp = tcp, MOVE};
    tunnel_must_carry(&m);
}

static void loop_both(void)
{
    both_ways(false, 100000);
}

static void tcp_both(void)
{
    both_ways(true, 100000);
}

static void small_parts(void)
{
    both_ways(true, 300);
}

static void with_key(void)
{
    static struct move m;
    char options[300];

    snprintf(options, sizeof(options), "key-file=%s", loop_key_file());
    plan.bytes[0] = plan.bytes[1] = SOME;
    m = (struct move){.tcp = true, .options = options, MOVE};
    tunnel_must_carry(&m);
    loop_remove_key();
}

static void one_way(void)
{
    static struct move m;

    for (int i = 0; i < 3; i++) { /* and nothing at all */
        plan.bytes[0] = i == 0 ? SOME : 0;
        plan.bytes[1] = i == 1 ? SOME : 0;
        m = (struct move){.tcp = i, MOVE};
        tunnel_must_carry(&m);
    }
}

/* All there is to move comes by the tunnel; without one a move of nothing is refused */
static void no_region(void)
{
    static struct move m;

    for (int i = 0; i < 2; i++) {
        plan.bytes[0] = plan.bytes[1] = LOT;
        m = (struct move){.tcp = i, .no_region = true, MOVE};
        tunnel_must_carry(&m);
    }
    plan = (struct tunnel_plan){.none = {true, true}};
    m = (struct move){.tcp = true, .no_region = true, MOVE};
    tunnel_must_end(&m, 0, 0, "there are none");
}

/* --- a program that takes nothing --- */

static void window_hook(struct move *m, enum stage stage)
{
    if (stage != D_START)
        return;
    for (unsigned ms = 0; of[1].given + of[1].most <= FF_TUNNEL_WINDOW; ms++, usleep(1000))
        must(ms < 15000);
    must(thread_blocked(&of[1].sender_tid, &of[1].sent)); /* for room, and nothing else */
    must(of[1].given <= FF_TUNNEL_WINDOW && m->dest); /* and the move goes on meanwhile */
}

static void release_hook(struct move *m, enum stage stage)
{
    window_hook(m, stage);
    if (stage == D_DONE)
        atomic_store(&of[0].may_recv, true);
    if (stage == S_CONNECT)
        atomic_store(&of[1].may_recv, true);
}

static void window_full(void)
{
    static struct move m;

    plan.bytes[1] = 3 * FF_TUNNEL_WINDOW;
    plan.most = 4096;
    plan.late_recv = true;
    plan.hook = release_hook;
    m = (struct move){.tcp = true, MOVE};
    tunnel_must_carry(&m);
}

/* --- DONE waits for both ends --- */

static int late; /* whose end comes last */

static void late_end_hook(struct move *m, enum stage stage)
{
    (void)m;
    if (stage == S_RUNNING)
        atomic_store(&of[!late].may_end, true);
}

static void *end_late_main(void *arg)
{
    struct move *m = arg;
    struct ff_stats st = {.bytes_total = 1};

    /* the source has heard, by a PROGRESS after the last page, that all is there, and waits on */
    for (unsigned ms = 0; st.bytes_present != st.bytes_total; ms++, usleep(1000)) {
        must(ms < 15000);
        if (atomic_load(&m->stage_src) == S_DONE)
            ff_source_stats(m->source, &st);
        st.bytes_total += !st.bytes_total;
    }
    must(!atomic_load(&m->src.ended) && !atomic_load(&m->dst.ended));
    must(atomic_load(&m->stage_src) == S_DONE && atomic_load(&m->stage_dst) == D_DONE);
    must(!atomic_load(&of[!late].received));
    atomic_store(&of[late].may_end, true);
    return NULL;
}

static void done_waits(void)
{
    static struct move m;

    for (late = 0; late < 2; late++) {
        plan.bytes[0] = plan.bytes[1] = SOME;
        plan.beside = end_late_main;
        plan.late_end = true;
        plan.hook = late_end_hook;
        m = (struct move){.tcp = true, MOVE};
        tunnel_must_carry(&m);
    }
}

/* --- what ends it --- */

static void one_alone(void)
{
    static struct move m;

    for (int i = 0; i < 2; i++) {
        plan.none[i] = true;
        plan.none[!i] = false;
        m = (struct move){MOVE};
        tunnel_must_end(&m, -EREMOTEIO, -ENOTSUP, i ? "has no tunnel, and this side has"
                                             : "has a tunnel, and this side has none");
    }
}

/* Both programs are blocked, each in both directions, while their side waits for a message */
static void await_blocked(void)
{
    for (int i = 0; i < 2; i++)
        for (unsigned ms = 0; of[i].given + of[i].most <= FF_TUNNEL_WINDOW; ms++, usleep(1000))
            must(ms < 15000);
    must(thread_blocked(&of[0].sender_tid, &of[0].sent));
    must(thread_blocked(&of[1].sender_tid, &of[1].sent));
}

static bool by_source, unconnected;

static void cancel_hook(struct move *m, enum stage stage)
{
    if (stage != (unconnected ? by_source ? S_CONNECT : D_ACCEPT
                  : by_source ? S_PUBLISH
                              : D_START))
        return;
    await_blocked();
    if (by_source)
        ff_source_cancel(m->source);
    else
        ff_dest_cancel(m->dest);
    must(wait_flag(&of[by_source].sent, 15000) && of[by_source].send_rc == -ECANCELED);
}

static void canceled(void)
{
    static struct move m;

    for (int i = 0; i < 8; i++) {
        by_source = i & 1;
        unconnected = i & 4;
        plan.bytes[0] = plan.bytes[1] = 2 * FF_TUNNEL_WINDOW;
        plan.most = 4096;
        plan.late_recv = true;
        plan.hook = cancel_hook;
        m = (struct move){.tcp = i & 2, MOVE};
        tunnel_must_end(&m, 0, 0, NULL);
        must(of[0].send_rc == -ECANCELED && of[1].send_rc == -ECANCELED);
        must(of[0].recv_rc == -ECANCELED && of[1].recv_rc == -ECANCELED);
    }
}

/* A link that breaks before GO is the last one: who waits in the tunnel learns it, too */
static void break_hook(struct move *m, enum stage stage)
{
    if (stage != D_STATE)
        return;
    await_blocked();
    ff_dest_pause(m->dest);
    for (int i = 0; i < 2; i++)
        must(wait_flag(&of[i].sent, 15000) && of[i].send_rc == -ECANCELED);
}

static void before_go(void)
{
    static struct move m;

    plan.bytes[0] = plan.bytes[1] = 2 * FF_TUNNEL_WINDOW;
    plan.most = 4096;
    plan.late_recv = true;
    plan.hook = break_hook;
    m = (struct move){.tcp = true, .resumes = true, MOVE};
    tunnel_must_end(&m, 0, 0, NULL);
}

/* The programs learn it before anybody cancels */
static void ends_hook(struct move *m, enum stage stage)
{
    (void)m;
    if (stage == S_END || stage == D_END)
        must(wait_flag(&of[stage == S_END].received, 15000));
}

static void go_lost(void)
{
    static struct move m;

    loop_arm("source.gone=fail@1");
    plan.hook = ends_hook;
    plan.bytes[0] = plan.bytes[1] = SOME;
    plan.late_end = true;
    m = (struct move){.tcp = true, .resumes = true, MOVE};
    tunnel_must_end(&m, -ETIME, -ESTALE, "never got GO");
    must(!m.went && !m.ran);
}

/* --- hear --- */

static void *interrupt_main(void *arg)
{
    struct move *m = arg;

    for (unsigned ms = 0; of[0].taken < SOME || of[1].taken < SOME; ms++, usleep(1000))
        must(ms < 15000);
    ff_source_interrupt(m->source);
    ff_dest_interrupt(m->dest);
    return NULL;
}

static atomic_uint heard;

static void hear_hook(struct move *m, enum stage stage)
{
    struct ff_error err;
    pthread_t t;

    if (stage == S_PUBLISH) {
        must(!pthread_create(&t, NULL, interrupt_main, m));
        must_ok(ff_source_hear(m->source, &err), err);
        pthread_join(t, NULL);
        ff_source_interrupt(m->source); /* before the wait: the same */
        must_ok(ff_source_hear(m->source, &err), err);
    } else if (stage == D_START) {
        must_ok(ff_dest_hear(m->dest, &err), err);
    } else {
        return;
    }
    must(of[0].taken == SOME && of[1].taken == SOME);
    atomic_fetch_add(&heard, 1);
}

static void hears(void)
{
    static struct move m;
    struct ff_error err;

    plan.bytes[0] = plan.bytes[1] = SOME;
    plan.hook = hear_hook;
    m = (struct move){.tcp = true, .resumes = true, MOVE};
    tunnel_must_carry(&m);
    must(heard == 2);
    m = (struct move){MOVE};
    move_prepare(&m);
    must(ff_source_hear(m.source, &err) == -EINVAL && ff_dest_hear(m.dest, &err) == -EINVAL);
    move_free(&m);
}

/* Who only hears learns that the other side refuses, and why */
static void hear_refusal(struct move *m, enum stage stage)
{
    struct ff_error err;

    if (stage == S_WATCHED) {
        int rc = ff_source_hear(m->source, &err);
        if (rc != -EREMOTEIO || !strstr(err.text, "destination: injected"))
            loop_fail(__FILE__, __LINE__, "%d: %s", rc, err.text);
        atomic_fetch_add(&heard, 1);
    }
}

static void hears_refusal(void)
{
    static struct move m;

    loop_arm("dest.pager=fail");
    plan.hook = hear_refusal;
    m = (struct move){.tcp = true, MOVE};
    tunnel_must_end(&m, -EREMOTEIO, -EIO, "destination: injected");
    must(heard == 1);
}

/* --- a source that says what it should not --- */

static void *hostile_main(void *arg)
{
    static uint8_t msg[FF_MSG_MAX];
    struct ff_bytes p = {.offset = 5, .data = msg, .n = 7};
    struct ff_wire_region r[REGIONS_MAX];
    struct ff_error err;
    struct ff_welcome w;
    struct move *m = arg;

    struct ff_hello h = hand_hello(m, r);
    h.features = FF_WIRE_TUNNEL;
    struct ff_link *l = hand_say(m, msg, ff_wire_put_hello(msg, &h, NULL));
    int len = l->ops->recv(l, msg, 15000, &err);
    must(len > 0 && ff_wire_type(msg, (size_t)len, &err) == FF_MSG_WELCOME);
    must_ok(ff_wire_get_welcome(msg, (size_t)len, &w, &err), err);
    must(w.features & FF_WIRE_TUNNEL);
    must_ok(l->ops->open_queues(l, w.session, 15000, &err), err);
    len = ff_wire_put_bytes(msg, &p);
    must_ok(l->ops->send(l, msg, (uint32_t)len, &err), err);
    while ((len = l->ops->recv(l, msg, 15000, &err)) >= 0) /* it hangs up */
        ;
    must(len != -ETIMEDOUT);
    l->ops->free(l);
    return NULL;
}

static void hostile(void)
{
    static struct move m;
    struct ff_error err;
    struct ff_tunnel *t;
    uint8_t byte;
    pthread_t peer;

    m = (struct move){.tcp = true};
    move_prepare(&m);
    must_ok(ff_dest_tunnel(m.dest, &t, &err), err);
    must(!pthread_create(&peer, NULL, hostile_main, &m));
    must_ok(ff_dest_accept(m.dest, "test", &err), err);
    must(ff_tunnel_recv(t, &byte, 1, &err) == -ECANCELED);
    int rc = ff_dest_start(m.dest, &err);
    if (rc != -EPROTO || !strstr(err.text, "bytes at 0x5"))
        loop_fail(__FILE__, __LINE__, "%d: %s", rc, err.text);
    pthread_join(peer, NULL);
    move_free(&m);
}

int main(int argc, char **argv)
{
    static const struct loop_test tests[] = {
        {"both ways, loop", loop_both, 30},
        {"both ways, tcp", tcp_both, 30},
        {"small parts", small_parts, 60},
        {"with a key", with_key, 30},
        {"one way", one_way, 30},
        {"no region", no_region, 30},
        {"window full", window_full, 30},
        {"DONE waits for both ends", done_waits, 60},
        {"one side alone", one_alone, 30},
        {"canceled", canceled, 60},
        {"a break before GO", before_go, 30},
        {"GO is lost", go_lost, 60},
        {"hear", hears, 30},
        {"hear a refusal", hears_refusal, 30},
        {"a hostile source", hostile, 30},
    };

    return loop_main(argc, argv, setup, tests, FF_ARRAY_LEN(tests));
}
