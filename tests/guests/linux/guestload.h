/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * guestload.h - what the workers of the Linux test guest share
 */
#ifndef GUESTLOAD_H
#define GUESTLOAD_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#define GL_PAGE 4096u                  /* unit of checking, whatever the host's page is */
#define GL_WORDS (GL_PAGE / 8u)
#define GL_PERIOD 127u                 /* words; prime, so that a shifted block shows */
#define GL_ERROR_MAX 240u              /* bytes of the first error's text */

/* Counts only grow. Each has one writing worker, except that errors may come from several. */
struct gl_stats {
    _Atomic uint64_t mem_mib, mem_checked, mem_errors, mem_passes;
    _Atomic uint64_t counter, clock_errors, max_gap_ns, recent_gap_ns;
    _Atomic uint64_t disk_writes, disk_reads, disk_errors;
    _Atomic uint64_t tcp_lines, tcp_conns, tcp_errors;
    _Atomic uint64_t rpc_calls, rpc_errors;
};

struct gl_config {
    uint64_t mem_mib;                  /* 0: 60 % of what is available */
    uint64_t duty_percent;             /* CPU share of each memory worker */
    uint64_t disk_mib;                 /* how much of the disk to use, from its start */
    uint64_t disk_pause_us;            /* between two disk operations */
    uint64_t port;
    uint64_t rpc_kib, rpc_depth;       /* of a call's arguments; calls in flight */
    char rpc[64];                      /* ADDRESS:PORT of who is called; empty: nobody */
    char disk[64];
    char report[64];                   /* empty: look for a port */
};

extern struct gl_stats gl_stats;
extern struct gl_config gl_config;
extern uint64_t gl_ramp[GL_WORDS];     /* the pattern; constant after gl_ramp_init() */

uint64_t gl_mix(uint64_t x);           /* a bijection of 64 bits, well mixed */
uint64_t gl_random(uint64_t *state);
uint64_t gl_now_ns(void);              /* CLOCK_MONOTONIC of the guest */
void gl_sleep_ns(uint64_t ns);
void gl_ramp_init(void);

/* Count one error and keep the text if it is the first of all. */
void gl_fail(_Atomic uint64_t *count, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));

void gl_start(void *(*run)(void *), void *arg, int nice_or_fifo);
#define GL_FIFO (-100)                 /* instead of a nice value: real time */

void gl_mem_start(void);
void gl_disk_start(void);
void gl_tcp_start(void);
void gl_udp_start(void);
void gl_rpc_start(void);

#endif
