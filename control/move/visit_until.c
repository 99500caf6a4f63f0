/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * visit_until.c - the command here that a visit lasts as long as
 */
/**
 * DOC: Theory of Operation
 *
 * Purpose      it runs in this program's terminal and folder: it is what a user sees meanwhile. $FARFORK_HOST is where
 *              the guest is. It has a process group of its own: what it has started is ended with it. Where this
 *              program is in the foreground of a terminal the command is, as a shell's: Ctrl-C reaches it alone, and its
 *              end brings the guest home. Ctrl-Z stops both, and `fg` lets both go on. With --json it prints on stderr:
 *              stdout has the object alone.
 * Failure      this program is killed: the command goes on, and nothing follows its end.
 */
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "visit.h"

extern char **environ;

/* As if it had been started by a shell: this program has taken signals for itself */
static int start_command(const char *command, bool no_stdout, pid_t *pid)
{
    posix_spawn_file_actions_t files;
    char *argv[] = {"sh", "-c", (char *)command, NULL};
    sigset_t none, defaults;
    posix_spawnattr_t attr;

    sigemptyset(&none);
    sigemptyset(&defaults);
    sigaddset(&defaults, SIGPIPE);
    sigaddset(&defaults, SIGTTOU);
    posix_spawnattr_init(&attr);
    posix_spawnattr_setsigmask(&attr, &none);
    posix_spawnattr_setsigdefault(&attr, &defaults);
    posix_spawnattr_setpgroup(&attr, 0);
    posix_spawnattr_setflags(&attr, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETPGROUP);
    posix_spawn_file_actions_init(&files);
    if (no_stdout)
        posix_spawn_file_actions_adddup2(&files, STDERR_FILENO, STDOUT_FILENO);
    int rc = posix_spawn(pid, "/bin/sh", &files, &attr, argv, environ);
    posix_spawn_file_actions_destroy(&files);
    posix_spawnattr_destroy(&attr);
    return -rc;
}

/* Where this program is in its foreground; it may have been stopped when it wanted to read before */
static void give_terminal(struct visit *v)
{
    v->until_tty = tcgetpgrp(STDIN_FILENO) == getpgrp() && !tcsetpgrp(STDIN_FILENO, v->until_pid);
    kill(-v->until_pid, SIGCONT);
}

static void take_terminal(struct visit *v)
{
    if (v->until_tty && tcgetpgrp(STDIN_FILENO) == v->until_group)
        tcsetpgrp(STDIN_FILENO, getpgrp());
    v->until_tty = false;
}

/* The shell that has started this program is to see it: in a terminal it stops, too, until it is to go on */
static void on_stopped(struct visit *v, int number)
{
    bool wants_it = isatty(STDIN_FILENO) && (number == SIGTTIN || number == SIGTTOU);

    if (!v->until_tty && !wants_it)
        return;
    take_terminal(v);
    kill(0, SIGTSTP);
    give_terminal(v);
}

int visit_until_start(struct move *m, struct ff_error *why)
{
    struct visit *v = m->visit;

    setenv("FARFORK_HOST", move_host(m)->node->host, 1);
    signal(SIGTTOU, SIG_IGN); /* this program prints while the command has the terminal, and takes it back */
    int rc = start_command(v->o.until, m->s.o.json, &v->until_pid);
    if (rc) {
        v->until_pid = 0;
        return ff_error_set(why, -rc, "--until %s: %s", v->o.until, strerror(-rc));
    }
    v->until_group = v->until_pid;
    give_terminal(v);
    v->until_fd = (int)syscall(SYS_pidfd_open, v->until_pid, 0);
    m->s.watch = v->until_fd > 0 ? v->until_fd : 0; /* else it is looked for at every turn */
    return 0;
}

bool visit_until_over(struct move *m)
{
    struct visit *v = m->visit;
    int status;

    if (!v->until_pid || waitpid(v->until_pid, &status, WNOHANG | WUNTRACED) != v->until_pid)
        return false;
    if (WIFSTOPPED(status)) {
        on_stopped(v, WSTOPSIG(status));
        return false;
    }
    take_terminal(v);
    v->until_code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    v->until_pid = 0;
    m->s.watch = 0;
    ff_close_fd(&v->until_fd);
    return true;
}

void visit_until_end(struct move *m)
{
    struct visit *v = m->visit;

    if (v->until_pid) {
        kill(-v->until_pid, v->until_asked ? SIGKILL : SIGTERM);
        kill(-v->until_pid, SIGCONT); /* one that is stopped hears it then */
    }
    v->until_asked = true;
}
