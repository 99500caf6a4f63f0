/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * dest.c - the destination's stages: pager, ready, run, done; see farfork.h
 */
/**
 * DOC: Theory of Operation
 *
 * Threads      the caller's, through the stages; the pager's own (pager.h). lock guards
 *              link and cancelled against ff_dest_cancel().
 * Invariants   1. ff_dest_wait_go() returns 0 only for a GO that was read: nothing else
 *                 lets the guest run here.
 *              2. The pager is up before recv_state() hands out the state.
 *              3. Memory is watched until every page is present, whatever breaks.
 * Limits       PUBLISH_MS: registering a large source; the guest still runs there. GO_MS: see
 *              source.c, pause_ms. PROGRESS_MS: what a person reads as live.
 */
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cleanup.h"
#include "children.h"
#include "control.h"
#include "dest_private.h"
#include "failpoint.h"
#include "farfork-return.h"
#include "log.h"
#include "pager_elsewhere.h"
#include "source.h"
#include "thread.h"
#include "working_set.h"
#include "verify.h"

#define GO_MS 60000

int ff_dest_new_on_link(const struct ff_address *a, struct ff_link *link, struct ff_dest **out,
                        struct ff_error *err)
{
    struct ff_dest *d = calloc(1, sizeof(*d));
    int rc = d ? ff_failpoints_start(err) : ff_error_set(err, ENOMEM, "destination: out of memory");
    if (!rc)
        rc = ff_until_go_make(&d->until_go, a->until_go, err);
    if (rc) {
        free(d);
        return rc;
    }
    d->addr = ff_address_copy(a);
    d->wants_verify = a->verify;
    d->link = d->ctl.link = link;
    d->ctl.cancelled = d->door.cancelled = &d->cancelled;
    pthread_mutex_init(&d->lock, NULL);
    ff_cond_init(&d->port_closed);
    pthread_mutex_init(&d->pager_lock, NULL);
    pthread_mutex_init(&d->listen_lock, NULL);
    ff_lease_init(&d->lease);
    *out = d;
    return 0;
}

int ff_dest_new(const struct ff_address *a, struct ff_dest **out, struct ff_error *err)
{
    struct ff_link_params p = {
        .host = a->host, .port = a->port, .timeout_ms = a->timeout_ms, .device = a->device,
        .key = a->key, .tos = a->tos, .insecure = a->insecure};
    struct ff_port *port = NULL;

    if (a->passed)
        return ff_error_set(err, EINVAL,
                            "destination: the address is \"unix\": only an agent takes "
                            "connections so; want HOST:PORT");
    int rc = ff_port_listen(&p, a->link, &port, err);
    if (!rc)
        rc = ff_dest_new_on_link(a, NULL, out, err);
    if (rc) {
        ff_port_free(port);
        return rc;
    }
    (*out)->port = port;
    (*out)->listens = ff_port_number(port);
    (*out)->at = ff_address_copy(a);
    snprintf((*out)->at.port, sizeof((*out)->at.port), "%u", ff_port_number(port));
    return 0;
}

void ff_dest_use_link(struct ff_dest *d, struct ff_link *link)
{
    pthread_mutex_lock(&d->lock);
    d->link = d->ctl.link = link;
    if (atomic_load(&d->cancelled))
        link->ops->shutdown(link);
    pthread_mutex_unlock(&d->lock);
}

const uint8_t *ff_dest_session(const struct ff_dest *d)
{
    return d->session;
}

unsigned ff_dest_port(const struct ff_dest *d)
{
    return atomic_load(&d->listens);
}

int ff_dest_add_region(struct ff_dest *d, const struct ff_region *r, struct ff_error *err)
{
    return ff_regions_add(&d->regions, r, err);
}

void ff_dest_own(struct ff_dest *d, const struct ff_dest_owner *owner)
{
    d->owner = *owner;
}

void ff_dest_lent(struct ff_dest *d, unsigned region)
{
    d->lent[region] = true;
}

struct ff_pager *ff_dest_pager(struct ff_dest *d)
{
    return &d->pager;
}

void ff_dest_on_lease(struct ff_dest *d, void (*fn)(void *opaque, bool may_run), void *opaque)
{
    d->lease.fn = fn;
    d->lease.opaque = opaque;
}

void ff_dest_refuse_lease(struct ff_dest *d, const char *why)
{
    ff_dest_on_lease(d, NULL, NULL);
    snprintf(d->lease.refusal, sizeof(d->lease.refusal), "%s", why);
}

bool ff_dest_hold_output(struct ff_dest *d)
{
    d->lease.holds = true;
    return d->peer.features & FF_WIRE_HOLDS;
}

const struct ff_hello *ff_dest_hello(const struct ff_dest *d)
{
    return &d->peer;
}

/* --- pager --- */

int dest_recv_keys(struct ff_dest *d, unsigned n, struct ff_error *err)
{
    FF_AUTO_FREE struct ff_wire_key *keys = calloc(n + 1, sizeof(*keys));

    if (!keys)
        return ff_error_set(err, ENOMEM, "destination: %u keys: out of memory", n);
    for (unsigned have = 0, got; have < n; have += got) {
        int rc = ff_control_expect(&d->ctl, FF_MSG_KEYS, FF_MSG_BIT(FF_MSG_PARTS),
                                   d->addr.timeout_ms, err);
        got = 0;
        if (rc == FF_MSG_PARTS)
            rc = dest_take_parts(d, err);
        else if (rc >= 0)
            rc = ff_wire_get_keys(d->ctl.buf, (size_t)d->ctl.len, keys, n - have,
                                  d->publish.segment_bytes, d->peer.regions, d->peer.n_regions,
                                  &got, err);
        if (rc < 0)
            return rc;
        for (unsigned i = 0; i < got; i++) {
            uint32_t *rkey = &d->pager.region[d->map[keys[i].region]].rkey[keys[i].segment];
            if (d->recovers && !*rkey) /* its pages were zeros so far */
                return ff_error_set(err, EPROTO, "resume: a key for a segment that had none");
            *rkey = keys[i].rkey;
            d->n_keys += !d->recovers;
        }
    }
    return 0;
}

/* Under pager_lock, so that it is whole, or not there, for ff_dest_give_up() */
static int start_pager(struct ff_dest *d, struct ff_error *err)
{
    int rc =
        ff_pager_init(&d->pager, d->link, &d->addr, &d->regions, d->publish.segment_bytes, err);
    if (!rc && d->owner.adopt)
        rc = ff_children_new(&d->pager, err);
    if (rc) {
        ff_pager_free(&d->pager);
        return rc;
    }
    if (d->regions.elsewhere) {
        ff_elsewhere_on_discard(&d->pager, d->on_discard, d->on_discard_opaque);
        ff_elsewhere_on_pass(&d->pager, d->on_pass, d->on_pass_opaque);
    }
    d->pager_used = true;
    d->pager.may_be_fed = dest_may_be_fed(d) && d->addr.prefill != FF_PREFILL_OFF && !d->addr.verify &&
                          !d->verbs;
    bool learns = d->owner.adopt || d->addr.visit;
    d->pager.touched = learns ? ff_working_set_new() : NULL; /* a hint: there may be none */
    d->pager.on_misfed = d->owner.misfed;
    d->pager.on_misfed_opaque = d->owner.opaque;
    d->pager.pool = &d->pool;
    for (unsigned i = 0; i < d->regions.n; i++)
        if (d->lent[i])
            ff_pager_lent(&d->pager, i);
    for (uint32_t i = 0; i < d->peer.n_regions; i++) {
        d->pager.region[d->map[i]].peer_number = i;
        d->pager.region[d->map[i]].remote = d->publish.addr[i];
    }
    rc = d->keeps ? ff_pager_keep(&d->pager, err) : 0;
    if (!rc)
        rc = ff_pager_check_push(&d->pager, d->publish.push_bytes, err);
    if (!rc)
        rc = ff_pager_set_asks(&d->pager, d->publish.asks_addr, d->publish.asks_rkey, err);
    if (!rc && d->addr.verify)
        rc = ff_verify_new(&d->pager, err);
    d->lease.visits = d->addr.visit;
    if (!rc)
        rc = ff_lease_take(&d->lease, d->publish.lease_ms, d->peer.features & FF_WIRE_HOLDS,
                           d->addr.go_timeout_ms, err);
    if (!rc)
        rc = dest_recv_keys(d, d->publish.n_keys, err);
    return rc ? rc : ff_pager_start(&d->pager, err);
}

int ff_dest_start(struct ff_dest *d, struct ff_error *err)
{
    int rc = ff_control_expect(&d->ctl, FF_MSG_PUBLISH, 0, PUBLISH_MS, err);
    if (rc < 0)
        return rc;
    rc = ff_wire_get_publish(d->ctl.buf, (size_t)d->ctl.len, &d->publish, d->peer.n_regions,
                             d->peer.regions, err);
    if (rc)
        return rc;
    pthread_mutex_lock(&d->pager_lock);
    rc = atomic_load(&d->cancelled) ? ff_error_set(err, ECANCELED, "canceled") : 0;
    if (!rc)
        rc = start_pager(d, err);
    pthread_mutex_unlock(&d->pager_lock);
    if (!rc && ff_failpoint("dest.pager"))
        rc = ff_error_set(err, EIO, "destination: injected");
    if (rc)
        ff_control_refuse(&d->ctl, err ? err->text : "the destination's pager did not start");
    return rc;
}

void ff_dest_on_break(struct ff_dest *d, void (*fn)(void *opaque, const char *why), void *opaque)
{
    pthread_mutex_lock(&d->pager.lock);
    d->pager.on_break = fn;
    d->pager.on_break_opaque = opaque;
    if (fn && d->pager.state != FF_PAGER_UP)
        fn(opaque, d->pager.why.text);
    pthread_mutex_unlock(&d->pager.lock);
}

void dest_finish_pager(struct ff_dest *d)
{
    pthread_mutex_lock(&d->pager_lock);
    if (d->pager_used)
        ff_pager_finish(&d->pager);
    pthread_mutex_unlock(&d->pager_lock);
}

int dest_send_stats(struct ff_dest *d, enum ff_msg type, struct ff_error *err)
{
    struct ff_stats st;

    ff_dest_stats(d, &st);
    return ff_control_send(&d->ctl, ff_wire_put_stats(d->ctl.buf, type, &st), err);
}

static void beat_stats(void *opaque, struct ff_stats *st)
{
    ff_dest_stats(opaque, st);
}

void dest_start_beat(struct ff_dest *d)
{
    struct ff_error why;

    if (ff_beat_start(&d->beat, beat_stats, d, d->link, &why))
        ff_log(FF_LOG_WARN, "%s; the source hears nothing until the guest runs", why.text);
}

/* --- ready, run, done --- */

int ff_dest_ready(struct ff_dest *d, struct ff_error *err)
{
    int rc = ff_failpoint("dest.ready");
    if (rc)
        return ff_error_set(err, -rc, "destination: ready: injected");
    d->load_ns = ff_now_ns() - d->state_ns;
    rc = ff_pager_check(&d->pager, FF_PAGER_BROKEN, err);
    if (rc)
        return ff_control_reason(&d->ctl, rc, err);
    /* from here on GO may be under way: a broken link no longer means "not started",
     * only ff_dest_wait_go() can tell */
    ff_dest_on_break(d, NULL, NULL);
    /* and an outage now would be one after GO for the source */
    d->link->ops->set_timeout(d->link, FF_MAX(GO_MS, d->addr.go_timeout_ms));
    rc = ff_lease_prepare(&d->lease, err);
    if (rc)
        return rc;
    d->ready = true; /* an adapter may fail to say that it has arrived */
    rc = dest_send_stats(d, FF_MSG_READY, err);
    /* READY cannot be taken back: whoever left now would let a source let go to nobody */
    if (!rc)
        dest_start_beat(d);
    return rc;
}

int ff_dest_wait_go(struct ff_dest *d, struct ff_error *err)
{
    int rc = ff_control_expect(&d->ctl, FF_MSG_GO, 0, GO_MS, err);
    if (rc >= 0)
        rc = ff_wire_get_empty(d->ctl.buf, (size_t)d->ctl.len, err);
    if (rc)
        return rc;
    /* exclusive with ff_dest_give_up(): either the guest is here, or the pager is finished.
     * A link that broke lets the guest go on; a page that could not be installed does not. */
    pthread_mutex_lock(&d->pager_lock);
    rc = atomic_load(&d->pager.stop) ? ff_error_set(err, ECANCELED, "given up before GO was read")
                                     : ff_pager_check(&d->pager, FF_PAGER_FAILED, err);
    if (!rc)
        rc = ff_until_go_remove(&d->until_go, err);
    if (!rc)
        atomic_store(&d->pager.guest_runs, true);
    pthread_mutex_unlock(&d->pager_lock);
    if (!rc)
        dest_has_returned(d);
    atomic_store(&d->pager.silence_ms, d->addr.go_timeout_ms);
    d->link->ops->set_timeout(d->link, d->addr.go_timeout_ms);
    d->go_ns = ff_now_ns();
    if (!rc && d->lease.lease_ns) {
        d->ctl.others_read = true;
        ff_lease_begin(&d->lease, d->link);
    }
    return rc;
}

/* Without the thread memory comes by faults, so that the guest is not lost for want of it */
void dest_start_prefill(struct ff_dest *d)
{
    struct ff_error why;

    if (!dest_may_fetch(d)) { /* over a second link already; ff_dest_wait_done() does it */
        d->prefill_due = true;
        return;
    }
    atomic_store(&d->pager.feed_until_ns, dest_feed_until(d));
    dest_take_first(d);
    dest_join_group(d);
    int rc = ff_pager_start_prefill(&d->pager, d->publish.load_permille, &why);

    if (rc && !d->prefill_due)
        ff_log(FF_LOG_WARN,
               "destination: start prefill: %s; until then memory comes by faults alone", why.text);
    d->prefill_due = rc;
}

int ff_dest_running(struct ff_dest *d, struct ff_error *err)
{
    if (!dest_may_fetch(d))
        return ff_error_set(err, EINVAL, "destination: running: before ff_dest_adopt()");
    d->running_ns = ff_now_ns();
    d->start_ns = d->running_ns - d->go_ns;
    ff_failpoint("dest.running");
    ff_beat_stop(&d->beat);
    if (d->epoch > 1)
        return 0; /* said over a later link by WELCOME, and fetching has begun */
    int rc = dest_send_stats(d, FF_MSG_RUNNING, err);
    if (rc)
        ff_page_pool_empty(&d->pool); /* no prefill thread will */
    else
        dest_start_prefill(d);
    return rc;
}

void ff_dest_on_shortage(struct ff_dest *d, void (*fn)(void *opaque, const char *why), void *opaque)
{
    d->on_shortage = fn;
    d->on_shortage_opaque = opaque;
}

/* There is no memory, for the reason @why; NULL: there is some again */
static void tell_shortage(struct ff_dest *d, const char *why)
{
    if (why)
        ff_log(FF_LOG_WARN,
               "destination: %s: threads that touch missing memory wait until the page can be "
               "installed",
               why);
    else
        ff_log(FF_LOG_WARN, "destination: there is memory again: pages are installed");
    if (d->on_shortage)
        d->on_shortage(d->on_shortage_opaque, why);
}

bool dest_was_heard(struct ff_dest *d)
{
    uint64_t end_ns = ff_now_ns() + WITHDRAWN_MS * 1000000ull;
    struct ff_error ended;
    int rc;

    do {
        rc = d->link->ops->recv(d->link, d->ctl.buf, WITHDRAWN_MS, &ended);
    } while (rc >= 0 && ff_now_ns() < end_ns);
    return rc < 0 && rc != -ETIMEDOUT;
}

/* Every page is here: does the source know? */
static int tell_done(struct ff_dest *d, struct ff_error *err)
{
    int rc = dest_send_stats(d, FF_MSG_DONE, err);

    if (!rc && d->lease.lease_ns) {
        rc = ff_lease_wait_withdrawn(&d->lease, err);
        d->told = !rc && dest_was_heard(d);
        return rc;
    }
    if (!rc)
        rc = ff_control_expect(&d->ctl, FF_MSG_WITHDRAWN, 0, FF_MAX(WITHDRAWN_MS, d->addr.timeout_ms), err);
    d->told = rc >= 0;
    return d->told ? 0 : rc;
}

int ff_dest_wait_done(struct ff_dest *d, struct ff_error *err)
{
    struct ff_error why;
    bool told = false;
    int rc;

    if (d->complete) { /* fallback=go: that was not the end */
        if (!d->told && !ff_lease_is_released(&d->lease))
            return ff_error_set(err, ENOTCONN, "the source does not know that all is here");
        ff_lease_settle(&d->lease);
        d->settled = true;
        return 0;
    }
    while ((rc = ff_pager_wait(&d->pager, PROGRESS_MS, err)) > 0) {
        if (atomic_load(&d->leaves)) {
            ff_control_refuse(&d->ctl, "it was told to end, and needs no more of the image");
            return ff_error_set(err, ECANCELED, "canceled");
        }
        if (ff_pager_is_short(&d->pager, &why) != told) {
            told = !told;
            tell_shortage(d, told ? why.text : NULL);
        }
        if (d->prefill_due)
            dest_start_prefill(d);
        if (dest_send_stats(d, FF_MSG_PROGRESS, &why))
            ff_pager_break(&d->pager, &why);
    }
    if (rc)
        return rc;
    if (told)
        tell_shortage(d, NULL);
    d->complete_ns = ff_now_ns() - d->running_ns;
    dest_finish_pager(d);
    rc = d->on_complete ? d->on_complete(d->on_complete_opaque, err) : 0;
    if (rc)
        return rc;
    d->complete = true;
    if (d->owner.complete)
        d->owner.complete(d->owner.opaque);
    /* every page is here: a source that no longer listens changes nothing for a guest that it let
     * go for good */
    rc = tell_done(d, &why);
    if (!rc) {
        if (d->told)
            ff_dest_close_port(d);
        ff_lease_settle(&d->lease);
        d->settled = true;
    }
    ff_pager_drop_landing(&d->pager); /* nothing is in flight into it: every page is present */
    if (rc && d->lease.lease_ns)
        return ff_error_set(err, ENOTCONN, "%s", why.text);
    if (rc)
        ff_log(FF_LOG_WARN, "destination: complete, but the source may not know: %s", why.text);
    return 0;
}

int ff_dest_shut_down(struct ff_dest *d, bool down, struct ff_error *err)
{
    if (!atomic_load(&d->pager.guest_runs))
        return ff_error_set(err, EINVAL, "destination: the guest is not here, and cannot shut down");
    return ff_until_go_shut_down(&d->until_go, down, err);
}

int ff_dest_give_up(struct ff_dest *d)
{
    int rc = 0;

    ff_dest_cancel(d);
    pthread_mutex_lock(&d->pager_lock);
    if (d->pager_used && atomic_load(&d->pager.guest_runs))
        rc = -EBUSY;
    else if (d->pager_used)
        ff_pager_give_up(&d->pager);
    pthread_mutex_unlock(&d->pager_lock);
    return rc;
}

void ff_dest_cancel(struct ff_dest *d)
{
    pthread_mutex_lock(&d->lock);
    atomic_store(&d->cancelled, true);
    if (d->port)
        ff_port_cancel(d->port);
    if (d->link)
        d->link->ops->shutdown(d->link);
    pthread_mutex_unlock(&d->lock);
}

void ff_dest_has_gone(struct ff_dest *d)
{
    ff_dest_cancel(d);
    dest_finish_pager(d);
}

void ff_dest_pause(struct ff_dest *d)
{
    pthread_mutex_lock(&d->lock);
    if (d->link)
        d->link->ops->shutdown(d->link);
    pthread_mutex_unlock(&d->lock);
}

bool ff_dest_is_ready(const struct ff_dest *d)
{
    return atomic_load(&d->ready);
}

bool ff_dest_is_told(const struct ff_dest *d)
{
    return d->told;
}

const char *ff_dest_link(struct ff_dest *d)
{
    pthread_mutex_lock(&d->lock);
    const char *name = d->link ? d->link->ops->name : "none";
    pthread_mutex_unlock(&d->lock);
    return name;
}

void ff_dest_link_detail(struct ff_dest *d, char out[FF_LINK_DETAIL_MAX])
{
    pthread_mutex_lock(&d->lock);
    snprintf(out, FF_LINK_DETAIL_MAX, "%s", d->link ? d->link->about : "none");
    pthread_mutex_unlock(&d->lock);
}

void ff_dest_free(struct ff_dest *d)
{
    if (!d)
        return;
    if (d->link)
        d->link->ops->shutdown(d->link);
    ff_dest_close_port(d);
    ff_beat_stop(&d->beat);
    ff_lease_free(&d->lease);
    dest_finish_pager(d);
    if (d->link) /* reads into the pager's memory may be in flight until the link is freed */
        d->link->ops->free(d->link);
    dest_put_back(d);
    if (!atomic_load(&d->pager.guest_runs))
        ff_page_pool_return(&d->pool);
    if (d->pager_used)
        ff_pager_free(&d->pager);
    ff_page_pool_free(&d->pool);
    ff_hello_free(&d->peer);
    ff_regions_free(&d->regions);
    ff_until_go_free(&d->until_go);
    free(atomic_load(&d->first));
    ff_address_drop(&d->addr);
    ff_address_drop(&d->at);
    pthread_cond_destroy(&d->port_closed);
    pthread_mutex_destroy(&d->lock);
    pthread_mutex_destroy(&d->pager_lock);
    pthread_mutex_destroy(&d->listen_lock);
    free(d);
}
