/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * devices.h - the RDMA devices of this host, port by port
 */
#ifndef FF_RDMA_DEVICES_H
#define FF_RDMA_DEVICES_H

#include <stdbool.h>
#include <stdint.h>

#define FF_DEVICE_GIDS 32

struct ff_device_gid {
    unsigned index;
    char gid[48];      /* as an IPv6 address is written */
    const char *type;  /* "IB", "RoCE v1", "RoCE v2" */
    char netdev[16];   /* "" on InfiniBand */
    bool elsewhere;    /* that interface is in another network namespace */
};

struct ff_device_port {
    char device[64], firmware[64];
    unsigned port;              /* from 1 on; 0: the device could not be asked, see @trouble */
    bool active;
    const char *state, *link_layer, *transport;
    unsigned active_mtu_bytes;
    uint32_t max_msg_bytes;
    uint64_t max_mr_bytes;
    bool odp, odp_rc_read;
    unsigned n_gids;
    struct ff_device_gid gid[FF_DEVICE_GIDS];
    char trouble[512];          /* why the verbs link cannot use it; "" when it can */
};

/* @fn is called for each port: how many there were, or -errno when verbs cannot be asked at all.
 * No network, no memory is registered. */
int ff_devices_list(void (*fn)(void *opaque, const struct ff_device_port *port), void *opaque);

#endif
