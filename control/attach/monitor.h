/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * monitor.h - a process beside a QEMU answers QMP commands, as a QEMU does, at a UNIX socket
 */
/**
 * DOC: Theory of Operation
 *
 * Purpose      who speaks to a QEMU that migrates can speak to that process: an agent gives it a key and
 *              asks where it listens, farfork move follows query-migrate.
 * Threads      one of its own, which runs the commands. It waits for clients, never for anything
 *              else.
 * Limits       CLIENTS_MAX clients at a time, of this user or root: others are closed. A client that
 *              does not read its answers for a second is closed.
 */
#ifndef FF_CONTROL_ATTACH_MONITOR_H
#define FF_CONTROL_ATTACH_MONITOR_H

#include <jansson.h>
#include <stdbool.h>

#include "error.h"

struct monitor;

/* Run @execute: 0, and *@result (NULL: an empty object), taken over; -ENOSYS: there is no such
 * command; -ENODATA with @why: it was passed on, and nobody knows what became of it; other -errno: it is refused. @key: of object-add, in memory of base/secret.h, until
 * the call returns; @arguments have zeros in its place; else NULL. qmp_capabilities is answered before */
typedef int (*monitor_command)(void *opaque, const char *execute, const json_t *arguments,
                               const char *key, json_t **result, struct ff_error *why);

/**
 * monitor_start() - listen at @path, which this user alone may use, and answer
 *
 * Return: 0; -EADDRINUSE: something is at @path; -ENAMETOOLONG; -errno
 */
int monitor_start(const char *path, monitor_command command, void *opaque, struct monitor **out,
                  struct ff_error *why);

/* Likewise for one client alone, which is connected: @fd, taken */
int monitor_start_on(int fd, monitor_command command, void *opaque, struct monitor **out, struct ff_error *why);

/* @rc of qmp_command(), as a monitor_command returns it that passed a command on */
int monitor_passed_on(int rc, struct ff_error *why);

bool monitor_has_clients(struct monitor *m);

/* What has come is answered; @path is removed. @m may be NULL */
void monitor_end(struct monitor *m);

#endif
