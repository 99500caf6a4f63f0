/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * fork_spawn.c - children's command lines to the agents
 */
/**
 * DOC: Theory of Operation
 *
 * Picture      the parent's words -> its disks (fork_disks.c) -> its identity (vm/identity_argv.c)
 *              -> all the rest (vm/command_line.c) -> spawn, to its agent
 */
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "autojson.h"
#include "fork.h"
#include "qemu_opts.h"

static struct vm_spec spec_of(const struct fork *f, unsigned number, const struct host *h,
                                 const char *rundir, const char *socket)
{
    return (struct vm_spec){.id = f->s.o.id, .number = number, .total = f->s.o.n,
                               .qemu = f->s.parent_exe, .rundir = rundir, .socket = socket,
                               .here = h->here, .net = f->o->net, .bridge = f->o->bridge};
}

/* The parent's words with the child's disks and identity, then all the rest */
static int child_argv(struct fork *f, struct vm_spec *s, struct strv *out, struct ff_error *why)
{
    FF_AUTO_JSON json_t *a = fork_disks_argv(f->disks, s);
    FF_AUTO_FREE char *config = identity_config(f->identity, s->number, s->rundir);
    struct strv own = {0};

    identity_child_argv(f->identity, s->number, s->rundir, a);
    s->config = config;
    strv_add_json(&own, a);
    int rc = command_line_rewrite(own.v, s, out, &f->s.notes, why);
    strv_free(&own);
    s->config = NULL;
    return rc;
}

/* That of a child there, but for its number and its sockets' names */
int fork_argv_on(struct fork *f, const struct host *h, struct strv *out, struct ff_error *why)
{
    struct vm_spec s = spec_of(f, 1, h, "/run", "/run/agent");

    return child_argv(f, &s, out, why);
}

/* What cannot be cloned is refused before anything is started */
int fork_check_argv(struct fork *f, struct ff_error *why)
{
    struct strv out = {0};
    int rc = fork_argv_on(f, &f->s.hosts[0], &out, why);

    strv_free(&out);
    return rc;
}

/* What cloud-init is to find in this child; @summary is to be released after it, n->macs freed */
static struct nocloud nocloud_of(const struct fork *f, unsigned number, json_t **summary)
{
    struct nocloud n = {0};

    *summary = identity_summary(f->identity, number);
    n.instance_id = text_of(*summary, "uuid");
    n.hostname = text_of(*summary, "hostname");
    identity_mac_pairs(f->identity, number, &n.macs);
    return n;
}

void fork_try_seeds(struct fork *f)
{
    for (size_t i = 0; i < f->s.n_vms; i++) {
        FF_AUTO_JSON json_t *summary = NULL;
        struct nocloud n = nocloud_of(f, f->s.vms[i].number, &summary);
        fork_disks_try_seeds(f->disks, &n, &f->s.notes);
        strv_free(&n.macs);
    }
}

static json_t *seed_commands(const struct fork *f, const struct vm_spec *s)
{
    FF_AUTO_JSON json_t *summary = NULL;
    struct nocloud n = nocloud_of(f, s->number, &summary);
    json_t *commands = fork_disks_seeds(f->disks, s, f->s.o.agent, &n);

    strv_free(&n.macs);
    return commands;
}

/* For the agent: the child's port, what to say there, and which links go up by what is answered.
 * NULL: the guest has none */
static json_t *channel_of(const struct fork *f, const struct vm *k, const struct strv *argv)
{
    const char *port = identity_channel(f->identity);
    json_t *links = json_array();
    FF_AUTO_FREE char *path = NULL;

    for (size_t i = 1; port && i < argv->n; i++) {
        const char *option = argv->v[i - 1], *value = argv->v[i];
        bool chardev = qemu_option_is(option, "chardev");
        if (!chardev && !qemu_option_is(option, "netdev") && !qemu_option_is(option, "nic"))
            continue;
        FF_AUTO_FREE char *id = qemu_opts_get(value, "id");
        if (chardev && id && !strcmp(id, port) && !path && qemu_opts_is(value, "server"))
            path = qemu_opts_get(value, "path");
        else if (!chardev && id && f->o->net == NET_ISOLATED)
            json_array_append_new(links, json_string(id));
    }
    if (!path) {
        json_decref(links);
        return NULL;
    }
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    FF_AUTO_FREE char *message = identity_message(f->identity, k->number,
                                               t.tv_sec * 1000LL + t.tv_nsec / 1000000);
    return json_pack("{ss ss so}", "path", path, "message", message, "links", links);
}

static void spawn_child(struct fork *f, struct vm *k)
{
    struct host *h = &f->s.hosts[k->host];
    struct vm_spec s = spec_of(f, k->number, h, h->rundir, h->socket);
    struct strv argv = {0};
    struct ff_error why;

    if (child_argv(f, &s, &argv, &why)) {
        vm_fail(k, "%s", why.text);
        strv_free(&argv);
        return;
    }
    k->qmp = xprintf("%s/%u.qmp", h->rundir, k->number);
    k->log = xprintf("%s/%u.log", h->rundir, k->number);
    json_t *o = json_pack("{si so ss ss}", "number", (int)k->number, "argv", strv_json(argv.v),
                          "log", k->log, "qmp", k->qmp);
    if (f->s.parent_cwd)
        json_object_set_new(o, "cwd", json_string(f->s.parent_cwd));
    json_t *before = fork_disks_before(f->disks, &s), *files = fork_disks_files(f->disks, &s);
    FF_AUTO_JSON json_t *seeds = seed_commands(f, &s);
    json_array_extend(before, seeds);
    if (before)
        json_object_set_new(o, "before", before);
    if (files)
        json_object_set_new(o, "files", files);
    json_object_set_new(o, "private", identity_files(f->identity, k->number, h->rundir));
    json_t *channel = channel_of(f, k, &argv);
    if (channel)
        json_object_set_new(o, "channel", channel);
    host_send(h, json_pack("{so}", "spawn", o));
    k->state = VM_SPAWNED;
    strv_free(&argv);
}

void fork_spawn(struct fork *f)
{
    for (size_t i = 0; i < f->s.n_vms; i++) {
        struct vm *k = &f->s.vms[i];
        if (k->state == VM_WAITING && f->s.hosts[k->host].state != HOST_FAILED)
            spawn_child(f, k);
    }
}
