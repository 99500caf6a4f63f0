/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * agent_taps.c - taps that lead nowhere, for children whose QEMU has no hub that is as good
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "agent_state.h"
#include "agent_taps.h"
#include "command_line.h"
#include "dead_tap.h"
#include "qemu_opts.h"
#include "watcher.h"
#include "xalloc.h"

/* The word at @i is a NIC's backend, and that is a dead end */
static int open_at(struct agent_taps *t, const char *watcher, size_t i, struct ff_error *why)
{
    if (!i || (!qemu_option_is(t->argv[i - 1], "netdev") && !qemu_option_is(t->argv[i - 1], "nic")))
        return 0;
    FF_AUTO_FREE char *is_dead_end = net_dead_end_tap(t->argv[i], 0);
    if (!is_dead_end)
        return 0;
    int fd = watcher_tap(watcher, why);
    if (fd == -ENOENT) /* an agent that is not confined needs none */
        fd = dead_tap_open(why);
    if (fd < 0)
        return ff_error_context(why, "a NIC that leads nowhere");
    t->fd[t->n] = fd;
    t->fd[t->n + 1] = -1;
    t->argv[i] = t->words[t->n++] = net_dead_end_tap(t->argv[i], fd);
    return 0;
}

int agent_taps_open(struct agent_taps *t, const char *dir, char *const *argv, struct ff_error *why)
{
    FF_AUTO_FREE char *watcher = xprintf("%s/" AGENT_WATCHER_SOCKET, dir);
    size_t n = 0;
    int rc = 0;

    while (argv[n])
        n++;
    t->argv = xcalloc(n + 1, sizeof(*t->argv));
    t->words = xcalloc(n + 1, sizeof(*t->words));
    t->fd = xcalloc(n + 1, sizeof(*t->fd));
    memcpy(t->argv, argv, n * sizeof(*t->argv));
    t->fd[0] = -1;
    for (size_t i = 0; i < n && !rc; i++)
        rc = open_at(t, watcher, i, why);
    return rc;
}

void agent_taps_close(struct agent_taps *t)
{
    for (size_t i = 0; i < t->n; i++) {
        close(t->fd[i]);
        free(t->words[i]);
    }
    free(t->argv);
    free(t->words);
    free(t->fd);
}
