/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * fork_spawn.c - children's command lines to the agents
 */
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "autojson.h"
#include "fork.h"
#include "qemu_opts.h"

static struct child_spec spec_of(const struct clone *c, unsigned number, const struct host *h,
                                 const char *rundir, const char *socket)
{
    return (struct child_spec){.id = c->o->id, .number = number, .total = c->o->n,
                               .qemu = c->parent_exe, .rundir = rundir, .socket = socket,
                               .here = h->here, .net = c->o->net, .bridge = c->o->bridge};
}

/* The parent's words with the child's disks and identity, then all the rest */
static int child_argv(struct clone *c, struct child_spec *s, struct words *out, struct why *why)
{
    AUTO_JSON json_t *a = clone_disks_argv(c->disks, s);
    AUTO_FREE char *config = identity_config(c->identity, s->number, s->rundir);
    struct words own = {0};
    size_t i;
    json_t *v;

    identity_child_argv(c->identity, s->number, s->rundir, a);
    s->config = config;
    json_array_foreach(a, i, v)
        words_add(&own, "%s", json_string_value(v));
    int rc = clone_argv(own.v, s, out, &c->notes, why);
    words_free(&own);
    s->config = NULL;
    return rc;
}

/* That of a child there, but for its number and its sockets' names */
int clone_argv_on(struct clone *c, const struct host *h, struct words *out, struct why *why)
{
    struct child_spec s = spec_of(c, 1, h, "/run", "/run/agent");

    return child_argv(c, &s, out, why);
}

/* What cannot be cloned is refused before anything is started */
int clone_check_argv(struct clone *c, struct why *why)
{
    struct words out = {0};
    int rc = clone_argv_on(c, &c->hosts[0], &out, why);

    words_free(&out);
    return rc;
}

static json_t *strings(char *const *v)
{
    json_t *a = json_array();

    for (; *v; v++)
        json_array_append_new(a, json_stringn_nocheck(*v, strlen(*v)));
    return a;
}

/* For the agent: the child's port, what to say there, and which links go up by what is answered.
 * NULL: the guest has none */
static json_t *channel_of(const struct clone *c, const struct child *k, const struct words *argv)
{
    const char *port = identity_channel(c->identity);
    json_t *links = json_array();
    AUTO_FREE char *path = NULL;

    for (size_t i = 1; port && i < argv->n; i++) {
        const char *option = argv->v[i - 1], *value = argv->v[i];
        bool chardev = option_is(option, "chardev");
        if (!chardev && !option_is(option, "netdev") && !option_is(option, "nic"))
            continue;
        AUTO_FREE char *id = opts_get(value, "id");
        if (chardev && id && !strcmp(id, port) && !path && opts_is(value, "server"))
            path = opts_get(value, "path");
        else if (!chardev && id && c->o->net == NET_ISOLATED)
            json_array_append_new(links, json_string(id));
    }
    if (!path) {
        json_decref(links);
        return NULL;
    }
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    AUTO_FREE char *message = identity_message(c->identity, k->number,
                                               t.tv_sec * 1000LL + t.tv_nsec / 1000000);
    return json_pack("{ss ss so}", "path", path, "message", message, "links", links);
}

static void spawn(struct clone *c, struct child *k)
{
    struct host *h = &c->hosts[k->host];
    struct child_spec s = spec_of(c, k->number, h, h->rundir, h->socket);
    struct words argv = {0};
    struct why why;

    if (child_argv(c, &s, &argv, &why)) {
        child_fail(k, "%s", why.text);
        words_free(&argv);
        return;
    }
    k->qmp = xprintf("%s/%u.qmp", h->rundir, k->number);
    k->log = xprintf("%s/%u.log", h->rundir, k->number);
    json_t *o = json_pack("{si so ss ss}", "number", (int)k->number, "argv", strings(argv.v), "log",
                          k->log, "qmp", k->qmp);
    if (c->parent_cwd)
        json_object_set_new(o, "cwd", json_string(c->parent_cwd));
    json_t *before = clone_disks_before(c->disks, &s), *files = clone_disks_files(c->disks, &s);
    if (before)
        json_object_set_new(o, "before", before);
    if (files)
        json_object_set_new(o, "files", files);
    json_object_set_new(o, "private", identity_files(c->identity, k->number, h->rundir));
    json_t *channel = channel_of(c, k, &argv);
    if (channel)
        json_object_set_new(o, "channel", channel);
    host_send(h, json_pack("{so}", "spawn", o));
    k->state = CHILD_SPAWNED;
    words_free(&argv);
}

void clone_spawn(struct clone *c)
{
    for (size_t i = 0; i < c->n_children; i++) {
        struct child *k = &c->children[i];
        if (k->state == CHILD_WAITING && c->hosts[k->host].state != HOST_FAILED)
            spawn(c, k);
    }
}
