/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * agent_server.c - children by a fork server, where their program is one; else by exec
 */
/**
 * DOC: Theory of Operation
 *
 * Purpose      start several children of one program by a fork server (base/process.c): the
 *              parent's QEMU, started once with -farfork-fork-server. A single child, --qemu, and a
 *              program that is no server are started by fork and exec.
 * Failure      a server that fails is ended. The child that it was asked for fails; later ones are
 *              started by exec.
 */
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "agent_server.h"
#include "error.h"
#include "strv.h"

#define OPTION "-farfork-fork-server"

void agent_server_end(struct fork_server *s)
{
    if (s->sock >= 0)
        close(s->sock); /* it ends by that, if it is one */
    if (s->pid > 0)
        kill(s->pid, SIGKILL);
    free(s->program);
    *s = FORK_SERVER_NONE;
}

void agent_server_begin(struct fork_server *s, const char *program)
{
    int sock[2], exec_status_fd;

    if (prctl(PR_SET_CHILD_SUBREAPER, 1) < 0 ||
        socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sock) < 0)
        return;
    FF_AUTO_FREE char *number = xprintf("%d", sock[1]);
    char *argv[] = {(char *)program, OPTION, number, NULL};
    const struct ff_process p = {.log = "/dev/null", .argv = argv};
    s->sock = sock[0];
    s->program = xstrdup(program);
    fcntl(sock[1], F_SETFD, 0);
    if (ff_process_exec(&p, &s->pid, &exec_status_fd, NULL))
        agent_server_end(s);
    else
        close(exec_status_fd); /* it says so itself when it is ready */
    close(sock[1]);
}

int agent_server_start(struct fork_server *s, const struct ff_process *p, pid_t *pid,
                       int *exec_status_fd, struct ff_error *err)
{
    if (s->sock >= 0 && !s->ready) {
        s->ready = !ff_process_wait_server(s->sock, err);
        if (!s->ready)
            agent_server_end(s);
    }
    if (s->sock < 0 || strcmp(p->argv[0], s->program))
        return ff_process_exec(p, pid, exec_status_fd, err);
    int rc = ff_process_fork(s->sock, p, pid, exec_status_fd, err);
    if (rc)
        agent_server_end(s);
    return rc;
}

void agent_server_ended(struct fork_server *s, pid_t pid)
{
    if (s->pid == pid)
        s->pid = 0;
}
