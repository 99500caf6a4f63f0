/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * qmp_job.c - commands for a QMP socket, one after the other; see qmp_job.h
 */
/**
 * DOC: Theory of Operation
 *
 * Picture      connect -> greeting -> qmp_capabilities -> answer -> command -> answer -> ...
 *              QEMU speaks to one client at a time: until another one leaves, the greeting does not
 *              come, and nothing of ours was said.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "jsonl.h"
#include "qmp_job.h"
#include "qmp_secret.h"

#define WRITE_MS 2000 /* a working set is more than a socket takes at once; QEMU reads it in milliseconds */

struct qmp_job {
    char *path;
    int fd;
    bool greeted;
    uint64_t sent_ms; /* of the last command */
    struct jsonl_reader in;
    json_t *commands; /* the first is qmp_capabilities; null: the key's */
    json_t *answers;
    char *key; /* or NULL */
};

struct qmp_job *qmp_job_new(const char *path)
{
    struct qmp_job *j = xcalloc(1, sizeof(*j));

    *j = (struct qmp_job){.path = xstrdup(path), .fd = -1, .commands = json_array(),
                          .answers = json_array()};
    qmp_job_add(j, "qmp_capabilities", NULL);
    return j;
}

void qmp_job_add(struct qmp_job *j, const char *name, json_t *arguments)
{
    json_t *m = json_pack("{ss sI}", "execute", name, "id",
                          (json_int_t)json_array_size(j->commands));

    if (arguments)
        json_object_set_new(m, "arguments", arguments);
    json_array_append_new(j->commands, m);
}

void qmp_job_add_key(struct qmp_job *j, char *key)
{
    json_array_append_new(j->commands, json_null());
    j->key = key;
}

/* -EAGAIN: its queue is full */
static int job_connect(struct qmp_job *j, struct ff_error *why)
{
    struct sockaddr_un a = {.sun_family = AF_UNIX};

    if (strlen(j->path) >= sizeof(a.sun_path))
        return ff_error_set(why, ENAMETOOLONG, "%s: longer than a socket's path can be", j->path);
    strcpy(a.sun_path, j->path);
    j->fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (j->fd >= 0 && !connect(j->fd, (struct sockaddr *)&a, sizeof(a)))
        return 0;
    int rc = ff_error_set(why, errno, "%s: %s", j->path, strerror(errno));
    if (j->fd >= 0)
        close(j->fd);
    j->fd = -1;
    return rc;
}

/* The command that was not answered yet */
static int send_next(struct qmp_job *j, struct ff_error *why)
{
    size_t n = json_array_size(j->answers);
    const json_t *m = json_array_get(j->commands, n);

    j->sent_ms = m ? ff_now_ms() : j->sent_ms; /* before: no answer is from before that */
    int rc = !m               ? 0
             : json_is_null(m) ? qmp_secret_write(j->fd, (json_int_t)n, j->key, 0)
                               : jsonl_write_json(j->fd, m, WRITE_MS); /* mostly a few bytes: there is room */

    return rc ? ff_error_set(why, EPIPE, "%s: %s", j->path, strerror(-rc)) : 0;
}

static int job_read_line(struct qmp_job *j, const char *line, struct ff_error *why)
{
    json_t *m = json_loads(line, 0, NULL);
    bool counts = j->greeted ? !json_object_get(m, "event") : !!json_object_get(m, "QMP");
    int rc = 0;

    if (!m)
        return ff_error_set(why, EPROTO, "%s: what answers there does not speak QMP", j->path);
    if (counts) {
        if (j->greeted)
            json_array_append(j->answers, m);
        j->greeted = true;
        rc = send_next(j, why);
    }
    json_decref(m);
    return rc;
}

int qmp_job_turn(struct qmp_job *j, struct ff_error *why)
{
    size_t n = json_array_size(j->commands);
    char *line;
    int rc = j->fd < 0 ? job_connect(j, why) : 0;

    if (!rc && (rc = jsonl_read(&j->in, j->fd)))
        return ff_error_set(why, -rc, "%s: %s", j->path, strerror(-rc));
    while (!rc && json_array_size(j->answers) < n && (line = jsonl_next(&j->in)))
        rc = *line ? job_read_line(j, line, why) : 0;
    if (rc || json_array_size(j->answers) == n)
        return rc;
    return j->in.ended ? ff_error_set(why, EPIPE, "%s: the QEMU behind it has ended", j->path)
                       : -EAGAIN;
}

int qmp_job_fd(const struct qmp_job *j)
{
    return j ? j->fd : -1;
}

bool qmp_job_asked(const struct qmp_job *j)
{
    return json_array_size(j->answers); /* to qmp_capabilities: what follows it went out */
}

uint64_t qmp_job_age_ms(const struct qmp_job *j)
{
    return ff_now_ms() - j->sent_ms;
}

const json_t *qmp_job_answer(const struct qmp_job *j, size_t n)
{
    return json_array_get(j->answers, n + 1);
}

void qmp_job_free(struct qmp_job *j)
{
    if (!j)
        return;
    if (j->fd >= 0)
        close(j->fd);
    jsonl_free(&j->in);
    json_decref(j->commands);
    json_decref(j->answers);
    key_text_free(j->key);
    free(j->path);
    free(j);
}
