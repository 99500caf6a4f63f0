/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * dest_tunnel.c - a stream of bytes each way, at the destination; see tunnel.h
 */
#include <errno.h>
#include <stdatomic.h>

#include "dest_private.h"
#include "error.h"

int ff_dest_tunnel(struct ff_dest *d, struct ff_tunnel **out, struct ff_error *err)
{
    struct ff_tunnel *t;

    if (d->accepted || d->ctl.tunnel)
        return ff_error_set(err, EINVAL, "destination: tunnel: %s",
                            d->ctl.tunnel ? "it has one" : "its source has come already");
    if (d->owner.adopt)
        return ff_error_set(err, ENOTSUP, "destination: tunnel: not of an agent");
    int rc = ff_tunnel_new(&t, err);
    if (rc)
        return rc;
    pthread_mutex_lock(&d->lock);
    d->ctl.tunnel = t;
    pthread_mutex_unlock(&d->lock);
    if (atomic_load(&d->cancelled))
        ff_tunnel_fail(t, NULL);
    *out = t;
    return 0;
}

int ff_dest_hear(struct ff_dest *d, struct ff_error *err)
{
    return ff_tunnel_hear(d->ctl.tunnel, err);
}

int dest_check_tunnel(const struct ff_dest *d, struct ff_error *err)
{
    bool theirs = d->peer.features & FF_WIRE_TUNNEL;

    return theirs == !!d->ctl.tunnel
               ? 0
               : ff_error_set(err, ENOTSUP, "%s", ff_tunnel_missing(theirs ? NULL : d->ctl.tunnel));
}

int dest_check_lease(const struct ff_dest *d, struct ff_error *err)
{
    return !d->publish.lease_ms || !d->ctl.tunnel
               ? 0
               : ff_error_set(err, EPROTO, "the source says fallback=go, and has a tunnel");
}
