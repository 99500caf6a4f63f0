/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * fork.h - one fork, as vmclone sees it: hosts, children, what became of them
 */
#ifndef FF_CONTROL_FORK_FORK_H
#define FF_CONTROL_FORK_FORK_H

#include "command_line.h"
#include "fork_disks.h"
#include "ps.h"
#include "identity.h"
#include "session.h"

struct fork_options {
    struct session_options s;
    const char *domain; /* of libvirt's: the parent. NULL: its QMP socket is given */
    const char *working_set; /* a file, or "none"; NULL: the parent's own */
    const char *scratch, *bridge, *overlays, *nbd, *hostname, *user_data;
    struct strv ip; /* NIC by NIC */
    int fanout; /* agents that the parent, and each agent, feeds; 0: the parent feeds all; -1: chosen */
    const char *multicast; /* the group that gets the memory at once; "auto"; NULL: none */
    uint64_t child_bytes; /* of memory that a child is counted with, to be placed; 0: all of the guest's */
    unsigned max_chain; /* images of a disk; 0: no limit */
    bool prestart, template, follow;
    bool same_disks; /* the images of other hosts are not looked at: the operator knows */
    int events; /* ends are reported there, too, as JSON; 0: nowhere */
    enum net_policy net;
    struct fork_hold *hold; /* children are started ahead, for a fork that may come; or NULL */
};

struct fork {
    struct session s;
    const struct fork_options *o;
    uint64_t memory_bytes;      /* all that its guest may have */
    unsigned fanout;            /* of fork_tree.c; 0: the parent feeds all hosts */
    char *group;                /* of fork_group.c; NULL: nothing is sent to one */
    bool told_unfed;            /* that one host feeds no other */
    char *first;                /* working set that hosts are told; NULL: there is none */
    struct fork_disks *disks;
    struct identity *identity;
    bool exported, checking, taken_back;
    bool source_lost;       /* the process beside the parent has ended, with the memory that it held */
    json_t *domain;         /* its children are domains of libvirt's: fork_domain.c; NULL: not */
    bool paused;            /* the parent did not run when it was asked; its children do not */
    bool held;              /* a process forked off it may be there, with its disks locked */
    bool stands;            /* until libvirt has made its overlays, and lets it go on */
    char *stopped;          /* why the parent does not run any more; NULL: it does, or never did */
    json_t *freeze;         /* what x-farfork-export said */
    json_t *cpu;            /* its flags: fork_check.c; or NULL */
    struct same_files *same; /* its images, while hosts are asked; or NULL */
    double round_ms, export_ms; /* of ff_now_exact_ms() */
    double stood_ms;            /* so long the parent stood still, where libvirt lets it go on; 0 */
};

/* fork_parent.c: whether it can be forked; its disks and NICs. fork_ask_again(): when children of @n
 * have been started by what it said before; -ESTALE, -EBUSY: as identity_again() */
int fork_check_parent(struct fork *f, struct ff_error *why);
int fork_ask_disks(struct fork *f, struct ff_error *why);
int fork_ask_again(struct fork *f, unsigned n, struct ff_error *why);
int fork_export(struct fork *f, struct ff_error *why);

/* fork_attach.c: the parent is asked through a process beside it from here on: as that refuses it. lost(): that process has ended while it was to fork the parent, which goes on. watch(): again and again after that: has it
 * ended? ended(): nothing is asked of it any more: has the parent? */
int fork_attach(struct fork *f, struct ff_error *why);
void fork_attach_lost(struct fork *f);
void fork_attach_watch(struct fork *f);
void fork_attach_ended(struct fork *f);

/* fork_domain.c: @look: what `x-farfork-look` says. 0: f->domain is set; what an agent is told to start; -ENOTSUP: the domain
 * has what a child cannot have */
int fork_domain_begin(struct fork *f, const json_t *look, struct ff_error *why);
json_t *fork_domain_spawn(const struct fork *f, const struct vm *k, const struct vm_spec *s, struct ff_error *why);

/* Whether children stand still, as a parent did that is no template: one of them knows */
void fork_ask_paused(struct fork *f);
void fork_unexport(struct fork *f);
/* Nothing is left of the fork: a parent that ran, and stands still as its template, runs again */
void fork_let_run(struct fork *f);

/* After the export: hosts that the parent's side does not reach are of no use; their agents wait
 * for it and cannot know. Of those that have said nothing for @silent_ms */
void fork_ask_export(struct fork *f, unsigned silent_ms);

/* A parent that ran before and has stopped by an error: f->stopped */
void fork_check_runs(struct fork *f);

/* fork_check.c: enough files may be open here; agents have answered; they say that their hosts have
 * what children need. -EHOSTUNREACH: none of them does */
int fork_check_descriptors(struct fork *f, struct ff_error *why);
int fork_wait_hosts(struct fork *f, struct ff_error *why);
int fork_check_hosts(struct fork *f, struct ff_error *why);

/* fork_take_back.c: the parent's disks as before a fork of which nothing is left, or a note why
 * not */
void fork_take_back(struct fork *f);

/* fork_verify.c: the parent's memory, before agents are launched: they take no image that is
 * larger */
int fork_ask_memory(struct fork *f, struct ff_error *why);

/* The address that the parent sends @h's image to; to be freed */
char *fork_target_of(const struct fork *f, const struct host *h);

/* What the parent says of @h in @exports, of query-x-farfork-exports; NULL: nothing */
const json_t *fork_find_target(const struct fork *f, const json_t *exports, const struct host *h);

/* Whether each agent that has an image has the parent's: the parent is asked. One that has
 * another's fails with all its children */
void fork_verify_images(struct fork *f);
bool fork_image_is_open(const struct fork *f, const struct host *h); /* it has not said so of this one yet */

/* fork_tree.c: who gets the image from whom; plan(): before the export, agents listen; turn(): after
 * it, again and again. fork_fanout(): a good one for an image of @bytes and @n hosts */
void fork_tree_plan(struct fork *f);
void fork_tree_turn(struct fork *f);
const char *fork_tree_options(const struct fork *f); /* more of those of agents' links */
unsigned fork_fanout(size_t n, uint64_t bytes);

/* fork_working_set.c: read what is known: 0, -errno with the reason; tell it to agents, before the
 * export; keep what this fork's children have touched */
int fork_read_working_set(struct fork *f, struct ff_error *why);
void fork_tell_working_set(struct fork *f);
void fork_keep_working_set(struct fork *f);

/* fork_group.c: the group to which the parent sends its memory for all other hosts, as --multicast says:
 * plan(): before the export, agents listen; note(): when all is there: what did not come so, and why.
 * -EINVAL: @text is no group */
int fork_group_check(const char *text, struct ff_error *why);
void fork_group_plan(struct fork *f);
void fork_group_note(struct fork *f);

/* fork_spawn.c: whether each child can have cloud-init data of its own, or a note */
void fork_try_seeds(struct fork *f);

/* Tell the agents to start the children that wait */
int fork_check_argv(struct fork *f, struct ff_error *why);
int fork_argv_on(struct fork *f, const struct host *h, struct strv *out, struct ff_error *why);
void fork_spawn(struct fork *f);

/* Whether children are what they would be if they were started now. -ESTALE: no, since the parent
 * has changed; and tell those that run a farfork-guest what has changed */
int fork_check_asked(struct fork *f, struct ff_error *why);
void fork_send_messages(struct fork *f);

/* fork.c: the whole fork, to @hosts (taken over); the exit code */
int fork_run(const struct fork_options *o, struct hostlist *hosts);

/* fork_hold.c: a process of pool.c's, whose children wait. fork_hold(): until there is a request for
 * a fork: 0, and from here on the fork is that request's; -ECANCELED; -ECHILD: a child or host has
 * ended, -ESTALE: the parent has changed, with the reason. fork_hold_failed(): there will be none;
 * fork_hold_done(): the fork is made, and the parent can be forked again */
struct fork_hold {
    int control, client; /* to pool.c; to who asked for the fork: -1: nobody has */
    struct fork_options *options;
};
int fork_hold(struct fork *f, struct ff_error *why);
int fork_hold_settle(struct fork *f); /* agents have done what they were told. -ECANCELED */
void fork_hold_failed(const struct fork *f);
void fork_hold_done(const struct fork *f);

/* fork_pump.c: until no host is waited for: 0; -ECANCELED: interrupted. One of which nothing was heard for @limit_ms, and
 * whose agent waits for no link that broke, is @late, unless that is NULL, and is not waited for any more */
typedef bool fork_waits(const struct fork *f, const struct host *h);
typedef void fork_is_late(struct fork *f, struct host *h);
int fork_pump(struct fork *f, fork_waits *waits, fork_is_late *late, int limit_ms);

/* fork_follow.c: hosts that vanish close no connection: those that have not answered for --timeout
 * fail, and with @ask all are asked */
void fork_look_after(struct fork *f, bool ask);

/* fork_follow.c: report ends until all children have ended, or until interrupted; the exit code.
 * @code: of the fork */
int fork_follow(struct fork *f, int code);

/* fork_metrics.c: --metrics-dir: what is known before a fork, and after it */
struct metrics *fork_metrics_begin(const struct fork *f);
void fork_metrics_end(const struct fork *f, int code, struct metrics *metrics); /* taken over */

/* fork_table.c. Milliseconds from x-farfork-export on, but for what was prepared before; < 0: not
 * reached */
struct fork_phases {
    double prepare, freeze, ship, start, first, last, complete;
};
struct fork_phases fork_phases_of(const struct fork *f);
void fork_show(struct fork *f, bool last); /* live lines, on a terminal */
void fork_print_table(const struct fork *f, int code);
void fork_print_json(const struct fork *f, int code);

/* fork_list.c: what --list, --wait and --kill need to know of hosts that they cannot see, written
 * down; and taken back when nothing is there */
int fork_record(struct fork *f, struct ff_error *why);
void fork_forget(const struct fork *f);

/* @base NULL: the default; exit codes. @timeout_s of other hosts' answers; fork_wait(): of the
 * children, 0: no limit */
int fork_list(const char *base, bool json, unsigned timeout_s);
int fork_wait(const char *base, const char *id, unsigned timeout_s);
int fork_kill(const char *base, const char *id, unsigned timeout_s);

#endif
