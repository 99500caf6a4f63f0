/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * visit_learn.c - a visit leaves behind what the guest waited for there; the next one with a budget gets that first
 */
/**
 * DOC: Theory of Operation
 *
 * Picture      the file of this guest, which forks of it have, too (working_set_file.h)
 *                --> --budget: the process there, which listens: x-rdma-postcopy-working-set
 *              before it comes home: the QEMU there --> memory
 *              at home, in whichever QEMU: memory --> the file
 *              With --budget that is what the file had, and what came on top; without, what this visit touched.
 * Failure      costs a note, and time on another visit.
 */
#include <errno.h>
#include <stdlib.h>

#include "autojson.h"
#include "rundir.h"
#include "visit.h"
#include "working_set_file.h"

#define COMMAND "x-rdma-postcopy-working-set"

char *visit_options_there(const struct move *m)
{
    const unsigned mib = m->visit ? m->visit->o.budget_mib : 0;

    return mib ? xprintf(",visit=on,budget=%uM", mib) : xstrdup(m->visit ? ",visit=on" : "");
}

int visit_tell_touched(struct move *m, struct ff_error *why)
{
    FF_AUTO_FREE char *path = NULL, *text = NULL;

    if (!m->visit->o.budget_mib)
        return 0;
    path = working_set_path(m->s.o.rundir, m->s.parent_pid);
    int rc = path ? working_set_load(path, &text, why) : 1;
    if (!rc)
        rc = move_ask(m, COMMAND, json_pack("{ss}", "first", text), NULL, why);
    if (rc >= 0 || rc == -ECANCELED)
        return rc < 0 ? rc : 0;
    session_note(&m->s, "what this guest touched on other visits does not come first: %s", why->text);
    return move_check_there(m, why);
}

static void note_not_kept(struct move *m, const struct ff_error *why)
{
    session_note(&m->s, "the next visit does not know what this one touched: %s", why->text);
}

void visit_ask_touched(struct move *m)
{
    FF_AUTO_JSON json_t *answer = NULL;
    struct ff_error why;
    int rc = move_ask(m, COMMAND, NULL, &answer, &why);
    const char *text = text_of(answer, "text");

    if (!rc && !working_set_is_text(text))
        rc = ff_error_set(&why, EREMOTEIO, "its QEMU on %s says something else", move_host(m)->node->host);
    if (rc) {
        note_not_kept(m, &why);
        return;
    }
    free(m->visit->touched);
    m->visit->touched = xstrdup(text);
}

void visit_keep_touched(struct move *m, pid_t pid)
{
    FF_AUTO_FREE char *base = m->s.o.rundir ? xstrdup(m->s.o.rundir) : rundir_base();
    const char *text = m->visit->touched;
    struct ff_error why;

    if (text && *text && (rundir_make_base(base, &why) || working_set_keep(m->s.o.rundir, pid, text, &why)))
        note_not_kept(m, &why);
}
