/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * visit_disks.c - a visit with --fallback go: what the guest has written to overlays there comes home with it
 */
/**
 * DOC: Theory of Operation
 *
 * Picture      here                                        there
 *              x-farfork-give-up                           the guest writes to overlays (move_fallback.c)
 *              from here on it is not taken back
 *                                                          x-rdma-postcopy-release, heard: it has heard that, and
 *                                                          needs no lease
 *                                                          each overlay: block-commit, pivot; removed
 *              the way home (visit_attach.c)
 * Invariants   1. No commit begins before the process beside the QEMU here has answered that it does not take the guest back: memory as
 *                 the guest went, with disks that are newer, would be another guest.
 *              2. Nor before the one there has heard it: a lease that ends while a job writes would end that QEMU.
 *              3. An overlay is removed when the guest there has it no more, or when the guest was taken back. One that
 *                 is left is named by a note.
 *              The process there lets nobody send a guest home that has an overlay (attach_lease.c).
 * Failure      a commit that fails leaves the guest there, with that overlay; the next return tries it again. There is
 *              no fallback any more.
 */
#include <errno.h>
#include <string.h>

#include "autojson.h"
#include "visit.h"

#define HEARD_TURN_MS 100

bool visit_commits(const struct move *m)
{
    return m->made.n;
}

/* By the process here, over a link: nobody's word is taken for it */
static int await_released(struct move *m, struct ff_error *why)
{
    uint64_t end = ff_now_ms() + (uint64_t)move_limit_ms(m);
    int rc;

    do {
        rc = move_ask(m, "x-rdma-postcopy-release", json_pack("{sb}", "heard", true), NULL, why);
        if (!rc)
            return 0;
        session_turn(&m->s, HEARD_TURN_MS);
    } while ((rc == -EREMOTEIO || rc == -ENODATA) && ff_now_ms() < end && !m->s.interrupted);
    return ff_error_context(why, "the guest there has a lease still");
}

int visit_disks_commit(struct move *m, struct ff_error *why)
{
    struct ff_error one;
    int first = 0;

    if (visit_commits(m))
        visit_say(m, "what it wrote to its disks is committed on %s; from here on it cannot be taken back",
                  move_host(m)->node->host);
    int rc = await_released(m, why);
    for (size_t i = 0; !rc && i < m->made.n;) {
        int failed = move_commit_one(m, m->made.v[i], &one);
        if (failed && !first)
            first = ff_error_set(why, -failed, "commit %s: %s", m->made.v[i], one.text);
        if (failed)
            i++;
        else
            strv_drop(&m->made, i);
    }
    return rc ? rc : first;
}

void visit_disks_say(struct move *m)
{
    const struct visit *v = m->visit;
    const char *host = move_host(m)->node->host;

    if (m->outcome == MOVE_ENDED || m->outcome == MOVE_LOST) {
        move_fallback_keep(m);
        return;
    }
    for (size_t i = 0; i < m->made.n; i++)
        if (m->outcome == MOVE_HOME)
            session_note(&m->s, "%s is no disk of the guest any more, which came home: remove it once no QEMU on %s "
                     "has it open", m->made.v[i], host);
        else
            session_note(&m->s, "%s has what the guest has written on %s: keep it; it is committed there before the "
                     "guest comes home: see VISITS in farfork(1)%s%s", m->made.v[i], host,
                     v->gave_up ? ". The guest is not taken back any more"
                                : ". If the guest is taken back, remove it instead: then there is a file ",
                     v->gave_up ? "" : m->record);
}
