/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * qmp.c - talk to a QEMU over its QMP socket
 */
/**
 * DOC: Theory of Operation
 *
 * Purpose      one command, one answer, for callers that may wait; qmp_job.c is for those that
 *              must not. Events that come meanwhile are kept.
 * Limits       QEMU serves one client, and lets one more connect and wait; others wait here for
 *              their turn. An answer that comes after its command was given up is dropped by its
 *              id.
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include "jsonl.h"
#include "qmp.h"
#include "qmp_secret.h"

#define TURN_MS 200

struct qmp {
    int fd, cancel_fd, limit_ms;
    char *path;
    pid_t pid;
    uid_t uid;
    json_int_t last_id;
    bool no_json;   /* a line came that is none */
    struct jsonl_reader in;
    char *half;     /* a command of which a part was written in time: the rest comes before any other; or NULL */
    size_t half_done;
    json_t *events; /* array */
    void (*waiting)(void *opaque);
    qmp_run_fn *run; /* qmp_by() */
    void *opaque;
};

/* The next message that is no event, to be released; events are kept */
static json_t *next_message(struct qmp *q)
{
    char *line;

    while ((line = jsonl_next(&q->in))) {
        json_t *m = *line ? json_loads(line, 0, NULL) : NULL;
        q->no_json |= *line && !m;
        if (!m)
            continue;
        if (!json_object_get(m, "event"))
            return m;
        json_array_append_new(q->events, m);
    }
    return NULL;
}

/* Until there is something to read, or @end: 0 */
static int wait_readable(struct qmp *q, uint64_t end, const char *what, struct ff_error *why)
{
    uint64_t now = ff_now_ms();
    struct pollfd p[] = {{.fd = q->fd, .events = POLLIN}, {.fd = q->cancel_fd, .events = POLLIN}};

    if (!q->last_id && q->no_json)
        return ff_error_set(why, EPROTO, "%s: what answers there does not speak QMP: want the QMP "
                                   "socket of a running QEMU, not that of its human monitor or "
                                   "of a serial line", q->path);
    if (q->in.ended)
        return ff_error_set(why, EPIPE, "%s: %s: the QEMU behind it has ended", q->path, what);
    if (now >= end)
        return ff_error_set(why, ETIMEDOUT, "%s: %s: no answer within %d s%s", q->path, what,
                            q->limit_ms / 1000,
                            q->last_id ? "" : ": perhaps another client is connected to it");
    int slice_ms = q->waiting && end - now > TURN_MS ? TURN_MS : (int)(end - now);
    int n = poll(p, 2, slice_ms);
    if (n < 0 && errno != EINTR)
        return ff_error_set(why, errno, "%s: poll: %s", q->path, strerror(errno));
    if (n <= 0) {
        if (q->waiting)
            q->waiting(q->opaque);
        return 0;
    }
    if (p[1].revents)
        return ff_error_set(why, ECANCELED, "%s: %s: interrupted", q->path, what);
    int rc = p[0].revents ? jsonl_read(&q->in, q->fd) : 0;
    return rc ? ff_error_set(why, -rc, "%s: %s: %s", q->path, what, strerror(-rc)) : 0;
}

static int wait_message(struct qmp *q, const char *what, json_t **out, struct ff_error *why)
{
    uint64_t end = ff_now_ms() + (uint64_t)q->limit_ms;
    int rc = 0;

    while (!rc && !(*out = next_message(q)))
        rc = wait_readable(q, end, what, why);
    return rc;
}

int qmp_wait_event(struct qmp *q, int limit_ms, json_t **event, struct ff_error *why)
{
    uint64_t end = ff_now_ms() + (uint64_t)limit_ms;
    int rc = 0;

    while (!rc && !(*event = qmp_take_event(q)) && ff_now_ms() < end) {
        rc = wait_readable(q, end, "events", why);
        json_decref(next_message(q)); /* an answer that came too late */
    }
    return rc == -ETIMEDOUT ? 0 : rc;
}

/* @m: the answer */
static int qmp_take_answer(const json_t *m, const char *name, json_t **result, struct ff_error *why)
{
    const json_t *error = json_object_get(m, "error");

    if (error) {
        const char *desc = json_string_value(json_object_get(error, "desc"));
        const char *class = json_string_value(json_object_get(error, "class"));
        return ff_error_set(why, class && !strcmp(class, QMP_UNANSWERED) ? ENODATA : EREMOTEIO, "%s: %s", name,
                            desc ? desc : "refused without a reason");
    }
    if (result)
        *result = json_incref(json_object_get(m, "return"));
    return 0;
}

/* Of the last command, which was written with @rc */
static int qmp_wait_answer(struct qmp *q, const char *name, int rc, json_t **result,
                           struct ff_error *why)
{
    json_int_t id = q->last_id;
    json_t *m;

    if (rc)
        return ff_error_set(why, rc == -ETIMEDOUT ? ETIMEDOUT : EPIPE, "%s: %s: %s", q->path, name,
                            strerror(-rc));
    for (;;) {
        rc = wait_message(q, name, &m, why);
        if (rc)
            return rc;
        json_t *error = json_object_get(m, "error"), *its_id = json_object_get(m, "id");
        /* the answer to a command that was given up earlier is nobody's */
        if (its_id ? json_integer_value(its_id) != id : !error) {
            json_decref(m);
            continue;
        }
        rc = qmp_take_answer(m, name, result, why);
        json_decref(m);
        return rc;
    }
}

/* @command: one line, to be freed */
static int run_by(struct qmp *q, const char *name, char *command, int fd, json_t **result,
                  struct ff_error *why)
{
    char *answer = NULL;
    int rc = q->run(q->opaque, command, fd, &answer, why);
    json_t *m = rc ? NULL : json_loads(answer, 0, NULL);

    if (!rc && !json_is_object(m))
        rc = ff_error_set(why, EPROTO, "%s: the answer is no line of QMP: %.200s", name, answer);
    else if (!rc)
        rc = qmp_take_answer(m, name, result, why);
    json_decref(m);
    free(answer);
    free(command);
    return rc;
}

/* 0, or -ETIMEDOUT: nothing of another command may be written yet */
static int write_half(struct qmp *q)
{
    int rc = q->half ? jsonl_write_on(q->fd, q->half, strlen(q->half), &q->half_done, q->limit_ms) : 0;

    if (!rc) {
        free(q->half);
        q->half = NULL;
    }
    return rc;
}

/* Write the beginning of @q->half, and pass @fd with it */
static int write_with_fd(struct qmp *q, int fd)
{
    union {
        struct cmsghdr head;
        char room[CMSG_SPACE(sizeof(int))];
    } c = {.head = {.cmsg_len = CMSG_LEN(sizeof(int)),
                    .cmsg_level = SOL_SOCKET,
                    .cmsg_type = SCM_RIGHTS}};
    struct iovec text = {q->half, strlen(q->half)};
    const struct msghdr m = {.msg_iov = &text, .msg_iovlen = 1, .msg_control = &c,
                             .msg_controllen = sizeof(c)};
    struct pollfd p = {.fd = q->fd, .events = POLLOUT};
    const uint64_t end = ff_now_ms() + (uint64_t)q->limit_ms;
    ssize_t n;

    memcpy(CMSG_DATA(&c.head), &fd, sizeof(fd));
    while ((n = sendmsg(q->fd, &m, MSG_NOSIGNAL)) < 0) {
        uint64_t now = ff_now_ms();

        if (errno != EAGAIN && errno != EINTR)
            return -errno;
        if (now >= end || (errno == EAGAIN && !poll(&p, 1, (int)(end - now))))
            return -ETIMEDOUT;
    }
    q->half_done = (size_t)n;
    return 0;
}

/* @text has no newline yet; @fd: -1: none */
static int write_command(struct qmp *q, const char *text, int fd)
{
    int rc = write_half(q);

    if (rc)
        return rc;
    q->half = xprintf("%s\n", text);
    q->half_done = 0;
    rc = fd < 0 ? 0 : write_with_fd(q, fd);
    if (!rc)
        rc = write_half(q);
    if (rc && !q->half_done) {
        free(q->half);
        q->half = NULL;
    }
    return rc;
}

/* Takes @arguments */
static json_t *new_command(struct qmp *q, const char *name, json_t *arguments)
{
    json_t *m = json_pack("{ss sI}", "execute", name, "id", ++q->last_id);

    if (arguments)
        json_object_set_new(m, "arguments", arguments);
    return m;
}

/* Takes @m */
static int write_json(struct qmp *q, json_t *m, int fd)
{
    FF_AUTO_FREE char *text = json_dumps(m, JSON_COMPACT);

    json_decref(m);
    return text ? write_command(q, text, fd) : -ENOMEM;
}

int qmp_command_with_fd(struct qmp *q, const char *name, json_t *arguments, int fd, json_t **result,
                        struct ff_error *why)
{
    json_t *m = new_command(q, name, arguments);

    if (q->run) {
        json_object_del(m, "id"); /* that of who carries it */
        char *command = json_dumps(m, JSON_COMPACT);
        json_decref(m);
        return run_by(q, name, command, fd, result, why);
    }
    return qmp_wait_answer(q, name, write_json(q, m, fd), result, why);
}

int qmp_command_begin(struct qmp *q, const char *name, json_t *arguments, struct ff_error *why)
{
    if (q->run) {
        json_decref(arguments);
        return ff_error_set(why, EOPNOTSUPP, "%s: an answer that comes later", name);
    }
    int rc = write_json(q, new_command(q, name, arguments), -1);
    return rc ? ff_error_set(why, rc == -ETIMEDOUT ? ETIMEDOUT : EPIPE, "%s: %s: %s", q->path, name, strerror(-rc)) : 0;
}

int qmp_command_end(struct qmp *q, const char *name, int limit_ms, json_t **result, struct ff_error *why)
{
    const int was_ms = q->limit_ms;
    struct ff_error err = {0};

    q->limit_ms = limit_ms;
    int rc = qmp_wait_answer(q, name, 0, result, &err);
    q->limit_ms = was_ms;
    if (rc == -ETIMEDOUT)
        return -EAGAIN;
    if (rc && why)
        *why = err;
    return rc;
}

int qmp_command(struct qmp *q, const char *name, json_t *arguments, json_t **result,
                struct ff_error *why)
{
    return qmp_command_with_fd(q, name, arguments, -1, result, why);
}

int qmp_hmp(struct qmp *q, const char *line, json_t **text, struct ff_error *why)
{
    *text = NULL;
    int rc = qmp_command(q, "human-monitor-command", json_pack("{ss}", "command-line", line), text, why);

    if (rc || json_is_string(*text))
        return rc;
    json_decref(*text);
    *text = NULL;
    return ff_error_set(why, EPROTO, "%s: the answer is no text", line);
}

int qmp_add_key(struct qmp *q, const char *key, struct ff_error *why)
{
    int rc = write_half(q);

    if (!rc)
        rc = qmp_secret_write(q->fd, ++q->last_id, key, q->limit_ms);
    return qmp_wait_answer(q, "object-add", rc, NULL, why);
}

static int negotiate(struct qmp *q, struct ff_error *why)
{
    json_t *m = NULL;
    bool greeted = false;

    while (!greeted) {
        int rc = wait_message(q, "greeting", &m, why);
        if (rc)
            return rc;
        greeted = json_object_get(m, "QMP");
        json_decref(m);
    }
    return qmp_command(q, "qmp_capabilities", NULL, NULL, why);
}

/* A QEMU serves one client, and has one more wait: others wait to connect, a while at a time */
static int connect_in_turn(struct qmp *q, const struct sockaddr_un *a, uint64_t end)
{
    struct timeval t = {.tv_usec = TURN_MS * 1000};
    struct pollfd p = {.fd = q->cancel_fd, .events = POLLIN};

    setsockopt(q->fd, SOL_SOCKET, SO_SNDTIMEO, &t, sizeof(t));
    while (connect(q->fd, (const struct sockaddr *)a, sizeof(*a)) < 0) {
        if (errno != EAGAIN && errno != EINTR)
            return -errno;
        if (poll(&p, 1, 0) > 0)
            return -ECANCELED;
        if (ff_now_ms() >= end)
            return -ETIMEDOUT;
        if (q->waiting)
            q->waiting(q->opaque);
    }
    return fcntl(q->fd, F_SETFL, O_NONBLOCK) < 0 ? -errno : 0;
}

int qmp_connect_in_turn(const char *path, int cancel_fd, int limit_ms,
                        void (*waiting)(void *opaque), void *opaque, struct qmp **out,
                        struct ff_error *why)
{
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    struct ucred who = {0};
    socklen_t len = sizeof(who);

    if (strlen(path) >= sizeof(a.sun_path))
        return ff_error_set(why, ENAMETOOLONG, "%s: longer than a socket's path can be", path);
    strcpy(a.sun_path, path);
    struct qmp *q = xcalloc(1, sizeof(*q));
    *q = (struct qmp){.cancel_fd = cancel_fd, .limit_ms = limit_ms, .path = xstrdup(path),
                      .events = json_array(), .waiting = waiting, .opaque = opaque};
    q->fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    int rc = q->fd < 0 ? -errno : connect_in_turn(q, &a, ff_now_ms() + (uint64_t)limit_ms);
    if (rc == -ECANCELED)
        ff_error_set(why, ECANCELED, "%s: interrupted", path);
    else if (rc == -ETIMEDOUT)
        ff_error_set(why, ETIMEDOUT, "%s: other clients have been connected to it for %d s", path,
               limit_ms / 1000);
    else if (rc)
        ff_error_set(why, -rc, "%s: %s: want the QMP socket of a running QEMU on this host "
                         "(-qmp unix:PATH,server=on,wait=off)", path, strerror(-rc));
    else if (getsockopt(q->fd, SOL_SOCKET, SO_PEERCRED, &who, &len) < 0)
        rc = ff_error_set(why, errno, "%s: %s", path, strerror(errno));
    else
        rc = negotiate(q, why);
    q->pid = who.pid;
    q->uid = who.uid;
    q->waiting = NULL;
    if (rc) {
        qmp_free(q);
        return rc;
    }
    *out = q;
    return 0;
}

int qmp_connect(const char *path, int cancel_fd, int limit_ms, struct qmp **out,
                struct ff_error *why)
{
    return qmp_connect_in_turn(path, cancel_fd, limit_ms, NULL, NULL, out, why);
}

int qmp_on(int fd, const struct qmp *like, struct qmp **out, struct ff_error *why)
{
    struct qmp *q = xcalloc(1, sizeof(*q));

    *q = (struct qmp){.fd = fd, .cancel_fd = like->cancel_fd, .limit_ms = like->limit_ms, .path = xstrdup(like->path),
                      .events = json_array(), .pid = like->pid, .uid = like->uid};
    int rc = fcntl(fd, F_SETFL, O_NONBLOCK) < 0 ? ff_error_set(why, errno, "%s: %s", q->path, strerror(errno)) : negotiate(q, why);
    if (rc)
        qmp_free(q);
    else
        *out = q;
    return rc;
}

struct qmp *qmp_by(qmp_run_fn *run, void *opaque, pid_t pid)
{
    struct qmp *q = xcalloc(1, sizeof(*q));

    *q = (struct qmp){.fd = -1, .cancel_fd = -1, .path = xstrdup("monitor"), .run = run, .opaque = opaque, .pid = pid,
                      .uid = geteuid(), .events = json_array()};
    return q;
}

json_t *qmp_take_event(struct qmp *q)
{
    json_t *e = json_incref(json_array_get(q->events, 0));

    if (e)
        json_array_remove(q->events, 0);
    return e;
}

int qmp_fd(const struct qmp *q)
{
    return q->fd;
}

int qmp_drain(struct qmp *q)
{
    int rc = jsonl_read(&q->in, q->fd);

    json_decref(next_message(q)); /* an answer that came too late */
    return rc ? rc : q->in.ended ? -EPIPE : 0;
}

pid_t qmp_pid(const struct qmp *q)
{
    return q->pid;
}

uid_t qmp_uid(const struct qmp *q)
{
    return q->uid;
}

void qmp_cancel_by(struct qmp *q, int fd)
{
    q->cancel_fd = fd;
}

void qmp_limit(struct qmp *q, int limit_ms)
{
    q->limit_ms = limit_ms;
}

void qmp_replace(struct qmp *q, struct qmp *by)
{
    struct qmp old = *q;

    *q = *by;
    *by = old;
    qmp_free(by);
}

void qmp_free(struct qmp *q)
{
    if (!q)
        return;
    if (q->fd >= 0)
        close(q->fd);
    jsonl_free(&q->in);
    json_decref(q->events);
    free(q->half);
    free(q->path);
    free(q);
}
