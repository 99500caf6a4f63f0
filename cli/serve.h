/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * serve.h - vmclone --serve: fork a guest when it asks for that
 */
#ifndef FF_CLI_SERVE_H
#define FF_CLI_SERVE_H

#include "util.h"

struct serve {
    const char *port;      /* socket of the parent's virtio-serial port */
    const char *id;        /* forks are ID-1, ID-2, ... */
    const char *parent;    /* its QMP socket */
    char *const *options;  /* of vmclone, for each fork; NULL at its end */
    char *const *hosts;
    unsigned max;          /* children of one fork */
};

/* Until the parent ends, or closes the port; -errno: there is no such port */
int serve(const struct serve *s, struct why *why);

#endif
