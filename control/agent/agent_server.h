/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * agent_server.h - children by a fork server, where their program is one; else by exec
 */
#ifndef FF_CONTROL_AGENT_AGENT_SERVER_H
#define FF_CONTROL_AGENT_AGENT_SERVER_H

#include <stdbool.h>
#include <sys/types.h>

#include "process.h"

struct fork_server {
    int sock;      /* -1: there is none */
    pid_t pid;     /* 0: it has been waited for */
    char *program;
    bool ready;    /* it has said so */
};

#define FORK_SERVER_NONE (struct fork_server){.sock = -1}

/* Start @program as one, and this process as who gets its children. It only saves time: what goes
 * wrong is found out by agent_server_start(), which does without */
void agent_server_begin(struct fork_server *s, const char *program);
void agent_server_end(struct fork_server *s);

/* As ff_process_exec(). What a server has failed to start does not run */
int agent_server_start(struct fork_server *s, const struct ff_process *p, pid_t *pid,
                       int *exec_status_fd, struct ff_error *err);

/* @pid is about to be waited for */
void agent_server_ended(struct fork_server *s, pid_t pid);

#endif
