/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * verbs_limits.c - what a device permits us; ours to keep, since not every driver checks
 */
/**
 * DOC: Theory of Operation
 *
 * Purpose      soft-RoCE lets pass what a card refuses, so that a limit is kept here or
 *              found by a user. Pure functions: tests/unit/rdma/test_verbs_limits.c has the cards.
 * Limits       max_qp_init_rd_atom is what a queue pair may ask for at once, max_qp_rd_atom
 *              what it may be asked for: they differ on some cards, and each side's one is
 *              bounded by the other side's other. 16 is the most that common cards have.
 *              A device that says 0 bytes for max_mr_size says nothing.
 *              Path MTU and GID are chosen by rdma_cm; verbs_device.c tells which.
 *              The inline size has no attribute: it is asked for with a queue pair.
 *
 * iWARP        READ is answered by a write at the wire's level: the memory that it lands in
 *              must be registered with remote write, and so its key is one that a peer
 *              could write with, if it knew it. It is never sent.
 *              WRITE_WITH_IMM is new there, and a card without it refuses the post, when the
 *              guest has moved: so base.pushes is false. There are no RNR retries: a message
 *              that finds no receive buffer ends the connection, so VERBS_CTRL_RECVS messages
 *              in a row must not outrun recv().
 */
#include <errno.h>

#include "cleanup.h"
#include "verbs.h"

#define PAGE 4096u

/* One that a device must have at least so many of */
static int need(const char *what, uint64_t has, uint64_t least, struct ff_error *err)
{
    if (has >= least)
        return 0;
    return ff_error_set(err, ENOTSUP, "verbs: device has %s %llu (need %llu): use link=tcp", what,
                        (unsigned long long)has, (unsigned long long)least);
}

/* Attributes are signed, and some drivers say -1 for "as many as you like" */
static uint32_t device_count(int n)
{
    return n < 0 ? INT32_MAX : (uint32_t)n;
}

int verbs_get_limits(const struct ibv_device_attr *dev, const struct ibv_port_attr *port,
                     enum ibv_transport_type transport, struct verbs_limits *out,
                     struct ff_error *err)
{
    uint64_t mr_bytes = dev->max_mr_size ? dev->max_mr_size : UINT64_MAX;
    int rc = 0;

    if (port->state != IBV_PORT_ACTIVE)
        return ff_error_set(err, ENETDOWN,
                            "verbs: port is not active (state %d, want %d): see rdma link show",
                            port->state, IBV_PORT_ACTIVE);
    if (transport != IBV_TRANSPORT_IB && transport != IBV_TRANSPORT_IWARP)
        return ff_error_set(err, ENOTSUP, "verbs: device of transport %d has no RDMA READ over a "
                            "connection: use link=tcp", transport);
    const struct {
        const char *what;
        uint64_t has, least;
    } needs[] = {
        {"max_msg_sz", port->max_msg_sz, VERBS_CTRL_LEN},
        {"max_mr_size", mr_bytes, VERBS_CTRL_BYTES},
        {"max_mr", device_count(dev->max_mr), 8},
        {"max_qp", device_count(dev->max_qp), VERBS_ROLES},
        {"max_cq", device_count(dev->max_cq), VERBS_ROLES + 1},
        {"max_qp_wr", device_count(dev->max_qp_wr), VERBS_CTRL_RECVS},
        {"max_cqe", device_count(dev->max_cqe), 2 * VERBS_CTRL_RECVS},
        {"max_sge", device_count(dev->max_sge), 1},
        {"max_qp_rd_atom", device_count(dev->max_qp_rd_atom), 1},
        {"max_qp_init_rd_atom", device_count(dev->max_qp_init_rd_atom), 1},
    };
    for (size_t i = 0; i < FF_ARRAY_LEN(needs) && !rc; i++)
        rc = need(needs[i].what, needs[i].has, needs[i].least, err);
    if (rc)
        return rc;

    uint32_t cqe = device_count(dev->max_cqe);
    *out = (struct verbs_limits){
        .max_len = FF_MIN(port->max_msg_sz, VERBS_MAX_LEN) / PAGE * PAGE,
        .max_mr_bytes = mr_bytes,
        .max_mrs = device_count(dev->max_mr),
        .init_rd = (uint8_t)FF_MIN(VERBS_RD_ATOMIC_MAX, device_count(dev->max_qp_init_rd_atom)),
        .resp_rd = (uint8_t)FF_MIN(VERBS_RD_ATOMIC_MAX, device_count(dev->max_qp_rd_atom)),
        .iwarp = transport == IBV_TRANSPORT_IWARP,
    };
    out->depth = FF_MIN(FF_QUEUE_DEPTH, FF_MIN(device_count(dev->max_qp_wr), cqe / 2));
    /* one CQ for all: depth requests, and depth receive buffers each */
    out->max_qps = FF_MIN(VERBS_QPS_MAX, FF_MIN((cqe - out->depth) / out->depth,
                                                device_count(dev->max_qp) - VERBS_PREFILL));
    return 0;
}

void verbs_get_odp(const struct ibv_odp_caps *caps, struct verbs_limits *l)
{
    bool any = caps->general_caps & IBV_ODP_SUPPORT;
    uint32_t rc = caps->per_transport_caps.rc_odp_caps;

    /* each says that the operation may meet such memory, at either end of it */
    l->odp_read = any && (rc & IBV_ODP_SUPPORT_READ);
    l->odp_write = any && (rc & IBV_ODP_SUPPORT_WRITE);
}

int verbs_check_reg(const struct verbs_limits *l, uint64_t len, unsigned access, unsigned live,
                    struct ff_error *err)
{
    unsigned remote = access & (FF_ACCESS_REMOTE_READ | FF_ACCESS_REMOTE_WRITE);
    int flags = 0;

    if (!len || len > l->max_mr_bytes)
        return ff_error_set(err, EINVAL, "verbs: register memory: %llu bytes (permitted 1..%llu)",
                            (unsigned long long)len, (unsigned long long)l->max_mr_bytes);
    if (live >= l->max_mrs)
        return ff_error_set(err, ENOSPC,
                            "verbs: register memory: %u segments, the device takes no more (max_mr "
                            "%u)", live, l->max_mrs);
    if (access & FF_ACCESS_ON_DEMAND) {
        /* own memory is read into, and may be written from */
        bool ok = remote == FF_ACCESS_REMOTE_READ    ? l->odp_read
                  : remote == FF_ACCESS_REMOTE_WRITE ? l->odp_write
                                                     : l->odp_read && l->odp_write;
        if (!ok)
            return ff_error_set(err, ENOTSUP,
                                "verbs: register memory: no on-demand paging for %s on this "
                                "device: use odp=off",
                                remote == FF_ACCESS_REMOTE_READ    ? "READ"
                                : remote == FF_ACCESS_REMOTE_WRITE ? "WRITE"
                                                                   : "READ and WRITE");
        flags |= IBV_ACCESS_ON_DEMAND;
    }
    if (remote & FF_ACCESS_REMOTE_READ)
        flags |= IBV_ACCESS_REMOTE_READ;
    if (remote & FF_ACCESS_REMOTE_WRITE || (!remote && l->iwarp))
        flags |= IBV_ACCESS_REMOTE_WRITE;
    if (remote != FF_ACCESS_REMOTE_READ)
        flags |= IBV_ACCESS_LOCAL_WRITE; /* which remote write needs too */
    return flags;
}

int verbs_check_qps(const struct verbs_limits *l, unsigned qps, struct ff_error *err)
{
    if (qps >= 1 && qps <= l->max_qps)
        return 0;
    return ff_error_set(err, EINVAL, "verbs: %u prefill queue pairs (the device permits 1..%u): "
                        "choose another qps=", qps, l->max_qps);
}

int verbs_answer_reads(const struct verbs_limits *l, const struct rdma_conn_param *asked,
                       struct rdma_conn_param *out, struct ff_error *err)
{
    /* in a request both are seen from the side that gets it: responder_resources is what
     * the peer wants to read at once, initiator_depth what it lets us */
    out->responder_resources = FF_MIN(l->resp_rd, asked->responder_resources);
    out->initiator_depth = FF_MIN(l->init_rd, asked->initiator_depth);
    if (out->initiator_depth && out->responder_resources)
        return 0;
    return ff_error_set(err, ENOTSUP, "verbs: the peer asks for %u READs in flight and permits %u "
                        "(need 1 and 1)", asked->responder_resources, asked->initiator_depth);
}
