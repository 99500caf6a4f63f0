/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * leash.c - a process that stands still when it is told to, and does not outlive who holds it: leash.h
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "cleanup.h"
#include "leash.h"
#include "stopped.h"
#include "xalloc.h"

#define LOOK_NS 1000000

int leash_begin(struct leash *l, pid_t pid, struct ff_error *err)
{
    struct f_owner_ex owner = {.type = F_OWNER_PID, .pid = pid};
    int ends[2];

    *l = (struct leash){.pid = pid, .pidfd = (int)syscall(SYS_pidfd_open, pid, 0), .kept = -1, .given = -1};
    if (l->pidfd < 0)
        return ff_error_set(err, errno, "process %d: %s", (int)pid, strerror(errno));
    if (syscall(SYS_pidfd_send_signal, l->pidfd, 0, NULL, 0))
        return ff_error_set(err, errno, "process %d: may not be ended: %s", (int)pid, strerror(errno));
    if (pipe2(ends, O_CLOEXEC | O_NONBLOCK))
        return ff_error_set(err, errno, "leash: make a pipe: %s", strerror(errno));
    l->given = ends[0];
    l->kept = ends[1];
    if (fcntl(l->given, F_SETOWN_EX, &owner) || fcntl(l->given, F_SETSIG, SIGKILL) ||
        fcntl(l->given, F_SETFL, O_ASYNC | O_NONBLOCK))
        return ff_error_set(err, errno, "leash: bind process %d to this one: %s", (int)pid, strerror(errno));
    return 0;
}

static bool held_is_over(const struct leash *l)
{
    struct pollfd p = {.fd = l->pidfd, .events = POLLIN};

    return poll(&p, 1, 0) > 0;
}

static bool none_runs(pid_t pid)
{
    FF_AUTO_FREE char *path = xprintf("/proc/%d/task", (int)pid);
    DIR *d = opendir(path);
    bool is_kernels, stands = d;
    struct dirent *e;

    while (stands && (e = readdir(d))) {
        char state = atoi(e->d_name) > 0 ? stopped_thread_state(pid, atoi(e->d_name), &is_kernels) : 'X';

        stands = strchr("TtZX", state) || is_kernels;
    }
    if (d)
        closedir(d);
    return stands;
}

bool leash_stop(const struct leash *l)
{
    syscall(SYS_pidfd_send_signal, l->pidfd, SIGSTOP, NULL, 0);
    while (l->pidfd >= 0 && !held_is_over(l)) {
        if (none_runs(l->pid))
            return !held_is_over(l); /* or it was another's number */
        nanosleep(&(struct timespec){.tv_nsec = LOOK_NS}, NULL);
    }
    return false;
}

void leash_go(const struct leash *l)
{
    syscall(SYS_pidfd_send_signal, l->pidfd, SIGCONT, NULL, 0);
}

void leash_kill(const struct leash *l)
{
    syscall(SYS_pidfd_send_signal, l->pidfd, SIGKILL, NULL, 0);
}

void leash_end(struct leash *l)
{
    if (l->given >= 0) /* of the file, which that process has, too */
        fcntl(l->given, F_SETFL, O_NONBLOCK);
    ff_close_fd(&l->given);
    ff_close_fd(&l->kept);
    ff_close_fd(&l->pidfd);
}
