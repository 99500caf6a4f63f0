/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * lend.c - a source on the agent's host gives it files instead of bytes; see farfork.h
 */
#include <errno.h>

#include "cleanup.h"
#include "error.h"
#include "message.h"
#include "regions.h"
#include "source.h"

#define ANSWER_MS 30000

/* Files of @t from region *@from on, as many as a message takes: 0, or 1 when it is empty */
static int next_files(const struct ff_regions *t, unsigned *from, struct ff_clone_msg *m)
{
    *m = (struct ff_clone_msg){.type = FF_CLONE_MEMORY};
    for (; *from < t->n && m->n < FF_CLONE_FILES; ++*from) {
        const struct ff_region *r = &t->r[*from];
        if (r->fd < 0)
            continue;
        m->fd[m->n] = r->fd;
        m->memory[m->n++] = (struct ff_clone_memory){
            .region = *from, .present = true, .offset = r->fd_offset};
    }
    m->n_fds = m->n;
    return !m->n;
}

static int lend(const struct ff_regions *t, int sock, unsigned n, struct ff_error *err)
{
    struct ff_clone_msg m = {.type = FF_CLONE_HELLO, .lends = true, .number = n};
    unsigned from = 0;

    int rc = ff_regions_hello(t, "", &m.table, err);
    if (!rc)
        rc = ff_clone_send(sock, &m, err);
    ff_hello_free(&m.table);
    while (!rc && !next_files(t, &from, &m))
        rc = ff_clone_send(sock, &m, err);
    if (rc && rc != -EPIPE)
        return rc;
    /* what it has refused it has refused with a reason */
    rc = ff_clone_expect(sock, -1, &m, ANSWER_MS, err);
    if (!rc && m.type != FF_CLONE_ATTACHED)
        rc = ff_error_set(err, EPROTO, "%s came instead of an answer", ff_clone_name(m.type));
    if (!rc)
        ff_clone_close(&m);
    return rc;
}

int ff_source_lend(struct ff_source *s, const char *socket_path, struct ff_error *err)
{
    const struct ff_regions *t = ff_source_regions(s);
    unsigned n = 0;

    for (unsigned i = 0; i < t->n; i++)
        n += t->r[i].fd >= 0;
    if (!n)
        return 0;
    int sock = ff_clone_connect(socket_path, err);
    int rc = sock < 0 ? sock : lend(t, sock, n, err);
    if (!rc) {
        ff_source_keep_fd(s, sock); /* while it is open, what was lent waits for our HELLO */
        return 0;
    }
    ff_close_fd(&sock);
    ff_error_context(err, "source: lend memory");
    return rc;
}
