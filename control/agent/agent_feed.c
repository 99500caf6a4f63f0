/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * agent_feed.c - how an image comes here, and goes on to other agents; see migrate/relay.h
 */
#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "agent_state.h"
#include "autojson.h"
#include "process.h"
#include "rundir.h"

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

/* Of the images that agents of earlier forks of the same parent hold, in the order in which they are of use */
static const char *const earlier[] = {"complete", "paused", "arriving"};

struct search {
    const struct agent *a;
    json_t *found[FF_ARRAY_LEN(earlier)]; /* arrays */
};

static json_int_t number_in(const json_t *s, const char *key)
{
    return json_integer_value(json_object_get(s, key));
}

/* Looks at files alone: a process that hangs delays nobody */
static void see_fork(void *opaque, const char *dir, json_t *s)
{
    struct search *q = opaque;
    pid_t pid = (pid_t)number_in(s, "agent");

    if (strcmp(text_of(s, "parent"), q->a->parent) || pid == getpid() ||
        rundir_look(s, "agent") != PROCESS_ALIVE)
        return;
    for (size_t i = 0; i < FF_ARRAY_LEN(earlier); i++)
        if (!strcmp(text_of(s, "image"), earlier[i]))
            json_array_append_new(q->found[i], json_pack("{ss sI}", "dir", dir, "time", number_in(s, "time")));
}

/* The latest is taken out, and tried: whether more may be */
static bool use_latest(struct agent *a, json_t *found)
{
    size_t last = 0;
    struct ff_error why;

    for (size_t i = 1; i < json_array_size(found); i++)
        if (number_in(json_array_get(found, i), "time") > number_in(json_array_get(found, last), "time"))
            last = i;
    FF_AUTO_FREE char *socket = xprintf("%s/agent", text_of(json_array_get(found, last), "dir"));
    json_array_remove(found, last);
    return !ff_agent_older(a->ff, socket, &why);
}

void agent_find_earlier(struct agent *a)
{
    struct search q = {.a = a};
    bool more = true;

    if (!a->parent || !*a->parent || ff_agent_older(a->ff, NULL, NULL))
        return;
    for (size_t i = 0; i < FF_ARRAY_LEN(earlier); i++)
        q.found[i] = json_array();
    rundir_each(a->base, NULL, see_fork, &q);
    for (size_t i = 0; i < FF_ARRAY_LEN(earlier); i++) {
        while (more && json_array_size(q.found[i]))
            more = use_latest(a, q.found[i]);
        json_decref(q.found[i]);
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
