/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * model.h - the protocol of a move as a machine of states, to be searched in whole
 */
/**
 * DOC: Theory of Operation
 *
 * Purpose      every order in which two QEMUs, their links, whoever watches them and the faults
 *              below can act, from HELLO to DONE. One guest, two pages, one disk. It does not
 *              model bytes of messages, agents that feed each other (FEED), or a peer that lies. Of more than one move it models a visit: the way home in whole, and of
 *              the way out, which stands beside it, what return_model.c says.
 *
 * Picture      struct world                  every state: search.c
 *                 |  source_steps()          what the source does or gets
 *                 |  dest_steps()            what the destination does or gets
 *                 |  fault_steps()           links, crashes, hosts, time, agents and operators
 *                 |  return_steps()          of a visit: home serves, holds, takes back; its lease
 *                 v
 *              emit() -> the next worlds  -> rule_broken()?  guest_is_well()?  guest_lost()?
 *
 * States       the source's are those of enum stage in migrate/source_private.h, divided by the
 *              function that waits; the destination's are the functions of migrate/dest*.c that
 *              wait. Messages are enum ff_msg. names.c ties each name to the code: what is renamed
 *              there does not compile here.
 * Limits       what is done around the library when a guest is taken back (overlays, disks) has names
 *              of this file alone.
 */
#ifndef FF_TESTS_MODEL_MODEL_H
#define FF_TESTS_MODEL_MODEL_H

#include <stdbool.h>
#include <stdint.h>

#include "source_private.h"
#include "wire.h"

/* A message: its type, and what of its body matters */
#define MSG(type, kind) ((uint8_t)((type) | (kind) << 5))
#define MSG_TYPE(m) ((m)&31u)
#define MSG_KIND(m) ((m) >> 5)

enum resume_kind { RESUME_SERVE, RESUME_TAKEN_BACK };

/* What the source is about to do or waits for */
enum source_at {
    S_CONNECT,
    S_WAIT_WELCOME,
    S_PUBLISH,
    S_WAIT_WATCHED,
    S_PRECOPY,
    S_WAIT_PASSED,
    S_STOP,
    S_SEND_STATE,
    S_WAIT_READY,
    S_GO,
    S_WAIT_RUNNING,
    S_WAIT_DONE,
    S_COMPLETE,
    S_FAILED,     /* the guest goes on here */
    S_PAUSED,     /* postcopy-paused */
    S_ASKED,      /* RESUME was sent */
    S_TAKING,     /* TAKEN-BACK is written down; the fence comes */
    S_FENCED,     /* drop the overlays */
    S_DROPPED,    /* activate disks, run */
    S_TAKEN_BACK, /* the guest goes on here as of GO */
    S_DEAD,
    S_STATES,
};

enum dest_at {
    D_ACCEPT,
    D_START,
    D_RECV_STATE,
    D_PRECOPY,
    D_LOAD,
    D_WAIT_GO,
    D_LINGER,    /* the link broke where GO may have been under way */
    D_SEALED,    /* never takes GO any more */
    D_RUN,       /* GO was read: activate disks */
    D_ACTIVATED, /* start vCPUs */
    D_WAIT_DONE,
    D_PAUSED, /* postcopy-paused */
    D_WAIT_WITHDRAWN,
    D_COMPLETE,
    D_FAILED, /* ended by itself */
    D_DEAD,
    D_STATES,
};

enum page { PAGE_MISSING, PAGE_INFLIGHT, PAGE_PRESENT };
enum overlay { OVERLAY_NONE, OVERLAY_OPEN, OVERLAY_DROPPED, OVERLAY_COMMITTED };
enum bytes { BYTES_NONE, BYTES_ASKED, BYTES_COMING, BYTES_COMING_NEW };

/* One life of a link. The bytes of page 0 travel on queue FAULT, those of page 1 on PREFILL: beside
 * the control messages, and beside each other */
enum { LINKS = 6, QUEUE = 7, TO_DEST = 0, TO_SOURCE = 1, PAGES = 2, ALL_PAGES = (1 << PAGES) - 1 };
struct link_life {
    uint8_t s_open : 1, d_open : 1, cut : 1;
    uint8_t bytes[PAGES]; /* enum bytes */
    uint8_t n[2];
    uint8_t q[2][QUEUE];
};

/* Of a visit: home as the source of the way out. Whether it holds: enum hold */
enum out_at { OUT_SERVES, OUT_TAKING, OUT_RECORDED, OUT_FENCED, OUT_TAKEN_BACK, OUT_STATES };

#define LEASE_TICKS 2

struct world {
    struct link_life link[LINKS]; /* number e is epoch e + 1 */
    uint8_t n_links;
    uint8_t s_at, s_link, d_at, d_link;     /* links: 0 none, else the epoch */
    uint8_t d_epoch;                        /* the highest that was attached */
    uint8_t d_page[PAGES], overlay, broken; /* broken: enum rule */
    uint8_t s_lease, d_lease, d_ask; /* ticks left; ticks since the ask + 1, 0: none is open */
    uint8_t n_breaks, n_deaths, n_stalls;
    uint8_t s_shown, d_shown; /* accept.c: how much of what was observed has been explained */
    uint8_t via_shown;        /* accept.c: bits of actions that have to be a part */
    uint8_t s_runs : 1, s_disks : 1, s_keys : 1, s_stalled : 1;
    uint8_t s_gone : 1, s_done : 1, s_ran_on : 1, s_record : 1, s_again : 1;
    uint8_t s_version : PAGES, d_version : PAGES; /* a bit a page: written during the pass */
    uint8_t d_runs : 1, d_disks : 1, d_go : 1, d_ran : 1, d_record : 1;
    uint8_t d_stalled : 1, d_released : 1, d_fenced : 1, d_left : 1, told : 1, s_asked_once : 1;
    uint8_t d_bare : 1; /* RUNNING was answered; PUBLISH and KEYS of the new link have not come */
    /* A visit: the source is away, the destination is home; of the way out: */
    uint8_t o_at, o_hold, o_page, o_bytes; /* enum out_at, hold; page 1 away: enum page, bytes */
    uint8_t o_lease, o_away_lease;         /* ticks left, of home's and of away's */
    uint8_t n_tries, d_session;            /* returns that away, and home, began */
    uint8_t s_session;                     /* which of home's away said HELLO to */
    uint8_t o_is : 1, o_link : 1, o_given_up : 1, o_released : 1;
    uint8_t o_runs : 1;   /* home runs the guest as of GO */
    uint8_t o_torn : 1;   /* page 0 was discarded at home */
    uint8_t o_loaded : 1; /* devices were loaded over page 1 there */
};

enum fence { FENCE_NONE, FENCE_KILL, FENCE_STORAGE };

struct config {
    const char *name;
    bool precopy, push;
    bool again;    /* an operator migrates once more after a failure, to the same destination */
    bool resume;   /* NEW and RESUME, NOT-STARTED and so on */
    bool agent;    /* somebody reaps the destination, and can reach the source's side */
    bool record;   /* the destination writes down that it may run, before it does: until-go */
    bool fallback; /* fallback=go */
    bool returns;  /* the guest visits, and may come home: by it the destination */
    bool lease;    /* fallback=go of the way out */
    bool wrote;    /* the guest wrote to page 0 meanwhile */
    enum fence fence;
    uint8_t breaks, deaths, stalls; /* at most */
    uint32_t losses;                /* that must be reachable, and no others: bits of enum loss */
};

/* Guards that can be taken away */
enum mutant {
    M_NONE,
    M_RUNS_UNASKED,
    M_NO_SEAL,
    M_OLD_LINK_KEPT,
    M_OLD_EPOCH_TAKEN,
    M_GO_UNCLEAR,
    M_CANCEL_AFTER_GO,
    M_RUN_BEFORE_GO,
    M_LATE_GO,
    M_GO_UNREADY,
    M_CONT_FROZEN,
    M_READ_EARLY,
    M_DONE_EARLY,
    M_PAGER_ENDS,
    M_LINGER_LEAVES,
    M_AGENT_GUESSES,
    M_RECORD_LATE,
    M_KEYS_KEPT,
    M_ASKS_ONCE,
    M_PORT_CLOSED,
    M_COMPLETE_LEAVES,
    M_RUNNING_DENIED,
    M_LOG_READ_EARLY,
    M_DIRTY_KEPT,
    M_BYTES_LOST,
    M_LEASE_IGNORED,
    M_LEASE_NO_MARGIN,
    M_STALL_UNFENCED,
    M_LEASE_FROM_RECEIPT,
    M_LEASE_NOT_AWAITED,
    M_FENCE_FAILED,
    M_DROP_FIRST,
    M_ACTIVATE_FIRST,
    M_NO_OVERLAY,
    M_COMMIT_AT_DONE,
    M_NO_RECORD_HERE,
    M_TAKE_AFTER_DONE,
    M_SOURCE_DEATH_UNTOLD,
    M_GIVEN_UP_TAKEN,
    M_TAKEN_HELD,
    M_HOLD_SERVES,
    M_HOLD_CONNECTS,
    M_NOT_PUT_BACK,
    M_NEVER_LET_GO,
    M_RELEASED_EARLY,
    M_RETURN_UNLEASED,
    M_LOG_EMPTIED,
    M_OUT_LEASE_NOT_AWAITED,
    M_LET_GO_UNASKED,
    M_HOME_DEATH_UNTOLD,
    MUTANTS,
};

enum rule {
    RULE_KEPT,
    TWO_RUNNERS,
    TWO_DISKS,
    RAN_THERE,    /* the source runs on from GO, the destination has run since */
    RAN_HERE,     /* the destination runs, the source took the guest back */
    OLD_EPOCH,    /* bytes of an old link were taken */
    WRONG_BYTES,  /* a page is not as it was at GO */
    ZEROS_SHOWN,  /* the pager has ended, pages are missing, the guest runs */
    KEYS_LEFT,    /* memory can be read that is no image any more */
    OVERLAY_LOST, /* dropped under a guest that writes */
    BASE_CHANGED, /* committed, or written to, and the guest as of GO runs on it */
    NOT_WHOLE,    /* home runs the guest as of GO, of memory that was given up */
    NO_RUNNER,    /* nobody runs it, nobody will, and no loss explains why */
    RULES,
};

/* A visit: what some way has to lead to */
enum visit_end {
    VISIT_CAME_HOME,
    VISIT_CAME_LATER, /* by the second return */
    VISIT_WENT_ON,    /* away, when a return had failed after home gave up */
    VISIT_HELD,       /* home holds, and away has heard READY */
    VISIT_TAKEN_BACK,
    VISIT_TAKEN_MEANWHILE, /* while a return was under way */
    VISIT_FREED,           /* home died, and away needs no lease any more */
    VISIT_UNLEASED,
    VISIT_ENDS,
};

enum loss {
    LOSS_NONE,
    LOSS_SOURCE_DIED,  /* before GO, as without a move */
    LOSS_GO_BROKEN,    /* the link broke at GO, and nobody asks: no resume */
    LOSS_LINK_BROKEN,  /* it broke after GO: no resume */
    LOSS_PAGES,        /* the source died, and pages are missing */
    LOSS_DEST_DIED,    /* it ran there: no fallback */
    LOSS_DEST_UNKNOWN, /* the destination died after GO was sent; nobody knows whether it ran */
    LOSS_BOTH_DIED,
    LOSS_TAKING_DIED, /* the source died after it wrote TAKEN-BACK */
    LOSS_AWAY_DIED,   /* a visit: it ran there, no fallback */
    LOSS_GIVEN_UP,    /* a visit: it died there when home had given up its image */
    LOSSES,
};

/* STEP: happens by itself in the end; CHOICE: somebody may want it; FAULT: bounded */
enum step_kind { STEP, CHOICE, FAULT };
enum actor { AT_SOURCE, AT_DEST, AT_LINK, AT_HOST };
struct step {
    enum step_kind kind;
    enum actor actor;
    const char *what;
    uint8_t sent[QUEUE], n_sent; /* on the actor's link */
    uint8_t got;
    uint8_t epoch; /* of the link; 0: none */
};

struct gen {
    const struct config *c;
    enum mutant mutant;
    const struct world *from;
    struct world w; /* the next one, while it is made */
    struct step step;
    void (*take)(void *opaque, const struct world *w, const struct step *step);
    void *opaque;
};

/* --- gen.c: what all steps are made of --- */
struct world *gen_begin(struct gen *g, enum step_kind kind, enum actor actor, const char *what);
void gen_emit(struct gen *g);
bool world_has_pages(const struct world *w);
bool gen_lacks(const struct gen *g, enum mutant m); /* this guard was taken away */
struct link_life *world_link(struct world *w, unsigned epoch);
void gen_send(struct gen *g, unsigned epoch, int dir, uint8_t msg);
uint8_t world_front(const struct world *w, unsigned epoch, int dir); /* 0: nothing */
uint8_t gen_get(struct gen *g, unsigned epoch, int dir);
unsigned gen_connect(struct gen *g, uint8_t hello); /* the new epoch; the destination listens */
void link_close(struct world *w, unsigned epoch, int who);
void dest_ends(struct world *w, enum dest_at at); /* its links with it; @at: D_FAILED or D_DEAD */
bool dest_listens(const struct gen *g);
bool world_can_connect(const struct world *w);

/* --- who does what --- */
void source_steps(struct gen *g);
void source_broken_steps(struct gen *g); /* from GO on, when the link has broken */
void source_runs_on(struct world *w, const struct gen *g);
void dest_steps(struct gen *g);
void dest_broken_steps(struct gen *g);
void fault_steps(struct gen *g);

/* --- return_model.c: a visit --- */
void return_start(const struct config *c, struct world *w);
void return_steps(struct gen *g);
void return_settle(struct gen *g); /* after each step */
bool return_hold(struct gen *g);   /* home, before memory changes; false: refused */
void return_home_dies(struct world *w);
bool return_may_run(const struct world *w, const struct config *c); /* away, by its lease */
void model_start(const struct config *c, struct world *w);
void model_steps(struct gen *g);

/* --- rules.c --- */
enum rule rule_broken(const struct world *w, const struct config *c);
bool guest_is_well(const struct world *w, const struct config *c);
enum loss guest_lost(const struct world *w, const struct config *c);

/* --- return_rules.c: for a visit --- */
enum rule return_rule(const struct world *w);
bool visit_is_well(const struct world *w, const struct config *c);
enum loss visit_lost(const struct world *w, const struct config *c);
/* Bits of what a visit has come to, by enum visit_end */
unsigned visit_seen(const struct world *w);
bool go_can_come(const struct world *w);
bool pages_can_come(const struct world *w);

/* --- names.c --- */
const char *out_name(unsigned at);
const char *source_name(unsigned at);
const char *dest_name(unsigned at);
const char *rule_name(unsigned rule);
const char *loss_name(unsigned loss);
void msg_text(uint8_t msg, char *out, unsigned len);
int names_check(void); /* 0: as in the code */

/* --- search.c --- */
struct search_result {
    uint64_t states, edges, steps_deep;
    double runs; /* different orders of at most steps_deep actions */
    enum rule rule;
    uint32_t losses;
    uint64_t loss_states[LOSSES];
    unsigned loss_depth[LOSSES];
    uint64_t messages_seen; /* bits of types that were received */
    uint32_t source_seen, dest_seen;
    uint32_t bad; /* state in which the rule broke */
};
struct search;
struct search *search_new(void);
void search_run(struct search *s, const struct config *c, enum mutant m, bool all,
                struct search_result *out);
/* The steps of a shortest way to a state */
void search_walk(struct search *s, const struct config *c, enum mutant m, uint32_t at,
                 void (*fn)(void *opaque, const struct step *step, const struct world *w),
                 void *opaque);
void search_trace(struct search *s, const struct config *c, enum mutant m, uint32_t at);
const struct world *search_world(const struct search *s, uint32_t at);
uint32_t search_loss_at(const struct search *s, enum loss l);
/* Take only steps for which @step is true; it may change the world. Such a search judges nothing */
void search_filter(struct search *s,
                   bool (*step)(void *opaque, struct world *w, const struct step *step),
                   void *opaque);
/* The first state for which @is is true; UINT32_MAX: none */
uint32_t search_find(const struct search *s, bool (*is)(void *opaque, const struct world *w),
                     void *opaque);
void search_free(struct search *s);

#endif
