/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * message.h - what agent, children and lenders say to each other on a unix socket
 */
/**
 * DOC: Theory of Operation
 *
 * Purpose      messages on a SOCK_SEQPACKET socket, with descriptors. Both ends are this library on
 *              one host, of one user or root; what arrives is validated here all the same, once.
 *
 * Picture      child                               agent
 *              HELLO number, addresses, table -->  (holds it until the image is there)
 *                                              <-- REFUSE code, reason
 *                                              <-- IMAGE state's length [state]
 *                                              <-- MEMORY region, offset, ... [a file each]
 *              (maps, watches)
 *              WATCH [userfaultfd, or none]    --> serves it
 *                                              <-- ATTACHED
 *              (loads its devices)
 *              LOADED                          --> (holds it until the image is for good)
 *                                              <-- START
 *              (starts all but its vCPUs)
 *              READY                           --> (holds it until the others are)
 *                                              <-- RUN
 *              RUNNING                         -->
 *                                              <-- COMPLETE, at any time after ATTACHED: unregister
 *                                              <-- LOST code, reason: end
 *
 *              source on this host                 agent
 *              HELLO regions lent, table      -->
 *              MEMORY region, offset [files]  -->
 *                                              <-- ATTACHED, or REFUSE
 *              IMAGE [state]: that is all     -->  children load; else the link brings the rest
 *                                              <-- ATTACHED session, or REFUSE
 *              LINK [sockets]: by these       -->  they are the link (address "unix")
 *                                              <-- ATTACHED, or REFUSE
 *              RUN: it stays as it is         -->  the image is complete, and they may run
 *                                              <-- COMPLETE
 *
 *              agent of a later image                agent of an earlier one
 *              FEED where, key                -->  it feeds that one (relay.h)
 *                                              <-- ATTACHED, or REFUSE
 *
 * Invariants   a message has exactly the descriptors that it must have; a table is a HELLO of the
 *              link (wire.h), and validated there.
 * Limits       FILES descriptors a message: the kernel takes 253.
 */
#ifndef FF_CLONE_MESSAGE_H
#define FF_CLONE_MESSAGE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "key.h"
#include "wire.h"

struct ff_error;

#define FF_CLONE_FILES 64
#define FF_CLONE_MSG_MAX (FF_MSG_MAX + 8 * FF_WIRE_REGIONS_MAX + 64)

enum ff_clone_type {
    FF_CLONE_HELLO = 1,
    FF_CLONE_REFUSE,
    FF_CLONE_IMAGE,
    FF_CLONE_MEMORY,
    FF_CLONE_WATCH,
    FF_CLONE_ATTACHED,
    FF_CLONE_LOADED,
    FF_CLONE_START,
    FF_CLONE_READY,
    FF_CLONE_RUN,
    FF_CLONE_RUNNING,
    FF_CLONE_COMPLETE,
    FF_CLONE_LOST,
    FF_CLONE_LINK,
    FF_CLONE_FEED,
    FF_CLONE_LAST = FF_CLONE_FEED,
};

/* One file behind a region */
struct ff_clone_memory {
    uint32_t region; /* of the image; from a lender: of its table */
    bool present;    /* all of it is there */
    uint64_t offset;
};

struct ff_clone_msg {
    enum ff_clone_type type;
    /* HELLO */
    bool lends;
    uint32_t number;                    /* the child's; a lender's: regions that it lends */
    uint64_t host[FF_WIRE_REGIONS_MAX]; /* of each region of the table, in the child */
    struct ff_hello table;              /* to be freed with ff_hello_free() */
    /* ATTACHED: of an image that was handed over; else zeros */
    uint8_t session[FF_SESSION_LEN];
    /* FEED: of the later image's fork; where it is fed: text */
    uint8_t key[FF_KEY_LEN];
    /* REFUSE, LOST */
    int code; /* errno, positive */
    char text[FF_WIRE_TEXT_MAX + 1];
    /* IMAGE */
    uint64_t state_bytes;
    bool complete;
    /* MEMORY */
    uint32_t n;
    struct ff_clone_memory memory[FF_CLONE_FILES];
    /* as they came; to be taken, or closed by ff_clone_close() */
    int fd[FF_CLONE_FILES];
    unsigned n_fds;
};

const char *ff_clone_name(enum ff_clone_type type);

/* -EADDRINUSE, -ENAMETOOLONG and others; the socket is not blocking */
int ff_clone_listen(const char *path, struct ff_error *err);
int ff_clone_connect(const char *path, struct ff_error *err);

/* Accept one: its descriptor, -EAGAIN: there is none; it has our uid or root's */
int ff_clone_accept(int listener, struct ff_error *err);

/* Send a message with @m's descriptors: 0, -EAGAIN, -EPIPE... Never blocks */
int ff_clone_send(int sock, const struct ff_clone_msg *m, struct ff_error *err);

/* A message of a type alone */
int ff_clone_send_type(int sock, enum ff_clone_type type, struct ff_error *err);

/* REFUSE or LOST, as far as that can be said */
int ff_clone_send_why(int sock, enum ff_clone_type type, const struct ff_error *why);

/* The next message: 0, -EAGAIN, -ECONNRESET: there will be none, -EPROTO. Never blocks */
int ff_clone_recv(int sock, struct ff_clone_msg *m, struct ff_error *err);

/* Wait for it @timeout_ms (-1: for ever), or until @cancel_fd is readable: also -ETIMEDOUT,
 * -ECANCELED. REFUSE and LOST come as errors, never as that one */
int ff_clone_expect(int sock, int cancel_fd, struct ff_clone_msg *m, int timeout_ms,
                    struct ff_error *err);

/* What @m holds and nobody took */
void ff_clone_close(struct ff_clone_msg *m);

#endif
