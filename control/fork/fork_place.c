/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * fork_place.c - which of the hosts get how many children, by the memory that they have; see fork_place.h
 */
/**
 * DOC: Theory of Operation
 *
 * Purpose      children where there is room for them: nobody is placed on memory that is not there, nor two forks
 *              on the same.
 * Picture      ask the parent           how much memory its guest has
 *              farfork hosts --here     each host's, what is promised to others left out (reserve.h)
 *              plan                     place_plan()
 *              --reserve                where a host has less by now, the plan is made again
 * Limits       A child is counted with all the memory of the guest, which it may change, unless --child-memory
 *              says less. A host that does not answer gets no child, and is named.
 */
#include "fork_place.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include "ask.h"
#include "autojson.h"
#include "defaults.h"
#include "launcher.h"
#include "qmp.h"
#include "rundir.h"

#define CHILD_BYTES (64ull << 20) /* a QEMU, beside its guest's memory */
#define ANSWER_MS 20000
#define ROUNDS 4

uint64_t place_bytes(uint64_t image, uint64_t child, unsigned children)
{
    return children ? image + children * child : 0;
}

static bool fits(const struct place_host *h, uint64_t image, uint64_t child)
{
    return (h->slots == SLOTS_ANY || h->children < h->slots) &&
           place_bytes(image, child, h->children + 1) <= h->available;
}

static uint64_t left(const struct place_host *h, uint64_t image, uint64_t child)
{
    return h->available - place_bytes(image, child, h->children);
}

/* The one with most memory: that has, when all of @pack, else that is left */
static struct place_host *best(struct place_host *h, size_t n, uint64_t image, uint64_t child, bool pack)
{
    struct place_host *best = NULL;

    for (size_t i = 0; i < n; i++) {
        if (!fits(&h[i], image, child))
            continue;
        if (!best || (pack ? (h[i].children && !best->children) ||
                                 (!h[i].children == !best->children && h[i].available > best->available)
                           : left(&h[i], image, child) > left(best, image, child)))
            best = &h[i];
    }
    return best;
}

unsigned place_plan(struct place_host *h, size_t n, unsigned children, uint64_t image, uint64_t child, bool pack)
{
    unsigned placed = 0;
    struct place_host *at;

    for (size_t i = 0; i < n; i++)
        h[i].children = 0;
    for (; placed < children && (at = best(h, n, image, child, pack)); placed++)
        at->children++;
    return placed;
}

static int guest_memory(const struct fork_options *o, uint64_t *bytes, struct ff_error *why)
{
    FF_AUTO_JSON json_t *memory = NULL;
    struct qmp *q;
    int rc = qmp_connect_in_turn(o->s.parent_path, -1, (int)o->s.timeout_s * 1000, NULL, NULL, &q, why);

    if (rc)
        return rc;
    rc = qmp_command(q, "query-memory-size-summary", NULL, &memory, why);
    qmp_free(q);
    *bytes = (uint64_t)json_integer_value(json_object_get(memory, "base-memory")) +
             (uint64_t)json_integer_value(json_object_get(memory, "plugged-memory"));
    return rc;
}

struct placing_fork {
    const struct fork_options *o;
    const struct hostlist *hosts;
    struct place_host *h;
    bool *out; /* it has not answered */
    uint64_t image, child;
};

/* Each host that is not out yet says what it has, and promises what h[].children take, if @reserve; whether all have
 * promised. One that says nothing is out */
static bool ask_hosts(struct placing_fork *p, bool reserve)
{
    struct asked *a = xcalloc(p->hosts->n, sizeof(*a));
    FF_AUTO_FREE char *agent = p->o->s.agent ? xstrdup(p->o->s.agent) : defaults_agent();
    FF_AUTO_FREE char *rundir = p->o->s.rundir ? defaults_absolute_path(p->o->s.rundir) : xstrdup("");
    bool all = true;

    asked_prepare();
    for (size_t i = 0; i < p->hosts->n; i++) {
        const struct node *n = &p->hosts->v[i];
        const char *launcher = hostlist_is_here(n) ? "" : p->o->s.launcher ? p->o->s.launcher : launcher_default();
        FF_AUTO_FREE char *node = rundir_name_from(n->host);
        FF_AUTO_FREE char *promise =
            xprintf("%s,%s:%llu", p->o->s.id, node,
                    (unsigned long long)place_bytes(p->image, p->child, p->h[i].children));
        char *words[] = {"hosts", "--here", reserve ? "--reserve" : NULL, promise, NULL};
        a[i] = asked_new(json_pack("{ss ss ss ss}", "host", n->host, "launcher", launcher, "agent", agent, "rundir",
                                   rundir));
        a[i].over = p->out[i];
        if (!p->out[i])
            asked_start(&a[i], words);
    }
    asked_read(a, p->hosts->n, ANSWER_MS);
    for (size_t i = 0; i < p->hosts->n; i++) {
        FF_AUTO_JSON json_t *f = asked_answer(&a[i]);
        uint64_t promised = (uint64_t)json_integer_value(json_object_get(f, "reserved_bytes"));
        uint64_t available = (uint64_t)json_integer_value(json_object_get(f, "available_bytes"));
        FF_AUTO_FREE char *reason = f ? xstrdup(text_of(f, "reason")) : asked_why(&a[i]);
        if (!p->out[i] && *reason)
            fprintf(stderr, "vmclone: %s gets %s: %s\n", p->hosts->v[i].host, f ? "fewer" : "no child", reason);
        p->out[i] |= !f;
        p->h[i].available = available > promised ? available - promised : 0;
        all &= !reserve || !p->h[i].children || json_is_true(json_object_get(f, "granted"));
    }
    asked_free(a, p->hosts->n);
    return all;
}

static void keep_chosen(struct hostlist *hosts, const struct place_host *h)
{
    for (size_t i = hosts->n; i-- > 0;)
        if (h[i].children)
            hosts->v[i].slots = h[i].children;
        else
            hostlist_drop(hosts, i);
}

int fork_place(const struct fork_options *o, enum placing how, struct hostlist *hosts, struct ff_error *why)
{
    struct placing_fork p = {.o = o, .hosts = hosts, .h = xcalloc(hosts->n, sizeof(*p.h)),
                              .out = xcalloc(hosts->n, sizeof(bool))};
    int rc = guest_memory(o, &p.image, why);
    unsigned placed = 0;
    bool promised = false, asked = false;

    p.child = CHILD_BYTES + (o->child_bytes ? o->child_bytes : p.image);
    for (size_t i = 0; i < hosts->n; i++)
        p.h[i].slots = hosts->v[i].slots;
    if (!rc)
        ask_hosts(&p, false);
    for (int round = 0; !rc && !promised && round < ROUNDS; round++) {
        placed = place_plan(p.h, hosts->n, o->s.n, p.image, p.child, how == PLACE_PACK);
        if (placed < o->s.n)
            break;
        promised = ask_hosts(&p, true);
        asked = true;
    }
    if (!rc && !promised)
        rc = ff_error_set(why, ENOSPC, "%u children of %llu MiB, beside %llu MiB of the image on each host: the hosts "
                          "have memory and slots for %u: name more hosts, or less by --child-memory", o->s.n,
                          (unsigned long long)p.child >> 20, (unsigned long long)p.image >> 20, placed);
    if (rc && asked) { /* what some have promised */
        place_plan(p.h, hosts->n, 0, p.image, p.child, true);
        ask_hosts(&p, true);
    }
    if (!rc)
        keep_chosen(hosts, p.h);
    free(p.h);
    free(p.out);
    return rc;
}
