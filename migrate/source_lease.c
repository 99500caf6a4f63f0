/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * source_lease.c - fallback=go: for how long the destination may run its guest (lease.c)
 */
/**
 * DOC: Theory of Operation
 *
 * Picture      GO, and every answer to LEASE: the destination may run it for lease_ms more
 *              DONE -> WITHDRAWN, until it is answered: the source never takes it back
 *              of a guest that visits: LEASE -> WITHDRAWN, each time: likewise, since it gave up (source_hold.c)
 * Invariants   The lease's end is counted from after the question was read: later than the
 *              destination counts, which did so before it was sent.
 */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "cleanup.h"
#include "error.h"
#include "source_private.h"

const char *ff_source_record_folder(const struct ff_source *s, char out[FF_PATH_ROOM])
{
    snprintf(out, FF_PATH_ROOM, "%s", s->addr.record);
    *(strrchr(out, '/') + 1) = '\0';
    return out;
}

/* The kernel forgets then how a child ended, and no fence can be told to have succeeded */
static int check_child_signal(struct ff_error *err)
{
    struct sigaction a;

    if (sigaction(SIGCHLD, NULL, &a))
        return ff_error_set(err, errno, "source: fallback=go: look at SIGCHLD: %s", strerror(errno));
    if (a.sa_handler != SIG_IGN && !(a.sa_flags & SA_NOCLDWAIT))
        return 0;
    return ff_error_set(err, EINVAL, "source: fallback=go: this process ignores SIGCHLD, as what started it did, and "
                        "cannot know whether the fence succeeds: start it with SIGCHLD at its default (trap - CHLD)");
}

int ff_source_check_fallback(const struct ff_source *s, struct ff_error *err)
{
    const struct ff_address *a = &s->addr;
    char folder[FF_PATH_ROOM];

    if (!a->fallback)
        return 0;
    if (a->passed)
        return ff_error_set(err, EINVAL, "source: fallback=go: not with an agent");
    int rc = check_child_signal(err);
    if (rc)
        return rc;
    if (strchr(a->fence, '=')) /* run_fence() gives it to env(1), which would set a variable */
        return ff_error_set(err, EINVAL, "source: fence=%s: want a path without '='", a->fence);
    if (access(a->fence, X_OK))
        return ff_error_set(err, errno, "source: fence=%s: %s", a->fence, strerror(errno));
    if (!access(a->record, F_OK))
        return ff_error_set(err, EEXIST,
                            "source: record=%s: it says that a guest was taken back: remove it "
                            "when nobody needs it any more",
                            a->record);
    if (access(ff_source_record_folder(s, folder), W_OK | X_OK))
        return ff_error_set(err, errno, "source: record=%s: its folder: %s", a->record,
                            strerror(errno));
    return 0;
}

void ff_source_begin_lease(struct ff_source *s)
{
    if (s->addr.fallback)
        s->lease_end_ns = ff_boot_ns() + (uint64_t)s->addr.lease_ms * 1000000u;
}

int ff_source_answer_lease(struct ff_source *s, struct ff_error *err)
{
    uint32_t number;
    int rc = ff_wire_get_lease(s->ctl.buf, (size_t)s->ctl.len, &number, err);

    if (!rc && (!s->addr.fallback || (s->stage != GONE && s->stage != DONE)))
        rc = ff_error_set(err, EPROTO, "LEASE %u: the destination holds none here", number);
    if (rc)
        return rc;
    ff_source_begin_lease(s);
    return ff_control_send(&s->ctl, ff_source_has_given_up(s) ? ff_wire_put_empty(s->ctl.buf, FF_MSG_WITHDRAWN)
                                                              : ff_wire_put_lease(s->ctl.buf, number), err);
}

int ff_source_await_told(struct ff_source *s, struct ff_error *err)
{
    const uint32_t also = FF_MSG_BIT(FF_MSG_PROGRESS) | FF_MSG_BIT(FF_MSG_LEASE);
    int type, rc = 0;

    if (!s->addr.fallback)
        return 0;
    do {
        type = ff_control_expect(&s->ctl, FF_MSG_WITHDRAWN, also, s->addr.timeout_ms, err);
        if (type == FF_MSG_LEASE) /* asked before WITHDRAWN was there: it needs none any more */
            rc = ff_source_answer_lease(s, err);
    } while (type >= 0 && type != FF_MSG_WITHDRAWN && !rc);
    if (type < 0 || rc)
        return type < 0 ? type : rc;
    s->told = true;
    s->link->ops->shutdown(s->link); /* the destination waits for that */
    return 0;
}
