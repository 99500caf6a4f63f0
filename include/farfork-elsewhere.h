/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * farfork-elsewhere.h - move memory that is another process's: for a process beside a QEMU
 */
/**
 * DOC: Theory of Operation
 *
 * Purpose      the same move as farfork.h's, for a caller that does not own the guest. At the source
 *              it reads another process's memory. At the destination it installs pages through a
 *              userfaultfd of that process.
 *
 * Picture      QEMU's memory  --> ff_source (reads)  ==== link ==== ff_dest (installs) --> QEMU's
 *
 *              source                                  destination
 *              ff_source_add_region_of()               ff_dest_elsewhere(), ff_dest_add_region()
 *              ff_source_connect()    -- hello -->     ff_dest_accept()
 *                                                      (the other process's memory is watched)
 *              ff_source_publish()    -- keys -->      ff_dest_start()
 *              (its guest is paused)
 *              ff_source_send_state() -- state -->     ff_dest_recv_state()
 *                                                      ff_dest_adopt()
 *              ... READY, GO, RUNNING and DONE as in farfork.h
 */
#ifndef FARFORK_ELSEWHERE_H
#define FARFORK_ELSEWHERE_H

#include <sys/types.h>
#include <sys/uio.h>

#include "farfork.h"

#ifdef __cplusplus
extern "C" {
#endif

/* --- source: memory of another process --- */

/**
 * ff_source_add_region_of() - as ff_source_add_region(), for memory of process @pid
 * @r: @host is the address there, @fd -1: memory that is in no file which the caller could map
 *
 * Over tcp alone, by process_vm_readv(2); link=auto is tcp from here on. What is in a shared file the
 * caller maps himself instead, and adds it by ff_source_add_region(). With @zero_fill a page that
 * the page tables of @pid do not have is zeros, and stays untouched; with @is_private it is what
 * @private_fd has. Without @zero_fill every page is read, and so populated: say so for a private
 * mapping of a file that the caller cannot open.
 *
 * precopy=1, verify=on and push work as for memory of this process. ff_source_lend() lends none of it;
 * ff_source_hand_over() is -ENOTSUP.
 *
 * When the process ends, runs another program, or unmaps this, the move fails: every wait returns
 * -ESRCH or -EFAULT with that reason, ff_source_go() -ETIME, and ff_source_resume() -ESRCH.
 *
 * Return: as ff_source_add_region(); -EPERM naming the remedy: this process may not read that one;
 *         -ESRCH; -EFAULT: it has no memory there that can be read; -EINVAL: @fd is not -1.
 *         ff_source_connect() returns -ENOTSUP for a link that is not tcp
 */
int ff_source_add_region_of(struct ff_source *s, const struct ff_region *r, pid_t pid,
                            struct ff_error *err);

/* --- destination: memory of another process --- */

/**
 * ff_dest_elsewhere() - the regions are memory of another process, which watches them
 *
 * Call it before the first ff_dest_add_region(). A region's @host is then the address there, its @fd
 * -1; nothing of it is touched, mapped, emptied or watched here. Pages land by copy. Huge pages of
 * hugetlb have to be shared (a memfd or a file). What reads as zeros is left missing, where pages are
 * of 4 KiB: that process gets zeros when it watches no longer.
 *
 * With precopy=1 there is a pass where ff_dest_adopt() came before ff_dest_recv_state(). With visit=on the userfaultfd
 * has to log writes (UFFD_FEATURE_WP_ASYNC, UFFDIO_REGISTER_MODE_WP): pages land write-protected, so that what the
 * page tables say is written was written there, or may have been.
 *
 * Return: 0; -EINVAL: there is a region
 */
int ff_dest_elsewhere(struct ff_dest *d, struct ff_error *err);

/**
 * ff_dest_on_table() - learn the regions from the source, instead of ff_dest_add_region() beforehand
 * @fn: called once, in ff_dest_accept(), with the source's table: names, lengths and page sizes, @fd
 *      -1. Finds each in the other process and adds it. -errno with a reason: the source is told,
 *      and ff_dest_accept() fails with it
 *
 * Call it before ff_dest_accept(), after ff_dest_elsewhere(). The port is open from ff_dest_new() on:
 * a source that comes before ff_dest_accept() waits.
 */
void ff_dest_on_table(struct ff_dest *d,
                      int (*fn)(void *opaque, const struct ff_region *r, unsigned n,
                                struct ff_error *err),
                      void *opaque);

/**
 * ff_dest_adopt() - from here on serve faults and install pages
 * @uffd: the other process's userfaultfd, of pidfd_getfd(2), with each region registered for missing
 *        pages; taken, also on failure
 *
 * Call it once, after ff_dest_start() and before ff_dest_running(), not beside ff_dest_recv_state(). Until that returns
 * 0 nothing is installed. Nobody else may read its events.
 *
 * Return: 0; -EINVAL: no userfaultfd, or a region is not registered with it
 */
int ff_dest_adopt(struct ff_dest *d, int uffd, struct ff_error *err);

/**
 * ff_dest_on_discard() - with precopy=1: have memory of the other process discarded
 * @fn: of these parts, by addresses there, nothing may be left when it returns 0: they are missing again.
 *      ff_dest_recv_state() calls it, in its thread, and fails with its error
 *
 * Call it before ff_dest_start(). Without it there is no pass: -ENOTSUP
 */
void ff_dest_on_discard(struct ff_dest *d,
                        int (*fn)(void *opaque, const struct iovec *part, unsigned n, struct ff_error *err),
                        void *opaque);

#define FF_PASS_MAX (2u << 20)

/**
 * ff_dest_on_pass() - with precopy=1: the pass takes memory from the caller, who has an earlier state of it on this host
 * @fn: bring part of a region, by its place in the order of addition: whole pages, at most FF_PASS_MAX, to @into. A page
 *      whose bit it sets in @zero holds zeros, and is not brought. Called in a thread of the pass. Its error ends the move
 *
 * What ff_source_dirty() names comes from the source; all else stays as @fn has brought it. So @fn has to have
 * memory as it was when the source's log began. Call it before ff_dest_start().
 */
void ff_dest_on_pass(struct ff_dest *d,
                     int (*fn)(void *opaque, uint32_t region, uint64_t offset, uint32_t len, uint8_t *into,
                               uint8_t *zero, struct ff_error *err),
                     void *opaque);

/* As ff_source_session(), once ff_dest_accept() has returned 0 */
void ff_dest_session_text(const struct ff_dest *d, char out[FF_SESSION_TEXT]);

/* Wait until every page is here: 0; -ECANCELED; -ETIMEDOUT; and go on waiting over a link that
 * breaks and comes back. Any thread; -1: no limit. From then on the other process may end its watch */
int ff_dest_wait_complete(struct ff_dest *d, int timeout_ms, struct ff_error *err);

/**
 * ff_dest_on_complete() - before the source hears that all is here
 * @fn: every page is here, and nothing is served any more: end the watch. Its error is ff_dest_wait_done()'s, and the
 *      source is not told then. ff_dest_wait_done() calls it, in its thread
 *
 * Call it before ff_dest_wait_done().
 */
void ff_dest_on_complete(struct ff_dest *d, int (*fn)(void *opaque, struct ff_error *err), void *opaque);

/**
 * ff_dest_refuse() - the source is to hear why nothing becomes of the move here
 *
 * Before ff_dest_ready(): what it waits for fails with -EREMOTEIO and this reason, unless the link is broken.
 * After GO: the guest is lost here. Ends the link, waits for the source to come back, and answers with this reason. The
 * source's ff_source_resume() returns -EREMOTEIO then. Nothing but ff_dest_free() may follow.
 *
 * Return: 0: the source has come, and was told; or before ff_dest_ready(); -ETIMEDOUT
 */
int ff_dest_refuse(struct ff_dest *d, const char *why, int timeout_ms, struct ff_error *err);

#ifdef __cplusplus
}
#endif

#endif
