/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * fork_group.c - whether the parent's memory goes to all other hosts at once, by multicast, and to which group
 */
/**
 * DOC: Theory of Operation
 *
 * Purpose      --multicast. The parent's side sends its memory to the group (migrate/group.h); the tree
 *              (fork_tree.c), or the parent, has what an agent does not get so: it is planned as ever.
 * Limits       auto: from AUTO_HOSTS on; with fewer a chain takes as long. Its group is one of
 *              239.192.0.0/14, that of an organisation (RFC 2365): no fork has one for itself, and none
 *              needs to, since each has its key.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "farfork.h"
#include "fork.h"

#define AUTO_HOSTS 3

int fork_group_check(const char *text, struct ff_error *why)
{
    FF_AUTO_FREE char *at = xprintf("localhost:1,multicast=%s", text);
    struct ff_address *a = NULL;

    int rc = strchr(text, ',') ? ff_error_set(why, EINVAL, "--multicast %s: want one group", text)
                               : ff_address_parse(at, &a, why);
    ff_address_free(a);
    return rc;
}

static const char *why_none(const struct fork *f)
{
    static const struct { const char *option, *why; } without[] = {
        {"verify=on", "with verify=on each host takes what the parent alone can have said"},
        {"prefill=off", "with prefill=off memory comes when it is touched"},
    };
    const char *given = f->s.o.link_options;

    for (size_t i = 0; given && i < FF_ARRAY_LEN(without); i++)
        if (strstr(given, without[i].option))
            return without[i].why;
    return NULL;
}

/* Of its own, as far as a name can be */
static char *choose_group(const struct fork *f)
{
    uint32_t hash = 2166136261u;

    for (const char *p = f->s.o.id; *p; p++)
        hash = (hash ^ (uint8_t)*p) * 16777619u;
    return xprintf("239.%u.%u.%u", 192 + (hash >> 16 & 3), hash >> 8 & 255, hash & 255);
}

void fork_group_plan(struct fork *f)
{
    bool is_auto = f->o->multicast && !strcmp(f->o->multicast, "auto");
    const char *why = why_none(f);
    size_t n = 0;

    for (size_t i = 0; i < f->s.n_hosts; i++)
        n += f->s.hosts[i].keyed && f->s.hosts[i].state == HOST_LISTENING;
    if (!f->o->multicast || n < (is_auto ? AUTO_HOSTS : 1))
        return;
    if (why)
        session_note(&f->s, "nothing goes by multicast: %s", why);
    else
        f->group = is_auto ? choose_group(f) : xstrdup(f->o->multicast);
}

/* One line, since it is mostly one reason for all */
void fork_group_note(struct fork *f)
{
    const struct host *first = NULL;
    size_t n = 0, all = 0;

    for (size_t i = 0; f->group && i < f->s.n_hosts; i++) {
        const struct host *h = &f->s.hosts[i];
        bool is_member = h->keyed && h->state != HOST_FAILED;
        all += is_member;
        if (!is_member || !h->no_multicast)
            continue;
        n++;
        first = first ? first : h;
    }
    if (first)
        session_note(&f->s, "multicast to %s: %zu of %zu hosts got memory by their links instead: host "
                 "%s: %s", f->group, n, all, first->node->host, first->no_multicast);
}
