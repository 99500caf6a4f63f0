/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * fork_disks.h - what becomes of the parent's disks, in the course of a fork
 */
#ifndef FF_CONTROL_FORK_FORK_DISKS_H
#define FF_CONTROL_FORK_FORK_DISKS_H

#include <jansson.h>

#include "command_line.h"
#include "domain_books.h"
#include "nocloud.h"
#include "qmp.h"

/* The order of a fork: fork_disks_new() when the parent is connected; fork_disks_prepare(), then
 * fork_disks_actions(), just before x-farfork-export, which runs them in the pause;
 * fork_disks_done() when it has answered; fork_disks_serve() after that. For each child, at any
 * time, fork_disks_argv(), _before() and _files(). */
struct fork_disks;

struct fork_disks_options {
    const char *id;
    const char *scratch;  /* folder for children's overlays, on each host; NULL: /var/tmp */
    const char *overlays; /* folder for the parent's; NULL: beside each image */
    const char *nbd;      /* "ADDRESS:PORT" of the server for other hosts; NULL: shared storage */
    const char *rundir;   /* base of run directories, or NULL */
    const char *parent;   /* its QMP socket, for --list */
    unsigned children;
    unsigned max_chain;   /* images of a disk; 0: no limit */
    bool here;            /* some of them are on this host */
    struct domain_books *books; /* libvirt makes the parent's overlays; or NULL */
};

/* -ENOTSUP: a disk that cannot be forked, by name; -ENOSPC: no room for the parent's overlays */
int fork_disks_new(struct qmp *parent, char *const *argv, const char *cwd,
                    const struct fork_disks_options *o, struct fork_disks **out,
                    struct ff_error *why);

/* Bytes that the overlays of so many children need, 0 without disks; and the folder */
uint64_t fork_disks_room(const struct fork_disks *d, unsigned children);
const char *fork_disks_scratch(const struct fork_disks *d);
const json_t *fork_disks_images(const struct fork_disks *d); /* names of the parent's, all files of them */

/* Overlays for the parent, and nodes that have them open; taken back on failure */
int fork_disks_prepare(struct fork_disks *d, struct ff_error *why);
/* TransactionActions, to be released; NULL: none */
json_t *fork_disks_actions(const struct fork_disks *d);
/* @forked: it said so. If the parent does not write to its new overlays they go again */
void fork_disks_done(struct fork_disks *d, bool forked);
/* Where libvirt has overlays to make the export has to leave the parent as a template. *@stands: so
 * it is, and they are planned. Then it makes them, and lets the guest go on if @go_on; then see what it
 * made */
int fork_disks_plan_libvirt(const struct fork_disks *d, bool go_on, bool *stands,
                            struct ff_error *why);
int fork_disks_by_libvirt(struct fork_disks *d, struct ff_error *why);
int fork_disks_take_over(struct fork_disks *d, struct ff_error *why);
/* Whether the parent writes to its new overlays */
bool fork_disks_forked(const struct fork_disks *d);
/* They are committed, and go; nobody may read what is behind them. On failure those that are
 * left stay; @limit_ms: without progress */
int fork_disks_take_back(struct fork_disks *d, struct qmp *parent, int limit_ms,
                          struct ff_error *why);
/* Start the server, if there is one to start; fork_disks_end_server() is for a fork that failed */
int fork_disks_serve(struct fork_disks *d, struct ff_error *why);
void fork_disks_end_server(struct fork_disks *d);

/* The children have their disks open, or there are none */
void fork_disks_let_go(struct fork_disks *d);

/* The parent's command line with the disks of a child: an array of strings, to be released */
json_t *fork_disks_argv(const struct fork_disks *d, const struct vm_spec *s);
/* Commands that the agent of the child's host runs, one after the other, before it starts the
 * child: an array of arrays of strings, to be released; NULL: none. And files that it makes before
 * those, and that are the child's own (overlay_records.h). */
json_t *fork_disks_before(const struct fork_disks *d, const struct vm_spec *s);
/* Likewise, after those, for its NoCloud data; and whether they can be done, with notes: before any
 * child is started (disks_try_seeds()) */
json_t *fork_disks_seeds(const struct fork_disks *d, const struct vm_spec *s, const char *program,
                         const struct nocloud *n);
void fork_disks_try_seeds(struct fork_disks *d, const struct nocloud *n, struct strv *notes);
json_t *fork_disks_map(const struct fork_disks *d, const struct vm_spec *s); /* as disks_child_map() */
json_t *fork_disks_files(const struct fork_disks *d, const struct vm_spec *s);

/* fork_commit.c: @overlay is one of disks_overlays(). -EBUSY: others than the @parent have what is
 * behind it, which a commit writes to */
int overlay_commit_check(const json_t *overlay, const char *base, pid_t parent,
                         struct ff_error *why);
int overlay_commit(struct qmp *q, const json_t *overlay, int limit_ms, struct ff_error *why);

/* For the summary: where the parent's disks are now; an array of objects, to be released */
json_t *fork_disks_summary(const struct fork_disks *d);
void fork_disks_free(struct fork_disks *d);

#endif
