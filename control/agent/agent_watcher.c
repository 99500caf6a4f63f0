/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * agent_watcher.c - a process beside the agent that may attach to the QEMUs which the agent starts
 */
/**
 * DOC: Theory of Operation
 *
 * Picture      agent --fork, before it is confined--> watcher
 *                | confined, makes its run directory       |
 *                +-- a listening socket, by a pair ------->+ watcher_serve()
 *              Whoever needs it connects to DIR/watcher: vm/attach/watcher.h
 * Ownership    the watcher ends when the agent has, and nobody is served.
 * Failure      where it cannot be started the agent fails, before it has anything; where it has ended, who
 *              connects says so.
 */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "agent_state.h"
#include "fd_pass.h"
#include "xalloc.h"
#include "watcher.h"

/* Nothing of the agent's but its end of the pair: who launched the agent waits for the ends of its pipes */
static void leave_descriptors(int *pair)
{
    int null = open("/dev/null", O_RDWR | O_CLOEXEC);

    for (int fd = 0; fd <= 2 && null >= 0; fd++)
        dup2(null, fd);
    if (dup2(*pair, 3) == 3) {
        *pair = 3;
        close_range(4, ~0u, 0);
    }
}

static void be_watcher(int pair, pid_t agent)
{
    int listener = -1;
    char x;

    leave_descriptors(&pair);
    prctl(PR_SET_NAME, "farfork-watcher");
    prctl(PR_SET_DUMPABLE, 0); /* an agent of an ordinary user may not write to its memory */
    signal(SIGINT, SIG_IGN); /* the agent's end is its own */
    signal(SIGHUP, SIG_IGN);
    if (!ff_fd_receive(pair, &x, 1, &listener) && listener >= 0)
        watcher_serve(listener, pair, agent);
    _exit(0);
}

int agent_watcher_begin(struct agent *a, struct ff_error *why)
{
    const pid_t agent = getpid();
    int pair[2];

    a->watcher_fd = -1;
    if (!a->watcher || (a->unconfined && !a->listen)) /* who is not confined may do it itself; a child is ended by it, too */
        return 0;
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair))
        return ff_error_set(why, errno, "watcher: socketpair: %s", strerror(errno));
    pid_t pid = fork();
    if (!pid) {
        close(pair[0]);
        be_watcher(pair[1], agent);
    }
    close(pair[1]);
    if (pid < 0) {
        close(pair[0]);
        return ff_error_set(why, errno, "watcher: fork: %s", strerror(errno));
    }
    a->watcher_fd = pair[0];
    return 0;
}

int agent_watcher_listen(struct agent *a, struct ff_error *why)
{
    FF_AUTO_FREE char *path = xprintf("%s/" AGENT_WATCHER_SOCKET, a->dir);
    struct sockaddr_un at = {.sun_family = AF_UNIX};

    if (a->watcher_fd < 0)
        return 0;
    if (strlen(path) >= sizeof(at.sun_path))
        return ff_error_set(why, ENAMETOOLONG, "watcher %s: too long", path);
    strcpy(at.sun_path, path);
    FF_AUTO_CLOSE int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    mode_t old = umask(0177);
    int rc = fd < 0 || bind(fd, (struct sockaddr *)&at, sizeof(at)) || listen(fd, 4);
    umask(old);
    if (rc)
        return ff_error_set(why, errno, "watcher %s: %s", path, strerror(errno));
    rc = ff_fd_send(a->watcher_fd, "l", 1, fd);
    if (rc)
        return ff_error_set(why, -rc, "watcher: %s", strerror(-rc));
    return 0;
}
