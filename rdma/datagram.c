/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * datagram.c - UDP to an IP multicast group, and from it; see datagram.h
 */
/**
 * DOC: Theory of Operation
 *
 * Purpose      which interface: the one by which the parent and the agent have their link, since that is
 *              the way that is known to work. So no route to the group is needed.
 * Limits       HOPS routers. RECEIVE_BYTES is what is asked for; net.core.rmem_max decides.
 * Sources      ip(7), ipv6(7), udp(7): UDP_SEGMENT
 */
#include <arpa/inet.h>
#include <errno.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <netinet/udp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "cleanup.h"
#include "datagram.h"
#include "error.h"

#ifndef UDP_SEGMENT
#define UDP_SEGMENT 103
#endif

#define HOPS 8
#define RECEIVE_BYTES (8 << 20)
#define FRAME_MAX 1500u
#define UDP_OVER_IPV6 48u
#define FULL_MS 20 /* the kernel's queue may stay full for so long */

struct udp {
    struct ff_datagrams base;
    int fd;
    bool gso; /* so far nothing said no */
};

bool ff_group_at_is_v4(const struct ff_group_at *at)
{
    static const uint8_t mapped[12] = {[10] = 0xff, [11] = 0xff};

    return !memcmp(at->addr, mapped, sizeof(mapped)); /* IN6_IS_ADDR_V4MAPPED() wants it aligned */
}

bool ff_group_at_is_group(const struct ff_group_at *at)
{
    return ff_group_at_is_v4(at) ? at->addr[12] >> 4 == 0xe : at->addr[0] == 0xff;
}

int ff_group_at_parse(const char *text, struct ff_group_at *out, struct ff_error *err)
{
    char host[INET6_ADDRSTRLEN + 8];
    const char *end = *text == '[' ? strchr(text, ']') : NULL, *colon = strrchr(text, ':');
    const char *port = end ? (end[1] == ':' ? end + 2 : NULL)
                           : colon && colon == strchr(text, ':') ? colon + 1 : NULL;
    size_t len = end ? (size_t)(end - text - 1) : port ? (size_t)(port - text - 1) : strlen(text);
    unsigned long n = FF_GROUP_PORT;
    char *rest = "";

    if (port)
        n = strtoul(port, &rest, 10);
    snprintf(host, sizeof(host), "%.*s", (int)FF_MIN(len, sizeof(host) - 1), text + !!end);
    *out = (struct ff_group_at){.addr = {[10] = 0xff, [11] = 0xff}, .port = (uint16_t)n};
    bool known = inet_pton(AF_INET, host, out->addr + 12) == 1 ||
                 inet_pton(AF_INET6, host, out->addr) == 1;
    if (!known || len >= sizeof(host) || *rest || !n || n > 65535 || !ff_group_at_is_group(out) ||
        (end && !port && end[1]))
        return ff_error_set(err, EINVAL,
                            "multicast: \"%s\": want the address of a group, 224.0.0.0 to "
                            "239.255.255.255 or of ff00::/8, and perhaps :PORT", text);
    return 0;
}

void ff_group_at_text(const struct ff_group_at *at, char out[FF_GROUP_TEXT])
{
    char host[INET6_ADDRSTRLEN];
    bool v4 = ff_group_at_is_v4(at);

    inet_ntop(v4 ? AF_INET : AF_INET6, at->addr + (v4 ? 12 : 0), host, sizeof(host));
    snprintf(out, FF_GROUP_TEXT, v4 ? "%s:%u" : "[%s]:%u", host, at->port);
}

/* In the form of struct ff_group_at */
static bool address_of(const struct sockaddr *sa, uint8_t out[16])
{
    memset(out, 0, 16);
    if (sa && sa->sa_family == AF_INET) {
        out[10] = out[11] = 0xff;
        memcpy(out + 12, &((const struct sockaddr_in *)sa)->sin_addr, 4);
    } else if (sa && sa->sa_family == AF_INET6) {
        memcpy(out, &((const struct sockaddr_in6 *)sa)->sin6_addr, 16);
    } else {
        return false;
    }
    return true;
}

/* The interface of this end of @fd, and its name */
static int find_interface(int fd, unsigned *index, char name[IF_NAMESIZE], struct ff_error *err)
{
    struct sockaddr_storage here;
    socklen_t len = sizeof(here);
    struct ifaddrs *all;
    uint8_t own[16], a[16];

    if (fd < 0 || getsockname(fd, (struct sockaddr *)&here, &len) ||
        !address_of((struct sockaddr *)&here, own))
        return ff_error_set(err, EAFNOSUPPORT, "multicast: the link is not TCP");
    if (getifaddrs(&all))
        return ff_error_set(err, errno, "multicast: list interfaces: %s", strerror(errno));
    *index = 0;
    for (struct ifaddrs *i = all; i && !*index; i = i->ifa_next)
        if (address_of(i->ifa_addr, a) && !memcmp(a, own, sizeof(a))) {
            snprintf(name, IF_NAMESIZE, "%s", i->ifa_name);
            *index = if_nametoindex(i->ifa_name);
        }
    freeifaddrs(all);
    return *index ? 0 : ff_error_set(err, ENODEV, "multicast: no interface has the link's address");
}

static socklen_t socket_address(const struct ff_group_at *at, unsigned index,
                                struct sockaddr_storage *out)
{
    struct sockaddr_in *in = (struct sockaddr_in *)out;
    struct sockaddr_in6 *in6 = (struct sockaddr_in6 *)out;

    memset(out, 0, sizeof(*out));
    if (ff_group_at_is_v4(at)) {
        in->sin_family = AF_INET;
        in->sin_port = htons(at->port);
        memcpy(&in->sin_addr, at->addr + 12, 4);
        return sizeof(*in);
    }
    in6->sin6_family = AF_INET6;
    in6->sin6_port = htons(at->port);
    in6->sin6_scope_id = index;
    memcpy(&in6->sin6_addr, at->addr, 16);
    return sizeof(*in6);
}

static int new_socket(const struct ff_group_at *at, struct ff_error *err)
{
    int fd = socket(ff_group_at_is_v4(at) ? AF_INET : AF_INET6, SOCK_DGRAM | SOCK_CLOEXEC, 0);

    return fd < 0 ? ff_error_set(err, errno, "multicast: socket: %s", strerror(errno)) : fd;
}

static int set_outgoing(int fd, bool v4, unsigned index)
{
    struct ip_mreqn by = {.imr_ifindex = (int)index};
    int n = (int)index, hops = HOPS;

    if (v4)
        return setsockopt(fd, IPPROTO_IP, IP_MULTICAST_IF, &by, sizeof(by)) ||
               setsockopt(fd, IPPROTO_IP, IP_MULTICAST_TTL, &hops, sizeof(hops));
    return setsockopt(fd, IPPROTO_IPV6, IPV6_MULTICAST_IF, &n, sizeof(n)) ||
           setsockopt(fd, IPPROTO_IPV6, IPV6_MULTICAST_HOPS, &hops, sizeof(hops));
}

static int open_sender(struct udp *u, const struct ff_group_at *at, unsigned index, const char *name,
                       struct ff_error *err)
{
    struct ifreq mtu = {.ifr_mtu = 0};
    struct sockaddr_storage to;

    socklen_t len = socket_address(at, index, &to);
    memcpy(mtu.ifr_name, name, IF_NAMESIZE);
    if (set_outgoing(u->fd, ff_group_at_is_v4(at), index) || ioctl(u->fd, SIOCGIFMTU, &mtu) ||
        connect(u->fd, (struct sockaddr *)&to, len))
        return ff_error_set(err, errno, "multicast: send by %s: %s", name, strerror(errno));
    u->base.max_bytes = FF_MIN((uint32_t)mtu.ifr_mtu, FRAME_MAX) - UDP_OVER_IPV6;
    return 0;
}

static int open_receiver(struct udp *u, const struct ff_group_at *at, unsigned index, const char *name,
                         struct ff_error *err)
{
    int yes = 1, no = 0, bytes = RECEIVE_BYTES;
    struct group_req join = {.gr_interface = index};
    struct sockaddr_storage on;
    bool v4 = ff_group_at_is_v4(at);

    socklen_t len = socket_address(at, index, &on);
    setsockopt(u->fd, SOL_SOCKET, SO_RCVBUF, &bytes, sizeof(bytes)); /* less loses more */
    if (v4) /* not what another socket of this host has joined elsewhere */
        setsockopt(u->fd, IPPROTO_IP, IP_MULTICAST_ALL, &no, sizeof(no));
    memcpy(&join.gr_group, &on, len);
    if (setsockopt(u->fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes)) ||
        bind(u->fd, (struct sockaddr *)&on, len) ||
        setsockopt(u->fd, v4 ? IPPROTO_IP : IPPROTO_IPV6, MCAST_JOIN_GROUP, &join, sizeof(join)))
        return ff_error_set(err, errno, "multicast: join by %s: %s", name, strerror(errno));
    return 0;
}

/* --- many at a time --- */

static int send_as_one(int fd, const uint8_t *data, uint32_t len, unsigned n)
{
    union {
        char room[CMSG_SPACE(sizeof(uint16_t))];
        struct cmsghdr align;
    } control = {.room = {0}};
    struct iovec iov = {.iov_base = (void *)data, .iov_len = (size_t)len * n};
    struct msghdr m = {.msg_iov = &iov, .msg_iovlen = 1, .msg_control = control.room,
                       .msg_controllen = sizeof(control.room)};
    struct cmsghdr *c = CMSG_FIRSTHDR(&m);
    uint16_t each = (uint16_t)len;

    c->cmsg_level = IPPROTO_UDP;
    c->cmsg_type = UDP_SEGMENT;
    c->cmsg_len = CMSG_LEN(sizeof(each));
    memcpy(CMSG_DATA(c), &each, sizeof(each));
    return sendmsg(fd, &m, MSG_DONTWAIT) < 0 ? -errno : (int)n;
}

static int send_each(int fd, const uint8_t *data, uint32_t len, unsigned n)
{
    struct iovec iov[FF_DATAGRAMS];
    struct mmsghdr m[FF_DATAGRAMS];

    memset(m, 0, sizeof(m));
    for (unsigned i = 0; i < n; i++) {
        iov[i] = (struct iovec){.iov_base = (void *)(data + (size_t)i * len), .iov_len = len};
        m[i].msg_hdr = (struct msghdr){.msg_iov = &iov[i], .msg_iovlen = 1};
    }
    int rc = sendmmsg(fd, m, n, MSG_DONTWAIT);
    return rc < 0 ? -errno : rc;
}

static int udp_send(struct ff_datagrams *d, const uint8_t *data, uint32_t len, unsigned n,
                    struct ff_error *err)
{
    struct udp *u = (struct udp *)d; /* base is the first member */
    struct pollfd p = {.fd = u->fd, .events = POLLOUT};

    while (n) {
        bool as_one = u->gso && n > 1;
        int rc = as_one ? send_as_one(u->fd, data, len, n) : send_each(u->fd, data, len, n);
        if (as_one && (rc == -EIO || rc == -EINVAL || rc == -EOPNOTSUPP || rc == -EMSGSIZE)) {
            u->gso = false;
            continue;
        }
        if (rc == -ENOBUFS || (rc == -EAGAIN && poll(&p, 1, FULL_MS) == 0))
            return 0; /* as if the network had lost them */
        if (rc == -EAGAIN || rc == -EINTR || rc == -ECONNREFUSED) /* a host's answer to one before */
            continue;
        if (rc < 0)
            return ff_error_set(err, -rc, "multicast: send: %s", strerror(-rc));
        data += (size_t)rc * len;
        n -= (unsigned)rc;
    }
    return 0;
}

static int udp_recv(struct ff_datagrams *d, uint8_t *room, uint32_t each, uint32_t len[FF_DATAGRAMS],
                    int timeout_ms)
{
    int fd = ((struct udp *)d)->fd;
    struct pollfd p = {.fd = fd, .events = POLLIN};
    struct iovec iov[FF_DATAGRAMS];
    struct mmsghdr m[FF_DATAGRAMS];

    if (poll(&p, 1, timeout_ms) < 0)
        return errno == EINTR ? 0 : -errno;
    if (!p.revents)
        return 0;
    memset(m, 0, sizeof(m));
    for (unsigned i = 0; i < FF_DATAGRAMS; i++) {
        iov[i] = (struct iovec){.iov_base = room + (size_t)i * each, .iov_len = each};
        m[i].msg_hdr = (struct msghdr){.msg_iov = &iov[i], .msg_iovlen = 1};
    }
    int n = recvmmsg(fd, m, FF_DATAGRAMS, MSG_DONTWAIT, NULL);
    for (int i = 0; i < n; i++)
        len[i] = m[i].msg_hdr.msg_flags & MSG_TRUNC ? 0 : m[i].msg_len;
    return n >= 0 ? n : errno == EAGAIN || errno == EINTR ? 0 : -errno;
}

static void udp_free(struct ff_datagrams *d)
{
    ff_close_fd(&((struct udp *)d)->fd);
    free(d);
}

int ff_udp_join(const struct ff_group_at *at, bool sends, int link_fd, struct ff_datagrams **out,
                struct ff_error *err)
{
    char name[IF_NAMESIZE];
    unsigned index;

    int rc = find_interface(link_fd, &index, name, err);
    if (rc)
        return rc;
    struct udp *u = calloc(1, sizeof(*u));
    if (!u)
        return ff_error_set(err, ENOMEM, "multicast: out of memory");
    *u = (struct udp){.base = {.send = udp_send, .recv = udp_recv, .free = udp_free}, .gso = true};
    rc = u->fd = new_socket(at, err);
    if (rc >= 0)
        rc = sends ? open_sender(u, at, index, name, err) : open_receiver(u, at, index, name, err);
    if (rc)
        udp_free(&u->base);
    else
        *out = &u->base;
    return rc;
}
