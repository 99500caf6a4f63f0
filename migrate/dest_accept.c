/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * dest_accept.c - the destination waits for its source: connection, hello, queues
 */
/**
 * DOC: Theory of Operation
 *
 * Limits       HELLO_MS: a stranger that connects is dropped after that and the wait for
 *              a source goes on.
 */
#include <errno.h>
#include <string.h>
#include <sys/random.h>

#include "cleanup.h"
#include "dest_private.h"
#include "fault.h"
#include "log.h"

#define HELLO_MS 5000

static void set_link(struct ff_dest *d, struct ff_link *link)
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

/* A hello from whoever connects next. 0; 1: it was no source, wait for the next; -errno */
static int hear_hello(struct ff_dest *d, struct ff_error *err)
{
    struct ff_error why;
    int rc = 0;

    if (d->port) {
        struct ff_link *link;
        rc = ff_port_accept(d->port, &link, err);
        if (rc)
            return rc;
        set_link(d, link);
    }
    rc = ff_control_expect(&d->ctl, FF_MSG_HELLO, 0, HELLO_MS, &why);
    if (rc >= 0)
        rc = ff_wire_get_hello(d->ctl.buf, (size_t)d->ctl.len, &d->peer, &why);
    if (!rc)
        return 0;
    if (rc == -EPROTO || rc == -EPROTONOSUPPORT)
        ff_control_refuse(&d->ctl, why.text);
    if (rc == -EPROTONOSUPPORT || rc == -ECANCELED || !d->port) {
        if (err)
            *err = why;
        return rc;
    }
    ff_log(FF_LOG_WARN, "destination: %s; connection dropped, waiting for a source", why.text);
    set_link(d, NULL);
    return 1;
}

void ff_dest_close_port(struct ff_dest *d)
{
    pthread_mutex_lock(&d->lock);
    struct ff_port *port = d->port;
    d->port = NULL;
    pthread_mutex_unlock(&d->lock);
    ff_port_free(port);
}

int ff_dest_accept(struct ff_dest *d, const char *config, struct ff_error *err)
{
    struct ff_welcome w = {.version = FF_WIRE_VERSION,
                           .features = d->addr.precopy ? FF_WIRE_PASS : 0};
    int rc;

    bool pulls = d->addr.prefill == FF_PREFILL_PULL || d->addr.prefill == FF_PREFILL_AUTO;
    if (d->addr.prealloc && d->addr.landing == FF_LANDING_AUTO && (pulls || d->addr.precopy))
        ff_stock_start(&d->stock, &d->regions);
    while ((rc = hear_hello(d, err)) > 0)
        ;
    ff_stock_stop(&d->stock);
    if (rc || d->link->pins) /* what is pinned cannot be moved */
        ff_stock_free(&d->stock);
    if (rc)
        return rc;
    struct ff_error why;
    rc = d->owner.adopt ? d->owner.adopt(d->owner.opaque, &d->peer, &why) : 0;
    if (!rc)
        rc = ff_regions_match(&d->regions, d->owner.adopt ? d->peer.config : config, &d->peer, d->map,
                              &why);
    if (rc) {
        ff_control_refuse(&d->ctl, why.text);
        if (err)
            *err = why;
        return rc;
    }
    if (getrandom(w.session, sizeof(w.session), 0) != sizeof(w.session))
        return ff_error_set(err, EIO, "destination: no random numbers: %s", strerror(errno));
    rc = ff_control_send(&d->ctl, ff_wire_put_welcome(d->ctl.buf, &w), err);
    if (!rc)
        rc = d->link->ops->open_queues(d->link, w.session, d->addr.timeout_ms, err);
    if (!rc && ff_fault("dest.accepted"))
        rc = ff_error_set(err, EIO, "destination: injected");
    if (rc)
        return rc;
    memcpy(d->session, w.session, sizeof(d->session));
    ff_log(FF_LOG_INFO, "destination: link: %s", d->link->about);
    ff_dest_close_port(d);
    return 0;
}
