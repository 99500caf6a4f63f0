/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * watch.h - a userfaultfd over the memory of another process
 */
#ifndef FF_VM_ATTACH_WATCH_H
#define FF_VM_ATTACH_WATCH_H

#include <sys/uio.h>

#include "outside.h"
#include "qmp.h"

#define WATCH_PARTS 512u /* of one call */

struct watch {
    pid_t pid;
    int fd;    /* the userfaultfd, a duplicate: the caller's */
    int there; /* its number in that process, which keeps it until watch_end() */
    int by;    /* watcher.h: who may attach; -1: this process */
    unsigned filters; /* as inject_run() has it */
    const struct outside_block *blocks; /* borrowed */
    unsigned n;
    bool *is_shared; /* of each block; NULL: another process knows (@by) */
    bool logs;       /* writes, too */
};

/* To one that may attach, and from there */
struct watch_parts {
    uint32_t n, reserved;
    struct iovec part[WATCH_PARTS];
};

struct watch_answer {
    int32_t rc, there;
    char text[768];
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
 * @logs: the kernel logs writes, too: what lands write-protected (UFFDIO_COPY_MODE_WP) is let go of at its first write,
 *        for which nobody waits. written_look() reads that log
 * @w: set, also on failure: watch_end() may follow
 *
 * What was in the memory is lost. When this process ends, that one keeps the userfaultfd: a thread that
 * touches a missing page waits, and sees no zeros.
 *
 * Cost:   a millisecond, and what freeing the pages takes
 * Return: 0; -ENOTSUP: a block is a private view of a file, or of huge pages, or this kernel logs no writes; -EPERM: that process may not make a
 *         userfaultfd, or as inject_run(); -EINVAL: @device is something else; else as inject_run(), outside_open()
 */
int watch_begin(struct watch *w, pid_t pid, unsigned filters, int device, const struct outside_block *b, unsigned n,
                bool logs, struct ff_error *err);

/**
 * watch_discard() - these parts are missing again, whatever was installed in them
 * @part: by addresses there, each whole pages within a block; at most WATCH_PARTS
 *
 * Nobody may touch them meanwhile. Cost: 0.3 ms and 10 us a part
 * Return: 0; -EINVAL: a part is no block's; else as inject_run(), madvise(2)
 */
int watch_discard(struct watch *w, const struct iovec *part, unsigned n, struct ff_error *err);

/* Every page that is missing still reads as zeros from now on, whoever waited for it. Return: 0; -errno */
int watch_stop(const struct watch *w, struct ff_error *err);

/* Close it here, and, after watch_stop(), there. Return: as inject_run() */
int watch_end(struct watch *w, struct ff_error *err);

void watch_leave(struct watch *w); /* here alone: that process watches on */

#endif
