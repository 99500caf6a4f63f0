/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * verbs_limits.c - what a device permits us; ours to keep, since not every driver checks
 */
#include <errno.h>

#include "cleanup.h"
#include "verbs.h"

int verbs_get_limits(const struct ibv_device_attr *dev, const struct ibv_port_attr *port,
                     struct verbs_limits *out, struct ff_error *err)
{
    if (port->state != IBV_PORT_ACTIVE)
        return ff_error_set(err, ENETDOWN, "verbs: port is not active (state %d)", port->state);
    if (port->max_msg_sz < FF_MSG_MAX)
        return ff_error_set(err, ENOTSUP, "verbs: device carries messages of %u bytes (need %u)",
                            port->max_msg_sz, FF_MSG_MAX);
    if (dev->max_qp_wr < (int)VERBS_CTRL_RECVS || dev->max_cqe < 2 * (int)VERBS_CTRL_RECVS ||
        dev->max_qp_rd_atom < 1 || dev->max_qp_init_rd_atom < 1)
        return ff_error_set(err, ENOTSUP,
                            "verbs: device has %d work requests, %d completions, %d/%d reads "
                            "in flight a queue pair (need %u, %u, 1/1)",
                            dev->max_qp_wr, dev->max_cqe, dev->max_qp_rd_atom,
                            dev->max_qp_init_rd_atom, VERBS_CTRL_RECVS, 2 * VERBS_CTRL_RECVS);
    out->max_len = FF_MIN(port->max_msg_sz, VERBS_MAX_LEN);
    out->depth = FF_MIN(FF_QUEUE_DEPTH, FF_MIN((uint32_t)dev->max_qp_wr, (uint32_t)dev->max_cqe / 2));
    out->rd_atomic = (uint8_t)FF_MIN(16, FF_MIN(dev->max_qp_rd_atom, dev->max_qp_init_rd_atom));
    return 0;
}
