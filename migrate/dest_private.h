/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * dest_private.h - what the parts of the destination, dest*.c, share
 */
#ifndef FF_MIGRATE_DEST_PRIVATE_H
#define FF_MIGRATE_DEST_PRIVATE_H

#include <pthread.h>
#include <stdatomic.h>

#include "beat.h"
#include "control.h"
#include "dest.h"
#include "lease.h"
#include "pager.h"
#include "until_go.h"

/* Whoever has connected and has not said who it is yet; the oldest first */
#define DEST_WAITING_MAX 8u
_Static_assert(DEST_WAITING_MAX < FF_PORT_ALSO_MAX, "one place is for what stops the ear");
struct dest_waiting {
    struct ff_link *link[DEST_WAITING_MAX];
    uint64_t until_ns[DEST_WAITING_MAX];
    unsigned n;
};

/* dest_ear.c */
struct dest_ear {
    pthread_t thread;
    int stop_fd;
    bool runs;
    struct ff_link *came; /* it has said RESUME, and waits for WELCOME */
};

#define PROGRESS_MS 200
#define PUBLISH_MS 300000 /* over every link: registering a large source may take this long */
#define WITHDRAWN_MS 2000

struct ff_dest {
    struct ff_address addr;
    struct ff_regions regions;
    struct ff_control ctl;
    struct ff_control door; /* to whoever is not the move's link yet; one thread at a time hears */
    struct dest_waiting waiting;
    unsigned long n_dropped; /* of those, and of sources that were refused: who hears counts */
    struct dest_ear ear;
    struct ff_hello peer;
    struct ff_publish publish;
    uint32_t map[FF_WIRE_REGIONS_MAX]; /* the source's number of a region -> ours */
    struct ff_dest_owner owner; /* an agent, if its adopt is set */
    void (*on_shortage)(void *opaque, const char *why);
    void *on_shortage_opaque;
    bool lent[FF_WIRE_REGIONS_MAX]; /* by our number */
    struct ff_source *keeps;        /* dest_return.c: the image that it serves, of this session; or NULL */
    uint8_t kept[FF_SESSION_LEN];
    bool holds; /* then: until it has returned, or memory is put back, that source does not connect */
    bool has_state;
    int (*on_complete)(void *opaque, struct ff_error *err); /* memory elsewhere: see ff_dest_on_complete() */
    void *on_complete_opaque;
    int (*on_discard)(void *opaque, const struct iovec *part, unsigned n, struct ff_error *err); /* likewise */
    void *on_discard_opaque;
    ff_pass_fn *on_pass; /* likewise */
    void *on_pass_opaque;
    int (*on_table)(void *opaque, const struct ff_region *r, unsigned n, struct ff_error *err);
    void *on_table_opaque; /* likewise: see ff_dest_on_table() */
    uint8_t session[FF_SESSION_LEN];
    bool verbs;         /* what the first link was, every later one must be */
    _Atomic bool ready; /* READY was sent: the source may let go, or have */
    bool accepted;      /* only the move's own source is heard, which says RESUME */
    bool recovers;      /* there is no link: keys that come are those of the next one */
    unsigned n_keys;    /* that the source has given, for as many segments */
    unsigned n_parts;   /* likewise, over this link */
    struct ff_until_go until_go;
    bool complete;      /* every page is here, and the pager has ended */
    bool told;          /* the source knows that */
    bool settled;       /* fallback=go: and the caller that the guest is its own for good */
    _Atomic bool interrupted; /* ff_dest_recover() is to return */
    _Atomic bool leaves; /* ff_dest_leave() */
    const char *lost_why; /* ff_dest_refuse(); NULL: the guest is not lost */
    _Atomic uint32_t epoch;    /* of the newest link that was offered */
    _Atomic uint32_t attached; /* of the newest that was taken up: its source knows that */
    struct ff_pager pager;
    pthread_mutex_t pager_lock; /* starting and finishing it */
    struct ff_page_pool pool;
    struct ff_beat beat; /* from READY to RUNNING */
    struct ff_lease lease; /* from GO on, if the source may take its guest back */
    bool taken_back;     /* it says that it has */
    bool wants_verify;   /* its own address; addr.verify: or the source's */
    bool prefill_due;    /* its thread could not be started */
    char *_Atomic first; /* a working set, until prefill starts; NULL: none */
    bool has_joined; /* the group of its source, or never will */
    char no_group[FF_GROUP_WHY_MAX]; /* under lock: why not; "": it has, or there is none */
    _Atomic int feed_ms; /* so long it is to wait for an agent that feeds it; then 0 */
    _Atomic bool pager_used; /* set when the pager is whole: ff_dest_stats() may look at it */
    uint64_t state_ns, go_ns, running_ns;
    _Atomic uint64_t load_ns, start_ns, complete_ns;
    _Atomic bool cancelled;

    pthread_mutex_t lock;
    struct ff_port *port;
    struct ff_port *next_port; /* instead of port, once who waits there has seen it */
    pthread_cond_t port_closed;
    _Atomic unsigned listens; /* its number; 0: nowhere */
    pthread_mutex_t listen_lock; /* one at a time chooses the next port; before lock */
    struct ff_address at; /* where its source finds it, under listen_lock; port "": nowhere */
    struct ff_link *link;
};

/* --- dest.c --- */

/* @n keys, into the pager's regions */
int dest_recv_keys(struct ff_dest *d, unsigned n, struct ff_error *err);
int dest_send_stats(struct ff_dest *d, enum ff_msg type, struct ff_error *err);

/* fallback=go, WITHDRAWN was answered: has the source ended the link, as it does when it has read
 * that? Who closed it first could take the answer back */
bool dest_was_heard(struct ff_dest *d);
void dest_finish_pager(struct ff_dest *d);
void dest_start_prefill(struct ff_dest *d);
void dest_start_beat(struct ff_dest *d); /* until ff_dest_running() */

/* --- dest_return.c --- */

/* HELLO was read: does its guest return to the image that is kept here, or neither? Else -EPROTO, -ENOTSUP */
int dest_check_return(const struct ff_dest *d, struct ff_error *err);
int dest_hold_kept(struct ff_dest *d, struct ff_error *err); /* before any of it is discarded, or written to */
void dest_has_returned(struct ff_dest *d); /* GO came */
void dest_put_back(struct ff_dest *d); /* the pager has finished; without GO memory is what it was */

/* --- dest_elsewhere.c --- */

int dest_take_table(struct ff_dest *d, struct ff_error *err); /* of on_table */
bool dest_may_fetch(const struct ff_dest *d); /* memory elsewhere: it can be installed */

/* --- dest_parts.c --- */

int dest_take_parts(struct ff_dest *d, struct ff_error *err); /* of the PARTS just received */
void dest_drop_parts(struct ff_dest *d); /* they were the last link's, but for zeros, which hold for good */

/* --- dest_first.c --- */

void dest_take_first(struct ff_dest *d); /* prefill is about to start: it is told what to bring first */
void dest_say_first(struct ff_dest *d);  /* and so is the source, which sends it to the group first */

/* --- dest_feed.c --- */

/* FEED was just received by the door: 1: its link is prefill's from here on; -EAGAIN: it is to come again; else as
 * dest_try_hello() */
int dest_take_feed(struct ff_dest *d, struct ff_error *why);
bool dest_may_be_fed(const struct ff_dest *d);
void dest_join_group(struct ff_dest *d); /* that PUBLISH named, if there is one: an agent */
uint64_t dest_feed_until(struct ff_dest *d); /* the first time: when to wait for none any more; or 0 */

/* --- dest_hear.c --- */

#define DEST_HELLO_MS 5000

/* The next source that says HELLO, or RESUME to who waits for it; several are waited for at once, in
 * @d->waiting. -ETIMEDOUT: none until @end_ns (0: no limit); -ECANCELED: also when the port is to be
 * another; -EINTR: @stop_fd (-1: none) is readable */
int dest_hear_source(struct ff_dest *d, int stop_fd, uint64_t end_ns, struct ff_link **out,
                     struct ff_error *err);
void dest_drop_waiting(struct ff_dest *d);
void dest_log_dropped(struct ff_dest *d, const char *why); /* a flood does not fill a disk */

/* Has @l said HELLO, or RESUME? 0; 1: FEED, and it is taken; -ETIMEDOUT: nothing yet; else it is to be
 * dropped, and was told why */
int dest_try_hello(struct ff_dest *d, struct ff_link *l, int timeout_ms, struct ff_error *why);

/* The peer of @c is told @why, and dropped by the caller */
void dest_refuse(const struct ff_dest *d, struct ff_control *c, enum ff_refusal code, const char *why);

int dest_ms_until(uint64_t end_ns); /* 0: it is past */

/* Somebody ended the wait from elsewhere: the error, or 0 */
int dest_is_over(const struct ff_dest *d);

/* Use the port that ff_dest_listen() made last: whether there was one */
bool dest_use_next_port(struct ff_dest *d);

/* The port is closed, unless there is to be another */
void dest_close_heard(struct ff_dest *d);

/* --- dest_accept.c --- */

/* The link before it is freed; NULL: there is none from here on */
void dest_set_link(struct ff_dest *d, struct ff_link *link);

/* Does it go on over another link, when one breaks after GO? */
static inline bool dest_resumes(const struct ff_dest *d)
{
    return d->addr.reconnect_ms && *d->at.port;
}

/* Say @answer to it, and open its queues if it is to have some */
int dest_send_welcome(struct ff_dest *d, enum ff_answer answer, struct ff_error *err);

/* --- dest_ear.c --- */

/* From here on the port is heard while the link is up. Without the thread a source is heard only
 * once this side has noticed the break */
void dest_ear_start(struct ff_dest *d);

/* Who has connected stays in @d->waiting and @d->ear.came */
void dest_ear_stop(struct ff_dest *d);

#endif
