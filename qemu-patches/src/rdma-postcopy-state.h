/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * The state of an rdma-postcopy migration: what its two sides and the hooks
 * of QEMU's own files share
 */
#ifndef MIGRATION_FARFORK_RDMA_POSTCOPY_STATE_H
#define MIGRATION_FARFORK_RDMA_POSTCOPY_STATE_H

#include "rdma-postcopy-ram.h"

struct rp_state {
    struct ff_source *source;   /* writes under the BQL */
    struct ff_dest *dest;       /* likewise */
    struct ff_collapse *collapse; /* likewise; makes memory huge again */
    struct ff_stats stats;      /* of a handle that is gone */
    struct ff_stage_time stages[FF_STAGES]; /* likewise; destination */
    const char *link;           /* likewise */
    char link_detail[FF_LINK_DETAIL_MAX];
    bool used;                  /* stats and link mean something */
    bool gave_away;             /* this process must not run its guest */
    bool frozen;                /* source: memory is an image, must not change */
    bool here;                  /* destination: GO was received */
    bool short_of_memory;       /* destination: why it is paused, if it is */
    bool prepared;              /* destination: incoming_prepare() ran */
    bool refused;               /* destination: failed, must never run */
    bool releasing;             /* source: being freed, without the BQL */
    Error *failure;             /* source: why the guest goes on here */
    bool quitting;              /* the process ends: nothing begins any more */
    void *state;
    size_t state_len;
};

extern struct rp_state rp;

/* Fill @errp from @err, which is freed */
void rp_take_error(Error **errp, struct ff_error *err);

/* Until ram_block_discard_disable(false): nobody may discard guest memory */
bool rp_hold_discards(Error **errp);

/* Under the BQL: leave guest memory in whatever pages it is */
void rp_collapse_stop(void);

/*
 * Quit: wait until the destination has all memory, as long as it gets some,
 * while *@state is one of a migration that goes on, or until a second request
 * to end
 */
void rp_wait_for_rest(const int *state);

/* Quit: the guest is here, some of its memory may not be */
void rp_end_destination(void);

#endif
