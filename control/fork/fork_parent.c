/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * fork_parent.c - the guest that is forked: what it was started with, and its fork
 */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <pwd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "autojson.h"
#include "fork.h"
#include "rundir.h"

#define COMMAND_LIMIT_MS 10000
#define SAY_FIRST_MS 1000
#define SAY_EVERY_MS 10000
#define ASK_LIMIT_MS 2000
#define CHILD_LIMIT_MS 10000 /* an agent asks a QEMU for 5 s at most */
#define CHILD_TURN_MS 50
#define ARGV_MAX_BYTES (4u << 20)

/* The words of /proc/PID/cmdline */
static int read_argv(pid_t pid, struct words *out, struct why *why)
{
    AUTO_FREE char *path = xprintf("/proc/%d/cmdline", (int)pid);
    AUTO_FREE char *text = xcalloc(ARGV_MAX_BYTES + 1, 1);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    size_t len = 0;
    ssize_t n = -1;

    while (fd >= 0 && len < ARGV_MAX_BYTES && (n = read(fd, text + len, ARGV_MAX_BYTES - len)) > 0)
        len += (size_t)n;
    int code = errno;
    if (fd >= 0)
        close(fd);
    if (n < 0)
        return refuse(why, code, "%s: %s: the parent's command line is needed", path,
                      strerror(code));
    for (size_t at = 0; at < len; at += strlen(text + at) + 1)
        words_add(out, "%s", text + at);
    if (!out->n)
        return refuse(why, ESRCH, "%s: empty: the parent has ended", path);
    return 0;
}

static char *read_link(pid_t pid, const char *name)
{
    AUTO_FREE char *path = xprintf("/proc/%d/%s", (int)pid, name);
    char text[PATH_MAX];
    ssize_t n = readlink(path, text, sizeof(text) - 1);

    if (n < 0)
        return NULL;
    text[n] = '\0';
    return xstrdup(text);
}

/* What it was started from, also when that file has been replaced since */
static int find_program(struct clone *c, struct why *why)
{
    static const char deleted[] = " (deleted)";

    if (c->o->qemu) {
        c->parent_exe = xstrdup(c->o->qemu);
        return 0;
    }
    c->parent_exe = read_link(c->parent_pid, "exe");
    if (!c->parent_exe)
        return refuse(why, EACCES, "/proc/%d/exe cannot be read: name the program by --qemu",
                      (int)c->parent_pid);
    size_t len = strlen(c->parent_exe);
    if (len > sizeof(deleted) && !strcmp(c->parent_exe + len - sizeof(deleted) + 1, deleted))
        return refuse(why, ENOENT, "%.*s was replaced since the parent was started: name the "
                                   "program by --qemu", (int)(len - sizeof(deleted) + 1),
                      c->parent_exe);
    return 0;
}

int clone_check_parent(struct clone *c, struct why *why)
{
    AUTO_JSON json_t *status = NULL;
    json_t *list = NULL, *item;
    bool found = false;
    size_t i;
    int rc = qmp_command(c->qmp, "query-commands", NULL, &list, why);

    if (!rc && !qmp_command(c->qmp, "query-status", NULL, &status, NULL))
        c->parent_stood = json_is_false(json_object_get(status, "running"));

    json_array_foreach(list, i, item) {
        const char *name = json_string_value(json_object_get(item, "name"));
        found |= name && !strcmp(name, "x-farfork-export");
    }
    json_decref(list);
    if (rc)
        return rc;
    if (found && !c->o->move && !c->memory_bytes)
        return refuse(why, EPROTO, "%s: x-query-ramblock names no memory: agents could not tell how "
                                   "much the guest has; is this Farfork's QEMU 10.0?",
                      c->o->parent_path);
    return found ? 0
                 : refuse(why, ENOTSUP, "%s: this QEMU has no x-farfork-export: the parent has to "
                                        "be started with Farfork's patched QEMU", c->o->parent_path);
}

/* The name of an overlay says more than that of its node */
static char *file_of(const struct clone *c, const char *node)
{
    AUTO_JSON json_t *disks = clone_disks_summary(c->disks);
    json_t *d;
    size_t i;

    json_array_foreach(disks, i, d)
        if (!strcmp(text_of(d, "parent-node"), node))
            return xstrdup(text_of(d, "parent-overlay"));
    return xstrdup(node);
}

void clone_check_runs(struct clone *c)
{
    AUTO_JSON json_t *status = NULL;
    struct why ignored;
    json_t *e;

    if (!c->export_ms || c->parent_stood || c->parent_silent ||
        qmp_command(c->qmp, "query-status", NULL, &status, &ignored) ||
        strcmp(text_of(status, "status"), "io-error"))
        return;
    if (c->taken_back &&
        !qmp_command(c->qmp, "cont", NULL, NULL, &ignored)) /* what it could not write has a place */
        return;
    while ((e = qmp_take_event(c->qmp)))
        clone_hear_event(c, e);
    const json_t *data = json_object_get(c->io_error, "data");
    AUTO_FREE char *file = file_of(c, text_of(data, "node-name"));
    c->stopped = xprintf("the parent has stopped: it cannot write to %s: %s: make room there, then "
                         "let it go on (QMP cont)", *file ? file : "a disk",
                         data ? text_of(data, "reason") : "io-error");
}

static int connect_disks(struct clone *c, struct why *why)
{
    struct clone_disks_options o = {.id = c->o->id, .scratch = c->o->scratch,
                                    .overlays = c->o->overlays, .max_chain = c->o->max_chain,
                                    .nbd = c->o->nbd,
                                    .rundir = c->o->rundir, .parent = c->o->parent_path};

    for (size_t k = 0; k < c->n_children; k++)
        o.children += c->hosts[c->children[k].host].here;
    o.here = o.children > 0;
    return clone_disks_new(c->qmp, c->parent_argv.v, c->parent_cwd, &o, &c->disks, why);
}

static int plan_identity(struct clone *c, struct why *why)
{
    AUTO_JSON json_t *argv = json_array(), *filters = NULL, *missing = NULL;
    struct why none; /* a parent without such a NIC has nothing to say */
    size_t i;
    json_t *m;

    qmp_command(c->qmp, "query-rx-filter", NULL, &filters, &none);
    for (char **w = c->parent_argv.v; *w; w++)
        json_array_append_new(argv, json_stringn_nocheck(*w, strlen(*w)));
    const struct identity_input in = {.fork_id = c->o->id, .count = c->o->n, .argv = argv,
                                      .rx_filters = filters, .hostname = c->o->hostname,
                                      .user = c->o->user_data,
                                      .ip = (const char *const *)c->o->ip.v, .ips = c->o->ip.n};
    int rc = identity_plan(&in, &c->identity, why);
    if (rc)
        return rc;
    missing = identity_missing(c->identity);
    json_array_foreach(missing, i, m)
        words_add(&c->notes, "identity: %s", json_string_value(m));
    return 0;
}

/* The real, effective, saved and filesystem user of a process */
static int read_users(pid_t pid, unsigned uid[4], struct why *why)
{
    AUTO_FREE char *path = xprintf("/proc/%d/status", (int)pid);
    FILE *f = fopen(path, "re");
    char line[256];
    int got = 0;

    while (f && got != 4 && fgets(line, sizeof(line), f))
        got = sscanf(line, "Uid: %u %u %u %u", &uid[0], &uid[1], &uid[2], &uid[3]);
    if (f)
        fclose(f);
    return got == 4 ? 0 : refuse(why, ESRCH, "%s: it does not say whose process this is", path);
}

/* Its program and all that its command line names is run again, on every host, by this user there:
 * what another user has chosen would have this one's rights */
static int check_owner(const struct clone *c, struct why *why)
{
    unsigned uid[4], own = geteuid(), other = qmp_uid(c->qmp);
    int rc = read_users(c->parent_pid, uid, why);

    for (int i = 0; !rc && i < 4; i++)
        if (uid[i] != own)
            other = uid[i];
    if (rc || other == own)
        return rc;
    const struct passwd *p = getpwuid(other);
    AUTO_FREE char *name = p ? xstrdup(p->pw_name) : xprintf("#%u", other);
    return refuse(why, EPERM, "%s: its QEMU (pid %d) is of user %s (uid %u), this program runs as uid "
                              "%u, and would run what that user chose: run it as that user: sudo "
                              "-u %s %s ...", c->o->parent_path, (int)c->parent_pid, name, other,
                  own, name, c->o->move ? "farfork move" : "vmclone");
}

/* Its QEMU serves one client at a time */
struct turn {
    const struct clone *c;
    uint64_t begin_ms, next_ms;
};

static void say_waiting(void *opaque)
{
    struct turn *t = opaque;
    uint64_t now = now_ms();

    if (t->c->o->quiet || now < t->next_ms)
        return;
    fprintf(stderr, "%s: another client has it, a fork perhaps: waiting for %u s, at most for %u s\n",
            t->c->o->parent_path, (unsigned)((now - t->begin_ms) / 1000), t->c->o->timeout_s);
    t->next_ms = now + SAY_EVERY_MS;
}

int clone_find_parent(struct clone *c, struct why *why)
{
    uint64_t now = now_ms();
    struct turn t = {.c = c, .begin_ms = now, .next_ms = now + SAY_FIRST_MS};
    int rc = qmp_connect_in_turn(c->o->parent_path, c->signals, (int)c->o->timeout_s * 1000,
                                 say_waiting, &t, &c->qmp, why);

    if (rc)
        return rc;
    qmp_limit(c->qmp, COMMAND_LIMIT_MS);
    c->parent_pid = qmp_pid(c->qmp);
    if (c->parent_pid <= 0)
        return refuse(why, ESRCH, "%s: its process is in another PID namespace: run this there",
                      c->o->parent_path);
    rc = check_owner(c, why);
    if (!rc)
        rc = read_argv(c->parent_pid, &c->parent_argv, why);
    if (!rc)
        rc = find_program(c, why);
    if (rc)
        return rc;
    c->parent_cwd = read_link(c->parent_pid, "cwd");
    return 0;
}

int clone_ask_disks(struct clone *c, struct why *why)
{
    int rc = connect_disks(c, why);

    return rc ? rc : plan_identity(c, why);
}

/* Nobody listens on this host: the agent's socket takes the connections */
char *clone_target_of(const struct clone *c, const struct host *h)
{
    AUTO_FREE char *to = h->here ? xstrdup("unix") : xprintf("%s:%u", h->address, h->port);

    return xprintf("rdma-postcopy:%s%s%s", to, c->o->link_options ? "," : "",
                   c->o->link_options ? c->o->link_options : "");
}

/* Those hosts that have somebody to serve */
static json_t *targets(struct clone *c)
{
    json_t *list = json_array();

    for (size_t i = 0; i < c->n_hosts; i++) {
        struct host *h = &c->hosts[i];
        if (h->state == HOST_FAILED)
            continue;
        json_t *t = json_object();
        AUTO_FREE char *uri = clone_target_of(c, h);
        json_object_set_new(t, "uri", json_string(uri));
        if (h->here)
            json_object_set_new(t, "socket", json_string(h->socket));
        json_array_append_new(list, t);
    }
    return list;
}

int clone_export(struct clone *c, struct why *why)
{
    AUTO_JSON json_t *status = NULL;
    struct why none;
    int rc = clone_disks_prepare(c->disks, why);

    if (rc)
        return rc;
    /* somebody may have stopped it since */
    if (!qmp_command(c->qmp, "query-status", NULL, &status, &none))
        c->parent_stood = json_is_false(json_object_get(status, "running"));
    json_t *a = json_pack("{ss so}", "id", c->o->id, "targets", targets(c));
    json_t *actions = clone_disks_actions(c->disks);

    if (actions)
        json_object_set_new(a, "actions", actions);
    if (c->o->template)
        json_object_set_new(a, "template", json_true());
    qmp_limit(c->qmp, (int)c->o->timeout_s * 1000);
    c->export_ms = now_exact_ms();
    rc = qmp_command(c->qmp, "x-farfork-export", a, &c->freeze, why);
    /* without an answer it may have forked all the same */
    c->exported = !rc || rc == -ECANCELED || rc == -ETIMEDOUT;
    clone_disks_done(c->disks, !rc);
    return rc ? rc : clone_disks_serve(c->disks, why);
}

void clone_ask_paused(struct clone *c)
{
    uint64_t until = now_ms() + CHILD_LIMIT_MS;
    const struct child *k = c->children;

    while (k < c->children + c->n_children && !child_runs(k))
        k++;
    if (!c->parent_stood || k == c->children + c->n_children)
        return;
    json_decref(c->answer);
    c->answer = NULL;
    host_send(&c->hosts[k->host], json_pack("{s{si ss}}", "qmp", "child", (int)k->number, "execute",
                                            "query-status"));
    while (!c->answer && !c->interrupted && now_ms() < until)
        clone_turn(c, CHILD_TURN_MS);
    c->paused = json_is_false(json_object_get(json_object_get(c->answer, "return"), "running"));
    if (c->paused)
        words_add(&c->notes, "the parent did not run, and so its children do not: start each by `cont` "
                             "at its QMP socket");
}

void clone_let_run(struct clone *c)
{
    AUTO_JSON json_t *status = NULL;
    struct why why;

    if (!c->o->template || !c->export_ms || c->parent_stood || c->parent_silent)
        return;
    qmp_cancel_by(c->qmp, -1);
    int rc = qmp_command(c->qmp, "query-status", NULL, &status, &why);
    if (!rc && !strcmp(text_of(status, "status"), "paused"))
        rc = qmp_command(c->qmp, "cont", NULL, NULL, &why);
    if (rc)
        words_add(&c->notes, "the parent stands still, perhaps, as a template does: let it go on (QMP "
                             "cont): %s", why.text);
}

static bool waits_long(const struct host *h, unsigned silent_ms)
{
    return !h->let_go && (h->state == HOST_LISTENING || h->state == HOST_IMAGE) &&
           now_ms() > h->heard_ms + silent_ms;
}

void clone_ask_export(struct clone *c, unsigned silent_ms)
{
    AUTO_JSON json_t *all = NULL;
    struct why why;
    bool any = false;

    for (size_t i = 0; i < c->n_hosts; i++)
        any |= waits_long(&c->hosts[i], silent_ms);
    if (!any || !c->exported || c->parent_silent)
        return;
    qmp_limit(c->qmp, ASK_LIMIT_MS);
    if (qmp_command(c->qmp, "query-x-farfork-exports", NULL, &all, &why))
        return; /* it may be busy, or end */
    for (size_t i = 0; i < c->n_hosts; i++) {
        struct host *h = &c->hosts[i];
        const json_t *t = clone_find_target(c, all, h);
        if (t && waits_long(h, silent_ms) && !strcmp(text_of(t, "status"), "failed"))
            host_fail(c, h, "the parent's memory does not get there: %s", text_of(t, "error"));
    }
}

/* Whether it has; forked off the parent, it has what the parent had open, until it has closed it */
static bool has_ended(pid_t holder)
{
    uint64_t start = process_start(holder), end = now_ms() + COMMAND_LIMIT_MS;

    while (process_is(holder, start) && now_ms() < end)
        poll(NULL, 0, 2);
    return !process_is(holder, start);
}

void clone_unexport(struct clone *c)
{
    AUTO_JSON json_t *all = NULL;
    struct why why;

    if (!c->exported || c->parent_silent)
        return;
    qmp_cancel_by(c->qmp, -1);
    qmp_limit(c->qmp, COMMAND_LIMIT_MS);
    int rc = qmp_command(c->qmp, "query-x-farfork-exports", NULL, &all, &why);
    const json_t *e = clone_find_named(all, "id", c->o->id);
    /* that it is gone already is as good */
    qmp_command(c->qmp, "x-farfork-unexport", json_pack("{ss}", "id", c->o->id), NULL, &why);
    c->held = rc || (e && !has_ended((pid_t)json_integer_value(json_object_get(e, "holder-pid"))));
    c->exported = false;
}
