/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * loop.h - whole moves in one process: memory of every kind, threads that touch it, stages
 */
/**
 * DOC: Theory of Operation
 *
 * Purpose      source and destination of the library in one process, over the loop link or
 *              tcp on 127.0.0.1. A "guest" is a number of threads that read and write.
 *
 * Picture      main thread: destination's stages      thread: source's stages
 *              touchers, from D_START on ------------ every byte is known beforehand
 *
 *              image: cells of 4096 bytes, counted over all regions. A cell is zeros or
 *              | its number 8 | bytes with a prime period ... | one word a toucher |
 *
 * Threads      each test runs in a child process of its own: what hangs is killed, and a
 *              thread that must stay blocked in a fault for ever does not get in the way.
 *              hook() is called in the thread of the side whose stage it is.
 * Invariants   checked after every move, whatever happened: the destination never runs
 *              unless the source had let go; a side that failed says why.
 * Limits       a test that takes longer than its limit fails. Under a sanitizer images are
 *              a tenth, limits are five times as large.
 */
#ifndef FF_TESTS_LOOP_H
#define FF_TESTS_LOOP_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "error.h"
#include "farfork.h"
#include "link.h"
#include "uffd.h"

#if defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define UNDER_SANITIZER 1
#endif
#endif
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define UNDER_SANITIZER 1
#endif
#ifndef UNDER_SANITIZER
#define UNDER_SANITIZER 0
#endif

/* --- the harness --- */

struct loop_test {
    const char *name;
    void (*fn)(void);
    unsigned limit_s; /* 0: 20 */
};

/* Run all, or those whose names contain one of the arguments; the exit code. @setup (may be
 * NULL) runs once before, in the parent: what it maps, every child sees. */
int loop_main(int argc, char **argv, void (*setup)(void), const struct loop_test *tests, size_t n);

/* End the test, from any thread */
__attribute__((format(printf, 3, 4))) _Noreturn void loop_fail(const char *file, int line,
                                                               const char *fmt, ...);
__attribute__((format(printf, 1, 2))) _Noreturn void loop_skip(const char *fmt, ...);

#define must(cond)                                                                          \
    do {                                                                                    \
        if (!(cond))                                                                        \
            loop_fail(__FILE__, __LINE__, "%s", #cond);                                     \
    } while (0)

#define must_ok(call, err)                                                                  \
    do {                                                                                    \
        int rc_ = (call);                                                                   \
        if (rc_)                                                                            \
            loop_fail(__FILE__, __LINE__, "%s: %d: %s", #call, rc_, (err).text);            \
    } while (0)

/* Arm these fault points (failpoint.h), before any thread starts */
void loop_arm(const char *faults);

/* What this kernel can */
const struct ff_uffd_probe *loop_kernel(void);

/* In the lab everything is emulated, and takes ten times as long */
bool loop_in_lab(void);
#define LAB_PATIENCE (loop_in_lab() ? 4u : 1u)

/* Wait until *@flag, @limit_ms at most; false: it was not */
bool wait_flag(const atomic_bool *flag, int limit_ms);

/* Is thread @tid of @pid asleep? */
bool thread_asleep(pid_t pid, int tid);

/* A key in a file of this test's process, and it is gone again */
#define LOOP_KEY "5f3c0e9d6b2a48f1c7e6d5b4a39281706f5e4d3c2b1a09f8e7d6c5b4a3928170\n"
const char *loop_key_file(void);
void loop_remove_key(void);

/* A process of its own, which ends with this one: its pid */
int child_start(void (*fn)(void *), void *arg);

/* Its exit status; -1: it took longer than @limit_s and was killed */
int child_wait(int pid, unsigned limit_s);

/* mkdtemp(3): what the test leaves there is removed after it, with the folder */
char *loop_mkdtemp(char *path);

/* --- memory --- */

#define CELL 4096u
#define CELL_WORDS 8u /* at its end, one for each toucher */
#define REGIONS_MAX 8

enum memory {
    MEM_ANON,          /* 4 KiB pages */
    MEM_ANON_THP,      /* transparent huge pages permitted */
    MEM_MEMFD,         /* shared */
    MEM_MEMFD_PRIVATE, /* a private mapping of a file */
    MEM_HUGETLB,       /* shared, a memfd of 2 MiB pages */
    MEM_HUGETLB_ANON,  /* private, no file */
};

struct area {
    uint8_t *host;
    uint64_t len_bytes;
    uint32_t psize;
    int fd; /* as struct ff_region has it */
};

void area_new(struct area *a, enum memory kind, uint64_t len_bytes);

/* Fill an image of @cells, once; every move's source shows the start of it */
void image_new(uint64_t cells);

extern uint8_t *image;
extern uint64_t image_cells;

/* Change a cell of the image to what is wrong, and back */
void image_flip(uint64_t cell);

/* Whoever reads the image while it is hidden dies */
void image_hide(bool hide);

/* --- one move --- */

enum stage {
    S_CONNECT, S_PUBLISH, S_WATCHED, S_STATE, S_READY, S_GO, S_RUNNING, S_DONE, S_END,
    D_ACCEPT, D_START, D_STATE, D_READY, D_GO, D_RUNNING, D_DONE, D_END,
};

struct side {
    enum stage stage; /* the one that failed, or *_END */
    int rc;
    struct ff_error err;
    struct ff_stats stats;
    atomic_bool ended;
};

struct toucher {
    pthread_t thread;
    struct move *m;
    unsigned id;
    uint32_t *last; /* of each cell: number of the last write of this thread; 0: none */
    uint64_t n_done;
    atomic_bool ended;
    atomic_int tid;
};

/* Is it asleep, by /proc, rather than on its way? False: it has ended. For threads that do nothing
 * but touch memory: asleep in a fault */
bool thread_blocked(atomic_int *tid, atomic_bool *ended);

struct move {
    /* what to do; zero is a sensible default for each */
    bool tcp;
    const char *options; /* appended to the address of both */
    const char *source_options; /* tcp: to that of the source instead */
    enum memory memory;
    unsigned n_regions;         /* default 2 */
    bool no_region;
    uint64_t cells[REGIONS_MAX]; /* default 1500, 501 */
    unsigned touchers;          /* at most CELL_WORDS */
    uint64_t touches;           /* of each; default: as many as there are cells */
    bool writes;
    bool touch_late;            /* from RUNNING on, not from D_START on */
    unsigned n_first;
    struct ff_page_ref first[8];
    bool no_push;       /* loop: what the source's link can do */
    uint32_t source_max; /* loop: bytes of its largest message; default: as the destination's */
    size_t state_bytes; /* default 100,000 */
    int pause_ms, go_timeout_ms; /* default: as the address says */
    const char *config; /* of the source; the destination's is "test" */
    void (*hook)(struct move *m, enum stage stage); /* before each stage, and at *_END */
    void (*prepared)(struct move *m); /* before the first stage of either side */
    void (*add_source)(struct move *m, struct ff_region *r); /* default: memory of this process */
    bool resumes; /* tcp: a break after GO is followed by another link */
    int told_ms;  /* so long a complete destination waits for a source that may not know; 0: it comes */
    void (*broken)(struct move *m, bool source); /* before that, in the side's thread */

    /* while it runs, and afterwards */
    struct side src, dst;
    atomic_uint breaks_src, breaks_dst; /* followed by another link, or they should have been */
    bool went, ran;     /* the source must not run its guest again; the destination runs it */
    pthread_mutex_t gate; /* guards both against being freed while they are cancelled */
    struct ff_source *source;
    struct ff_dest *dest;
    struct ff_link *to_dest, *to_source; /* loop */
    struct area area[REGIONS_MAX];
    uint64_t n_cells;
    struct toucher toucher[CELL_WORDS];
    atomic_bool stop_touching;
    pthread_t source_thread, stats_thread;
    atomic_int stage_src, stage_dst;
};

/* Everything up to the first stage; also called by move_run() */
void move_prepare(struct move *m);

/* Both sides through their stages until they end or fail, both. Judges nothing but the
 * invariants; touchers are still running. */
void move_run(struct move *m);

/* One of them, where the other is in another process: its rc. move_prepare() comes before */
int move_side(struct move *m, bool source);

/* Both sides of the move done, every byte right, the counts consistent; frees all */
void move_must_succeed(struct move *m);

/* Over tcp, with these fault points armed: the source loses its link at least @breaks times, and
 * all is as move_must_succeed() has it */
void move_must_survive(struct move *m, const char *faults, unsigned breaks);

/* Frees what can be freed: touchers must have ended */
void move_free(struct move *m);

/* ff_source_cancel() from a thread that is not the source's; it may be gone already */
void move_cancel_source(struct move *m);

/* One stage of one side, for tests that go through them on their own */
int move_stage(struct move *m, enum stage stage, struct ff_error *err);

void touchers_start(struct move *m);
void touchers_join(struct move *m);

/* One read or write of one cell as a toucher does it, checked */
void touch_cell(struct toucher *t, uint64_t cell, bool write);

/* Every byte of the destination's memory, with what the touchers wrote */
void verify_all(struct move *m);

/* A thread that reads one byte of a cell: has it got it? */
struct peek {
    pthread_t thread;
    struct move *m;
    uint64_t cell;
    atomic_bool ended;
    atomic_int tid;
};
void peek_start(struct peek *p, struct move *m, uint64_t cell);
bool peek_blocked(struct peek *p); /* asleep in the fault, by /proc, after a while */

bool cell_is_zero(uint64_t cell);

/* Of this test's destination, with @options (",name=value..." or ""): over tcp on this host, or as
 * the environment says; in the lab verbs at its address */
struct ff_address *loop_address(unsigned port, const char *options);

#endif
