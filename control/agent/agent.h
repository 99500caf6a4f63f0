/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * agent.h - the children that an agent starts and looks after
 */
#ifndef FF_CONTROL_AGENT_AGENT_H
#define FF_CONTROL_AGENT_AGENT_H

#include <jansson.h>
#include <poll.h>
#include <stdint.h>
#include <sys/types.h>

#include "agent_guest_port.h"
#include "error.h"
#include "rundir.h"
#include "strv.h"

enum agent_vm_state {
    AGENT_VM_PREPARING, /* its process is there, QEMU is not yet */
    AGENT_VM_STARTED,
    AGENT_VM_CONNECTED,
    AGENT_VM_ATTACHED,
    AGENT_VM_RUNNING,
    AGENT_VM_COMPLETE,
    AGENT_VM_LOST,      /* the agent hears from it no more, the process is still there */
    AGENT_VM_ENDED
};

struct agent_vm {
    unsigned number;
    pid_t pid;
    uint64_t start;    /* process_start_time() */
    int exec_status_fd;    /* until it runs its program: why it does not; -1 */
    enum agent_vm_state state;
    char *log, *qmp;
    char *until_go;    /* the file of its option until-go; NULL: it has none, or somewhere else */
    char *shut_down_file; /* made when its guest shuts itself down; NULL: nobody asks */
    struct jsonl_reader *exec_status;
    json_t *beside;     /* as struct beside_child has it; NULL: no child of a fork */
    json_t *private;    /* files that QEMU reads when it starts; NULL: it has, or there are none */
    struct channel *channel; /* NULL: the child has no port */
    bool ready, exited;      /* its guest has said so */
    uint64_t begun_ms;
    uint64_t end_ms;         /* its guest is done: killed then; 0: it is not */
    uint64_t word_ms;        /* it has ended; until then who serves it may write down that its guest had shut itself down */
    char *how; /* it has been reaped: how it ended, and its exit code (-1: a signal) */
    int code;
    bool told;               /* its end was */
    bool is_side;           /* no guest is in it: it serves another child */
    bool never_ran;          /* it has been reaped, and left that file: no guest ran in it */
    enum rundir_left shut_down; /* ... or the one that says that its guest has shut itself down */
    bool by_term;            /* it ends what it stands for when it gets SIGTERM */
    bool unused;             /* it was started ahead for a fork that has fewer children */
};

struct agent_vms {
    struct agent_vm *v;
    size_t n;
    const char *dir; /* where their overlays are written down */
    struct agent_ask *asks;  /* that wait for an answer; agent_qmp.c */
    char *key;               /* of key_text_new(), for their QEMUs; NULL: none, or used */
    bool ask_unused_again; /* one did not answer agent_vms_end_unused(), and was left alone */
};

/* agent_private.c. Files of mode 0600, [{"path", "text", "after"}, ..]: agent_private_forget() when
 * QEMU has read
 * them: each has the text @after then, or is removed where that is missing; agent_private_remove():
 * all of them, @files is released */
int agent_private_write(const json_t *files, struct ff_error *why);
void agent_private_remove(json_t *files);
void agent_private_forget(struct agent_vm *vm);

const char *agent_vm_state_name(enum agent_vm_state s);
struct agent_vm *agent_vms_find(struct agent_vms *k, json_int_t number);
size_t agent_vms_alive(const struct agent_vms *k);
size_t agent_vms_starting(const struct agent_vms *k); /* of those: they do not run yet */

/**
 * agent_vms_spawn() - start a child: a process group of its own, output to a log, no input
 * @o: {"number": N, "argv": [..], "log": PATH, "cwd": FOLDER, "qmp": PATH (for the state file),
 *     "before": [[..], ..] commands that must succeed first, "files": [..] that are made before
 *     those, empty (overlay_records_make()), "private": [..], as agent_private_write(), "channel":
 *     agent_port_new(), "side": true where no guest is in it, "beside": of a child of a fork:
 *     agent_beside.h}; the last eight may be missing
 *
 * Return: 0: a process is there; whether it becomes the program is found out by
 * agent_vms_on_exec_status()
 */
int agent_vms_spawn(struct agent_vms *k, const json_t *o, struct agent_vm **out,
                    struct ff_error *why);

/* @vm->exec_status_fd is readable: 0: it runs its program now; -errno: it does not, and why */
int agent_vms_on_exec_status(struct agent_vm *vm, struct ff_error *why);

/* Reap those that have ended; whether there were any */
bool agent_vms_reap(struct agent_vms *k);
char *agent_vm_last_words(const struct agent_vm *vm); /* the end of its log */

void agent_vm_kill(const struct agent_vm *vm); /* with all of its group */

/* Kill all and wait until they are gone, at most @limit_ms: whether they are */
bool agent_vms_end(struct agent_vms *k, int limit_ms);
/**
 * agent_vms_qmp() - a command for a child's QEMU
 * @o: {"child": N, "execute": NAME, "arguments": {..}, "id": any}; the last two may be missing.
 *     "add-key": true instead of "execute": give it the agent's key, as the secret KEY_SECRET
 *
 * Return: NULL: agent_vms_answer() gives the event, within some seconds; else that it cannot be
 * asked
 */
json_t *agent_vms_qmp(struct agent_vms *k, const json_t *o);

/* Ask those to which no source has come, as their query-migrate says (setup), and end them */
void agent_vms_end_unused(struct agent_vms *k);

/* What is to be polled for answers: how many; into @p, which may be NULL */
size_t agent_vms_poll(const struct agent_vms *k, struct pollfd *p);

/* Go on with questions, without waiting. The event of one of agent_vms_qmp() that has ended:
 * "return", or "error" and then "again" when its socket is not there yet, "unanswered" when it may have been done; NULL: of none */
json_t *agent_vms_answer(struct agent_vms *k);
void agent_vms_drop_questions(struct agent_vms *k);

/* agent_kept.c. agent_vms_keep(): a guest moves to them; agent_vms_let_go(): it is there;
 * agent_vms_untold(): to one that ended before any ran in it, or whose guest has shut itself down
 * there, which its source may not know */
void agent_vms_keep(struct agent_vms *k);
void agent_vms_let_go(struct agent_vms *k);
bool agent_vms_untold(const struct agent_vms *k);
/* What was plugged into that child later, for the next move: {"child": N, "devices": [SPEC...]} */
void agent_vms_plugged(struct agent_vms *k, const json_t *o);

/* agent_visit.c: say lines to a guest that visits this host, at its port: {"child": N, "path": SOCKET, "text": LINES};
 * the event */
json_t *agent_visit_say(struct agent_vms *k, const json_t *o);
/* The guest has brought overlays, which are that child's from now on: {"child": N, "files": [..]}.
 * Return: the event for it */
json_t *agent_vms_adopt(struct agent_vms *k, const json_t *o);

json_t *agent_vms_state(const struct agent_vms *k);
void agent_vms_free(struct agent_vms *k);

/* This process, and all that it starts, cannot get rights that its user lacks; see agent_confine.c */
void agent_confine(void);

/* This session has as large a share of the CPUs as so many would, where sessions have one each
 * (sched_autogroup(7)) and this user may say so; AGENT_BACKGROUND: a tenth of one. False: it has
 * not, or not yet: the kernel lets an ordinary user do so ten times a second */
#define AGENT_BACKGROUND SIZE_MAX
bool agent_set_weight(size_t sessions);

#endif
