/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * attach_private.h - between attach*.c
 */
#ifndef FF_CONTROL_PROXY_ATTACH_PRIVATE_H
#define FF_CONTROL_PROXY_ATTACH_PRIVATE_H

#include "attach.h"
#include "hold.h"
#include "incoming_stream.h"
#include "watcher.h"

#define ATTACH_SMALL_BYTES (1u << 20) /* below it a block travels with the state */

struct attach {
    struct outside_block *all; /* every RAM block; p->blocks are those that the engine has */
    unsigned n_all;
    struct incoming_block *incoming; /* of each */
    uint8_t **small;                 /* the bytes of those that are not main memory */
    struct incoming_stream stream;
    bool stopped;      /* source: the guest was told to */
    struct hold *hold; /* source */
    struct watch watch; /* destination */
    bool listens; /* destination: its QEMU waits for a migration, which is ours */
};

static inline bool attach_is_main(const struct outside_block *b)
{
    return b->len_bytes >= ATTACH_SMALL_BYTES;
}

int attach_new(struct proxy *p, struct ff_error *err);
int attach_look(struct proxy *p, struct ff_error *err); /* connect; p->pid, into which this process may look */
int attach_find_blocks(struct proxy *p, struct ff_error *err); /* then */

#endif
