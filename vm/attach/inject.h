/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * inject.h - system calls in another process
 */
#ifndef FF_VM_ATTACH_INJECT_H
#define FF_VM_ATTACH_INJECT_H

#include <stdint.h>
#include <sys/types.h>

#include "error.h"
#include "way_home.h"

#define INJECT_ARGS 6

/* The main thread of a process, stopped: borrowed by the function that inject_run() calls */
struct inject;
typedef int inject_fn(struct inject *in, void *opaque, struct ff_error *err);

/**
 * inject_run() - stop the main thread of a process, and let @fn make system calls in it
 * @filters: of system calls, which are known to let the calls of @fn pass; one that has more needs this process to
 *           suspend them, and the right to
 * @fn: runs in a thread of its own, which is the tracer; its other threads run on meanwhile
 *
 * x86-64 alone. Afterwards the thread goes on as if nothing had been: a call that it waited in goes
 * on waiting, a signal that came meanwhile is delivered, and a process that was stopped stays so.
 *
 * Cost:   0.3 ms and 10 us a call, as long as @fn takes; nobody may wait for that thread meanwhile
 * Return: what @fn returned; -ESRCH: the process has ended; -EPERM as outside_may(), or it has a
 *         filter of system calls (seccomp) which this process may not suspend; -EBUSY: another process
 *         traces it; -ETIMEDOUT: its thread does not stop, as one that waits for its vfork(2);
 *         -ENOTSUP: it is not a 64-bit program
 */
int inject_run(pid_t pid, unsigned filters, inject_fn *fn, void *opaque, struct ff_error *err);

/* ptrace(2), PTRACE_SEIZE: 0; -errno. It waits up to 3 s for a tracer to go: another process of ours may be that for a moment,
 * as the one of an earlier fork, which unmaps what the fork has left there. *@tracer: who it was; 0: nobody; -1: unknown */
int inject_seize(pid_t tid, long options, int *tracer);

/**
 * inject_call() - make one system call
 * @nr:     as of x86-64
 * @result: what the call returned there: -errno of its own failure is no failure here
 *
 * Pointers among @args are of that process. The call must be one that does not wait.
 *
 * Return: 0; -ESRCH, also where another program has replaced this one; -EIO: the process did not get so far;
 *         -ETIMEDOUT. After a failure every other call fails
 */
int inject_call(struct inject *in, long nr, const uint64_t args[INJECT_ARGS], int64_t *result,
                struct ff_error *err);

/* @way: of way_find(); @options: of ptrace(2), which are set, and stay so */
struct inject_how {
    unsigned filters;
    struct way way;
    long options;
};

/* As inject_run(), in the thread that traces @pid, whose main thread stands in a stop, and stays there. @signal: that it
 * was about to take, before and after */
int inject_stopped(pid_t pid, const struct inject_how *how, int *signal, inject_fn *fn, void *opaque,
                   struct ff_error *err);

/**
 * inject_fork() - fork(2)
 * @child: stands in a stop of ptrace(2), of this thread; the kernel kills it when this thread ends, in whatever way, before it
 *         has run an instruction of that program. No signal comes of its end; it is wait4(2)'s there with __WALL
 *
 * Return: 0; -ENOTSUP: no way home; -errno of fork(2); else as inject_call()
 */
int inject_fork(struct inject *in, pid_t *child, struct ff_error *err);

/* At most WAY_ROOM bytes that arguments point at, until the next call of this: 0; -ENOTSUP as above */
int inject_room(struct inject *in, const void *bytes, size_t len, uint64_t *at, struct ff_error *err);

#endif
