/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * stopped.h - every thread of a process stands in a stop of ptrace(2), of one thread here
 */
/**
 * DOC: Theory of Operation
 *
 * Picture      one thread seizes every thread of that process, until a look at them finds no new one
 *              stopped_begin_at(): first the main thread alone, which goes on from system call to system call until it has
 *              closed a certain file: what it writes there is whole then, and it has done nothing since
 * Threads      a tracer is a thread: all calls are of one, and when that ends the kernel lets them go
 * Invariants   1. A thread that is stopped makes no new one: when a look finds all of them stopped, all are.
 *              2. A signal that a thread was about to take is delivered when it goes on.
 *              3. An end of the process is left to who has to hear of it.
 * Sources      ptrace(2)
 */
#ifndef FF_VM_ATTACH_STOPPED_H
#define FF_VM_ATTACH_STOPPED_H

#include <stdatomic.h>
#include <stdbool.h>
#include <sys/types.h>

#include "error.h"

struct stopped_thread {
    pid_t tid;
    int signal; /* that it was about to take; 0: none */
    bool is_stopped, has_ended;
};

struct stopped {
    pid_t pid;
    struct stopped_thread *threads;
    unsigned n;
    struct ff_error why;
};

/* Return: 0; -ETIMEDOUT: a thread does not stop; else as inject_run(). After a failure @s->why says why, and this thread has to
 * end: one that did not stop is let go of by that alone */
int stopped_begin(struct stopped *s, pid_t pid);

/* A file, and who waits for its end */
struct stopped_at {
    dev_t dev;
    ino_t ino;
    void (*armed)(void *opaque); /* called once the main thread is looked at: what makes it write may begin */
    void *opaque;
    _Atomic bool over; /* set by another thread: nobody waits any more */
};

/**
 * stopped_begin_at() - likewise, at the moment when the main thread has closed that file
 *
 * Cost:   two switches of context for each system call that it makes from @at->armed() on
 * Return: 0; -ECANCELED: @at->over; -EIO: a write to that file failed there; else as stopped_begin(). After a failure this
 *         thread has to end: the kernel lets them go then
 */
int stopped_begin_at(struct stopped *s, pid_t pid, struct stopped_at *at);

struct stopped_thread *stopped_find(struct stopped *s, pid_t tid); /* NULL: it was not there */

/* They go on. Nothing more is to be done of a process that was ended */
void stopped_end(struct stopped *s);
void stopped_forget(struct stopped *s);

/* Of a thread, as proc_pid_stat(5) has it; 'X': it has ended. @is_kernels: it is the kernel's own, and does what the others
 * have told it to: io_uring's, vhost's */
char stopped_thread_state(pid_t pid, pid_t tid, bool *is_kernels);

#endif
