/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * source_private.h - what source.c and source_*.c share
 */
#ifndef FF_MIGRATE_SOURCE_PRIVATE_H
#define FF_MIGRATE_SOURCE_PRIVATE_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "address.h"
#include "control.h"
#include "segments.h"
#include "regions.h"
#include "responder.h"
#include "source.h"

#define WATCHING_MS 300000

/* TAKING: it is written down that the destination is not to run the guest; TAKEN: nor can it */
enum stage { NEW, CONNECTED, PUBLISHED, SENT, GONE, DONE, TAKING, TAKEN };

enum hold { FREE, HELD, RETURNED }; /* source_hold.c */

struct ff_source {
    struct ff_address addr;
    struct ff_regions regions;
    struct ff_control ctl;
    enum stage stage;
    uint64_t paused_ns; /* when the first word of the pause was said; 0: none was */
    bool watched;
    bool wants_precopy, precopied; /* precopy=1 at the destination */
    bool returns; /* ff_source_return(): and precopied from the start */
    uint32_t came_link; /* ... its newest link when READY was heard */
    struct ff_dest *came; /* then: by which its guest came */
    bool given_up; /* under lock: its guest is never taken back: what it serves was discarded in part, or its owner wants it so */
    bool taking;   /* likewise: it is taken back */
    bool resumes; /* so do both sides */
    bool visits;  /* its guest is to return, the destination says */
    _Atomic enum hold hold;
    int hold_fd; /* eventfd: it is not HELD any more; -1: it never was */
    bool reported[FF_WIRE_REGIONS_MAX]; /* ff_source_dirty() was called since the pass */
    int cancel_fd;
    int kept_fd; /* the connection to an agent that memory was lent to */
    _Atomic bool cancelled;
    struct ff_segments segments;
    struct ff_responder responder;
    struct ff_hello table; /* our regions as the wire has them, to check grants against */

    pthread_mutex_t lock;
    struct ff_link *link;
    struct ff_stats stats;
    bool given_link;
    bool verbs;     /* what the first link was, every later one must be */
    _Atomic bool runs_there; /* the destination has said that it runs the guest */
    int took_ms;        /* until the last one was connected */
    int connect_ms;     /* a try to connect again may take; 0: as the address says */
    uint64_t lease_end_ns; /* fallback=go: until then it may run without hearing more, by its own clock */
    bool told;             /* ... it knows that the guest is its own for good */
    int again_ms;       /* to wait before the next link if the last one brought nothing; 0: none has */
    uint64_t had_bytes; /* that were present there when the last one broke, as far as is known */
    _Atomic uint32_t epoch; /* of the link; read by any thread, as what follows */
    uint8_t session[FF_SESSION_LEN]; /* that the peer chose: written once, before has_session */
    _Atomic bool has_session;
    struct ff_group *group; /* its image goes there, too; NULL: it does not */
    unsigned member;        /* its number there */
};

/* The pause begins, unless it has; ff_source_precopy() says that it was none */
void ff_source_begin_pause(struct ff_source *s);

int ff_source_pause_left_ms(const struct ff_source *s);

/* Connect to where @a says, unless there is a link */
int ff_source_open_link(struct ff_source *s, const struct ff_address *a, struct ff_error *err);

/* --- source_regions.c: memory of another process --- */

/* Does the link do for these regions, that there is or that the address wants? */
int ff_source_check_link(struct ff_source *s, struct ff_error *err);

/* Before GO: -ETIME, the guest may go on here, if its memory cannot be read any more */
int ff_source_check_memory(struct ff_source *s, struct ff_error *err);

/* @rc, or that memory cannot be read any more, which is why the link has ended */
int ff_source_why(struct ff_source *s, int rc, struct ff_error *err);

/* Why it ends before GO, for the destination; perhaps in @room */
const char *ff_source_last_words(struct ff_source *s, struct ff_error *room);

/* Register the segments that are wanted and are not registered, serve them, and send PUBLISH with
 * their keys */
int ff_source_offer(struct ff_source *s, struct ff_error *err);

/* Take the statistics out of the message that was just received */
int ff_source_take_stats(struct ff_source *s, struct ff_error *err);

/* As ff_control_send(). In the pause one limit is for all: a peer that takes each message just in
 * time must not hold the guest */
int ff_source_send_msg(struct ff_source *s, int len, struct ff_error *err);

/* source_publish.c: register what is wanted. @keys: those that the peer was not told, *@n of them */
int ff_source_register(struct ff_source *s, struct ff_wire_key **keys, unsigned *n,
                       struct ff_error *err);
int ff_source_send_keys(struct ff_source *s, const struct ff_wire_key *keys, unsigned n,
                        struct ff_error *err);

/* While the guest runs: register what it has touched by now, so that little is left for the pause */
int ff_source_touched(struct ff_source *s, struct ff_error *err);

/* Until @want comes; the peer is alive as long as PROGRESS comes, each within @silence_ms */
int ff_source_wait_alive(struct ff_source *s, enum ff_msg want, int silence_ms,
                         struct ff_error *err);

/* cancel_fd is readable: -ECANCELED, or once -EINTR */
int ff_source_take_interrupt(struct ff_source *s, struct ff_error *err);

/* --- source_hold.c: a return to what it serves --- */

int ff_source_may_hold(struct ff_source *s, struct ff_error *err); /* 0, or why not */

/* The link is broken, and none comes before ff_source_let_go(): memory may change from here on */
int ff_source_hold(struct ff_source *s, struct ff_error *err); /* -EBUSY: it is being taken back */
bool ff_source_has_given_up(struct ff_source *s);

/* -EINVAL: it has given up */
int ff_source_begin_taking(struct ff_source *s, struct ff_error *err);
void ff_source_end_taking(struct ff_source *s);

/* Memory is as it was; @returned: nobody needs it any more */
void ff_source_let_go(struct ff_source *s, bool returned);

/* 0: it may connect; -ETIMEDOUT: not until @end_ns; -EINTR, -ECANCELED: also, that the guest is back */
int ff_source_await_hold(struct ff_source *s, uint64_t end_ns, struct ff_error *err);

/* One try to reach the destination of GO: a link, and its answer */
int ff_source_ask(struct ff_source *s, const struct ff_address *a, bool taken_back,
                  struct ff_welcome *w, struct ff_error *err);

/* --- source_lease.c: fallback=go; all return 0 without it --- */

/* What is needed later, while the guest still runs here */
int ff_source_check_fallback(const struct ff_source *s, struct ff_error *err);
void ff_source_begin_lease(struct ff_source *s); /* before GO, or an answer, is sent */
int ff_source_answer_lease(struct ff_source *s, struct ff_error *err); /* to the LEASE just received */
int ff_source_await_told(struct ff_source *s, struct ff_error *err); /* WITHDRAWN was said */

#define FF_PATH_ROOM sizeof(((struct ff_address *)0)->record)
const char *ff_source_record_folder(const struct ff_source *s, char out[FF_PATH_ROOM]);

#endif
