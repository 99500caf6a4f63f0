/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * disks.h - the disks of a fork: what is frozen, and the overlays of parent and children
 */
#ifndef FF_VM_DISK_DISKS_H
#define FF_VM_DISK_DISKS_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "error.h"
#include "nocloud.h"
#include "strv.h"

struct disks;
struct qmp;

struct disks_input {
    const char *fork_id;      /* letters, digits, . _ - */
    const json_t *argv;       /* of the parent, an array of strings */
    const char *cwd;          /* of the parent: what its relative names are relative to */
    const json_t *block;      /* what query-block returned */
    const json_t *nodes;      /* what query-named-block-nodes returned */
    const char *overlays;     /* folder for the parent's overlays; NULL: beside each image */
    bool stopped;             /* the parent does not run, and will not until the pause: a disk that
                               * it has not written to since its last fork is frozen already */
    unsigned max_chain;       /* images of a disk; 0: no limit */
    bool seeds;               /* look for NoCloud data */
    bool move;                /* nothing is frozen: for disks_move_argv() */
    bool foreign;             /* with @move: @argv is none of the QEMU's that has these disks, but of one with the same devices */
    bool awaited;             /* somebody else makes the parent's overlays: disks_take_over() */
};

/**
 * disks_plan() - find the writable disks and decide what becomes of each
 *
 * Refuses what a child could not have: a disk that is not on the command line, a format other
 * than raw and qcow2, encryption, -snapshot, a running block job, a backing chain that differs
 * from what the images' headers say. A parent without writable disks has an empty plan. Of a move
 * the last three matter only for a disk whose image is not the one that its option names.
 *
 * Return: 0; -ENOTSUP or -EINVAL with the reason
 */
int disks_plan(const struct disks_input *in, struct disks **out,
                     struct ff_error *why);
void disks_free(struct disks *d);
size_t disks_count(const struct disks *d); /* of disks that are frozen */

/*
 * What is to be done is a list of steps, in order; each is one of
 *     {"argv": ["qemu-img", ...]}                 run a program, on the host that it is meant for
 *     {"qmp": {"execute": ..., "arguments": ...}} ask the parent
 *     {"create": PATH, "like": IMAGE}             make an empty file, which must not be there, with
 *                                                 the owner and mode of the image
 *     {"unlink": PATH}                            remove a file; it need not be there
 * All lists returned are new and to be released.
 */

/* On the parent, before the pause: an overlay for each disk, and a node that has it open */
json_t *disks_prepare(const struct disks *d);
/* For x-farfork-export, in the pause: from here on the parent writes to its overlays */
json_t *disks_actions(const struct disks *d);
/* Takes disks_prepare() back, also half of it: for as long as the pause was not reached,
 * or when the export failed and disks_gone_over() says false */
json_t *disks_undo(const struct disks *d);
/* Whether what @in.stopped promised has come true; asked after the pause. -EBUSY */
int disks_check_still(const struct disks *d, struct ff_error *why);
/* Whether the parent writes to the overlays of this plan; @block: query-block asked again */
bool disks_gone_over(const struct disks *d, const json_t *block);
/* The parent's new overlays, also those that were taken over: [{"disk", "node", "frozen",
 * "overlay-node", "overlay"}], where node is the one of what is frozen, an image of that name; "" of
 * one that was taken over */
json_t *disks_overlays(const struct disks *d);
/* One of those is no more, the disk is as it was */
void disks_taken_back(struct disks *d, const char *overlay_node);

/* Where children are: a folder of that host, and how they get at what is frozen */
struct clone_place {
    const char *scratch;
    const char *nbd; /* NULL: by its own name; else "HOST:PORT" or "unix:PATH" */
};

/* On the child's host: make its overlays; and the files to remove at its end */
json_t *disks_child_steps(const struct disks *d, const struct clone_place *p,
                                unsigned number);
/* [{"frozen", "empty", "overlay"}]: what becomes of each image that is written to. empty: an overlay of it, "" if none */
json_t *disks_child_map(const struct disks *d, const struct clone_place *p, unsigned number);
json_t *disks_child_files(const struct disks *d, const struct clone_place *p,
                                unsigned number);
/* Whether NoCloud data of a read-only disk can be @n's; where they cannot, or an address in them stays
 * the parent's, a note, and in the first case children have the parent's data. So is each disk with
 * data of another kind */
void disks_try_seeds(struct disks *d, const struct nocloud *n, struct strv *notes);
/* Likewise make them: copies, changed by @program, which is farfork there */
json_t *disks_seed_steps(const struct disks *d, const struct clone_place *p, unsigned number,
                         const char *program, const struct nocloud *n);
/* The parent's command line with the child's disks */
json_t *disks_child_argv(const struct disks *d, const struct clone_place *p,
                               unsigned number);

/* Of a plan for a move: the command line with the images that the guest has now, which may be
 * others than those that it was started with. Shared storage: the same files there */
json_t *disks_move_argv(const struct disks *d);

/**
 * disks_server() - the program that serves what is frozen, and read-only disks, by NBD
 * @listen:  "HOST:PORT" or "unix:PATH", on the parent's host
 * @pidfile: written once it listens
 *
 * Start it after the pause: before, the images are the parent's alone. It detaches once it
 * listens and serves until it gets a SIGTERM.
 *
 * Return: an array of strings; NULL: there is nothing to serve
 */
json_t *disks_server(const struct disks *d, const char *listen, const char *pidfile);

/* Bytes that the overlays of so many children need at once in a scratch folder */
uint64_t disks_room(const struct disks *d, unsigned children);

/* Whether the parent's overlays can be made where they are to be, with room for each as in a
 * scratch folder. @scratch: one that needs @bytes as well, perhaps of the same file system; NULL:
 * none. -ENOSPC, -EROFS and others */
int disks_check_overlays(const struct disks *d, const char *scratch, uint64_t bytes,
                         struct ff_error *why);

/* With @in.awaited: the images that the parent needs overlays on. And once they are there: @block,
 * query-block asked again, has to show a new one right on each. -EPROTO: it does not */
json_t *disks_awaited(const struct disks *d);
int disks_take_over(struct disks *d, const json_t *block, struct ff_error *why);

/* The names of all that is frozen, and of all that it stands on */
json_t *disks_chains(const struct disks *d);

/* disks_busy.c: what was told to a QEMU at run time about its disks, as it answers; @graph NULL: it does not */
struct disks_busy {
    const json_t *argv, *jobs, *exports, *nodes, *graph; /* query-jobs, -block-exports, -named-block-nodes */
    bool fork;
};
/* -EBUSY: a job, an export that writes or a filter, which another QEMU would not have. Notes name exports
 * that are read; NULL: none */
int disks_check_busy(const struct disks_busy *b, struct strv *notes, struct ff_error *why);
/* Likewise, asked of @q */
int disks_ask_busy(struct qmp *q, const json_t *argv, bool fork, struct strv *notes, struct ff_error *why);

/* disks_held.c: whether each file of @nodes (query-named-block-nodes) is still there by its name, as process @pid has
 * it open. -ESTALE: another one is, -EACCES and others: it cannot be seen */
int disks_check_held(pid_t pid, const char *cwd, const json_t *block, const json_t *nodes, struct ff_error *why);

/* Their names, but for firmware: a machine there writes its own anew */
json_t *disks_files(const char *cwd, const json_t *block, const json_t *nodes);

/* disks_shared.c: writable disks whose devices have share-rw=on, of @block: [{"disk", "file"}] */
int disks_ask_shared(struct qmp *q, const char *cwd, const json_t *block, json_t **out, struct ff_error *why);
/* -ENOTSUP: there is one, which cannot have an overlay */
int disks_refuse_shared(struct qmp *q, const char *cwd, const json_t *block, struct ff_error *why);

/* For the summary: [{"disk", "frozen", "format", "parent-overlay", "parent-node"}] */
json_t *disks_summary(const struct disks *d);

#endif
