/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * verbs_device.c - which RDMA device, which of our addresses is on it, and in words
 */
#include <arpa/inet.h>
#include <errno.h>
#include <ifaddrs.h>
#include <netinet/in.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

#include "cleanup.h"
#include "verbs.h"

/* The length of NAME in "NAME" or "NAME:PORT"; *@port 0 for any */
static size_t split_name(const char *wanted, unsigned *port)
{
    const char *colon = strrchr(wanted, ':');

    *port = colon ? (unsigned)strtoul(colon + 1, NULL, 10) : 0;
    return colon ? (size_t)(colon - wanted) : strlen(wanted);
}

static bool is_named(const char *name, const char *wanted, size_t len)
{
    return strlen(name) == len && !strncmp(name, wanted, len);
}

bool verbs_on_device(const struct rdma_cm_id *id, const char *wanted)
{
    unsigned port;
    size_t len = split_name(wanted, &port);

    if (!*wanted)
        return true;
    return id->verbs && is_named(ibv_get_device_name(id->verbs->device), wanted, len) &&
           (!port || port == id->port_num);
}

int verbs_find_device(const char *wanted, struct ff_error *err)
{
    char names[256] = "";
    unsigned port;
    size_t len = split_name(wanted, &port), at = 0;
    bool found = false;
    int n = 0;

    struct ibv_device **list = ibv_get_device_list(&n);
    for (int i = 0; list && i < n; i++) {
        const char *name = ibv_get_device_name(list[i]);
        found |= is_named(name, wanted, len);
        if (at < sizeof(names))
            at += (size_t)snprintf(names + at, sizeof(names) - at, "%s%s", i ? ", " : "", name);
    }
    if (list)
        ibv_free_device_list(list);
    if (found)
        return 0;
    return ff_error_set(err, ENODEV, "verbs: device=%s: no such RDMA device here (there %s %s)",
                        wanted, n == 1 ? "is" : "are", n ? names : "none");
}

static bool is_link_local(const struct sockaddr *sa)
{
    return sa->sa_family == AF_INET6 &&
           IN6_IS_ADDR_LINKLOCAL(&((const struct sockaddr_in6 *)sa)->sin6_addr);
}

/* Have @a and @b, of one family, the same bits where @mask has one? */
static bool same_network(const struct sockaddr *a, const struct sockaddr *b,
                         const struct sockaddr *mask)
{
    bool six = a->sa_family == AF_INET6;
    size_t at = six ? offsetof(struct sockaddr_in6, sin6_addr) : offsetof(struct sockaddr_in, sin_addr);
    const uint8_t *x = (const uint8_t *)a + at, *y = (const uint8_t *)b + at;
    const uint8_t *m = (const uint8_t *)mask + at;
    uint8_t diff = 0;

    for (size_t i = 0; i < (six ? sizeof(struct in6_addr) : sizeof(struct in_addr)); i++)
        diff |= (uint8_t)((x[i] ^ y[i]) & m[i]);
    return !diff;
}

static bool same_address(const struct sockaddr *a, const struct sockaddr *b)
{
    const struct sockaddr_storage all = {.ss_family = a->sa_family};
    struct sockaddr_storage ones = all;

    memset((uint8_t *)&ones + sizeof(sa_family_t), 0xff, sizeof(ones) - sizeof(sa_family_t));
    return a->sa_family == b->sa_family && same_network(a, b, (const struct sockaddr *)&ones);
}

const struct sockaddr *verbs_best_address(const struct ifaddrs *list, const struct sockaddr *peer,
                                          const struct sockaddr *routed,
                                          bool (*is_on)(void *opaque, struct sockaddr *sa),
                                          void *opaque)
{
    const struct sockaddr *best = NULL;
    unsigned best_rank = 0;

    for (const struct ifaddrs *a = list; a; a = a->ifa_next) {
        if (!a->ifa_addr || a->ifa_addr->sa_family != peer->sa_family ||
            is_link_local(a->ifa_addr) != is_link_local(peer))
            continue;
        unsigned rank = routed && same_address(a->ifa_addr, routed) ? 3
                        : a->ifa_netmask && same_network(a->ifa_addr, peer, a->ifa_netmask) ? 2
                                                                                           : 1;
        if (rank > best_rank && is_on(opaque, a->ifa_addr)) {
            best = a->ifa_addr;
            best_rank = rank;
        }
    }
    return best;
}

/* The own address from which the kernel would talk to @peer, whatever the device; or false */
static bool routed_address(const struct sockaddr *peer, socklen_t len, struct sockaddr_storage *out)
{
    FF_AUTO_CLOSE int fd = socket(peer->sa_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    socklen_t out_len = sizeof(*out);

    return fd >= 0 && !connect(fd, peer, len) && /* sends nothing */
           !getsockname(fd, (struct sockaddr *)out, &out_len);
}

/* Binding an id to an address is what tells the device behind it */
struct on_device {
    struct rdma_event_channel *ch;
    const char *wanted;
};

static bool is_on_device(void *opaque, struct sockaddr *sa)
{
    const struct on_device *d = opaque;
    struct rdma_cm_id *id;

    if (rdma_create_id(d->ch, &id, NULL, RDMA_PS_TCP))
        return false;
    bool on = !rdma_bind_addr(id, sa) && verbs_on_device(id, d->wanted);
    rdma_destroy_id(id);
    return on;
}

int verbs_find_address(const char *wanted, const struct sockaddr *peer,
                       struct sockaddr_storage *out, struct ff_error *err)
{
    size_t len = peer->sa_family == AF_INET6 ? sizeof(struct sockaddr_in6)
                                             : sizeof(struct sockaddr_in);
    struct sockaddr_storage way;
    struct ifaddrs *list;

    int rc = verbs_find_device(wanted, err);
    if (rc)
        return rc;
    struct rdma_event_channel *ch = rdma_create_event_channel();
    if (!ch || getifaddrs(&list) < 0) {
        rc = ff_error_set(err, errno, "verbs: device=%s: list own addresses: %s", wanted,
                          strerror(errno));
        if (ch)
            rdma_destroy_event_channel(ch);
        return rc;
    }
    bool has_way = routed_address(peer, (socklen_t)len, &way);
    struct on_device on = {.ch = ch, .wanted = wanted};
    const struct sockaddr *found = verbs_best_address(
        list, peer, has_way ? (const struct sockaddr *)&way : NULL, is_on_device, &on);
    if (found)
        memcpy(out, found, len);
    freeifaddrs(list);
    rdma_destroy_event_channel(ch);
    if (found)
        return 0;
    return ff_error_set(err, EADDRNOTAVAIL,
                        "verbs: device=%s: no own IPv%c address on it: see rdma link show, ip addr",
                        wanted, peer->sa_family == AF_INET6 ? '6' : '4');
}

/* "RoCE v2, GID 1 ::ffff:10.8.0.1" */
static void describe_gid(struct rdma_cm_id *id, unsigned index, char *out, size_t room)
{
    static const char *const types[] = {"InfiniBand", "RoCE v1", "RoCE v2"};
    char text[INET6_ADDRSTRLEN] = "?";
    struct ibv_gid_entry gid;

    if (ibv_query_gid_ex(id->verbs, id->port_num, index, &gid, 0) ||
        gid.gid_type >= FF_ARRAY_LEN(types)) {
        snprintf(out, room, "GID %u", index);
        return;
    }
    inet_ntop(AF_INET6, gid.gid.raw, text, sizeof(text));
    snprintf(out, room, "%s, GID %u %s", types[gid.gid_type], index, text);
}

void verbs_set_about(struct verbs_link *v)
{
    struct rdma_cm_id *id = v->q[VERBS_CONTROL].conn[0].id;
    struct ibv_qp_init_attr init;
    struct ibv_qp_attr attr;
    char how[80] = "iWARP", qps[40] = "";
    unsigned n = v->q[VERBS_PREFILL].n_conns;

    memset(&attr, 0, sizeof(attr));
    int rc = ibv_query_qp(id->qp, &attr, IBV_QP_AV | IBV_QP_PATH_MTU, &init);
    /* on InfiniBand within a subnet there is no GID on the wire */
    if (!v->limits.iwarp && (rc || !attr.ah_attr.is_global))
        snprintf(how, sizeof(how), "InfiniBand");
    else if (!v->limits.iwarp)
        describe_gid(id, attr.ah_attr.grh.sgid_index, how, sizeof(how));
    if (!v->limits.iwarp && !rc && attr.path_mtu) {
        size_t at = strlen(how);
        snprintf(how + at, sizeof(how) - at, ", MTU %u", 128u << attr.path_mtu);
    }
    if (n > 1)
        snprintf(qps, sizeof(qps), ", %u prefill queue pairs", n);
    snprintf(v->base.about, sizeof(v->base.about), "verbs (%s port %u, %s%s)",
             ibv_get_device_name(id->verbs->device), id->port_num, how, qps);
}
