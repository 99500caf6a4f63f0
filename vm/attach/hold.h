/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * hold.h - a process that stands still, and does not outlive who holds it
 */
#ifndef FF_VM_ATTACH_HOLD_H
#define FF_VM_ATTACH_HOLD_H

#include <stdbool.h>
#include <sys/stat.h>
#include <sys/types.h>

#include "error.h"

struct hold;

/**
 * hold_begin() - stop every thread of a process
 * @out: to be given to hold_end()
 *
 * Its memory can be read meanwhile. When this process ends before hold_bind(), that one goes on.
 *
 * Cost:   half a millisecond a thread
 * Return: 0; -ETIMEDOUT: a thread does not stop; else as inject_run(). After a failure it goes on
 */
int hold_begin(pid_t pid, struct hold **out, struct ff_error *err);

/**
 * hold_begin_at(), hold_await() - likewise, from the moment on at which its main thread has closed @file
 *
 * The first returns when that may happen. Return of hold_await(): -EAGAIN: it has not within @limit_ms; after another failure,
 * too, hold_end() is due
 */
int hold_begin_at(pid_t pid, const struct stat *file, struct hold **out, struct ff_error *err);
int hold_await(struct hold *h, int limit_ms, struct ff_error *err);

/* From here on the kernel kills it when this process ends in whatever way: a source's QEMU after GO never runs
 * its guest again. Return: 0; -ESRCH: it has ended; else -errno, and it does not stand so */
int hold_bind(struct hold *h, struct ff_error *err);

/**
 * hold_let_go_of_names() - it closes what another process of its command line needs: sockets, and its ends of network devices
 *
 * After hold_bind(): it never runs again. Its memory and the files of that stay.
 *
 * Return: 0; -ESRCH: it has ended; else as inject_stopped()
 */
int hold_let_go_of_names(struct hold *h, struct ff_error *err);

/* It goes on, with @signal: 0; SIGSTOP: it stands still until SIGCONT; SIGKILL: it is ended. Nothing is sent to one that
 * has ended */
void hold_end(struct hold *h, int signal);

#endif
