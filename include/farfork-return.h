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
 *              the first link ends     <-- paused --     ff_source_dirty(), ff_source_send_state()
 *              loads devices: writes are kept in mind
 *              ff_dest_wait_go()       <--  GO   --      ff_source_go()
 *              ff_source_stop() of the first one         ff_dest_cancel() of the first one
 *
 * Invariants   those of farfork.h, for each of the two moves. Until the second one's GO the guest is
 *              away, and what fails leaves it there: what was written to memory at home is put back, and
 *              the guest is served from there again.
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
 *
 * With budget=SIZE prefill runs, too, until it has asked for that much, zeros apart: for less than a chunk more
 * at most, and never again after that.
 */
bool ff_address_visit(const struct ff_address *a);

/**
 * ff_dest_first() - prefill brings these pages before all else
 * @text: a working set, as ff_dest_working_set() of another destination has it: of this guest, or one like it
 *
 * A hint: what is no page of these regions is left out, and a text that is none from there on, with a warning.
 * The last call before ff_dest_running() counts.
 *
 * Threads: any, before ff_dest_running()
 * Return:  0, -ENOMEM
 */
int ff_dest_first(struct ff_dest *d, const char *text, struct ff_error *err);

/**
 * ff_dest_working_set() - which pages somebody has waited for, in that order
 *
 * What ff_dest_first() had said, then what was touched besides before it was here: with visit=on, and by the
 * children of an agent. Printable ASCII. Up to 65536 stretches of pages are kept of either, so it is of a few MiB
 * at most. Cost: milliseconds for each MiB.
 *
 * Threads: any, from ff_dest_wait_go() on, until ff_dest_free()
 * Return:  the text, to be freed; NULL: nothing, or no memory
 */
char *ff_dest_working_set(struct ff_dest *d);

/**
 * ff_dest_is_touched() - whether anybody can have touched memory from @offset of the region that was added as the
 * @region-th, counted from 0
 * @len: how far from @offset on the same holds, at most to the end of the region
 *
 * What devices have written while they were loaded is of that: so a log of writes can begin then, with that in it.
 *
 * Cost:    a nanosecond or two for each page
 * Threads: any. False: nobody had touched it when this was called
 */
bool ff_dest_is_touched(const struct ff_dest *d, unsigned region, uint64_t offset, uint64_t *len);

/**
 * ff_source_return() - the guest goes back to where it came from
 * @came: the destination of the move by which it came; it may serve faults still
 *
 * After the regions were added, before ff_source_connect(). That move had visit=on, and @came stays
 * until @s is freed. Log every write to a region from before @came's ff_dest_wait_go() on, also through
 * returns that fail, and name them all by ff_source_dirty() in the pause: of these pages those that came
 * are fetched. The other side has called ff_dest_keep(). Over tcp.
 *
 * From the first ff_source_dirty() on no page comes by @came any more, unless this return fails, and the other
 * side has put its memory back. So have the state ready by then: who touched a missing page to save it would
 * wait for as long as the pause may last.
 *
 * With fallback=go it needs no lease from ff_source_wait_ready() on, that has returned 0.
 *
 * Return: 0; -EINVAL: it did not come by such a move, its regions are others, or @s is connected
 */
int ff_source_return(struct ff_source *s, struct ff_dest *came, struct ff_error *err);

/**
 * ff_dest_keep() - memory here is as it was at the GO of a guest that is to return
 * @went: the source of the move by which it went, with reconnect= on both sides; it stays until @d is freed.
 *        It serves on, for its guest, until the other side has paused that. Then its link is broken, and
 *        ff_source_resume() waits before it connects: until memory is put back, if this return fails; with
 *        -ECANCELED if ff_dest_wait_go() has returned 0: end it by ff_source_stop() then.
 *        ff_source_take_back() fails from ff_dest_recv_state() on; where the address of @d says fallback=off, from
 *        this call on, if it returns 0, and the other side needs no lease once it has heard of that:
 *        ff_dest_is_released()
 *
 * After the regions were added, before ff_dest_accept(). No other guest is taken. Do not empty memory
 * once ff_dest_start() has returned: what the guest has written since is made missing by
 * ff_dest_recv_state(). When that has returned 0, devices may be loaded. What is written to memory then, by
 * this mapping, stays when GO comes. Without GO it is put back: by ff_dest_recover(), where that is called
 * after ff_dest_wait_go() has failed, else by ff_dest_free(). Nobody writes any more when one of them is called,
 * nor between ff_dest_ready() and GO. ff_dest_give_up() puts nothing back: who loads may not know of it yet, and
 * waits for nothing.
 *
 * Cost:   ff_dest_start() protects all of memory, up to 0.16 us for each 4 KiB; each first write before GO
 *         copies a page
 * Return: 0; -ENOTSUP: huge pages, a private mapping of a file, a kernel that does not report writes (Linux 5.7
 *         does, of shared memory 5.19); -EINVAL: the guest is not elsewhere, or is there to stay, its regions are
 *         others, the way out does not resume, or a source has come; -EBUSY: fallback=off, and the guest is being
 *         taken back
 */
int ff_dest_keep(struct ff_dest *d, struct ff_source *went, struct ff_error *err);

/**
 * ff_dest_has_gone() - the guest that came by @d has returned: it runs where it came from
 *
 * Who waits here for a page of it goes on, and reads zeros. The handle stays, for ff_source_free() of the return,
 * and ff_dest_free(). By the thread that called ff_dest_wait_done() last
 */
void ff_dest_has_gone(struct ff_dest *d);

/**
 * ff_source_give_up() - the guest that went with fallback=go is never taken back from here on
 *
 * ff_source_take_back() fails with -EBUSY. The other side hears it with its next lease, and needs none from then on:
 * ff_dest_is_released().
 *
 * Threads: any
 * Return:  0; -EBUSY: it is being taken back
 */
int ff_source_give_up(struct ff_source *s, struct ff_error *err);

/*
 * Any thread, of a guest that visits: its source has fallback=go, at first; and has said that it never takes the guest
 * back, so that what it writes here may become its own for good
 */
bool ff_dest_has_fallback(const struct ff_dest *d);
bool ff_dest_is_released(struct ff_dest *d);

/*
 * Any thread: of the move by which a guest went: it is on its way back, and there is no link until that has
 * succeeded or failed; it has returned: ff_dest_wait_go() has, or is about to
 */
bool ff_source_is_held(const struct ff_source *s);
bool ff_source_has_returned(const struct ff_source *s);

#ifdef __cplusplus
}
#endif

#endif
