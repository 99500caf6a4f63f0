/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * block_graph.h - what QEMU's x-debug-query-block-graph says of who uses a disk
 *
 * Whether an export writes query-block-exports does not tell: an edge of the graph does, from a backend without a name.
 */
#ifndef FF_VM_BLOCK_GRAPH_H
#define FF_VM_BLOCK_GRAPH_H

#include <jansson.h>
#include <stdbool.h>

/* NULL: it has none of this type and name */
const json_t *block_graph_node(const json_t *graph, const char *type, const char *name);
const json_t *block_graph_by_id(const json_t *graph, const json_t *id);

/* A backend that is neither a drive nor a device's, as that of an export is, may write to @node. True also where the graph is
 * not known (NULL), or has no such node */
bool block_graph_is_written_apart(const json_t *graph, const char *node);

#endif
