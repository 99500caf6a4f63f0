/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * dest_state.c - the destination's stage of device state, and with precopy=1 a pass before it
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "cleanup.h"
#include "dest_private.h"
#include "failpoint.h"

/* --- precopy=1 --- */

static int make_precopy(struct ff_dest *d, struct ff_error *err)
{
    int rc = ff_failpoint("dest.precopy");

    if (rc)
        return ff_error_set(err, -rc, "destination: pass: injected");
    pthread_mutex_lock(&d->pager_lock);
    rc = atomic_load(&d->pager.stop) ? ff_error_set(err, ECANCELED, "given up before the pass")
                                     : ff_pager_start_precopy(&d->pager, err);
    pthread_mutex_unlock(&d->pager_lock);
    while (!rc && (rc = ff_pager_wait_precopy(&d->pager, PROGRESS_MS, err)) > 0)
        rc = dest_send_stats(d, FF_MSG_PROGRESS, err);
    if (rc && atomic_load(&d->cancelled))
        return ff_error_set(err, ECANCELED, "canceled");
    if (rc)
        return ff_control_reason(&d->ctl, rc, err);
    pthread_mutex_lock(&d->pager_lock);
    rc = ff_pager_end_precopy(&d->pager, err);
    pthread_mutex_unlock(&d->pager_lock);
    return rc;
}

static int take_dirty(struct ff_dest *d, struct ff_error *err)
{
    struct ff_dirty dirty;

    int rc = ff_wire_get_dirty(d->ctl.buf, (size_t)d->ctl.len, &dirty, d->peer.regions,
                               d->peer.n_regions, err);
    if (rc)
        return rc;
    dirty.region = d->map[dirty.region];
    rc = dest_hold_kept(d, err);
    return rc ? rc : ff_pager_discard(&d->pager, &dirty, err);
}

/* Wait for STATE, for as long as the guest runs at the source: FF_MSG_STATE or -errno */
static int until_state(struct ff_dest *d, struct ff_error *err)
{
    bool passes = d->addr.precopy && dest_may_fetch(d); /* else memory's owner has what came before */
    uint32_t also = passes ? FF_MSG_BIT(FF_MSG_DIRTY) | (d->keeps ? 0 : FF_MSG_BIT(FF_MSG_LOGGING)) : 0;
    bool passed = false;
    int type = -ETIMEDOUT, rc = 0;

    while (!rc && type != FF_MSG_STATE) {
        type = ff_control_expect(&d->ctl, FF_MSG_STATE, also, 1000, err);
        if (type < 0 && type != -ETIMEDOUT)
            return type;
        if (type == FF_MSG_DIRTY)
            rc = take_dirty(d, err);
        if (type != FF_MSG_LOGGING)
            continue;
        rc = ff_wire_get_empty(d->ctl.buf, (size_t)d->ctl.len, err);
        if (!rc && !passed)
            rc = make_precopy(d, err);
        passed = true;
        if (!rc)
            rc = dest_send_stats(d, FF_MSG_PASSED, err);
    }
    if (rc && rc != -EREMOTEIO)
        ff_control_refuse(&d->ctl, err ? err->text : "the destination's pass failed");
    return rc ? rc : type;
}

/* --- state --- */

static int recv_first(struct ff_dest *d, unsigned n, struct ff_error *err)
{
    FF_AUTO_FREE struct ff_page_ref *pages = calloc(n + 1, sizeof(*pages));
    unsigned have = 0, got = 0;

    if (!pages)
        return ff_error_set(err, ENOMEM, "destination: first-touch pages: out of memory");
    while (have < n) {
        int rc = ff_control_expect(&d->ctl, FF_MSG_FIRST, 0, d->addr.timeout_ms, err);
        if (rc >= 0)
            rc = ff_wire_get_first(d->ctl.buf, (size_t)d->ctl.len, pages + have, n - have,
                                   d->peer.regions, d->peer.n_regions, &got, err);
        if (rc < 0)
            return rc;
        have += got;
    }
    for (unsigned i = 0; i < n; i++)
        pages[i].region = d->map[pages[i].region];
    return ff_pager_first_touch(&d->pager, pages, n, err);
}

int ff_dest_recv_state(struct ff_dest *d, void **state, size_t *len, struct ff_error *err)
{
    struct ff_state_head head;

    int rc = ff_pager_register_landing(&d->pager, &d->regions, err);
    if (rc) {
        ff_control_refuse(&d->ctl, err ? err->text : "the destination did not register its memory");
        return rc;
    }
    /* memory is empty and watched: whatever this side had to refuse it has refused */
    rc = ff_control_send(&d->ctl, ff_wire_put_empty(d->ctl.buf, FF_MSG_WATCHING), err);
    if (rc)
        return rc;
    rc = until_state(d, err);
    if (rc >= 0)
        rc = ff_wire_get_state(d->ctl.buf, (size_t)d->ctl.len, &head, err);
    if (rc < 0)
        return rc;
    d->state_ns = ff_now_ns();
    rc = dest_hold_kept(d, err);
    if (rc) {
        ff_control_refuse(&d->ctl, err ? err->text : "the guest is being taken back here");
        return rc;
    }
    /* what has no key by then reads as zeros: no fault may be served before */
    rc = dest_recv_keys(d, head.n_keys, err);
    if (rc)
        return rc;
    if (dest_may_fetch(d)) /* else ff_dest_adopt() says so */
        ff_pager_image_frozen(&d->pager);
    if (head.n_first)
        rc = recv_first(d, head.n_first, err);
    if (rc < 0)
        return rc;

    FF_AUTO_FREE uint8_t *buf = malloc(head.total_bytes);
    if (!buf)
        return ff_error_set(err, ENOMEM, "destination: %llu bytes of state: out of memory",
                            (unsigned long long)head.total_bytes);
    for (uint64_t have = 0; have < head.total_bytes;) {
        const uint8_t *data;
        uint32_t n;
        rc = ff_control_expect(&d->ctl, FF_MSG_DATA, 0, d->addr.timeout_ms, err);
        if (rc >= 0)
            rc = ff_wire_get_data(d->ctl.buf, (size_t)d->ctl.len, head.total_bytes - have, &data,
                                  &n, err);
        if (rc < 0) { /* a pager that has failed ends the link, and knows why */
            int failed = ff_pager_check(&d->pager, FF_PAGER_FAILED, err);
            return failed ? failed : rc;
        }
        memcpy(buf + have, data, n);
        have += n;
    }
    if (ff_failpoint("dest.state"))
        return ff_error_set(err, EIO, "destination: injected");
    *state = buf;
    *len = head.total_bytes;
    d->has_state = true; /* of memory elsewhere: then, and once it is adopted, the image is frozen */
    buf = NULL;
    return 0;
}
