/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * proxy.c - what both sides of a proxy share: events, failures, signals, threads; see proxy.h
 */
#include "proxy_small.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>

#include "autojson.h"
#include "metrics.h"
#include "rundir.h"
#include "thread.h"

/* --- what is said --- */

double proxy_ms(const struct proxy *p, uint64_t at_ns)
{
    return at_ns > p->begin_ns ? (double)(at_ns - p->begin_ns) / 1e6 : 0;
}

static void old_print_fields(FILE *out, const json_t *fields)
{
    const char *key;
    json_t *v;

    json_object_foreach((json_t *)fields, key, v)
    {
        if (json_is_string(v))
            fprintf(out, " %s=%s", key, json_string_value(v));
        else if (json_is_real(v))
            fprintf(out, " %s=%.1f", key, json_real_value(v));
        else if (json_is_integer(v))
            fprintf(out, " %s=%lld", key, (long long)json_integer_value(v));
    }
}

static void old_keep_reason(struct proxy *p, const char *reason)
{
    pthread_mutex_lock(&p->lock);
    if (*reason)
        snprintf(p->reason, sizeof(p->reason), "%s", reason);
    pthread_mutex_unlock(&p->lock);
}

void proxy_event(struct proxy *p, const char *name, json_t *fields)
{
    FF_AUTO_JSON json_t *all =
        json_pack("{s:s,s:s,s:f}", "event", name, "side", p->side, "ms", proxy_ms(p, ff_now_ns()));
    FF_AUTO_JSON json_t *own = fields;

    old_keep_reason(p, text_of(own, "reason"));
    if (p->on_event)
        p->on_event(p, name, own);
    if (p->o->json) {
        FF_AUTO_FREE char *line = NULL;

        json_object_update(all, own);
        line = json_dumps(all, JSON_COMPACT);
        printf("%s\n", line ? line : "{}");
        fflush(stdout);
        return;
    }
    flockfile(stderr);
    fprintf(stderr, "farfork proxy: %s: %8.1f ms: %s", p->side, proxy_ms(p, ff_now_ns()), name);
    old_print_fields(stderr, own);
    fputc('\n', stderr);
    funlockfile(stderr);
}

void proxy_say_why(struct proxy *p, const char *name, const struct ff_error *why)
{
    proxy_event(p, name, json_pack("{s:s}", "reason", why->text));
}

void proxy_begins(struct proxy *p)
{
    p->asked_ns = ff_now_ns();
    p->metrics = metrics_new(p->o->metrics_dir, "farfork proxy");
    metrics_begin_move(p->metrics, p->side);
}

static void old_count(struct proxy *p, const struct ff_stats *st, int code)
{
    uint64_t now = ff_now_ns();
    struct metrics_move done = {
        .side = p->side,
        .via = "proxy",
        .link = p->source ? ff_source_link(p->source) : p->dest ? ff_dest_link(p->dest) : "none",
        .outcome = !code ? NULL : code == PROXY_EXIT_HERE ? "here" : "unclear",
        .total_bytes = (double)st->bytes_total,
        .present_bytes = (double)st->bytes_present,
        .again_bytes = (double)st->bytes_again,
        .faults = (double)st->faults,
        .breaks = (double)st->breaks,
        .paused_s = (double)st->paused_ns / 1e9,
        /* the destination waits for its source first */
        .duration_s = code || !p->is_source ? -1 : (double)(now - p->asked_ns) / 1e9,
        .downtime_s =
            p->run_ns > p->pause_ns && p->pause_ns ? (double)(p->run_ns - p->pause_ns) / 1e9 : -1,
        .fault_p99_s = st->faults ? (double)st->fault_p99_ns / 1e9 : -1,
    };

    metrics_end_move(p->metrics, &done);
    metrics_free(p->metrics);
}

void proxy_summary(struct proxy *p, int code)
{
    struct ff_stats st;
    uint64_t now = ff_now_ns();
    const struct proxy_counts *c = &p->counts;

    proxy_stats(p, &st);
    proxy_event(
        p, "ended",
        json_pack("{s:f,s:f,s:I,s:I,s:I,s:I,s:I,s:I,s:I,s:I,s:I,s:I,s:I,s:I,s:o}", "total_ms",
                  proxy_ms(p, now), "downtime_ms",
                  p->pause_ns && p->run_ns ? (double)(p->run_ns - p->pause_ns) / 1e6 : 0.0, "bytes",
                  (json_int_t)st.bytes_total, "zero_bytes", (json_int_t)st.bytes_zero, "faults",
                  (json_int_t)st.faults, "late_faults", (json_int_t)st.faults_late, "requests",
                  (json_int_t)c->requests, "requests_taken", (json_int_t)c->requests_taken,
                  "breaks", (json_int_t)st.breaks, "stream_bytes", (json_int_t)c->stream_bytes,
                  "tunnel_bytes", (json_int_t)c->tunnel_bytes, "package_bytes",
                  (json_int_t)c->package_bytes, "pages_dropped", (json_int_t)c->pages_dropped,
                  "pages_passed", (json_int_t)c->pages_passed, "engine", proxy_numbers(p)));
    old_count(p, &st, code);
}

/* Who finds only the last line of a log finds the reason there */
void proxy_last_word(struct proxy *p, int code)
{
    if (code && !p->o->json && *p->reason)
        fprintf(stderr, "farfork proxy: %s: %s\n", p->side, p->reason);
}

/* --- failures and signals --- */

/* Under lock. Whatever waits, in QMP or in the library, ends */
static void old_wake_everybody(struct proxy *p)
{
    uint64_t one = 1;

    if (write(p->stop_fd, &one, sizeof(one)) < 0)
        return; /* it is readable already */
    if (p->source)
        ff_source_cancel(p->source);
    if (p->dest)
        ff_dest_cancel(p->dest);
}

static void old_fail_locked(struct proxy *p, const struct ff_error *why)
{
    if (p->failed)
        return;
    p->failed = true;
    p->drains = true;
    p->why = *why;
    /* from GO on the source's memory is needed whatever becomes of its QEMU */
    if (p->stage < (p->is_source ? PROXY_LET_GO : PROXY_GONE))
        old_wake_everybody(p);
    else if (p->dest) { /* its QEMU has ended: the main thread tells the source */
        ff_dest_interrupt(p->dest);
        ff_dest_pause(p->dest);
    }
    pthread_cond_broadcast(&p->changed);
}

void proxy_fail(struct proxy *p, const struct ff_error *why)
{
    pthread_mutex_lock(&p->lock);
    if (p->stage != PROXY_OVER)
        old_fail_locked(p, why);
    pthread_mutex_unlock(&p->lock);
}

enum proxy_stage proxy_fail_before(struct proxy *p, enum proxy_stage stage,
                                   const struct ff_error *why)
{
    pthread_mutex_lock(&p->lock);
    enum proxy_stage now = p->stage;
    if (now < stage)
        old_fail_locked(p, why);
    pthread_mutex_unlock(&p->lock);
    return now;
}

static int old_check_locked(struct proxy *p, struct ff_error *err)
{
    return p->failed ? ff_error_set(err, p->why.code ? p->why.code : EIO, "%s", p->why.text) : 0;
}

int proxy_check(struct proxy *p, struct ff_error *err)
{
    pthread_mutex_lock(&p->lock);
    int rc = old_check_locked(p, err);
    pthread_mutex_unlock(&p->lock);
    return rc;
}

int proxy_set_stage(struct proxy *p, enum proxy_stage stage, struct ff_error *err)
{
    pthread_mutex_lock(&p->lock);
    int rc = stage == PROXY_OVER ? 0 : old_check_locked(p, err);
    if (!rc)
        p->stage = stage;
    pthread_cond_broadcast(&p->changed);
    pthread_mutex_unlock(&p->lock);
    return rc;
}

void proxy_runs(struct proxy *p)
{
    pthread_mutex_lock(&p->lock);
    p->run_ns = ff_now_ns();
    pthread_mutex_unlock(&p->lock);
    proxy_set_stage(p, PROXY_RUNS, NULL);
    proxy_event(p, "running", NULL);
}

int proxy_interrupt(struct proxy *p, struct ff_error *why)
{
    pthread_mutex_lock(&p->lock);
    bool early = p->stage == PROXY_SETUP;
    if (early) {
        p->interrupted = true;
        old_fail_locked(p, why);
    }
    pthread_mutex_unlock(&p->lock);
    return early ? 0 : ff_error_set(why, EBUSY, "the guest was let go of");
}

void proxy_go_on(struct proxy *p)
{
    alarm(0);
    if (p->virsh.pid)
        kill(p->virsh.pid, SIGCONT);
}

static void old_stop_signals(sigset_t *set)
{
    sigemptyset(set);
    sigaddset(set, SIGINT);
    sigaddset(set, SIGTERM);
    sigaddset(set, SIGHUP);
    sigaddset(set, SIGALRM); /* domain_postcopy() */
    sigaddset(set, SIGUSR1); /* proxy_close() */
}

static void *old_wait_signals(void *opaque)
{
    struct proxy *p = opaque;
    struct ff_error why = {0};
    sigset_t set;
    int number;

    old_stop_signals(&set);
    while (!sigwait(&set, &number)) {
        if (number == SIGUSR1)
            break;
        if (number == SIGALRM)
            ff_error_set(&why, ETIMEDOUT, "proxy: the destination did not get ready in time");
        else
            ff_error_set(&why, EINTR, "proxy: ended by signal %d", number);
        int rc = proxy_interrupt(p, &why);
        if (rc && number == SIGALRM)
            proxy_go_on(p);
        else if (rc)
            proxy_event(p, "refused",
                        json_pack("{s:s}", "reason",
                                  "the guest was let go of: without this program its memory "
                                  "would be lost; it ends by itself"));
    }
    return NULL;
}

/* --- threads --- */

int proxy_write(int sock, const void *data, size_t len, struct ff_error *err)
{
    const uint8_t *from = data;

    while (len) {
        ssize_t n = send(sock, from, len, MSG_NOSIGNAL);

        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return ff_error_set(err, errno, "QEMU: write its stream: %s", strerror(errno));
        from += n;
        len -= (size_t)n;
    }
    return 0;
}

int proxy_start_threads(struct proxy *p, void *(*forward)(void *), void *(*back)(void *),
                        struct ff_error *err)
{
    int rc = ff_thread_start(&p->forward_thread, forward, p, "proxy-forward", err);

    p->has_forward = !rc;
    if (!rc) {
        rc = ff_thread_start(&p->back_thread, back, p, "proxy-back", err);
        p->has_back = !rc;
    }
    return rc;
}

/* --- begin and end --- */

int proxy_open(struct proxy *p, const struct proxy_options *o, bool is_source, struct ff_error *err)
{
    sigset_t set;
    int rc;

    *p = (struct proxy){.o = o,
                        .is_source = is_source,
                        .side = is_source ? "source" : "destination",
                        .begin_ns = ff_now_ns(),
                        .status = "none",
                        .sock = -1,
                        .port = -1,
                        .held = is_source && o->domain,
                        .virsh = SPAWN_NONE,
                        .stop_fd = -1};
    pthread_mutex_init(&p->lock, NULL);
    pthread_mutex_init(&p->qmp_lock, NULL);
    ff_cond_init(&p->changed);
    pthread_mutex_init(&p->feed_lock, NULL);
    ff_cond_init(&p->fed);
    signal(SIGPIPE, SIG_IGN); /* a QEMU that has ended is an error like others */
    old_stop_signals(&set);
    pthread_sigmask(SIG_BLOCK, &set, NULL);
    p->stop_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (p->stop_fd < 0)
        return ff_error_set(err, errno, "proxy: eventfd: %s", strerror(errno));
    rc = ff_thread_start(&p->signal_thread, old_wait_signals, p, "proxy-signals", err);
    p->has_signals = !rc;
    return rc;
}

/* The threads end when the tunnel has failed and the socket is shut */
void proxy_stop_stream(struct proxy *p)
{
    pthread_mutex_lock(&p->lock);
    p->failed = p->stops = true; /* also after a failure that had to leave the handles alone */
    old_wake_everybody(p);
    pthread_cond_broadcast(&p->changed);
    pthread_mutex_unlock(&p->lock);
    if (p->sock >= 0)
        shutdown(p->sock, SHUT_RDWR);
    if (p->port >= 0)
        shutdown(p->port, SHUT_RDWR);
    if (p->has_forward)
        pthread_join(p->forward_thread, NULL);
    if (p->has_back)
        pthread_join(p->back_thread, NULL);
    if (p->has_finish)
        pthread_join(p->finish_thread, NULL);
    p->has_forward = p->has_back = p->has_finish = false;
    pthread_mutex_lock(&p->lock);
    struct ff_source *source = p->source;
    p->source = NULL;
    pthread_mutex_unlock(&p->lock);
    if (source)
        ff_source_free(source);
}

void proxy_close(struct proxy *p)
{
    proxy_set_stage(p, PROXY_OVER, NULL);
    proxy_stop_stream(p);
    if (p->has_input)
        pthread_join(p->input_thread, NULL);
    if (p->has_signals) {
        pthread_kill(p->signal_thread, SIGUSR1);
        pthread_join(p->signal_thread, NULL);
    }
    if (p->dest)
        ff_dest_free(p->dest);
    for (unsigned i = 0; p->maps && i < p->n_blocks; i++) {
        if (p->maps[i].at)
            munmap(p->maps[i].at, p->blocks[i].len_bytes);
        ff_close_fd(&p->maps[i].fd);
    }
    free(p->maps);
    free(p->blocks);
    proxy_small_free(p);
    stream_free(p->stream);
    free(p->package);
    qmp_free(p->q);
    spawn_end(&p->virsh, 0);
    spawn_free(&p->virsh);
    ff_address_free(p->address);
    ff_close_fd(&p->sock);
    ff_close_fd(&p->port);
    ff_close_fd(&p->stop_fd);
    if (p->o->rundir)
        rundir_remove(p->o->rundir);
    pthread_cond_destroy(&p->fed);
    pthread_mutex_destroy(&p->feed_lock);
    pthread_mutex_destroy(&p->qmp_lock);
    pthread_cond_destroy(&p->changed);
    pthread_mutex_destroy(&p->lock);
}
