/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * tunnel_programs.h - a move with a tunnel, and on each side a program that gives and takes bytes
 */
#ifndef FF_TESTS_LOOP_TUNNEL_PROGRAMS_H
#define FF_TESTS_LOOP_TUNNEL_PROGRAMS_H

#include "cleanup.h"
#include "farfork-elsewhere.h"
#include "loop.h"
#include "tunnel.h"

#define SCALE (UNDER_SANITIZER ? 1u : 4u)
#define LOT ((uint64_t)SCALE << 20)
#define SOME (200u << 10)


/* What one side's program gives to the tunnel, and takes from it, in two threads */
struct program {
    struct ff_tunnel *t;
    bool source;
    uint64_t bytes;         /* to give */
    bool endless;           /* ... until it may end */
    unsigned seed, most;    /* sizes are random, up to @most */
    pthread_t sender, receiver;
    atomic_bool may_send, may_recv, may_end; /* it waits for these */
    _Atomic uint64_t given, taken;
    atomic_int send_rc, recv_rc; /* 0, or the error that ended it */
    atomic_bool sent, received;
    atomic_int sender_tid, receiver_tid;
    bool runs;
};

extern struct program of[2]; /* the destination's, the source's */

/* What the next move does; zero is a sensible default for each */
struct tunnel_plan {
    uint64_t bytes[2];
    unsigned most;
    bool late_send, late_recv, late_end; /* somebody else says when */
    bool none[2]; /* no tunnel there */
    bool endless;
    void *(*beside)(void *move); /* a thread, while it runs */
    pthread_t thread;
    void (*hook)(struct move *m, enum stage stage);
};

extern struct tunnel_plan plan;

void tunnel_prepared(struct move *m);
void tunnel_hook(struct move *m, enum stage stage);
#define MOVE .hook = tunnel_hook, .prepared = tunnel_prepared

/* The move is done, each byte of memory and of both streams is right, and both programs have ended */
void tunnel_must_carry(struct move *m);

/* Neither side is done: with these results, 0: any, and @says in what the source says; both programs
 * have ended */
void tunnel_must_end(struct move *m, int src, int dst, const char *says);

#endif
