/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * process_limits.h - what a process was given beside its command line
 */
#ifndef FF_CONTROL_HOST_PROCESS_LIMITS_H
#define FF_CONTROL_HOST_PROCESS_LIMITS_H

#include <sys/types.h>

#include "strv.h"

/**
 * process_limits_of() - what process @pid has that this one has not, and so nothing that it starts
 * @threads: more threads of it, whose scheduling counts; ends with 0; may be NULL
 * @groups:  where cgroup2, or version 1's folders of controllers, are mounted: "/sys/fs/cgroup"
 * @out:     words for a person, as "nice -5", each once
 *
 * CPU affinity, scheduling, rlimits (of open files the hard one: QEMU and forks raise the other),
 * oom_score_adj, limits of its cgroup and of those above, up to one that this process is in, too.
 * What cannot be read is said to be unknown.
 */
void process_limits_of(pid_t pid, const pid_t *threads, const char *groups, struct strv *out);

/* The part about cgroups: of @its and those above, but for those that @own is in; "" is the root one. @controller: "" of
 * cgroup2, or one of version 1 */
void process_limits_of_group(const char *controller, const char *its, const char *own, const char *groups,
                             struct strv *out);

#endif
