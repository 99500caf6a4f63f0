/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * process_limits.c - what a process was given beside its command line
 */
/**
 * DOC: Theory of Operation
 *
 * Purpose      report CPU pinning and limits that QEMU got from taskset, prlimit, choom or a unit's
 *              cgroup, and this process has not. It stands for the agent, whose limits a new QEMU
 *              has.
 * Limits       Threads are those that the caller names. In a cpuset of version 1 CPU affinity says what CPUs it has;
 *              its memory nodes are not looked at.
 * Sources      cgroups(7); Documentation/admin-guide/cgroup-v2.rst, cgroup-v1/
 */
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "cleanup.h"
#include "process_limits.h"
#include "xalloc.h"

#define LINE_BYTES 4096

static void limits_word(struct strv *out, char *word)
{
    if (strv_have(out, word))
        free(word);
    else
        strv_take(out, word);
}

/* The first line of a file, or NULL; to be freed */
static char *first_line_of(const char *path)
{
    FF_AUTO_CLOSE int fd = open(path, O_RDONLY | O_CLOEXEC);
    char text[LINE_BYTES];
    ssize_t n = fd < 0 ? -1 : read(fd, text, sizeof(text) - 1);

    if (n < 0)
        return NULL;
    text[n] = '\0';
    return xprintf("%.*s", (int)strcspn(text, "\n"), text);
}

/* --- scheduling --- */

static char *cpus_text(const cpu_set_t *set)
{
    char *out = xstrdup("");

    for (int c = 0, end; c < CPU_SETSIZE; c = end + 1) {
        end = c;
        if (!CPU_ISSET(c, set))
            continue;
        while (end + 1 < CPU_SETSIZE && CPU_ISSET(end + 1, set))
            end++;
        char *more = end > c ? xprintf("%s%s%d-%d", out, *out ? "," : "", c, end)
                             : xprintf("%s%s%d", out, *out ? "," : "", c);
        free(out);
        out = more;
    }
    return out;
}

static void compare_thread(pid_t tid, struct strv *out)
{
    cpu_set_t its, own;
    errno = 0;
    int nice = getpriority(PRIO_PROCESS, (id_t)tid), failed = errno;
    int policy = sched_getscheduler(tid);

    if (failed || policy < 0 || sched_getaffinity(tid, sizeof(its), &its) ||
        sched_getaffinity(0, sizeof(own), &own)) {
        limits_word(out, xstrdup("unknown scheduling"));
        return;
    }
    if (!CPU_EQUAL(&its, &own)) {
        FF_AUTO_FREE char *cpus = cpus_text(&its);
        limits_word(out, xprintf("CPU affinity %s", cpus));
    }
    if (nice != getpriority(PRIO_PROCESS, 0))
        limits_word(out, xprintf("nice %d", nice));
    if (policy != sched_getscheduler(0))
        limits_word(out, xprintf("scheduling policy %s", policy == SCHED_FIFO    ? "FIFO"
                                                         : policy == SCHED_RR    ? "RR"
                                                         : policy == SCHED_BATCH ? "batch"
                                                         : policy == SCHED_IDLE  ? "idle"
                                                                                 : "other"));
}

/* --- limits --- */

static void compare_rlimits(pid_t pid, struct strv *out)
{
    static const struct {
        int resource;
        const char *name;
        bool hard;
    } all[] = {{RLIMIT_AS, "address space", false},
               {RLIMIT_CPU, "CPU time", false},
               {RLIMIT_DATA, "data", false},
               {RLIMIT_FSIZE, "file size", false},
               {RLIMIT_MEMLOCK, "locked memory", false},
               {RLIMIT_NOFILE, "open files", true},
               {RLIMIT_NPROC, "processes", false},
               {RLIMIT_RTPRIO, "realtime priority", false},
               {RLIMIT_STACK, "stack", false}};
    struct rlimit its, own;

    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++) {
        if (prlimit(pid, all[i].resource, NULL, &its) || getrlimit(all[i].resource, &own)) {
            limits_word(out, xstrdup("unknown limits"));
            return;
        }
        rlim_t a = all[i].hard ? its.rlim_max : its.rlim_cur;
        if (a == (all[i].hard ? own.rlim_max : own.rlim_cur))
            continue;
        limits_word(out, a == RLIM_INFINITY
                             ? xprintf("no limit of %s", all[i].name)
                             : xprintf("limit of %s %llu", all[i].name, (unsigned long long)a));
    }
}

static void compare_oom(pid_t pid, struct strv *out)
{
    FF_AUTO_FREE char *path = xprintf("/proc/%d/oom_score_adj", (int)pid);
    FF_AUTO_FREE char *its = first_line_of(path), *own = first_line_of("/proc/self/oom_score_adj");

    if (!its || !own)
        limits_word(out, xstrdup("unknown oom_score_adj"));
    else if (strcmp(its, own))
        limits_word(out, xprintf("oom_score_adj %s", its));
}

/* --- cgroups --- */

/* The group in "NUMBER:CONTROLLER,...:/GROUP"; NULL: @controller, "" of cgroup2, is not in this line */
static const char *group_in(const char *line, const char *controller)
{
    const char *list = strchr(line, ':'), *colon = list ? strchr(list + 1, ':') : NULL;
    size_t n = strlen(controller);

    if (!colon || colon[1] != '/')
        return NULL;
    for (list++;; list++) {
        size_t len = strcspn(list, ",:");
        if (len == n && !strncmp(list, controller, n))
            return colon + 1;
        list += len;
        if (list == colon)
            return NULL;
    }
}

/* Its group of @controller, "" for the root one; NULL: it has none */
static char *cgroup_of(const char *process, const char *controller)
{
    FF_AUTO_FREE char *path = xprintf("/proc/%s/cgroup", process), *line = NULL;
    FILE *f = fopen(path, "re");
    const char *at;
    char *group = NULL;
    size_t room = 0;

    while (f && !group && getline(&line, &room, f) > 0)
        if ((at = group_in(line, controller)))
            group = xprintf("%.*s", (int)strcspn(at, "\n"), at);
    if (f)
        fclose(f);
    if (group && !strcmp(group, "/"))
        *group = '\0';
    return group;
}

/* It is @group, or below it */
static bool is_within(const char *own, const char *group)
{
    size_t n = strlen(group);

    return !strncmp(own, group, n) && (!own[n] || own[n] == '/');
}

struct limit_file {
    const char *file, *none; /* the beginning of what stands there without a limit */
};

static const struct limit_file new_files[] = {
    {"cpu.max", "max"},     {"cpu.weight", "100"}, {"cpuset.cpus", ""}, {"cpuset.mems", ""}, {"io.max", ""},
    {"memory.max", "max"}, {"memory.high", "max"}, {"pids.max", "max"}, {NULL, NULL}};

/* Version 1: each controller has groups of its own, in a folder of its name */
static const struct {
    const char *controller;
    struct limit_file files[5];
} old_files[] = {{"cpu", {{"cpu.cfs_quota_us", "-1"}, {"cpu.shares", "1024"}}},
                 {"memory", {{"memory.limit_in_bytes", "92233720368547"}}}, /* 2^63, less a page of any size */
                 {"pids", {{"pids.max", "max"}}},
                 {"blkio", {{"blkio.throttle.read_bps_device", ""}, {"blkio.throttle.write_bps_device", ""},
                            {"blkio.throttle.read_iops_device", ""}, {"blkio.throttle.write_iops_device", ""}}}};

static void read_group(const char *groups, const char *group, const struct limit_file *f, struct strv *out)
{
    for (; f->file; f++) {
        FF_AUTO_FREE char *path = xprintf("%s%s/%s", groups, group, f->file);
        FF_AUTO_FREE char *value =
            first_line_of(path); /* a controller that is not there limits nothing */
        size_t n = strlen(f->none);
        if (value && *value && (!n || strncmp(value, f->none, n)))
            limits_word(out, xprintf("%s %s", f->file, value));
    }
}

static void read_groups(const char *its, const char *own, const char *groups, const struct limit_file *files,
                        struct strv *out)
{
    FF_AUTO_FREE char *group = xstrdup(its);

    for (char *slash; *group && !is_within(own, group); *slash = '\0') {
        read_group(groups, group, files, out);
        slash = strrchr(group, '/');
        if (!slash)
            return;
    }
}

void process_limits_of_group(const char *controller, const char *its, const char *own, const char *groups,
                             struct strv *out)
{
    FF_AUTO_FREE char *folder = xprintf("%s/%s", groups, controller);

    if (!*controller)
        read_groups(its, own, groups, new_files, out);
    for (size_t i = 0; i < FF_ARRAY_LEN(old_files); i++)
        if (!strcmp(old_files[i].controller, controller))
            read_groups(its, own, folder, old_files[i].files, out);
}

static void compare_groups(pid_t pid, const char *controller, const char *groups, struct strv *out)
{
    FF_AUTO_FREE char *process = xprintf("%d", (int)pid);
    FF_AUTO_FREE char *its = cgroup_of(process, controller), *own = cgroup_of("self", controller);

    if (its && own)
        process_limits_of_group(controller, its, own, groups, out);
}

void process_limits_of(pid_t pid, const pid_t *threads, const char *groups, struct strv *out)
{
    compare_thread(pid, out);
    for (; threads && *threads; threads++)
        compare_thread(*threads, out);
    compare_rlimits(pid, out);
    compare_oom(pid, out);
    compare_groups(pid, "", groups, out);
    for (size_t i = 0; i < FF_ARRAY_LEN(old_files); i++)
        compare_groups(pid, old_files[i].controller, groups, out);
}
