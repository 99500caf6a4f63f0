/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * agent_state.h - an agent, as its parts see it
 */
#ifndef FF_CONTROL_AGENT_AGENT_STATE_H
#define FF_CONTROL_AGENT_AGENT_STATE_H

#include <pthread.h>

#include "agent.h"
#include "agent_beside.h"
#include "farfork-clone.h"
#include "jsonl.h"
#include "scope.h"

enum image { LISTENING, IMAGE, COMPLETE, LOST, NONE };

struct agent {
    const char *listen, *id, *node, *base, *parent, *metrics_dir;
    struct metrics *metrics; /* NULL: nothing is counted */
    uint64_t metrics_ms;     /* when to write them next */
    uint64_t image_ms;       /* when the device state was here */
    char *socket, *dir;
    char *lasting; /* what outlasts a boot: until_go of the QEMU that a guest is moved to; or NULL */
    struct ff_agent *ff;
    struct ff_error *err; /* the worker's, once it has ended */
    pthread_t worker;
    bool keyed; /* a key is the first line of its input */
    enum scope_mode scope;
    bool unconfined; /* children may start programs that have rights of their own */
    bool watcher;    /* there is to be one: agent_watcher.c */
    int watcher_fd;  /* its end ends that; -1: there is none */
    bool stay;       /* the process in front goes on until this one ends */
    bool background; /* children are started ahead, slowly: nobody waits for them */
    int reconnect_ms; /* so long it waits for its source, when the link breaks */
    bool paused; /* it does */
    bool worker_runs, worker_over, detached, ending, input_ended, kept;
    enum image image;
    int pipe[2], signals, front;
    struct jsonl_reader in;
    struct agent_vms vms;
    struct beside *beside; /* threads beside children */
    void (*beside_failed)(void *agent, unsigned child); /* any thread: this child is to be ended */
    json_t *spawns; /* array: children that wait for their turn to be started; or NULL */
    size_t reserved; /* bytes, for the state file */
    json_t *said; /* the last progress event */
    unsigned heard; /* children that have come, in it */
    unsigned timeout_s, children; /* that are expected */
    uint64_t memory_bytes; /* of the guest that is forked */
    uint64_t lost_ms;
    uint64_t unused_ms; /* kept, and alone: when to look for children that wait for nobody; or 0 */
};

/* agent_wave.c: children that wait for their turn to be started. agent_spawn_waiting(): start those
 * whose turn it is */
size_t agent_waiting(const struct agent *a);
void agent_spawn_later(struct agent *a, json_t *spawn); /* borrowed */
void agent_spawn_waiting(struct agent *a);
void agent_kill(struct agent *a, json_int_t number); /* whether it was started or not */
void agent_count_vms(struct agent *a); /* after any change of their number or states */

/* agent_visit.c: the guest of @vm, a visitor, has said that it wants to go home */
void agent_visit_return(struct agent *a, struct agent_vm *vm);

/* agent_warm.c: a command for children that wait for a fork: false: it is none */
bool agent_warm(struct agent *a, const json_t *command);

/* agent_feed.c: whether @o was a command that says which way the image comes, or is to go on; agent_unfed():
 * the event that says that another agent gets nothing from here after all; @host NULL: another one gave this one
 * what is wrong */
bool agent_bring(struct agent *a, const json_t *o);
/* Earlier forks of the parent that have an image here: this one's may be the same for the most part */
void agent_find_earlier(struct agent *a);
json_t *agent_unfed(const char *host, const char *port, const char *why);

/* agent_key.c: the key that the first line of input has, into @a->vms.key */
int agent_read_key(struct agent *a, struct ff_error *why);
void agent_drop_key(struct agent *a);
bool agent_take_key(struct agent *a, char *line); /* of a guest that goes back; false: it is no key */

/* daemonize.c: @run the agent in a process of its own, behind this one: the exit code of this one. It
 * ends with @run's, or, with 0, once the agent detaches, unless a->stay; when it dies, the agent gets SIGTERM */
int agent_daemonize(int (*run)(struct agent *a), struct agent *a);

/* ... for the process in front, which is not confined */
void agent_tell_detached(struct agent *a);
void agent_tell_started(const struct agent *a, const struct agent_vm *vm);

/* agent_watcher.c: _begin() before the agent is confined, _listen() once it has its folder */
#define AGENT_WATCHER_SOCKET "watcher" /* in the agent's folder */
int agent_watcher_begin(struct agent *a, struct ff_error *why);
int agent_watcher_listen(struct agent *a, struct ff_error *why);

/* agent.c: for agent_daemonize() */
int agent_run(struct agent *a);

/* agent_look.c. agent_on_exec_status(): @vm->exec_status_fd is readable; agent_on_guest(): what the guest says, its links,
 * its end; true: look again soon; agent_reap(): those that have ended */
void agent_on_exec_status(struct agent *a, struct agent_vm *vm);
bool agent_on_guest(struct agent *a, struct agent_vm *vm);
void agent_reap(struct agent *a);

/* agent_journal.c: an event, for the journal */
void agent_journal(const struct agent *a, const json_t *event);

/* agent_journal.c: agent_begin_scope(): for the agent, as a->scope says; agent_take_scope(): for a
 * child of that number. 0; what scope_take() returns, with the reason */
int agent_begin_scope(const struct agent *a, struct ff_error *why);
int agent_take_scope(const struct agent *a, unsigned child, pid_t pid, struct ff_error *why);

/* agent_events.c; nothing is said any more once it is detached */
void agent_send(struct agent *a, json_t *event); /* taken over */
void agent_send_error(struct agent *a, unsigned child, const char *text); /* 0: of none */
void agent_send_child(struct agent *a, const struct agent_vm *vm, const char *what);
void agent_send_ended(struct agent *a, const struct agent_vm *vm);
void agent_end_by(struct agent *a, int signal); /* it ends with what it has, and says why */
void agent_send_image(struct agent *a);
void agent_send_touched(struct agent *a); /* by its children; if there is any */
void agent_send_progress(struct agent *a); /* if there is any */
int agent_write_state(struct agent *a); /* 0, -errno */
json_t *agent_state(const struct agent *a); /* what it says */
void agent_leave(struct agent *a);     /* it is about to end: overlay_records_leave() */

/* agent_metrics.c: --metrics-dir. agent_metrics_write(): whether to come again soon, for what could
 * not be written, or not yet; @last: now or never */
void agent_metrics_begin(struct agent *a);
void agent_metrics_image(struct agent *a); /* complete, or lost */
void agent_metrics_started(struct agent *a);
void agent_metrics_ended(struct agent *a, const struct agent_vm *vm);
bool agent_metrics_write(struct agent *a, bool last);

/* agent_kept.c: what a move leaves on this host when that ends at once; made at first, written when
 * a guest may come, removed when nobody has to know it any more */
int agent_lasting_make(struct agent *a, struct ff_error *why);
void agent_lasting_write(const struct agent *a);
void agent_lasting_drop(struct agent *a);
/* A guest moves to a child of this agent, or has: who started it may be gone, and it may not end */
void agent_keep(struct agent *a);

/* Room for what the state file says of @n children, and of one more that @spawn starts; NULL:
 * none */
int agent_reserve_state(struct agent *a, unsigned n, const json_t *spawn, struct ff_error *why);

#endif
