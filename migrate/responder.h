/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * responder.h - source: the threads that answer a destination's requests, and that push
 */
/**
 * DOC: Theory of Operation
 *
 * Purpose      one thread a queue, from publishing on until the image is withdrawn. Over
 *              verbs the adapter answers READs and these threads sleep; over tcp they read
 *              guest memory themselves. They take no lock of anybody else's.
 *
 * Picture      control thread -- grants --> ring --> PREFILL thread: WRITE each granted part
 *                                                    of the image, with notification
 *
 * Invariants   What is granted is looked up in the segments, which move when they are cut or split. That is done
 *              before GO, or without a link; a grant is taken after GO alone (ff_source_wait_done()).
 * Limits       RING grants that were not written yet: more than a destination has buffers.
 */
#ifndef FF_MIGRATE_RESPONDER_H
#define FF_MIGRATE_RESPONDER_H

#include <pthread.h>
#include <stdatomic.h>

#include "segments.h"
#include "tagger.h"
#include "wire.h"

#define FF_PUSH_IN_FLIGHT 8u /* WRITEs: enough to keep a link busy, in chunks of megabytes */

struct ff_server {
    struct ff_responder *responder;
    enum ff_queue queue;
    pthread_t thread;
    bool up;
    uint64_t before_ns; /* CPU time of the threads that served earlier links */
    _Atomic uint64_t cpu_ns;
};

struct ff_responder {
    struct ff_link *link;
    const struct ff_regions *regions;
    const struct ff_segments *segments;
    struct ff_tagger tagger; /* the serving threads' */
    struct ff_server server[FF_QUEUES];
    _Atomic bool stop;
    int wake_fd; /* grants came, or stop */

    pthread_mutex_t lock; /* starting and stopping */
    bool ended; /* for good */
    pthread_mutex_t ring_lock; /* of the ring, and push_ended */
    struct ff_grant ring[FF_WIRE_GRANTS_MAX];
    unsigned first, n;
    bool push_ended;
    _Atomic bool pushes;        /* a grant was taken, and is not posted */
    _Atomic unsigned in_flight; /* taken, not complete */
    /* memory of another process on its way: one each of what is in flight, which ends in order */
    uint8_t *room[FF_PUSH_IN_FLIGHT];
    unsigned n_fetched;
    const struct ff_copies *copies; /* NULL: what is granted is registered, and written from where it is */
};

/* Of a relay: what is granted is copied, and written from there. @copy: into @to, or *@why_not: FF_IMM_ZEROS,
 * FF_IMM_UNREADABLE; -errno: it may not be asked for */
struct ff_copies {
    int (*copy)(void *opaque, const struct ff_grant *g, uint8_t *to, uint32_t *why_not,
                struct ff_error *err);
    void *opaque;
    uint8_t *memory; /* FF_PUSH_IN_FLIGHT of @max_bytes, registered: @lkey */
    uint32_t max_bytes, lkey;
};

int ff_responder_init(struct ff_responder *s, const struct ff_regions *regions,
                  const struct ff_segments *segments, struct ff_error *err);
int ff_responder_start(struct ff_responder *s, struct ff_link *link, struct ff_error *err);

/* Any thread. -EPROTO: more than a destination can have buffers for */
int ff_responder_grant(struct ff_responder *s, const struct ff_grant *g, unsigned n,
                       struct ff_error *err);

/* Nothing is pushed from here on, and what was has left, as far as a moment's wait permits: before
 * memory is deregistered */
void ff_responder_end_push(struct ff_responder *s);

/* End the threads; the link is shut down for it. Nobody serves over another */
void ff_responder_stop(struct ff_responder *s);

/* Likewise, from any thread; ff_responder_park() follows when somebody wants another link */
void ff_responder_end_threads(struct ff_responder *s);

/* Likewise, but ff_responder_start() may follow: nothing is left of what the peer asked for */
void ff_responder_park(struct ff_responder *s);
void ff_responder_free(struct ff_responder *s); /* stopped */
uint64_t ff_responder_cpu_ns(const struct ff_responder *s);

#endif
