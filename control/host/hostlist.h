/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * hostlist.h - which hosts, from arguments, files and batch systems
 */
#ifndef FF_CLI_NODES_H
#define FF_CLI_NODES_H

#include "xalloc.h"

#define SLOTS_ANY 0

/* HOST[=ADDRESS][:SLOTS] */
struct node {
    char *host;     /* as the launcher gets it: "node1", "root@node1" */
    char *address;  /* by which the parent's host reaches it; never empty */
    unsigned slots; /* children at most; SLOTS_ANY: as many as there are */
    bool address_given;
};

struct nodes {
    struct node *v;
    size_t n;
};

/* An IPv6 address goes in brackets. A host that was named before gets the slots of both. */
int nodes_add(struct nodes *l, const char *spec, struct why *why);

/* One spec a line or word, # begins a comment; as PBS_NODEFILE: a host as often as it has slots */
int nodes_read_file(struct nodes *l, const char *path, bool count_slots, struct why *why);

/* "node[1-3,07],login": SLURM_JOB_NODELIST; each host once */
int nodes_add_slurm(struct nodes *l, const char *list, struct why *why);

/* Of the batch system whose job this is, else the local host */
int nodes_from_environment(struct nodes *l, struct why *why);

bool node_is_here(const struct node *n); /* this very host */
void nodes_free(struct nodes *l);

#endif
