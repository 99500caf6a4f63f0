/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * alone.c - one process at a time attaches to a QEMU; see alone.h
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>

#include "alone.h"
#include "cleanup.h"
#include "xalloc.h"

/* Who has the lock of @fd; 0: it is of another PID namespace, or has just ended */
static int holder_of(int fd)
{
    FF_AUTO_FREE char *line = NULL;
    unsigned maj, min;
    uint64_t ino;
    size_t room = 0;
    struct stat st;
    int pid = 0, is;
    FILE *f = fstat(fd, &st) ? NULL : fopen("/proc/locks", "re");

    while (f && !pid && getline(&line, &room, f) > 0)
        if (sscanf(line, "%*d: FLOCK %*s %*s %d %x:%x:%" SCNu64, &is, &maj, &min, &ino) == 4 && maj == major(st.st_dev) &&
            min == minor(st.st_dev) && ino == st.st_ino)
            pid = is;
    if (f)
        fclose(f);
    return pid;
}

int alone_begin(pid_t pid, int *fd, struct ff_error *err)
{
    FF_AUTO_FREE char *path = xprintf("/proc/%d/maps", (int)pid);
    FF_AUTO_CLOSE int is = open(path, O_RDONLY | O_CLOEXEC);

    if (is < 0)
        return ff_error_set(err, errno, "%s: open: %s", path, strerror(errno));
    if (flock(is, LOCK_EX | LOCK_NB)) {
        const int why = errno, who = why == EWOULDBLOCK ? holder_of(is) : 0;
        FF_AUTO_FREE char *name = who > 0 ? xprintf("process %d", who) : xstrdup("another process");

        if (why != EWOULDBLOCK)
            return ff_error_set(err, why, "%s: lock: %s", path, strerror(why));
        return ff_error_set(err, EBUSY, "process %d: its guest is being moved by %s: wait until that has ended, or end it first",
                            (int)pid, name);
    }
    *fd = is;
    is = -1;
    return 0;
}
