/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * qmp.h - talk to a QEMU over its QMP socket
 */
#ifndef FF_VM_QMP_H
#define FF_VM_QMP_H

#include <jansson.h>
#include <sys/types.h>

#include "error.h"
#include "strv.h"

/* Class of an error of QMP, of a process that passes commands on: the QEMU has not answered */
#define QMP_UNANSWERED "FarforkUnanswered"

struct qmp;

/**
 * qmp_connect() - connect, greet, negotiate
 * @path:      of a UNIX socket
 * @cancel_fd: readable: every wait ends with -ECANCELED; -1: none
 * @limit_ms:  for this and for each command
 */
int qmp_connect(const char *path, int cancel_fd, int limit_ms, struct qmp **out,
                struct ff_error *why);

/* Likewise, but for one of several clients that may be there: while it waits for its turn @waiting
 * is called a few times a second; NULL: it is not */
int qmp_connect_in_turn(const char *path, int cancel_fd, int limit_ms,
                        void (*waiting)(void *opaque), void *opaque, struct qmp **out,
                        struct ff_error *why);

/* One over @fd, a connected socket, which is taken: who answers there speaks for the process behind @like, whose name this has */
int qmp_on(int fd, const struct qmp *like, struct qmp **out, struct ff_error *why);

/* One whose commands @run carries: a line of QMP with @fd, -1: none, and the line that answers it, to be freed; or
 * -ENODATA, -errno. Its process is @pid, of this user. It has no descriptor, no limit and no events. -EOPNOTSUPP: @run passes no descriptor */
typedef int qmp_run_fn(void *opaque, const char *line, int fd, char **answer, struct ff_error *why);
struct qmp *qmp_by(qmp_run_fn *run, void *opaque, pid_t pid);

/**
 * qmp_command() - run a command and wait for its answer; events on the way are kept
 * @arguments: taken over; NULL: none
 * @result:    what the command returned, to be released; may be NULL
 *
 * Return: 0; -EREMOTEIO: refused, the reason is QEMU's; -EPIPE: QEMU has ended; -ETIMEDOUT;
 *         -ECANCELED; -ENODATA: a process that passed it on has no answer. But for the first two nobody knows
 *         whether it was done
 */
int qmp_command(struct qmp *q, const char *name, json_t *arguments, json_t **result,
                struct ff_error *why);

/* In two, for who does something else until the answer is there: @limit_ms from the second on; -EAGAIN: it is not there yet. No
 * other command comes in between. -EOPNOTSUPP: of qmp_by() */
int qmp_command_begin(struct qmp *q, const char *name, json_t *arguments, struct ff_error *why);
int qmp_command_end(struct qmp *q, const char *name, int limit_ms, json_t **result, struct ff_error *why);

/* Likewise, and pass @fd to the QEMU with it (add-fd); -1: none */
int qmp_command_with_fd(struct qmp *q, const char *name, json_t *arguments, int fd, json_t **result,
                        struct ff_error *why);

/* As qmp_command(), human-monitor-command: @text is a JSON string, to be released; NULL after a failure. -EPROTO: it is none */
int qmp_hmp(struct qmp *q, const char *line, json_t **text, struct ff_error *why);

/* As qmp_command(), object-add of the secret KEY_SECRET: @key is of key_text_new() */
int qmp_add_key(struct qmp *q, const char *key, struct ff_error *why);

/* The oldest event not taken yet, to be released; NULL: none */
json_t *qmp_take_event(struct qmp *q);

/* Likewise, but wait for it, at most @limit_ms. 0; -EPIPE, -ECANCELED: without one */
int qmp_wait_event(struct qmp *q, int limit_ms, json_t **event, struct ff_error *why);

int qmp_fd(const struct qmp *q);   /* readable: qmp_drain() */
int qmp_drain(struct qmp *q);      /* read what there is; -EPIPE: QEMU has ended */
pid_t qmp_pid(const struct qmp *q); /* of the QEMU, as the kernel says */
uid_t qmp_uid(const struct qmp *q); /* of who made its socket */
void qmp_cancel_by(struct qmp *q, int fd); /* from here on; -1: nothing but time ends a wait */
void qmp_limit(struct qmp *q, int limit_ms); /* for each command from here on */
void qmp_replace(struct qmp *q,
                 struct qmp *by); /* @q goes on with @by's connection; @by is freed */
void qmp_free(struct qmp *q);

#endif
