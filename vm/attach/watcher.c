/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * watcher.c - a process that may attach, and watches memory for one that may not: watcher.h
 */
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include "cleanup.h"
#include "dead_tap.h"
#include "fd_pass.h"
#include "watcher.h"
#include "xalloc.h"

#define BLOCKS_MAX 512u /* as many as an image has regions */
#define NAME_LEN 64
#define DEPTH_MAX 64     /* of descendants */
#define SANDBOX_FILTERS 1u /* what QEMU's -sandbox adds: it permits the calls that are made */
#define LIMIT_S 10 /* and a second a GiB, which is emptied */
#define FILES_LIMIT_S 120 /* other children come first, and all of them are started */

enum kind { WATCH_MEMORY, WATCH_FILES, DEAD_TAP };

struct block {
    uint64_t hva, len_bytes;
    uint32_t psize, reserved;
    struct watch_file file; /* WATCH_FILES */
    char name[NAME_LEN];
};

struct request {
    uint32_t pid, n;
    int32_t device; /* its number there; -1: none */
    uint16_t kind, advice;
    struct block block[BLOCKS_MAX];
};

/* A process that has views of files, of which pages are missing perhaps, and the connection of who looks after it */
struct kept {
    int fd, pidfd;
    struct watch w;
};

static struct kept *kept;
static unsigned n_kept;

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
           (who.pid == agent || is_descendant(who.pid, agent));
}

static bool is_request(const struct request *q, ssize_t len)
{
    if (len < (ssize_t)offsetof(struct request, block) || q->n > BLOCKS_MAX || q->kind > DEAD_TAP || (q->n == 0) != (q->kind == DEAD_TAP) ||
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

/* --- views of files --- */

/* Whoever looked after it has gone, or wants it gone: pages that it lacks do not come any more, and it would wait for them */
static void drop_kept(unsigned i, bool kill_it)
{
    struct kept *k = &kept[i];

    if (kill_it && k->pidfd >= 0)
        syscall(SYS_pidfd_send_signal, k->pidfd, SIGKILL, NULL, 0);
    ff_close_fd(&k->fd);
    ff_close_fd(&k->pidfd);
    watch_leave(&k->w);
    *k = kept[--n_kept];
}

/* It needs nobody any more, says one byte; anything else, and the end of the connection, is the end of the process */
static void hear_kept(unsigned i)
{
    struct watch_answer a = {0};
    struct ff_error why = {0};
    char x;
    bool is_over = recv(kept[i].fd, &x, 1, MSG_DONTWAIT) == 1 && x == 'e';

    if (is_over) { /* one that keeps its descriptor has one that watches nothing */
        a.rc = watch_end(&kept[i].w, &why);
        snprintf(a.text, sizeof(a.text), "%s", a.rc ? why.text : "");
        (void)ff_fd_send(kept[i].fd, &a, sizeof(a), -1);
    }
    drop_kept(i, !is_over);
}

static int open_process(pid_t pid, struct ff_error *err)
{
    int fd = (int)syscall(SYS_pidfd_open, pid, 0);

    return fd < 0 ? ff_error_set(err, errno, "process %d: pidfd_open: %s", (int)pid, strerror(errno)) : fd;
}

/* --- requests --- */

static struct outside_block *blocks_of(const struct request *q)
{
    struct outside_block *b = xcalloc(q->n, sizeof(*b));

    for (unsigned i = 0; i < q->n; i++) {
        snprintf(b[i].name, sizeof(b[i].name), "%s", q->block[i].name);
        b[i].hva = q->block[i].hva;
        b[i].len_bytes = b[i].max_bytes = q->block[i].len_bytes;
        b[i].psize = q->block[i].psize;
    }
    return b;
}

static int begin_watch(const struct request *q, struct kept *k, pid_t agent, const struct outside_block *b,
                       struct ff_error *err)
{
    const int own = outside_number(agent, "Seccomp_filters:"); /* Linux 5.9 */
    const unsigned filters = own > 0 ? (unsigned)own + SANDBOX_FILTERS : 0;
    const pid_t pid = (pid_t)q->pid;
    FF_AUTO_FREE struct watch_file *f = xcalloc(q->n, sizeof(*f));

    for (unsigned i = 0; i < q->n; i++)
        f[i] = q->block[i].file;
    k->pidfd = open_process(pid, err); /* first: what is asked of its number is asked of it */
    if (k->pidfd < 0)
        return k->pidfd;
    if (!is_descendant(pid, agent)) {
        ff_close_fd(&k->pidfd); /* nor is it to be ended */
        return ff_error_set(err, EPERM, "process %u is none that the agent has started", q->pid);
    }
    return q->kind == WATCH_FILES
               ? watch_files_begin(&k->w, pid, filters, q->device, b, f, q->n, q->advice, err)
               : watch_begin(&k->w, pid, filters, q->device, b, q->n, false, err);
}

/* @fd is taken over */
static void serve_tap(int fd)
{
    struct ff_error why = {0};
    FF_AUTO_CLOSE int tap = dead_tap_open(&why);
    struct watch_answer a = {.rc = tap < 0 ? tap : 0, .there = -1};

    snprintf(a.text, sizeof(a.text), "%s", tap < 0 ? why.text : "");
    (void)ff_fd_send(fd, &a, sizeof(a), tap < 0 ? -1 : tap);
    close(fd);
}

/* @fd is taken over */
static void serve_one(int fd, pid_t agent)
{
    static struct request q;
    FF_AUTO_FREE struct outside_block *b = NULL;
    struct kept k = {.fd = fd, .pidfd = -1, .w = {.fd = -1, .there = -1, .by = -1}};
    struct watch_answer a = {0};
    struct ff_error why = {0};
    struct pollfd p = {.fd = fd, .events = POLLIN};

    if (!is_agents_own(fd, agent) || poll(&p, 1, LIMIT_S * 1000) <= 0 ||
        !is_request(&q, recv(fd, &q, sizeof(q), MSG_DONTWAIT))) {
        ff_close_fd(&k.fd);
        return;
    }
    if (q.kind == DEAD_TAP) {
        serve_tap(fd);
        return;
    }
    b = blocks_of(&q);
    a.rc = begin_watch(&q, &k, agent, b, &why);
    a.there = k.w.there;
    snprintf(a.text, sizeof(a.text), "%s", a.rc ? why.text : "");
    (void)ff_fd_send(fd, &a, sizeof(a), a.rc ? -1 : k.w.fd);
    if (!a.rc && q.kind == WATCH_MEMORY)
        serve_watch(fd, &k.w);
    k.w.blocks = NULL;
    k.w.n = 0;
    kept = xrealloc(kept, (n_kept + 1) * sizeof(*kept));
    kept[n_kept++] = k;
    if (q.kind == WATCH_MEMORY || a.rc) /* views that came to nothing leave a process that may not go on */
        drop_kept(n_kept - 1, q.kind == WATCH_FILES);
    else
        ff_close_fd(&kept[n_kept - 1].w.fd);
}

void watcher_serve(int listener, int alive, pid_t agent)
{
    struct pollfd *p = NULL;

    for (;;) {
        const unsigned n = n_kept;

        p = xrealloc(p, (n + 2) * sizeof(*p));
        p[0] = (struct pollfd){.fd = listener, .events = POLLIN};
        p[1] = (struct pollfd){.fd = alive, .events = POLLIN};
        for (unsigned i = 0; i < n; i++)
            p[2 + i] = (struct pollfd){.fd = kept[i].fd, .events = POLLIN};
        if (poll(p, n + 2, -1) < 0 && errno != EINTR)
            break;
        for (unsigned i = n; i-- > 0;) /* one that is dropped has the last one in its place, which was heard */
            if (p[2 + i].revents)
                hear_kept(i);
        int fd = p[0].revents ? accept4(listener, NULL, NULL, SOCK_CLOEXEC) : -1;
        if (fd >= 0)
            serve_one(fd, agent);
        if (p[1].revents)
            break;
    }
    while (n_kept)
        drop_kept(0, true);
    free(kept);
    kept = NULL;
    free(p);
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

static int ask_watcher(struct watch *w, const char *path, const struct request *q, unsigned limit_s, struct ff_error *err)
{
    const size_t len = offsetof(struct request, block) + q->n * sizeof(q->block[0]);
    const struct timeval limit = {.tv_sec = limit_s};
    struct watch_answer a;

    w->by = watcher_connect(path, err);
    if (w->by < 0)
        return w->by;
    if (send(w->by, q, len, MSG_NOSIGNAL) != (ssize_t)len)
        return ff_error_set(err, errno ? errno : EIO, "watcher %s: %s", path, strerror(errno));
    setsockopt(w->by, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
    int rc = watcher_answer(w, &a, err);
    w->there = a.there;
    return rc;
}

/* To be freed; NULL: too many */
static struct request *new_request(struct watch *w, pid_t pid, int device, const struct outside_block *b, unsigned n,
                                   struct ff_error *err)
{
    *w = (struct watch){.pid = pid, .fd = -1, .there = -1, .by = -1, .blocks = b, .n = n};
    if (n > BLOCKS_MAX) {
        ff_error_set(err, E2BIG, "watcher: %u blocks of memory (permitted: %u)", n, BLOCKS_MAX);
        return NULL;
    }
    struct request *q = xcalloc(1, sizeof(*q));
    q->pid = (uint32_t)pid;
    q->n = n;
    q->device = device;
    for (unsigned i = 0; i < n; i++) {
        q->block[i] = (struct block){.hva = b[i].hva, .len_bytes = b[i].len_bytes, .psize = b[i].psize};
        snprintf(q->block[i].name, NAME_LEN, "%.*s", NAME_LEN - 1, b[i].name);
    }
    return q;
}

int watcher_begin(struct watch *w, const char *path, pid_t pid, int device, const struct outside_block *b, unsigned n,
                  struct ff_error *err)
{
    FF_AUTO_FREE struct request *q = new_request(w, pid, device, b, n, err);
    uint64_t bytes = 0;

    if (!q)
        return -E2BIG;
    for (unsigned i = 0; i < n; i++)
        bytes += b[i].len_bytes;
    int rc = ask_watcher(w, path, q, LIMIT_S + (unsigned)(bytes >> 30), err);
    return rc || w->fd >= 0 ? rc : ff_error_set(err, EPROTO, "watcher %s: no userfaultfd came", path);
}

int watcher_files(struct watch *w, const char *path, pid_t pid, int device, const struct outside_block *b,
                  const struct watch_file *f, unsigned n, unsigned advice, struct ff_error *err)
{
    FF_AUTO_FREE struct request *q = new_request(w, pid, device, b, n, err);

    if (!q)
        return -E2BIG;
    q->kind = WATCH_FILES;
    q->advice = (uint16_t)advice;
    for (unsigned i = 0; i < n; i++)
        q->block[i].file = f[i];
    return ask_watcher(w, path, q, FILES_LIMIT_S, err);
}

int watcher_tap(const char *path, struct ff_error *err)
{
    struct request *q = xcalloc(1, sizeof(*q));
    struct watch w = {.fd = -1, .there = -1, .by = -1};

    q->kind = DEAD_TAP;
    int rc = ask_watcher(&w, path, q, LIMIT_S, err);
    ff_close_fd(&w.by);
    free(q);
    if (!rc && w.fd < 0)
        rc = ff_error_set(err, EBADMSG, "watcher: an answer without a descriptor");
    if (rc)
        ff_close_fd(&w.fd);
    return rc ? rc : w.fd;
}
