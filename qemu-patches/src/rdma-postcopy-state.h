/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * The state of an rdma-postcopy migration: what its two sides and the hooks
 * of QEMU's own files share
 */
#ifndef MIGRATION_FARFORK_RDMA_POSTCOPY_STATE_H
#define MIGRATION_FARFORK_RDMA_POSTCOPY_STATE_H

#include "qapi/qapi-types-migration.h"
#include "rdma-postcopy-ram.h"

/* A side's wait for another link */
struct rp_wait {
    int reconnect_ms;           /* 0: it does not resume */
    bool held;                  /* by migrate-pause */
    bool asked;                 /* to go on, by hand */
    bool over;                  /* nobody needs another any more */
    bool says;                  /* of rp.in: query-migrate gives its reason */
    QemuSemaphore again;        /* one of these has changed */
    bool recovers;              /* the link is gone, and the thread waits for the next */
    bool reconnects;            /* it does so by itself */
};

/*
 * Written and read by the main thread, the thread of a side and who speaks out of band, which have
 * no lock in common.  A type of its own, so that nobody reads it plainly.  Who sees a flag sees
 * what was written before it
 */
typedef struct rp_flag {
    bool is;
} rp_flag;

static inline bool rp_is(const rp_flag *flag)
{
    return qatomic_load_acquire(&flag->is);
}

static inline void rp_set(rp_flag *flag, bool is)
{
    qatomic_store_release(&flag->is, is);
}

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
    rp_flag gave_away;          /* this process must not run its guest */
    rp_flag frozen;             /* source: memory is an image, must not change */
    rp_flag here;               /* destination: GO was received */
    rp_flag short_of_memory;    /* destination: why it is paused, if it is */
    bool prepared;              /* destination: incoming_prepare() ran */
    bool refused;               /* destination: failed, must never run */
    bool releasing;             /* source: being freed, without the BQL */
    Error *failure;             /* source: why the guest goes on here */
    rp_flag no_lease;           /* destination: under the BQL; see rdma-postcopy-lease.c */
    int incoming_tid;           /* destination: its thread */
    char *tls_creds;            /* destination: the parameter as it was */
    bool holds;                 /* destination: under the BQL; see rdma-postcopy-output.c */
    rp_flag quitting;           /* the process ends: nothing begins any more */
    /* a guest that comes back; see rdma-postcopy-return.c */
    rp_flag visits;             /* destination: its guest is to go back */
    rp_flag went_back;          /* ... and did */
    rp_flag returns;            /* source: that is where it goes */
    rp_flag comes_back;         /* home: dest is that of a guest that went from here by source */
    bool resets;                /* home, under the BQL: devices, before they are loaded */
    rp_flag serves;             /* source: its thread lives */
    bool yanks;                 /* destination: rp_yank_dest() is registered */
    /* resuming; see rdma-postcopy-resume.c */
    QemuMutex lock;             /* of what follows, and of source and dest where the BQL is not */
    struct rp_wait out, in;     /* of source, of dest: a guest that visits has both */
    struct ff_address *to;      /* source, its thread's: where it was resumed by hand; or NULL */
    struct ff_address *next_to; /* from now on */
    char *sent_to;              /* source: HOST:PORT of that, as it was given */
    char not_started[32];       /* source: it was told that nothing runs there, nor will, by that mark; "" */
    bool takes_back;            /* source: by hand: the destination is lost */
    RdmaPostcopyTakeBack take_back; /* what came of it, for query-migrate: after its reason */
    bool lingers;               /* destination: complete, the source may ask */
    void *state;
    size_t state_len;
};

extern struct rp_state rp;

/* Source, its thread: the guest stops and its devices are saved; see rdma-postcopy-stop.c */
bool rp_stop_and_save(MigrationState *s, struct rp_first_touch *ft, Error **errp);

/* Saving the devices of a guest that goes back may need a page that is not here */
#define RP_NO_LINK_HOME "rdma-postcopy: the link by which this guest came is broken: it goes back when there is another"

/* Fill @errp from @err, which is freed */
void rp_take_error(Error **errp, struct ff_error *err);

/* Until ram_block_discard_disable(false): nobody may discard guest memory */
bool rp_hold_discards(Error **errp);

/* Under the BQL: leave guest memory in whatever pages it is */
void rp_collapse_stop(void);

/* Under the BQL: what the main loop would do: let go of that, run bottom halves */
void rp_let_others_run(void);

/* A migration by @a begins, of which @w is this side: forget how the last one waited */
void rp_resume_reset(struct rp_wait *w, const struct ff_address *a);

/*
 * What query-migrate gives as the reason, instead of any before; NULL: none.  It
 * has room for one side's: that of a source, where there is one
 */
void rp_set_reason(const struct rp_wait *w, const char *why);

/*
 * Destination with a guest: which pages are not here, under the BQL or by its
 * own thread.  To be freed
 */
char *rp_missing_text(void);
RdmaPostcopyMissingList *rp_missing_list(void);

struct rp_side {
    struct rp_wait *wait;
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
bool rp_check_overlays(Error **errp); /* a guest that goes home: none of them is its disk */

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

/* Destination: @a is the callee's, made from @address.  True: it listens */
bool rp_listen(struct ff_address *a, const char *address, Error **errp);
void rp_yank_dest(void *opaque);

/* --- rdma-postcopy-return.c --- */

/* One side waits until the other has ended, which it is of use to */
void rp_tell_ended(void);
void rp_wait_ended(void);

/* Away, under the BQL: the guest, which is to go back, starts; may it go now? */
void rp_visit_begins(void);
bool rp_may_go_back(void);
void rp_went_back(void); /* not under the BQL */
void rp_home_serves(void); /* likewise */

/* Source, its thread: from when the guest runs elsewhere, until it is nobody's image */
void rp_show_image(bool serves);

/* Home, by the thread of the destination: reset, and load.  < 0: not whole */
int rp_home_load(void);
void rp_home_arrived(void);
void rp_home_failed(const Error *err); /* under the BQL */
void rp_end_return(void); /* that has not got so far; it ends by itself then */
void rp_fill_return(RdmaPostcopyInfo *x);
void rp_forget_return(void); /* under the BQL: a guest goes anew */

#endif
