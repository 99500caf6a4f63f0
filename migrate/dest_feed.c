/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * dest_feed.c - an agent that has the image too comes to feed this one; see feed.h, group.h
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "cleanup.h"
#include "dest_private.h"
#include "log.h"
#include "feed.h"
#include "group.h"

#define QUEUES_MS 1000

/* Without reconnect= the port is closed */
bool dest_may_be_fed(const struct ff_dest *d)
{
    return d->owner.adopt && d->addr.key && dest_resumes(d);
}

/* May who says FEED feed prefill? @o: where it has what */
static int check_feed(struct ff_dest *d, struct ff_offer *o, struct ff_error *why)
{
    if (!d->accepted || !dest_may_be_fed(d))
        return ff_error_set(why, EPROTO,
                            "feed: only an agent is fed, with a key");
    int rc = ff_wire_get_feed(d->door.buf, (size_t)d->door.len, d->peer.n_regions, o, why);
    if (rc)
        return rc;
    if (!d->door.link->sealed)
        return ff_error_set(why, EPROTO, "feed: without the fork's key nobody feeds");
    if (o->digest != ff_hello_digest(&d->peer))
        return ff_error_set(why, EPROTO, "feed: it has another image: memory or machine differ");
    if (o->is_older && !d->addr.verify)
        return ff_error_set(why, EPROTO, "feed: an earlier image: with verify=on alone");
    if (d->door.link->pins && !d->door.link->pushes)
        return ff_error_set(why, EPROTO, "feed: this device has no WRITE with immediate data");
    return 0;
}

/* Why the other one is to ask again. The image is frozen, also while its source is away; NULL: it may feed now */
static const char *why_feed_later(struct ff_dest *d, const struct ff_offer *o)
{
    if (!d->pager_used || !atomic_load(&d->pager.guest_runs))
        return "feed: there is no image here yet";
    return !o->is_older && atomic_load(&d->pager.n_older) && !atomic_load(&d->pager.feed_over)
               ? FF_FEED_EARLIER_FIRST : NULL;
}

int dest_take_feed(struct ff_dest *d, struct ff_error *why)
{
    struct ff_link *l = d->door.link;
    struct ff_welcome w = {.version = FF_WIRE_VERSION, .answer = FF_ANSWER_NEW, .epoch = 1};
    FF_AUTO_FREE struct ff_offer *o = calloc(1, sizeof(*o));
    struct ff_feed *feed;

    if (!o)
        return ff_error_set(why, ENOMEM, "feed: out of memory");
    int rc = check_feed(d, o, why);
    const char *later = rc ? NULL : why_feed_later(d, o);
    if (later)
        rc = ff_error_set(why, EAGAIN, "%s", later);
    if (!rc && getrandom(w.session, sizeof(w.session), 0) != sizeof(w.session))
        rc = ff_error_set(why, EIO, "feed: no random numbers: %s", strerror(errno));
    if (!rc)
        rc = ff_control_send(&d->door, ff_wire_put_welcome(d->door.buf, &w), why);
    if (!rc) /* an adapter takes its time */
        rc = l->ops->open_queues(l, w.session, l->pins ? d->addr.timeout_ms / 2 : QUEUES_MS, why);
    if (rc) /* the link is of no use any more, whatever it was */
        return rc == -ETIMEDOUT ? -ECONNABORTED : rc;
    if (ff_feed_new(&d->pager, l, o, &feed, d->door.buf, why))
        ff_log(FF_LOG_WARN, "destination: %s; no agent feeds this one", why->text);
    else
        ff_feed_offer(&d->pager, feed, d->door.buf);
    return 1; /* the link was taken */
}

void ff_dest_await_feed(struct ff_dest *d, int timeout_ms)
{
    atomic_store(&d->feed_ms, timeout_ms);
    if (!timeout_ms && atomic_load(&d->pager_used))
        atomic_store(&d->pager.feed_off, true);
}

uint64_t dest_feed_until(struct ff_dest *d)
{
    int ms = atomic_exchange(&d->feed_ms, 0);

    return ms > 0 && dest_may_be_fed(d) ? ff_now_ns() + (uint64_t)ms * 1000000u : 0;
}

uint64_t ff_dest_bytes_fed(struct ff_dest *d)
{
    return d->pager_used ? atomic_load(&d->pager.count.bytes_fed) : 0;
}

uint64_t ff_dest_bytes_same(struct ff_dest *d)
{
    return d->pager_used ? atomic_load(&d->pager.count.bytes_same) : 0;
}

uint64_t ff_dest_bytes_group(struct ff_dest *d)
{
    return d->pager_used ? atomic_load(&d->pager.count.bytes_group) : 0;
}

/* verify=on: who has the fork's key could forge packets. Which interface the link says: while it is away,
 * the next one will */
void dest_join_group(struct ff_dest *d)
{
    const struct ff_announce *a = &d->publish.group;
    struct ff_error why;

    if (d->has_joined || !d->pager.link || !d->owner.adopt || (!a->at.port && !a->why_not) || !d->addr.key ||
        d->addr.verify || d->pager.mode == FF_PREFILL_OFF)
        return;
    d->has_joined = true;
    int rc = a->why_not ? ff_error_set(&why, (int)FF_MIN(a->why_not, 4095u),
                                       "the parent cannot send to the group: %s",
                                       strerror((int)FF_MIN(a->why_not, 4095u)))
                        : ff_hearing_start(&d->pager, a, d->addr.key, &why);
    if (!rc) {
        dest_say_first(d);
        return;
    }
    ff_log(FF_LOG_WARN, "destination: memory comes without the group: %s", why.text);
    pthread_mutex_lock(&d->lock);
    snprintf(d->no_group, sizeof(d->no_group), "%.*s", (int)sizeof(d->no_group) - 1, why.text);
    pthread_mutex_unlock(&d->lock);
}

void ff_dest_no_group(struct ff_dest *d, char out[FF_GROUP_WHY_MAX])
{
    struct ff_hearing *h = atomic_load(&d->pager_used) ? atomic_load(&d->pager.hearing) : NULL;

    pthread_mutex_lock(&d->lock);
    snprintf(out, FF_GROUP_WHY_MAX, "%s", h ? ff_hearing_why_not(h) : d->no_group);
    pthread_mutex_unlock(&d->lock);
}
