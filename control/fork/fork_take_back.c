/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * fork_take_back.c - after a fork that failed: the parent writes to its own images again
 */
/**
 * DOC: Theory of Operation
 *
 * Purpose      a fork that failed leaves the parent in overlays. When no child can read the
 *              images behind them, they are committed (fork_commit.c) and the parent has its disks
 *              again.
 * Failure      where that is not known, or the parent does not answer, the overlays stay, and a
 *              note says so.
 */
#include "fork.h"

/* That its children have ended it has said itself. NULL: all hosts */
static const struct host *may_have_children(const struct fork *f)
{
    for (size_t i = 0; i < f->s.n_hosts; i++)
        if (f->s.hosts[i].rundir && !f->s.hosts[i].ended)
            return &f->s.hosts[i];
    return NULL;
}

void fork_take_back(struct fork *f)
{
    const struct host *h = may_have_children(f);
    bool silent = f->s.parent_silent;
    struct ff_error why;
    int rc;

    if (!fork_disks_forked(f->disks))
        return;
    if (h)
        strv_add(
            &f->s.notes,
            "the parent's overlays stay: children on %s may still run, and read the images behind "
            "them",
            h->node->host);
    else if (silent || f->held)
        session_note(&f->s,
                 "the parent's overlays stay: the parent has ended, or does not answer");
    if (h || silent || f->held)
        return;
    qmp_limit(f->s.qmp, (int)f->s.o.timeout_s * 1000);
    qmp_cancel_by(f->s.qmp, f->s.signals);
    rc = fork_disks_take_back(f->disks, f->s.qmp, (int)f->s.o.timeout_s * 1000, &why);
    qmp_cancel_by(f->s.qmp, -1);
    f->taken_back = !rc;
    if (rc)
        session_note(&f->s, "the parent's overlays stay, since the commit failed: %s", why.text);
}
