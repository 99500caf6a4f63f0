/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * agent_beside.h - a thread beside each child's QEMU
 */
#ifndef FF_CONTROL_AGENT_AGENT_BESIDE_H
#define FF_CONTROL_AGENT_AGENT_BESIDE_H

#include <jansson.h>
#include <stdbool.h>
#include <sys/types.h>

#include "error.h"

struct beside;

struct beside_child {
    unsigned number;
    pid_t pid;               /* of what the agent has started: QEMU, or a program that starts it */
    const char *agent;       /* socket of the image */
    const char *watcher;     /* socket of who may attach */
    const char *log;         /* of the child, where it is said why it came to nothing */
    const json_t *how;       /* {"qmp": PATH of a monitor that is this thread's alone, "isolated": links are down at first} */
    void (*failed)(void *opaque, unsigned number); /* in that thread: the child is to be ended */
    void *opaque;
};

/**
 * agent_beside_begin() - from here on this child is looked after: it gets its memory, its state, and runs when it may
 * @c: copied; not yet reaped
 *
 * Return: 0; -errno: nobody does
 */
int agent_beside_begin(struct beside **list, const struct beside_child *c, struct ff_error *err);

/* All have ended, or need nobody, and the agent's socket is closed: wait until these threads have ended, and free them */
void agent_beside_end(struct beside **list);

#endif
