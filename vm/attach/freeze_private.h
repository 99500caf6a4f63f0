/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * freeze_private.h - between freeze*.c
 */
#ifndef FF_VM_ATTACH_FREEZE_PRIVATE_H
#define FF_VM_ATTACH_FREEZE_PRIVATE_H

#include <pthread.h>

#include "freeze.h"
#include "inject.h"
#include "stopped.h"

#define FREEZE_PIECE (32u << 20) /* of what is unmapped at once */

struct freeze_work { /* of a block */
    uint64_t len;             /* as much as is mapped */
    bool has_file;            /* what nobody touched may hold something */
    bool is_shared;           /* its file becomes the image */
    int fd;                   /* of that file, here, or for reading of one that is behind a private view; -1: none */
    uint64_t fd_offset;
    int *numbers;             /* descriptors there by which it can be written */
    unsigned n_numbers;
    int number, reader;       /* of them one; and one that only reads; -1: none */
    uint64_t view, away;      /* addresses there: to be mapped over the block; for its page tables. 0: none */
    bool is_frozen, is_away;
};

struct freeze;
typedef int freeze_job(struct freeze *z);

struct freeze {
    pid_t pid;
    int mark;                 /* as long as it is open, what is there is ours: freeze_left.c */
    int pidfd;                /* of it: its number may be another's once it has ended */
    const struct outside_block *b;
    unsigned n;
    bool no_dump;
    struct freeze_work *work;
    struct inject_how how;
    pthread_t thread;
    pthread_mutex_t there;    /* one call at a time in a process that goes on */
    pthread_mutex_t lock;
    pthread_cond_t changed;
    freeze_job *job;          /* for the thread, under @lock; NULL: none */
    bool over, has_ended;     /* ended: a thread of that process did not stop, and only so is it let go of */
    bool is_armed;
    struct stopped_at at;
    int rc;
    struct ff_error why;
    /* the thread's */
    struct stopped s;
    pid_t copy;               /* 0: none yet */
    int copy_signal;
    bool copy_ended;
    /* the caller's */
    bool is_prepared, is_taken, is_left, is_reaped;
};

/* --- freeze_prepare.c --- */

/* Refuse what must not be frozen; then make ready there, of which freeze_unprepare() leaves nothing */
int freeze_look(struct freeze *z, struct ff_error *err);
int freeze_look_again(struct freeze *z, struct ff_error *err); /* once all threads stand: what it has opened since */
int freeze_prepare(struct freeze *z, struct ff_error *err);

/* What is there for the freeze alone, but for page tables that moved away */
void freeze_unprepare(struct freeze *z);

/* --- freeze_there.c --- */

/* inject_run(), unless that process has ended: -ESRCH */
int freeze_run_there(struct freeze *z, inject_fn *fn, void *opaque, struct ff_error *err);

/* Bit by bit */
int freeze_unmap(struct freeze *z, uint64_t at, uint64_t len, uint64_t piece);

/* --- freeze_left.c --- */

/* What processes have left there that were killed: removed, if nobody lives who has something there. Then it is said that this
 * one has, until @z->mark is closed */
int freeze_take_over(struct freeze *z, struct ff_error *err);

#endif
