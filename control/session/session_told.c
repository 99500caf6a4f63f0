/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * session_told.c - note run-time settings of QEMU that a new QEMU will not have
 */
/**
 * DOC: Theory of Operation
 *
 * Purpose      a new QEMU starts from the command line. Settings made since, by QMP or the host, that
 *              are in neither the command line nor device state are lost. A note names each,
 *              before the guest stops. docs/operations.md lists all that QMP can show.
 * Failure      a query that fails gives no note: QEMU may be older.
 * Limits       QEMU does not show what watchdog-set-action and set-action have set.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "autojson.h"
#include "process_limits.h"
#include "qemu_opts.h"
#include "session.h"
#include "session_told.h"

/* @text is taken over */
static void told_note(struct session *s, char *text)
{
    text = ff_printable(text); /* as the note has it */
    if (!strv_have(&s->notes, text))
        session_note(s, "%s", text);
    free(text);
}

/* The argument of the -@option with this id; NULL: there is none */
static const char *option_with_id(const struct session *s, const char *option, const char *id)
{
    const struct strv *argv = &s->parent_argv;

    for (size_t i = 1; i < argv->n; i++) {
        FF_AUTO_FREE char *own =
            qemu_option_is(argv->v[i - 1], option) ? qemu_opts_get(argv->v[i], "id") : NULL;
        if (own && !strcmp(own, id))
            return argv->v[i];
    }
    return NULL;
}

static json_t *told_ask(struct session *s, const char *command, json_t *arguments)
{
    json_t *value = NULL;

    qmp_command(s->qmp, command, arguments, &value, NULL);
    return value;
}

static json_t *get_told(struct session *s, const char *path, const char *property)
{
    return told_ask(s, "qom-get", json_pack("{ss ss}", "path", path, "property", property));
}

/* --- disks --- */

static const char *disk_of(const json_t *entry)
{
    const char *device = text_of(entry, "device"), *qdev = text_of(entry, "qdev");

    return *device ? device
           : *qdev ? qdev
                   : text_of(json_object_get(entry, "inserted"), "node-name");
}

static json_int_t limit_of_drive(const char *option, const char *key)
{
    FF_AUTO_FREE char *v = option ? qemu_opts_get(option, key) : NULL;

    return v ? strtoll(v, NULL, 0) : 0;
}

/* A -drive without an id that has limits: whose they are is not seen */
static bool any_unnamed_limits(const struct session *s)
{
    const struct strv *argv = &s->parent_argv;

    for (size_t i = 1; i < argv->n; i++) {
        FF_AUTO_FREE char *id = qemu_opts_get(argv->v[i], "id");
        if (qemu_option_is(argv->v[i - 1], "drive") && !id &&
            (strstr(argv->v[i], "throttling.") || strstr(argv->v[i], "bps") ||
             strstr(argv->v[i], "iops")))
            return true;
    }
    return false;
}

/* Limits by block_set_io_throttle that the -drive has not, or has otherwise */
static void note_limits(struct session *s, const json_t *entry)
{
    static const struct {
        const char *key, *option, *old;
    } all[] = {{"bps", "throttling.bps-total", "bps"},
               {"bps_rd", "throttling.bps-read", "bps_rd"},
               {"bps_wr", "throttling.bps-write", "bps_wr"},
               {"iops", "throttling.iops-total", "iops"},
               {"iops_rd", "throttling.iops-read", "iops_rd"},
               {"iops_wr", "throttling.iops-write", "iops_wr"}};
    const json_t *inserted = json_object_get(entry, "inserted");
    const char *drive = option_with_id(s, "drive", text_of(entry, "device"));
    FF_AUTO_FREE char *text = xstrdup("");

    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++) {
        json_int_t now = json_integer_value(json_object_get(inserted, all[i].key));
        if (now == limit_of_drive(drive, all[i].option) + limit_of_drive(drive, all[i].old))
            continue;
        char *more = xprintf("%s %s=%lld", text, all[i].key, (long long)now);
        free(text);
        text = more;
    }
    if (*text && (drive || !any_unnamed_limits(s)))
        told_note(s, xprintf("disk %s: the limits of block_set_io_throttle (%s) are not set %s",
                             disk_of(entry), text + 1, s->kind->where));
}

static void note_snapshots(struct session *s, const json_t *entry)
{
    const json_t *list =
        json_object_get(json_object_get(json_object_get(entry, "inserted"), "image"), "snapshots");
    size_t i;
    json_t *one;

    json_array_foreach(list, i, one) told_note(
        s,
        xprintf("disk %s: its internal snapshot %s is out of reach from the fork on: loadvm finds "
                "it neither in children nor in the parent, and leaves that stopped",
                disk_of(entry), text_of(one, "name")));
}

static void note_node(struct session *s, const json_t *node, bool fork)
{
    const char *name = text_of(node, "node-name");
    size_t i;
    json_t *b;

    json_array_foreach(json_object_get(node, "dirty-bitmaps"), i, b) if (fork) told_note(
        s, xprintf("node %s: dirty bitmap %s has nothing of what is written from the fork on, "
                   "which is in overlays; children have none",
                   name, text_of(b, "name")));
    else if (!json_is_true(json_object_get(b, "persistent"))) told_note(
        s, xprintf("node %s: dirty bitmap %s is not persistent, and is not there: begin with a "
                   "full backup",
                   name, text_of(b, "name")));
    if (json_integer_value(json_object_get(node, "write_threshold")))
        told_note(
            s, xprintf("node %s: block-set-write-threshold is not set %s", name, s->kind->where));
}

static void note_blocks(struct session *s, bool fork)
{
    FF_AUTO_JSON json_t *disks = told_ask(s, "query-block", NULL),
                        *nodes = told_ask(s, "query-named-block-nodes", NULL);
    size_t i;
    json_t *o;

    json_array_foreach(disks, i, o)
    {
        note_limits(s, o);
        if (fork)
            note_snapshots(s, o);
    }
    json_array_foreach(nodes, i, o) note_node(s, o, fork);
}

/* --- objects and devices --- */

/* Properties that qom-set may have changed: with the value that they have without an option */
static const struct told {
    const char *type, *property, *unset;
} told[] = {{"filter-", "status", "on"},
            {"iothread", "poll-max-ns", "32768"},
            {"iothread", "aio-max-batch", "0"},
            {"iothread", "thread-pool-max", "64"},
            {"virtio-balloon", "guest-stats-polling-interval", "0"}};

static char *text_of_value(const json_t *v)
{
    return json_is_string(v)    ? xstrdup(json_string_value(v))
           : json_is_integer(v) ? xprintf("%lld", (long long)json_integer_value(v))
           : json_is_boolean(v) ? xstrdup(json_is_true(v) ? "on" : "off")
                                : NULL;
}

static void note_told_property(struct session *s, const char *path, const struct told *t,
                               const char *option)
{
    FF_AUTO_JSON json_t *value = get_told(s, path, t->property);
    FF_AUTO_FREE char *now = text_of_value(value);
    FF_AUTO_FREE char *given = option ? qemu_opts_get(option, t->property) : NULL;
    const char *then = given ? given : t->unset;

    if (now && strcmp(now, then))
        told_note(s, xprintf("%s: %s is %s by qom-set, and %s %s", path, t->property, now, then,
                             s->kind->where));
}

static void note_group(struct session *s, const char *path, const char *option)
{
    FF_AUTO_JSON json_t *limits = get_told(s, path, "limits");
    const char *key;
    json_t *value;

    json_object_foreach(limits, key, value)
    {
        FF_AUTO_FREE char *old = xprintf("x-%s", key), *nested = xprintf("limits.%s", key);
        FF_AUTO_FREE char *a = qemu_opts_get(option, old), *b = qemu_opts_get(option, nested);
        const char *given = a ? a : b, *end = strrchr(key, '-');
        json_int_t unset = end && !strcmp(end, "-length"), now = json_integer_value(value);
        if (now != (given ? strtoll(given, NULL, 0) : unset))
            told_note(s, xprintf("%s: its limit %s is %lld by qom-set, and %s %s", path, key,
                                 (long long)now, given ? given : "not set", s->kind->where));
    }
}

/* "child<TYPE>"; NULL: no object. To be freed */
static char *child_type(const json_t *o)
{
    const char *type = text_of(o, "type");

    return strncmp(type, "child<", 6) ? NULL
                                      : xprintf("%.*s", (int)strcspn(type + 6, ">"), type + 6);
}

static void note_child(struct session *s, const char *path, const char *type, const char *option)
{
    for (const struct told *t = told; t < told + sizeof(told) / sizeof(told[0]); t++)
        if (!strncmp(type, t->type, strlen(t->type)))
            note_told_property(s, path, t, option);
    if (!strcmp(type, "throttle-group") && option)
        note_group(s, path, option);
}

static void note_children(struct session *s, const char *folder, const char *option)
{
    FF_AUTO_JSON json_t *list = told_ask(s, "qom-list", json_pack("{ss}", "path", folder));
    bool objects = !strcmp(option, "object");
    size_t i;
    json_t *o;

    json_array_foreach(list, i, o)
    {
        const char *name = text_of(o, "name");
        FF_AUTO_FREE char *type = child_type(o), *path = xprintf("%s/%s", folder, name);
        const char *argument = option_with_id(s, option, name);
        if (!type)
            continue;
        /* QEMU makes one for its own memory; those of DIMMs are on the command line by now */
        if (objects && !argument && strncmp(type, "memory-backend-", 15))
            told_note(s, xprintf("object %s (%s) was added later, and is not %s", name, type,
                                 s->kind->where));
        else
            note_child(s, path, type, argument);
    }
}

/* A watchdog's own is on the command line alone */
static void note_watchdog(struct session *s)
{
    static const char *const drivers[] = {"i6300esb", "ib700", "diag288", "wdt_"};
    const struct strv *argv = &s->parent_argv;

    for (size_t i = 1; i < argv->n; i++) {
        FF_AUTO_FREE char *driver = qemu_option_is(argv->v[i - 1], "device")
                                        ? qemu_opts_get_first(argv->v[i], "driver")
                                        : NULL;
        for (size_t k = 0; driver && k < sizeof(drivers) / sizeof(drivers[0]); k++)
            if (!strncmp(driver, drivers[k], strlen(drivers[k])))
                told_note(
                    s,
                    xprintf("-device %s: its action %s is that of the command line, whatever "
                            "watchdog-set-action or set-action have set, which QEMU does not show",
                            argv->v[i], s->kind->where));
    }
}

static void note_chardevs(struct session *s)
{
    static const char *const own[] = {
        "compat_monitor", "serial", "parallel", "gdb", "qtest", "debugcon",
        "stdio",          "con",    "vc",       "mon", "hmp"};
    FF_AUTO_JSON json_t *list = told_ask(s, "query-chardev", NULL);
    size_t i;
    json_t *o;

    json_array_foreach(list, i, o)
    {
        const char *label = text_of(o, "label");
        bool known = option_with_id(s, "chardev", label) != NULL;
        for (size_t k = 0; k < sizeof(own) / sizeof(own[0]); k++)
            known |= !strncmp(label, own[k], strlen(own[k]));
        if (!known && !strchr(label, '.')) /* of others: "ID.PART" */
            told_note(s,
                      xprintf("chardev %s was added later, and is not %s", label, s->kind->where));
    }
}

/* --- its process --- */

static void note_process(struct session *s)
{
    FF_AUTO_JSON json_t *cpus = told_ask(s, "query-cpus-fast", NULL);
    pid_t *threads = xcalloc(json_array_size(cpus) + 1, sizeof(*threads));
    FF_AUTO_FREE char *text = xstrdup("");
    struct strv words = {0};
    size_t i;
    json_t *cpu;

    json_array_foreach(cpus, i, cpu) threads[i] =
        (pid_t)json_integer_value(json_object_get(cpu, "thread-id"));
    process_limits_of(s->parent_pid, threads, "/sys/fs/cgroup", &words);
    for (i = 0; i < words.n; i++) {
        char *more = xprintf("%s%s%s", text, i ? ", " : "", words.v[i]);
        free(text);
        text = more;
    }
    if (words.n)
        told_note(
            s, xprintf("the process here (pid %d) has of its own: %s: what an agent starts %s has "
                       "what the agent has",
                       (int)s->parent_pid, text, s->kind->where));
    strv_free(&words);
    free(threads);
}

void session_note_told(struct session *s, bool fork)
{
    note_blocks(s, fork);
    note_children(s, "/objects", "object");
    note_children(s, "/machine/peripheral", "device");
    note_children(s, "/machine/peripheral-anon", "device");
    note_watchdog(s);
    note_chardevs(s);
    note_process(s);
}

void session_say_notes(struct session *s)
{
    for (; !s->o.json && s->notes_said < s->notes.n; s->notes_said++)
        printf("note: %s\n", s->notes.v[s->notes_said]);
    fflush(stdout);
}
