/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * leash.h - a process that stands still when it is told to, and does not outlive who holds it
 */
/**
 * DOC: Theory of Operation
 *
 * Purpose      what hold.h does by tracing, for a process that runs meanwhile, and whose holder may be forbidden to trace.
 *
 * Picture      holder: the end of a pipe to write to      the other end: that process has it open
 *              the holder ends in whatever way -> nobody can write any more -> the kernel sends SIGKILL to that
 *              process: F_SETOWN, F_SETSIG and O_ASYNC of the end to read from
 * Invariants   1. The signal is the kernel's: it comes however the holder ended, and whatever the other process waits for.
 *              2. F_SETOWN means the process, not its number.
 *              3. leash_stop() returns when no thread of that process can run code of its own: SIGSTOP has
 *                 reached each of them. A thread that waits in the kernel for what no signal ends has not been reached.
 * Limits       That process has to keep the descriptor. SIGCONT, by whoever may send it, ends leash_stop()'s effect.
 * Sources      fcntl(2), pipe_release() in fs/pipe.c
 */
#ifndef FF_VM_ATTACH_LEASH_H
#define FF_VM_ATTACH_LEASH_H

#include <stdbool.h>
#include <sys/types.h>

#include "error.h"

struct leash {
    pid_t pid;
    int pidfd;
    int kept, given; /* the pipe: @given is to be passed to that process */
};

/* @l is set, also on failure: leash_end() may follow. Return: 0; -ESRCH; -EPERM: it is of another user; else -errno */
int leash_begin(struct leash *l, pid_t pid, struct ff_error *err);

/* SIGSTOP; returns once it stands still, or has ended: false. It waits without end */
bool leash_stop(const struct leash *l);
void leash_go(const struct leash *l);   /* SIGCONT */
void leash_kill(const struct leash *l); /* SIGKILL */

/* The end of this process is of no matter to that one any more */
void leash_end(struct leash *l);

#endif
