/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * session_plan.c - which child goes where
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fork.h"
#include "rundir.h"

const char *child_state_name(enum child_state s)
{
    static const char *const names[] = {"waiting", "spawned", "started", "attached", "running",
                                        "complete", "ended", "failed"};
    return names[s];
}

bool child_runs(const struct child *c)
{
    return c->state == CHILD_RUNNING || c->state == CHILD_COMPLETE || c->state == CHILD_ENDED;
}

void child_fail(struct child *c, const char *fmt, ...)
{
    struct why w;
    va_list ap;

    if (c->state == CHILD_FAILED) /* the first reason is the cause */
        return;
    va_start(ap, fmt);
    vsnprintf(w.text, sizeof(w.text), fmt, ap);
    va_end(ap);
    c->state = CHILD_FAILED;
    c->error = xstrdup(w.text);
}

/* A name that no host before has */
static char *own_name(const struct clone *c, const char *host)
{
    AUTO_FREE char *wanted = rundir_name_from(host);
    char *name = xstrdup(wanted);

    for (unsigned k = 2;; k++) {
        bool taken = false;
        for (size_t i = 0; i < c->n_hosts; i++)
            taken |= !strcmp(c->hosts[i].name, name);
        if (!taken)
            return name;
        free(name);
        name = xprintf("%.30s-%u", wanted, k);
    }
}

static bool has_room(const struct node *n, unsigned used)
{
    return n->slots == SLOTS_ANY || used < n->slots;
}

int clone_plan(struct clone *c, struct why *why)
{
    unsigned slots = 0, *used = xcalloc(c->nodes.n, sizeof(*used));
    size_t at = 0;

    for (size_t i = 0; i < c->nodes.n; i++) {
        unsigned more = c->nodes.v[i].slots == SLOTS_ANY ? c->o->n : c->nodes.v[i].slots;
        slots = more > c->o->n || slots > c->o->n - more ? c->o->n : slots + more;
    }
    if (slots < c->o->n) {
        free(used);
        return refuse(why, ENOSPC, "%u children, but the hosts have room for %u: name more hosts, "
                                   "or more slots (HOST:SLOTS)", c->o->n, slots);
    }
    c->hosts = xcalloc(c->nodes.n, sizeof(*c->hosts));
    c->children = xcalloc(c->o->n, sizeof(*c->children));
    for (size_t i = 0; i < c->nodes.n; i++) {
        struct host *h = &c->hosts[i];
        *h = (struct host){.node = &c->nodes.v[i], .name = own_name(c, c->nodes.v[i].host),
                           .here = node_is_here(&c->nodes.v[i]), .run = REMOTE_NONE};
        c->n_hosts++;
    }
    for (; c->n_children < c->o->n; at = (at + 1) % c->nodes.n) {
        if (!has_room(&c->nodes.v[at], used[at]))
            continue;
        used[at]++;
        c->children[c->n_children] = (struct child){.number = (unsigned)c->n_children + 1,
                                                    .host = at};
        c->n_children++;
    }
    free(used);
    if (c->n_hosts > c->o->n) { /* round robin: those at the end got none */
        for (size_t i = c->o->n; i < c->n_hosts; i++)
            free(c->hosts[i].name);
        c->n_hosts = c->o->n;
    }
    return 0;
}
