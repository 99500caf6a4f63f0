/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * hostlist.h - which hosts, from arguments, files and batch systems
 */
#ifndef FF_CONTROL_HOST_HOSTLIST_H
#define FF_CONTROL_HOST_HOSTLIST_H

#include "error.h"
#include "strv.h"

#define SLOTS_ANY 0

/* HOST[=ADDRESS][:SLOTS] */
struct node {
    char *host;     /* as the launcher gets it: "node1", "root@node1" */
    char *address;  /* by which the parent's host reaches it; never empty */
    unsigned slots; /* children at most; SLOTS_ANY: as many as there are */
    bool address_given;
};

struct hostlist {
    struct node *v;
    size_t n;
};

/* An IPv6 address goes in brackets. A host that was named before gets the slots of both. */
int hostlist_add(struct hostlist *l, const char *spec, struct ff_error *why);

/* One spec a line or word, # begins a comment; as PBS_NODEFILE: a host as often as it has slots */
int hostlist_read_file(struct hostlist *l, const char *path, bool count_slots,
                       struct ff_error *why);

/* "node[1-3,07],login": SLURM_JOB_NODELIST; each host once */
int hostlist_add_slurm(struct hostlist *l, const char *list, struct ff_error *why);

/* Of the batch system whose job this is, else the local host */
int hostlist_from_environment(struct hostlist *l, struct ff_error *why);

/* A script of Slurm's own, beside a job: that job's hosts are not meant */
bool hostlist_in_prolog(void);

bool hostlist_is_here(const struct node *n); /* this very host */
void hostlist_drop(struct hostlist *l, size_t i);
char *hostlist_spec(const struct node *n); /* HOST=ADDRESS, as hostlist_add() takes it */
void hostlist_free(struct hostlist *l);

#endif
