/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * tcp_pace.h - how much of prefill may be on the way at once: the receive window
 */
#ifndef FF_RDMA_TCP_PACE_H
#define FF_RDMA_TCP_PACE_H

#include <stdbool.h>
#include <stdint.h>

/* What is known of the link, and what follows from it: no system calls
 * (tests/unit/rdma/test_tcp_pace.c) */
struct pace {
    bool held;           /* the window is limited */
    double best;         /* bytes a ns: what the link carries */
    double gain;         /* window by bandwidth times round trip */
    bool settled;        /* it is as small as can be: from now on it changes slowly */
    uint32_t window;     /* not held: 0 none */
    double rise;         /* held: the last look, if it was faster; 0 */
    double top, sum;     /* free: fastest look; sum of the rates of @flat looks */
    unsigned flat;       /* looks since the rate has last grown */
    unsigned free_looks; /* so many of them before the window is limited */
    double held_rate;    /* when it was limited last, and too slow; 0: it never was */
    unsigned low, good;  /* held: looks in turn that were too slow, and that were not */
};

void tcp_pace_init(struct pace *p);

/* @bytes came in @ns: the window in bytes, 0: no limit. @idle: nothing was asked for meanwhile, for a part
 * of the time: the link may carry more */
uint32_t tcp_pace_look(struct pace *p, uint64_t bytes, uint64_t ns, uint32_t min_rtt_us, bool idle);

/* The shortest round trip so far; 0: not known */
uint32_t tcp_rtt_us(int fd);

/* A socket that receives bulk data */
struct tcp_pace {
    struct pace pace;
    bool on;
    int beside_fd; /* of faults: what it receives is counted as well */
    uint64_t next_ns, last_ns, last_bytes;
    uint64_t idle_ns, idle_from; /* since the last look; idle_from: it is, since then; 0: it is not */
    uint32_t window;
};

/* To be called again and again; costs a system call each PACE_LOOK_NS. Nothing happens
 * between two sockets of one host. */
void tcp_pace_start(struct tcp_pace *t, int fd, int beside_fd);
void tcp_pace_turn(struct tcp_pace *t, int fd, uint64_t now_ns);

/* From here on something is asked for over it, or nothing is. Who is never told so is always asked */
void tcp_pace_asks(struct tcp_pace *t, bool any);

#endif
