/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * proxy_small.h - blocks that QEMU's own stream carries: which of their pages have passed
 */
/**
 * DOC: Theory of Operation
 *
 * Purpose      after GO the source's proxy can serve main memory without its QEMU, where it is in a
 *              file. Pages of small blocks (video memory, firmware) come from that QEMU alone. So the
 *              destination asks for them first, and both sides count them: a QEMU that ends after that
 *              takes nothing with it. With --from-stream all blocks are such, and large ones come as
 *              QEMU sends them.
 * Threads      the one that forwards; proxy_small_ask() is the other one's.
 */
#ifndef FF_CONTROL_PROXY_PROXY_SMALL_H
#define FF_CONTROL_PROXY_PROXY_SMALL_H

#include "proxy_state.h"

/* Of main memory: its number; else -1. Not for a thread other than the forwarding one */
int proxy_main_block(struct proxy *p, const struct stream_block *b);
int proxy_find_main(const struct proxy *p, const char *name);

/* Takes STREAM_BLOCKS, STREAM_PAGE of a small block, STREAM_DISCARD */
int proxy_small_see(struct proxy *p, const struct stream_event *e, struct ff_error *err);

/* 0: every page has passed. Else -ENODATA, and how many have not, of which block */
int proxy_small_check(const struct proxy *p, struct ff_error *err);

/* Destination, once, between two messages of the return path */
int proxy_small_ask(struct proxy *p, struct ff_error *err);
void proxy_small_free(struct proxy *p);

#endif
