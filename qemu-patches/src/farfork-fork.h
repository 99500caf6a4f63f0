/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Forks of a guest: what their files share, and rdma-postcopy asks
 *
 * x-farfork-export makes an image of a guest that goes on.  All of it happens
 * in the parent's main thread, with the BQL; nothing waits for a network.
 *
 *   (1) guest runs   refuse what cannot be forked; map each shared memfd
 *                    privately, elsewhere (what may be wanting is wanting
 *                    here, huge pages too); flush disks
 *   (2) stop-ns      stop vCPUs and devices, drain and flush disks   \
 *   (3) actions-ns   block device actions, such as overlays          |
 *   (4) state-ns     save devices into a buffer                      | the
 *   (5) fork-ns      first-touch set; fork(): the holder             | pause
 *       memory-ns    the private mapping moves over RAM; tell the    |
 *                    holder that memory stands still from now on     /
 *   (6) guest runs   (a template stays paused); a thread unmaps what was
 *                    there before (5)
 *
 *   parent                          holder, "farfork-holder"
 *     writes: the kernel copies       a thread for each agent: an ordinary
 *                                     source; or it hands the image over,
 *                                     while page tables still move in the
 *                                     parent, and lets children run when
 *                                     the parent says so
 *
 * Fork first.  While the guest stands still its memfd is the image, whoever
 * maps it how.  So the holder is there before the mapping moves, and children
 * on this host load meanwhile.  Should the move fail, the parent kills the
 * holder before the guest goes on: it has let nobody run, and agents that lose
 * it before that tell their children to end.
 *
 * Why fork(2).  It keeps the image of private memory for as long as the holder
 * lives, however often it is done and however fast the parent writes.  Nobody
 * looks at a page, no fault handler stands in the guest's way.  Its cost is
 * page tables: nothing for what is huge, about 40 ms a GiB for pages of 4 KiB
 * under a KVM that has mapped them.
 *
 * Invariants:
 * - The parent runs on, or stays paused, as it was, whatever fails before (6),
 *   with the reason in the reply.  Two things stay: actions that were taken,
 *   and memory that was remapped, which changes nothing.
 * - The image is of one instant: (3) to (5) see the same stopped guest.
 *   Devices are saved before memory is frozen, since saving may write memory.
 * - A published file never changes: farfork-image.c.
 *
 * Refused: a driver that has guest memory pinned for a device (nvme://), which
 * would go on to write to the file after the remap; what others may map for
 * their own purposes: memory of a named file, ivshmem.
 */
#ifndef MIGRATION_FARFORK_FORK_H
#define MIGRATION_FARFORK_FORK_H

#include <farfork-clone.h>
#include "rdma-postcopy-ram.h"

/* --- farfork-image.c: memory; under the BQL, blocks as in rp_block[] --- */

/* A private mapping of an image that others map too */
struct fc_image {
    RAMBlock *block;
    int fd;
    uint64_t offset;
};

const struct fc_image *fc_image_of(const RAMBlock *block);

/* The block is now mapped privately from @fd, which is taken over */
void fc_image_adopt(RAMBlock *block, int fd, uint64_t offset);

/* Advise the kernel of memory mapped anew, as of any guest memory */
void fc_advise(const RAMBlock *block, void *at);
void fc_advise_huge(const RAMBlock *block, bool on);

/* From the first image on, for as long as this process lives */
bool fc_hold_discards(Error **errp);

/* Does a device need guest memory to stay in the pages where it is? */
bool fc_is_pinned(void);

/*
 * While the guest runs: get ready to freeze.  fc_freeze() in the pause; on
 * failure some blocks may be private mappings already, of the same content.
 * fc_freeze_end() when the guest goes on, or nothing came of it.
 */
bool fc_freeze_prepare(Error **errp);
bool fc_freeze(Error **errp);
void fc_freeze_end(void);

/* Let a child of fork() have guest memory, or no longer */
void fc_inherit(bool on);

/*
 * As rp_region(), in the pause; has an fd if the file is the whole image, or
 * will be from fc_freeze() on, and may be lent
 */
struct ff_region fc_region(unsigned i);

/* --- farfork-holder.c --- */

/* Written by the holder, read by the parent */
struct fc_progress {
    FarforkTargetStatus status; /* qatomic */
    uint64_t transferred;       /* likewise */
    char error[512];            /* before status becomes failed */
    char session[FF_SESSION_TEXT]; /* before has_session */
    bool has_session;           /* qatomic */
};

struct fc_target {
    char *uri, *socket;
    bool passed;                /* the link is made by the socket, too */
    struct ff_address *address;
};

/* What the holder serves; made in the parent, during the pause */
struct fc_frozen {
    const struct fc_target *target;
    struct fc_progress *progress;
    unsigned n;
    void *state;
    size_t state_len;
    const char *config;
    struct rp_first_touch first;
    struct ff_region region[RP_REGIONS_MAX];
    unsigned n_regions;
    uint64_t lent_bytes;
    int null_fd;
    int go[2];                  /* pipe: a byte when memory stands still */
    bool no_session;            /* setsid() would end the holder */
};

/* In the parent, before the guest stops */
bool fc_holder_prepare(struct fc_frozen *f, Error **errp);

/* In the fork()ed process */
G_NORETURN void fc_holder_main(struct fc_frozen *f);

/* --- farfork-child.c --- */

bool farfork_child_is_idle(Error **errp);
bool farfork_child_forbids_run(void);
void farfork_child_shutdown(void);

/* --- rdma-postcopy.c --- */

bool rdma_postcopy_is_idle(Error **errp);

#endif
