/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * freeze_left.c - what a process that froze this one, and was killed, has left in it; see freeze.h
 */
/**
 * DOC: Theory of Operation
 *
 * Purpose      views of a memfd that were to come over a block, its page tables that were moved away, descriptors that read it
 *              and copies that have ended: each is as large as the guest, or a process more.
 * Picture      flock(2) of /proc/PID/smaps, shared, for as long as a process has something there; who gets it for itself knows
 *              that what is there is nobody's
 * Invariants   1. Nothing is taken away from a process that lives: it would unmap later what is another's by then.
 *              2. A mapping of a block's memfd that is no block is a freeze's: a QEMU maps its memory once.
 * Limits       Addresses that were reserved stay so: nothing says whose they are. So does a descriptor of a memfd that has
 *              become an image, since those that QEMU has read it alone, too.
 * Sources      flock(2), wait(2)
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include "cleanup.h"
#include "freeze_private.h"
#include "xalloc.h"

#define ENDED_MAX 1000 /* copies: of so many forks */

static bool only_reads(pid_t pid, int number)
{
    FF_AUTO_FREE char *path = xprintf("/proc/%d/fdinfo/%d", (int)pid, number);
    unsigned flags = O_RDWR;
    char line[128];
    FILE *f = fopen(path, "re");

    while (f && fgets(line, sizeof(line), f))
        if (sscanf(line, "flags: %o", &flags) == 1)
            break;
    if (f)
        fclose(f);
    return (flags & O_ACCMODE) == O_RDONLY;
}

/* Of a memfd that QEMU still has for writing: descriptors that read it are a freeze's. Copies have no signal at their end,
 * as no other child of a QEMU */
static int take_away_there(struct inject *in, void *opaque, struct ff_error *err)
{
    const uint64_t any[INJECT_ARGS] = {UINT64_MAX, 0, WNOHANG | __WCLONE, 0};
    struct freeze *z = opaque;
    int64_t got = 1;
    int rc = 0;

    for (unsigned i = 0; i < z->n && !rc; i++)
        for (unsigned k = 0; k < z->work[i].n_numbers && !rc; k++) {
            const uint64_t args[INJECT_ARGS] = {(uint64_t)z->work[i].numbers[k]};

            if (only_reads(z->pid, z->work[i].numbers[k]))
                rc = inject_call(in, SYS_close, args, &got, err);
        }
    got = 1;
    for (int i = 0; i < ENDED_MAX && !rc && got > 0; i++)
        rc = inject_call(in, SYS_wait4, any, &got, err);
    return rc;
}

static int take_away(struct freeze *z, struct ff_error *err)
{
    FF_AUTO_FREE struct outside_mapping *m = NULL;
    uint64_t piece = FREEZE_PIECE;
    unsigned n = 0;
    int rc = outside_list_others(z->pid, z->b, z->n, &m, &n, err);

    for (unsigned i = 0; i < z->n; i++)
        piece = FF_MAX(piece, (uint64_t)z->b[i].psize);
    for (unsigned i = 0; i < n && !rc; i++)
        if (freeze_unmap(z, m[i].at, m[i].len_bytes, piece))
            rc = ff_error_set(err, EIO, "process %d: what a process that was killed has left there cannot be unmapped", (int)z->pid);
    if (!rc)
        rc = freeze_run_there(z, take_away_there, z, err);
    return rc ? rc : freeze_look_again(z, err);
}

int freeze_take_over(struct freeze *z, struct ff_error *err)
{
    FF_AUTO_FREE char *path = xprintf("/proc/%d/smaps", (int)z->pid);

    z->mark = open(path, O_RDONLY | O_CLOEXEC);
    if (z->mark < 0)
        return ff_error_set(err, errno, "%s: open: %s", path, strerror(errno));
    int rc = flock(z->mark, LOCK_EX | LOCK_NB) ? 0 : take_away(z, err);
    if (!rc && flock(z->mark, LOCK_SH | LOCK_NB))
        rc = ff_error_set(err, errno, "%s: lock: %s", path, strerror(errno));
    return rc;
}
