/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * plan_disks.c - what vmclone would do, for tests that do it with real QEMUs
 *
 * stdin: one JSON object: {"fork", "argv", "children": N}, and
 *     for disks      "cwd", "block", "nodes", "overlays", "stopped", "place": {"scratch", "nbd",
 *                    "pidfile"}
 *     for identity   "identity": {"hostname", "user", "ip": [...]}
 * stdout: {"prepare", "actions", "undo", "server", "summary", "children":
 * [{"steps", "files", "argv"}]}; {"missing", "channel", "parent", "children": [{"message", "argv",
 * "summary"}]}. Exit code 1: refused, the reason is on stderr.
 */
#include <stdio.h>
#include <stdlib.h>

#include "disks.h"
#include "identity.h"
#include "folder.h"
#include "autojson.h"

#define NICS_MAX 8

static struct ff_error why;

static const char *text(const json_t *in, const char *key)
{
    return json_string_value(json_object_get(in, key));
}

static json_t *disk_children(const struct disks *d, const struct clone_place *p, unsigned n)
{
    json_t *list = json_array();

    for (unsigned k = 1; k <= n; k++)
        json_array_append_new(list, json_pack("{s:o,s:o,s:o}", "steps",
                                              disks_child_steps(d, p, k), "files",
                                              disks_child_files(d, p, k), "argv",
                                              disks_child_argv(d, p, k)));
    return list;
}

static json_t *disks(const json_t *in, unsigned n)
{
    const json_t *place = json_object_get(in, "place");
    const struct disks_input input = {
        .fork_id = text(in, "fork"), .argv = json_object_get(in, "argv"), .cwd = text(in, "cwd"),
        .block = json_object_get(in, "block"), .nodes = json_object_get(in, "nodes"),
        .overlays = text(in, "overlays"), .stopped = json_is_true(json_object_get(in, "stopped")),
    };
    const struct clone_place p = {text(place, "scratch"), text(place, "nbd")};
    struct disks *d;

    if (disks_plan(&input, &d, &why) < 0)
        return NULL;
    if (!p.nbd && folder_has_room(p.scratch, disks_room(d, n), "scratch folder", "--scratch",
                                   &why) < 0) {
        disks_free(d);
        return NULL;
    }
    json_t *out = json_pack(
        "{s:o,s:o,s:o,s:o,s:o}", "prepare", disks_prepare(d), "actions", disks_actions(d), "undo",
        disks_undo(d), "children", disk_children(d, &p, n), "summary", disks_summary(d));
    json_t *server = p.nbd ? disks_server(d, p.nbd, text(place, "pidfile")) : NULL;
    json_object_set_new(out, "server", server ? server : json_null());
    disks_free(d);
    return out;
}

static json_t *identity_child(const struct identity *id, unsigned k, const char *rundir,
                              const json_t *argv)
{
    FF_AUTO_FREE char *message = identity_message(id, k, 0),
                      *config = identity_config(id, k, rundir);
    json_t *child = json_deep_copy(argv);

    identity_child_argv(id, k, rundir, child);
    if (config) {
        json_array_append_new(child, json_string("-readconfig"));
        json_array_append_new(child, json_string(config));
    }
    return json_pack("{s:s,s:o,s:o,s:o}", "message", message, "argv", child, "private",
                     identity_files(id, k, rundir), "summary", identity_summary(id, k));
}

static json_t *identity(const json_t *in, unsigned n)
{
    const json_t *how = json_object_get(in, "identity"), *argv = json_object_get(in, "argv");
    const char *ip[NICS_MAX] = {NULL};
    struct identity_input input = {
        .fork_id = text(in, "fork"), .count = n, .argv = argv, .hostname = text(how, "hostname"),
        .user = text(how, "user"), .ip = ip,
    };
    struct identity *id;
    size_t i;
    json_t *v;

    json_array_foreach(json_object_get(how, "ip"), i, v)
        if (input.ips < NICS_MAX)
            ip[input.ips++] = json_string_value(v);
    if (identity_plan(&input, &id, &why) < 0)
        return NULL;
    FF_AUTO_FREE char *parent = identity_message(id, 0, 0);
    json_t *children = json_array();
    for (unsigned k = 1; k <= n; k++)
        json_array_append_new(children, identity_child(id, k, text(in, "rundir"), argv));
    json_t *out = json_pack("{s:o,s:s*,s:s,s:o}", "missing", identity_missing(id),
                            "channel", identity_channel(id), "parent", parent, "children",
                            children);
    identity_free(id);
    return out;
}

int main(void)
{
    FF_AUTO_JSON json_t *in = json_loadf(stdin, 0, NULL);
    unsigned n = (unsigned)json_integer_value(json_object_get(in, "children"));
    FF_AUTO_JSON json_t *out = json_object_get(in, "identity") ? identity(in, n) : disks(in, n);

    if (!out) {
        fprintf(stderr, "%s\n", why.text);
        return 1;
    }
    return json_dumpf(out, stdout, JSON_COMPACT) ? 1 : 0;
}
