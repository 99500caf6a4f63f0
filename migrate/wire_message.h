/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * wire_message.h - head and end of every control message; for wire*.c alone
 */
#ifndef FF_MIGRATE_WIRE_MESSAGE_H
#define FF_MIGRATE_WIRE_MESSAGE_H

#include "wire.h"
#include "wirebuf.h"

#define FF_WIRE_MAGIC 0x314b524f46524146ull /* "FARFORK1" */

struct ff_wirebuf ff_wire_begin(uint8_t *buf, enum ff_msg type);
struct ff_wirebuf ff_wire_body(const uint8_t *msg, size_t len);

/* The end of every decoder: nothing missing, nothing left over */
int ff_wire_end(const struct ff_wirebuf *b, enum ff_msg type, struct ff_error *err);

/* What a source speaks, by its message @name: 0, or -EPROTONOSUPPORT with both sides' versions */
int ff_wire_check_version(const char *name, unsigned oldest, unsigned version,
                          struct ff_error *err);

/* None, or within its bounds */
static inline bool ff_wire_lease_fits(uint32_t ms)
{
    return !ms || (ms >= FF_WIRE_LEASE_MIN_MS && ms <= FF_WIRE_LEASE_MAX_MS);
}

#endif
