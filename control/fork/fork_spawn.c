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
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "autojson.h"
#include "fork.h"
#include "qemu_opts.h"

static struct vm_spec spec_of(const struct fork *f, unsigned number, const struct host *h,
                              const char *rundir)
{
    return (struct vm_spec){.id = f->s.o.id, .number = number, .total = f->s.o.n,
                               .qemu = f->s.parent_exe, .rundir = rundir,
                               .here = h->here, .net = f->o->net, .programs = f->s.o.unconfined, .bridge = f->o->bridge};
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
    struct vm_spec s = spec_of(f, 1, h, "/run");

    if (f->domain)
        return ff_error_set(why, ENOTSUP, "libvirt starts its children");
    return child_argv(f, &s, out, why);
}

/* What cannot be cloned is refused before anything is started */
int fork_check_argv(struct fork *f, struct ff_error *why)
{
    struct strv out = {0};
    const struct vm_spec s = spec_of(f, 1, &f->s.hosts[0], "/run");

    if (f->domain) {
        FF_AUTO_JSON json_t *first = fork_domain_spawn(f, &f->s.vms[0], &s, why);
        return first ? 0 : -why->code;
    }
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

/* What its agent is told to start; NULL: that cannot be */
static json_t *spawn_of(struct fork *f, const struct vm *k, struct ff_error *why)
{
    const struct host *h = &f->s.hosts[k->host];
    struct vm_spec s = spec_of(f, k->number, h, h->rundir);

    if (f->domain)
        return fork_domain_spawn(f, k, &s, why);
    FF_AUTO_FREE char *qmp = xprintf("%s/%u.qmp", h->rundir, k->number);
    FF_AUTO_FREE char *log = xprintf("%s/%u.log", h->rundir, k->number);
    struct strv argv = {0};

    if (child_argv(f, &s, &argv, why)) {
        strv_free(&argv);
        return NULL;
    }
    json_t *o = json_pack("{si so ss ss}", "number", (int)k->number, "argv", strv_json(argv.v),
                          "log", log, "qmp", qmp);
    json_object_set_new(o, "cwd", json_string(f->s.parent_cwd));
    json_object_set_new(o, "anywhere", json_boolean(f->s.anywhere));
    json_t *before = fork_disks_before(f->disks, &s), *files = fork_disks_files(f->disks, &s);
    FF_AUTO_JSON json_t *seeds = seed_commands(f, &s);
    json_array_extend(before, seeds);
    if (before)
        json_object_set_new(o, "before", before);
    if (files)
        json_object_set_new(o, "files", files);
    json_object_set_new(o, "private", identity_files(f->identity, k->number, h->rundir));
    FF_AUTO_FREE char *monitor = command_line_monitor(&s);
    json_object_set_new(o, "taps", json_true());
    json_object_set_new(o, "beside", json_pack("{ss sb}", "qmp", monitor, "isolated", s.net == NET_ISOLATED || s.net == NET_NONE));
    json_t *channel = channel_of(f, k, &argv);
    if (channel)
        json_object_set_new(o, "channel", channel);
    strv_free(&argv);
    return o;
}

static void spawn_child(struct fork *f, struct vm *k)
{
    struct ff_error why;
    json_t *o = spawn_of(f, k, &why);

    if (!o) {
        vm_fail(k, "%s", why.text);
        return;
    }
    k->qmp = f->domain ? xprintf("libvirt:%s-%s-%u", f->o->domain, f->s.o.id, k->number) : xstrdup(text_of(o, "qmp"));
    k->log = xstrdup(text_of(o, "log"));
    k->asked = f->o->hold ? json_incref(o) : NULL;
    host_send(&f->s.hosts[k->host], json_pack("{so}", "spawn", o));
    k->state = VM_SPAWNED;
}

/* What a child hears when it runs can be said anew; all else is as it was started */
int fork_check_asked(struct fork *f, struct ff_error *why)
{
    for (size_t i = 0; i < f->s.n_vms; i++) {
        struct vm *k = &f->s.vms[i];
        FF_AUTO_JSON json_t *now = spawn_of(f, k, why);
        if (!now)
            return -ESTALE;
        json_t *channel = json_incref(json_object_get(now, "channel"));
        json_object_set(now, "channel", json_object_get(k->asked, "channel"));
        if (!channel != !json_object_get(k->asked, "channel") || !json_equal(now, k->asked)) {
            json_decref(channel);
            return ff_error_set(why, ESTALE, "the parent's disks, devices or memory have changed");
        }
        json_object_set_new(k->asked, "channel", channel);
    }
    return 0;
}

void fork_send_messages(struct fork *f)
{
    for (size_t i = 0; i < f->s.n_vms; i++) {
        struct vm *k = &f->s.vms[i];
        const char *text = text_of(json_object_get(k->asked, "channel"), "message");
        if (*text)
            host_send(&f->s.hosts[k->host], json_pack("{s{si ss}}", "message", "child",
                                                      (int)k->number, "text", text));
    }
}

void fork_spawn(struct fork *f)
{
    for (size_t i = 0; i < f->s.n_vms; i++) {
        struct vm *k = &f->s.vms[i];
        if (k->state == VM_WAITING && f->s.hosts[k->host].state != HOST_FAILED)
            spawn_child(f, k);
    }
}
