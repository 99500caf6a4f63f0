/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * fork.h - one fork, as vmclone sees it: hosts, children, what became of them
 */
#ifndef FF_CLI_CLONE_H
#define FF_CLI_CLONE_H

#include <jansson.h>
#include <sys/types.h>

#include "command_line.h"
#include "fork_disks.h"
#include "ps.h"
#include "identity.h"
#include "jsonl.h"
#include "hostlist.h"
#include "qmp.h"
#include "spawn.h"

enum host_state {
    HOST_STARTING,
    HOST_LISTENING,
    HOST_IMAGE,    /* device state is there, children can run */
    HOST_COMPLETE, /* all memory is there */
    HOST_FAILED    /* it is of no use any more: the error says why */
};

struct host {
    const struct node *node;
    char *name;               /* of its run directory; no two the same */
    char *address;            /* numeric, an IPv6 address in brackets */
    bool here;                /* this host, the parent's */
    enum host_state state;
    char *error;
    struct remote run;        /* the agent, or its launcher */
    unsigned port;
    char *rundir, *socket;
    char *session;            /* which image its agent has, as it says; NULL: none yet */
    bool verified;            /* the parent says so, too */
    bool foreign;             /* somebody else gave it that image */
    int agent_pid;            /* there */
    bool ending, ended;       /* it was told to; it has, with all that it had */
    bool let_go;              /* it was told to detach or to end */
    /* what it said last */
    uint64_t total_bytes, present_bytes, lent_bytes, pages_by_fault, child_faults;
    unsigned connected;       /* children */
    uint64_t heard_ms;        /* when it said anything last */
    bool checked;             /* it has what children need */
    double answered_ms;       /* when it listened, or was checked; 0: not yet */
    double image_ms, complete_ms;
    uint64_t ping_ms;         /* when it was asked whether it is there; 0: it has answered */
};

enum child_state { CHILD_WAITING, CHILD_SPAWNED, CHILD_STARTED, CHILD_ATTACHED, CHILD_RUNNING,
                   CHILD_COMPLETE, CHILD_ENDED, CHILD_FAILED };

struct child {
    unsigned number;
    size_t host;
    enum child_state state;
    pid_t pid;
    char *qmp, *log, *error;
    bool said, told;          /* its guest said that it is done; its end was reported */
    int code;                 /* what it said: 0..255 */
    double started_ms, attached_ms, running_ms, complete_ms, ready_ms; /* 0: not yet */
};

struct clone_options {
    const char *parent_path, *id, *launcher, *scratch, *link_options, *qemu, *agent, *rundir,
        *bridge, *overlays, *nbd, *hostname, *user_data;
    struct words ip; /* NIC by NIC */
    unsigned n, timeout_s;
    unsigned max_chain; /* images of a disk; 0: no limit */
    bool prestart, template, follow, json, quiet;
    bool move;  /* agents hold no image */
    int events; /* ends are reported there, too, as JSON; 0: nowhere */
    enum net_policy net;
};

struct clone {
    const struct clone_options *o;
    struct nodes nodes;
    struct host *hosts;
    size_t n_hosts;
    struct child *children;
    size_t n_children;
    struct words notes;
    /* the parent */
    struct qmp *qmp;
    pid_t parent_pid;
    uint64_t memory_bytes;      /* all that its guest may have */
    struct words parent_argv;
    char *parent_exe, *parent_cwd;
    struct clone_disks *disks;
    struct identity *identity;
    bool parent_gone, launched, exported, checking, taken_back;
    bool parent_stood, paused; /* it did not run when it was asked; its children do not */
    bool parent_silent; /* no connection to it, whether it has ended or not */
    bool held;              /* a process forked off the parent may be there, with its disks locked */
    char *stopped;          /* why the parent does not run any more; NULL: it does, or never did */
    json_t *io_error;       /* the last event BLOCK_IO_ERROR of it; or NULL */
    json_t *freeze; /* what x-farfork-export said */
    json_t *answer; /* the last event "qmp", "keep" or "adopt", for farfork move; NULL: none since then */
    /* all of it */
    int signals;
    bool interrupted;
    double begin_ms, round_ms, export_ms; /* of now_exact_ms() */
    struct why why;             /* why there is no fork, if there is none */
};

const char *child_state_name(enum child_state s);
bool child_runs(const struct child *c); /* now, or it did until it ended by itself */

/* clone_plan.c: hosts and children from c->nodes; -ENOSPC: more children than slots */
int clone_plan(struct clone *c, struct why *why);
void child_fail(struct child *c, const char *fmt, ...) PRINTF(2, 3);

/* clone_parent.c: connected to a QEMU, with what it was started with; whether it can be forked; its
 * disks and NICs */
int clone_find_parent(struct clone *c, struct why *why);
int clone_check_parent(struct clone *c, struct why *why);
int clone_ask_disks(struct clone *c, struct why *why);
int clone_export(struct clone *c, struct why *why);
char *clone_target_of(const struct clone *c, const struct host *h);

/* Whether children stand still, as a parent did that is no template: one of them knows */
void clone_ask_paused(struct clone *c);
void clone_unexport(struct clone *c);
/* Nothing is left of the fork: a parent that ran, and stands still as its template, runs again */
void clone_let_run(struct clone *c);

/* After the export: hosts that the parent's side does not reach are of no use; their agents wait for
 * it and cannot know. Of those that have said nothing for @silent_ms */
void clone_ask_export(struct clone *c, unsigned silent_ms);

/* A parent that ran before and has stopped by an error: c->stopped */
void clone_check_runs(struct clone *c);

/* clone_check.c: enough files may be open here; agents have answered; they say that their hosts have
 * what children need. -EHOSTUNREACH: none of them does */
int clone_check_descriptors(struct clone *c, struct why *why);
int clone_wait_hosts(struct clone *c, struct why *why);
int clone_check_hosts(struct clone *c, struct why *why);

/* clone_commit.c: the parent's disks as before a fork of which nothing is left, or a note why not */
void clone_take_back(struct clone *c);

/* clone_verify.c: the parent's memory, before agents are launched: they take no image that is larger */
int clone_ask_memory(struct clone *c, struct why *why);

/* The object of @list whose @key is @name; NULL: none */
const json_t *clone_find_named(const json_t *list, const char *key, const char *name);

/* What the parent says of @h in @exports, of query-x-farfork-exports; NULL: nothing */
const json_t *clone_find_target(const struct clone *c, const json_t *exports, const struct host *h);

/* Whether each agent that has an image has the parent's: the parent is asked. One that has another's
 * fails with all its children */
void clone_verify_images(struct clone *c);
bool clone_images_verified(const struct clone *c);

/* clone_spawn.c: tell the agents to start the children that wait */
int clone_check_argv(struct clone *c, struct why *why);
int clone_argv_on(struct clone *c, const struct host *h, struct words *out, struct why *why);
void clone_spawn(struct clone *c);

/* host.c */
int host_resolve(struct host *h, struct why *why);
int host_launch(struct clone *c, struct host *h, struct why *why);
void host_send(struct host *h, json_t *command); /* taken over */
void host_fail(struct clone *c, struct host *h, const char *fmt, ...) PRINTF(3, 4);

/* Its pipes are readable, or were closed */
void host_hear(struct clone *c, struct host *h);

/* An agent that has all memory detaches then */
void host_close_input(struct host *h);

/* Close its pipes and wait for the launcher, at most @limit_ms, then kill that */
void host_close(struct host *h, int limit_ms);

/* clone_events.c: one event of an agent */
void clone_event(struct clone *c, struct host *h, const json_t *event);

/* clone.c: the whole fork; the exit code */
int clone_run(struct clone *c);

/* An event of the parent; taken over */
void clone_hear_event(struct clone *c, json_t *e);

/* Wait for anything, at most @wait_ms, and handle it; whether a host said anything */
bool clone_turn(struct clone *c, int wait_ms);

/* Until @done: 0; -ECANCELED: interrupted; -ETIMEDOUT: nothing happened for @limit_ms */
int clone_pump(struct clone *c, bool (*done)(const struct clone *), int limit_ms);

/* SIGINT, SIGTERM and SIGHUP by c->signals from here on */
void clone_block_signals(struct clone *c);
void clone_free(struct clone *c);

/* clone_follow.c: report ends until all children have ended, or until interrupted; the exit code.
 * @code: of the fork */
int clone_follow(struct clone *c, int code);

/* clone_table.c */
void clone_show(struct clone *c, bool last); /* live lines, on a terminal */
void clone_print_table(const struct clone *c, int code);
void clone_print_json(const struct clone *c, int code);

/* clone_list.c: what --list, --wait and --kill need to know of hosts that they cannot see, written
 * down; and taken back when nothing is there */
int clone_record(struct clone *c, struct why *why);
void clone_forget(const struct clone *c);

/* @base NULL: the default; exit codes. @timeout_s of other hosts' answers; clone_wait(): of the
 * children, 0: no limit */
int clone_list(const char *base, bool json, unsigned timeout_s);
int clone_wait(const char *base, const char *id, unsigned timeout_s);
int clone_kill(const char *base, const char *id, unsigned timeout_s);

#endif
