/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * tcp_listen.c - who connects: control connections, and the queues of a session
 */
/**
 * DOC: Theory of Operation
 *
 * Picture      a connection, while the queues of a session are waited for:
 *                says JOIN of the session    it is the queue
 *                says JOIN of another        dropped
 *                says something else         held: another source perhaps, which is heard when
 *                                            this one fails (tcp_listen_take())
 *                says nothing                held likewise; none waits for another
 *
 *              With a key a control connection passes the gate first (tcp_gate.c); what is held
 *              goes there.
 * Limits       HELD_MAX connections that have not said who they are: when one more comes, the one
 *              that has had most time to say it goes. A source speaks as soon as it is connected.
 *              REST_MS: out of descriptors, which others may give back.
 */
#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "cleanup.h"
#include "error.h"
#include "log.h"
#include "same_user.h"
#include "tcp_listen.h"
#include "tcp_socket.h"
#include "tcp_wire.h"

#define PORT_TRIES 8 /* a port that is free for IPv4 is another's for IPv6 seldom */
#define LISTEN_MAX 8u
#define HELD_MAX 64u
#define REST_MS 100

struct held {
    int fd;
    bool spoke; /* no join: for tcp_listen_take() */
};

struct ff_listener {
    int fd[LISTEN_MAX]; /* one an address of the name, IPv4 and IPv6 */
    unsigned n;
    int cancel_fd, timeout_ms;
    struct held held[HELD_MAX]; /* the oldest first */
    unsigned n_held;
    unsigned long dropped; /* of them, of joins, and of those that may not be heard */
    struct ff_tos tos;     /* of links */
    bool insecure;         /* without a key whoever connects is heard, else who is of this user */
    struct ff_key *key;
    struct tcp_gate *gate; /* with a key: who has connected, and has not proved that it has it */
};

_Static_assert(LISTEN_MAX + TCP_GATE_MAX <= TCP_LISTEN_FDS, "tcp_listen_poll() has room for all");

static int unhold(struct ff_listener *ls, unsigned i)
{
    int fd = ls->held[i].fd, one = 1;

    setsockopt(fd, SOL_SOCKET, SO_RCVLOWAT, &one, sizeof(one));
    memmove(ls->held + i, ls->held + i + 1, (--ls->n_held - i) * sizeof(ls->held[0]));
    return fd;
}

static void hold_connection(struct ff_listener *ls, int fd)
{
    int lowat = TCP_JOIN_LEN; /* what is shorter wakes nobody */

    setsockopt(fd, SOL_SOCKET, SO_RCVLOWAT, &lowat, sizeof(lowat));
    if (ls->n_held == HELD_MAX) {
        if (ff_log_due(&ls->dropped))
            ff_log(FF_LOG_WARN, "tcp: %u connections without a join or HELLO; the oldest dropped "
                   "(%lu so far)", HELD_MAX, ls->dropped);
        close(unhold(ls, 0));
    }
    ls->held[ls->n_held++] = (struct held){.fd = fd};
}

/* Others may give back what accept() wants: to ask at once would be to ask without rest */
static bool is_out_of_fds(int rc)
{
    return rc == -EMFILE || rc == -ENFILE || rc == -ENOBUFS || rc == -ENOMEM;
}

/* A new connection, if there is one now: its descriptor, or -errno */
static int accept_now(struct ff_listener *ls)
{
    int rc = -EAGAIN;

    for (unsigned i = 0; i < ls->n; i++) {
        int fd = accept4(ls->fd[i], NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (fd >= 0) {
            tcp_set_options(fd, ls->timeout_ms);
            return fd;
        }
        if (errno != EAGAIN && errno != EINTR && errno != ECONNABORTED)
            rc = -errno;
    }
    return rc;
}

unsigned tcp_listen_poll(const struct ff_listener *ls, bool resting, int *timeout_ms,
                         struct pollfd p[TCP_LISTEN_FDS])
{
    unsigned n = 0;

    for (unsigned i = 0; i < ls->n && !resting; i++)
        p[n++] = (struct pollfd){.fd = ls->fd[i], .events = POLLIN};
    if (!ls->gate)
        return n;
    int late_ms = tcp_gate_ms(ls->gate);
    if (late_ms >= 0 && (*timeout_ms < 0 || late_ms < *timeout_ms))
        *timeout_ms = late_ms;
    return n + tcp_gate_poll(ls->gate, p + n);
}

/* Until somebody connects, one of @more (after @n_more of them) shows something, or @end: 0,
 * -ETIMEDOUT, -ECANCELED. @resting: nobody can be accepted now */
static int wait_any(struct ff_listener *ls, struct pollfd *more, unsigned n_more, int timeout_ms,
                    bool resting)
{
    struct pollfd p[1 + LISTEN_MAX + 1 + HELD_MAX] = {{.fd = ls->cancel_fd, .events = POLLIN}};
    unsigned n = 1;

    for (unsigned i = 0; i < ls->n && !resting; i++)
        p[n++] = (struct pollfd){.fd = ls->fd[i], .events = POLLIN};
    unsigned first = n;
    for (unsigned i = 0; i < n_more; i++)
        p[n++] = more[i];
    if (resting)
        timeout_ms = timeout_ms < 0 ? REST_MS : FF_MIN(timeout_ms, REST_MS);
    int rc = poll(p, n, timeout_ms);
    if (rc < 0 && errno != EINTR)
        return -errno;
    if (rc > 0 && p[0].revents)
        return -ECANCELED;
    for (unsigned i = 0; i < n_more; i++)
        more[i].revents = rc > 0 ? p[first + i].revents : 0;
    return rc || resting ? 0 : -ETIMEDOUT;
}

const struct ff_tos *tcp_listen_tos(const struct ff_listener *ls)
{
    return &ls->tos;
}

int tcp_listen_timeout_ms(const struct ff_listener *ls)
{
    return ls->timeout_ms;
}

int tcp_listen_cancel_fd(const struct ff_listener *ls)
{
    return ls->cancel_fd;
}

/* Somebody may have connected, or said something at the gate: 0; -ECANCELED; -ETIMEDOUT, which is
 * not that somebody is late */
static int wait_gate(struct ff_listener *ls, int timeout_ms, bool resting)
{
    struct pollfd p[1 + TCP_LISTEN_FDS] = {{.fd = ls->cancel_fd, .events = POLLIN}};
    int until_ms = timeout_ms;

    unsigned n = 1 + tcp_listen_poll(ls, resting, &until_ms, p + 1);
    if (resting)
        until_ms = until_ms < 0 ? REST_MS : FF_MIN(until_ms, REST_MS);
    int rc = poll(p, n, until_ms);
    if (rc < 0 && errno != EINTR)
        return -errno;
    if (rc > 0 && p[0].revents)
        return -ECANCELED;
    return rc || until_ms != timeout_ms ? 0 : -ETIMEDOUT;
}

/* As tcp_listen_take(): who has the key */
static int take_through_gate(struct ff_listener *ls, int timeout_ms, const struct ff_epoch **e)
{
    uint64_t end = ff_now_ns() + (uint64_t)FF_MAX(timeout_ms, 0) * 1000000u;

    for (;;) {
        int fd = -1;
        for (unsigned i = 0; i < TCP_GATE_TURN; i++) { /* the others come with the next turn */
            fd = ls->n_held ? unhold(ls, 0) : accept_now(ls);
            if (fd < 0)
                break;
            tcp_gate_add(ls->gate, fd);
        }
        bool resting = is_out_of_fds(fd);
        int known = tcp_gate_next(ls->gate, e);
        if (known >= 0 || (fd < 0 && fd != -EAGAIN && !resting))
            return known >= 0 ? known : fd;
        if (ls->n_held)
            continue;
        int left = timeout_ms < 0 ? -1 : tcp_ms_left(end);
        if (!left)
            return resting ? fd : -ETIMEDOUT;
        int rc = wait_gate(ls, left, resting);
        if (rc)
            return rc;
    }
}

/* Without a key: may @fd be heard? Else it is dropped */
static bool may_be_heard(struct ff_listener *ls, int fd)
{
    struct ff_error why;

    if (ls->insecure || !ff_same_user(fd, &why))
        return true;
    if (ff_log_due(&ls->dropped))
        ff_log(FF_LOG_WARN, "%s, and " FF_LINK_NO_KEY "; connection dropped (%lu so far)", why.text,
               ls->dropped);
    close(fd);
    return false;
}

int tcp_listen_take(struct ff_listener *ls, int timeout_ms, const struct ff_epoch **e)
{
    uint64_t end = ff_now_ns() + (uint64_t)FF_MAX(timeout_ms, 0) * 1000000u;

    *e = NULL;
    if (ls->gate)
        return take_through_gate(ls, timeout_ms, e);
    for (;;) {
        int fd = ls->n_held ? unhold(ls, 0) : accept_now(ls);
        bool dropped = fd >= 0 && !may_be_heard(ls, fd), resting = is_out_of_fds(fd);
        if (!dropped && (fd >= 0 || (fd != -EAGAIN && !resting)))
            return fd;
        int left = timeout_ms < 0 ? -1 : tcp_ms_left(end);
        if (dropped && !left) /* however many more there are */
            return -ETIMEDOUT;
        if (ls->n_held)
            continue;
        int rc = wait_any(ls, NULL, 0, left, resting);
        if (resting && !left)
            return fd;
        if (rc)
            return rc;
    }
}

/* What @i says: 1: it is queue @k by @tokens, and is not held any more; 0: nothing yet, or that it
 * is no queue; -1: it is gone */
static int read_join(struct ff_listener *ls, unsigned i, const struct tcp_tokens *tokens,
                     const int *have, int *out, enum ff_queue *k)
{
    uint8_t join[TCP_JOIN_LEN];
    struct ff_error why;

    ssize_t n = recv(ls->held[i].fd, join, sizeof(join), MSG_PEEK | MSG_DONTWAIT);
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return 0;
    ls->held[i].spoke = n == (ssize_t)sizeof(join) && !tcp_is_join(join);
    if (ls->held[i].spoke)
        return 0;
    int rc = n < (ssize_t)sizeof(join)
                 ? ff_error_set(&why, n < 0 ? errno : ECONNRESET, "tcp: read join: %s",
                                strerror(n < 0 ? errno : ECONNRESET))
                 : tcp_join_decode(join, tokens, k, &why);
    if (!rc && have[*k] >= 0)
        rc = ff_error_set(&why, EEXIST, "tcp: read join: queue %u is open already", *k);
    *out = unhold(ls, i);
    if (rc) {
        if (ff_log_due(&ls->dropped))
            ff_log(FF_LOG_WARN, "%s; connection dropped (%lu so far)", why.text, ls->dropped);
        close(*out);
        return -1;
    }
    recv(*out, join, sizeof(join), MSG_DONTWAIT);
    return 1;
}

int tcp_listen_joins(struct ff_listener *ls, int ctrl_fd, const struct tcp_tokens *tokens,
                     int timeout_ms, int fd[FF_QUEUES], struct ff_error *err)
{
    uint64_t end = ff_now_ns() + (uint64_t)timeout_ms * 1000000u;
    bool resting = false;

    for (unsigned k = 0; k < FF_QUEUES; k++)
        fd[k] = -1;
    while (fd[FF_QUEUE_FAULT] < 0 || fd[FF_QUEUE_PREFILL] < 0) {
        struct pollfd p[1 + HELD_MAX] = {{.fd = ctrl_fd, .events = POLLRDHUP}};
        unsigned n = ls->n_held;
        bool news = false;
        enum ff_queue k;
        int got;

        for (unsigned i = 0; i < n; i++)
            p[1 + i] = (struct pollfd){.fd = ls->held[i].spoke ? -1 : ls->held[i].fd,
                                       .events = POLLIN};
        int rc = wait_any(ls, p, 1 + n, tcp_ms_left(end), resting);
        for (unsigned i = n; i-- > 0 && !rc;) { /* those behind are looked at by now */
            if (!p[1 + i].revents)
                continue;
            news = true;
            if (read_join(ls, i, tokens, fd, &got, &k) == 1)
                fd[k] = got;
        }
        int new = rc ? rc : accept_now(ls);
        resting = is_out_of_fds(new);
        if (new >= 0) {
            hold_connection(ls, new);
            news = true;
        }
        /* messages may be there already, since a join can come later than what follows it;
         * only the end of the control connection says that the source has left */
        if (!rc && !news && p[0].revents)
            rc = -ECONNRESET;
        if (!rc && !tcp_ms_left(end))
            rc = -ETIMEDOUT;
        if (rc)
            return ff_error_set(err, -rc, "tcp: wait for the source's queues: %s", strerror(-rc));
    }
    return 0;
}

static in_port_t *port_of(struct sockaddr *sa)
{
    return sa->sa_family == AF_INET6 ? &((struct sockaddr_in6 *)sa)->sin6_port
                                     : &((struct sockaddr_in *)sa)->sin_port;
}

static int listen_addr(const struct addrinfo *a)
{
    FF_AUTO_CLOSE int fd =
        socket(a->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    int one = 1;

    if (fd < 0)
        return -errno;
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
    if (a->ai_family == AF_INET6)
        setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &one, sizeof(one));
    if (bind(fd, a->ai_addr, a->ai_addrlen) < 0 || listen(fd, 8) < 0)
        return -errno;
    int out = fd;
    fd = -1;
    return out;
}

/* Has the list had the address of @a before? Whatever the ports */
static bool is_again(const struct addrinfo *list, const struct addrinfo *a)
{
    for (const struct addrinfo *e = list; e != a; e = e->ai_next) {
        if (e->ai_family != a->ai_family)
            continue;
        const struct sockaddr_in6 *e6 = (void *)e->ai_addr, *a6 = (void *)a->ai_addr;
        const struct sockaddr_in *e4 = (void *)e->ai_addr, *a4 = (void *)a->ai_addr;
        if (a->ai_family == AF_INET6 ? e6->sin6_scope_id == a6->sin6_scope_id &&
                                           IN6_ARE_ADDR_EQUAL(&e6->sin6_addr, &a6->sin6_addr)
                                     : e4->sin_addr.s_addr == a4->sin_addr.s_addr)
            return true;
    }
    return false;
}

/* The addresses of one name have one port: if the kernel is to choose it, what it chose for the first.
 * -EADDRINUSE: another has it at a later one; none is open then */
static int listen_all(struct ff_listener *ls, struct addrinfo *list)
{
    in_port_t asked = *port_of(list->ai_addr);
    int rc = 0;

    for (struct addrinfo *a = list; a && !rc && ls->n < FF_ARRAY_LEN(ls->fd); a = a->ai_next) {
        if (is_again(list, a)) /* a hosts file may name it twice */
            continue;
        *port_of(a->ai_addr) = ls->n ? htons((uint16_t)ff_tcp_port(ls)) : asked;
        int fd = listen_addr(a);
        /* a host without IPv6 says so here: not an error while another address works */
        if (fd >= 0)
            ls->fd[ls->n++] = fd;
        else if (fd != -EAFNOSUPPORT && fd != -EADDRNOTAVAIL)
            rc = fd;
    }
    while (rc && ls->n)
        close(ls->fd[--ls->n]);
    *port_of(list->ai_addr) = asked;
    return rc;
}

int ff_tcp_listen(const struct ff_link_params *p, struct ff_listener **out, struct ff_error *err)
{
    struct addrinfo *list;
    int rc = tcp_resolve(p, true, &list, err);
    if (rc)
        return rc;

    struct ff_listener *ls = calloc(1, sizeof(*ls));
    if (!ls) {
        freeaddrinfo(list);
        return ff_error_set(err, ENOMEM, "tcp: listen: out of memory");
    }
    ls->timeout_ms = p->timeout_ms;
    ls->cancel_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    rc = ls->cancel_fd < 0 ? -errno : 0;
    ls->insecure = p->insecure;
    ls->tos = p->tos;
    ls->key = ff_key_ref(p->key);
    if (!rc && ls->key)
        rc = tcp_gate_new(ls->key, &ls->gate, NULL);
    unsigned tries = strcmp(p->port, "0") ? 1 : PORT_TRIES;
    while (!rc && tries-- && (rc = listen_all(ls, list)) == -EADDRINUSE && tries)
        rc = 0;
    freeaddrinfo(list);
    if (!rc && !ls->n)
        rc = -EADDRNOTAVAIL;
    if (rc) {
        ff_tcp_listener_free(ls);
        return ff_error_set(err, -rc, "tcp: listen on %s:%s: %s%s",
                            p->host && *p->host ? p->host : "*", p->port, strerror(-rc),
                            rc == -EADDRINUSE ? "; choose another port" : "");
    }
    *out = ls;
    return 0;
}

unsigned ff_tcp_port(const struct ff_listener *ls)
{
    struct sockaddr_storage sa;
    socklen_t len = sizeof(sa);

    if (getsockname(ls->fd[0], (struct sockaddr *)&sa, &len) < 0)
        return 0;
    return ntohs(*port_of((struct sockaddr *)&sa));
}

void ff_tcp_listener_cancel(struct ff_listener *ls)
{
    eventfd_write(ls->cancel_fd, 1);
}

void ff_tcp_listener_free(struct ff_listener *ls)
{
    if (!ls)
        return;
    for (unsigned i = 0; i < ls->n; i++)
        close(ls->fd[i]);
    for (unsigned i = 0; i < ls->n_held; i++)
        close(ls->held[i].fd);
    tcp_gate_free(ls->gate);
    ff_key_unref(ls->key);
    ff_close_fd(&ls->cancel_fd);
    free(ls);
}
