/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * agent.h - the children that an agent starts and looks after
 */
#ifndef FF_CLI_AGENT_H
#define FF_CLI_AGENT_H

#include <jansson.h>
#include <poll.h>
#include <sys/types.h>

#include "agent_guest_port.h"
#include "agent_server.h"
#include "xalloc.h"

enum kid_state {
    KID_PREPARING, /* its process is there, QEMU is not yet */
    KID_STARTED,
    KID_CONNECTED,
    KID_ATTACHED,
    KID_RUNNING,
    KID_COMPLETE,
    KID_LOST,      /* the agent hears from it no more, the process is still there */
    KID_ENDED
};

struct kid {
    unsigned number;
    pid_t pid;
    uint64_t start;    /* process_start() */
    int trouble_fd;    /* until it runs its program: why it does not; -1 */
    enum kid_state state;
    char *log, *qmp;
    struct line_reader *trouble;
    json_t *private;    /* files that QEMU reads when it starts; NULL: it has, or there are none */
    struct channel *channel; /* NULL: the child has no port */
    bool ready, exited;      /* its guest has said so */
    uint64_t begun_ms;
    uint64_t end_ms;         /* its guest is done: killed then; 0: it is not */
    char *how;               /* it has been reaped: how it ended, and its exit code (-1: a signal) */
    int code;
    bool told;               /* its end was */
};

struct kids {
    struct kid *v;
    size_t n;
    struct fork_server server;
    const char *dir; /* where their overlays are written down */
    struct kid_ask *asks;  /* that wait for an answer; agent_qmp.c */
    bool ask_unused_again; /* one did not answer kids_end_unused(), and was left alone */
};

/* agent_private.c. Files of mode 0600, [{"path", "text", "after"}, ..]: kid_has_read() when QEMU has read
 * them: each has the text @after then, or is removed where that is missing; private_remove(): all of
 * them, @files is released */
int private_write(const json_t *files, struct why *why);
void private_remove(json_t *files);
void kid_has_read(struct kid *kid);

const char *kid_state_name(enum kid_state s);
struct kid *kids_find(struct kids *k, unsigned number);
size_t kids_alive(const struct kids *k);
size_t kids_starting(const struct kids *k); /* of those: they do not run yet */

/**
 * kids_spawn() - start a child: a process group of its own, output to a log, no input
 * @o: {"number": N, "argv": [..], "log": PATH, "cwd": FOLDER, "qmp": PATH (for the state file),
 *     "before": [[..], ..] commands that must succeed first, "files": [..] that are made before
 *     those, empty (overlays_make()), "private": [..], as private_write(), "channel":
 *     channel_new()}; the last six may be missing
 *
 * Return: 0: a process is there; whether it becomes the program is found out by kids_hear()
 */
int kids_spawn(struct kids *k, const json_t *o, struct kid **out, struct why *why);

/* @kid->trouble_fd is readable: 0: it runs its program now; -errno: it does not, and why */
int kids_hear(struct kid *kid, struct why *why);

/* Reap those that have ended; whether there were any */
bool kids_reap(struct kids *k);
char *kid_last_words(const struct kid *kid); /* the end of its log */

void kid_kill(const struct kid *kid); /* with all of its group */

/* Kill all and wait until they are gone, at most @limit_ms: whether they are */
bool kids_end(struct kids *k, int limit_ms);
/**
 * kids_qmp() - a command for a child's QEMU
 * @o: {"child": N, "execute": NAME, "arguments": {..}, "id": any}; the last two may be missing
 *
 * Return: NULL: kids_answer() gives the event, within some seconds; else that it cannot be asked
 */
json_t *kids_qmp(struct kids *k, const json_t *o);

/* Ask those to which no source has come, as their query-migrate says (setup), and end them */
void kids_end_unused(struct kids *k);

/* What is to be polled for answers: how many; into @p, which may be NULL */
size_t kids_asks(const struct kids *k, struct pollfd *p);

/* Go on with questions, without waiting. The event of one of kids_qmp() that has ended: "return", or
 * "error" and then "again" when its socket is not there yet; NULL: of none */
json_t *kids_answer(struct kids *k);
void kids_asks_free(struct kids *k);

/* agent_kept.c. kids_keep(): a guest moves to them; kids_let_go(): it is there */
void kids_keep(struct kids *k);
void kids_let_go(struct kids *k);
/* The guest has brought overlays, which are that child's from now on: {"child": N, "files": [..]}.
 * Return: the event for it */
json_t *kids_adopt(struct kids *k, const json_t *o);

json_t *kids_state(const struct kids *k);
void kids_free(struct kids *k);

/* Run @run in a process of its own, behind this one: the exit code of this one. It ends with @run's,
 * or, with 0, once a byte was written to @front; when it dies, the other gets SIGTERM */
int agent_behind_front(int (*run)(void *opaque, int front), void *opaque);

/* This session has as large a share of the CPUs as so many would, where sessions have one each
 * (sched_autogroup(7)) and this user may say so */
void agent_weigh(size_t sessions);

#endif
