/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * spawn.h - one process here or on another host, with three pipes
 */
#ifndef FF_CONTROL_HOST_SPAWN_H
#define FF_CONTROL_HOST_SPAWN_H

#include <sys/types.h>

#include "jsonl.h"

struct spawn {
    pid_t pid;        /* its own, or the launcher's; 0: none */
    int in, out, err; /* -1: closed */
    struct jsonl_reader out_lines, err_lines;
    char *first, *words; /* the first and the last line that it complained in */
};

#define SPAWN_NONE (struct spawn){.in = -1, .out = -1, .err = -1}

/* Start @argv; with @line that instead, in a shell (launcher_line()) */
int spawn_start(struct spawn *r, char *const *argv, const char *line, struct ff_error *why);

/* Its pipes are readable, or were closed: true when there is nothing more to come on @r->out. What
 * came is in @r->out_lines. */
bool spawn_on_output(struct spawn *r);
void spawn_add_error(struct spawn *r, const char *line); /* as if it had complained so */

/* What its output says, a line at a time, until that ends: true; false: it does not in @limit_ms */
bool spawn_read_lines(struct spawn *r, int limit_ms,
                      void (*on_line)(void *opaque, const char *line), void *opaque);

/* Its output has ended: wait for itself, at most @limit_ms. False: it has not ended */
#define SPAWN_ENDS_MS 500 /* one that its host was to end */
bool spawn_ended(struct spawn *r, int limit_ms, int *status);

/* Run a program to its end; -EIO: it failed, with its first complaint, or took too long */
int spawn_run(char *const *argv, int limit_ms, struct ff_error *why);

void spawn_close_input(struct spawn *r);

/* Let it go on by itself, and hear no more of it */
void spawn_leave(struct spawn *r);

/* Close its pipes and wait for it, at most @limit_ms, then end it; whether it ended with exit code
 * 0 */
bool spawn_end(struct spawn *r, int limit_ms);
void spawn_free(struct spawn *r);

#endif
