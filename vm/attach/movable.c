/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * movable.c - what of a QEMU that is not patched cannot be moved from outside
 */
/**
 * DOC: Theory of Operation
 *
 * Purpose      what QEMU itself does not migrate it names (device_state.h). Beyond that: devices
 *              whose state iterates, which xen-save-devices-state leaves out without a word;
 *              devices by which another process or a card reaches guest memory, where pages are
 *              missing at the destination; and who writes to disks that are given up. As the
 *              patched QEMU refuses them (qemu-patches/src/rdma-postcopy-refuse.c), which knows its
 *              own objects.
 *
 * Picture      info qom-tree                      info network
 *              /machine (pc-i440fx-7.2-machine)    u: index=0,type=vhost-user,...
 *                /peripheral (container)
 *                  /vm0 (virtio-mem-pci)
 *                    /virtio-backend (virtio-mem)
 *
 *              Two spaces are a level. A name has no space, so the type is what is in the last
 *              parentheses. Plugged devices and those without a name are there, too.
 *
 * Limits       An export that only reads is left behind: what it serves stands still with QEMU, and ends with it. Where QEMU
 *              does not tell whether one writes it is refused.
 */
#include <errno.h>
#include <string.h>

#include "autojson.h"
#include "block_graph.h"
#include "device_state.h"
#include "movable.h"
#include "xalloc.h"

#define DEPTH_MAX 32

static const char reaches[] =
    "another process or a card reaches guest memory by it, of which pages would be missing";
static const char left_out[] = "QEMU saves no such state without memory";

/* Types that begin so */
static const struct {
    const char *type, *why;
} refused[] = {
    {"vfio-", reaches},      {"vhost-user", reaches},      {"vhost-vdpa", reaches},
    {"vhost-scsi", reaches}, {"cryptodev-vhost", reaches}, {"x-pci-proxy", reaches},
    {"ivshmem", reaches},    {"virtio-mem", left_out},     {"virtio-pmem", left_out},
    {"hv-balloon", left_out},
};

/* It makes udmabufs of guest memory when it is loaded: pages appear behind the pager */
static int check_blobs(struct qmp *q, const char *path, struct ff_error *err)
{
    FF_AUTO_JSON json_t *list = NULL, *blob = NULL;
    int rc = qmp_command(q, "qom-list", json_pack("{ss}", "path", path), &list, err);

    if (rc || !json_find(list, "name", "blob")) /* a QEMU that knows none */
        return rc;
    rc = qmp_command(q, "qom-get", json_pack("{ss ss}", "path", path, "property", "blob"), &blob,
                     err);
    if (rc || json_is_false(blob))
        return rc;
    return ff_error_set(
        err, ENOTSUP,
        "move: device %s has blob=on: QEMU maps guest memory for it where pages are "
        "missing: start the guest without blob=on",
        path);
}

static int check_type(struct qmp *q, const char *path, const char *type, struct ff_error *err)
{
    for (size_t i = 0; i < FF_ARRAY_LEN(refused); i++)
        if (!strncmp(type, refused[i].type, strlen(refused[i].type)))
            return ff_error_set(err, ENOTSUP, "move: device %s (%s): %s: unplug it", path, type,
                                refused[i].why);
    return strncmp(type, "virtio-gpu", 10) && strncmp(type, "virtio-vga", 10)
               ? 0
               : check_blobs(q, path, err);
}

/* @parent: the path of each level, NULL: none; those from @depth on are freed */
static void forget_levels(char **parent, unsigned depth)
{
    for (; depth < DEPTH_MAX; depth++) {
        free(parent[depth]);
        parent[depth] = NULL;
    }
}

static int check_object(struct qmp *q, char **parent, char *line, struct ff_error *err)
{
    const size_t spaces = strspn(line, " "), depth = spaces / 2;
    char *name = line + spaces, *open = strrchr(name, '('), *close = strrchr(name, ')');

    if (!*name)
        return 0;
    if (*name != '/' || !open || !close || close < open || open[-1] != ' ' || spaces % 2 ||
        depth >= DEPTH_MAX || (depth && !parent[depth - 1]))
        return ff_error_set(err, EPROTO, "move: info qom-tree: read line: not an object: %.200s",
                            line);
    open[-1] = *close = '\0';
    forget_levels(parent, (unsigned)depth);
    parent[depth] = xprintf("%s%s", depth ? parent[depth - 1] : "", name);
    return check_type(q, parent[depth], open + 1, err);
}

static int check_tree(struct qmp *q, const char *command, struct ff_error *err)
{
    FF_AUTO_JSON json_t *text = NULL;
    char *parent[DEPTH_MAX] = {NULL}, *rest;
    int rc = qmp_hmp(q, command, &text, err);

    if (rc)
        return rc;
    FF_AUTO_FREE char *copy = xstrdup(json_string_value(text));
    for (char *l = strtok_r(copy, "\r\n", &rest); l && !rc; l = strtok_r(NULL, "\r\n", &rest))
        rc = check_object(q, parent, l, err);
    if (!rc && !parent[0])
        rc = ff_error_set(err, EPROTO, "move: %s: the answer has no object", command);
    forget_levels(parent, 0);
    return rc;
}

static int check_netdevs(struct qmp *q, struct ff_error *err)
{
    static const char *const types[] = {"type=vhost-user", "type=vhost-vdpa",
                                        "vhost-user,connected"};
    FF_AUTO_JSON json_t *text = NULL;
    int rc = qmp_hmp(q, "info network", &text, err);

    for (size_t i = 0; !rc && i < FF_ARRAY_LEN(types); i++) {
        const char *at = strstr(json_string_value(text), types[i]);

        if (at)
            rc = ff_error_set(err, ENOTSUP,
                              "move: info network has '%.*s': %s: give the guest that network by "
                              "QEMU, or by vhost in the kernel",
                              (int)strcspn(at, "\r\n"), at, reaches);
    }
    return rc;
}

static int check_readers_alone(struct qmp *q, struct ff_error *err)
{
    FF_AUTO_JSON json_t *exports = NULL, *graph = NULL;
    int rc = qmp_command(q, "query-block-exports", NULL, &exports, err);

    if (rc || !json_array_size(exports))
        return rc;
    rc = qmp_command(q, "x-debug-query-block-graph", NULL, &graph, err);
    if (rc == -EREMOTEIO) /* it has none: refused below */
        rc = 0;
    for (size_t i = 0; !rc && i < json_array_size(exports); i++) {
        const json_t *e = json_array_get(exports, i);

        if (block_graph_is_written_apart(graph, text_of(e, "node-name")))
            return ff_error_set(err, EBUSY, "move: export '%s' (%s) of disk '%s' %s: end it first (block-export-del)",
                                text_of(e, "id"), text_of(e, "type"), text_of(e, "node-name"),
                                graph ? "is writable" : "may be writable, which this QEMU does not tell");
    }
    return rc;
}

static int check_no_jobs(struct qmp *q, struct ff_error *err)
{
    FF_AUTO_JSON json_t *jobs = NULL;
    int rc = qmp_command(q, "query-jobs", NULL, &jobs, err);

    for (size_t i = 0; !rc && i < json_array_size(jobs); i++) {
        const json_t *j = json_array_get(jobs, i);

        if (strcmp(text_of(j, "status"), "concluded") && strcmp(text_of(j, "status"), "null"))
            return ff_error_set(
                err, EBUSY,
                "move: job '%s' (%s) is under way, and would not go along: wait for "
                "its end, or cancel it (job-cancel)",
                text_of(j, "id"), text_of(j, "type"));
    }
    return rc;
}

int movable_check(struct qmp *q, struct ff_error *err)
{
    int rc = device_state_may(q, err);

    if (!rc)
        rc = check_tree(q, "info qom-tree", err);
    if (!rc)
        rc = check_tree(q, "info qom-tree /objects", err);
    if (!rc)
        rc = check_netdevs(q, err);
    if (!rc)
        rc = check_no_jobs(q, err);
    return rc ? rc : check_readers_alone(q, err);
}
