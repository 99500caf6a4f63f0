/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * qmp_job.h - commands for a QMP socket, one after the other, by a caller that must not wait
 */
#ifndef FF_VM_QMP_JOB_H
#define FF_VM_QMP_JOB_H

#include <jansson.h>
#include <stdbool.h>

#include "error.h"
#include "strv.h"

struct qmp_job;

struct qmp_job *qmp_job_new(const char *path);
void qmp_job_add(struct qmp_job *j, const char *name, json_t *arguments); /* taken over, or NULL */

/* object-add of the secret KEY_SECRET; @key, of key_text_new(), is taken over. One for a job */
void qmp_job_add_key(struct qmp_job *j, char *key);

/**
 * qmp_job_turn() - go on as far as that goes without waiting
 *
 * Return: 0: QEMU has answered every command; -EAGAIN: not yet: call it again when qmp_job_fd() is
 *         readable, or, where that is -1, after a while; -errno: it will not
 */
int qmp_job_turn(struct qmp_job *j, struct ff_error *why);

/* To be polled for input; -1: not connected yet, since others are, or nobody listens there */
int qmp_job_fd(const struct qmp_job *j);

/* A command went out: QEMU may have obeyed it */
bool qmp_job_asked(const struct qmp_job *j);

/* What the last answer says was so at most that long ago */
uint64_t qmp_job_age_ms(const struct qmp_job *j);

/* To command @n, with "return" or "error"; NULL: none yet. Borrowed */
const json_t *qmp_job_answer(const struct qmp_job *j, size_t n);
void qmp_job_free(struct qmp_job *j); /* NULL: nothing */

#endif
