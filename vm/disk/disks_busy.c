/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * disks_busy.c - what uses or changes a guest's disks besides the guest: jobs, exports, filters
 */
/**
 * DOC: Theory of Operation
 *
 * Purpose      refuse, before anything starts, jobs, writable exports and filters that were added at
 *              run time: QEMU aborts when a job writes to an image that it has given up; an
 *              export's client is cut off; a filter is missing in the new QEMU.
 * Picture      query-jobs, query-block-exports         which there are
 *              x-debug-query-block-graph               of which disk: the edge "main node" of a
 *                                                      job; whether an export writes: block_graph.h
 *              query-named-block-nodes                 the image of a node, and filters
 * Failure      without the graph a job is refused all the same, and so is every export: whether it
 *              writes is not known.
 * Limits       names_node() looks for a filter's node-name under four keys of -blockdev and
 *              -drive. A generated node-name is accepted, unless the driver is one of a job's.
 */
#include <errno.h>
#include <string.h>

#include "autojson.h"
#include "block_graph.h"
#include "disks.h"
#include "qemu_opts.h"
#include "qmp.h"

static bool is_any_of(const char *word, const char *const *list)
{
    while (*list && strcmp(word, *list))
        list++;
    return *list;
}

/* --- the graph --- */

/* The node-name below @parent by the edge @name */
static const char *node_below(const json_t *graph, const json_t *parent, const char *name)
{
    size_t i;
    json_t *e;

    json_array_foreach(json_object_get(graph, "edges"), i, e)
        if (parent && json_equal(json_object_get(e, "parent"), json_object_get(parent, "id")) &&
            !strcmp(text_of(e, "name"), name))
            return text_of(block_graph_by_id(graph, json_object_get(e, "child")), "name");
    return "";
}

static bool has_parent(const json_t *graph, const char *node)
{
    const json_t *id = json_object_get(block_graph_node(graph, "block-driver", node), "id");
    size_t i;
    json_t *e;

    json_array_foreach(json_object_get(graph, "edges"), i, e)
        if (json_equal(json_object_get(e, "child"), id))
            return true;
    return !id;
}

/* --- what is refused --- */

static const char *node_image(const struct disks_busy *b, const char *node)
{
    const char *file = *node ? text_of(json_find(b->nodes, "node-name", node), "file") : "";

    return *file ? file : node;
}

static int refuse_jobs(const struct disks_busy *b, struct ff_error *why)
{
    static const char *const over[] = {"concluded", "null", NULL};
    size_t i;
    json_t *job;

    json_array_foreach(b->jobs, i, job) {
        const char *id = text_of(job, "id");
        const char *disk = node_image(b, node_below(b->graph, block_graph_node(b->graph, "block-job", id),
                                                  "main node"));
        if (!is_any_of(text_of(job, "status"), over))
            return ff_error_set(why, EBUSY,
                                "job '%s' (%s)%s%s is under way, and would not go along: wait for its "
                                "end, or cancel it (QMP job-cancel)",
                                id, text_of(job, "type"), *disk ? " of disk " : "", disk);
    }
    return 0;
}

static int refuse_exports(const struct disks_busy *b, struct strv *notes, struct ff_error *why)
{
    size_t i;
    json_t *e;

    json_array_foreach(b->exports, i, e) {
        const char *id = text_of(e, "id"), *type = text_of(e, "type"),
                   *node = text_of(e, "node-name"), *disk = node_image(b, node);
        if (block_graph_is_written_apart(b->graph, node))
            return ff_error_set(why, EBUSY, "export '%s' (%s) of disk %s %s: end it first (QMP "
                                "block-export-del)", id, type, disk,
                                b->graph ? "is writable" : "may be writable, which this QEMU does not tell");
        FF_AUTO_FREE char *note = xprintf("export '%s' (%s) of disk %s stays behind: %s", id, type, disk,
                                          b->fork ? "children have none" : "its readers are cut off");
        if (notes && !strv_have(notes, note))
            strv_add(notes, "%s", note);
    }
    return 0;
}

static bool names_node(const json_t *argv, const char *node)
{
    static const char *const keys[] = {"node-name", "file.node-name", "backing.node-name",
                                       "file.file.node-name"};
    size_t i;
    json_t *w;

    json_array_foreach(argv, i, w) {
        const char *value = json_string_value(w), *option = json_string_value(json_array_get(argv, i ? i - 1 : 0));
        if (!value || !option || !(qemu_option_is(option, "blockdev") || qemu_option_is(option, "drive")))
            continue;
        for (size_t k = 0; k < sizeof(keys) / sizeof(keys[0]); k++) {
            FF_AUTO_FREE char *name = qemu_opts_get(value, keys[k]);
            if (name && !strcmp(name, node))
                return true;
        }
    }
    return false;
}

static int refuse_filters(const struct disks_busy *b, struct ff_error *why)
{
    static const char *const of_jobs[] = {"mirror_top", "commit_top", "backup-top", "copy-before-write", NULL};
    static const char *const filters[] = {"blkdebug", "blklogwrites", "blkreplay", "blkverify", "compress",
                                          "copy-on-read", "preallocate", "throttle", NULL};
    size_t i;
    json_t *n;

    json_array_foreach(b->nodes, i, n) {
        const char *node = text_of(n, "node-name"), *driver = text_of(n, "drv");
        bool is_job = is_any_of(driver, of_jobs), is_late = is_any_of(driver, filters) && *node != '#';
        if ((is_job || (is_late && has_parent(b->graph, node))) && !names_node(b->argv, node))
            return ff_error_set(why, EBUSY, "filter %s (%s) of disk %s was added at run time, and would not go "
                                "along: remove it, or end the job that it belongs to", node, driver,
                                node_image(b, node));
    }
    return 0;
}

int disks_check_busy(const struct disks_busy *b, struct strv *notes, struct ff_error *why)
{
    int rc = refuse_jobs(b, why);

    if (!rc)
        rc = refuse_exports(b, notes, why);
    return rc ? rc : refuse_filters(b, why);
}

int disks_ask_busy(struct qmp *q, const json_t *argv, bool fork, struct strv *notes, struct ff_error *why)
{
    FF_AUTO_JSON json_t *jobs = NULL, *exports = NULL, *nodes = NULL, *graph = NULL;
    struct ff_error ignored;
    int rc = qmp_command(q, "query-jobs", NULL, &jobs, why);

    if (!rc)
        rc = qmp_command(q, "query-block-exports", NULL, &exports, why);
    if (!rc)
        rc = qmp_command(q, "query-named-block-nodes", json_pack("{sb}", "flat", 1), &nodes, why);
    if (rc)
        return ff_error_context(why, "jobs and exports of its disks");
    rc = qmp_command(q, "x-debug-query-block-graph", NULL, &graph, &ignored);
    if (rc && rc != -EREMOTEIO)
        return ff_error_set(why, -rc, "%s", ignored.text);
    const struct disks_busy b = {.argv = argv, .jobs = jobs, .exports = exports, .nodes = nodes,
                                 .graph = graph, .fork = fork};
    return disks_check_busy(&b, notes, why);
}
