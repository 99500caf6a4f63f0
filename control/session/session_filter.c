/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * session_filter.c - whether the guest's QEMU has lost the -sandbox that it was started with
 */
/**
 * DOC: Theory of Operation
 *
 * Purpose      The command line of a QEMU is memory of that QEMU. A compromised QEMU can remove
 *              -sandbox from it, to run unfiltered elsewhere. The kernel counts a process's seccomp
 *              filters, which cannot be removed: more than the parent process has means -sandbox.
 * Limits       a filter that something else set between the two (SystemCallFilter= of a unit) is
 *              taken for -sandbox: --unconfined is for that. A weakened -sandbox is not detected.
 * Sources      proc_pid_status(5), seccomp(2)
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "qemu_opts.h"
#include "session.h"

struct filters {
    int parent, n; /* -1: not known */
};

static struct filters filters_of(pid_t pid)
{
    FF_AUTO_FREE char *path = xprintf("/proc/%d/status", (int)pid), *line = NULL;
    struct filters f = {.parent = -1, .n = -1};
    FILE *in = fopen(path, "re");
    int mode, n = -1;
    size_t room = 0;

    while (in && getline(&line, &room, in) > 0) {
        sscanf(line, "PPid: %d", &f.parent);
        if (sscanf(line, "Seccomp: %d", &mode) == 1)
            f.n = mode ? 1 : 0;
        if (sscanf(line, "Seccomp_filters: %d", &n) == 1) /* since Linux 5.9 */
            f.n = n;
    }
    if (in)
        fclose(in);
    return f;
}

/* The first process above that runs another program: one that was taken over may have forked, and speak
 * by its child, which has no filter more than it */
static struct filters filters_above(struct filters own, const struct stat *program)
{
    struct stat st;

    for (; own.parent > 0; own = filters_of(own.parent)) {
        FF_AUTO_FREE char *path = xprintf("/proc/%d/exe", own.parent);
        if (stat(path, &st) < 0 || st.st_dev != program->st_dev || st.st_ino != program->st_ino)
            return filters_of(own.parent);
    }
    /* started from outside of this container: as what else came in */
    return filters_of(getpid());
}

static bool has_sandbox(const struct strv *argv)
{
    bool on = false;

    for (size_t i = 1; i + 1 < argv->n; i++) {
        bool is = qemu_option_is(argv->v[i], "sandbox");
        FF_AUTO_FREE char *value = is ? qemu_opts_get_first(argv->v[i + 1], "enable") : NULL;
        on |= value && (!strcmp(value, "on") || !strcmp(value, "yes") || !strcmp(value, "true"));
    }
    return on;
}

int session_check_filter(const struct session *s, struct ff_error *why)
{
    FF_AUTO_FREE char *path = xprintf("/proc/%d/exe", (int)s->parent_pid);
    const struct filters own = filters_of(s->parent_pid);
    struct stat program = {0};
    stat(path, &program); /* where it cannot be seen no parent has it */
    const int other = filters_above(own, &program).n;

    if (s->o.unconfined || has_sandbox(&s->parent_argv) || (own.n >= 0 && own.n <= (other > 0 ? other : 0)))
        return 0;
    if (own.n < 0)
        return ff_error_set(why, EACCES, "/proc/%d/status: whether it has a filter of system calls cannot be seen: as root it can; else "
                            "give --unconfined if it was started without -sandbox", (int)s->parent_pid);
    return ff_error_set(why, EPERM,
                        "its QEMU (pid %d) has %d filters of system calls, its parent process %d, and no -sandbox is on its "
                        "command line, which a QEMU that was taken over can change. If another program has set the filter "
                        "(SystemCallFilter= of a unit) or the agent that started it has died, give --unconfined",
                        (int)s->parent_pid, own.n, other > 0 ? other : 0);
}
