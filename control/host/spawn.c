/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * spawn.c - one process here or on another host, with three pipes
 */
/**
 * DOC: Theory of Operation
 *
 * Purpose      commands, events, and what it has to complain about. All of them end with the
 *              process, and it ends with them: whatever becomes of this program, nothing stays
 *              elsewhere that was not told to.
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cleanup.h"
#include "process.h"
#include "printable.h"
#include "spawn.h"

#define END_LIMIT_MS 2000
#define LOOK_MS 5
#define STATUS_UNKNOWN 0x7f /* neither WIFEXITED() nor WIFSIGNALED() */

static int three_pipes(int p[3][2])
{
    for (int i = 0; i < 3; i++)
        if (pipe2(p[i], O_CLOEXEC) < 0) {
            while (i-- > 0) {
                close(p[i][0]);
                close(p[i][1]);
            }
            return -1;
        }
    return 0;
}

int spawn_start(struct spawn *r, char *const *argv, const char *line, struct ff_error *why)
{
    char *shell[] = {"/bin/sh", "-c", (char *)line, NULL};
    int p[3][2];

    *r = SPAWN_NONE;
    if (three_pipes(p))
        return ff_error_set(why, errno, "pipe: %s", strerror(errno));
    const struct ff_process program = {.argv = line ? shell : argv,
                                       .fds = (int[]){p[0][0], p[1][1], p[2][1]}};
    int rc = ff_process_exec(&program, &r->pid, NULL, why);
    close(p[0][0]);
    close(p[1][1]);
    close(p[2][1]);
    r->in = p[0][1];
    r->out = p[1][0];
    r->err = p[2][0];
    fcntl(r->in, F_SETFL, O_NONBLOCK);
    fcntl(r->out, F_SETFL, O_NONBLOCK);
    fcntl(r->err, F_SETFL, O_NONBLOCK);
    if (rc)
        spawn_leave(r);
    return rc;
}

void spawn_add_error(struct spawn *r, const char *line)
{
    if (!r->first)
        r->first = ff_printable(xstrdup(line));
    free(r->words);
    r->words = ff_printable(xstrdup(line));
}

static void read_errors(struct spawn *r)
{
    char *line;

    if (r->err < 0)
        return;
    int rc = jsonl_read(&r->err_lines, r->err);
    while ((line = jsonl_next(&r->err_lines)))
        if (*line)
            spawn_add_error(r, line);
    if (rc || r->err_lines.ended)
        ff_close_fd(&r->err);
}

bool spawn_on_output(struct spawn *r)
{
    read_errors(r);
    if (r->out < 0)
        return true;
    int rc = jsonl_read(&r->out_lines, r->out);
    if (!rc && !r->out_lines.ended)
        return false;
    ff_close_fd(&r->out);
    read_errors(r); /* why */
    return true;
}

bool spawn_read_lines(struct spawn *r, int limit_ms,
                      void (*on_line)(void *opaque, const char *line), void *opaque)
{
    uint64_t end = ff_now_ms() + (uint64_t)limit_ms, now;
    bool over = r->out < 0; /* since an earlier call */
    char *line;

    if (over)
        read_errors(r);
    while (!over && (now = ff_now_ms()) < end) {
        struct pollfd p[] = {{.fd = r->out, .events = POLLIN}, {.fd = r->err, .events = POLLIN}};
        if (poll(p, 2, (int)(end - now)) <= 0)
            continue;
        over = spawn_on_output(r);
        while ((line = jsonl_next(&r->out_lines)))
            if (on_line)
                on_line(opaque, line);
    }
    return over;
}

/* *@status is STATUS_UNKNOWN where waitpid(2) does not say how it ended */
static bool gone(struct spawn *r, int limit_ms, int *status)
{
    FF_AUTO_CLOSE int fd = r->pid ? (int)syscall(SYS_pidfd_open, r->pid, 0) : -1;
    struct pollfd p = {.fd = fd, .events = POLLIN};
    uint64_t end = ff_now_ms() + (uint64_t)limit_ms, now;
    pid_t reaped;

    while (r->pid && (reaped = waitpid(r->pid, status, WNOHANG)) <= 0) {
        if (reaped < 0 && errno != EINTR) {
            *status = STATUS_UNKNOWN;
            break;
        }
        now = ff_now_ms();
        if (now >= end)
            return false;
        /* a container may forbid pidfd_open(): then look now and then */
        poll(&p, 1, fd < 0 && end - now > LOOK_MS ? LOOK_MS : (int)(end - now));
    }
    r->pid = 0;
    return true;
}

bool spawn_ended(struct spawn *r, int limit_ms, int *status)
{
    *status = 0;
    return r->pid && gone(r, limit_ms, status);
}

void spawn_close_input(struct spawn *r)
{
    ff_close_fd(&r->in);
}

void spawn_leave(struct spawn *r)
{
    ff_close_fd(&r->in);
    ff_close_fd(&r->out);
    ff_close_fd(&r->err);
    r->pid = 0;
}

bool spawn_end(struct spawn *r, int limit_ms)
{
    int status = r->pid ? 0 : -1;

    ff_close_fd(&r->in);
    if (!gone(r, limit_ms, &status)) {
        kill(-r->pid, SIGTERM);
        if (!gone(r, END_LIMIT_MS, &status)) {
            kill(-r->pid, SIGKILL);
            gone(r, END_LIMIT_MS, &status);
        }
        status = -1;
    }
    ff_close_fd(&r->out);
    ff_close_fd(&r->err);
    return !status;
}

void spawn_free(struct spawn *r)
{
    free(r->first);
    free(r->words);
    jsonl_free(&r->out_lines);
    jsonl_free(&r->err_lines);
    *r = SPAWN_NONE;
}

int spawn_run(char *const *argv, int limit_ms, struct ff_error *why)
{
    struct spawn r;
    int status = -1;
    int rc = spawn_start(&r, argv, NULL, why);

    if (!rc && (!spawn_read_lines(&r, limit_ms, NULL, NULL) || !spawn_ended(&r, limit_ms, &status)))
        rc = ff_error_set(why, EIO, "%s: no end within %d s", argv[0], limit_ms / 1000);
    else if (!rc && status)
        rc = ff_error_set(why, EIO, "%s%s", r.first ? r.first : argv[0],
                          WIFEXITED(status) && WEXITSTATUS(status) == 127 ? ": is it installed?"
                                                                         : "");
    spawn_end(&r, 0);
    spawn_free(&r);
    return rc;
}
