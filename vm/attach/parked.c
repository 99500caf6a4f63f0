/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * parked.c - whether threads of a process that wait for a condition have done anything else since; see parked.h
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>

#include "cleanup.h"
#include "parked.h"

#define WAITS "\nvoluntary_ctxt_switches:" /* not those by which the kernel takes its CPU away */

/* @name of a thread's files in /proc, whole */
static int read_of_thread(pid_t pid, pid_t tid, const char *name, char *to, size_t room, struct ff_error *err)
{
    char path[64];

    snprintf(path, sizeof(path), "/proc/%d/task/%d/%s", (int)pid, (int)tid, name);
    FILE *f = fopen(path, "re");
    size_t n = f ? fread(to, 1, room - 1, f) : 0;
    int code = n ? 0 : f && !ferror(f) ? ESRCH : errno == ENOENT ? ESRCH : errno;

    if (f)
        fclose(f);
    to[n] = '\0';
    return code ? ff_error_set(err, code, "%s: read: %s", path, strerror(code)) : 0;
}

int parked_look(pid_t pid, struct parked *p, unsigned n, struct ff_error *err)
{
    char status[4096];
    int rc = 0;

    for (struct parked *one = p; one < p + n && !rc; one++) {
        rc = read_of_thread(pid, one->tid, "syscall", one->call, sizeof(one->call), err);
        if (!rc)
            rc = read_of_thread(pid, one->tid, "status", status, sizeof(status), err);
        const char *at = rc ? NULL : strstr(status, WAITS);
        if (!rc && (!at || sscanf(at + strlen(WAITS), "%lld", &one->waits) != 1))
            rc = ff_error_set(err, EPROTO, "thread %d: its status has no voluntary_ctxt_switches", (int)one->tid);
    }
    return rc;
}

static bool waits_on_futex(const struct parked *p)
{
    long nr;

    return sscanf(p->call, "%ld", &nr) == 1 && nr == SYS_futex; /* "running": no number */
}

bool parked_still(const struct parked *was, const struct parked *now, unsigned n, bool held)
{
    for (unsigned i = 0; i < n; i++)
        if (!waits_on_futex(&was[i]) || strcmp(was[i].call, now[i].call) || now[i].waits > was[i].waits + held)
            return false;
    return true;
}
