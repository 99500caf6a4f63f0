/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * thread.h - threads of the library: signals blocked, named, their CPU time known
 */
#ifndef FF_BASE_THREAD_H
#define FF_BASE_THREAD_H

#include <pthread.h>
#include <stdint.h>

struct ff_error;

/* @name: at most 15 bytes. Signals belong to the program's own threads. */
int ff_thread_start(pthread_t *t, void *(*fn)(void *), void *arg, const char *name,
                    struct ff_error *err);

/* The calling thread works in short bursts that others wait for: let it run ahead of threads that
 * compute. Asks the scheduler for a short slice (Linux 6.12; before, and where it is not
 * permitted, nothing changes). It takes no more of the CPU by that. */
void ff_thread_soon(void);

/* The calling thread computes, and others have what somebody waits for: it has less of the CPU where there
 * is not enough. For good, if the user may not raise priorities; not where it is not permitted */
void ff_thread_later(void);

/* CPU time of the calling thread in ns */
uint64_t ff_thread_cpu_ns(void);

/* A condition whose waits end by ff_now_ns() */
void ff_cond_init(pthread_cond_t *c);
int ff_cond_wait_until(pthread_cond_t *c, pthread_mutex_t *lock,
                       uint64_t end_ns); /* or ETIMEDOUT */

#endif
