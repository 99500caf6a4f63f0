/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * agent_key.c - the key of a move or fork, from the first line of the agent's input
 */
/**
 * DOC: Theory of Operation
 *
 * Purpose      input is the one way to an agent that shows a key to nobody: arguments and the
 *              environment of a process are in /proc, and a file would have to be removed. The
 *              launcher carries it, as it carries the guest's command line.
 * Ownership    the agent holds the key until the library has it (an image is to come), or until
 *              `keep` (a guest is moved, and its QEMU has it). A guest that is kept and goes back has another
 *              key for that, a line of the input like the first one, until the next `keep`.
 */
#include <errno.h>
#include <poll.h>
#include <string.h>
#include <unistd.h>

#include "agent_state.h"
#include "qmp_secret.h"

int agent_read_key(struct agent *a, struct ff_error *why)
{
    struct pollfd p[] = {{.fd = STDIN_FILENO, .events = POLLIN},
                         {.fd = a->signals, .events = POLLIN}};
    char *line;

    while (!(line = jsonl_next(&a->in))) {
        if (a->in.ended)
            return ff_error_set(why, EPIPE, "the agent's input ended before its key came");
        if (poll(p, 2, -1) < 0 && errno != EINTR)
            return ff_error_set(why, errno, "poll: %s", strerror(errno));
        if (p[1].revents)
            return ff_error_set(why, ECANCELED, "a signal ended the agent before its key came");
        int rc = p[0].revents ? jsonl_read(&a->in, STDIN_FILENO) : 0;
        if (rc)
            return ff_error_set(why, -rc, "read the key: %s", strerror(-rc));
    }
    a->vms.key = key_line_take(line);
    return a->vms.key ? 0
                      : ff_error_set(why, EINVAL,
                                     "--keyed: want " KEY_LINE_HEAD "64 hexadecimal digits" KEY_LINE_TAIL
                                     " as the first line of input");
}

bool agent_take_key(struct agent *a, char *line)
{
    if (!a->keyed || !a->kept || strncmp(line, KEY_LINE_HEAD, strlen(KEY_LINE_HEAD)))
        return false;
    agent_drop_key(a);
    a->vms.key = key_line_take(line);
    return true;
}

void agent_drop_key(struct agent *a)
{
    key_text_free(a->vms.key);
    a->vms.key = NULL;
}
