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

/* CPU time of the calling thread in ns */
uint64_t ff_thread_cpu_ns(void);

#endif
