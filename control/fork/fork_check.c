/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * fork_check.c - agents answer, and say whether their hosts have what children need
 */
/**
 * DOC: Theory of Operation
 *
 * Purpose      find out before the freeze what would fail after it. This file says what will be
 *              needed; the agent of each host looks (preflight.c).
 * Failure      a host that lacks something is of no use, and says what; the others go on. One that
 *              hangs holds up the others for LATE_MS, or LATE_TIMES as long as they took.
 */
#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "autojson.h"
#include "fork.h"
#include "qemu_opts.h"
#include "preflight.h"

#define LATE_MS 10000 /* a login that asks name servers in vain */
#define LATE_TIMES 4
#define FDS_HOST 6    /* the pipes of a launcher, while it is started */
#define FDS_CHILD 6   /* of an agent: connection, port, log, userfaultfd, and while it is started */
#define FDS_REST 64   /* of any process: libraries, devices, connections */

/* --- rounds: each host is asked something and answers, or is late --- */

static bool waits(const struct clone *c, const struct host *h)
{
    return h->state == HOST_STARTING || (c->checking && h->state == HOST_LISTENING && !h->checked);
}

static bool round_over(const struct clone *c)
{
    double last = 0, now = now_exact_ms();
    bool any = false;

    for (size_t i = 0; i < c->n_hosts; i++) {
        const struct host *h = &c->hosts[i];
        if (waits(c, h))
            any = true;
        else if (h->state != HOST_FAILED && h->answered_ms > last)
            last = h->answered_ms;
    }
    double took = LATE_TIMES * (last - c->round_ms);
    return !any || (last > 0 && now > last + (took > LATE_MS ? took : LATE_MS));
}

static int play_round(struct clone *c, const char *advice, struct why *why)
{
    size_t good = 0;
    int rc = clone_pump(c, round_over, (int)c->o->timeout_s * 1000);

    if (rc == -ECANCELED)
        return rc;
    for (size_t i = 0; i < c->n_hosts; i++) {
        struct host *h = &c->hosts[i];
        unsigned s = rc ? c->o->timeout_s : (unsigned)((now_exact_ms() - c->round_ms) / 1e3);
        if (waits(c, h))
            host_fail(c, h, "no answer within %u s%s%s%s: %s", s,
                      rc ? "" : ", and others have answered", h->run.words ? ": " : "",
                      h->run.words ? h->run.words : "", advice);
        good += h->state != HOST_FAILED;
    }
    return good ? 0 : refuse(why, EHOSTUNREACH, "no host can be used");
}

int clone_wait_hosts(struct clone *c, struct why *why)
{
    c->round_ms = c->begin_ms;
    return play_round(c, "can the launcher get there without a password?", why);
}

/* --- what is needed --- */

static unsigned open_files(pid_t pid)
{
    AUTO_FREE char *path = xprintf("/proc/%d/fd", (int)pid);
    DIR *d = opendir(path);
    unsigned n = 0;

    while (d && readdir(d))
        n++;
    if (d)
        closedir(d);
    return n;
}

int clone_check_descriptors(struct clone *c, struct why *why)
{
    int rc = preflight_descriptors(0, "this program", FDS_REST + FDS_HOST * c->n_hosts, why);

    return rc ? rc : preflight_descriptors(c->parent_pid, "the parent",
                                           open_files(c->parent_pid) + FDS_REST, why);
}

static unsigned descriptors(const struct clone *c, unsigned children)
{
    unsigned agent = FDS_REST + FDS_CHILD * children;
    unsigned child = FDS_REST + open_files(c->parent_pid);

    return agent > child ? agent : child;
}

/* All memory is lent on this host, but for what the freeze copies: none is missing then */
static bool lends_all(const json_t *memory)
{
    size_t i;
    json_t *m;

    json_array_foreach(memory, i, m)
        if (!json_is_true(json_object_get(m, "share")))
            return false;
    return json_array_size(memory);
}

static json_t *subjects(struct clone *c, const struct host *h)
{
    AUTO_JSON json_t *kvm = NULL, *memory = NULL;
    json_t *list = json_array();
    struct why none; /* an accelerator that does not say is none that is checked */

    qmp_command(c->qmp, "query-kvm", NULL, &kvm, &none);
    qmp_command(c->qmp, "query-memdev", NULL, &memory, &none);
    if (json_is_true(json_object_get(kvm, "enabled")))
        json_array_append_new(list, json_string("kvm"));
    if (!h->here || !lends_all(memory))
        json_array_append_new(list, json_string("userfaultfd"));
    return list;
}

/* Backends of the child's NICs that its QEMU, or its host, may lack; others have side effects */
static void add_backends(json_t *program, const struct words *argv)
{
    for (size_t i = 1; i < argv->n; i++) {
        const char *option = argv->v[i - 1];
        if (!option_is(option, "netdev") && !option_is(option, "nic") && !option_is(option, "net"))
            continue;
        AUTO_FREE char *type = opts_get_first(argv->v[i], "type");
        AUTO_FREE char *br = opts_get(argv->v[i], "br"), *helper = opts_get(argv->v[i], "helper");
        AUTO_FREE char *id = xprintf("p%zu", i);
        bool bridge = type && !strcmp(type, "bridge");
        if (!bridge && (!type || strcmp(type, "user")))
            continue;
        json_t *o = json_pack("{ss ss}", "type", type, "id", id);
        if (bridge && br)
            json_object_set_new(o, "br", json_string(br));
        if (bridge && helper)
            json_object_set_new(o, "helper", json_string(helper));
        AUTO_FREE char *text = json_dumps(o, JSON_COMPACT);
        json_decref(o);
        json_array_append_new(program, json_string("-netdev"));
        json_array_append_new(program, json_string(text));
    }
}

/* NULL: the program that the parent runs, with what the parent has */
static json_t *program_of(struct clone *c, const struct host *h)
{
    bool known = h->here && !c->o->qemu && c->o->net != NET_USER && c->o->net != NET_BRIDGE;
    struct words argv = {0};
    struct why ignored; /* clone_check_argv() has refused what it refuses */

    if (known || clone_argv_on(c, h, &argv, &ignored))
        return NULL;
    json_t *program = json_pack("[s,s,s,s,s,s,s,s,s,s]", c->parent_exe, "-M", "none", "-accel",
                                "qtest", "-nodefaults", "-display", "none", "-qmp", "stdio");
    add_backends(program, &argv);
    words_free(&argv);
    return program;
}

static void ask_host(struct clone *c, struct host *h)
{
    json_t *files = json_array();
    unsigned children = 0;

    for (size_t k = 0; k < c->n_children; k++) {
        const struct child_spec s = {.number = c->children[k].number};
        if (&c->hosts[c->children[k].host] != h)
            continue;
        AUTO_JSON json_t *its = clone_disks_files(c->disks, &s);
        json_array_extend(files, its);
        children++;
    }
    uint64_t bytes = clone_disks_room(c->disks, children);
    json_t *want = json_pack("{so si so}", "files", files, "descriptors",
                             (int)descriptors(c, children), "checks", subjects(c, h));
    json_t *program = program_of(c, h);
    if (bytes) {
        json_object_set_new(want, "folder", json_string(clone_disks_scratch(c->disks)));
        json_object_set_new(want, "bytes", json_integer((json_int_t)bytes));
    }
    if (program)
        json_object_set_new(want, "program", program);
    host_send(h, json_pack("{so}", "check", want));
}

int clone_check_hosts(struct clone *c, struct why *why)
{
    c->checking = true;
    c->round_ms = now_exact_ms();
    for (size_t i = 0; i < c->n_hosts; i++)
        if (c->hosts[i].state == HOST_LISTENING)
            ask_host(c, &c->hosts[i]);
    return play_round(c, "does its scratch folder (--scratch) hang?", why);
}
