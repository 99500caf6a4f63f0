/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * attach_private.h - one side of a move by attaching, between attach*.c
 */
#ifndef FF_CONTROL_ATTACH_ATTACH_PRIVATE_H
#define FF_CONTROL_ATTACH_ATTACH_PRIVATE_H

#include <jansson.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

#include "alone.h"
#include "attach.h"
#include "cleanup.h"
#include "device_state.h"
#include "farfork-elsewhere.h"
#include "hold.h"
#include "incoming_stream.h"
#include "leash.h"
#include "outside.h"
#include "qmp.h"
#include "watcher.h"
#include "written.h"

#define ATTACH_CONFIG "attach 1"       /* both sides mean the same by what they send */
#define ATTACH_CONFIG_MAX 128
#define ATTACH_MAIN_BYTES (1u << 20)   /* below it a block travels with the state */
#define ATTACH_POLL_MS 5
#define ATTACH_QMP_LIMIT_MS 60000

enum attach_stage {
    ATTACH_SETUP,  /* a failure or a signal ends it, and nothing is lost */
    ATTACH_LET_GO, /* the source's GO, the destination's READY: only the peers decide */
    ATTACH_GONE,   /* GO was sent, or read */
    ATTACH_RUNS,   /* RUNNING */
    ATTACH_OVER,   /* the handles may be gone */
};

struct attach_map {
    void *at; /* NULL: not mapped here */
    int fd;
};

struct attach {
    const struct attach_options *o;
    const char *side;
    bool is_source;
    pid_t starter; /* the process that has started this one */
    uint64_t begin_ns, pause_ns, run_ns;
    struct metrics *metrics; /* of --metrics-dir; NULL: none */
    uint64_t asked_ns;       /* when it was told the address */
    /* the QEMU */
    struct qmp *q;
    pthread_mutex_t qmp_lock; /* one command at a time */
    pid_t pid;
    int alone; /* nobody else attaches to it: alone.h; -1: not yet, or no more */
    bool was_running;           /* the guest at the source, before */
    unsigned page_bits;         /* source: of its guest's pages */
    struct outside_block *all;  /* every RAM block */
    struct outside_block *main; /* those that the engine has */
    unsigned n_all, n_main;
    struct incoming_block *incoming; /* of each of @all */
    uint8_t **small;                 /* the bytes of those that are not main memory */
    struct attach_map *maps;         /* source: of each of @main */
    struct incoming_stream stream;
    bool stopped;         /* source: the guest was told to */
    struct device_save save; /* source: what is in its QEMU for that */
    struct hold *hold;    /* source; of a domain the destination, from READY to GO */
    struct attach_domain *domain; /* NULL: it is none of libvirt's */
    _Atomic bool is_held; /* likewise: its QEMU answers nobody */
    struct written written; /* source, with precopy=1; @bits: of the longest block's pages */
    uint64_t *bits;
    bool precopies;       /* it began: the last of it is due in the pause */
    struct watch watch;   /* destination */
    struct attach_earlier *earlier; /* of a return: attach_return.c */
    struct attach_replaced *replaced; /* destination: attach_replace.c; NULL: nobody's place is taken */
    struct leash leash;   /* destination, with fallback=go */
    bool lease_ran;       /* ... the lease's thread's: the guest is to go on when there is one again */
    bool listens;         /* destination: its QEMU waits for a migration, which is ours */
    int sock;             /* destination: to its QEMU; -1: none */
    /* the engine; the other is NULL */
    struct ff_address *address;
    struct ff_source *source;
    struct ff_dest *dest;
    unsigned reconnect_ms;
    size_t state_bytes;
    int stop_fd; /* readable: QMP's waits end */
    pthread_t signal_thread, input_thread, cont_thread, finish_thread, events_thread;
    bool has_signals, has_input, has_finish, has_cont, has_events;
    _Atomic bool events_over;
    json_t *overlays; /* destination, with fallback=go: files of its disks before READY; NULL: none */
    int is_down; /* destination, under @qmp_lock: what is written down of its guest's shutdown; -1: that failed */
    /* under @lock */
    pthread_mutex_t lock;
    pthread_cond_t changed;
    enum attach_stage stage;
    bool failed;
    struct ff_error why;
    bool broke; /* destination: the link, after GO */
    void (*on_event)(struct attach *a, const char *event, const json_t *fields);
    struct monitor *monitor;
    char *key;          /* of key_text_new(); NULL: none, or it was taken away */
    const char *status; /* as query-migrate has it */
    char reason[400];
    json_int_t listens_at;   /* a port; 0: not yet */
    bool no_lease;           /* destination, with fallback=go: nothing may run */
    char sent_to[300];       /* source: the address without its options */
    bool gave_up;            /* source: fallback=go, and the guest is never taken back from here on: it is on its way home */
    bool was_taken_back;     /* source: the guest was, and the destination is to hear so */
    bool takes_back;         /* source: somebody has said that the destination is lost */
    const char *take_back;   /* what has become of that, as query-migrate has it; NULL: nothing was said since the link broke */
    char not_started[32];    /* source: somebody knows that the destination never ran the guest */
    bool hears_not_started;  /* ... and it may still be said */
    bool returned;           /* of a guest that visits: it has gone home, and all of it is there */
    bool lost, left;         /* source: no link comes any more, and its QEMU is held until somebody says what; or leaves it so */
    bool is_over, said_last; /* the status is the last one; a client has heard it */
    bool cont_done, cont_waits; /* waits: of the main thread, which has given up */
    int watch_rc; /* destination: what ended its watch; known once that thread has been joined */
    struct ff_error watch_why;
    int cont_rc;
    struct ff_error cont_why;
};

static inline bool attach_is_main(const struct outside_block *b)
{
    return b->len_bytes >= ATTACH_MAIN_BYTES;
}

/* --- attach.c --- */

int attach_open(struct attach *a, const struct attach_options *o, bool is_source, struct ff_error *err);
/* What another thread of this side waits for ends; then the source's engine is gone */
void attach_stop(struct attach *a);
void attach_close(struct attach *a);

/* Any thread: end the attempt. The first reason stays */
void attach_fail(struct attach *a, const struct ff_error *why);
/* Any thread: before GO, end the attempt. -EBUSY: too late */
int attach_interrupt(struct attach *a, struct ff_error *why);
/* 0, or what attach_fail() was told, or a signal */
int attach_check(struct attach *a, struct ff_error *err);
/* To @stage, unless it has failed: as attach_check(). A signal ends nothing from ATTACH_LET_GO on */
int attach_set_stage(struct attach *a, enum attach_stage stage, struct ff_error *err);
void attach_runs(struct attach *a); /* the guest does, there */

/* --- attach_say.c --- */

/* What has happened, for people or as JSON; @fields is taken, NULL: none */
void attach_event(struct attach *a, const char *name, json_t *fields);
/* The same with the reason */
void attach_say_why(struct attach *a, const char *name, const struct ff_error *why);
void attach_begins(struct attach *a); /* it has the address: counted from here on */
void attach_summary(struct attach *a, int code);
void attach_last_word(struct attach *a, int code); /* the reason again, if there is one to give */
/* What the engine counts, by the names that query-migrate has for it */
json_t *attach_numbers(struct attach *a);

/* --- attach_told.c --- */

/* One side, from its address, of the command line or the monitor, to its last word. @follow: the move; the program's exit
 * code, as this returns it */
int attach_run(struct attach *a, const struct attach_options *o, bool is_source, int (*follow)(struct attach *a));

/* --- attach_qemu.c --- */

/* qmp_command() to the QEMU, from any thread */
int attach_qmp(struct attach *a, const char *name, json_t *arguments, json_t **result, struct ff_error *err);
/* -EBUSY: others use it, for longer than a moment */
int attach_try_qmp(struct attach *a, const char *name, json_t *arguments, json_t **result, struct ff_error *err);
int attach_qemu_connect(struct attach *a, struct ff_error *err);
/* query-status */
int attach_qemu_status(struct attach *a, char out[32], bool *running, struct ff_error *err);
/* Destination: tell it to wait for its migration, and not to run the guest when that has come */
int attach_qemu_listen(struct attach *a, struct ff_error *err);
/* Destination: until QEMU has loaded the state: it would run now, if it had not been told to stop */
int attach_qemu_wait_loaded(struct attach *a, struct ff_error *err);
/* Destination, GO has not come and never will: end it */
void attach_qemu_end(struct attach *a);
/* `cont`, also where it is refused for some seconds: the other QEMU may still have its images. -EREMOTEIO: it is refused */
int attach_qemu_cont(struct attach *a, int limit_ms, struct ff_error *err);
/* Source, GO was not sent: the guest goes on here. 0: it does, and has its disks */
int attach_qemu_take_back(struct attach *a, struct ff_error *err);
bool attach_qemu_is_there(const struct attach *a); /* now */
/* Within a moment: a process that is killed closes its sockets first */
bool attach_qemu_has_ended(const struct attach *a);

/* --- attach_memory.c --- */

int attach_look(struct attach *a, struct ff_error *err); /* connect; a->pid, into which this process may look */
int attach_find_blocks(struct attach *a, struct ff_error *err); /* then */
int attach_new_source(struct attach *a, struct ff_error *err);
int attach_add_dest_region(struct attach *a, const struct outside_block *b, struct ff_error *err);

/* --- attach_save.c: the source, before GO --- */

int attach_save(struct attach *a, struct ff_error *err); /* attach.h's (1) to (5), all but GO */
void attach_save_back(struct attach *a); /* its threads go on: GO was not sent, or came to nothing */
void attach_save_over(struct attach *a, int code); /* (8); after GO, whatever came of it */

/* --- attach_precopy.c: nothing without precopy=1 --- */

int attach_precopy(struct attach *a, struct ff_error *err);      /* while the guest runs */
int attach_precopy_last(struct attach *a, struct ff_error *err); /* once its threads are held, before STATE */
void attach_precopy_end(struct attach *a); /* nothing of it is left in the guest's QEMU */

/* --- attach_return.c: nothing but for a guest that comes back --- */

int attach_earlier_open(struct attach *a, struct ff_error *err); /* with blocks known */
int attach_earlier_use(struct attach *a, struct ff_error *err);  /* the destination, before it starts */
void attach_earlier_close(struct attach *a);
void attach_config(const struct attach *a, char out[ATTACH_CONFIG_MAX]);
void attach_tell_returned(struct attach *a); /* to who has moved it before */
bool attach_has_returned(struct attach *a);
/* Commands, under lock */
int attach_visit_command(struct attach *a, json_t **result, struct ff_error *why);
int attach_let_go_command(struct attach *a, struct ff_error *why);
int attach_give_up_command(struct attach *a, struct ff_error *why);
int attach_returned_command(struct attach *a, const json_t *arguments, struct ff_error *why);

/* --- attach_replace.c: the destination; nothing without --replaces --- */

int attach_replaced_look(struct attach *a, struct ff_error *err); /* it can be stopped and ended, and nobody moves or forks it */
int attach_replaced_stop(struct attach *a, struct ff_error *err); /* before READY */
void attach_replaced_settle(struct attach *a); /* GO has come */
void attach_replaced_end(struct attach *a);  /* GO has come, and the guest runs here */
void attach_replaced_link(struct attach *a); /* all is here: its socket leads to this QEMU */
void attach_replaced_back(struct attach *a); /* GO will never come, or the QEMU here has ended: it goes on */

/* --- attach_lease.c: the destination, with fallback=go --- */

void attach_lease_offer(struct attach *a); /* before anybody comes */
int attach_lease_bind(struct attach *a, struct ff_error *err); /* before READY; -ENOTSUP: a disk is no overlay */
/* The source never takes the guest back, and the QEMU needs no leash from here on: -EINVAL: it has not said so yet; -EBUSY */
int attach_lease_released(struct attach *a, struct ff_error *err);
/* The same, and no disk is in an overlay of then any more, nor on top of one: it may go home */
int attach_lease_may_leave(struct attach *a, struct ff_error *err);
void attach_lease_end(struct attach *a); /* the source has let go for good */

/* --- attach_shut_down.c: the destination, from GO on --- */

void attach_shut_down_begin(struct attach *a);
void attach_shut_down_look(struct attach *a); /* now: its QEMU stands still, or has ended */
void attach_shut_down_end(struct attach *a);

/* --- attach_load.c: the destination, before READY --- */

int attach_load(struct attach *a, struct ff_error *err); /* (1) to (4) */
void attach_load_finish(struct attach *a); /* (7): the end of the watch, before DONE */

#endif
