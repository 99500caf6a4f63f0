/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * monitor.c - a process beside a QEMU answers QMP commands, as a QEMU does, at a UNIX socket
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "autojson.h"
#include "farfork.h"
#include "jsonl.h"
#include "monitor.h"
#include "qmp.h"
#include "qmp_secret.h"

#define CLIENTS_MAX 8u /* an agent, farfork move, and people who look */
#define WRITE_LIMIT_MS 1000

struct monitor_client {
    int fd;
    struct jsonl_reader in;
};

struct monitor {
    char *path;
    int listen_fd, stop_fd;
    pthread_t thread;
    monitor_command command;
    void *opaque;
    struct monitor_client client[CLIENTS_MAX];
    _Atomic unsigned n; /* the thread changes it */
};

static void drop_client(struct monitor *m, unsigned i)
{
    close(m->client[i].fd);
    jsonl_free(&m->client[i].in);
    m->client[i] = m->client[--m->n];
}

static json_t *monitor_refusal(const char *class, const char *desc)
{
    return json_pack("{s{ss ss}}", "error", "class", class, "desc", desc);
}

static json_t *monitor_answer(struct monitor *m, char *line)
{
    char *key = qmp_secret_take(line);
    FF_AUTO_JSON json_t *o = json_loads(line, 0, NULL);
    const char *execute = text_of(o, "execute");
    struct ff_error why = {0};
    json_t *result = NULL, *answer;
    int rc = 0;

    if (!*execute)
        rc = ff_error_set(&why, EINVAL, "want one JSON object a line, with execute");
    else if (strcmp(execute, "qmp_capabilities"))
        rc = m->command(m->opaque, execute, json_object_get(o, "arguments"), key, &result, &why);
    key_text_free(key);
    if (rc == -ENOSYS) {
        FF_AUTO_FREE char *desc = xprintf("The command %s has not been found", execute);
        answer = monitor_refusal("CommandNotFound", desc);
    } else if (rc) {
        answer = monitor_refusal(rc == -ENODATA ? QMP_UNANSWERED : "GenericError", why.text);
    } else {
        answer = json_pack("{so}", "return", result ? result : json_object());
    }
    if (json_object_get(o, "id"))
        json_object_set(answer, "id", json_object_get(o, "id"));
    return answer;
}

int monitor_passed_on(int rc, struct ff_error *why)
{
    return !rc || rc == -EREMOTEIO ? rc : -(why->code = ENODATA);
}

/* false: it has gone, or does not read */
static bool serve_client(struct monitor *m, struct monitor_client *c)
{
    char *line;

    if (jsonl_read(&c->in, c->fd))
        return false;
    while ((line = jsonl_next(&c->in))) {
        FF_AUTO_JSON json_t *answer = *line ? monitor_answer(m, line) : NULL;
        if (answer && jsonl_write_json(c->fd, answer, WRITE_LIMIT_MS))
            return false;
    }
    return !c->in.ended;
}

static bool is_permitted(int fd)
{
    struct ucred who;
    socklen_t len = sizeof(who);

    return !getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &who, &len) &&
           (who.uid == geteuid() || who.uid == 0);
}

static void add_client(struct monitor *m, int fd)
{
    FF_AUTO_JSON json_t *greeting =
        json_pack("{s{s{ss} s[]}}", "QMP", "version", "package", "farfork attach " FF_VERSION_STRING,
                  "capabilities");

    if (fd < 0)
        return;
    if (m->n == CLIENTS_MAX || !is_permitted(fd) ||
        jsonl_write_json(fd, greeting, WRITE_LIMIT_MS)) {
        close(fd);
        return;
    }
    m->client[m->n++] = (struct monitor_client){.fd = fd};
}

static void take_client(struct monitor *m)
{
    add_client(m, accept4(m->listen_fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK));
}

static void *monitor_loop(void *opaque)
{
    struct monitor *m = opaque;
    struct pollfd p[2 + CLIENTS_MAX];

    for (;;) {
        p[0] = (struct pollfd){.fd = m->stop_fd, .events = POLLIN};
        p[1] = (struct pollfd){.fd = m->listen_fd, .events = POLLIN};
        for (unsigned i = 0; i < m->n; i++)
            p[2 + i] = (struct pollfd){.fd = m->client[i].fd, .events = POLLIN};
        if (poll(p, 2 + m->n, -1) < 0)
            continue;
        for (unsigned i = m->n; i-- > 0;) /* dropping one moves the last, which was served */
            if (p[2 + i].revents && !serve_client(m, &m->client[i]))
                drop_client(m, i);
        if (p[0].revents)
            return NULL;
        if (p[1].revents)
            take_client(m);
    }
}

static void free_monitor(struct monitor *m)
{
    while (m->n)
        drop_client(m, 0);
    if (m->listen_fd >= 0)
        close(m->listen_fd);
    if (m->stop_fd >= 0)
        close(m->stop_fd);
    free(m->path);
    free(m);
}

static int monitor_listen(struct monitor *m, struct ff_error *why)
{
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    const char *path = m->path;

    if (strlen(path) >= sizeof(a.sun_path))
        return ff_error_set(why, ENAMETOOLONG, "%s: longer than a socket's path can be", path);
    strcpy(a.sun_path, path);
    m->listen_fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    m->stop_fd = eventfd(0, EFD_CLOEXEC);
    if (m->listen_fd < 0 || m->stop_fd < 0)
        return ff_error_set(why, errno, "%s: %s", path, strerror(errno));
    fchmod(m->listen_fd, 0600); /* what bind() makes has this mode from the start */
    if (bind(m->listen_fd, (struct sockaddr *)&a, sizeof(a)) < 0)
        return ff_error_set(why, errno, "%s: %s", path, strerror(errno));
    if (listen(m->listen_fd, (int)CLIENTS_MAX) < 0) {
        int code = errno;
        unlink(path);
        return ff_error_set(why, code, "%s: %s", path, strerror(code));
    }
    return 0;
}

static struct monitor *new_monitor(const char *path, monitor_command command, void *opaque)
{
    struct monitor *m = xcalloc(1, sizeof(*m));

    *m = (struct monitor){.path = path ? xstrdup(path) : NULL, .listen_fd = -1, .stop_fd = -1,
                          .command = command, .opaque = opaque};
    return m;
}

static int start_loop(struct monitor *m, struct ff_error *why)
{
    sigset_t all, before;

    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, &before);
    int rc = pthread_create(&m->thread, NULL, monitor_loop, m);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return rc ? ff_error_set(why, rc, "start a thread: %s", strerror(rc)) : 0;
}

int monitor_start(const char *path, monitor_command command, void *opaque, struct monitor **out,
                  struct ff_error *why)
{
    struct monitor *m = new_monitor(path, command, opaque);
    int rc = monitor_listen(m, why);

    if (!rc && (rc = start_loop(m, why)))
        unlink(path);
    if (rc)
        free_monitor(m);
    else
        *out = m;
    return rc;
}

int monitor_start_on(int fd, monitor_command command, void *opaque, struct monitor **out, struct ff_error *why)
{
    struct monitor *m = new_monitor(NULL, command, opaque);

    fcntl(fd, F_SETFL, O_NONBLOCK);
    fcntl(fd, F_SETFD, FD_CLOEXEC);
    m->stop_fd = eventfd(0, EFD_CLOEXEC);
    int rc = m->stop_fd < 0 ? ff_error_set(why, errno, "monitor: %s", strerror(errno)) : 0;
    add_client(m, fd);
    if (!rc && !m->n)
        rc = ff_error_set(why, EPIPE, "monitor: its client has gone");
    if (!rc)
        rc = start_loop(m, why);
    if (rc)
        free_monitor(m);
    else
        *out = m;
    return rc;
}

bool monitor_has_clients(struct monitor *m)
{
    return m->n;
}

void monitor_end(struct monitor *m)
{
    const uint64_t one = 1;

    if (!m)
        return;
    while (write(m->stop_fd, &one, sizeof(one)) < 0 && errno == EINTR)
        ;
    pthread_join(m->thread, NULL);
    if (m->path)
        unlink(m->path);
    free_monitor(m);
}
