/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * tunnel.h - a stream of bytes each way, beside a move's messages, over every link it has
 */
/**
 * DOC: Theory of Operation
 *
 * Purpose      carry what a proxy has besides main memory (farfork-elsewhere.h), in order, each byte
 *              once, whatever links break. It knows nothing of what the bytes mean.
 *
 * Picture      program: send -> out ring --BYTES--> in ring -> recv: program
 *                               kept until the peer's program has taken it
 *              reader thread: link -> BYTES into the in ring; all else into the mailbox, in order
 *                             ff_control_expect() takes its messages from there
 *
 * States       no link -> attach() -> carries -> the link breaks -> detach() -> no link ...
 *              A break ends the tunnel for good until keep_on() was called: before GO there is no
 *              other link. fail(): for good, whatever there is.
 *
 * Threads      the program's two: they send over the link themselves, so that a byte leaves at once.
 *              The reader, between attach() and detach(), which never sends: two sides cannot wait
 *              for each other to read. The caller's, for all else. lock guards all but what the
 *              reader alone has; recv_lock, taken before it, is held over each receive.
 * Ownership    of the source or destination, which attaches and detaches around a link's life. No
 *              thread sends over a link once it is detached.
 * Invariants   1. A byte is given up by its sender when the peer's program has taken it, not before.
 *              2. What is under way fits into the peer's ring, whatever its program does: a reader
 *                 never waits for a program.
 *              3. The destination says DONE when both ends are taken, and says that until the source
 *                 answers WITHDRAWN. So no last acknowledgement can be lost: DONE has it, and
 *                 COMPLETE over any later link.
 * Limits       FF_TUNNEL_WINDOW each way. MAIL_MAX messages wait for the caller; then the reader
 *              stops, and the link holds the peer up, as without a tunnel.
 */
#ifndef FF_MIGRATE_TUNNEL_H
#define FF_MIGRATE_TUNNEL_H

#include <pthread.h>
#include <stdbool.h>

#include "error.h"
#include "farfork-elsewhere.h"
#include "wire.h"

#define FF_TUNNEL_WINDOW (1u << 20)

struct ff_mail;

/* Offsets count from the first byte on; an end is one behind the last */
struct ff_tunnel {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool failed;       /* for good: @why */
    bool cancelled;    /* ... by the caller */
    struct ff_error why;

    /* what the program gives: [acked, given) is in @out */
    uint8_t *out;
    uint64_t given, acked;
    uint64_t sent, most; /* over this link; over any */
    bool ended;

    /* what comes: [taken, received) is in @in */
    uint8_t *in;
    uint64_t received, taken;
    uint64_t next;      /* offset that comes next over this link, once @heard */
    uint64_t said;      /* the peer was told that so much is taken */
    bool peer_ended, end_taken, heard;

    /* the link */
    struct ff_link *link; /* NULL: none */
    bool sending;         /* some thread is in its send(), with @buf */
    bool must_say;        /* what is taken, however little */
    uint8_t buf[FF_MSG_MAX];
    bool resumes;         /* a break is followed by another link */
    bool interrupted;

    pthread_mutex_t recv_lock;
    pthread_t reader;
    bool reads, stops; /* there is a reader; it is to end. The caller's thread writes the first */
    int wake_fd;
    struct ff_error broke; /* the link has; code 0: it has not */
    struct ff_mail *mail, **mail_tail;
    unsigned n_mail;
    uint8_t rbuf[FF_MSG_MAX]; /* under recv_lock */
};

/* --- tunnel.c --- */

int ff_tunnel_new(struct ff_tunnel **out, struct ff_error *err);
void ff_tunnel_free(struct ff_tunnel *t); /* detached; may be NULL; no program's thread is inside */

/* It ends, for good; both program's threads learn @why; the first reason stays. NULL: the caller
 * wants so, and whoever waits for a message learns it, too. @t may be NULL */
void ff_tunnel_fail(struct ff_tunnel *t, const char *why);

/* One side alone has a tunnel, this one if @ours is not NULL: for a person */
const char *ff_tunnel_missing(const struct ff_tunnel *ours);

/* Both ends are taken, as far as is known here. DONE says so to a source: 0, or -EPROTO if that
 * cannot be */
bool ff_tunnel_is_done(struct ff_tunnel *t);
int ff_tunnel_take_done(struct ff_tunnel *t, struct ff_error *err);

/* Bytes that came, and that the peer has taken; 0 without a tunnel */
uint64_t ff_tunnel_moved(struct ff_tunnel *t);

/* Until both ends are taken: 0; 1 after @timeout_ms; or the link has broken, or it has failed */
int ff_tunnel_wait_done(struct ff_tunnel *t, int timeout_ms, struct ff_error *err);

/* --- for tunnel_link.c; under lock --- */

/* The BYTES in @msg, or -EPROTO */
int ff_tunnel_take_bytes(struct ff_tunnel *t, const uint8_t *msg, size_t len, struct ff_error *err);

/* Send what was given up to @upto, and what was taken if that is to be said; what others give
 * meanwhile is theirs to send. Opens the lock meanwhile */
void ff_tunnel_pump(struct ff_tunnel *t, uint64_t upto);

/* --- tunnel_link.c; all of it takes a NULL tunnel, which has nothing and does nothing --- */

/* From here on everything that comes over @link is read by the tunnel */
int ff_tunnel_attach(struct ff_tunnel *t, struct ff_link *link, struct ff_error *err);

/* Before the link is freed; what is in the mailbox is lost with it */
void ff_tunnel_detach(struct ff_tunnel *t);

/* Does the reader receive over the link? Then ff_tunnel_mail() is the link's recv(), but that one
 * which breaks by an error of BYTES returns -EPROTO */
bool ff_tunnel_reads(const struct ff_tunnel *t);
int ff_tunnel_mail(struct ff_tunnel *t, void *buf, int timeout_ms, struct ff_error *err);

/* From here on a break is followed by another link: 0, or -ENOTCONN: the link has broken */
int ff_tunnel_keep_on(struct ff_tunnel *t, struct ff_error *err);

/* The link has broken: why, or 0 */
int ff_tunnel_check(struct ff_tunnel *t, struct ff_error *err);

/* Wait until interrupt() (0), a break (as recv() has it; -EREMOTEIO: with the peer's reason) */
int ff_tunnel_hear(struct ff_tunnel *t, struct ff_error *err);

/* The next ff_tunnel_hear(), or the one that waits, returns. false: there is no link to wait for */
bool ff_tunnel_interrupt(struct ff_tunnel *t);

#endif
