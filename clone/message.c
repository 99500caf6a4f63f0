/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * message.c - messages between agent, children and lenders; see message.h
 */
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include "cleanup.h"
#include "error.h"
#include "message.h"
#include "wirebuf.h"

#define MAGIC 0x454e4f4c43464646ull /* "FFFCLONE" */
#define VERSION 5
#define CONNECT_S 10
#define BACKLOG 1024

static const char *const names[] = {
    [FF_CLONE_HELLO] = "HELLO",       [FF_CLONE_REFUSE] = "REFUSE",
    [FF_CLONE_IMAGE] = "IMAGE",       [FF_CLONE_MEMORY] = "MEMORY",
    [FF_CLONE_WATCH] = "WATCH",       [FF_CLONE_ATTACHED] = "ATTACHED",
    [FF_CLONE_LOADED] = "LOADED",     [FF_CLONE_START] = "START",
    [FF_CLONE_READY] = "READY",       [FF_CLONE_RUN] = "RUN",
    [FF_CLONE_RUNNING] = "RUNNING",   [FF_CLONE_COMPLETE] = "COMPLETE",
    [FF_CLONE_LOST] = "LOST",         [FF_CLONE_LINK] = "LINK",
    [FF_CLONE_FEED] = "FEED",
};
_Static_assert(FF_ARRAY_LEN(names) == FF_CLONE_LAST + 1, "a name for every message");

const char *ff_clone_name(enum ff_clone_type type)
{
    return names[type];
}

/* --- sockets --- */

static int open_clone_socket(const char *path, struct sockaddr_un *sa, struct ff_error *err)
{
    *sa = (struct sockaddr_un){.sun_family = AF_UNIX};
    if (!*path || strlen(path) >= sizeof(sa->sun_path))
        return ff_error_set(err, ENAMETOOLONG,
                            "agent's socket: path of %zu bytes (permitted 1..%zu)", strlen(path),
                            sizeof(sa->sun_path) - 1);
    strcpy(sa->sun_path, path);
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    return fd < 0 ? ff_error_set(err, errno, "agent's socket: %s", strerror(errno)) : fd;
}

int ff_clone_listen(const char *path, struct ff_error *err)
{
    struct sockaddr_un sa;
    int fd = open_clone_socket(path, &sa, err);

    if (fd < 0)
        return fd;
    if (!bind(fd, (struct sockaddr *)&sa, sizeof(sa)) && !listen(fd, BACKLOG))
        return fd;
    int e = errno;
    close(fd);
    return ff_error_set(err, e, "agent's socket: listen at %s: %s%s", path, strerror(e),
                        e == EADDRINUSE ? "; remove it, if no agent runs there" : "");
}

/* Memory is given to, and taken from, processes of one user alone */
static int check_peer(int sock, struct ff_error *err)
{
    struct ucred peer;
    socklen_t len = sizeof(peer);

    if (getsockopt(sock, SOL_SOCKET, SO_PEERCRED, &peer, &len) < 0)
        return ff_error_set(err, errno, "agent's socket: find out the peer's user: %s",
                            strerror(errno));
    if (peer.uid && peer.uid != geteuid())
        return ff_error_set(err, EACCES,
                            "agent's socket: process %d is of user %u (permitted: %u, root)",
                            peer.pid, peer.uid, geteuid());
    return 0;
}

int ff_clone_connect(const char *path, struct ff_error *err)
{
    const struct timeval limit = {.tv_sec = CONNECT_S}; /* its backlog may be full */
    struct sockaddr_un sa;
    int fd = open_clone_socket(path, &sa, err);

    if (fd < 0)
        return fd;
    setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit));
    int rc = connect(fd, (struct sockaddr *)&sa, sizeof(sa)) < 0
                 ? ff_error_set(err, errno, "connect to the agent at %s: %s", path, strerror(errno))
                 : check_peer(fd, err);
    if (!rc)
        return fd;
    close(fd);
    return rc;
}

int ff_clone_accept(int listener, struct ff_error *err)
{
    struct pollfd p = {.fd = listener, .events = POLLIN};

    if (poll(&p, 1, 0) <= 0)
        return -EAGAIN;
    int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
    if (fd < 0)
        return ff_error_set(err, errno, "agent's socket: accept: %s", strerror(errno));
    int rc = check_peer(fd, err);
    if (!rc)
        return fd;
    close(fd);
    return rc;
}

/* --- encoding --- */

static void put_hello(struct ff_wirebuf *b, const struct ff_clone_msg *m, struct ff_error *err)
{
    uint8_t table[FF_MSG_MAX];

    ff_wb_put(b, MAGIC, 8);
    ff_wb_put(b, VERSION, 2);
    ff_wb_put(b, m->lends, 2);
    ff_wb_put(b, m->number, 4);
    ff_wb_put(b, m->table.n_regions, 4);
    for (unsigned i = 0; i < m->table.n_regions; i++)
        ff_wb_put(b, m->host[i], 8);
    int len = ff_wire_put_hello(table, &m->table, err);
    if (len < 0)
        b->bad = true;
    else
        ff_wb_put_bytes(b, table, (size_t)len);
}

static void put_memory(struct ff_wirebuf *b, const struct ff_clone_msg *m)
{
    ff_wb_put(b, m->n, 4);
    for (unsigned i = 0; i < m->n; i++) {
        ff_wb_put(b, m->memory[i].region, 4);
        ff_wb_put(b, m->memory[i].present, 4);
        ff_wb_put(b, m->memory[i].offset, 8);
    }
}

static int encode(uint8_t *buf, const struct ff_clone_msg *m, struct ff_error *err)
{
    struct ff_wirebuf b = {.data = buf, .len = FF_CLONE_MSG_MAX};
    struct ff_error why = {.code = 0};

    ff_wb_put(&b, m->type, 4);
    if (m->type == FF_CLONE_HELLO) {
        put_hello(&b, m, &why);
    } else if (m->type == FF_CLONE_REFUSE || m->type == FF_CLONE_LOST) {
        ff_wb_put(&b, (uint32_t)m->code, 4);
        ff_wb_put_bytes(&b, m->text, strlen(m->text));
    } else if (m->type == FF_CLONE_IMAGE) {
        ff_wb_put(&b, m->state_bytes, 8);
        ff_wb_put(&b, m->complete, 4);
    } else if (m->type == FF_CLONE_MEMORY) {
        put_memory(&b, m);
    } else if (m->type == FF_CLONE_FEED) {
        ff_wb_put_bytes(&b, m->key, sizeof(m->key));
        ff_wb_put_bytes(&b, m->text, strlen(m->text));
    } else if (m->type == FF_CLONE_ATTACHED) {
        ff_wb_put_bytes(&b, m->session, sizeof(m->session));
    }
    if (b.bad)
        return why.code
                   ? ff_error_set(err, why.code, "%s", why.text)
                   : ff_error_set(err, E2BIG, "agent's socket: %s is too long", names[m->type]);
    return (int)b.pos;
}

int ff_clone_send(int sock, const struct ff_clone_msg *m, struct ff_error *err)
{
    union {
        struct cmsghdr head;
        char space[CMSG_SPACE(FF_CLONE_FILES * sizeof(int))];
    } control = {.space = {0}};
    uint8_t buf[FF_CLONE_MSG_MAX];
    int len = encode(buf, m, err);

    if (len < 0)
        return len;
    struct iovec iov = {.iov_base = buf, .iov_len = (size_t)len};
    struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1};
    if (m->n_fds) {
        msg.msg_control = control.space;
        msg.msg_controllen = CMSG_SPACE(m->n_fds * sizeof(int));
        control.head = (struct cmsghdr){.cmsg_level = SOL_SOCKET,
                                        .cmsg_type = SCM_RIGHTS,
                                        .cmsg_len = CMSG_LEN(m->n_fds * sizeof(int))};
        memcpy(CMSG_DATA(&control.head), m->fd, m->n_fds * sizeof(int));
    }
    ssize_t sent = sendmsg(sock, &msg, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (m->type == FF_CLONE_FEED)
        explicit_bzero(buf, (size_t)len);
    if (sent == len)
        return 0;
    /* too many descriptors under way: their receivers will take them */
    int e = errno == ETOOMANYREFS ? EAGAIN : errno;
    return ff_error_set(err, e, "agent's socket: send %s: %s", names[m->type], strerror(e));
}

int ff_clone_send_type(int sock, enum ff_clone_type type, struct ff_error *err)
{
    struct ff_clone_msg m = {.type = type};

    return ff_clone_send(sock, &m, err);
}

int ff_clone_send_why(int sock, enum ff_clone_type type, const struct ff_error *why)
{
    struct ff_clone_msg m = {.type = type, .code = why->code};

    snprintf(m.text, sizeof(m.text), "%.*s", FF_WIRE_TEXT_MAX, why->text);
    return ff_clone_send(sock, &m, NULL);
}

/* --- decoding --- */

static int get_hello(struct ff_wirebuf *b, struct ff_clone_msg *m, struct ff_error *err)
{
    uint64_t magic = ff_wb_get(b, 8), version = ff_wb_get(b, 2), lends = ff_wb_get(b, 2);
    m->number = (uint32_t)ff_wb_get(b, 4);
    uint64_t n = ff_wb_get(b, 4);

    if (b->bad || magic != MAGIC || version != VERSION || lends > 1 || !n ||
        n > FF_WIRE_REGIONS_MAX)
        return ff_error_set(
            err, EPROTO,
            "agent's socket: HELLO: magic 0x%llx, version %llu, kind %llu, "
            "%llu regions (want 0x%llx, %d, 0..1, 1..%d): both ends need one version",
            (unsigned long long)magic, (unsigned long long)version, (unsigned long long)lends,
            (unsigned long long)n, MAGIC, VERSION, FF_WIRE_REGIONS_MAX);
    m->lends = lends;
    for (uint64_t i = 0; i < n; i++)
        m->host[i] = ff_wb_get(b, 8);
    size_t left = ff_wb_left(b);
    const uint8_t *table = ff_wb_take(b, left);
    int type = table ? ff_wire_type(table, left, err) : 0;
    if (type < 0)
        return type;
    if (type != FF_MSG_HELLO)
        return ff_error_set(err, EPROTO, "agent's socket: HELLO: without a table");
    int rc = ff_wire_get_hello(table, left, &m->table, err);
    if (!rc && m->table.n_regions != n) {
        ff_hello_free(&m->table);
        rc = ff_error_set(err, EPROTO, "agent's socket: HELLO: %llu addresses, %u regions",
                          (unsigned long long)n, m->table.n_regions);
    }
    return rc;
}

static void get_words(struct ff_wirebuf *b, struct ff_clone_msg *m)
{
    size_t len = ff_wb_left(b);
    const uint8_t *text = ff_wb_take(b, len);

    if (len > FF_WIRE_TEXT_MAX)
        b->bad = true;
    if (b->bad || !text)
        return;
    for (size_t i = 0; i < len; i++)
        m->text[i] = (char)(text[i] >= ' ' && text[i] < 127 ? text[i] : '?');
}

static void get_why(struct ff_wirebuf *b, struct ff_clone_msg *m)
{
    m->code = (int)ff_wb_get(b, 4);
    if (m->code <= 0 || m->code > 4095)
        b->bad = true;
    get_words(b, m);
}

static void get_memory(struct ff_wirebuf *b, struct ff_clone_msg *m)
{
    m->n = (uint32_t)ff_wb_get(b, 4);
    if (!m->n || m->n > FF_CLONE_FILES)
        b->bad = true;
    for (unsigned i = 0; i < m->n && !b->bad; i++) {
        struct ff_clone_memory *e = &m->memory[i];
        e->region = (uint32_t)ff_wb_get(b, 4);
        e->present = ff_wb_get(b, 4);
        e->offset = ff_wb_get(b, 8);
        if (e->region >= FF_WIRE_REGIONS_MAX || e->offset > INT64_MAX)
            b->bad = true;
    }
}

/* @m has its descriptors by now */
static int decode(uint8_t *buf, size_t len, struct ff_clone_msg *m, struct ff_error *err)
{
    struct ff_wirebuf b = {.data = buf, .len = len};
    uint64_t type = ff_wb_get(&b, 4);
    unsigned least = 0, most = 0;

    if (!type || type > FF_CLONE_LAST)
        return ff_error_set(err, EPROTO, "agent's socket: message of type %llu, %zu bytes",
                            (unsigned long long)type, len);
    m->type = (enum ff_clone_type)type;
    if (m->type == FF_CLONE_HELLO) {
        int rc = get_hello(&b, m, err);
        if (rc)
            return rc;
    } else if (m->type == FF_CLONE_REFUSE || m->type == FF_CLONE_LOST) {
        get_why(&b, m);
    } else if (m->type == FF_CLONE_IMAGE) {
        m->state_bytes = ff_wb_get(&b, 8);
        m->complete = ff_wb_get(&b, 4);
        least = most = 1;
        if (!m->state_bytes || m->state_bytes > FF_WIRE_STATE_MAX)
            b.bad = true;
    } else if (m->type == FF_CLONE_MEMORY) {
        get_memory(&b, m);
        least = most = m->n;
    } else if (m->type == FF_CLONE_WATCH) {
        most = 1;
    } else if (m->type == FF_CLONE_FEED) {
        const uint8_t *key = ff_wb_take(&b, sizeof(m->key));
        if (key)
            memcpy(m->key, key, sizeof(m->key));
        get_words(&b, m);
    } else if (m->type == FF_CLONE_ATTACHED) {
        const uint8_t *session = ff_wb_take(&b, sizeof(m->session));
        if (session)
            memcpy(m->session, session, sizeof(m->session));
    } else if (m->type == FF_CLONE_LINK) {
        least = most = FF_TCP_SOCKETS;
    }
    if (!b.bad && !ff_wb_left(&b) && m->n_fds >= least && m->n_fds <= most)
        return 0;
    ff_hello_free(&m->table);
    return ff_error_set(err, EPROTO, "agent's socket: %s: %zu bytes, %u descriptors", names[type],
                        len, m->n_fds);
}

static void take_fds(struct msghdr *msg, struct ff_clone_msg *m)
{
    for (struct cmsghdr *c = CMSG_FIRSTHDR(msg); c; c = CMSG_NXTHDR(msg, c)) {
        if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS)
            continue;
        unsigned n = (unsigned)((c->cmsg_len - CMSG_LEN(0)) / sizeof(int));
        for (unsigned i = 0; i < n && m->n_fds < FF_CLONE_FILES; i++)
            memcpy(&m->fd[m->n_fds++], CMSG_DATA(c) + i * sizeof(int), sizeof(int));
    }
}

int ff_clone_recv(int sock, struct ff_clone_msg *m, struct ff_error *err)
{
    union {
        struct cmsghdr head;
        char space[CMSG_SPACE(FF_CLONE_FILES * sizeof(int))];
    } control;
    uint8_t buf[FF_CLONE_MSG_MAX];
    struct iovec iov = {.iov_base = buf, .iov_len = sizeof(buf)};
    struct msghdr msg;
    ssize_t len;

    memset(m, 0, sizeof(*m));
    /* a peer that left what we sent unread is reported before what it has sent: ask again */
    for (int turn = 0; turn < 2; turn++) {
        msg = (struct msghdr){.msg_iov = &iov, .msg_iovlen = 1, .msg_control = control.space,
                              .msg_controllen = sizeof(control.space)};
        len = recvmsg(sock, &msg, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
        if (len >= 0 || errno != ECONNRESET)
            break;
    }
    if (len < 0 && (errno == EAGAIN || errno == EINTR))
        return -EAGAIN;
    if (len <= 0)
        return ff_error_set(err, ECONNRESET, "agent's socket: the peer has ended");
    take_fds(&msg, m);
    int rc = msg.msg_flags & (MSG_TRUNC | MSG_CTRUNC)
                 ? ff_error_set(err, EPROTO, "agent's socket: a message too long")
                 : decode(buf, (size_t)len, m, err);
    if (m->type == FF_CLONE_FEED) /* it has a key */
        explicit_bzero(buf, (size_t)len);
    if (rc)
        ff_clone_close(m);
    return rc;
}

int ff_clone_expect(int sock, int cancel_fd, struct ff_clone_msg *m, int timeout_ms,
                    struct ff_error *err)
{
    uint64_t end = ff_now_ns() + (uint64_t)timeout_ms * 1000000u;
    int rc;

    while ((rc = ff_clone_recv(sock, m, err)) == -EAGAIN) {
        struct pollfd p[2] = {{.fd = sock, .events = POLLIN}, {.fd = cancel_fd, .events = POLLIN}};
        int64_t left = timeout_ms < 0 ? -1 : (int64_t)(end - ff_now_ns()) / 1000000;
        if (timeout_ms >= 0 && left <= 0)
            return ff_error_set(err, ETIMEDOUT, "agent's socket: no message for %d s",
                                timeout_ms / 1000);
        poll(p, 2, (int)left);
        if (p[1].revents)
            return ff_error_set(err, ECANCELED, "canceled");
    }
    if (!rc && (m->type == FF_CLONE_REFUSE || m->type == FF_CLONE_LOST)) /* canceled: not by us */
        return ff_error_set(err, m->code == ECANCELED ? ECONNABORTED : m->code, "%s", m->text);
    return rc;
}

void ff_clone_close(struct ff_clone_msg *m)
{
    for (unsigned i = 0; i < m->n_fds; i++)
        ff_close_fd(&m->fd[i]);
    m->n_fds = 0;
    explicit_bzero(m->key, sizeof(m->key));
    ff_hello_free(&m->table);
}
