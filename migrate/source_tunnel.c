/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * source_tunnel.c - a stream of bytes each way, at the source; see tunnel.h
 */
#include <errno.h>
#include <stdatomic.h>

#include "error.h"
#include "source_private.h"

int ff_source_tunnel(struct ff_source *s, struct ff_tunnel **out, struct ff_error *err)
{
    struct ff_tunnel *t;

    if (s->stage != NEW || s->ctl.tunnel)
        return ff_error_set(err, EINVAL, "source: tunnel: %s",
                            s->ctl.tunnel ? "it has one" : "it is connected already");
    if (s->addr.fallback) /* a lease has its own reader */
        return ff_error_set(err, ENOTSUP, "source: tunnel: not with fallback=go");
    if (s->addr.passed)
        return ff_error_set(err, ENOTSUP, "source: tunnel: not to an agent");
    int rc = ff_tunnel_new(&t, err);
    if (rc)
        return rc;
    pthread_mutex_lock(&s->lock);
    s->ctl.tunnel = t;
    pthread_mutex_unlock(&s->lock);
    if (atomic_load(&s->cancelled))
        ff_tunnel_fail(t, NULL);
    *out = t;
    return 0;
}

int ff_source_hear(struct ff_source *s, struct ff_error *err)
{
    return ff_tunnel_hear(s->ctl.tunnel, err);
}

int ff_source_tunnel_go(struct ff_source *s, struct ff_error *err)
{
    struct ff_error why;

    if (!ff_tunnel_keep_on(s->ctl.tunnel, &why))
        return 0;
    return ff_error_set(err, ETIME, "go: not sent: %s", why.text);
}
