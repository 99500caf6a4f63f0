/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * tcp_socket.c - sockets with limits: connect, send and receive, all or nothing
 */
#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include "cleanup.h"
#include "error.h"
#include "failpoint.h"
#include "tcp_socket.h"

/* newer than the C library's headers */
#ifndef TCP_RTO_MIN_US
#define TCP_RTO_MIN_US 45
#define TCP_DELACK_MAX_US 46
#endif

#define RTO_MIN_US 20000
#define DELACK_MAX_US 10000 /* two ticks at least */

int tcp_ms_left(uint64_t end_ns)
{
    uint64_t now = ff_now_ns();
    return now >= end_ns ? 0 : (int)((end_ns - now + 999999) / 1000000);
}

/* Wait for @events on @fd: 0, -ETIMEDOUT, -ECANCELED (@cancel_fd readable) */
int tcp_wait_fd(int fd, short events, int cancel_fd, int timeout_ms)
{
    struct pollfd p[2] = {{.fd = fd, .events = events}, {.fd = cancel_fd, .events = POLLIN}};
    uint64_t end = ff_now_ns() + (uint64_t)FF_MAX(timeout_ms, 0) * 1000000u;

    for (;;) {
        int rc = poll(p, 2, timeout_ms < 0 ? -1 : tcp_ms_left(end));
        if (rc < 0 && errno == EINTR)
            continue;
        if (rc < 0)
            return -errno;
        if (cancel_fd >= 0 && p[1].revents)
            return -ECANCELED;
        return rc ? 0 : -ETIMEDOUT;
    }
}

/* Exactly @len bytes within @timeout_ms */
int tcp_recv_all(int fd, void *buf, size_t len, int cancel_fd, int timeout_ms)
{
    uint64_t end = ff_now_ns() + (uint64_t)timeout_ms * 1000000u;
    size_t have = 0;

    while (have < len) {
        ssize_t n = recv(fd, (uint8_t *)buf + have, len - have, MSG_DONTWAIT);
        if (n > 0) {
            have += (size_t)n;
            continue;
        }
        if (n == 0)
            return -ECONNRESET;
        if (errno != EAGAIN && errno != EINTR)
            return -errno;
        int rc = tcp_wait_fd(fd, POLLIN, cancel_fd, tcp_ms_left(end));
        if (rc)
            return rc;
    }
    return 0;
}

int tcp_send_all(int fd, struct iovec *iov, size_t n_iov, int cancel_fd, int timeout_ms)
{
    uint64_t end = ff_now_ns() + (uint64_t)timeout_ms * 1000000u;
    bool some = false; /* a part is out */

    while (n_iov) {
        struct msghdr msg = {.msg_iov = iov, .msg_iovlen = n_iov};
        ssize_t n = sendmsg(fd, &msg, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (n < 0 && errno != EAGAIN && errno != EINTR)
            return some ? -EIO : -errno;
        if (n < 0) {
            int rc = tcp_wait_fd(fd, POLLOUT, cancel_fd, tcp_ms_left(end));
            if (rc)
                return rc;
            continue;
        }
        some = true;
        while (n_iov && (size_t)n >= iov->iov_len) {
            n -= (ssize_t)iov->iov_len;
            iov++;
            n_iov--;
        }
        if (n_iov) {
            iov->iov_base = (uint8_t *)iov->iov_base + n;
            iov->iov_len -= (size_t)n;
        }
    }
    return 0;
}

void tcp_set_options(int fd, int timeout_ms)
{
    int one = 1, idle = FF_MAX(timeout_ms / 3000, 1), count = 3;
    unsigned user = (unsigned)timeout_ms;

    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
    setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &one, sizeof(one));
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle, sizeof(idle));
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &idle, sizeof(idle));
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &count, sizeof(count));
    setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &user, sizeof(user));
}

/* The same address, or both in 127.0.0.0/8: who connects to 127.0.0.2 comes from 127.0.0.1 */
static bool is_one_host(struct in_addr a, struct in_addr b)
{
    return a.s_addr == b.s_addr || (ntohl(a.s_addr) >> 24 == IN_LOOPBACKNET &&
                                    ntohl(b.s_addr) >> 24 == IN_LOOPBACKNET);
}

bool tcp_is_local(int fd)
{
    struct sockaddr_storage here = {0}, there = {0};
    socklen_t here_len = sizeof(here), there_len = sizeof(there);

    if (!getsockname(fd, (struct sockaddr *)&here, &here_len) && here.ss_family == AF_UNIX)
        return true;
    if (getsockname(fd, (struct sockaddr *)&here, &here_len) ||
        getpeername(fd, (struct sockaddr *)&there, &there_len) ||
        here.ss_family != there.ss_family)
        return false;
    if (here.ss_family == AF_INET)
        return is_one_host(((struct sockaddr_in *)&here)->sin_addr,
                           ((struct sockaddr_in *)&there)->sin_addr);
    return here.ss_family == AF_INET6 &&
           !memcmp(&((struct sockaddr_in6 *)&here)->sin6_addr,
                   &((struct sockaddr_in6 *)&there)->sin6_addr, sizeof(struct in6_addr));
}

void tcp_set_congestion(int fd)
{
    /* bbr, where it is the default, paces what it sends: 4 GB/s on a loopback that carries 10 */
    if (tcp_is_local(fd))
        setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, "cubic", strlen("cubic"));
}

void tcp_set_tos(int fd, int tos)
{
    int priority;
    socklen_t len = sizeof(priority);
    bool known = !getsockopt(fd, SOL_SOCKET, SO_PRIORITY, &priority, &len);

    setsockopt(fd, IPPROTO_IP, IP_TOS, &tos, sizeof(tos));
    setsockopt(fd, IPPROTO_IPV6, IPV6_TCLASS, &tos, sizeof(tos));
    if (known && priority) /* IP_TOS has set one by the class */
        setsockopt(fd, SOL_SOCKET, SO_PRIORITY, &priority, sizeof(priority));
}

void tcp_set_urgent(int fd)
{
    int interactive = 6; /* TC_PRIO_INTERACTIVE */

    tcp_set_tos(fd, 0x48); /* DSCP AF21, as ssh at a terminal */
    setsockopt(fd, SOL_SOCKET, SO_PRIORITY, &interactive, sizeof(interactive));
    if (tcp_is_local(fd))
        return; /* nothing is lost here */
    /* bbr paces at what it has seen, which is little when one page is asked for after the other */
    setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, "cubic", strlen("cubic"));
    /* what is lost at the end of a page is sent again after RTO_MIN_US, not 200 ms; so that an
     * acknowledgement comes before, it waits for less than 40 ms. Linux 6.15 */
    setsockopt(fd, IPPROTO_TCP, TCP_RTO_MIN_US, &(int){RTO_MIN_US}, sizeof(int));
    setsockopt(fd, IPPROTO_TCP, TCP_DELACK_MAX_US, &(int){DELACK_MAX_US}, sizeof(int));
}

int tcp_connect_addr(const struct sockaddr *sa, socklen_t len, int cancel_fd, int timeout_ms)
{
    FF_AUTO_CLOSE int fd = socket(sa->sa_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return -errno;
    tcp_set_options(fd, timeout_ms);
    if (connect(fd, sa, len) < 0) {
        int so = 0;
        socklen_t so_len = sizeof(so);
        if (errno != EINPROGRESS)
            return -errno;
        int rc = tcp_wait_fd(fd, POLLOUT, cancel_fd, timeout_ms);
        if (rc)
            return rc;
        getsockopt(fd, SOL_SOCKET, SO_ERROR, &so, &so_len);
        if (so)
            return -so;
    }
    int out = fd;
    fd = -1;
    return out;
}

/* Addresses that are known, each with @p's port; glibc frees what was appended like the rest */
static int list_peers(const struct ff_link_params *p, struct addrinfo **out)
{
    const struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE | AI_NUMERICHOST};
    struct addrinfo **end = out;
    int rc = 0;

    *out = NULL;
    for (unsigned i = 0; i < p->peers->n && !rc; i++) {
        char host[NI_MAXHOST];
        rc = getnameinfo((const struct sockaddr *)&p->peers->at[i].addr, p->peers->at[i].len, host, sizeof(host),
                         NULL, 0, NI_NUMERICHOST);
        if (!rc)
            rc = getaddrinfo(host, p->port, &hints, end);
        while (!rc && *end)
            end = &(*end)->ai_next;
    }
    if (rc && *out)
        freeaddrinfo(*out);
    return rc;
}

int tcp_resolve(const struct ff_link_params *p, bool passive, struct addrinfo **out,
                   struct ff_error *err)
{
    const char *host = p->host && *p->host ? p->host : NULL;
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = passive ? AI_PASSIVE : 0};
    bool known = host && p->peers && p->peers->n;

    if (host && !known)
        ff_failpoint("link.look_up");
    int rc = known ? list_peers(p, out) : getaddrinfo(host, p->port, &hints, out);
    if (rc)
        return ff_error_set(err, rc == EAI_SYSTEM ? errno : EADDRNOTAVAIL,
                            "tcp: look up %s:%s: %s", host ? host : "*", p->port,
                            rc == EAI_SYSTEM ? strerror(errno) : gai_strerror(rc));
    return 0;
}

int ff_peers_find(const struct ff_link_params *p, struct ff_peers *out, struct ff_error *err)
{
    struct addrinfo *list;

    if (p->peers && p->peers->n) {
        *out = *p->peers;
        return 0;
    }
    int rc = tcp_resolve(p, false, &list, err);
    if (rc)
        return rc;
    out->n = 0;
    for (const struct addrinfo *a = list; a && out->n < FF_PEERS_MAX; a = a->ai_next) {
        out->at[out->n].len = a->ai_addrlen;
        memcpy(&out->at[out->n++].addr, a->ai_addr, a->ai_addrlen);
    }
    freeaddrinfo(list);
    return 0;
}

int ff_tcp_socket_pairs(int a[FF_TCP_SOCKETS], int b[FF_TCP_SOCKETS], struct ff_error *err)
{
    for (unsigned i = 0; i < FF_TCP_SOCKETS; i++)
        a[i] = b[i] = -1;
    for (unsigned i = 0; i < FF_TCP_SOCKETS; i++) {
        int pair[2];
        if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair) < 0) {
            int rc = ff_error_set(err, errno, "tcp: make sockets: %s", strerror(errno));
            for (; i--; ff_close_fd(&a[i]), ff_close_fd(&b[i]))
                ;
            return rc;
        }
        a[i] = pair[0];
        b[i] = pair[1];
    }
    return 0;
}

bool tcp_is_stream(int fd)
{
    int domain, type;
    socklen_t len = sizeof(int);

    return !getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &len) && domain == AF_UNIX &&
           !getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &len) && type == SOCK_STREAM;
}
