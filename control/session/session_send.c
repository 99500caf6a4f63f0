/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * session_send.c - queue commands for an agent, without blocking
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "session.h"

#define WRITE_LIMIT_MS 10000

/* 0: all is sent; -EAGAIN: not yet; -errno: it hears no more */
static int send_unsent(struct host *h, int limit_ms)
{
    size_t before = h->unsent_done;

    int rc = jsonl_write_on(h->run.in, h->unsent, strlen(h->unsent), &h->unsent_done, limit_ms);
    if (h->unsent_done != before)
        h->unsent_ms = ff_now_ms();
    if (rc == -ETIMEDOUT && ff_now_ms() < h->unsent_ms + WRITE_LIMIT_MS)
        return -EAGAIN;
    free(h->unsent);
    h->unsent = NULL;
    return rc;
}

void host_flush(struct host *h, int limit_ms)
{
    int rc = h->unsent ? send_unsent(h, limit_ms) : 0;

    if (rc != -EAGAIN && (rc || h->ends_input))
        spawn_close_input(&h->run); /* its end is heard on the other pipe */
}

void host_send(struct host *h, json_t *command)
{
    FF_AUTO_FREE char *text = json_dumps(command, JSON_COMPACT);

    json_decref(command);
    if (h->run.in < 0 || h->ends_input || !text)
        return;
    if (!h->unsent)
        h->unsent_ms = ff_now_ms();
    char *all = xprintf("%s%s\n", h->unsent ? h->unsent + h->unsent_done : "", text);
    free(h->unsent);
    h->unsent = all;
    h->unsent_done = 0;
    host_flush(h, 0);
}
