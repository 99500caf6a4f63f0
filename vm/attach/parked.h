/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * parked.h - whether threads of a process that wait for a condition have done anything else since
 */
/**
 * DOC: Theory of Operation
 *
 * Purpose      the threads of a stopped guest's CPUs wait for QEMU to let them go on. Whether somebody did so meanwhile, and
 *              stopped it again, no command of QEMU's tells; the kernel counts how often each thread began to wait.
 * Invariants   A thread that waits, is held (hold.h) and then waits still has begun to wait once more. One that had run
 *              would not wait there, or have begun twice more: to wait again, and to be held.
 * Sources      /proc/PID/task/TID/syscall, status: proc(5)
 */
#ifndef FF_VM_ATTACH_PARKED_H
#define FF_VM_ATTACH_PARKED_H

#include <stdbool.h>
#include <sys/types.h>

#include "error.h"

struct parked {
    pid_t tid;
    char call[256];     /* the system call that it waits in, with arguments, as the kernel prints it */
    long long waits;    /* how often it has begun to wait */
};

/* Fill in all but @tid, of each. Return: 0; -ESRCH: one has ended; -EPROTO; else -errno, as of open(2) */
int parked_look(pid_t pid, struct parked *p, unsigned n, struct ff_error *err);

/* Each waited for a condition when @was was taken, and has not moved until @now. @held: but for being held in between */
bool parked_still(const struct parked *was, const struct parked *now, unsigned n, bool held);

#endif
