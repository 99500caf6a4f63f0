/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * tcp_frame.c - what is sent over a data connection: a head, and memory as it lies; see tcp_frame.h
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "error.h"
#include "tcp_frame.h"

/* Without the granules that the maps name, @left_out of them: the flags of the reply */
static uint16_t add_data(struct tx_frame *f, const void *src, const struct tcp_req *req,
                         uint32_t left_out)
{
    uint32_t len = tcp_map_len(req->granule ? req->len / req->granule : 0);
    uint16_t flags = TCP_F_ZEROS;

    if (!left_out) {
        f->runs.iov[f->runs.n++] = (struct iovec){.iov_base = (void *)src, .iov_len = req->len};
        return 0;
    }
    for (uint32_t i = 0; i < len; i++)
        if (f->map[len + i])
            flags = TCP_F_ZEROS | TCP_F_POISON;
    f->runs.iov[f->runs.n++] = (struct iovec){
        .iov_base = f->map, .iov_len = flags & TCP_F_POISON ? 2 * len : len};
    f->n_head = 2;
    runs_add_granules(&f->runs, src, req->len, req->granule, f->map);
    return flags;
}

/* What a READ asks for, but for what need not be sent: the flags of its reply */
static uint16_t reply_data(struct tx_frame *f, struct ff_mr_table *mrs, const struct tcp_req *req)
{
    const void *src = (const void *)(uintptr_t)req->addr;
    uint32_t n = req->granule ? req->len / req->granule : 0, len = tcp_map_len(n), left_out = 0;

    memset(f->map, 0, 2 * len);
    if (n)
        left_out = ff_mr_zero_scan(mrs, req->rkey, src, req->len, req->granule, f->map,
                                   f->map + len);
    return add_data(f, src, req, left_out);
}

void tcp_frame_reply(struct tx_frame *f, struct ff_mr_table *mrs, const struct tcp_req *req,
                     uint32_t status)
{
    struct tcp_rep rep = {.op = req->op, .id = req->id, .status = status};

    f->is_reply = true;
    if (!status)
        rep.len = req->len;
    if (!status && req->op == TCP_OP_READ &&
        ff_mr_elsewhere(mrs, req->rkey, (void *)(uintptr_t)req->addr, &f->from))
        f->req = *req;
    else if (!status && req->op == TCP_OP_READ)
        rep.flags = reply_data(f, mrs, req);
    tcp_rep_encode(f->head, &rep);
}

int tcp_frame_fetch(struct tx_frame *f, uint8_t **room, struct ff_error *err)
{
    const struct tcp_req *req = &f->req;
    const void *src = (const void *)(uintptr_t)req->addr;
    uint32_t len = tcp_map_len(req->granule ? req->len / req->granule : 0);
    struct tcp_rep rep = {.op = req->op, .id = req->id, .len = req->len};

    if (!*room)
        *room = malloc(TCP_MAX_LEN);
    if (!*room)
        return ff_error_set(err, ENOMEM, "tcp: no room for %u bytes", TCP_MAX_LEN);
    memset(f->map, 0, 2 * len);
    int rc = req->granule ? ff_fetch(&f->from, src, req->len, req->granule, f->map, f->map + len,
                                     *room, err)
                          : ff_fetch_all(&f->from, src, req->len, *room, err);
    if (rc == -ENOMEM)
        return rc;
    f->from.of = NULL;
    if (rc < 0) {
        rep.len = 0;
        rep.status = rc == -EHWPOISON ? TCP_UNREADABLE : TCP_LOST;
    } else {
        rep.flags = add_data(f, *room, req, (uint32_t)rc);
    }
    tcp_rep_encode(f->head, &rep);
    return 0;
}

uint32_t tcp_frame_status(struct ff_mr_table *mrs, const struct tcp_req *req)
{
    unsigned access = req->op == TCP_OP_READ ? FF_ACCESS_REMOTE_READ : FF_ACCESS_REMOTE_WRITE;
    const void *addr = (void *)(uintptr_t)req->addr;
    struct ff_backing from;

    switch (ff_mr_check(mrs, req->rkey, req->addr, req->len, access)) {
    case 0:
        /* with granules it is said of each; of another process's memory, when it is brought */
        return req->op == TCP_OP_READ && !req->granule &&
                       !ff_mr_elsewhere(mrs, req->rkey, addr, &from) &&
                       ff_readable(addr, req->len) < req->len
                   ? TCP_UNREADABLE
                   : TCP_OK;
    case -ENOENT:
        return TCP_NO_KEY;
    case -EACCES:
        return TCP_ACCESS;
    default:
        return TCP_BOUNDS;
    }
}
