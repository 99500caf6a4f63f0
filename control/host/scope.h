/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * scope.h - systemd scopes for agents and children, in farfork.slice
 */
#ifndef FF_CONTROL_HOST_SCOPE_H
#define FF_CONTROL_HOST_SCOPE_H

#include <stdbool.h>
#include <sys/types.h>

#include "error.h"

/* AUTO, which has no name: as ONE where that can be; ONE: an agent with its children; EACH: each by itself */
enum scope_mode { SCOPE_AUTO, SCOPE_ONE, SCOPE_EACH, SCOPE_NONE };

bool scope_mode_parse(const char *text, enum scope_mode *out);

/* Whether there is a service manager that keeps what this user starts: 0; -ENOENT: no systemd;
 * -EPERM: none of this user that outlasts a login. With the reason. scope_try() asks it something,
 * too: -EIO: it does not answer */
int scope_possible(struct ff_error *why);
int scope_try(struct ff_error *why);

/* This process is part of a batch system's job, which limits what it starts, and ends it */
bool scope_is_job(void);

/* By @mode nothing is put anywhere */
bool scope_stays(enum scope_mode mode);

/**
 * scope_take() - put a process of this user into a scope of its own; all that it starts follows
 * @child: its number; 0: the agent itself
 *
 * Cost:    a program that asks systemd, some 20 ms; at most SCOPE_LIMIT_MS
 * Return:  0: it is there; else it is where it was: what scope_possible() says; -EIO: systemd
 *          refuses, or has not done it in time
 */
#define SCOPE_LIMIT_MS 5000
int scope_take(const char *id, const char *node, unsigned child, pid_t pid,
               struct ff_error *why);

#endif
