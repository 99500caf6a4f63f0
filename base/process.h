/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * process.h - processes for programs: by exec, or forked off one that is as good as started
 */
#ifndef FF_BASE_PROCESS_H
#define FF_BASE_PROCESS_H

#include <sys/types.h>

#include "error.h"

/**
 * struct ff_process - a program to be started, in a process group of its own
 * @log:    its output is appended there, and it has no input; unused with @fds
 * @fds:    its descriptors 0, 1 and 2; NULL: see @log
 * @cwd:    its folder; NULL: the caller's
 * @argv:   the program and its arguments, NULL at the end
 * @before: commands that must succeed first, likewise, one after the other; NULL: none
 * @kept:   descriptors that it has, too, by the same numbers, -1 at the end; NULL: none. By exec alone
 */
struct ff_process {
    const char *log, *cwd;
    const int *fds, *kept;
    char *const *argv;
    char *const *const *before;
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

/**
 * ff_process_wait_server() - wait until a process at the other end of @sock is a fork server
 * Return: 0; -EPIPE: it has ended; -EAGAIN: nothing was heard for five seconds
 */
int ff_process_wait_server(int sock, struct ff_error *err);

/**
 * ff_process_fork() - as ff_process_exec(), by a server that runs the program of @p->argv[0]
 * already
 *
 * Without @p->fds. The child is the caller's own if that is a subreaper (PR_SET_CHILD_SUBREAPER),
 * and the server its child. After an error none runs, nor will; the server is not to be asked
 * again.
 */
int ff_process_fork(int sock, const struct ff_process *p, pid_t *pid, int *exec_status_fd,
                    struct ff_error *err);

/* The server's side, which a QEMU is: see farfork-clone.h */
int ff_process_serve(int sock, int *argc, char ***argv, struct ff_error *err);

#endif
