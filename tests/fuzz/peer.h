/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * peer.h - the other side of a move, as a fuzzer's input plays it
 */
/**
 * DOC: Theory of Operation
 *
 * Picture      engine's thread                 fuzzer's thread, which reads the input
 *              the stages of one side  <-----  what the other side would say next, or that a bit
 *                                              beside it, or anything at all
 *              The peer speaks over a link of the library's own. So what it says is sealed by the
 *              key where there is one: what is fuzzed lies below the seal.
 * Ways         SOCKETS   sockets that both were given; also bytes beside all framing
 *              TCP       the engine listens, or connects, by the address; links that resume
 *              KEYED     likewise, with a key that both have
 * Limits       a peer that has said only what is right waits longer for an answer than one that has
 *              not: that one may wait in vain. Nothing depends on it but what is covered.
 */
#ifndef FF_TESTS_FUZZ_PEER_H
#define FF_TESTS_FUZZ_PEER_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "error.h"
#include "farfork.h"
#include "input.h"
#include "link.h"
#include "wire.h"

struct ff_key;

/* --- a run: libFuzzer's function is peer.c's --- */

/* Of the fuzzer: one input */
void fuzz_one(struct input *in);

/* As many of @good as the input says, @steps at most; then one @step after the other */
void fuzz_steps(struct input *in, unsigned steps, void (*good)(void *opaque),
                void (*step)(void *opaque, struct input *in), void *opaque);

/* What is so once and for all, and can be waited for */
struct event {
    atomic_bool is;
    int fd;
};

void event_new(struct event *e);
void event_free(struct event *e);
void event_set(struct event *e);
bool event_is(const struct event *e);
bool event_await(struct event *e, int limit_ms); /* whether it is */

/* --- memory, with borders that nobody may touch --- */

#define PAGE 4096u
#define REGIONS 2u

struct area {
    uint8_t *host;
    uint64_t len_bytes;
    int fd; /* -1: anonymous */
};

extern const uint64_t region_pages[REGIONS];
void area_new(struct area *a, unsigned region, bool in_file);
void area_free(struct area *a);

/* Each page differs from all others; every fourth is zeros */
void area_fill(const struct area *a, unsigned region);
bool page_is_right(const uint8_t *page, unsigned region, uint64_t number);
bool page_is_zero(const uint8_t *page);

/* Pages that nobody can read, as if their memory had failed; afterwards @a is read-only */
void area_fail(const struct area *a, unsigned region);
bool page_fails(unsigned region, uint64_t number);

/* Add @a as region @number, under the name that both sides give it */
struct ff_region region_of(const struct area *a, unsigned number);

/* --- the peer --- */

enum way { SOCKETS, TCP, KEYED, WAYS };

struct peer {
    enum way way;
    struct ff_link *l;       /* NULL: it has hung up */
    bool open;               /* its queues are */
    bool right;              /* it has said nothing yet that it should not */
    bool wrong_data;         /* nor has it changed what arrives as memory */
    int raw[FF_TCP_SOCKETS]; /* SOCKETS: control, then each queue; -1 */
    uint8_t msg[FF_MSG_MAX]; /* what it says */
    uint8_t heard[FF_MSG_MAX];
    int heard_len;
    uint32_t said; /* FF_MSG_BIT() of all that it may have said */
    struct event *engine_ended; /* or NULL */
};

#define KEY_TEXT "5f3c0e9d6b2a48f1c7e6d5b4a39281706f5e4d3c2b1a09f8e7d6c5b4a3928170"
struct ff_key *fuzz_key(void);

/* Sockets for both: the engine's link; the peer keeps a second descriptor of each of its own */
struct ff_link *peer_sockets(struct peer *p);
void peer_hang_up(struct peer *p);

/* p->msg, of @len bytes */
void peer_say(struct peer *p, int len);

/* The same, changed as the input says */
void peer_say_beside(struct peer *p, int len, struct input *in);
void peer_say_anything(struct peer *p, struct input *in); /* a type and bytes of the input */
void peer_say_raw(struct peer *p, struct input *in);      /* beside all framing */

/* Serve both queues, and listen: the type of a message in p->heard, or 0 for none */
int peer_hear(struct peer *p);

/* Until peer_hear() may have something to do, or the engine has ended, or @limit_ms */
void peer_wait(struct peer *p, int limit_ms);

/* Until @type is heard, or nothing more is to be expected: whether it was. @other (may be NULL) is
 * called with every other message */
bool peer_await(struct peer *p, enum ff_msg type, void (*other)(void *opaque, int type),
                void *opaque);

/* A request on a queue: whatever comes of it is heard by peer_hear() */
void peer_post(struct peer *p, enum ff_queue q, const struct ff_wr *wr);

/* --- both sides --- */

/* "127.0.0.1:PORT" with these options, and the key if the way has one */
struct ff_address *fuzz_address(enum way way, unsigned port, const char *options);

/* A failure says why, and nothing but a failure does */
void check_outcome(int rc, const struct ff_error *err);

#endif
