/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * devices.c - the RDMA devices of this host, port by port
 */
#include <arpa/inet.h>
#include <errno.h>
#include <net/if.h>
#include <stdio.h>
#include <string.h>

#include "cleanup.h"
#include "devices.h"
#include "verbs.h"

static const char *transport_name(const struct ibv_device *dev)
{
    switch (dev->transport_type) {
    case IBV_TRANSPORT_IB: return "IB";
    case IBV_TRANSPORT_IWARP: return "iWARP";
    default: return "other";
    }
}

static const char *gid_type_name(uint32_t type)
{
    switch (type) {
    case IBV_GID_TYPE_IB: return "IB";
    case IBV_GID_TYPE_ROCE_V1: return "RoCE v1";
    case IBV_GID_TYPE_ROCE_V2: return "RoCE v2";
    default: return "unknown";
    }
}

/* The kernel knows an interface by its number in its own namespace, which here may be
 * another's: the name is asked for first, then whether that is the interface meant */
static void set_netdev(struct ff_device_port *p, struct ff_device_gid *g, uint32_t ifindex)
{
    char path[256];

    if (!ifindex)
        return;
    snprintf(path, sizeof(path), "/sys/class/infiniband/%s/ports/%u/gid_attrs/ndevs/%u", p->device,
             p->port, g->index);
    FILE *f = fopen(path, "re");
    if (f && !fgets(g->netdev, sizeof(g->netdev), f))
        g->netdev[0] = '\0';
    if (f)
        fclose(f);
    g->netdev[strcspn(g->netdev, "\n")] = '\0';
    if (!*g->netdev)
        if_indextoname(ifindex, g->netdev);
    g->elsewhere = if_nametoindex(g->netdev) != ifindex;
}

static void set_gids(struct ibv_context *ctx, struct ff_device_port *p)
{
    enum { TABLE_MAX = 1024 }; /* of all ports of a device */
    FF_AUTO_FREE struct ibv_gid_entry *table = calloc(TABLE_MAX, sizeof(*table));
    ssize_t n = table ? ibv_query_gid_table(ctx, table, TABLE_MAX, 0) : 0;

    for (ssize_t i = 0; i < n && p->n_gids < FF_DEVICE_GIDS; i++) {
        if (table[i].port_num != p->port)
            continue;
        struct ff_device_gid *g = &p->gid[p->n_gids++];
        g->index = table[i].gid_index;
        g->type = gid_type_name(table[i].gid_type);
        inet_ntop(AF_INET6, table[i].gid.raw, g->gid, sizeof(g->gid));
        set_netdev(p, g, table[i].ndev_ifindex);
    }
}

static void set_port(struct ibv_context *ctx, const struct ibv_device_attr *dev,
                     struct ff_device_port *p)
{
    struct ibv_port_attr attr;
    struct verbs_limits limits;
    struct ff_error why;

    int rc = ibv_query_port(ctx, (uint8_t)p->port, &attr);
    if (rc) {
        snprintf(p->trouble, sizeof(p->trouble), "query port: %s", strerror(rc));
        return;
    }
    p->active = attr.state == IBV_PORT_ACTIVE;
    p->state = ibv_port_state_str(attr.state);
    p->link_layer = attr.link_layer == IBV_LINK_LAYER_ETHERNET ? "Ethernet" : "InfiniBand";
    p->active_mtu_bytes = 128u << attr.active_mtu; /* IBV_MTU_256 is 1 */
    p->max_msg_bytes = attr.max_msg_sz;
    set_gids(ctx, p);
    if (verbs_get_limits(dev, &attr, ctx->device->transport_type, &limits, &why))
        snprintf(p->trouble, sizeof(p->trouble), "%.*s", (int)sizeof(p->trouble) - 1, why.text);
}

/* How many ports @dev has, at least one for a line that says what is wrong */
static int list_device(struct ibv_device *dev,
                       void (*fn)(void *opaque, const struct ff_device_port *port), void *opaque)
{
    struct ff_device_port base = {.transport = transport_name(dev), .state = "unknown",
                                  .link_layer = "unknown"};
    struct ibv_device_attr_ex attr;

    snprintf(base.device, sizeof(base.device), "%s", ibv_get_device_name(dev));
    struct ibv_context *ctx = ibv_open_device(dev);
    int rc = ctx ? ibv_query_device_ex(ctx, NULL, &attr) : errno;
    if (rc) {
        snprintf(base.trouble, sizeof(base.trouble), "%s device: %s%s", ctx ? "query" : "open",
                 strerror(rc), rc == EACCES ? "; give this user access to /dev/infiniband" : "");
        fn(opaque, &base);
        if (ctx)
            ibv_close_device(ctx);
        return 1;
    }
    snprintf(base.firmware, sizeof(base.firmware), "%s", attr.orig_attr.fw_ver);
    base.max_mr_bytes = attr.orig_attr.max_mr_size;
    base.odp = attr.odp_caps.general_caps & IBV_ODP_SUPPORT;
    base.odp_rc_read = base.odp &&
                       attr.odp_caps.per_transport_caps.rc_odp_caps & IBV_ODP_SUPPORT_READ;
    for (unsigned i = 1; i <= attr.orig_attr.phys_port_cnt; i++) {
        struct ff_device_port p = base;
        p.port = i;
        set_port(ctx, &attr.orig_attr, &p);
        fn(opaque, &p);
    }
    ibv_close_device(ctx);
    return attr.orig_attr.phys_port_cnt;
}

int ff_devices_list(void (*fn)(void *opaque, const struct ff_device_port *port), void *opaque)
{
    int n, ports = 0;
    struct ibv_device **list = ibv_get_device_list(&n);

    if (!list)
        return errno ? -errno : -ENOSYS;
    for (int i = 0; i < n; i++)
        ports += list_device(list[i], fn, opaque);
    ibv_free_device_list(list);
    return ports;
}
