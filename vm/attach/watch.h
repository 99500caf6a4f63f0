/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * watch.h - a userfaultfd over the memory of another process
 */
#ifndef FF_VM_ATTACH_WATCH_H
#define FF_VM_ATTACH_WATCH_H

#include "outside.h"
#include "qmp.h"

struct watch {
    pid_t pid;
    int fd;    /* the userfaultfd, a duplicate: the caller's */
    int there; /* its number in that process, which keeps it until watch_end() */
    int by;    /* watcher.h: who may attach; -1: this process */
    unsigned filters; /* as inject_run() has it */
    const struct outside_block *blocks; /* borrowed */
    unsigned n;
};

struct watch_device { /* /dev/userfaultfd, in a QEMU */
    int64_t set;
    int there; /* its number there; -1: none */
};

/**
 * watch_pass_device() - open /dev/userfaultfd, and pass it to the QEMU
 * @d: set; .there is -1 where this process may not open it, or the kernel has none
 *
 * Return: 0; -EPROTO; else as qmp_command_with_fd()
 */
int watch_pass_device(struct qmp *q, struct watch_device *d, struct ff_error *err);

/* When the watch has begun, or failed */
void watch_drop_device(struct qmp *q, struct watch_device *d);

/**
 * watch_begin() - watch these blocks of a process, and empty them: every page is missing then
 * @filters: as inject_run() has it
 * @device: the number of an open /dev/userfaultfd in that process; -1: it has none, and calls userfaultfd(2)
 * @b: with addresses; borrowed until watch_end()
 * @w: set, also on failure: watch_end() may follow
 *
 * What was in the memory is lost. When this process ends, that one keeps the userfaultfd: a thread that
 * touches a missing page waits, and sees no zeros.
 *
 * Cost:   a millisecond, and what freeing the pages takes
 * Return: 0; -ENOTSUP: a block is a private view of a file, or of huge pages; -EPERM: that process may not make a
 *         userfaultfd, or as inject_run(); -EINVAL: @device is something else; else as inject_run(), outside_open()
 */
int watch_begin(struct watch *w, pid_t pid, unsigned filters, int device, const struct outside_block *b, unsigned n,
                struct ff_error *err);

/* Every page that is missing still reads as zeros from now on, whoever waited for it. Return: 0; -errno */
int watch_stop(const struct watch *w, struct ff_error *err);

/* Close it here, and, after watch_stop(), there. Return: as inject_run() */
int watch_end(struct watch *w, struct ff_error *err);

#endif
