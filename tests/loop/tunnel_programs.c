/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * tunnel_programs.c - what a proxy's threads do with a tunnel, every byte known beforehand
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tunnel_programs.h"

#define BUF_LEN (256u << 10)

struct program of[2];
struct tunnel_plan plan;

static uint8_t byte_at(bool source, uint64_t i)
{
    return (uint8_t)(i % 251 ^ i >> 12 ^ i >> 20 ^ (source ? 0x55 : 0));
}

/* A program ends with its move, by the time limit of its test */
static void await(atomic_bool *flag, const struct program *p)
{
    while (!atomic_load(flag) && !atomic_load(&p->send_rc) && !atomic_load(&p->recv_rc))
        usleep(200);
}

static void *sender_main(void *arg)
{
    struct program *p = arg;
    FF_AUTO_FREE uint8_t *buf = malloc(BUF_LEN);
    struct ff_error err = {.code = 0};
    int rc = 0;

    atomic_store(&p->sender_tid, (int)gettid());
    await(&p->may_send, p);
    while (!rc && p->given < p->bytes && !(p->endless && atomic_load(&p->may_end))) {
        size_t n = 1 + (size_t)rand_r(&p->seed) % p->most;
        n = FF_MIN(n, (size_t)(p->bytes - p->given));
        for (size_t i = 0; i < n; i++)
            buf[i] = byte_at(p->source, p->given + i);
        rc = ff_tunnel_send(p->t, buf, n, &err);
        if (!rc)
            atomic_fetch_add(&p->given, n);
    }
    if (p->endless)
        p->bytes = p->given;
    if (!rc)
        await(&p->may_end, p);
    if (!rc)
        rc = ff_tunnel_end(p->t, &err);
    must(!rc || (rc == -ECANCELED && err.code == ECANCELED && strstr(err.text, "tunnel: ")));
    atomic_store(&p->send_rc, rc);
    atomic_store(&p->sent, true);
    return NULL;
}

static void *receiver_main(void *arg)
{
    struct program *p = arg;
    FF_AUTO_FREE uint8_t *buf = malloc(BUF_LEN);
    unsigned seed = p->seed + 1;
    struct ff_error err = {.code = 0};
    ssize_t n;

    atomic_store(&p->receiver_tid, (int)gettid());
    await(&p->may_recv, p);
    while ((n = ff_tunnel_recv(p->t, buf, 1 + (size_t)rand_r(&seed) % p->most, &err)) > 0) {
        for (ssize_t i = 0; i < n; i++)
            if (buf[i] != byte_at(!p->source, p->taken + (uint64_t)i))
                loop_fail(__FILE__, __LINE__, "%s: byte %llu is wrong", p->source ? "source" : "dest",
                          (unsigned long long)(p->taken + (uint64_t)i));
        atomic_fetch_add(&p->taken, (uint64_t)n);
    }
    must(!n || (n == -ECANCELED && err.code == ECANCELED && strstr(err.text, "tunnel: ")));
    must(n || !ff_tunnel_recv(p->t, buf, 1, &err)); /* it stays ended */
    atomic_store(&p->recv_rc, (int)n);
    atomic_store(&p->received, true);
    return NULL;
}

/* --- a move with two programs --- */


static void program_start(struct move *m, bool source)
{
    struct program *p = &of[source];
    struct ff_error err;

    *p = (struct program){.source = source, .bytes = plan.bytes[source],
                          .most = plan.most ? plan.most : 100000,
                          .seed = 7 + source, .endless = plan.endless};
    if (plan.none[source])
        return;
    atomic_store(&p->may_send, !plan.late_send);
    atomic_store(&p->may_recv, !plan.late_recv);
    atomic_store(&p->may_end, !plan.late_end);
    must_ok(source ? ff_source_tunnel(m->source, &p->t, &err) : ff_dest_tunnel(m->dest, &p->t, &err),
            err);
    must((source ? ff_source_tunnel(m->source, &p->t, &err)
                 : ff_dest_tunnel(m->dest, &p->t, &err)) == -EINVAL); /* one each */
    must(!pthread_create(&p->sender, NULL, sender_main, p));
    must(!pthread_create(&p->receiver, NULL, receiver_main, p));
    p->runs = true;
}

void tunnel_prepared(struct move *m)
{
    program_start(m, false);
    program_start(m, true);
    if (plan.beside)
        must(!pthread_create(&plan.thread, NULL, plan.beside, m));
}

/* Its side has ended: a program that does not end by that hangs, and the test's limit ends it */
static void program_end(struct move *m, bool source)
{
    struct program *p = &of[source];

    if (!p->runs)
        return;
    if (source ? m->src.rc : m->dst.rc) {
        if (source)
            ff_source_cancel(m->source);
        else
            ff_dest_cancel(m->dest);
    }
    pthread_join(p->sender, NULL);
    pthread_join(p->receiver, NULL);
    p->runs = false;
}

void tunnel_hook(struct move *m, enum stage stage)
{
    if (plan.hook)
        plan.hook(m, stage);
    if (stage == S_END || stage == D_END)
        program_end(m, stage == S_END);
}

static void check_programs(void)
{
    for (int i = 0; i < 2; i++) {
        const struct program *p = &of[i];
        if (p->send_rc || p->recv_rc || p->given != p->bytes || p->taken != of[!i].bytes)
            loop_fail(__FILE__, __LINE__, "%s: send %d, receive %d; %llu given of %llu, %llu taken "
                      "of %llu", i ? "source" : "dest", p->send_rc, p->recv_rc,
                      (unsigned long long)p->given, (unsigned long long)p->bytes,
                      (unsigned long long)p->taken, (unsigned long long)of[!i].bytes);
    }
}

void tunnel_must_carry(struct move *m)
{
    move_run(m);
    if (m->src.rc || m->dst.rc)
        loop_fail(__FILE__, __LINE__, "source: %s; destination: %s", m->src.err.text,
                  m->dst.err.text);
    if (plan.beside)
        pthread_join(plan.thread, NULL);
    check_programs();
    verify_all(m);
    move_free(m);
}

void tunnel_must_end(struct move *m, int src, int dst, const char *says)
{
    move_run(m);
    if ((src && m->src.rc != src) || (dst && m->dst.rc != dst) || !m->src.rc || !m->dst.rc)
        loop_fail(__FILE__, __LINE__, "source: %d (%s); destination: %d (%s)", m->src.rc,
                  m->src.err.text, m->dst.rc, m->dst.err.text);
    if (says && !strstr(m->src.err.text, says))
        loop_fail(__FILE__, __LINE__, "\"%s\" is not in: %s", says, m->src.err.text);
    move_free(m);
}
