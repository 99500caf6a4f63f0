/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * watcher.c - a process that may attach, and watches memory for one that may not: watcher.h
 */
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "cleanup.h"
#include "fd_pass.h"
#include "watcher.h"
#include "xalloc.h"

#define BLOCKS_MAX 128u /* of main memory: a QEMU has some */
#define NAME_LEN 64
#define DEPTH_MAX 64     /* of descendants */
#define SANDBOX_FILTERS 1u /* what QEMU's -sandbox adds: it permits the calls that are made */
#define LIMIT_S 10 /* and a second a GiB, which is emptied */

struct block {
    uint64_t hva, len_bytes;
    uint32_t psize, reserved;
    char name[NAME_LEN];
};

struct request {
    uint32_t pid, n;
    int32_t device; /* its number there; -1: none */
    uint32_t reserved;
    struct block block[BLOCKS_MAX];
};

/* --- the watcher --- */

static bool is_descendant(pid_t pid, pid_t of)
{
    for (int depth = 0; pid > 1 && depth < DEPTH_MAX; depth++) {
        if (pid == of)
            return depth > 0;
        pid = outside_number(pid, "PPid:");
    }
    return false;
}

static bool is_agents_own(int fd, pid_t agent)
{
    struct ucred who;
    socklen_t len = sizeof(who);

    return !getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &who, &len) && who.uid == geteuid() &&
           is_descendant(who.pid, agent);
}

static bool is_request(const struct request *q, ssize_t len)
{
    if (len < (ssize_t)offsetof(struct request, block) || !q->n || q->n > BLOCKS_MAX ||
        (size_t)len != offsetof(struct request, block) + q->n * sizeof(q->block[0]))
        return false;
    for (unsigned i = 0; i < q->n; i++)
        if (!memchr(q->block[i].name, 0, NAME_LEN))
            return false;
    return true;
}

static bool is_parts(const struct watch_parts *p, ssize_t len)
{
    return len >= (ssize_t)offsetof(struct watch_parts, part) && p->n && p->n <= WATCH_PARTS &&
           (size_t)len == offsetof(struct watch_parts, part) + p->n * sizeof(p->part[0]);
}

/* Until the other side ends it. That it has gone says nothing: QEMU keeps its userfaultfd */
static void serve_watch(int fd, struct watch *w)
{
    static struct watch_parts p;
    struct watch_answer a = {0};
    ssize_t len;

    while ((len = recv(fd, &p, sizeof(p), 0)) == 1 || is_parts(&p, len)) {
        struct ff_error why = {0};

        a.rc = len == 1 ? watch_end(w, &why) : watch_discard(w, p.part, p.n, &why);
        snprintf(a.text, sizeof(a.text), "%s", a.rc ? why.text : "");
        (void)ff_fd_send(fd, &a, sizeof(a), -1);
        if (len == 1)
            return;
    }
}

static void serve_one(int fd, pid_t agent)
{
    static struct request q;
    FF_AUTO_FREE struct outside_block *b = NULL;
    struct watch w = {.fd = -1, .there = -1, .by = -1};
    struct watch_answer a = {0};
    struct ff_error why = {0};
    struct pollfd p = {.fd = fd, .events = POLLIN};
    int filters = outside_number(agent, "Seccomp_filters:"); /* Linux 5.9 */

    if (!is_agents_own(fd, agent) || poll(&p, 1, LIMIT_S * 1000) <= 0 ||
        !is_request(&q, recv(fd, &q, sizeof(q), MSG_DONTWAIT)))
        return;
    b = xcalloc(q.n, sizeof(*b));
    for (unsigned i = 0; i < q.n; i++) {
        snprintf(b[i].name, sizeof(b[i].name), "%s", q.block[i].name);
        b[i].hva = q.block[i].hva;
        b[i].len_bytes = b[i].max_bytes = q.block[i].len_bytes;
        b[i].psize = q.block[i].psize;
    }
    a.rc = is_descendant((pid_t)q.pid, agent)
               ? watch_begin(&w, (pid_t)q.pid, filters > 0 ? (unsigned)filters + SANDBOX_FILTERS : 0, q.device, b, q.n,
                             &why)
               : ff_error_set(&why, EPERM, "process %u is none that the agent has started", q.pid);
    a.there = w.there;
    snprintf(a.text, sizeof(a.text), "%s", a.rc ? why.text : "");
    (void)ff_fd_send(fd, &a, sizeof(a), a.rc ? -1 : w.fd);
    if (!a.rc)
        serve_watch(fd, &w);
    watch_leave(&w);
}

void watcher_serve(int listener, int alive, pid_t agent)
{
    struct pollfd p[2] = {{.fd = listener, .events = POLLIN}, {.fd = alive, .events = POLLIN}};

    while (poll(p, 2, -1) > 0 || errno == EINTR) {
        int fd = p[0].revents ? accept4(listener, NULL, NULL, SOCK_CLOEXEC) : -1;

        if (fd >= 0)
            serve_one(fd, agent);
        ff_close_fd(&fd);
        if (p[1].revents)
            return;
    }
}

/* --- who asks --- */

static int watcher_connect(const char *path, struct ff_error *err)
{
    struct sockaddr_un to = {.sun_family = AF_UNIX};
    struct timeval limit = {.tv_sec = LIMIT_S};

    if (strlen(path) >= sizeof(to.sun_path))
        return ff_error_set(err, ENAMETOOLONG, "watcher %s: too long", path);
    strcpy(to.sun_path, path);
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    if (fd < 0 || setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit)) ||
        connect(fd, (struct sockaddr *)&to, sizeof(to))) {
        ff_error_set(err, errno, "watcher %s: %s", path, strerror(errno));
        ff_close_fd(&fd);
        return -err->code;
    }
    return fd;
}

static int watcher_answer(struct watch *w, struct watch_answer *a, struct ff_error *err)
{
    int rc = ff_fd_receive(w->by, a, sizeof(*a), &w->fd);

    if (rc == -ECONNRESET) /* as the kernel says it where the question was not read */
        rc = -EPIPE;
    if (rc)
        return ff_error_set(err, rc == -EAGAIN ? ETIMEDOUT : -rc, "watcher: no answer: %s",
                            rc == -EPIPE ? "it has ended, or refuses to serve this process" : strerror(-rc));
    a->text[sizeof(a->text) - 1] = '\0';
    return a->rc ? ff_error_set(err, a->rc < 0 ? -a->rc : EIO, "%s", a->text) : 0;
}

int watcher_begin(struct watch *w, const char *path, pid_t pid, int device, const struct outside_block *b, unsigned n,
                  struct ff_error *err)
{
    static struct request q;
    struct watch_answer a;

    *w = (struct watch){.pid = pid, .fd = -1, .there = -1, .by = -1, .blocks = b, .n = n};
    if (n > BLOCKS_MAX)
        return ff_error_set(err, E2BIG, "watcher: %u blocks of memory (permitted: %u)", n, BLOCKS_MAX);
    q.pid = (uint32_t)pid;
    q.n = n;
    q.device = device;
    uint64_t bytes = 0;
    for (unsigned i = 0; i < n; i++) {
        bytes += b[i].len_bytes;
        q.block[i] = (struct block){b[i].hva, b[i].len_bytes, b[i].psize, 0, ""};
        snprintf(q.block[i].name, NAME_LEN, "%.*s", NAME_LEN - 1, b[i].name);
    }
    w->by = watcher_connect(path, err);
    if (w->by < 0)
        return w->by;
    size_t len = offsetof(struct request, block) + n * sizeof(q.block[0]);
    if (send(w->by, &q, len, MSG_NOSIGNAL) != (ssize_t)len)
        return ff_error_set(err, errno ? errno : EIO, "watcher %s: %s", path, strerror(errno));
    struct timeval limit = {.tv_sec = LIMIT_S + (time_t)(bytes >> 30)};
    setsockopt(w->by, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
    int rc = watcher_answer(w, &a, err);
    w->there = a.there;
    return rc || w->fd >= 0 ? rc : ff_error_set(err, EPROTO, "watcher %s: no userfaultfd came", path);
}
