/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * source.c - publish an image and let a destination fetch it; see farfork.h
 */
/**
 * DOC: Theory of Operation
 *
 * States       NEW -> CONNECTED -> PUBLISHED -> SENT -> GONE -> DONE
 *                                                           -> TAKING -> TAKEN (fallback=go)
 *              Until SENT a failure leaves the caller free to resume its guest; from GONE
 *              (set before GO is sent) on, nobody can know whether it arrived.
 *
 * Threads      the caller's, through the stages; the serving threads (responder.h) from
 *              ff_source_publish() on. lock guards stats and link against cancel.
 * Ownership    regions are the caller's. Threads end, keys go, then the link is freed.
 * Limits       WATCHING_MS: emptying and registering a large destination; the guest still
 *              runs.
 *              pause_ms (address.h): all that is said and waited for while the guest is
 *              paused, together; a destination that takes longer is given up while the guest
 *              can still go on here. It begins before READY, and is less than the destination
 *              waits for GO after READY (dest.c), so that a source that was stopped for a
 *              while never lets go to somebody who has left. After GO nothing limits how long
 *              the destination activates disks: it sends PROGRESS meanwhile.
 */
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>

#include "cleanup.h"
#include "dest.h"
#include "error.h"
#include "failpoint.h"
#include "group.h"
#include "load.h"
#include "log.h"
#include "source_private.h"

int ff_source_new(const struct ff_address *a, struct ff_source **out, struct ff_error *err)
{
    int rc = ff_failpoints_start(err);
    if (rc)
        return rc;
    struct ff_source *s = calloc(1, sizeof(*s));
    if (!s)
        return ff_error_set(err, ENOMEM, "source: out of memory");
    pthread_mutex_init(&s->lock, NULL);
    s->addr = ff_address_copy(a);
    s->ctl.cancelled = &s->cancelled;
    s->kept_fd = s->hold_fd = -1;
    s->cancel_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    rc = s->cancel_fd < 0 ? ff_error_set(err, errno, "source: eventfd: %s", strerror(errno)) : 0;
    if (!rc)
        rc = ff_responder_init(&s->responder, &s->regions, &s->segments, err);
    if (rc) {
        ff_close_fd(&s->cancel_fd);
        ff_address_drop(&s->addr);
        free(s);
        return rc;
    }
    *out = s;
    return 0;
}

void ff_source_use_link(struct ff_source *s, struct ff_link *link)
{
    pthread_mutex_lock(&s->lock);
    s->link = s->ctl.link = link;
    s->given_link = true;
    if (atomic_load(&s->cancelled))
        link->ops->shutdown(link);
    pthread_mutex_unlock(&s->lock);
}

bool ff_source_is_passed(const struct ff_source *s)
{
    return s->addr.passed;
}

int ff_source_timeout_ms(const struct ff_source *s)
{
    return s->addr.timeout_ms;
}

void ff_source_use_group(struct ff_source *s, struct ff_group *g)
{
    s->group = g;
    s->member = ff_group_member(g);
}

void ff_source_set_session(struct ff_source *s, const uint8_t session[FF_SESSION_LEN])
{
    memcpy(s->session, session, FF_SESSION_LEN);
    s->has_session = true;
}

void ff_source_session(const struct ff_source *s, char out[FF_SESSION_TEXT])
{
    ff_session_text(s->has_session ? s->session : NULL, out);
}

int ff_source_kept_fd(const struct ff_source *s)
{
    return s->kept_fd;
}

int ff_source_cancel_fd(const struct ff_source *s)
{
    return s->cancel_fd;
}

void ff_source_keep_fd(struct ff_source *s, int fd)
{
    ff_close_fd(&s->kept_fd);
    s->kept_fd = fd;
}

int ff_source_open_link(struct ff_source *s, const struct ff_address *a, struct ff_error *err)
{
    struct ff_link_params p = {.host = a->host,
                               .port = a->port,
                               .timeout_ms = a->timeout_ms,
                               .connect_ms = FF_MIN(s->connect_ms, a->timeout_ms),
                               .device = a->device,
                               .qps = a->qps,
                               .tos = a->tos.set ? a->tos : s->addr.tos,
                               .peers = &a->peers,
                               .key = a->key ? a->key : s->addr.key,
                               .insecure = a->insecure || s->addr.insecure};
    struct ff_link *link;

    if (s->link)
        return 0;
    if (a->passed)
        return ff_error_set(err, EINVAL,
                            "source: connect: the address is \"unix\": an agent's socket "
                            "takes the connections; call ff_source_lend() before");
    uint64_t began_ns = ff_now_ns();
    int rc = ff_link_connect(&p, a->link, s->cancel_fd, &link, err);
    if (rc)
        return rc;
    s->took_ms = (int)((ff_now_ns() - began_ns) / 1000000u);
    pthread_mutex_lock(&s->lock);
    s->link = s->ctl.link = link;
    if (atomic_load(&s->hold) != FREE)
        link->ops->shutdown(link);
    pthread_mutex_unlock(&s->lock);
    return 0;
}

/* Can pages be verified, if that is @wanted? */
static int check_verify(const struct ff_source *s, bool wanted, struct ff_error *err)
{
    const char *why_not = !s->link->sealed ? "it needs a key: give key-file=FILE on both sides"
                          : !s->link->pushes ? "this link cannot answer (it has no WRITE with "
                                               "immediate)"
                                             : NULL;

    if (s->addr.verify && !wanted)
        return ff_error_set(err, EPROTO, "hello: WELCOME does not take verify=on");
    return wanted && why_not ? ff_error_set(err, ENOTSUP, "source: verify=on: %s", why_not) : 0;
}

int ff_source_connect(struct ff_source *s, const char *config, struct ff_error *err)
{
    struct ff_welcome w;

    int rc = ff_regions_hello(&s->regions, config, &s->table, err);
    if (!rc)
        rc = ff_source_check_fallback(s, err);
    if (!rc)
        rc = ff_source_check_link(s, err);
    if (!rc)
        rc = ff_source_open_link(s, &s->addr, err);
    if (!rc)
        rc = ff_source_check_link(s, err);
    if (!rc)
        rc = check_verify(s, s->addr.verify, err);
    s->table.features = (s->addr.reconnect_ms && !s->given_link ? FF_WIRE_RESUMES : 0) |
                        (s->addr.verify ? FF_WIRE_VERIFY : 0) |
                        (s->addr.holds_output ? FF_WIRE_HOLDS : 0) |
                        (s->returns ? FF_WIRE_RETURNS : 0);
    if (s->returns)
        memcpy(s->table.returns_from, ff_dest_session(s->came), sizeof(s->table.returns_from));
    if (!rc)
        s->table.auth = s->link->sealed ? FF_WIRE_AUTH_KEY : FF_WIRE_AUTH_NONE;
    if (!rc)
        rc = ff_control_send(&s->ctl, ff_wire_put_hello(s->ctl.buf, &s->table, err), err);
    if (rc)
        return rc;
    rc = ff_control_expect(&s->ctl, FF_MSG_WELCOME, 0, s->addr.timeout_ms, err);
    if (rc < 0)
        return ff_error_pass(err, rc, "hello");
    rc = ff_wire_get_welcome(s->ctl.buf, (size_t)s->ctl.len, &w, err);
    if (!rc && (w.answer != FF_ANSWER_NEW || w.epoch != 1))
        rc = ff_error_set(err, EPROTO, "hello: WELCOME answers a source that comes back");
    if (!rc)
        rc = check_verify(s, w.features & FF_WIRE_VERIFY, err);
    if (!rc && s->table.features & ~w.features & FF_WIRE_HOLDS)
        rc = ff_error_set(err, ENOTSUP, "hello: output=hold: the destination does not know it (want "
                          "the same Farfork release on both hosts)");
    if (!rc && (s->table.features ^ w.features) & FF_WIRE_RETURNS)
        rc = ff_error_set(err, EPROTO, "hello: WELCOME does not take a guest that returns as such");
    if (!rc && ff_failpoint("source.welcomed"))
        rc = ff_error_set(err, EIO, "source: injected");
    if (!rc)
        rc = s->link->ops->open_queues(s->link, w.session, s->addr.timeout_ms, err);
    if (!rc) {
        s->wants_precopy = w.features & FF_WIRE_PRECOPY;
        s->visits = w.features & FF_WIRE_VISITS;
        s->addr.verify = w.features & FF_WIRE_VERIFY;
        s->resumes = s->table.features & w.features & FF_WIRE_RESUMES;
        if (s->resumes)
            s->addr.go_timeout_ms = FF_MIN(s->addr.go_timeout_ms, s->addr.timeout_ms);
        s->epoch = w.epoch;
        ff_source_set_session(s, w.session);
        s->verbs = !strcmp(s->link->ops->name, "verbs");
        ff_log(FF_LOG_INFO, "source: link: %s", s->link->about);
        s->stage = CONNECTED;
    }
    return rc;
}

static int send_first(struct ff_source *s, const struct ff_page_ref *first, size_t n,
                      struct ff_error *err)
{
    enum { PER_MESSAGE = 1024 };
    int rc = 0;

    for (size_t i = 0; i < n && !rc; i += PER_MESSAGE) {
        unsigned some = (unsigned)FF_MIN(n - i, (size_t)PER_MESSAGE);
        rc = ff_source_send_msg(s, ff_wire_put_first(s->ctl.buf, first + i, some), err);
    }
    return rc;
}

int ff_source_send_state(struct ff_source *s, const void *state, size_t len,
                         const struct ff_page_ref *first, size_t n, struct ff_error *err)
{
    struct ff_state_head head = {.total_bytes = len, .n_first = (uint32_t)n};

    int rc = ff_failpoint("source.state");
    if (rc)
        return ff_error_set(err, -rc, "source: send state: injected");
    if (!len || len > FF_WIRE_STATE_MAX)
        return ff_error_set(err, EFBIG, "source: send state: %zu bytes (permitted 1..%llu)", len,
                            FF_WIRE_STATE_MAX);
    for (unsigned i = 0; s->precopied && i < s->regions.n; i++)
        if (!s->reported[i])
            return ff_error_set(
                err, EINVAL,
                "source: send state: region %s: name the pages written since the pass: call "
                "ff_source_dirty()",
                s->regions.r[i].name);
    if (n > FF_WIRE_FIRST_MAX)
        head.n_first = FF_WIRE_FIRST_MAX; /* the others are fetched when they are touched */
    ff_source_begin_pause(s);
    atomic_store(&s->responder.tagger.of, FF_TAGS_OF_IMAGE);
    /* what the guest has touched since ff_source_publish() */
    FF_AUTO_FREE struct ff_wire_key *keys = NULL;
    ff_segments_want_populated(&s->segments, &s->regions);
    if (s->link->pins)
        ff_segments_cut(&s->segments, &s->regions, NULL); /* else they are registered whole */
    rc = ff_source_register(s, &keys, &head.n_keys, err);
    if (!rc)
        rc = ff_source_send_msg(s, ff_wire_put_state(s->ctl.buf, &head), err);
    if (!rc)
        rc = ff_source_send_keys(s, keys, head.n_keys, err);
    if (!rc)
        rc = send_first(s, first, head.n_first, err);
    for (size_t at = 0; at < len && !rc;) {
        uint32_t some = (uint32_t)FF_MIN(len - at, (size_t)FF_WIRE_DATA_MAX);
        int n_msg = ff_wire_put_data(s->ctl.buf, (const uint8_t *)state + at, some);
        rc = ff_source_send_msg(s, n_msg, err);
        at += some;
    }
    if (!rc)
        s->stage = SENT;
    return ff_source_why(s, rc, err);
}

int ff_source_take_stats(struct ff_source *s, struct ff_error *err)
{
    struct ff_stats st;
    int rc = ff_wire_get_stats(s->ctl.buf, (size_t)s->ctl.len, &st, err);
    if (rc)
        return rc;
    pthread_mutex_lock(&s->lock);
    s->stats = st;
    pthread_mutex_unlock(&s->lock);
    if (s->group)
        ff_group_heard(s->group, s->member, &st);
    return 0;
}

int ff_source_wait_alive(struct ff_source *s, enum ff_msg want, int silence_ms,
                         struct ff_error *err)
{
    int type, rc;

    do {
        type = ff_control_expect(&s->ctl, want,
                                 FF_MSG_BIT(FF_MSG_PROGRESS) | FF_MSG_BIT(FF_MSG_LEASE), silence_ms,
                                 err);
        rc = type < 0                ? type
             : type == FF_MSG_LEASE ? ff_source_answer_lease(s, err)
                                    : ff_source_take_stats(s, err);
    } while (!rc && type != (int)want);
    return rc;
}

int ff_source_wait_watched(struct ff_source *s, struct ff_error *err)
{
    if (s->watched)
        return 0;
    int rc = ff_control_expect(&s->ctl, FF_MSG_WATCHING, 0, WATCHING_MS, err);
    if (rc >= 0)
        rc = ff_wire_get_empty(s->ctl.buf, (size_t)s->ctl.len, err);
    s->watched = !rc;
    return rc ? rc : ff_source_touched(s, err);
}

int ff_source_wait_ready(struct ff_source *s, struct ff_error *err)
{
    if (!s->watched) { /* so nobody stopped a guest for it */
        int rc = ff_source_wait_watched(s, err);
        if (rc)
            return rc;
        s->paused_ns = ff_boot_ns();
    }
    ff_source_begin_pause(s);
    int rc = ff_control_expect(&s->ctl, FF_MSG_READY, 0, ff_source_pause_left_ms(s), err);
    if (rc >= 0 && s->came)
        s->came_link = ff_dest_is_awaited(s->came);
    return rc < 0 ? ff_source_why(s, rc, err) : ff_source_take_stats(s, err);
}

/* Only that it is alive may have been heard since READY: a destination that left is not given the
 * guest */
static int check_peer_waits(struct ff_source *s, struct ff_error *err)
{
    struct ff_error why = {.code = 0};
    int type;

    do
        type = ff_control_expect(&s->ctl, FF_MSG_WITHDRAWN, FF_MSG_BIT(FF_MSG_PROGRESS), 0, &why);
    while (type == FF_MSG_PROGRESS && ff_source_pause_left_ms(s));
    if (type == -ETIMEDOUT)
        return 0;
    return ff_error_set(err, ETIME, "go: the destination no longer waits: %s",
                        type == FF_MSG_PROGRESS ? "it says too much" : why.text);
}

int ff_source_go(struct ff_source *s, struct ff_error *err)
{
    int rc = ff_failpoint("source.go");
    if (rc)
        return ff_error_set(err, -rc, "source: go: injected");
    if (s->stage != SENT || !ff_source_pause_left_ms(s))
        return ff_error_set(err, ETIME, "source: go: the guest was paused for longer than %d ms",
                            s->addr.pause_ms);
    rc = ff_source_check_memory(s, err);
    if (!rc)
        rc = check_peer_waits(s, err);
    if (rc)
        return rc;
    s->stage = GONE;
    ff_source_begin_lease(s);
    s->link->ops->set_timeout(s->link, s->addr.go_timeout_ms);
    rc = ff_failpoint("source.gone");
    if (rc)
        return ff_error_set(err, -rc, "go: lost (injected)");
    rc = s->link->ops->send(s->link, s->ctl.buf,
                            (uint32_t)ff_wire_put_empty(s->ctl.buf, FF_MSG_GO), err);
    if (rc == -ECONNRESET || rc == -EPIPE) {
        s->stage = SENT; /* nothing left this side */
        return ff_error_set(err, ETIME, "go: not sent: the destination has gone (%s)",
                            strerror(-rc));
    }
    return rc == -ETIME ? ff_error_set(err, EIO, "go: the device timed out") : rc;
}

void ff_source_stats(struct ff_source *s, struct ff_stats *out)
{
    pthread_mutex_lock(&s->lock);
    *out = s->stats;
    pthread_mutex_unlock(&s->lock);
    out->source_cpu_ns = ff_responder_cpu_ns(&s->responder);
}

const char *ff_source_link(struct ff_source *s)
{
    pthread_mutex_lock(&s->lock);
    const char *name = s->link ? s->link->ops->name : "none";
    pthread_mutex_unlock(&s->lock);
    return name;
}

void ff_source_link_detail(struct ff_source *s, char out[FF_LINK_DETAIL_MAX])
{
    pthread_mutex_lock(&s->lock);
    snprintf(out, FF_LINK_DETAIL_MAX, "%s", s->link ? s->link->about : "none");
    pthread_mutex_unlock(&s->lock);
}

void ff_source_free(struct ff_source *s)
{
    if (!s)
        return;
    ff_failpoint("source.free");
    if (s->group)
        ff_group_left(s->group, s->member);
    if (s->link) {
        struct ff_error why;
        if (s->stage >= CONNECTED && s->stage < GONE)
            ff_control_refuse(&s->ctl, ff_source_last_words(s, &why));
        ff_responder_stop(&s->responder);
        ff_segments_dereg(&s->segments, s->link);
        s->link->ops->free(s->link);
    }
    ff_responder_free(&s->responder);
    ff_segments_free(&s->segments);
    ff_hello_free(&s->table);
    ff_regions_free(&s->regions);
    ff_close_fd(&s->cancel_fd);
    ff_close_fd(&s->kept_fd);
    ff_close_fd(&s->hold_fd);
    ff_address_drop(&s->addr);
    pthread_mutex_destroy(&s->lock);
    free(s);
}
