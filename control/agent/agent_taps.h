/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * agent_taps.h - taps that lead nowhere, for children whose QEMU has no hub that is as good
 */
#ifndef FF_CONTROL_AGENT_AGENT_TAPS_H
#define FF_CONTROL_AGENT_AGENT_TAPS_H

#include <stddef.h>

#include "error.h"

/* @argv: a command line, each of its dead ends a tap; its words are borrowed but for those. @fd: -1 at the end */
struct agent_taps {
    char **argv, **words;
    int *fd;
    size_t n;
};

/* @dir: the agent's, where its watcher listens. To be closed, also after an error; QEMU has its own by then */
int agent_taps_open(struct agent_taps *t, const char *dir, char *const *argv, struct ff_error *why);
void agent_taps_close(struct agent_taps *t);

#endif
