/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * family.h - a source, an agent and its children: processes on this host
 */
/**
 * DOC: Theory of Operation
 *
 * Picture      test's process              agent's process          a process each child
 *              (loop: agent's thread)      ff_agent_*()             ff_child_*(), threads that
 *              source's stages                                      read every byte, and write
 *                                                                   to the same places
 *              struct family is shared memory: what one did, and what it may do next
 *
 * Threads      every process is forked before its parent has threads.
 * Invariants   checked by every child: each byte is the image's or its own, always; zeros in
 *              place of content are named.
 */
#ifndef FF_TESTS_LOOP_FAMILY_H
#define FF_TESTS_LOOP_FAMILY_H

#include "farfork-clone.h"
#include "loop.h"

#define CHILDREN_MAX 50
#define NEVER_RAN 6 /* how a child ends that loaded an image which was taken back */

enum when { AT_ONCE, WHEN_HERE, WHEN_COMPLETE };

struct family_child {
    /* what to do */
    enum when when;
    unsigned later_us; /* than that */
    bool only_peek;    /* one thread reads one missing byte, once all such children run */
    uint64_t peek_at;  /* of the first cell with content from this one on; 0: 7 */
    const char *config;
    /* what happened */
    pid_t pid;
    atomic_bool asked, attached, may_start, touched, verified, done, may_peek, peeked;
    atomic_int rc, peek_tid; /* of ff_child_attach(), then of ff_child_wait_done() */
    char error[764];
};

struct family {
    /* what to do; zero is a sensible default for each */
    unsigned n_children;
    bool passed;         /* address "unix": the link comes through the agent's socket */
    uint64_t limit;      /* of ff_agent_limit(); 0: none */
    bool loop;           /* the link is the one in memory, the agent a thread of the test */
    const char *options; /* of the agent's address */
    const char *faults;  /* armed in the agent's process */
    enum memory memory;  /* of the source's regions that have a file, and the children's pages */
    bool lend;           /* the first region of the source is a memfd, lent */
    bool lend_all;
    bool hand_over;      /* all of the image at once, what is not lent copied; and no link */
    unsigned together;   /* as many children are to go on together */
    bool resumes;        /* a link that breaks after GO is followed by another */
    bool late_answer;    /* the agent tells a source that does not know, once the image is complete */
    int await_feed_ms;   /* of ff_agent_await_feed() */
    const char *first;   /* of ff_agent_first() */
    const char *older;   /* of ff_agent_older(): the path of another family; NULL: none */
    struct ff_group *group; /* that the source sends to, too; NULL: none */
    atomic_uint feed_to; /* the agent is to feed the one at that port; then 0 */
    bool last_later;     /* nobody touches the last cell with content before family_last() */
    unsigned n_regions;  /* default 2: 1500, 501 cells */
    uint64_t cells[REGIONS_MAX];
    struct family_child child[CHILDREN_MAX];

    /* what happened */
    char dir[64], path[80];
    atomic_uint port;
    atomic_bool may_cancel; /* the agent is to give up whatever it waits for */
    atomic_bool listens, here, ended, may_end, children_may_end, late_may_start, last_may_come;
    atomic_int agent_rc;
    char agent_error[764];
    struct ff_agent_stats stats; /* once ended is set; so is what ff_agent_working_set() says: */
    char touched[65536];
    atomic_ulong faults_so_far, children_so_far, present_so_far, fed_so_far, same_so_far, group_so_far;
    atomic_uint events[FF_CHILD_LOST + 1]; /* enum ff_child_event */
    atomic_uint pauses, ends_of_pauses;
    atomic_uint misfed; /* so often another agent gave it what the source does not have */
    atomic_uint unfed;  /* so often it could not feed another one */
    pid_t agent_pid;
    uint64_t n_cells;
    struct area area[REGIONS_MAX]; /* the source's */

    struct ff_source *source;
    struct ff_agent *agent; /* in its process */
    struct ff_link *to_agent;
    pthread_t agent_thread;
    int source_rc;
    unsigned breaks; /* that the source came back from */
    struct ff_error source_err;
    enum stage source_stage;
};

/* Shared between processes; then set what it should do */
struct family *family_new(void);

/* Fork the agent and its children, connect; nothing has threads before. family_fork(): the first half,
 * for who has several families, whose processes are not to inherit each other's sources */
void family_start(struct family *f);
void family_fork(struct family *f);

/* The source's stages, until @last is done or one fails */
void family_source(struct family *f, enum stage last);

/* Without prefill the image is complete only after this: until then a child whose thread was not
 * woken waits for ever, and so does this, up to its limit */
void family_last(struct family *f);
uint64_t family_last_cell(const struct family *f);

/* Let the agent and all children end: they must, well; frees all */
void family_must_succeed(struct family *f);

/* The process must end with this status, as waitpid(2) has it, soon */
void family_reap(pid_t pid, int status);
void family_free(struct family *f);

/* Wait until a counter is at least @n */
#define wait_count(counter, n)                                                              \
    do {                                                                                    \
        uint64_t end_ = ff_now_ns() + 30000000000ull;                                       \
        while (atomic_load(&(counter)) < (n) && ff_now_ns() < end_)                         \
            usleep(1000);                                                                   \
        must(atomic_load(&(counter)) >= (n));                                               \
    } while (0)

#endif
