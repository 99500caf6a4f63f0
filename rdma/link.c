/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * link.c - listen for and connect whichever kind of link there is
 */
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>

#include "cleanup.h"
#include "error.h"
#include "log.h"
#include "verbs.h"

#define TCP_FDS_MAX 8

struct ff_port {
    struct ff_listener *tcp;
    struct verbs_listener *verbs;
    int cancel_fd, timeout_ms;
    unsigned number;
};

int ff_port_listen(const struct ff_link_params *p, enum ff_link_kind kind, struct ff_port **out,
                   struct ff_error *err)
{
    struct ff_port *port = calloc(1, sizeof(*port));
    struct ff_link_params same = *p;
    char number[16];
    int rc = 0;

    if (!port)
        return ff_error_set(err, ENOMEM, "link: listen: out of memory");
    port->timeout_ms = p->timeout_ms;
    port->cancel_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    port->number = (unsigned)atoi(p->port);
    if (kind != FF_LINK_VERBS) {
        rc = ff_tcp_listen(p, &port->tcp, err);
        if (!rc)
            port->number = ff_tcp_port(port->tcp);
    }
    snprintf(number, sizeof(number), "%u", port->number);
    same.port = number;
    if (!rc && kind == FF_LINK_VERBS) {
        rc = verbs_listen(&same, &port->verbs, err);
        if (!rc)
            port->number = verbs_listener_port(port->verbs);
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

int ff_port_accept(struct ff_port *port, struct ff_link **out, struct ff_error *err)
{
    int fds[TCP_FDS_MAX];
    unsigned n = port->tcp ? ff_tcp_listener_fds(port->tcp, fds, TCP_FDS_MAX) : 0;

    for (;;) {
        struct pollfd p[TCP_FDS_MAX + 2];
        p[0] = (struct pollfd){.fd = port->cancel_fd, .events = POLLIN};
        p[1] = (struct pollfd){.fd = port->verbs ? verbs_listener_fd(port->verbs) : -1,
                               .events = POLLIN};
        for (unsigned i = 0; i < n; i++)
            p[i + 2] = (struct pollfd){.fd = fds[i], .events = POLLIN};
        if (poll(p, n + 2, -1) < 0 && errno != EINTR)
            return ff_error_set(err, errno, "link: wait for a source: %s", strerror(errno));
        if (p[0].revents)
            return ff_error_set(err, ECANCELED, "link: wait for a source: canceled");
        int rc = -EAGAIN;
        struct ff_error why;
        if (p[1].revents)
            rc = verbs_accept(port->verbs, out, &why);
        else if (port->tcp)
            rc = ff_tcp_accept(port->tcp, 0, out, &why);
        if (!rc)
            return 0;
        if (rc != -EAGAIN && rc != -ETIMEDOUT)
            ff_log(FF_LOG_WARN, "%s; connection dropped", why.text);
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
    ff_close_fd(&port->cancel_fd);
    free(port);
}

int ff_link_connect(const struct ff_link_params *p, enum ff_link_kind kind, int cancel_fd,
                    struct ff_link **out, struct ff_error *err)
{
    if (kind == FF_LINK_VERBS)
        return ff_verbs_connect(p, p->timeout_ms, cancel_fd, out, err);
    return ff_tcp_connect(p, cancel_fd, out, err);
}
