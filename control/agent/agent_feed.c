/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * agent_feed.c - how an image comes here, and goes on to other agents; see migrate/relay.h
 */
#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "agent_state.h"
#include "autojson.h"
#include "ps.h"

static json_int_t written_at(const json_t *fork)
{
    return json_integer_value(json_object_get(fork, "time"));
}

static json_t *unfed(const char *to, const char *why)
{
    return json_pack("{ss ss ss}", "event", "feed", "to", to, "error", why);
}

json_t *agent_unfed(const char *host, const char *port, const char *why)
{
    if (!host)
        return json_pack("{ss ss}", "event", "misfed", "error", why);
    FF_AUTO_FREE char *to = xprintf(strchr(host, ':') ? "[%s]:%s" : "%s:%s", host, port);

    return unfed(to, why);
}

static void feed(struct agent *a, const char *to)
{
    struct ff_address *address = NULL;
    struct ff_error why;

    int rc = a->ff ? ff_address_parse(to, &address, &why)
                   : ff_error_set(&why, EINVAL, "it has no image");
    if (!rc)
        rc = ff_agent_feed(a->ff, address, &why);
    ff_address_free(address);
    if (rc)
        agent_send(a, unfed(to, why.text));
}

/* The agent of a fork of the same parent, which may hold an image */
static bool has_earlier(const struct agent *a, const json_t *s)
{
    const char *image = text_of(s, "image");

    return json_is_true(json_object_get(s, "agent_alive")) && !strcmp(text_of(s, "parent"), a->parent) &&
           json_integer_value(json_object_get(s, "agent")) != getpid() && strcmp(image, "none") &&
           strcmp(image, "waiting") && strcmp(image, "lost");
}

void agent_find_earlier(struct agent *a)
{
    FF_AUTO_JSON json_t *forks = a->parent && *a->parent ? ps_forks(a->base) : NULL;
    struct ff_error why;
    size_t n = json_array_size(forks);

    for (int rc = 0; n && !rc;) { /* the latest first */
        size_t last = 0;
        for (size_t i = 1; i < n; i++)
            if (written_at(json_array_get(forks, i)) > written_at(json_array_get(forks, last)))
                last = i;
        json_t *s = json_array_get(forks, last);
        FF_AUTO_FREE char *socket = xprintf("%s/agent", text_of(s, "rundir"));
        if (has_earlier(a, s))
            rc = ff_agent_older(a->ff, socket, &why);
        json_array_remove(forks, last);
        n--;
    }
}

bool agent_bring(struct agent *a, const json_t *o)
{
    const json_t *await = json_object_get(o, "await_feed"), *first = json_object_get(o, "first");
    const json_t *to = json_object_get(o, "feed");

    if (await && a->ff)
        ff_agent_await_feed(a->ff, (int)json_integer_value(await));
    if (json_is_string(first) && a->ff)
        ff_agent_first(a->ff, json_string_value(first), NULL);
    if (to)
        feed(a, json_is_string(to) ? json_string_value(to) : "");
    return await || first || to;
}
