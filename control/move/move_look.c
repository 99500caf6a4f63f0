/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * move_look.c - the way to the agent is gone: what do the lists of its host say?
 */
/**
 * DOC: Theory of Operation
 *
 * Purpose      the agent was killed, or its host has started again, so nobody sees the end of the
 *              QEMU there. The list there says never-ran when that QEMU is no process of this boot,
 *              and its file of until-go is there. Only then can the source have its guest back: unknown, of
 *              a process that cannot be seen from there, is not enough. It says
 *              shut-down likewise: then the source is not to have it. A QEMU behind --qemu may outlive
 *              the process that the list knows: only shut-down counts then.
 * Limits       the launcher gets LOOK_LIMIT_MS; nothing else is done meanwhile. A host that starts
 *              is asked every LOOK_EVERY_MS.
 */
#include <stdio.h>
#include <string.h>

#include "autojson.h"
#include "launcher.h"
#include "move.h"

#define LOOK_LIMIT_MS 5000
#define LOOK_EVERY_MS 10000

static bool is_this(struct move *m, const json_t *fork)
{
    const struct host *h = move_host(m);

    return !strcmp(text_of(fork, "id"), m->s.o.id) && !strcmp(text_of(fork, "node"), h->name) &&
           json_integer_value(json_object_get(fork, "agent")) == h->agent_pid;
}

/* The last line of JSON counts: a login shell may greet before it */
static void look_for_it(void *opaque, const char *line)
{
    struct move *m = opaque;
    FF_AUTO_JSON json_t *forks = json_loads(line, 0, NULL);
    size_t i;
    json_t *fork;

    json_array_foreach(forks, i, fork) {
        const json_t *child = json_array_get(json_object_get(fork, "children"), 0);
        if (is_this(m, fork) && !m->s.o.qemu && !strcmp(text_of(child, "state"), "never-ran")) {
            move_child(m)->never_ran = true;
            snprintf(move_child(m)->mark, sizeof(move_child(m)->mark), "%s", text_of(child, "mark"));
        }
        if (is_this(m, fork) && !strcmp(text_of(child, "state"), "shut-down"))
            move_child(m)->shut_down = true;
        if (is_this(m, fork))
            move_child(m)->end_unclear = !strcmp(text_of(child, "state"), "unknown");
    }
}

void move_look(struct move *m, bool last)
{
    const struct host *h = move_host(m);
    struct vm *k = move_child(m);
    struct spawn look = SPAWN_NONE;
    struct strv w = {0};
    struct ff_error why;

    if (h->state != HOST_FAILED || k->never_ran || k->shut_down ||
        (!last && ff_now_ms() < m->look_ms))
        return;
    strv_add(&w, "%s", m->s.o.agent);
    strv_add(&w, "forks");
    strv_add(&w, "--json");
    if (m->s.o.rundir) {
        strv_add(&w, "--rundir");
        strv_add(&w, "%s", m->s.o.rundir);
    }
    FF_AUTO_FREE char *line = h->here ? NULL : launcher_line(m->s.o.launcher, h->node->host, w.v);
    if (!spawn_start(&look, w.v, line, &why)) {
        spawn_read_lines(&look, LOOK_LIMIT_MS, look_for_it, m);
        spawn_end(&look, 0);
    }
    spawn_free(&look);
    strv_free(&w);
    m->look_ms = ff_now_ms() + LOOK_EVERY_MS;
    if (k->never_ran)
        session_note(&m->s, "the guest never ran on %s, as its list says; vmclone --kill %s there "
                              "takes that off the list", h->node->host, m->s.o.id);
}
