/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * source_resume.c - after GO: another link, when the last one broke
 */
/**
 * DOC: Theory of Operation
 *
 * Picture      link breaks, the caller's wait fails
 *              serving threads end; keys go; the old link is freed
 *              connect -- RESUME --> WELCOME
 *                NOT-STARTED   WITHDRAWN: the guest may go on here
 *                RUNNING       queues, PUBLISH, KEYS; serve on
 *                COMPLETE      DONE, WITHDRAWN: nobody needs us
 *              anything that may pass: the same again, from the start
 *
 * Invariants   Only NOT-STARTED, read over a link that this side opened to its session, lets the
 *              guest go on here, or ff_source_not_started(), whose caller answers for it. No silence
 *              does, and no time limit, without fallback=go (source_take_back.c).
 * Limits       AGAIN_MIN_MS, then twice as long each time, up to AGAIN_MAX_MS between two tries: a
 *              destination that notices the break a moment later is not waited for longer. The
 *              caller's limit holds for all of them. TRY_MS, or four times what connecting took
 *              before: the kernel asks a network that is silent less and less often, so what is new
 *              sees its return first. At an address that an operator gave, the address's own limit.
 */
#include <errno.h>
#include <poll.h>
#include <string.h>

#include "cleanup.h"
#include "dest.h"
#include "error.h"
#include "failpoint.h"
#include "log.h"
#include "source_private.h"

#define AGAIN_MIN_MS 5
#define AGAIN_MAX_MS 200
#define TRY_MS 2000

void ff_source_drop_link(struct ff_source *s)
{
    ff_responder_park(&s->responder);
    pthread_mutex_lock(&s->lock);
    struct ff_link *old = s->link;
    s->link = s->ctl.link = NULL;
    pthread_mutex_unlock(&s->lock);
    if (!old)
        return;
    ff_segments_dereg(&s->segments, old);
    old->ops->free(old);
}

/* The destination sealed itself, and says so: nothing was let go */
static int never_started(struct ff_source *s, struct ff_error *err)
{
    s->stage = SENT;
    ff_control_send(&s->ctl, ff_wire_put_empty(s->ctl.buf, FF_MSG_WITHDRAWN), NULL);
    return ff_error_set(err, ETIME,
                        "source: resume: the destination never got GO, and never runs the guest: "
                        "it may go on here");
}

/* Of a return: the other side serves its image again, over a link that it made since READY. So that return is over
 * there, and its GO, which may have been lost, is not taken any more; perhaps nobody is left to say so */
static bool was_in_vain(const struct ff_source *s)
{
    return s->came && s->stage == GONE && !s->runs_there && ff_dest_has_link_after(s->came, s->came_link);
}

static int take_in_vain(struct ff_source *s, struct ff_error *err)
{
    ff_source_drop_link(s);
    s->stage = SENT;
    return ff_error_set(err, ETIME, "source: resume: the guest is served from where it was to return to, which never "
                        "got GO: it may go on here");
}

int ff_source_check_mark(const struct ff_source *s, const char *mark, struct ff_error *err)
{
    char own[FF_MARK_TEXT];

    if (s->has_session) {
        ff_mark_text(s->session, s->epoch, own);
        if (!strcmp(mark, own))
            return 0;
    }
    return ff_error_set(err, EINVAL, "source: not started: the file of until-go says \"%s\", and is not this move's: what "
                        "came back with an older state of its file system says nothing of the guest", mark);
}

int ff_source_not_started(struct ff_source *s, const char *mark, struct ff_error *err)
{
    if (s->stage < GONE)
        return ff_error_set(err, EINVAL, "source: not started: nothing was let go of");
    if (s->runs_there || ff_source_has_given_up(s) || (s->stage != GONE && s->stage != TAKING))
        return ff_error_set(err, EINVAL,
                            "source: not started: the destination has said that it runs the guest");
    int rc = ff_source_check_mark(s, mark, err);
    if (rc)
        return rc;
    ff_source_drop_link(s);
    s->stage = SENT;
    return ff_error_set(err, ETIME,
                        "source: the destination has ended, and never ran the guest, as this side "
                        "was told: it may go on here");
}

static int take_done(struct ff_source *s, struct ff_error *err)
{
    int rc = ff_control_expect(&s->ctl, FF_MSG_DONE, 0, s->addr.timeout_ms, err);

    if (rc >= 0)
        rc = ff_source_take_stats(s, err);
    if (rc)
        return rc;
    s->stage = DONE;
    ff_control_send(&s->ctl, ff_wire_put_empty(s->ctl.buf, FF_MSG_WITHDRAWN), NULL);
    return ff_source_await_told(s, err);
}

static int serve_again(struct ff_source *s, const struct ff_welcome *w, struct ff_error *err)
{
    struct ff_error lost;
    int rc = s->link->ops->open_queues(s->link, w->session, s->addr.timeout_ms, err);

    if (!rc && ff_regions_check(&s->regions, &lost)) {
        ff_control_refuse(&s->ctl, lost.text);
        return ff_error_set(err, ESRCH, "the image is lost: %s", lost.text);
    }
    if (!rc)
        rc = ff_source_offer(s, err);
    if (rc)
        return rc;
    s->link->ops->set_timeout(s->link, s->addr.go_timeout_ms);
    ff_log(FF_LOG_INFO, "source: link %u: %s", s->epoch, s->link->about);
    return 0;
}

/* The next link goes there too */
static void adopt_address(struct ff_source *s, const struct ff_address *a)
{
    memcpy(s->addr.host, a->host, sizeof(s->addr.host));
    memcpy(s->addr.port, a->port, sizeof(s->addr.port));
    memcpy(s->addr.device, a->device, sizeof(s->addr.device));
    s->addr.peers = a->peers;
}

int ff_source_ask(struct ff_source *s, const struct ff_address *a, bool taken_back,
                  struct ff_welcome *w, struct ff_error *err)
{
    struct ff_resume r = {.version = FF_WIRE_VERSION,
                          .oldest = FF_WIRE_VERSION,
                          .epoch = s->epoch,
                          .digest = ff_hello_digest(&s->table),
                          .taken_back = taken_back};

    memcpy(r.session, s->session, sizeof(r.session));
    int rc = ff_source_open_link(s, a, err);
    if (!rc)
        rc = ff_control_check_auth(&s->ctl, s->table.auth, "link", err);
    if (!rc)
        rc = ff_control_send(&s->ctl, ff_wire_put_resume(s->ctl.buf, &r), err);
    if (!rc)
        rc = ff_control_expect(&s->ctl, FF_MSG_WELCOME, 0, a->timeout_ms, err);
    if (rc >= 0)
        rc = ff_wire_get_welcome(s->ctl.buf, (size_t)s->ctl.len, w, err);
    /* NOT-STARTED and COMPLETE open no queues, which would have asked; who is told that the guest is
     * taken back leaves at once, and nothing goes by its answer */
    if (!rc && !taken_back && s->link->ops->check_peer)
        rc = s->link->ops->check_peer(s->link, err);
    return rc;
}

/* Once DONE was heard there is but one */
static bool may_answer(const struct ff_source *s, const struct ff_welcome *w)
{
    if (w->epoch < s->epoch || w->answer == FF_ANSWER_NEW || w->answer == FF_ANSWER_TAKEN_BACK)
        return false;
    return s->stage == GONE || w->answer == FF_ANSWER_COMPLETE;
}

/* One try: 0, or -errno */
static int come_back(struct ff_source *s, const struct ff_address *a, struct ff_error *err)
{
    struct ff_welcome w;

    int rc = ff_source_ask(s, a, false, &w, err);
    if (!rc && !may_answer(s, &w))
        rc = ff_error_set(err, EPROTO, "WELCOME says %u, epoch %u (permitted: %s, %u or more)",
                          w.answer, w.epoch, s->stage == GONE ? "1, 2 or 3" : "3", s->epoch);
    if (!rc && (rc = ff_failpoint("source.resume")))
        ff_error_set(err, -rc, "injected");
    if (rc)
        return rc;
    s->epoch = w.epoch;
    if (w.answer == FF_ANSWER_RUNNING)
        ff_source_begin_lease(s); /* for one whose caller took this side for dead (lease.c) */
    if (w.answer == FF_ANSWER_NOT_STARTED)
        return never_started(s, err);
    s->runs_there = true;
    return w.answer == FF_ANSWER_COMPLETE ? take_done(s, err) : serve_again(s, &w, err);
}

/* Of what was tried: will another try end otherwise? */
static bool may_pass(int rc)
{
    static const int final[] = {ETIME, ECANCELED, EREMOTEIO, EPROTO, EPROTONOSUPPORT, ENOTSUP,
                                ESRCH};

    for (unsigned i = 0; i < FF_ARRAY_LEN(final); i++)
        if (rc == -final[i])
            return false;
    return true;
}

/* A link that breaks before it brings anything may do so each time: a page that cannot be read here,
 * a request that the peer refuses. Wait longer each time, until one does bring something. */
static void wait_if_in_vain(struct ff_source *s, struct pollfd *stop)
{
    pthread_mutex_lock(&s->lock);
    uint64_t has = s->stats.bytes_present;
    pthread_mutex_unlock(&s->lock);
    if (has == s->had_bytes && s->again_ms)
        poll(stop, 1, s->again_ms);
    s->again_ms = has != s->had_bytes ? AGAIN_MIN_MS
                                      : FF_MIN(2 * FF_MAX(s->again_ms, AGAIN_MIN_MS), AGAIN_MAX_MS);
    s->had_bytes = has;
}

int ff_source_resume(struct ff_source *s, const struct ff_address *a, int timeout_ms,
                     struct ff_error *err)
{
    uint64_t end = ff_now_ns() + (uint64_t)timeout_ms * 1000000u;
    struct pollfd stop = {.fd = s->cancel_fd, .events = POLLIN};
    struct ff_address to = a ? *a : s->addr; /* its key stays whose it is */
    struct ff_error why;

    if (s->stage == DONE && (s->told || !s->addr.fallback))
        return 0;
    if (s->stage != GONE && s->stage != DONE)
        return ff_error_set(err, EINVAL, "source: resume: %s",
                            s->stage < GONE ? "nothing was let go of" : "the guest is taken back");
    if (s->given_link || to.passed)
        return ff_error_set(err, ENOTSUP, "source: resume: only over a network");
    int patience_ms = to.timeout_ms, again_ms = AGAIN_MIN_MS;
    to.link = s->verbs ? FF_LINK_VERBS : FF_LINK_TCP;
    s->paused_ns = 0; /* what limited the pause ended with GO */
    s->segments.grows = false;
    s->connect_ms = a ? 0 : FF_MAX(4 * s->took_ms, TRY_MS);
    wait_if_in_vain(s, &stop);
    for (;;) {
        int left_ms = (int)((end - FF_MIN(ff_now_ns(), end)) / 1000000u);
        to.timeout_ms = FF_MIN(patience_ms, FF_MAX(left_ms, AGAIN_MAX_MS));
        ff_source_drop_link(s);
        int rc = ff_source_await_hold(s, end, &why);
        if (rc) /* nothing was tried */
            return ff_error_set(err, -rc, "source: resume: %s", why.text);
        if (was_in_vain(s))
            return take_in_vain(s, err);
        rc = poll(&stop, 1, 0) > 0 ? -ECANCELED : come_back(s, &to, &why);
        if (rc && s->stage == GONE && atomic_load(&s->hold) == HELD)
            continue; /* whatever it was: the link was broken for that */
        if (rc == -ETIME && s->stage == GONE)
            rc = -EIO; /* the network's word, not the destination's: erdma says so for its timeouts */
        bool again = rc && may_pass(rc) && ff_now_ns() < end;
        if (rc && rc != -ETIME && poll(&stop, 1, again ? again_ms : 0) > 0)
            rc = ff_source_take_interrupt(s, &why);
        else if (again) {
            again_ms = FF_MIN(2 * again_ms, AGAIN_MAX_MS);
            continue;
        } else if (rc && may_pass(rc))
            rc = -ETIMEDOUT;
        if (!rc && a)
            adopt_address(s, a);
        if (rc && rc != -ETIME)
            ff_source_drop_link(s); /* nobody waits for what it brings, nor may it ask for memory */
        return !rc            ? 0
               : rc == -ETIME ? ff_error_set(err, ETIME, "%s", why.text)
                              : ff_error_set(err, -rc, "source: resume: %s", why.text);
    }
}
