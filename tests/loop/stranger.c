/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * stranger.c - a process that speaks to an agent without the library's child or source
 */
#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "stranger.h"

int stranger(const struct family *f)
{
    struct ff_error err;
    int fd = ff_clone_connect(f->path, &err);

    if (fd < 0)
        loop_fail(__FILE__, __LINE__, "%s", err.text);
    return fd;
}

void must_be_dropped(int sock, const char *what)
{
    struct ff_clone_msg m;
    struct ff_error err;

    int rc = ff_clone_expect(sock, -1, &m, 10000, &err);
    if (!rc || rc == -ETIMEDOUT)
        loop_fail(__FILE__, __LINE__, "%s: not dropped: %d", what, rc);
    close(sock);
}

struct ff_clone_msg stranger_hello(struct ff_wire_region r[2])
{
    struct ff_clone_msg m = {.type = FF_CLONE_HELLO, .number = 0, .host = {1u << 30, 2u << 30}};

    strcpy(r[0].name, "region0");
    strcpy(r[1].name, "region1");
    r[0].len_bytes = 1500 * CELL;
    r[1].len_bytes = 501 * CELL;
    r[0].psize = r[1].psize = CELL;
    m.table = (struct ff_hello){.version = FF_WIRE_VERSION, .oldest = FF_WIRE_VERSION,
                                .n_regions = 2, .config = "test", .regions = r};
    return m;
}
