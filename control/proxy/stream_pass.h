/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * stream_pass.h - a migration between two sockets: both directions, counted
 */
#ifndef FF_CONTROL_PROXY_STREAM_PASS_H
#define FF_CONTROL_PROXY_STREAM_PASS_H

#include "stream_return.h"

/**
 * struct stream_pass_hooks - where a proxy acts; each may be NULL: forward
 * @seen:  a unit of the forward stream, as struct stream_sink's event(); what is held is asked
 *         about again every 10 ms
 * @asked: a message of the return path, as struct stream_return_sink's event()
 */
struct stream_pass_hooks {
    int (*seen)(void *opaque, const struct stream_event *e, struct ff_error *err);
    int (*asked)(void *opaque, const struct stream_return *m, struct ff_error *err);
    void *opaque;
};

struct stream_pass_counts {
    uint64_t forward_bytes, forward_written, return_bytes, return_written;
    uint64_t units[STREAM_KINDS], zero_pages, messages[STREAM_RETURN_TYPES];
    uint64_t package_bytes;
};

/**
 * stream_pass() - forward a migration until both sides have ended
 * @source:      a connected stream socket to the source's QEMU; made non-blocking
 * @destination: the same to the destination's
 * @counts:      filled in any case
 *
 * Threads: the caller's; it returns when both directions have ended
 * Return:  0: the stream was understood to its end; -EPROTO and -ENOTSUP as stream_feed(), also
 *          when the source ended it in the middle; what a hook returned; -errno of a socket
 */
int stream_pass(int source, int destination, const struct stream_pass_hooks *hooks,
                struct stream_pass_counts *counts, struct ff_error *err);

#endif
