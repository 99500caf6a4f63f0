/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * process_look.c - whether a process has ended, by its number and the time at which it was started
 */
/**
 * DOC: Theory of Operation
 *
 * Purpose      decide whether a process has ended. Callers take a guest back and remove files on that
 *              answer, so an unreadable /proc (none, another PID namespace's, hidepid=, no free
 *              descriptor) gives PROCESS_UNKNOWN, not PROCESS_GONE.
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "cleanup.h"
#include "rundir.h"
#include "strv.h"

/* /proc shows the processes of this PID namespace, and not those of another */
static bool is_own_proc(void)
{
    char text[24] = "";

    return readlink("/proc/self", text, sizeof(text) - 1) > 0 && atoi(text) == (int)getpid();
}

/* The line of /proc/PID/stat; false: it cannot be read */
static bool read_process_stat(pid_t pid, char *text, size_t size)
{
    FF_AUTO_FREE char *path = xprintf("/proc/%d/stat", (int)pid);
    int fd = is_own_proc() ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    ssize_t n = fd < 0 ? -1 : read(fd, text, size - 1);

    if (fd >= 0)
        close(fd);
    text[n > 0 ? n : 0] = '\0';
    return n > 0;
}

uint64_t process_start_time(pid_t pid)
{
    char text[1024];
    unsigned long long start = 0;
    long threads = 0; /* of one whose first has ended: the others have its files open yet */

    if (pid <= 0)
        return 0;
    if (!read_process_stat(pid, text, sizeof(text))) /* no /proc, or one that hides it; no descriptor is left */
        return kill(pid, 0) && errno == ESRCH ? 0 : START_UNKNOWN;
    char *end = strrchr(text, ')'); /* the name in front of it may hold anything */
    if (!end || sscanf(end, ") %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %*u %*u %*d %*d %*d %*d "
                            "%ld %*d %llu", &threads, &start) != 2)
        return START_UNKNOWN;
    return end[2] == 'Z' && threads < 2 ? 0 : start;
}

enum process_state process_look(pid_t pid, uint64_t start)
{
    if (!start)
        return PROCESS_GONE;
    if (start == START_ELSEWHERE)
        return PROCESS_UNKNOWN;
    uint64_t now = process_start_time(pid);
    if (!now)
        return PROCESS_GONE;
    if (now == START_UNKNOWN || start == START_UNKNOWN)
        return PROCESS_UNKNOWN;
    return now == start ? PROCESS_ALIVE : PROCESS_GONE;
}

bool process_is(pid_t pid, uint64_t start)
{
    return process_look(pid, start) == PROCESS_ALIVE;
}

void process_signal(pid_t pid, uint64_t start, int number, int limit_ms)
{
    struct pollfd ended = {.fd = (int)syscall(SYS_pidfd_open, pid, 0), .events = POLLIN};

    if (ended.fd < 0)
        return;
    if (process_is(pid, start) && !syscall(SYS_pidfd_send_signal, ended.fd, number, NULL, 0))
        poll(&ended, 1, limit_ms);
    close(ended.fd);
}

double process_age_s(pid_t pid)
{
    struct timespec now;
    uint64_t start = process_start_time(pid);

    clock_gettime(CLOCK_BOOTTIME, &now);
    return start && start != START_UNKNOWN
               ? (double)now.tv_sec + (double)now.tv_nsec / 1e9 - (double)start / (double)sysconf(_SC_CLK_TCK)
               : 0;
}
