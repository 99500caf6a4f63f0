/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * move.h - one move, as farfork move sees it
 */
#ifndef FF_CONTROL_MOVE_MOVE_H
#define FF_CONTROL_MOVE_MOVE_H

#include <string.h>

#include "disks.h"
#include "overlay_records.h"
#include "session.h"

#define UNTIL_GO "1.until-go" /* in lasting of the host: it says whether anything ran there */

/* Where the guest is */
enum move_outcome {
    MOVE_HERE,    /* it is at the source, running or paused; nothing ran there */
    MOVE_THERE,   /* there, with all of its memory */
    MOVE_FOLLOWS, /* there; its memory still comes from the source, which has to stay */
    MOVE_BROKEN,  /* there, until it touches memory that will not come */
    MOVE_LOST,
    MOVE_ENDED,   /* it has shut itself down there */
    MOVE_UNCLEAR, /* it cannot be found out from here */
    MOVE_AWAY,    /* a visit: it runs there, and its memory comes from the source, which it is to return to */
    MOVE_HOME,    /* a visit: it is here again, with all of its memory */
    MOVE_UNTOUCHED /* nothing was started and nobody was asked to send it: wherever it is, it is there still */
};

/* --fallback go: the guest may be taken back until all of it is there */
struct move_fallback {
    bool go;
    unsigned lease_s;
    const char *fence, *record, *overlays; /* record: NULL: a default */
};

struct visit;
struct promote;

enum move_via { VIA_ATTACH, VIA_TRANSPORT };
struct move_way {
    enum move_via via;
    bool same_disks;  /* the images there are not looked at: the operator knows */
    const char *tpm; /* socket of an swtpm there; NULL: none */
    bool keep_source; /* the QEMU here is not quit */
    struct strv unplug, plug; /* ids here, what -device takes there */
    struct visit *visit;      /* farfork visit; NULL: it moves */
    struct promote *promote;  /* farfork promote, likewise */
};

struct move_device;

struct move {
    struct session s; /* one host; two children: the QEMU there, and with VIA_ATTACH the process beside it */
    struct visit *visit; /* the caller's; NULL: it moves for good */
    struct promote *promote; /* the caller's; NULL: it takes nobody's place */
    enum move_via via;
    bool no_programs;      /* the agent is without its filter for our own sake, not since its user vouches for the command line */
    const char *return_of; /* it is a visit's way home by attaching: the monitor of who moved it away; NULL: it is none */
    bool keep_source, same_disks;
    char *starter;     /* who acts on the end of the QEMU here, which is kept for that; NULL: nobody */
    const char *tpm;
    const struct strv *unplug; /* borrowed */
    struct strv plug;     /* what -device takes there */
    struct move_device *devices; /* that the guest is to let go */
    size_t n_devices, n_plugged;
    bool plugged;         /* it was tried there */
    pid_t side_pid;   /* of the process beside the QEMU here; 0: none, or it has been reaped */
    char *side_dir, *side_qmp;
    struct strv argv;     /* the parent's, with the images that its disks have now */
    struct strv argv_home; /* of a visit with --fallback go: the same without overlays; else none */
    json_t *images;        /* that its disks had then */
    json_t *files;         /* names of all files that its images are in, but for firmware */
    json_t *machine;       /* move_same.c: what its QEMU here said of it */
    struct overlay_owner owner; /* of the parent's overlays, where it is a child; until they are
                                 * handed over */
    char genid[40];        /* its generation ID, which it keeps; "": it has none */
    bool was_running;
    char *guest_port;      /* socket of its virtio-serial port there; NULL: none, or nobody asks */
    json_int_t asked;      /* number of the last command for the QEMU there */
    unsigned port;         /* where it listens */
    bool started;          /* something of it was: the agent, and what comes after */
    bool sent;             /* `migrate` was, and not refused: the source says who has the guest */
    bool begun;            /* the source took it: its `completed` is of this migration */
    bool cancelling, switched;
    bool runs_there;       /* the destination has told the source so */
    bool handed;           /* move_hand_over() was tried then */
    uint64_t told_ms;      /* when the source was told that nothing ran there; 0: it was not */
    bool told;             /* ... and it took that */
    bool end_there;        /* the QEMU there is of no use to anybody */
    uint64_t look_ms;      /* when to look again what the lists there say */
    uint64_t until_ms;     /* when the source stops looking for another link; 0: it has one */
    struct move_fallback back; /* its strings are the caller's */
    char *record, *overlays; /* of back */
    struct disks *plan;    /* with back.go: of its disks; or NULL */
    struct strv made;      /* overlays on them */
    uint64_t taking_ms;    /* when the source was told to take it back; 0: it was not */
    uint64_t not_taking_ms; /* since when an older source says no more than that it does not; 0: not so */
    bool refused;          /* it said no to that, or nothing, since it lost its link */
    uint64_t lost_ms;      /* since when it has no link and its agent is not heard; 0: not so */
    enum move_outcome outcome;
    char here[32];         /* MOVE_HERE: what its QEMU says of it, running or paused */
    double begin_ms, listening_ms, ready_ms, sent_ms, switched_ms, completed_ms; /* 0: not yet */
    /* what the source said last */
    char status[32], link[16];
    uint64_t total_bytes, present_bytes, passed_bytes, faults; /* passed: by precopy=1 */
    uint64_t breaks, again_bytes;
    double paused_ms;
    double fault_p99_ms;
    double downtime_ms; /* < 0: not known */
};

#define MOVE_EXIT_HERE 1
#define MOVE_EXIT_TROUBLE 3

/* move.c: the whole move, or visit; 0, MOVE_EXIT_HERE, 2 (usage), MOVE_EXIT_TROUBLE */
int move_run(const struct session_options *o, const struct move_fallback *back,
             const struct move_way *way, const char *host);

void move_agent_options(const struct session *s, const struct host *h, struct strv *w);
const char *move_outcome_name(enum move_outcome o);

/* move_parent.c: connect, refuse what cannot be moved, find out its command line */
int move_find_parent(struct move *m, struct ff_error *why);
/* Whether its disks are those that the QEMU there was started with: before `migrate` */
int move_check_disks(struct move *m, struct ff_error *why);
int move_quit_parent(struct move *m, struct ff_error *why);

/* A move that came to nothing: MOVE_HERE stays only where QMP says now that the guest is here and
 * that nobody else moves it; else it is MOVE_UNTOUCHED, or MOVE_UNCLEAR once something was started */
void move_find_here(struct move *m);

/* move_starter.c. -EBUSY: a unit starts its QEMU again; then, once the guest is there, end that QEMU or keep it */
int move_check_starter(struct move *m, struct ff_error *why);
void move_end_source(struct move *m);

/* move_ask.c. To the QEMU there, or to the process beside it while there is one, which passes on what it does
 * not know. -EAGAIN: its socket is not there yet; -EREMOTEIO: it is refused; -ENODATA: it was asked, and nobody knows whether
 * it was done */
int move_ask(struct move *m, const char *execute, json_t *arguments, json_t **result,
             struct ff_error *why);
/* Likewise of the QEMU itself, what may take as long as --timeout */
int move_ask_long(struct move *m, const char *execute, json_t *arguments, json_t **result,
                  struct ff_error *why);
/* Likewise of one child, perhaps before its socket is there: that is waited for. @execute NULL: give
 * it the key */
int move_ask_child(struct move *m, unsigned child, const char *execute, json_t *arguments, json_t **result,
                   struct ff_error *why);
int move_ask_first(struct move *m, unsigned child, const char *execute, json_t **result,
                   struct ff_error *why);
/* Neither the agent nor the QEMU there has ended, nor the process beside it before `migrate`. -EHOSTUNREACH,
 * -ECHILD */
int move_check_there(struct move *m, struct ff_error *why);
/* Likewise, in a wait for @what; before `migrate` Ctrl-C ends it, too */
int move_check_wait(struct move *m, uint64_t end_ms, const char *what, struct ff_error *why);
int move_wait_answer(struct move *m, const char *event, const char *what, struct ff_error *why);
void move_forget_answer(struct move *m); /* of an earlier question */
int move_limit_ms(const struct move *m);
#define MOVE_TURN_MS 50

/* move_there.c: start its QEMU there, until it listens and its agent keeps it */
int move_check_argv(struct move *m, struct ff_error *why);
int move_start(struct move *m, struct ff_error *why);
void move_let_go(struct move *m);
/* What the guest owned here it owns there: once it is there. Whether nothing is left to hand
 * over */
bool move_hand_over(struct move *m, struct ff_error *why);

/* move_files.c: that the agent there sees the files that are here, by their names. -ESTALE */
int move_check_files(struct move *m, struct ff_error *why);

/* move_attach.c: a process beside each QEMU. The one there, before it is asked anything; and the one here, which answers
 * m->s.qmp from then on, until it has ended */
int move_attach_there(struct move *m, struct ff_error *why);
int move_attach_here(struct move *m, struct ff_error *why);
void move_attach_say_sides(struct move *m); /* what each QEMU says, as a note */
void move_attach_drop(struct move *m); /* nothing was sent: the one here is to end */
bool move_attach_has_ended(struct move *m, struct ff_error *why); /* and its last words */
void move_attach_over(struct move *m); /* it has said all, and ends: m->s.qmp is the QEMU's again */

/* move_devices.c. What disks have in them, by @block of query-block: [[name, device, image]...], to be released: without
 * those of devices that the guest is to let go, or of the device @only */
json_t *move_images(const struct move *m, const json_t *block, const char *only);
/* Devices that the guest does not take along: move_devices_plan(): off its command line, before session_add_plugged();
 * move_devices_unplug(): once the QEMU there listens. -EPERM, -ETIMEDOUT: the guest keeps one. move_devices_back(): the
 * guest is here after all; move_devices_plug(): it runs there. Notes say what failed */
int move_devices_plan(struct move *m, struct ff_error *why);
int move_devices_unplug(struct move *m, struct ff_error *why);
void move_devices_back(struct move *m);
void move_devices_plug(struct move *m);
size_t move_devices_out(const struct move *m); /* that the guest has let go, and is without */
void move_devices_say(struct move *m); /* notes, where it is not known to be here, nor to have all that it gets there */
void move_devices_free(struct move *m);

/* move_follow.c: the migration, from `migrate` on; fills @m->outcome and @m->s.why. A visit: until it is AWAY */
void move_guest(struct move *m);
/* One look at the source; true: it is decided where the guest is. A visit's `completed` is not looked at */
bool move_follow_turn(struct move *m);

/* move_where.c: ask the destination until it is known who has the guest, or the time is over. @why_here: what the source
 * said last */
void move_ask_until_clear(struct move *m, const char *why_here);
void move_end_shut_down(struct move *m); /* it had not all of its memory: that does not matter any more */
bool move_side_there_has_ended(struct move *m); /* the process beside the QEMU there, where there was one */

/* move_look.c: with an agent that is lost: whether its QEMU never ran, and never will. @last: look
 * now, and not again */
void move_look(struct move *m, bool last);

/* move_same.c: the QEMU there, which runs by now, has the same CPUs and devices as the one here, and
 * the same flags of its CPUs: before anything is sent. -ENOTSUP */
int move_check_same(struct move *m, struct ff_error *why);
int move_note_machine(struct move *m, struct ff_error *why); /* of the one here, before that */

/* move_fallback.c. The options of the link, with those of --fallback, to be freed */
int move_fallback_options(struct move *m, const char *given, char **out, struct ff_error *why);
/* --fallback go: its command line with overlays for its disks. The overlays, if there are any:
 * made; dropped, once nothing uses them; kept, where it is not known whose they are; or committed,
 * once the guest is there. Notes say what is left */
int move_fallback_argv(struct move *m, const struct disks_input *in, struct ff_error *why);
int move_fallback_make(struct move *m, struct ff_error *why);
void move_fallback_drop(struct move *m);
void move_fallback_keep(struct move *m);
/* The source has no link: is the QEMU there lost? Then tell the source to take its guest back;
 * whether it does, or is about to. @info is query-migrate's after that: true: it failed */
bool move_take_back(struct move *m);
bool move_may_have_shut_down(struct move *m); /* its QEMU has ended as if it had, and nobody knows more */
bool move_take_back_failed(struct move *m, const json_t *info);
void move_end_not_taken_back(struct move *m, const json_t *info);
void move_end_taking(struct move *m); /* by a signal: it goes on without this program */
void move_fallback_free(struct move *m);

/* move_commit.c */
void move_fallback_commit(struct move *m);
int move_commit_one(struct move *m, const char *file, struct ff_error *why); /* and remove it */

/* move_metrics.c: --metrics-dir: what is known before a move, and after it */
struct metrics *move_metrics_begin(const struct move *m);
void move_metrics_end(const struct move *m, struct metrics *metrics); /* taken over */

/* move_show.c */
void move_end_with(struct move *m, enum move_outcome o, const char *fmt, ...) FF_PRINTF(3, 4);
void move_show(struct move *m, bool last);
void move_print_text(const struct move *m, int code);
json_t *move_json(const struct move *m, int code);
void move_put_json(json_t *o); /* on stdout; taken over */

static inline struct vm *move_child(struct move *m)
{
    return &m->s.vms[0];
}

/* The process beside it, if there is one */
static inline struct vm *move_side(struct move *m)
{
    return &m->s.vms[1];
}

static inline bool move_is(const char *status, const char *a)
{
    return !strcmp(status, a);
}

static inline bool move_is_over_here(const char *status)
{
    return move_is(status, "failed") || move_is(status, "cancelled");
}

/* Of a guest as this one was before the move */
static inline const char *move_status(const struct move *m)
{
    return m->was_running ? "running" : "paused";
}

/* Milliseconds between two moments; < 0: one of them was not reached */
static inline double move_between(double from, double to)
{
    return from > 0 && to > 0 ? to - from : -1;
}

static inline struct host *move_host(struct move *m)
{
    return &m->s.hosts[0];
}

#endif
