/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * The state of an rdma-postcopy migration: what its two sides and the hooks
 * of QEMU's own files share
 */
#ifndef MIGRATION_FARFORK_RDMA_POSTCOPY_STATE_H
#define MIGRATION_FARFORK_RDMA_POSTCOPY_STATE_H

#include "qapi/qapi-types-migration.h"
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
    bool poisoned;              /* memory came with pages that its source could not read */
    bool gave_away;             /* this process must not run its guest */
    bool frozen;                /* source: memory is an image, must not change */
    bool here;                  /* destination: GO was received */
    bool short_of_memory;       /* destination: why it is paused, if it is */
    bool prepared;              /* destination: incoming_prepare() ran */
    bool refused;               /* destination: failed, must never run */
    bool releasing;             /* source: being freed, without the BQL */
    Error *failure;             /* source: why the guest goes on here */
    bool no_lease;              /* destination: under the BQL; see rdma-postcopy-lease.c */
    int incoming_tid;           /* destination: its thread */
    char *tls_creds;            /* destination: the parameter as it was */
    bool holds;                 /* destination: under the BQL; see rdma-postcopy-output.c */
    bool quitting;              /* the process ends: nothing begins any more */
    /* resuming; see rdma-postcopy-resume.c */
    int reconnect_ms;           /* 0: it does not resume */
    QemuMutex lock;             /* of what follows, and of source and dest where the BQL is not */
    struct ff_address *to;      /* source, its thread's: where it was resumed by hand; or NULL */
    struct ff_address *next_to; /* from now on */
    char *sent_to;              /* source: HOST:PORT of that, as it was given */
    bool not_started;           /* source: it was told that nothing runs there, nor will */
    bool takes_back;            /* source: by hand: the destination is lost */
    bool held;                  /* by migrate-pause */
    bool asked;                 /* to go on, by hand */
    QemuSemaphore again;        /* one of the two has changed */
    bool recovers;              /* the link is gone, and the thread waits for the next */
    bool reconnects;            /* it does so by itself */
    bool lingers;               /* destination: complete, the source may ask */
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
void rp_wait_for_rest(const MigrationStatus *state);

/* A migration by @a begins: forget how the last one waited */
void rp_resume_reset(const struct ff_address *a);

/* What query-migrate gives as the reason, instead of any before; NULL: none */
void rp_set_reason(const char *why);

/*
 * Destination with a guest: which pages are not here, under the BQL or by its
 * own thread.  To be freed
 */
char *rp_missing_text(void);
RdmaPostcopyMissingList *rp_missing_list(void);

struct rp_side {
    MigrationStatus *state;
    /* 0: there is a link; -EINTR: to be called again; see farfork.h */
    int (*attempt)(int timeout_ms, struct ff_error *err);
    bool listens;           /* without a time limit, too */
    const char *meanwhile;  /* what becomes of the guest */
};

/*
 * The link broke, for the reason @why: wait for another.  Not under the BQL.
 * 0: there is one; -ETIME, -ESTALE, -ECANCELED, -EKEYREVOKED: what attempt()
 * says, in @err; the last one also when the source, here, has taken its guest back
 */
int rp_recover(const struct rp_side *side, const char *why, struct ff_error *err);

/* Source, under the BQL: `migrate` with `resume` to @a, which is the callee's, made from @address */
void rp_resume_by_hand(struct ff_address *a, const char *address, Error **errp);

/* Source: @address is where it sends the guest; NULL: nowhere.  With rp.lock */
void rp_set_sent_to(const char *address);

/* Destination: query-migrate tells where it listens */
void rp_publish_address(const char *address);

/*
 * Destination, under the BQL: a source with fallback=go is welcome, if what the
 * guest writes can be dropped
 */
void rp_offer_lease(void);

/* Likewise: its lease has ended: @start is called with @opaque when it may run, not now */
bool rp_start_needs_lease(void (*start)(void *), void *opaque);

/* Under the BQL: @change starts or stops the guest; no lease begins or ends meanwhile */
void rp_change_guest(void (*change)(void));

/*
 * Under the BQL: what NICs send is held; NULL, or why it cannot be, to be freed.  Released: it is
 * sent, or never is.  rp.holds: how much there is, to be freed
 */
char *rp_hold_output(void);
void rp_release_output(bool send);
RdmaPostcopyOutput *rp_held_output(void);

/* Likewise, for `cont` */
bool rp_activate_disks(Error **errp);

/* Destination, under the BQL: its handle has a file until-go, beside which its guest's own end is
 * written down */
void rp_watch_shutdown(void);

/* Likewise, as the lease ends, and the guest stands still: its own end of which the main loop has not
 * heard yet */
void rp_write_late_shutdown(void);

/* The source has taken its guest back, for the reason @why */
void G_NORETURN rp_end_revoked(const char *why);

/* Quit: the guest is here, some of its memory may not be */
void rp_end_destination(void);

#endif
