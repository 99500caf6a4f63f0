/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * proxy_state.h - one side of a proxy, between proxy*.c
 */
#ifndef FF_CONTROL_PROXY_PROXY_STATE_H
#define FF_CONTROL_PROXY_PROXY_STATE_H

#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

#include "cleanup.h"
#include "farfork-elsewhere.h"
#include "outside.h"
#include "proxy.h"
#include "qmp.h"
#include "spawn.h"
#include "stream_return.h"

#define PROXY_CONFIG "proxy 2"         /* both sides forward by the same rules */
#define PROXY_CONFIG_STREAM "proxy 2, from-stream"
#define PROXY_STATE_MAX (256ull << 20) /* the engine's own limit of a state */
#define PROXY_PACKAGE_HEAD 9 /* the command PACKAGED; its unit has the first command inside, too */
#define PROXY_STATE_HEAD 1   /* of STATE: whether the guest ran; then the package */
#define PROXY_READ_LEN (256 << 10)
#define PROXY_POLL_MS 5
#define PROXY_QMP_LIMIT_MS 60000

enum proxy_stage {
    PROXY_SETUP,  /* a failure or a signal ends it, and nothing is lost */
    PROXY_LET_GO, /* the source's GO, the destination's READY: only the peers decide */
    PROXY_GONE,   /* GO was sent, or read */
    PROXY_RUNS,   /* RUNNING */
    PROXY_OVER,   /* the handles may be gone */
};

struct proxy_counts {
    _Atomic uint64_t stream_bytes;                      /* read */
    uint64_t tunnel_bytes, package_bytes;               /* of them forwarded */
    uint64_t pages_dropped, pages_passed;               /* of QEMU's own */
    _Atomic uint64_t pages_small, pages_small_here;     /* of blocks that its stream carries; passed */
    _Atomic uint64_t pages_precopied;                   /* likewise, of main memory, with precopy=1 */
    uint64_t requests, requests_taken;                  /* REQ_PAGES: all; of main memory */
};

struct proxy_map {
    void *at; /* NULL: not mapped here */
    int fd;
};

struct proxy {
    const struct proxy_options *o;
    const char *side;
    bool is_source;
    uint64_t begin_ns, pause_ns, run_ns;
    struct metrics *metrics; /* of --metrics-dir; NULL: none */
    uint64_t asked_ns;       /* when it was told the address */
    /* the QEMU */
    struct qmp *q;
    pthread_mutex_t qmp_lock; /* one command at a time */
    pid_t pid, child; /* child: the same, if this program started it; else 0 */
    bool was_running; /* the guest at the source, before */
    bool qemu_gone;   /* destination, under @lock: between READY and GO */
    struct proxy_keeper *keeper; /* source's; may be NULL */
    bool switching;   /* source: post-copy was asked for */
    bool has_device;   /* its QEMU: postcopy-device, until its package was loaded */
    bool cancel_races; /* its QEMU: with the switch */
    json_int_t old_bandwidth, old_postcopy_bandwidth, old_downtime_ms;
    bool has_bandwidth;           /* all three were changed */
    struct outside_block *blocks; /* main memory alone */
    unsigned n_blocks;
    struct proxy_map *maps; /* source: of each block */
    /* the engine; the other is NULL */
    struct ff_address *address;
    struct ff_source *source;
    struct ff_dest *dest;
    struct ff_tunnel *tunnel;
    unsigned reconnect_ms;
    /* the stream: used by the forwarding thread alone, at the destination under @feed_lock */
    struct stream *stream;
    struct proxy_small *small; /* as of the list of blocks */
    unsigned n_small;
    const struct stream_block *last;
    int last_main;
    uint64_t pass_pages; /* source, precopy=1: where the pass ends; 0: there is none */
    bool pass_over;
    uint8_t gathered[16 << 10]; /* destination: on its way to QEMU, between two units */
    size_t n_gathered;
    bool header_due;
    size_t package_head;
    uint64_t package_left;
    /* destination: whoever writes to its QEMU has it, and @stream, @small */
    pthread_mutex_t feed_lock;
    pthread_cond_t fed;
    bool finished;  /* its QEMU has the end of its stream; what still comes is thrown away */
    bool fed_last;
    /* the return path: used by the other thread alone */
    struct stream_return_reader reader;
    bool asked_small;
    int sock; /* to the QEMU; -1: not yet */
    _Atomic bool has_let_go; /* source: GO may have been sent */
    _Atomic bool has_shut;   /* source: QEMU has heard that its migration succeeded */
    _Atomic bool has_all;    /* the QEMU at the destination has said so */
    bool hurries;            /* source, the forwarding thread's: post-copy has no limit any more */
    _Atomic bool is_there;   /* source: the QEMU there has all, and has ended its migration */
    _Atomic uint64_t read_ns; /* source: when its stream last brought anything */
    int port; /* source: where the QEMU comes */
    bool listens;
    int stop_fd; /* readable: QMP's waits end */
    pthread_t forward_thread, back_thread, signal_thread, cont_thread, input_thread;
    pthread_t speed_thread; /* source */
    pthread_t finish_thread; /* destination */
    bool has_forward, has_back, has_signals, has_input, has_speed, has_finish;
    struct spawn virsh; /* source of a domain: the migration of libvirt's */
    struct proxy_counts counts; /* each by one thread; read at the end */
    /* under @lock */
    pthread_mutex_t lock;
    pthread_cond_t changed;
    enum proxy_stage stage;
    bool failed, interrupted;
    struct ff_error why, lost_why;
    bool broke;       /* destination: the link, after GO */
    bool held;        /* source of a domain: the stream is not read yet */
    bool passed;      /* source, precopy=1: QEMU has nearly sent all once, and is not read until post-copy */
    bool stops;       /* the threads of the stream end */
    bool drains;      /* source: nothing is forwarded any more */
    bool stream_over; /* EOF was read */
    bool blind;       /* nobody knows where the stream is */
    bool forward_ended;
    bool adopted;
    bool stream_lost; /* destination, after GO: QEMU will not have all pages of small blocks */
    void (*on_event)(struct proxy *p, const char *event, const json_t *fields);
    char *key;               /* of key_text_new(); NULL: none, or it was taken away */
    const char *status;      /* as query-migrate has it */
    char reason[400];
    json_int_t listens_at;   /* a port; 0: not yet */
    char not_started[32];    /* source: somebody knows that the destination never ran the guest */
    bool is_over, said_last; /* the status is the last one; a client has heard it */
    bool cont_done, cont_waits; /* waits: of the main thread, which has given up */
    int cont_rc;
    struct ff_error cont_why;
    /* the package, gathered at the source, handed on at the destination */
    uint8_t *package;
    size_t package_len, package_got;
    bool package_whole;  /* source: it has come; destination: STATE has */
    bool package_passed; /* destination: the QEMU has it */
};

/* What both sides have to be started with */
static inline const char *proxy_config(const struct proxy *p)
{
    return p->o->from_stream ? PROXY_CONFIG_STREAM
                               : PROXY_CONFIG;
}

/* --- proxy.c --- */

int proxy_open(struct proxy *p, const struct proxy_options *o, bool is_source,
               struct ff_error *err);
void proxy_close(struct proxy *p);

/* Nothing more comes from the QEMU; the destination of a move that has not ended hears so */
void proxy_stop_stream(struct proxy *p);

/* What has happened, for people or as JSON; @fields is taken, NULL: none */
void proxy_event(struct proxy *p, const char *name, json_t *fields);
/* The same with the reason */
void proxy_say_why(struct proxy *p, const char *name, const struct ff_error *why);
double proxy_ms(const struct proxy *p, uint64_t at_ns); /* since the begin */
void proxy_begins(struct proxy *p); /* it has the address: counted from here on */
void proxy_summary(struct proxy *p, int code);
void proxy_last_word(struct proxy *p, int code); /* the reason again, if there is one to give */

/* Any thread: as a signal does. -EBUSY: too late */
int proxy_interrupt(struct proxy *p, struct ff_error *why);

/* virsh does, which stood still: see domain.h */
void proxy_go_on(struct proxy *p);

void proxy_runs(struct proxy *p); /* the guest does, there */

/* Any thread: end the attempt. The first reason stays */
void proxy_fail(struct proxy *p, const struct ff_error *why);
/* The same unless @stage has come; which one there is */
enum proxy_stage proxy_fail_before(struct proxy *p, enum proxy_stage stage,
                                   const struct ff_error *why);
/* 0, or what proxy_fail() was told, or a signal */
int proxy_check(struct proxy *p, struct ff_error *err);
/* To @stage, unless it has failed: as proxy_check(). A signal ends nothing from PROXY_LET_GO on */
int proxy_set_stage(struct proxy *p, enum proxy_stage stage, struct ff_error *err);

int proxy_write(int sock, const void *data, size_t len, struct ff_error *err);
int proxy_start_threads(struct proxy *p, void *(*forward)(void *), void *(*back)(void *),
                        struct ff_error *err);

/* --- proxy_source_stream.c --- */

int proxy_source_stream(struct proxy *p, struct ff_error *err); /* makes it */
void *proxy_forward_source(void *opaque);
void *proxy_back_source(void *opaque);

/* --- proxy_dest_stream.c --- */

int proxy_dest_stream(struct proxy *p, struct ff_error *err); /* makes it */
void *proxy_forward_dest(void *opaque);
void *proxy_back_dest(void *opaque);
/* The guest runs here: when all is here its QEMU is to hear so, however much the source sends still */
int proxy_start_finish(struct proxy *p, struct ff_error *err);

/* --- proxy_input.c --- */


/* --- proxy_source_memory.c --- */

int proxy_new_source(struct proxy *p, struct ff_error *err); /* p->source, with p->blocks as its regions */

/* --- proxy_dest_memory.c --- */

/* A block whose address is known */
int proxy_add_dest_region(struct proxy *p, const struct outside_block *b, struct ff_error *err);
/* Take QEMU's userfaultfd: it opens and registers that while it reads the package */
int proxy_adopt_userfaultfd(struct proxy *p, struct ff_error *err);

/* Where the link goes */
int proxy_take_address(struct proxy *p, struct ff_error *err);

/* --- proxy_numbers.c --- */

/* What the engine counts; with --from-stream bytes of the stream's blocks */
void proxy_stats(struct proxy *p, struct ff_stats *st);
/* The same, by the names that query-migrate has for it */
json_t *proxy_numbers(struct proxy *p);

/* --- proxy_qemu.c --- */

/* qmp_command() to the QEMU, from any thread */
int proxy_qmp(struct proxy *p, const char *name, json_t *arguments, json_t **result,
              struct ff_error *err);
/* -EBUSY: others use it, for longer than a moment */
int proxy_try_qmp(struct proxy *p, const char *name, json_t *arguments, json_t **result,
                  struct ff_error *err);
int proxy_qemu_connect(struct proxy *p, struct ff_error *err);

/* Connect, refuse what cannot be moved, prepare post-copy, find main memory: none with --from-stream */
int proxy_qemu_look(struct proxy *p, struct ff_error *err);
/* Refuse what has capabilities that a proxy cannot follow */
int proxy_qemu_refuse(struct proxy *p, struct ff_error *err);
/* Source, before `migrate`: a first pass at full speed, for precopy=1. And its end: hardly anything more
 * before post-copy */
int proxy_qemu_pass(struct proxy *p, bool ends, struct ff_error *err);
/* Source: its post-copy, which was slow */
int proxy_qemu_full_speed(struct proxy *p, struct ff_error *err);
/* As it was before */
void proxy_qemu_restore(struct proxy *p);
/* Destination: tell it to wait for its migration, and not to run the guest when that has come */
int proxy_qemu_listen(struct proxy *p, struct ff_error *err);
/* Destination, GO has not come and never will: end it */
void proxy_qemu_end(struct proxy *p);
/* query-status */
int proxy_qemu_status(struct proxy *p, char out[32], bool *running, struct ff_error *err);
/* query-migrate: its status, "" for none, and the reason */
int proxy_qemu_migration(struct proxy *p, char out[32], struct ff_error *err);
/* @status is one of the words of @want, which blanks separate */
bool proxy_status_is_among(const char *status, const char *want);
/* Until query-migrate says one of @want: 0; -EREMOTEIO: one of @never */
int proxy_qemu_wait(struct proxy *p, const char *want, const char *never, int limit_ms,
                    struct ff_error *err);
/* Within a moment: a process that is killed closes its sockets first */
bool proxy_qemu_has_ended(const struct proxy *p);
/* Wait for `completed`. -EREMOTEIO: it says otherwise */
int proxy_qemu_completed(struct proxy *p, int limit_ms, struct ff_error *err);

/* --- proxy_back.c --- */

/* A thread: QEMU is not to wait for somebody who reads its stream. @opaque: struct proxy */
void *proxy_drain(void *opaque);
/* Source, GO was not sent: the guest goes on here. 0: it does, and has its disks */
int proxy_qemu_take_back(struct proxy *p, struct ff_error *err);
/* Until its stream is at its end */
int proxy_wait_stream_over(struct proxy *p, struct ff_error *err);
/* Source, just before GO: postcopy-device, where QEMU runs its guest again if its stream breaks, is over.
 * -EREMOTEIO */
int proxy_leave_device(struct proxy *p, struct ff_error *err);
/* Source, after GO, before QEMU's return path ends: it hears SHUT, if it has not. From 10.0 on one whose
 * stream is over and that hears nothing runs its guest again. Its stream is to be read on */
void proxy_never_here(struct proxy *p);
/* What has become of that: the program's exit code */
int proxy_say_back(struct proxy *p, int rc, const struct ff_error *why);

#endif
