/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * wire_bytes.c - BYTES: a part of the tunnel's stream (tunnel.h)
 */
#include <errno.h>

#include "error.h"
#include "wire_message.h"

#define BYTES_END 1u /* the stream ends behind these bytes */

int ff_wire_put_bytes(uint8_t *buf, const struct ff_bytes *p)
{
    struct ff_wirebuf b = ff_wire_begin(buf, FF_MSG_BYTES);

    ff_wb_put(&b, p->offset, 8);
    ff_wb_put(&b, p->taken, 8);
    ff_wb_put(&b, p->ends ? BYTES_END : 0, 4);
    ff_wb_put_bytes(&b, p->data, p->n);
    return (int)b.pos;
}

int ff_wire_get_bytes(const uint8_t *msg, size_t len, struct ff_bytes *p, struct ff_error *err)
{
    struct ff_wirebuf b = ff_wire_body(msg, len);

    p->offset = ff_wb_get(&b, 8);
    p->taken = ff_wb_get(&b, 8);
    uint32_t flags = (uint32_t)ff_wb_get(&b, 4);
    if (b.bad)
        return ff_wire_end(&b, FF_MSG_BYTES, err);
    if (p->offset > FF_WIRE_BYTES_LAST || p->taken > FF_WIRE_BYTES_LAST || flags & ~BYTES_END)
        return ff_error_set(err, EPROTO,
                            "wire: read BYTES: offset 0x%llx, taken 0x%llx, flags 0x%x (permitted "
                            "0..0x%llx, likewise, 0..%u)",
                            (unsigned long long)p->offset, (unsigned long long)p->taken, flags,
                            FF_WIRE_BYTES_LAST, BYTES_END);
    p->ends = flags;
    p->n = (uint32_t)ff_wb_left(&b);
    p->data = ff_wb_take(&b, p->n);
    return ff_wire_end(&b, FF_MSG_BYTES, err);
}
