/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * session.h - what forks and moves share: a guest here, agents on hosts, QEMUs that they start
 */
/**
 * DOC: Theory of Operation
 *
 * Picture      struct session   the guest's QMP connection; hosts; VMs, each on one of them
 *                 ^      ^
 *              struct    struct        each has one as its first member, and adds what it does
 *              fork      move
 *
 * Threads      one: session_turn() waits for the QMP socket, all agents and signals at once, and
 *              what it hears changes the states of hosts and VMs. Nothing is called back but
 *              agent_options(), when an agent is launched.
 */
#ifndef FF_CONTROL_SESSION_SESSION_H
#define FF_CONTROL_SESSION_SESSION_H

#include <jansson.h>
#include <sys/types.h>

#include "defaults.h"
#include "domain_books.h"
#include "hostlist.h"
#include "jsonl.h"
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
    bool stays;               /* its launcher goes on when its agent is alone: launcher_ends_all() */
    bool keyed;               /* what goes there goes by a network: who may send it has the key */
    enum host_state state;
    char *error;
    struct spawn run;        /* the agent, or its launcher */
    char *unsent;            /* commands that it has not read yet, from unsent_done on; or NULL */
    size_t unsent_done;
    uint64_t unsent_ms;      /* since when it reads nothing of them */
    bool ends_input;         /* behind them, its input ends */
    unsigned port;
    char *rundir, *socket;
    char *lasting;            /* what outlasts a boot of that host is there; else the run directory */
    char *session;            /* which image its agent has, as it says; NULL: none yet */
    bool verified;            /* the parent says so, too */
    bool foreign;             /* somebody else gave it that image */
    bool is_fed;              /* another agent is to feed it */
    struct host *feeder;      /* that does; NULL: none yet */
    uint64_t fed_ms;          /* when it got another one, or, later than now, until when it waits for one */
    char *unfed;              /* why that cannot; or NULL */
    struct host *not_by;      /* that could not feed it last */
    bool is_orphan;           /* its feeder was chosen while the parent's side was away */
    bool gives_wrong;         /* what it gave another agent was not the parent's: it feeds nobody */
    bool was_misfed;          /* it has said so of another one */
    int agent_pid;            /* there */
    bool ending, ended;       /* it was told to; it has, with all that it had */
    bool let_go;              /* it was told to detach or to end */
    /* what it said last */
    uint64_t total_bytes, present_bytes, lent_bytes, fed_bytes, same_bytes, multicast_bytes, pages_by_fault, child_faults;
    uint64_t fault_p50_us, fault_p99_us, fault_max_us; /* of pages that a fault fetched */
    char *touched;            /* pages that its children have waited for: a working set; NULL: none */
    char *no_multicast;       /* why not all came from the group; or NULL */
    unsigned connected;       /* children */
    uint64_t heard_ms;        /* when it said anything last */
    bool checked;             /* it has what children need */
    bool lacks_flags;         /* but for flags of the CPU, which it does not name */
    double answered_ms;       /* when it listened, or was checked; 0: not yet */
    double image_ms, complete_ms;
    unsigned pauses;          /* so often its link broke */
    uint64_t paused_until_ms; /* its agent waits for the parent's memory; 0: it does not */
    uint64_t ping_ms;         /* when it was asked whether it is there; 0: it has answered */
    unsigned pings;           /* with `pong`: it has done all that it was told before; not yet */
    bool warm;                /* its children wait for a fork, and cost: */
    uint64_t pss_bytes;
};

enum vm_state { VM_WAITING, VM_SPAWNED, VM_STARTED, VM_ATTACHED, VM_RUNNING,
                   VM_COMPLETE, VM_ENDED, VM_FAILED };

struct vm {
    unsigned number;
    size_t host;
    enum vm_state state;
    pid_t pid;
    char *qmp, *log, *error;
    char mark[32];            /* with never_ran: what its file of until-go says */
    bool never_ran;           /* it has ended, and no guest ran in it, as its agent knows */
    bool shut_down;           /* it has ended, and its guest had shut itself down before */
    bool end_unclear;         /* whether it has ended, or had shut itself down before, cannot be read there */
    bool ended_well;          /* it has ended, with exit code 0 */
    bool said, told;          /* its guest said that it is done; its end was reported */
    int code;                 /* what it said: 0..255 */
    char *returns;            /* a visitor's guest asks to go home: its word, perhaps ""; NULL: it does not */
    json_t *asked;            /* what its agent was told to start; NULL: nobody asks for that */
    double started_ms, attached_ms, running_ms, complete_ms, ready_ms; /* 0: not yet */
};

struct session_options {
    const char *parent_path; /* the guest's QMP socket; with @books what it is called */
    struct domain_books *books; /* it is libvirt's; borrowed. Or NULL */
    const char *id, *launcher, *link_options, *qemu, *agent, *rundir; /* NULL: the default */
    const char *scope;       /* of agents, as --scope; NULL: the default */
    const char *metrics_dir; /* of every host; NULL: nothing is counted */
    unsigned n, timeout_s;   /* VMs; seconds without anything new */
    bool json, quiet;
    bool watcher;            /* agents with one: farfork agent */
    bool unconfined;         /* its user vouches for the guest's command line: agents without a filter */
    bool stays;              /* this program ends after the VMs */
};

struct session;

struct session_kind {
    const char *program; /* "vmclone" */
    const char *where;   /* "there": of a note about the other QEMU */
    const char *by_hand; /* what else to do where it refuses a guest; "": nothing */
    /* More words for the agent of @h */
    void (*agent_options)(const struct session *s, const struct host *h, struct strv *argv);
};

struct session {
    const struct session_kind *kind;
    struct session_options o; /* its strings are its own */
    struct hostlist hostlist;
    struct host *hosts;
    size_t n_hosts, n_spare; /* spare: behind those, told to end */
    struct vm *vms;
    size_t n_vms;
    struct strv notes;
    size_t notes_said;   /* the first so many have been printed */
    /* the guest here */
    struct qmp *qmp;
    pid_t parent_pid;
    uint64_t parent_start; /* process_start_time() of it; 0: nobody has looked */
    struct strv parent_argv;
    char *parent_exe, *parent_cwd;
    bool anywhere;      /* no option names a file in parent_cwd: a host that has no such folder will do */
    bool parent_gone;   /* its sockets are closed: session_has_parent_ended() asks the kernel */
    bool parent_stood;  /* it did not run when it was asked */
    bool beside;        /* the connection is to the process beside it: fork_attach.c */
    bool parent_silent; /* no connection to it, whether it has ended or not */
    struct strv unplugged;  /* ids of devices that the guest is to let go: not on parent_argv any more */
    json_t *unplug_error;   /* the last event that one of them is not let go; or NULL */
    json_t *io_error;   /* the last event BLOCK_IO_ERROR of it; or NULL */
    json_t *answer;     /* the last event "qmp", "keep", "adopt", "say" or "same"; NULL: none since then */
    char *key;          /* of key_text_new() */
    bool launched;
    int signals;
    int watch;          /* session_turn() hears it, too: watched; 0: nothing */
    bool watched;
    bool interrupted;
    double begin_ms;    /* of ff_now_exact_ms() */
    struct ff_error why;     /* why it came to nothing, if it did */
};

/* The kernel says that the guest's QEMU here has ended: nobody is left who could have the guest back */
bool session_has_parent_ended(const struct session *s);

/* Of the link options: how long a side waits for another link, after the switch */
unsigned session_reconnect_ms(const struct session *s);

/* session.c: what can be said of them before anything is done. -EINVAL */
int session_check_options(const struct session_options *o, struct ff_error *why);

/* @given with defaults where nothing is given, checked; @s is to be freed in any case */
int session_init(struct session *s, const struct session_kind *kind,
                 const struct session_options *given, struct ff_error *why);
/* A line for the summary, and for "notes" of JSON: what others said in it is made printable */
void session_note(struct session *s, const char *fmt, ...) FF_PRINTF(2, 3);
void session_free(struct session *s);

/* session_journal.c: what became of it, @well: what was to */
void session_journal(const struct session *s, const char *event, bool well);

/* What came by s->signals, of signals_take() */
void session_read_signals(struct session *s);

/* Wait for anything, at most @wait_ms, and handle it */
void session_turn(struct session *s, int wait_ms);

/* An event of the guest here; taken over */
void session_on_guest_event(struct session *s, json_t *e);

/* session_plan.c: hosts and VMs from s->hostlist; -ENOSPC: more VMs than slots. session_trim(): as
 * if it had been for @n of them: those that are left over were started ahead, and end */
int session_plan(struct session *s, struct ff_error *why);
void session_trim(struct session *s, unsigned n);

/* session_state.c */
const char *vm_state_name(enum vm_state state);
bool vm_runs(const struct vm *vm); /* now, or it did until it ended by itself */
void vm_fail(struct vm *vm, const char *fmt, ...) FF_PRINTF(2, 3);
/* It is of no use any more, with its VMs */
void host_fail(struct session *s, struct host *h, const char *fmt, ...) FF_PRINTF(3, 4);
char *host_at(const struct host *h); /* ADDRESS:PORT of its agent, to be freed */
/* A phase as text, and in JSON; @ms < 0: it was not reached */
void session_print_ms(const char *what, double ms);
void session_set_ms(json_t *o, const char *key, double ms);

#define PATCHED_COMMAND "x-rdma-postcopy-not-started" /* of a QEMU with the transport */

/* session_parent.c: connected to a QEMU, with what it was started with; -ENOTSUP: it has not the transport */
int session_find_parent(struct session *s, struct ff_error *why);
int session_check_parent(struct session *s, struct ff_error *why);
/* Others can be its client; what it was started with is forgotten, but for its pid */
void session_leave_parent(struct session *s);

/* session_filter.c: -EPERM: the QEMU here has a filter of system calls that its command line does not explain */
int session_check_filter(const struct session *s, struct ff_error *why);

/* session_plugged.c: onto s->parent_argv what was plugged later. session_recall_plugged(): by an earlier move, as its
 * agent has written it down, but for what s->unplugged has; session_add_plugged(): memory and CPUs, too. -ENOTSUP: any
 * other device was plugged or removed since */
void session_recall_plugged(struct session *s);
int session_add_plugged(struct session *s, struct ff_error *why);

/* session_key.c: a key of its own for each move and fork. session_link_options() is what an address
 * of @h has, with a comma in front, in a QEMU that has been given the key: to be freed */
int session_make_key(struct session *s, struct ff_error *why);
int session_send_key(const struct session *s, struct host *h, struct ff_error *why);
char *session_link_options(const struct session *s, const struct host *h);

/* The QEMU here has the key, as a secret object, from one to the other */
int session_lend_key(const struct session *s, struct ff_error *why);
void session_take_key(const struct session *s);

/* session_address.c: the address of @name that an address of a link may have, to be freed; of several
 * the first that answers, which may take 1.5 s. @remedy: how to name one */
int host_numeric(const char *name, const char *remedy, char **out, struct ff_error *why);

/* session_host.c: an agent on a host: start it through the launcher, talk to it, end it */
int host_resolve(struct host *h, struct ff_error *why);
int host_launch(struct session *s, struct host *h, struct ff_error *why);
/* session_send.c. Never waits: what its pipe does not take, session_turn() writes; one that reads nothing for 10 s hears no more.
 * @command is taken over. host_flush(): wait for that, at most @limit_ms */
void host_send(struct host *h, json_t *command);
void host_flush(struct host *h, int limit_ms);
void host_ping(struct host *h);
unsigned host_vms(const struct session *s, const struct host *h);

/* Its pipes are readable, or were closed */
void host_on_output(struct session *s, struct host *h);

/* When it has what it was sent: session_turn() does so. An agent that has all memory detaches then */
void host_close_input(struct host *h);

/* Close its pipes and wait for the launcher, at most @limit_ms, then kill that */
void host_close(struct host *h, int limit_ms);

void vm_release(struct vm *vm); /* its strings */

/* session_events.c: one event of an agent */
void session_on_agent_event(struct session *s, struct host *h, const json_t *event);

#endif
