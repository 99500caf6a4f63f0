/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * session_address.c - by which of its addresses a host is reached
 */
/**
 * DOC: Theory of Operation
 *
 * Purpose      choose one of the addresses of a host name. The agent is not running yet, so a
 *              connection to sshd's port and to discard tests the address: accepted or refused,
 *              it works.
 * States       pending    nothing has come yet
 *              GIVES_ERROR, e.g. no route; IS_SILENT: nothing came within ASK_LIMIT_MS; ANSWERS
 *              The first address in the resolver's order of the best state is taken.
 * Limits       two ports are asked, since a firewall may drop what goes to one: that of ssh, the
 *              usual launcher, and that of discard. A name's only address is used untested.
 */
#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "cleanup.h"
#include "session.h"

#define ADDRESSES_MAX 8 /* those behind are not asked */
#define ASK_LIMIT_MS 1500
#define LATER_MS 300 /* once one has answered, for those before it: RFC 8305, 250 ms */

enum answer { GIVES_ERROR, IS_SILENT, ANSWERS };

static const uint16_t ports[] = {22, 9};

#define N_PORTS FF_ARRAY_LEN(ports)

static enum answer answer_of(int code)
{
    return !code || code == ECONNREFUSED ? ANSWERS : code == EINPROGRESS ? IS_SILENT : GIVES_ERROR;
}

/* *@fd: not -1 while it is pending */
static enum answer ask_port(const struct addrinfo *a, uint16_t port, int *fd)
{
    union {
        struct sockaddr any;
        struct sockaddr_in v4;
        struct sockaddr_in6 v6;
    } to = {.any.sa_family = AF_UNSPEC};

    memcpy(&to, a->ai_addr, a->ai_addrlen < sizeof(to) ? a->ai_addrlen : sizeof(to));
    if (a->ai_family == AF_INET6)
        to.v6.sin6_port = htons(port);
    else
        to.v4.sin_port = htons(port);
    *fd = socket(a->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    enum answer is = answer_of(*fd < 0 || connect(*fd, &to.any, a->ai_addrlen) < 0 ? errno : 0);
    if (is != IS_SILENT)
        ff_close_fd(fd);
    return is;
}

static void hear_answer(struct pollfd *p, enum answer *is)
{
    int code = 0;
    socklen_t len = sizeof(code);

    if (getsockopt(p->fd, SOL_SOCKET, SO_ERROR, &code, &len) < 0)
        code = errno;
    enum answer now = answer_of(code);
    if (now > *is || *is == IS_SILENT)
        *is = now;
    ff_close_fd(&p->fd);
}

/* The first one that is pending or answers: is nothing left to wait for? */
static bool answers_decide(const struct pollfd *p, const enum answer *is, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (is[i] == ANSWERS)
            return true;
        for (size_t k = 0; k < N_PORTS; k++)
            if (p[i * N_PORTS + k].fd >= 0)
                return false;
    }
    return true;
}

static void wait_for_answers(struct pollfd *p, enum answer *is, size_t n)
{
    uint64_t end = ff_now_ms() + ASK_LIMIT_MS, now;
    bool heard = false;

    while (!answers_decide(p, is, n) && (now = ff_now_ms()) < end) {
        if (poll(p, n * N_PORTS, (int)(end - now)) < 0 && errno != EINTR)
            return;
        for (size_t i = 0; i < n * N_PORTS; i++)
            if (p[i].fd >= 0 && p[i].revents)
                hear_answer(&p[i], &is[i / N_PORTS]);
        for (size_t i = 0; i < n && !heard; i++)
            if ((heard = is[i] == ANSWERS) && end > ff_now_ms() + LATER_MS)
                end = ff_now_ms() + LATER_MS;
    }
}

static const struct addrinfo *choose_address(const struct addrinfo *list)
{
    const struct addrinfo *of[ADDRESSES_MAX];
    struct pollfd p[ADDRESSES_MAX * N_PORTS];
    enum answer is[ADDRESSES_MAX];
    size_t n = 0, best = 0;

    if (!list->ai_next)
        return list;
    for (const struct addrinfo *a = list; a && n < ADDRESSES_MAX; a = a->ai_next, n++) {
        of[n] = a;
        is[n] = GIVES_ERROR;
        for (size_t k = 0; k < N_PORTS; k++) {
            struct pollfd *one = &p[n * N_PORTS + k];
            *one = (struct pollfd){.fd = -1, .events = POLLOUT};
            enum answer now = ask_port(a, ports[k], &one->fd);
            is[n] = now > is[n] ? now : is[n];
        }
    }
    wait_for_answers(p, is, n);
    for (size_t i = 0; i < n * N_PORTS; i++)
        ff_close_fd(&p[i].fd);
    for (size_t i = 1; i < n; i++)
        if (is[i] > is[best])
            best = i;
    return of[best];
}

int host_numeric(const char *name, const char *remedy, char **out, struct ff_error *why)
{
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM}, *list;
    char text[NI_MAXHOST];
    int rc = getaddrinfo(name, NULL, &hints, &list);

    if (rc)
        return ff_error_set(why, EHOSTUNREACH, "no address for \"%s\": %s; name one: %s", name,
                            gai_strerror(rc), remedy);
    const struct addrinfo *a = choose_address(list);
    rc = getnameinfo(a->ai_addr, a->ai_addrlen, text, sizeof(text), NULL, 0, NI_NUMERICHOST);
    if (!rc)
        *out = xprintf(a->ai_family == AF_INET6 ? "[%s]" : "%s", text);
    freeaddrinfo(list);
    return rc ? ff_error_set(why, EHOSTUNREACH, "no address for \"%s\"", name) : 0;
}
