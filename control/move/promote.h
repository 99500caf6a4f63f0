/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * promote.h - a child of a fork takes its parent's place
 */
/**
 * DOC: Theory of Operation
 *
 * Purpose      of ten children that tried something the best one is kept: it goes on as the guest that the parent was, with the
 *              parent's name, QMP socket, NICs and addresses. What the parent did since the fork is given up.
 *
 * Picture      a move of the child to the parent's host, by attaching (move.c), but for this:
 *              QEMU there        the parent's command line, with the child's images        promote_take_place()
 *              its memory        the image of the fork is here, in files of an agent, which
 *                                a child maps privately: read there; what the child has written
 *                                travels                                                   attach_return.c: --image, --view
 *                                It is there where an agent of the same fork is on the parent's host; else all memory travels.
 *                                Agents name images by what they hold (ff_agent_image_name())
 *              the parent        stands still before READY; GO ends it, no GO lets it go on
 *                                                                                          attach_replace.c: --replaces
 *              disks             the child's overlays are the guest's disks from then on: no agent removes them
 *                                                                                          promote_keep_disks()
 *              its NICs          the parent's taps, descriptor by descriptor, while it stands still      vm/attach/taps.h
 *                                its forwarded ports, once it has ended                  promote_ports()
 *              its socket        becomes a symbolic link to the new QEMU's                 attach_replace.c
 * Invariants   1. move.c's: the child runs until GO, in its own QEMU, and never in both.
 *              2. The parent runs until the new QEMU is loaded, and never after GO: attach_replace.c.
 *              3. An overlay of the child's is in no agent's record from `migrate` on, or is there again when the child stays.
 *              4. No file of the parent's is written or removed, but with --commit: then the image that was frozen is written, once
 *                 the guest has all of its memory, the parent has ended, and nobody else uses that image (promote_commit.c).
 * Failure      before GO: child and parent go on as before. After it: as of a move; the parent has ended.
 * Limits       it runs on the child's host; disks have to be seen on both. What else two QEMUs of one host cannot have at once (a
 *              socket that a NIC binds, a port for VNC) makes the new QEMU refuse to start: nothing has happened then.
 */
#ifndef FF_CONTROL_MOVE_PROMOTE_H
#define FF_CONTROL_MOVE_PROMOTE_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "error.h"
#include "strv.h"

struct move;

struct promote {
    char *child;          /* FORK.NUMBER */
    char *child_qmp, *parent_qmp;
    pid_t child_pid;
    char *image;          /* its name, for both sides */
    const char *host;     /* the parent's, HOST[=ADDRESS]; borrowed */
    bool is_here;
    bool commit, committed; /* --commit; an overlay was */
    pid_t view;           /* a process there with private views of that image; 0: none */
    uint64_t view_start;
    pid_t parent_pid;
    uint64_t parent_start;
    bool parent_ran;      /* before */
    bool parent_is_back;  /* it goes on, or was never stopped */
    struct strv given_up; /* images that the parent writes to */
    struct strv overlays; /* the child's, off its agent's record */
    char *record;         /* folder of that */
    unsigned number;
    uint64_t came_bytes;  /* of its memory */
};

/**
 * promote_find() - the child that is meant, of the forks on this host
 * @child: FORK.NUMBER, or the QMP socket of its QEMU
 * @parent: the parent's QMP socket, on its host; NULL: that of the fork
 *
 * Return: 0; -ENOENT, -ESRCH, -ENOTUNIQ
 */
int promote_find(struct promote *p, const char *base, const char *child, const char *parent, struct ff_error *why);
void promote_free(struct promote *p);

/**
 * promote_look() - what is to be known of a parent on this host, as JSON for promote_take_place()
 * @image: name of the image whose views are looked for; "": none
 */
int promote_look(const char *parent, const char *base, const char *image, unsigned timeout_s, json_t **out, struct ff_error *why);

/* m->s is the child, found: from here on its command line is the parent's */
int promote_take_place(struct move *m, struct ff_error *why);
/* promote_commit.c: the guest is there, with all of its memory: with p->commit, its overlays */
void promote_commit(struct move *m);
/* promote_ports.c: the guest is there: forwarded ports of the parent's user networks */
void promote_ports(struct move *m);

/* Before `migrate`: its overlays are the guest's for good. promote_over() takes that back where it stays a child */
int promote_keep_disks(struct move *m, struct ff_error *why);
void promote_take_numbers(struct move *m, const json_t *info); /* query-migrate of the destination */
/* It is decided, and the agent is let go: notes; or the parent, which goes on */
void promote_over(struct move *m);

void promote_print_text(const struct move *m, int code);
void promote_print_json(const struct move *m, int code);

#endif
