/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * source_serve.c - after GO: until the destination runs the guest, and until it has all memory
 */
#include <errno.h>
#include <string.h>

#include "error.h"
#include "failpoint.h"
#include "group.h"
#include "source_private.h"

/* Both sides must be of one mind: a source that stops waiting breaks the link */
static int give_up_serving(struct ff_source *s, int rc, struct ff_error *err)
{
    if (rc && s->link)
        s->link->ops->shutdown(s->link);
    return ff_source_why(s, rc, err);
}

int ff_source_wait_running(struct ff_source *s, struct ff_error *err)
{
    int rc = ff_failpoint("source.running");
    if (rc)
        return ff_error_set(err, -rc, "source: wait for RUNNING: injected");
    if (s->runs_there)
        return 0;
    rc = give_up_serving(s, ff_source_wait_alive(s, FF_MSG_RUNNING, s->addr.go_timeout_ms, err),
                         err);
    s->runs_there = !rc;
    if (s->group && !rc)
        ff_group_runs(s->group, s->member);
    return rc;
}

bool ff_source_runs_there(const struct ff_source *s)
{
    return s->runs_there;
}

static int take_grants(struct ff_source *s, struct ff_error *err)
{
    struct ff_grant g[FF_WIRE_GRANTS_MAX];
    unsigned n;

    int rc = ff_wire_get_grants(s->ctl.buf, (size_t)s->ctl.len, g, s->link->max_len_bytes,
                                s->table.regions, s->table.n_regions, &n, err);
    return rc ? rc : ff_responder_grant(&s->responder, g, n, err);
}

/* Without a group it is nothing */
static int take_first(struct ff_source *s, struct ff_error *err)
{
    FF_AUTO_FREE struct ff_page_ref *pages = calloc(FF_WIRE_FIRST_MAX, sizeof(*pages));
    unsigned n;

    if (!pages)
        return ff_error_set(err, ENOMEM, "source: FIRST: out of memory");
    int rc = ff_wire_get_first(s->ctl.buf, (size_t)s->ctl.len, pages, FF_WIRE_FIRST_MAX,
                               s->table.regions, s->table.n_regions, &n, err);
    if (!rc && s->group)
        ff_group_first(s->group, s->member, pages, n);
    return rc;
}

int ff_source_wait_done(struct ff_source *s, struct ff_error *err)
{
    const uint32_t also = FF_MSG_BIT(FF_MSG_PROGRESS) | FF_MSG_BIT(FF_MSG_GRANT) |
                          FF_MSG_BIT(FF_MSG_LEASE) | FF_MSG_BIT(FF_MSG_FIRST);
    int type, rc;

    if (s->stage == DONE)
        return s->told || !s->addr.fallback
                   ? 0
                   : ff_error_set(err, ENOTCONN, "the destination may not know that it has all");
    if (s->stage < GONE)
        return ff_error_set(err, EINVAL, "source: wait for DONE: nothing was let go of");
    do {
        type = ff_control_expect(&s->ctl, FF_MSG_DONE, also, s->addr.go_timeout_ms, err);
        rc = type < 0               ? type
             : type == FF_MSG_GRANT ? take_grants(s, err)
             : type == FF_MSG_FIRST ? take_first(s, err)
             : type == FF_MSG_LEASE ? ff_source_answer_lease(s, err)
                                    : ff_source_take_stats(s, err);
        if (rc < 0)
            return give_up_serving(s, rc, err);
    } while (type != FF_MSG_DONE);
    int lost = ff_failpoint("source.done");
    if (lost)
        return give_up_serving(s, ff_error_set(err, -lost, "source: DONE: lost (injected)"), err);
    ff_responder_end_push(&s->responder);
    /* from here on no key works: what the peer still asks for is refused */
    ff_segments_dereg(&s->segments, s->link);
    s->stage = DONE;
    if (s->group)
        ff_group_left(s->group, s->member);
    /* every page is there: for a guest that was let go for good it does not matter whether this
     * arrives */
    ff_control_send(&s->ctl, ff_wire_put_empty(s->ctl.buf, FF_MSG_WITHDRAWN), NULL);
    rc = ff_source_await_told(s, err);
    if (rc && s->link)
        s->link->ops->shutdown(s->link);
    return rc;
}
