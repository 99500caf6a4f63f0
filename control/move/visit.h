/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * visit.h - one visit of a guest to another host, as farfork visit sees it
 */
#ifndef FF_CONTROL_MOVE_VISIT_H
#define FF_CONTROL_MOVE_VISIT_H

#include "move.h"

/* A file, or a block device, that it has there while it works */
struct visit_data {
    const char *spec; /* the caller's */
    char *format, *path, *id;
    bool node, plugged; /* the QEMU there has it open; the guest has it: or may have */
    bool said;          /* that it could not be closed */
};

/* What a user says */
struct visit_options {
    const char *until;       /* a command here, whose end brings it home; NULL: a signal does */
    const char *home;        /* this host's address, which the other one reaches; NULL: found out */
    const struct strv *data; /* SPECs; borrowed */
    bool same_disks;         /* as move_way.same_disks */
    unsigned budget_mib;     /* what prefill brings there, at most; 0: nothing */
    const char *word;        /* of the guest that asked for it, at its port, perhaps ""; NULL: somebody else wants it */
};

struct visit {
    struct visit_options o;
    struct visit_data *data;
    size_t n_data;
    pid_t until_pid;      /* 0: it does not run */
    pid_t until_group;    /* its process group */
    bool until_tty;       /* which is in the foreground of this program's terminal */
    int until_fd;         /* readable: it has ended; -1: none */
    int until_code;       /* as a shell has it; < 0: it did not end, or did not run */
    bool until_asked;     /* it was told to end */
    bool wanted;          /* it is to come home */
    char *link_options;   /* of the link, both ways: without those of --fallback */
    bool gave_up;         /* the QEMU here never takes it back: it has said so */
    bool said_taking;     /* that it is being taken back */
    bool said_lost;       /* that it may be, once its host is known to be lost */
    uint64_t lost_until_ms; /* with --until: left there then, when it goes on; 0: its agent is heard */
    char *port_here;      /* the guest's port, of the QEMU made anew here; NULL: it is not home, or has none */
    char *asked;          /* the guest wants to go home: the word of that; NULL: it does not */
    bool signalled;       /* somebody here wanted it home, or not to go */
    enum move_outcome outcome; /* once it is over */
    uint64_t paused_ms;   /* since when there is no link; 0: there is one */
    bool said_paused;     /* that the link is broken */
    bool said_wait;       /* and that it cannot come home meanwhile */
    bool failed;          /* it could not work there: */
    char *failure;
    bool runs_here;       /* on the way back: it does again, and its memory follows */
    bool over;            /* m->outcome is decided, and not AWAY */
    unsigned tries;       /* to come home */
    char *address;        /* of this host, for the QEMU there */
    char had[32];         /* the guest's state there, before the last try; "": not known */
    double away_ms, coming_ms, here_ms, home_ms; /* when it got there, began to come, runs here, is complete; 0: not yet */
    double downtime_ms;   /* of the way back; < 0: not known */
    uint64_t back_bytes;  /* what came */
    char *touched;        /* what it has waited for there, before the last try; NULL: not known */
    struct move *home;    /* its way home, while there is one; */
    unsigned side;        /* the number there of who sends it; 0: nobody did yet */
    uint64_t prefill_bytes, fault_bytes; /* what came there, zeros apart */
    struct ff_error why;  /* the last try to come home failed */
};

/* visit.c. The options of the link, for both ways, to be freed: -EINVAL: what only the command may say */
int visit_link_options(const char *given, char **out, struct ff_error *why);
/* @v, zeroed, from what a user said; -EINVAL */
int visit_init(struct visit *v, const struct visit_options *o, struct ff_error *why);
void visit_free(struct visit *v);
/* Whether this guest can visit anybody, before anything is started */
int visit_check(struct move *m, struct ff_error *why);
/* It is AWAY: until it is home, or it is decided where else it is */
void visit_stay(struct move *m);

/* visit_home.c: this host's address, as the other one reaches it: before the guest goes */
int visit_find_address(struct move *m, struct ff_error *why);
/* One try to get it home. 0: it is, or m->visit->over; or it runs there as before */
int visit_come_home(struct move *m, struct ff_error *why);
char *visit_by_hand(const struct move *m); /* how a person brings it home; to be freed */

/* visit_attach.c: visit_come_home()'s try, once the guest has nothing there */
#define VISIT_BACK_QMP "1.back.qmp" /* a monitor of the QEMU there, for who sends it home */
int visit_attach_home(struct move *m, struct ff_error *why);
int visit_link_socket(const char *name, const char *to); /* the socket @to is at @name, too: 0, -errno */
void visit_attach_is_home(struct move *m); /* by another program, as the process beside the QEMU here says */

/* visit_data.c. Plug all of it in there; unplug it: -ETIMEDOUT, -EPERM: the guest keeps one */
int visit_data_parse(struct visit *v, struct ff_error *why);
int visit_data_plug(struct move *m, struct ff_error *why);
int visit_data_unplug(struct move *m, struct ff_error *why);
void visit_data_free(struct visit *v);

/* visit_learn.c: more options of the link for the QEMU there, or "", to be freed; what it touched on other visits, for the QEMU there, which listens: -ECANCELED, -EHOSTUNREACH, -ECHILD;
 * what it touched on this one: while it is there; kept for the QEMU here in which it is then. Notes say what failed */
char *visit_options_there(const struct move *m);
int visit_tell_touched(struct move *m, struct ff_error *why);
void visit_ask_touched(struct move *m);
void visit_keep_touched(struct move *m, pid_t pid);
/* visit_disks.c: --fallback go. It has overlays there, to be committed before it comes home; commit them, once the QEMU
 * here has given up: 0, or why one is left. What is left is named by notes, where the guest is not here as it went */
bool visit_commits(const struct move *m);
int visit_disks_commit(struct move *m, struct ff_error *why);
void visit_disks_say(struct move *m);

/* visit_until.c: its command. visit_until_over(): it has ended; end it: once by SIGTERM, then by SIGKILL */
int visit_until_start(struct move *m, struct ff_error *why);
bool visit_until_over(struct move *m);
void visit_until_end(struct move *m);

/* visit_port.c: the guest's port, where it has asked for its visit: m->guest_port. @argv is the QEMU's there: -ENOENT; @text, taken
 * over, is said; visit_port_hear(): it wants to go home, perhaps */
int visit_port_find(struct move *m, const struct strv *argv, struct ff_error *why);
int visit_port_say(struct move *m, char *text, struct ff_error *why);
void visit_port_hear(struct move *m);
#define VISIT_FAILED_HOME "the host could not bring this machine home; its log says why"

/* visit_serve.c: visits that the guest asks for */
struct visit_permit {
    char *alias, *host; /* HOST[=ADDRESS] */
};

struct visit_serve {
    const char *port; /* socket of the guest's virtio-serial port */
    struct visit_permit *permits; /* where it may go */
    size_t n_permits;
};

/* @spec is ALIAS=HOST[=ADDRESS]; -EINVAL, -EEXIST */
int visit_permit_add(struct visit_serve *s, const char *spec, struct ff_error *why);
void visit_permits_free(struct visit_serve *s);

/* Until the guest's QEMU ends, or a signal comes: 0; a visit that was interrupted, or left the guest somewhere else: its
 * exit code; EXIT_USAGE: there is no such port */
int visit_serve(const struct visit_serve *s, const struct session_options *o, const struct visit_options *v);

/* visit_show.c */
void visit_say(const struct move *m, const char *fmt, ...) FF_PRINTF(2, 3); /* on stderr */
bool visit_was_taken_back(const struct move *m); /* it is here, as it went */
void visit_print_text(const struct move *m, int code);
void visit_print_json(const struct move *m, int code);

#endif
