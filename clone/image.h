/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * image.h - one image on this host, shared by its children
 */
/**
 * DOC: Theory of Operation
 *
 * Purpose      receive an image (image.c) into memfds (memory.c) and give it to children
 *              (server.c). The faults of children are the pager's (children.h).
 *
 * Picture      caller's thread                      server thread
 *              ff_agent_new() -------------------->  accepts: children wait, a source lends
 *              ff_agent_receive(): HELLO: take what
 *                was lent, make memfds for the rest
 *                pager up, state, GO
 *                status HERE ----------------------> children are compared, get files and state,
 *                                                    hand over their userfaultfds
 *              ff_agent_wait(): the last page
 *                status COMPLETE, or LOST ---------> each child is told; COMPLETE: this thread
 *                                                    answers what is left in the userfaultfds
 *              or: a source on this host lends all of it, with the state: HERE, and when it says
 *              that children may run, COMPLETE. Nothing comes over a link
 *              Another agent that has the image may feed this one, and this one others (relay.h)
 *              An agent for a source on this host (address "unix") has no port: what is not lent
 *              comes over sockets that the source passes
 * Limits       an agent copies, whatever the link: a page in place would be in the file, and so in
 *              every child, before it is whole. precopy=1 is refused.
 *              An agent takes as many huge pages as the image has. A child's private mapping
 *              reserves as many again, so that a write never fails. The agent's own files have
 *              pages of 4 KiB, never transparent huge ones.
 *              On another host the agent takes the first HELLO that comes to its port. Two things
 *              limit what a stranger can do there: vmclone tells the agent how much memory the
 *              guest has (ff_agent_limit()), and asks the parent afterwards whether both know one
 *              session (control/fork/fork_verify.c).
 * Failure      an agent that cannot install a page has no guest to protect by aborting: the image
 *              is lost, and children are told.
 *              A link that breaks once GO was read parks the pager (pager_resume.c), and
 *              ff_agent_wait() listens for the source: children keep what they have, ask for more,
 *              come and go as ever. Only when the source has not come back in time is the image
 *              lost. One that passed its link has nowhere to come back to.
 * States       AWAITED -> HERE -> COMPLETE; LOST from AWAITED and HERE. A link that is away leaves
 *              it HERE
 * Threads      lock guards status, why, what was lent, and counts. memory and state are written
 *              before HERE, and only read after it. Connections are the server thread's.
 * Ownership    the agent owns the memfds and its mappings; a child has descriptors of its own, for
 *              reading alone.
 * Invariants   the agent's files are sealed before a child gets one: no child can change, cut or
 *              punch what the others see. A lent file has the seals that its source gave it.
 */
#ifndef FF_CLONE_IMAGE_H
#define FF_CLONE_IMAGE_H

#include <pthread.h>
#include <stdatomic.h>

#include "address.h"
#include "error.h"
#include "farfork-clone.h"
#include "message.h"

enum ff_image_status { FF_IMAGE_AWAITED, FF_IMAGE_HERE, FF_IMAGE_COMPLETE, FF_IMAGE_LOST };

/* Behind one region of the image */
struct ff_agent_memory {
    int fd;   /* lent, or ours: a memfd; -1: none yet */
    int view; /* the same file, for reading: what children get */
    uint64_t offset, len_bytes;
    void *map; /* where the pager fills it; lent: an address and no more */
    bool lent;
};

/* What a source on this host has lent, before its HELLO comes over the link */
struct ff_lent {
    struct ff_wire_region region;
    uint64_t offset;
    int fd;
};

struct ff_conn; /* server.c */

#define FF_AGENT_RELAYS_MAX 32u
#define FF_AGENT_OLDER_MAX 4u
#define FF_AGENT_OLDER_MS 1000 /* so long an image waits for an earlier one that feeds it */

struct ff_agent {
    struct ff_dest *dest;
    char path[108];
    unsigned port;
    int listen_fd, poke_fd, timeout_ms, reconnect_ms;
    struct ff_address listen; /* as it was given */
    pthread_t thread;
    bool thread_up;
    _Atomic bool stop, cancelled;
    struct ff_conn *conns;

    struct ff_agent_memory memory[FF_WIRE_REGIONS_MAX];
    unsigned n_memory;
    int state_fd; /* for reading */
    uint64_t state_bytes;
    struct ff_hello table; /* of an image that was handed over: there is no pager */
    _Atomic bool handed_over;
    bool passed;           /* nobody connects: a source's link comes through our socket */
    struct ff_link *link;  /* it came, and is not dest's yet; under lock */
    bool linked;           /* it came, once; under lock */
    uint64_t max_bytes;    /* of memory of an image; 0: any */
    uint8_t session[FF_SESSION_LEN]; /* of an image that was handed over */

    struct ff_relay *relay[FF_AGENT_RELAYS_MAX]; /* under relays_lock */
    unsigned n_relays;
    pthread_mutex_t relays_lock;
    char *older[FF_AGENT_OLDER_MAX]; /* sockets of agents with earlier images */
    unsigned n_older;
    _Atomic bool is_to_be_fed; /* by others: ff_agent_await_feed() */
    pthread_t asker; /* asks them */
    bool asks;
    int ask_fd; /* readable: it is to end */
    void (*on_unfed)(void *opaque, const char *host, const char *port, const char *why);
    void *on_unfed_opaque;

    pthread_mutex_t lock;
    pthread_cond_t changed; /* status, or cancelled */
    enum ff_image_status status;
    bool away; /* HERE: there is no link, and another is waited for */
    struct ff_error why; /* LOST */
    void (*on_child)(void *opaque, unsigned child, enum ff_child_event what);
    void *on_child_opaque;
    void (*on_pause)(void *opaque, const char *why);
    void *on_pause_opaque;
    const struct ff_conn *lender; /* whose connection is open */
    struct ff_lent lent[FF_WIRE_REGIONS_MAX];
    unsigned n_lent;
    bool adopted; /* the table is there: too late to lend */
    unsigned children, running, ended;
    unsigned together; /* children that do not run yet, and then run together */
    uint64_t rest_ns;  /* server thread: until when it accepts nobody */
    uint64_t ready_ns; /* server thread: since when the last of them is ready */
};

/* As ff_agent_new(), on a link that is there already (NULL: listen); for tests */
int ff_agent_new_on_link(const struct ff_address *listen, struct ff_link *link,
                         const char *socket_path, struct ff_agent **out, struct ff_error *err);

void *ff_image_server_main(void *agent);

/* Any thread: feed one that gets a later image, with its key: as ff_agent_feed() */
int ff_agent_feed_later(struct ff_agent *a, const struct ff_clone_msg *m, struct ff_error *err);

/* earlier.c */
/* Of those that ff_agent_older() named, one is asked to feed this one, by a thread that ends by itself, or by
 * ff_agent_ask_no_more(), which frees it. The caller's thread */
void ff_agent_ask_older(struct ff_agent *a);
void ff_agent_ask_no_more(struct ff_agent *a);

/* memory.c. Forget what was lent; under lock */
void ff_agent_drop_lent(struct ff_agent *a);

/* A struct ff_dest_owner's: of @opaque, an agent */
void ff_agent_complete(void *opaque); /* of ff_dest_owner, too */
void ff_agent_misfed(void *opaque, const char *why);
int ff_agent_adopt(void *opaque, const struct ff_hello *peer, struct ff_error *err);

/* All of @table was lent, and the state is a file; under lock */
int ff_agent_take_whole(struct ff_agent *a, const struct ff_hello *table, int state_fd,
                        uint64_t state_bytes, struct ff_error *err);
int ff_agent_keep_state(struct ff_agent *a, const void *state, size_t len, struct ff_error *err);
void ff_agent_drop_memory(struct ff_agent *a);

/* All of @table (taken over) has been lent, and @state_fd has the state: children may load, and
 * start after ff_agent_handed_over(): @why NULL: it is complete, unless it was lost meanwhile:
 * -errno and the reason; else it never will be. Server thread */
int ff_agent_hand_over(struct ff_agent *a, struct ff_hello *table, int state_fd,
                       uint64_t state_bytes, struct ff_error *err);
/* The link to the source, on these sockets, which are taken over. Server thread */
int ff_agent_take_link(struct ff_agent *a, const int fd[FF_TCP_SOCKETS], struct ff_error *err);
int ff_agent_handed_over(struct ff_agent *a, const struct ff_error *why, struct ff_error *err);

/* Of the image, once it is here */
const struct ff_hello *ff_agent_table(const struct ff_agent *a);

#endif
