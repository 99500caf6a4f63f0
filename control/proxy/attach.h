/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * attach.h - a move of any QEMU's guest without a migration of QEMU's own
 */
/**
 * DOC: Theory of Operation
 *
 * Purpose      what a QEMU with the transport does inside, done from outside by vm/attach/: nothing of its
 *              own migration is used but -incoming.
 *
 *                  source                                       destination
 *              (1) find its RAM; connect, publish        <-->   (1) find its RAM; accept
 *                                                               (2) watch it, empty it: WATCHING
 *              (3) `stop`; devices' state, disks given
 *                  up; hold its threads: STATE           -->    (4) serve faults; the stream that we write
 *                                                                   to QEMU, until it is `paused`: READY
 *              (5) bind them to this process; GO         -->    (6) `cont`: disks, RUNNING
 *              (7) serve                                 <-->   (7) install; all is here: watch no longer
 *              (8) end it                                <--        DONE
 *
 * Invariants   1. One runner: at the source from (5) on no thread of QEMU runs, so no monitor can make its guest run,
 *                 and the kernel kills it if this process ends. Until (5) `cont` gives the guest back, with its disks.
 *              2. Immutable image: from (3) on no thread of QEMU runs, so nobody's input, and no command of another
 *                 monitor, writes guest memory after the state was saved.
 * Limits       Of a guest that is paused disks are not given up before GO: another QEMU can write to them once the one
 *              here has ended.
 */
#ifndef FF_CONTROL_PROXY_ATTACH_H
#define FF_CONTROL_PROXY_ATTACH_H

#include "proxy_state.h"

int attach_source_ready(struct proxy *p, struct ff_error *err); /* (1) to (5), all but GO */
bool attach_has_stopped(const struct proxy *p); /* the guest was told to stop */
void attach_source_back(struct proxy *p);  /* its threads go on: GO was not sent, or came to nothing */
void attach_source_over(struct proxy *p, int code); /* (8); after GO, whatever came of it */

int attach_dest_ready(struct proxy *p, struct ff_error *err); /* (1) to (4) */
bool attach_dest_listens(const struct proxy *p); /* its QEMU may be ended: it has nobody else's guest */
int attach_dest_finish(struct proxy *p, struct ff_error *err); /* starts the thread for (7) */

void attach_free(struct proxy *p);

#endif
