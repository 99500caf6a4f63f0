/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * session_plan.c - which VM goes where
 */
/**
 * DOC: Theory of Operation
 *
 * Purpose      round robin over the hosts, as long as they have slots. A host that gets no VM is
 *              left out.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "launcher.h"
#include "session.h"
#include "rundir.h"

/* A name that no host before has */
static char *own_name(const struct session *s, const char *host)
{
    FF_AUTO_FREE char *wanted = rundir_name_from(host);
    char *name = xstrdup(wanted);

    for (unsigned k = 2;; k++) {
        bool taken = false;
        for (size_t i = 0; i < s->n_hosts; i++)
            taken |= !strcmp(s->hosts[i].name, name);
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

int session_plan(struct session *s, struct ff_error *why)
{
    unsigned slots = 0, *used = xcalloc(s->hostlist.n, sizeof(*used));
    size_t at = 0;

    for (size_t i = 0; i < s->hostlist.n; i++) {
        unsigned more = s->hostlist.v[i].slots == SLOTS_ANY ? s->o.n : s->hostlist.v[i].slots;
        slots = more > s->o.n || slots > s->o.n - more ? s->o.n : slots + more;
    }
    if (slots < s->o.n) {
        free(used);
        return ff_error_set(why, ENOSPC,
                            "%u children, but the hosts have room for %u: name more hosts, "
                            "or more slots (HOST:SLOTS)",
                            s->o.n, slots);
    }
    s->hosts = xcalloc(s->hostlist.n, sizeof(*s->hosts));
    s->vms = xcalloc(s->o.n, sizeof(*s->vms));
    for (size_t i = 0; i < s->hostlist.n; i++) {
        struct host *h = &s->hosts[i];
        *h = (struct host){.node = &s->hostlist.v[i], .name = own_name(s, s->hostlist.v[i].host),
                           .here = hostlist_is_here(&s->hostlist.v[i]), .run = SPAWN_NONE};
        s->n_hosts++;
    }
    bool ends = !s->o.stays && launcher_check_step(why); /* this program does, and what it starts with it */
    for (size_t i = 0; ends && i < s->n_hosts; i++)
        if (s->hosts[i].here || launcher_ends_all(s->o.launcher)) {
            free(used);
            return -EPERM;
        }
    for (; s->n_vms < s->o.n; at = (at + 1) % s->hostlist.n) {
        if (!has_room(&s->hostlist.v[at], used[at]))
            continue;
        used[at]++;
        s->vms[s->n_vms] = (struct vm){.number = (unsigned)s->n_vms + 1,
                                                    .host = at};
        s->n_vms++;
    }
    free(used);
    if (s->n_hosts > s->o.n) { /* round robin: those at the end got none */
        for (size_t i = s->o.n; i < s->n_hosts; i++)
            free(s->hosts[i].name);
        s->n_hosts = s->o.n;
    }
    return 0;
}

void session_trim(struct session *s, unsigned n)
{
    for (size_t k = n; k < s->n_vms; k++) {
        host_send(&s->hosts[s->vms[k].host], json_pack("{si}", "unused", (int)s->vms[k].number));
        vm_release(&s->vms[k]);
    }
    s->o.n = n;
    s->n_vms = n < s->n_vms ? n : s->n_vms;
    for (size_t i = n; i < s->n_hosts; i++) { /* as above: those at the end got none */
        s->hosts[i].let_go = s->hosts[i].ending = true;
        host_send(&s->hosts[i], json_pack("{sb}", "end", true));
    }
    s->n_spare = n < s->n_hosts ? s->n_hosts - n : 0;
    s->n_hosts -= s->n_spare;
}
