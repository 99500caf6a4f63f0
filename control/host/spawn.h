/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * spawn.h - one process here or on another host, with three pipes
 */
#ifndef FF_CLI_REMOTE_H
#define FF_CLI_REMOTE_H

#include <sys/types.h>

#include "jsonl.h"

struct remote {
    pid_t pid;        /* its own, or the launcher's; 0: none */
    int in, out, err; /* -1: closed */
    struct line_reader out_lines, err_lines;
    char *words;      /* the last line that it complained in */
};

#define REMOTE_NONE (struct remote){.in = -1, .out = -1, .err = -1}

/* Start @argv; with @line that instead, in a shell (launch_line()) */
int remote_start(struct remote *r, char *const *argv, const char *line, struct why *why);

/* Its pipes are readable, or were closed: true when there is nothing more to come on @r->out. What
 * came is in @r->out_lines. */
bool remote_hear(struct remote *r);
void remote_words(struct remote *r, const char *line); /* as if it had complained so */

/* Its output has ended: wait for itself, but not for long. False: it has not ended */
bool remote_ended(struct remote *r, int *status);

void remote_close_input(struct remote *r);

/* Close its pipes and wait for it, at most @limit_ms, then end it; whether it ended with exit code 0 */
bool remote_end(struct remote *r, int limit_ms);
void remote_free(struct remote *r);

#endif
