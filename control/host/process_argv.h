/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * process_argv.h - what a process of this host was started with, and what it uses
 */
#ifndef FF_CONTROL_HOST_PROCESS_ARGV_H
#define FF_CONTROL_HOST_PROCESS_ARGV_H

#include <stdint.h>
#include <sys/types.h>

#include "error.h"
#include "strv.h"

/* The words of /proc/PID/cmdline, added to @out: 0; -ESRCH: it has ended; or why they cannot be read */
int process_argv(pid_t pid, struct strv *out, struct ff_error *why);

/* The batch job that it is part of: as its cgroup says, where Slurm has made one, else its environment. An
 * identifier; "": none, or it may not be looked at */
char *process_job(pid_t pid);

/* Its memory; of what others have, too, a part (Pss). 0: nobody says */
uint64_t process_pss_bytes(pid_t pid);

#endif
