/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * one_move.c - both sides of a move through their stages, and what must hold afterwards
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "address.h"
#include "cleanup.h"
#include "loop.h"
#include "source.h"

static const char *const names[] = {
    [S_CONNECT] = "source connect", [S_PUBLISH] = "source publish", [S_STATE] = "source state",
    [S_READY] = "source ready",     [S_GO] = "source go",           [S_RUNNING] = "source running",
    [S_DONE] = "source done",       [S_END] = "source end",         [D_ACCEPT] = "dest accept",
    [S_WATCHED] = "source watched",
    [D_START] = "dest start",       [D_STATE] = "dest state",       [D_READY] = "dest ready",
    [D_GO] = "dest go",             [D_RUNNING] = "dest running",   [D_DONE] = "dest done",
    [D_END] = "dest end",
};

/* --- before the first stage --- */

static void set_defaults(struct move *m)
{
    if (!m->n_regions && !m->no_region) {
        m->n_regions = 2;
        m->cells[0] = 1500;
        m->cells[1] = 501;
    }
    m->state_bytes = m->state_bytes ? m->state_bytes : 100000;
    m->config = m->config ? m->config : "test";
    m->n_cells = 0;
    for (unsigned i = 0; i < m->n_regions; i++) {
        if (!m->area[i].host)
            area_new(&m->area[i], m->memory, m->cells[i] * CELL);
        m->n_cells += m->area[i].len_bytes / CELL;
    }
    m->touches = m->touches ? m->touches : m->n_cells;
    must(m->n_cells <= image_cells && m->touchers <= CELL_WORDS);
}

static void add_region(struct move *m, unsigned i, bool source)
{
    const struct area *a = &m->area[i];
    struct ff_error err;
    char name[32];

    snprintf(name, sizeof(name), "region%u", i);
    struct ff_region r = {.name = name, .host = a->host, .len_bytes = a->len_bytes,
                          .psize = a->psize, .fd = a->fd, .zero_fill = true};
    if (!source) {
        must_ok(ff_dest_add_region(m->dest, &r, &err), err);
        return;
    }
    r.host = image;
    for (unsigned k = 0; k < i; k++)
        r.host = (uint8_t *)r.host + m->area[k].len_bytes;
    r.fd = -1;
    if (m->add_source)
        m->add_source(m, &r);
    else
        must_ok(ff_source_add_region(m->source, &r, &err), err);
}

static struct ff_address *address(const struct move *m, unsigned port)
{
    const char *more = port && m->source_options ? m->source_options : m->options;
    char options[500] = "";

    if (more)
        must(snprintf(options, sizeof(options), ",%s", more) < (int)sizeof(options));
    struct ff_address *a = loop_address(port, options);
    a->pause_ms = m->pause_ms ? m->pause_ms : a->pause_ms;
    a->go_timeout_ms = m->go_timeout_ms ? m->go_timeout_ms : a->go_timeout_ms;
    return a;
}

void move_prepare(struct move *m)
{
    struct ff_address *a = address(m, 0);
    struct ff_link *to_dest, *to_source;
    struct ff_error err;

    set_defaults(m);
    m->src.stage = S_CONNECT;
    m->dst.stage = D_ACCEPT;
    if (m->tcp) {
        must_ok(ff_dest_new(a, &m->dest, &err), err);
        ff_address_free(a);
        a = address(m, ff_dest_port(m->dest));
        must_ok(ff_source_new(a, &m->source, &err), err);
    } else {
        must_ok(ff_loop_pair(&to_dest, &to_source, &err), err);
        m->to_dest = to_dest;
        m->to_source = to_source;
        to_dest->pushes = !m->no_push;
        to_dest->max_len_bytes = m->source_max ? m->source_max : to_dest->max_len_bytes;
        must_ok(ff_dest_new_on_link(a, to_source, &m->dest, &err), err);
        must_ok(ff_source_new(a, &m->source, &err), err);
        ff_source_use_link(m->source, to_dest);
    }
    ff_address_free(a);
    for (unsigned i = 0; i < m->n_regions; i++) {
        add_region(m, i, true);
        add_region(m, m->n_regions - 1 - i, false); /* only names decide, not the order */
    }
    for (unsigned i = 0; i < m->touchers; i++) {
        m->toucher[i].last = calloc(m->n_cells, sizeof(uint32_t));
        must(m->toucher[i].last);
    }
}

/* --- stages --- */

static uint8_t *state_bytes(size_t n)
{
    uint8_t *p = malloc(n);

    must(p);
    for (size_t i = 0; i < n; i++)
        p[i] = (uint8_t)(i % 251 ^ i >> 12);
    return p;
}

static int send_state(struct move *m, struct ff_error *err)
{
    uint8_t *state = state_bytes(m->state_bytes);
    int rc = ff_source_send_state(m->source, state, m->state_bytes, m->first, m->n_first, err);

    free(state);
    return rc;
}

static int recv_state(struct move *m, struct ff_error *err)
{
    size_t len = 0;
    void *got = NULL;
    int rc = ff_dest_recv_state(m->dest, &got, &len, err);

    if (rc)
        return rc;
    uint8_t *want = state_bytes(m->state_bytes);
    must(len == m->state_bytes && !memcmp(got, want, len));
    free(want);
    free(got);
    return 0;
}

static int start_pager(struct move *m, struct ff_error *err)
{
    int rc = ff_dest_start(m->dest, err);

    if (!rc && !m->touch_late)
        touchers_start(m); /* loading the state may fault too */
    return rc;
}

static int go(struct move *m, struct ff_error *err)
{
    int rc = ff_source_go(m->source, err);

    m->went = rc != -ETIME; /* that alone lets its guest go on */
    return rc;
}

static int wait_go(struct move *m, struct ff_error *err)
{
    int rc = ff_dest_wait_go(m->dest, err);

    m->ran = !rc;
    return rc;
}

static int run_guest(struct move *m, struct ff_error *err)
{
    int rc = ff_dest_running(m->dest, err);

    if (!rc && m->touch_late)
        touchers_start(m);
    return rc;
}

int move_stage(struct move *m, enum stage stage, struct ff_error *err)
{
    switch (stage) {
    case S_CONNECT:
        return ff_source_connect(m->source, m->config, err);
    case S_PUBLISH:
        return ff_source_publish(m->source, err);
    case S_WATCHED:
        return ff_source_wait_watched(m->source, err);
    case S_STATE:
        return send_state(m, err);
    case S_READY:
        return ff_source_wait_ready(m->source, err);
    case S_GO:
        return go(m, err);
    case S_RUNNING:
        return ff_source_wait_running(m->source, err);
    case S_DONE:
        return ff_source_wait_done(m->source, err);
    case D_ACCEPT:
        return ff_dest_accept(m->dest, "test", err);
    case D_START:
        return start_pager(m, err);
    case D_STATE:
        return recv_state(m, err);
    case D_READY:
        return ff_dest_ready(m->dest, err);
    case D_GO:
        return wait_go(m, err);
    case D_RUNNING:
        return run_guest(m, err);
    case D_DONE:
        return ff_dest_wait_done(m->dest, err);
    default:
        loop_fail(__FILE__, __LINE__, "no such stage");
    }
}

#define RESUME_MS 60000

static bool may_resume(const struct move *m, const struct side *s)
{
    bool went = s->stage >= S_GO && s->stage < S_END;

    return m->resumes && ((went && m->went) || (s->stage >= D_GO && s->stage < D_END));
}

/* Wait for another link: the stage's outcome */
static int resume(struct move *m, struct side *s)
{
    bool source = s == &m->src;
    int rc;

    atomic_fetch_add(source ? &m->breaks_src : &m->breaks_dst, 1);
    if (s->stage == D_RUNNING && m->touch_late)
        touchers_start(m); /* its guest runs on */
    if (m->broken)
        m->broken(m, source);
    if (!source)
        return ff_dest_recover(m->dest, RESUME_MS, &s->err);
    rc = ff_source_resume(m->source, NULL, RESUME_MS, &s->err);
    m->went = rc != -ETIME;
    return rc;
}

/* A stage, over as many links as it takes */
static int run_stage(struct move *m, struct side *s)
{
    int rc = move_stage(m, s->stage, &s->err);

    while (rc && may_resume(m, s)) {
        rc = resume(m, s);
        if (rc || s->stage == S_GO || s->stage == D_RUNNING) /* said once */
            return rc;
        rc = move_stage(m, s->stage, &s->err);
    }
    return rc;
}

static void run_side(struct move *m, struct side *s, atomic_int *at, enum stage end)
{
    while (s->stage != end) {
        atomic_store(at, (int)s->stage);
        if (m->hook)
            m->hook(m, s->stage);
        s->rc = run_stage(m, s);
        if (s->rc)
            break;
        s->stage++;
    }
    atomic_store(at, (int)end);
    if (m->hook)
        m->hook(m, end);
    if (s->rc && (s->err.code != -s->rc || !s->err.text[0]))
        loop_fail(__FILE__, __LINE__, "%s: %d, but its error is %d \"%s\"", names[s->stage], s->rc,
                  s->err.code, s->err.text);
}

static void run_source(struct move *m)
{
    run_side(m, &m->src, &m->stage_src, S_END);
    ff_source_stats(m->source, &m->src.stats);
}

static void run_dest(struct move *m)
{
    run_side(m, &m->dst, &m->stage_dst, D_END);
    if (!m->resumes || m->dst.rc)
        return;
    /* the source may not know; or it does, and has said so over a link that broke */
    m->dst.rc = ff_dest_recover(m->dest, m->told_ms ? m->told_ms : RESUME_MS, &m->dst.err);
    if (m->told_ms && m->dst.rc == -ETIMEDOUT)
        m->dst.rc = 0;
}

int move_side(struct move *m, bool source)
{
    if (source)
        run_source(m);
    else
        run_dest(m);
    return source ? m->src.rc : m->dst.rc;
}

static bool dest_accepts(struct move *m)
{
    int at = atomic_load(&m->stage_dst);

    return !at || at == D_ACCEPT;
}

/* A destination that loses its source before the queues are open waits for the next one, and one
 * that was READY for the same one, which it did not hear: as they should; the test has no other */
static void no_other_source(struct move *m)
{
    for (unsigned ms = m->src.stage == S_CONNECT ? 0 : 3000; ms && dest_accepts(m); ms--)
        usleep(1000);
    pthread_mutex_lock(&m->gate);
    if (m->tcp && m->dest && dest_accepts(m))
        ff_dest_cancel(m->dest);
    pthread_mutex_unlock(&m->gate);
    if (!m->resumes || m->went || wait_flag(&m->dst.ended, 3000))
        return;
    pthread_mutex_lock(&m->gate);
    if (m->dest)
        ff_dest_interrupt(m->dest);
    pthread_mutex_unlock(&m->gate);
}

static void *source_main(void *arg)
{
    struct move *m = arg;

    run_source(m);
    pthread_mutex_lock(&m->gate);
    if (m->src.rc) {
        ff_source_free(m->source); /* what a program does that gives up */
        m->source = NULL;
    }
    pthread_mutex_unlock(&m->gate);
    if (m->src.rc)
        no_other_source(m);
    atomic_store(&m->src.ended, true);
    return NULL;
}

void move_cancel_source(struct move *m)
{
    pthread_mutex_lock(&m->gate);
    if (m->source)
        ff_source_cancel(m->source);
    pthread_mutex_unlock(&m->gate);
}

/* As a management tool does: ask all the time, from a thread of its own */
static void *stats_main(void *arg)
{
    struct move *m = arg;
    struct ff_stats st;

    while (!atomic_load(&m->dst.ended)) {
        ff_dest_stats(m->dest, &st);
        if (st.bytes_present > st.bytes_total)
            loop_fail(__FILE__, __LINE__, "%llu bytes present of %llu",
                      (unsigned long long)st.bytes_present, (unsigned long long)st.bytes_total);
        usleep(2000);
    }
    return NULL;
}

void move_run(struct move *m)
{
    move_prepare(m);
    if (m->prepared)
        m->prepared(m);
    must(!pthread_create(&m->source_thread, NULL, source_main, m));
    must(!pthread_create(&m->stats_thread, NULL, stats_main, m));
    run_dest(m);
    atomic_store(&m->dst.ended, true);
    pthread_join(m->stats_thread, NULL);
    ff_dest_stats(m->dest, &m->dst.stats);
    pthread_mutex_lock(&m->gate);
    if (m->dst.rc && !m->ran) {
        ff_dest_free(m->dest); /* the program ends, its guest never ran */
        m->dest = NULL;
    }
    pthread_mutex_unlock(&m->gate);
    if (!wait_flag(&m->src.ended, (UNDER_SANITIZER ? 5 : 1) * 20000))
        loop_fail(__FILE__, __LINE__, "the destination ended in %s (%s), the source hangs in %s",
                  names[m->dst.stage], m->dst.rc ? m->dst.err.text : "no error",
                  names[atomic_load(&m->stage_src)]);
    pthread_join(m->source_thread, NULL);
    must(m->went || !m->ran); /* one runner */
}

/* --- afterwards --- */

static void check_stats(const struct move *m)
{
    const struct ff_stats *d = &m->dst.stats;

    must(d->bytes_total == m->n_cells * CELL);
    must(d->bytes_present == d->bytes_total);
    must(d->bytes_prefill + d->bytes_fault + d->bytes_zero == d->bytes_total + d->bytes_discarded);
    must(d->fault_p50_ns <= d->fault_p90_ns && d->fault_p90_ns <= d->fault_p99_ns &&
         d->fault_p99_ns <= d->fault_p999_ns && d->fault_p999_ns <= d->fault_max_ns);
    must(!(d->faults + d->faults_waited) == !d->fault_max_ns);
    must(d->load_ns && d->start_ns && d->complete_ns);
    /* one that comes while its guest is started this side does not hear of, but from the source */
    must(d->breaks <= FF_MAX(atomic_load(&m->breaks_dst), atomic_load(&m->breaks_src)) &&
         !d->breaks == !d->paused_ns);
    must(d->breaks || !d->bytes_again);
    must(d->bytes_copied + d->bytes_continued + d->bytes_moved + d->bytes_zero ==
         d->bytes_total + d->bytes_discarded);
    struct ff_stats theirs = m->src.stats;
    theirs.source_cpu_ns = 0;
    must(!memcmp(d, &theirs, sizeof(*d))); /* the same numbers on both sides */
}

void move_must_succeed(struct move *m)
{
    if (m->src.rc)
        loop_fail(__FILE__, __LINE__, "%s: %s; %s: %s", names[m->src.stage], m->src.err.text,
                  names[m->dst.stage], m->dst.rc ? m->dst.err.text : "no error");
    if (m->dst.rc)
        loop_fail(__FILE__, __LINE__, "%s: %s", names[m->dst.stage], m->dst.err.text);
    must(m->went && m->ran);
    touchers_join(m);
    verify_all(m);
    check_stats(m);
    move_free(m);
}

void move_free(struct move *m)
{
    ff_source_free(m->source);
    ff_dest_free(m->dest);
    m->source = NULL;
    m->dest = NULL;
    for (unsigned i = 0; i < CELL_WORDS; i++) {
        free(m->toucher[i].last);
        m->toucher[i].last = NULL;
    }
    for (unsigned i = 0; i < m->n_regions; i++)
        ff_close_fd(&m->area[i].fd);
}

void move_must_survive(struct move *m, const char *faults, unsigned breaks)
{
    loop_arm(faults);
    m->tcp = m->resumes = true;
    move_run(m);
    if (!m->src.rc && !m->dst.rc && atomic_load(&m->breaks_src) < breaks)
        loop_fail(__FILE__, __LINE__, "%u breaks (want %u): %s; %s", atomic_load(&m->breaks_src),
                  breaks, faults, m->options);
    move_must_succeed(m);
}
