/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * beat.h - a destination says that it is alive while its caller is busy
 */
#ifndef FF_MIGRATE_BEAT_H
#define FF_MIGRATE_BEAT_H

#include <pthread.h>
#include <stdbool.h>

#include "wire.h"

struct ff_beat {
    pthread_t thread;
    int stop_fd;
    bool runs;
    void (*stats)(void *opaque, struct ff_stats *st);
    void *opaque;
    struct ff_link *link;
    uint8_t buf[FF_MSG_MAX];
};

/* Send PROGRESS over @link every @FF_BEAT_MS until ff_beat_stop(), or until the link breaks, which
 * whoever sends or receives next finds out. */
#define FF_BEAT_MS 200
/* @stats: called on its thread: what is said */
int ff_beat_start(struct ff_beat *b, void (*stats)(void *opaque, struct ff_stats *st), void *opaque,
                  struct ff_link *link, struct ff_error *err);

/* Returns when nothing is being sent any more; also for one that was never started */
void ff_beat_stop(struct ff_beat *b);

#endif
