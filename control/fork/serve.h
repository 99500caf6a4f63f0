/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * serve.h - vmclone --serve: fork a guest when it asks for that, and say how its children end
 */
#ifndef FF_CONTROL_FORK_SERVE_H
#define FF_CONTROL_FORK_SERVE_H

#include "serve_limits.h"
#include "error.h"
#include "strv.h"

struct fork_serve {
    const char *port; /* socket of the parent's virtio-serial port */
    const char *id;   /* forks are ID-1, ID-2, ... */
    unsigned max;     /* children of one fork */
    struct serve_limits *limits;
    /* Called in a process of its own: fork into @n children and follow them, events to the pipe
     * @events; the exit code */
    int (*fork)(void *opaque, const char *id, unsigned n, const char *user, int events);
    void *opaque;
};

/* Until the parent ends, or closes the port; -errno: there is no such port */
int fork_serve(const struct fork_serve *s, struct ff_error *why);

#endif
