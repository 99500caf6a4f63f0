/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * process.h - processes for programs
 */
#ifndef FF_BASE_PROCESS_H
#define FF_BASE_PROCESS_H

#include <stdbool.h>
#include <sys/types.h>

#include "error.h"

/**
 * struct ff_process - a program to be started, in a process group of its own
 * @log:    its output is appended there, and it has no input; unused with @fds
 * @fds:    its descriptors 0, 1 and 2; NULL: see @log
 * @cwd:    its folder; NULL: the caller's
 * @argv:   the program and its arguments, NULL at the end
 * @before: commands that must succeed first, likewise, one after the other; NULL: none
 * @kept:   descriptors that it has, too, by the same numbers, -1 at the end; NULL: none
 * @bound:  it gets SIGTERM when the thread that starts it ends, from its first instruction on until it says otherwise
 *          (PR_SET_PDEATHSIG)
 */
struct ff_process {
    const char *log, *cwd;
    const int *fds, *kept;
    char *const *argv;
    char *const *const *before;
    bool bound;
};

/**
 * ff_process_exec() - start a program
 * @exec_status_fd: ends when the program runs; before that, a line that says why it does not.
 *                  NULL: that line goes to @p->fds[2]
 *
 * Return: 0: a process is there, the caller's child. Where the program does not run, it ends with
 *         code 127
 */
int ff_process_exec(const struct ff_process *p, pid_t *pid, int *exec_status_fd,
                    struct ff_error *err);

#endif
