/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * fork_working_set.c - hosts are told which pages earlier children touched, and tell which theirs did
 */
/**
 * DOC: Theory of Operation
 *
 * Purpose      what children of one parent touch first is much the same from fork to fork. It comes
 *              before all else: migrate/working_set.h.
 * Picture      FILE, or the parent's own in the run directory --> every agent, before the export
 *              the first agent that has children which touched something --> FILE, when all is over
 *              What an agent says has what it was told, and what came on top: nothing is merged here.
 *              So an agent's word goes to the agents of later forks: working_set_file.h keeps what is text.
 * Failure      a FILE that was named and is not one: no fork. All else is said, and costs only time.
 */
#include <string.h>

#include "fork.h"
#include "working_set_file.h"

static bool is_off(const struct fork *f)
{
    return f->o->working_set && !strcmp(f->o->working_set, "none");
}

int fork_read_working_set(struct fork *f, struct ff_error *why)
{
    FF_AUTO_FREE char *own = f->o->working_set ? NULL : working_set_path(f->s.o.rundir, f->s.parent_pid);
    const char *path = f->o->working_set ? f->o->working_set : own;

    if (is_off(f) || !path)
        return 0;
    int rc = working_set_load(path, &f->first, why);
    return rc < 0 && f->o->working_set ? rc : 0;
}

void fork_tell_working_set(struct fork *f)
{
    for (size_t i = 0; f->first && i < f->s.n_hosts; i++)
        if (f->s.hosts[i].state == HOST_LISTENING)
            host_send(&f->s.hosts[i], json_pack("{ss}", "first", f->first));
}

void fork_keep_working_set(struct fork *f)
{
    const struct host *first = NULL;
    struct ff_error why;

    for (size_t i = 0; i < f->s.n_hosts; i++) {
        const struct host *h = &f->s.hosts[i];
        if (h->touched && working_set_is_text(h->touched) && !h->foreign &&
            (!first || h->complete_ms < first->complete_ms))
            first = h;
    }
    if (is_off(f) || !first)
        return;
    int rc = f->o->working_set ? working_set_store(f->o->working_set, first->touched, &why)
                               : working_set_keep(f->s.o.rundir, f->s.parent_pid, first->touched, &why);
    if (rc)
        session_note(&f->s, "the next fork does not know what this one's children touched: %s", why.text);
}
