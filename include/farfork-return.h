/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * farfork-return.h - a guest that went away comes back, with what it has written since
 */
/**
 * DOC: Theory of Operation
 *
 * Purpose      a guest visits another host: it gets there what it needs, and home what it changed.
 *
 * Picture      home                                      away
 *              ff_source_go()           -- GO -->        ff_dest_wait_go()      visit=on, and a log
 *              serves faults           <-------->        (the guest works)
 *              ff_dest_keep()                            ff_source_return()
 *              a move like any other, the other way; memory that was not written is there
 *              ff_source_stop() of the first one         ff_dest_cancel() of the first one
 *
 * Invariants   those of farfork.h, for each of the two moves. Until the second one's GO the guest is
 *              away, and what fails leaves it there.
 */
#ifndef FARFORK_RETURN_H
#define FARFORK_RETURN_H

#include "farfork.h"

#ifdef __cplusplus
extern "C" {
#endif

/**
 * ff_address_visit() - visit=on: the guest that comes is to return
 *
 * It gets what it touches, as with prefill=off, and its move does not end when that is all of its memory:
 * ff_dest_wait_done() goes on until the link breaks, which ff_dest_recover() follows as ever, or
 * ff_dest_cancel(). So where it came from serves it until it has returned.
 */
bool ff_address_visit(const struct ff_address *a);

/**
 * ff_source_return() - the guest goes back to where it came from
 * @came: the destination of the move by which it came; it may serve faults still
 *
 * After the regions were added, before ff_source_connect(). That move had visit=on, and @came stays
 * until @s is freed. Log every write to a region from before @came's ff_dest_wait_go() on, also through
 * returns that fail, and name them all by ff_source_dirty() in the pause: of these pages those that came
 * are fetched. The other side has called ff_dest_keep(). Over tcp.
 *
 * Return: 0; -EINVAL: it did not come by such a move, its regions are others, or @s is connected
 */
int ff_source_return(struct ff_source *s, const struct ff_dest *came, struct ff_error *err);

/**
 * ff_dest_keep() - memory here is as it was at the GO of a guest that is to return
 * @went: the source of the move by which it went, which stays until @d is freed. It serves on, for its
 *        guest until this ff_dest_wait_go() has returned 0; end it by ff_source_stop() after that.
 *        ff_source_take_back() fails from ff_dest_recv_state() on
 *
 * After the regions were added, before ff_dest_accept(). No other guest is taken. Do not empty memory
 * once ff_dest_start() has returned: what the guest has written since is made missing by
 * ff_dest_recv_state(). Nobody writes to memory before ff_dest_wait_go() has returned 0, or what he
 * writes is put back where that fails: @went gives it to the guest elsewhere.
 *
 * Return: 0; -ENOTSUP: huge pages, a private mapping of a file; -EINVAL: the guest is not elsewhere,
 *         or is there to stay, its regions are others, or a source has come
 */
int ff_dest_keep(struct ff_dest *d, struct ff_source *went, struct ff_error *err);

#ifdef __cplusplus
}
#endif

#endif
