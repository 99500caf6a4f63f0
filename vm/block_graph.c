/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * block_graph.c - what QEMU's x-debug-query-block-graph says of who uses a disk; see block_graph.h
 */
#include <string.h>

#include "autojson.h"
#include "block_graph.h"

const json_t *block_graph_node(const json_t *graph, const char *type, const char *name)
{
    size_t i;
    json_t *n;

    json_array_foreach(json_object_get(graph, "nodes"), i, n)
        if (!strcmp(text_of(n, "type"), type) && !strcmp(text_of(n, "name"), name))
            return n;
    return NULL;
}

const json_t *block_graph_by_id(const json_t *graph, const json_t *id)
{
    size_t i;
    json_t *n;

    json_array_foreach(json_object_get(graph, "nodes"), i, n)
        if (id && json_equal(json_object_get(n, "id"), id))
            return n;
    return NULL;
}

static bool may_write(const json_t *edge)
{
    size_t i;
    json_t *perm;

    json_array_foreach(json_object_get(edge, "perm"), i, perm)
        if (!strcmp(json_string_value(perm), "write") || !strcmp(json_string_value(perm), "resize"))
            return true;
    return false;
}

bool block_graph_is_written_apart(const json_t *graph, const char *node)
{
    const json_t *id = json_object_get(block_graph_node(graph, "block-driver", node), "id");
    size_t i;
    json_t *e;

    if (!id)
        return true;
    json_array_foreach(json_object_get(graph, "edges"), i, e) {
        const json_t *parent = block_graph_by_id(graph, json_object_get(e, "parent"));
        if (json_equal(json_object_get(e, "child"), id) && may_write(e) && !*text_of(parent, "name") &&
            !strcmp(text_of(parent, "type"), "block-backend"))
            return true;
    }
    return false;
}
