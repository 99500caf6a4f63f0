/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * dest_accept.c - the destination waits for its source: connection, hello, queues
 */
/**
 * DOC: Theory of Operation
 *
 * Picture      connected, several at once -- HELLO --> one: does it fit? -- WELCOME --> queues
 *                 |  no HELLO in time,                         |  it leaves, or opens none
 *                 |  another version                           |  within its time limit
 *                 v                                 no: v      v
 *              dropped, told why where it can be      dropped; the next
 *
 *              Once there is a link the same is heard for RESUME (dest_ear.c, dest_recover.c).
 *
 *              An agent takes one table: what comes after it was adopted is final.
 * Limits       those of dest_hear.c. QUEUES_MS, or half the time limit if that is more: who was
 *              welcomed takes that message and opens its queues at once.
 */
#include <errno.h>
#include <string.h>
#include <sys/random.h>

#include "cleanup.h"
#include "dest_private.h"
#include "failpoint.h"
#include "log.h"
#include "uffd.h"

#define QUEUES_MS 1000

void dest_set_link(struct ff_dest *d, struct ff_link *link)
{
    pthread_mutex_lock(&d->lock);
    struct ff_link *old = d->link;
    d->link = d->ctl.link = link;
    if (link && atomic_load(&d->cancelled))
        link->ops->shutdown(link);
    pthread_mutex_unlock(&d->lock);
    if (old)
        old->ops->free(old);
}

/* 0: whether pages are verified is known. It is either side's wish */
static int settle_verify(struct ff_dest *d, struct ff_error *err)
{
    const char *why_not = !d->link->sealed ? "it needs a key: give key-file=FILE on both sides"
                          : !d->link->pushes ? "this link cannot ask (no WRITE with immediate)"
                          : d->addr.prefill == FF_PREFILL_PUSH
                              ? "what the source pushes cannot be verified: use prefill=pull"
                              : NULL;

    d->addr.verify = d->wants_verify || d->peer.features & FF_WIRE_VERIFY;
    return d->addr.verify && why_not ? ff_error_set(err, ENOTSUP, "verify=on: %s", why_not) : 0;
}

/* 0: @d's peer fits. It was told if not; an owner that has adopted a table takes no other */
static int check_table(struct ff_dest *d, const char *config, bool *for_good, struct ff_error *err)
{
    struct ff_error why;
    int rc = dest_check_return(d, &why);

    if (!rc)
        rc = settle_verify(d, &why);
    if (!rc && d->owner.adopt) {
        rc = d->owner.adopt(d->owner.opaque, &d->peer, &why);
        *for_good = true;
    }
    if (!rc && d->on_table) {
        rc = dest_take_table(d, &why);
        *for_good = true;
    }
    if (!rc)
        rc = ff_regions_match(&d->regions, d->owner.adopt ? d->peer.config : config, &d->peer,
                              d->map, &why);
    if (!rc)
        return 0;
    dest_refuse(d, &d->ctl, FF_REFUSAL_FINAL, why.text);
    return ff_error_set(err, -rc, "%s", why.text);
}

/* Less than another source waits for WELCOME, which may have begun just after this one */
static int queues_ms(const struct ff_dest *d)
{
    return FF_MAX(d->addr.timeout_ms / 2, FF_MIN(d->addr.timeout_ms, QUEUES_MS));
}

int dest_send_welcome(struct ff_dest *d, enum ff_answer answer, struct ff_error *err)
{
    bool queues = answer == FF_ANSWER_NEW || answer == FF_ANSWER_RUNNING;
    uint32_t features = (d->keeps ? FF_WIRE_RETURNS : d->addr.precopy ? FF_WIRE_PRECOPY : 0) |
                        (dest_resumes(d) ? FF_WIRE_RESUMES : 0) |
                        (d->addr.verify ? FF_WIRE_VERIFY : 0) |
                        (d->peer.features & FF_WIRE_HOLDS) |
                        (d->addr.visit ? FF_WIRE_VISITS : 0);
    struct ff_welcome w = {.version = FF_WIRE_VERSION,
                           .answer = answer,
                           .epoch = answer == FF_ANSWER_NEW ? 1 : d->epoch + queues,
                           .features = features};

    if (getrandom(w.session, sizeof(w.session), 0) != sizeof(w.session))
        return ff_error_set(err, EIO, "destination: no random numbers: %s", strerror(errno));
    if (answer == FF_ANSWER_NEW)
        memcpy(d->session, w.session, sizeof(d->session));
    d->epoch = w.epoch;
    uint64_t end = ff_now_ns() + (uint64_t)queues_ms(d) * 1000000u;
    d->link->ops->set_timeout(d->link, queues_ms(d));
    int rc = ff_control_send(&d->ctl, ff_wire_put_welcome(d->ctl.buf, &w), err);
    d->link->ops->set_timeout(d->link, d->addr.timeout_ms);
    return rc || !queues
               ? rc
               : d->link->ops->open_queues(d->link, w.session, dest_ms_until(end), err);
}

/* Queues to a source that fits. A peer that does not, or leaves, costs itself its connection, and
 * the others are heard */
static int find_source(struct ff_dest *d, const char *config, struct ff_error *err)
{
    for (;;) {
        struct ff_link *link = d->link;
        struct ff_error why;
        bool for_good = false;

        int rc = d->port ? dest_hear_source(d, -1, 0, &link, &why)
                         : dest_try_hello(d, link, DEST_HELLO_MS, &why);
        bool heard = !rc;
        if (!rc) {
            if (link != d->link)
                dest_set_link(d, link);
            ff_page_pool_stop(&d->pool);
            rc = check_table(d, config, &for_good, &why);
        }
        if (!rc)
            rc = dest_send_welcome(d, FF_ANSWER_NEW, &why);
        if (!rc)
            return 0;
        if (!heard || for_good || !d->port) {
            if (err)
                *err = why;
            return rc;
        }
        if (!atomic_load(&d->cancelled)) /* else the wait ends at once */
            dest_log_dropped(d, why.text);
        dest_set_link(d, NULL);
        ff_hello_free(&d->peer);
    }
}

/* What is made ready is of use only where the kernel can put it under the guest: else it would be
 * the guest's memory twice */
static void start_pool(struct ff_dest *d)
{
    enum ff_prefill_mode mode = d->addr.prefill;
    bool pulls = mode == FF_PREFILL_PULL || mode == FF_PREFILL_AUTO;
    struct ff_uffd_probe p;

    /* a visit gets little of its memory, and what a file has been given in vain stays there */
    if (d->regions.elsewhere || d->keeps || d->addr.visit || !d->addr.prealloc || d->addr.landing != FF_LANDING_AUTO)
        return;
    ff_uffd_probe(&p);
    ff_page_pool_start(&d->pool, &d->regions, p.moves && (pulls || d->addr.precopy),
                       p.continues && mode != FF_PREFILL_OFF && !d->addr.precopy);
}

/* Its source has nothing to let go of yet */
static int sign_mark(struct ff_dest *d, struct ff_error *err)
{
    char mark[FF_MARK_TEXT];

    ff_mark_text(d->session, d->epoch, mark);
    return ff_until_go_sign(&d->until_go, mark, err);
}

int ff_dest_accept(struct ff_dest *d, const char *config, struct ff_error *err)
{
    start_pool(d);
    int rc = find_source(d, config, err);
    dest_drop_waiting(d);
    /* what is pinned cannot be moved; and a fault gives pages of it back that are being read into,
     * which cannot be verified then */
    if (rc || d->link->pins || d->addr.verify)
        ff_page_pool_free(&d->pool);
    if (!rc && ff_failpoint("dest.accepted"))
        rc = ff_error_set(err, EIO, "destination: injected");
    if (!rc)
        rc = sign_mark(d, err);
    if (rc)
        return rc;
    ff_log(FF_LOG_INFO, "destination: link: %s", d->link->about);
    d->verbs = !strcmp(d->link->ops->name, "verbs");
    d->attached = d->epoch;
    d->accepted = true;
    if (dest_resumes(d))
        dest_ear_start(d);
    else
        ff_dest_close_port(d);
    if (dest_resumes(d) && d->peer.features & FF_WIRE_RESUMES)
        d->addr.go_timeout_ms = FF_MIN(d->addr.go_timeout_ms, d->addr.timeout_ms);
    return 0;
}
