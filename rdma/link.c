/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * link.c - listen for and connect whichever kind of link there is
 */
/**
 * DOC: Theory of Operation
 *
 * Picture      AUTO, active: verbs within AUTO_VERBS_MS, else tcp to the same port. Falling
 *              back is about connecting alone: what a peer says over a link is its answer.
 *              AUTO, passive: listens for both; a host without RDMA listens for tcp. So does
 *              a loopback address: rdma_cm would take that for every address.
 *              base.about keeps which it was, and why it was not verbs.
 *              A device that is removed takes the ids along that listen on an address of it: they
 *              are made again, at the same port, as soon as there is a device, AGAIN_MS apart.
 * Limits       AUTO_VERBS_MS: a host that does not answer costs that much, before the guest
 *              stops; a refusal, or a host without RDMA, costs nothing. A message of rdma_cm that is
 *              lost is sent again after 4.3 s: it is longer. REST_MS: out of descriptors, nobody is
 *              accepted for so long, and none is polled for without rest.
 */
#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>

#include "cleanup.h"
#include "error.h"
#include "log.h"
#include "tcp_listen.h"
#include "tcp_socket.h"
#include "verbs.h"

#define AUTO_VERBS_MS 6000
#define REST_MS 100
#define AGAIN_MS 500

struct ff_port {
    struct ff_listener *tcp;
    struct verbs_listener *verbs;
    enum ff_link_kind kind;
    int cancel_fd;
    unsigned number;
    char no_verbs[160]; /* why verbs is not listened for, if it should be */
    uint64_t again_ns;  /* when to listen for verbs again; 0: it is, or is not to be */
    unsigned n_verbs;   /* addresses that verbs was listened for at, on all cards */
    struct ff_link_params again; /* how; strings are the port's own */
    struct ff_peers peers; /* where the host is, looked up once: to listen again under somebody's lock takes no time */
    char *host, *device, port[16];
};

/* What verbs_listen() takes once more */
static int keep_params(struct ff_port *port, const struct ff_link_params *p, struct ff_error *err)
{
    port->host = strdup(p->host ? p->host : "");
    port->device = strdup(p->device ? p->device : "");
    port->again = *p;
    port->again.host = port->host;
    port->again.device = port->device;
    port->again.port = port->port;
    port->again.peers = &port->peers;
    port->again.key = ff_key_ref(p->key);
    if (!port->host || !port->device)
        return ff_error_set(err, ENOMEM, "link: listen: out of memory");
    return *port->host ? ff_peers_find(p, &port->peers, err) : 0;
}

/* rdma_cm takes a loopback address for every address: who listens there wants no stranger */
static bool loopback_only(const struct ff_link_params *p)
{
    struct addrinfo *list;
    bool all = true;

    if (!p->host || !*p->host || tcp_resolve(p, true, &list, NULL))
        return false;
    for (const struct addrinfo *a = list; a; a = a->ai_next) {
        const struct sockaddr_in *in = (const void *)a->ai_addr;
        const struct sockaddr_in6 *in6 = (const void *)a->ai_addr;
        all &= a->ai_family == AF_INET ? ntohl(in->sin_addr.s_addr) >> 24 == IN_LOOPBACKNET
                                       : IN6_IS_ADDR_LOOPBACK(&in6->sin6_addr);
    }
    freeaddrinfo(list);
    return all;
}

int ff_port_listen(const struct ff_link_params *p, enum ff_link_kind kind, struct ff_port **out,
                   struct ff_error *err)
{
    struct ff_port *port = calloc(1, sizeof(*port));
    int rc = 0;

    if (!port)
        return ff_error_set(err, ENOMEM, "link: listen: out of memory");
    port->kind = kind;
    port->cancel_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if ((rc = keep_params(port, p, err))) {
        ff_port_free(port);
        return rc;
    }
    struct ff_link_params found = *p;
    found.peers = &port->peers;
    port->number = (unsigned)atoi(p->port);
    if (kind != FF_LINK_VERBS) {
        rc = ff_tcp_listen(&found, &port->tcp, err);
        if (!rc)
            port->number = ff_tcp_port(port->tcp);
    }
    snprintf(port->port, sizeof(port->port), "%u", port->number);
    if (!rc && kind != FF_LINK_TCP) {
        struct ff_error why;
        rc = kind == FF_LINK_AUTO && loopback_only(&found)
                 ? ff_error_set(&why, EADDRNOTAVAIL, "listening on the loopback alone")
                 : verbs_listen(&port->again, &port->verbs, &why);
        if (!rc) {
            port->n_verbs = verbs_listener_count(port->verbs);
            port->number = verbs_listener_port(port->verbs);
            snprintf(port->port, sizeof(port->port), "%u", port->number);
        } else if (kind == FF_LINK_AUTO) {
            snprintf(port->no_verbs, sizeof(port->no_verbs), "%.150s", why.text);
            rc = 0;
        } else if (err) {
            *err = why;
        }
    }
    if (rc)
        ff_port_free(port);
    else
        *out = port;
    return rc;
}

unsigned ff_port_number(const struct ff_port *port)
{
    return port->number;
}

static void log_why_tcp(struct ff_link *l, const char *why)
{
    snprintf(l->about, sizeof(l->about), "tcp (%.150s)", why);
}

/* The listener has come to its end by @rc, -EBADFD or -ENODEV: 0, it is to be made again, or tcp goes
 * on without; or there is nothing left to listen for */
static int end_verbs(struct ff_port *port, int rc, const struct ff_error *why, struct ff_error *err)
{
    verbs_listener_free(port->verbs);
    port->verbs = NULL;
    snprintf(port->no_verbs, sizeof(port->no_verbs), "%.150s", why->text);
    if (rc == -ENODEV)
        port->again_ns = ff_now_ns() + AGAIN_MS * 1000000ull;
    else if (!port->tcp)
        return ff_error_set(err, -rc, "%s", why->text);
    else
        ff_log(FF_LOG_WARN, "%s; listening for tcp alone", why->text);
    return 0;
}

/* Of several cards one may be there earlier */
static void verbs_again(struct ff_port *port)
{
    struct ff_error why;

    if (!port->again_ns || ff_now_ns() < port->again_ns)
        return;
    unsigned before = port->verbs ? verbs_listener_count(port->verbs) : 0;
    if (port->verbs)
        verbs_listen_more(port->verbs, &port->again);
    else
        verbs_listen(&port->again, &port->verbs, &why);
    unsigned now = port->verbs ? verbs_listener_count(port->verbs) : 0;
    port->again_ns = now < port->n_verbs ? ff_now_ns() + AGAIN_MS * 1000000ull : 0;
    if (now == before)
        return;
    *port->no_verbs = '\0';
    ff_log(FF_LOG_INFO, "verbs: there is a device again: listening at port %u", port->number);
}

/* Until somebody may have connected: 0; -ECANCELED, -ETIMEDOUT, -EAGAIN as ff_port_accept().
 * @resting: none can be accepted now */
static int wait_port(struct ff_port *port, const int *also, unsigned n_also, int timeout_ms,
                     bool resting, struct ff_error *err)
{
    struct pollfd p[2 + TCP_LISTEN_FDS + FF_PORT_ALSO_MAX];
    int until_ms = timeout_ms;
    unsigned n = 2;

    p[0] = (struct pollfd){.fd = port->cancel_fd, .events = POLLIN};
    p[1] = (struct pollfd){.fd = port->verbs ? verbs_listener_fd(port->verbs) : -1,
                           .events = POLLIN};
    if (port->tcp)
        n += tcp_listen_poll(port->tcp, resting, &until_ms, p + n);
    for (unsigned i = 0; i < n_also; i++)
        p[n++] = (struct pollfd){.fd = also[i], .events = POLLIN};
    if (resting && (until_ms < 0 || until_ms > REST_MS))
        until_ms = REST_MS;
    if (port->again_ns && (until_ms < 0 || until_ms > AGAIN_MS))
        until_ms = AGAIN_MS;
    bool ends = until_ms == timeout_ms;
    int rc = poll(p, n, until_ms);
    if (rc < 0 && errno != EINTR)
        return ff_error_set(err, errno, "link: wait for a source: %s", strerror(errno));
    if (rc > 0 && p[0].revents)
        return ff_error_set(err, ECANCELED, "link: wait for a source: canceled");
    if (!rc && ends)
        return ff_error_set(err, ETIMEDOUT, "link: wait for a source: timed out");
    for (unsigned i = n - n_also; i < n && rc > 0; i++)
        if (p[i].revents)
            return ff_error_set(err, EAGAIN, "link: wait for a source: interrupted");
    return 0;
}

int ff_port_accept(struct ff_port *port, const int *also, unsigned n, int timeout_ms,
                   struct ff_link **out, struct ff_error *err)
{
    uint64_t end = ff_now_ns() + (uint64_t)FF_MAX(timeout_ms, 0) * 1000000u;
    bool said = false;

    for (;;) {
        struct ff_error why;
        verbs_again(port);
        int rc = port->verbs ? verbs_accept(port->verbs, out, &why) : -EAGAIN;
        if (rc == -EAGAIN && port->tcp)
            rc = ff_tcp_accept(port->tcp, 0, out, &why);
        if (!rc && port->kind == FF_LINK_AUTO && (*out)->ops != &ff_verbs_ops)
            log_why_tcp(*out, *port->no_verbs ? port->no_verbs : "the source chose it");
        if (!rc)
            return 0;
        bool ended = port->verbs && (rc == -EBADFD || verbs_listener_is_gone(port->verbs));
        if (ended && (rc = end_verbs(port, rc == -EBADFD ? rc : -ENODEV, &why, err)))
            return rc;
        if (ended)
            continue;
        bool resting = rc == -EMFILE || rc == -ENFILE || rc == -ENOBUFS || rc == -ENOMEM;
        if (resting && !said)
            ff_log(FF_LOG_WARN, "%s; peers that connect wait until that ends", why.text);
        else if (!resting && rc != -EAGAIN && rc != -ETIMEDOUT && rc != -ECANCELED)
            ff_log(FF_LOG_WARN, "%s; connection dropped", why.text);
        said |= resting;
        rc = wait_port(port, also, n, timeout_ms < 0 ? -1 : tcp_ms_left(end), resting, err);
        if (rc)
            return rc;
    }
}

void ff_port_cancel(struct ff_port *port)
{
    eventfd_write(port->cancel_fd, 1);
    if (port->tcp)
        ff_tcp_listener_cancel(port->tcp);
}

void ff_port_free(struct ff_port *port)
{
    if (!port)
        return;
    ff_tcp_listener_free(port->tcp);
    verbs_listener_free(port->verbs);
    ff_key_unref(port->again.key);
    free(port->host);
    free(port->device);
    ff_close_fd(&port->cancel_fd);
    free(port);
}

static int connect_auto(const struct ff_link_params *p, int cancel_fd, struct ff_link **out,
                        struct ff_error *err)
{
    struct ff_error no_verbs, no_tcp;

    int rc = ff_verbs_connect(p, FF_MIN(p->timeout_ms, AUTO_VERBS_MS), cancel_fd, out, &no_verbs);
    if (!rc)
        return 0;
    if (rc == -ECANCELED)
        return ff_error_set(err, ECANCELED, "%s", no_verbs.text);
    ff_log(FF_LOG_INFO, "link=auto: tcp to %s:%s, since RDMA does not go there: %s", p->host, p->port,
           no_verbs.text);
    rc = ff_tcp_connect(p, cancel_fd, out, &no_tcp);
    if (!rc)
        log_why_tcp(*out, no_verbs.text);
    else if (err)
        *err = no_tcp;
    return rc;
}

int ff_link_connect(const struct ff_link_params *p, enum ff_link_kind kind, int cancel_fd,
                    struct ff_link **out, struct ff_error *err)
{
    if (kind == FF_LINK_TCP)
        return ff_tcp_connect(p, cancel_fd, out, err);
    if (kind == FF_LINK_AUTO)
        return connect_auto(p, cancel_fd, out, err);
    int rc = ff_verbs_connect(p, p->connect_ms ? p->connect_ms : p->timeout_ms, cancel_fd, out,
                              err);
    return rc ? ff_error_pass(err, rc, "link=verbs: connect to %s:%s", p->host, p->port) : 0;
}
