/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * stream_between.c - a migration through stream_pass(), for tests: stream_between LISTEN CONNECT
 *
 * Two unix sockets. One JSON line at the end.
 */
#include <errno.h>
#include <stdio.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "stream_pass.h"

static struct sockaddr_un address_of(const char *path)
{
    struct sockaddr_un a = {.sun_family = AF_UNIX};

    snprintf(a.sun_path, sizeof(a.sun_path), "%s", path);
    return a;
}

/* The source's socket, once it has come */
static int accept_at(const char *path)
{
    struct sockaddr_un a = address_of(path);
    int port = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

    if (port < 0 || bind(port, (struct sockaddr *)&a, sizeof(a)) || listen(port, 1))
        return -1;
    return accept(port, NULL, NULL);
}

static int connect_to(const char *path)
{
    struct sockaddr_un a = address_of(path);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

    return fd < 0 || connect(fd, (struct sockaddr *)&a, sizeof(a)) ? -1 : fd;
}

int main(int argc, char **argv)
{
    struct stream_pass_counts c;
    struct ff_error err = {0};
    int source, destination, rc;

    if (argc != 3)
        return 2;
    source = accept_at(argv[1]);
    destination = source < 0 ? -1 : connect_to(argv[2]);
    if (destination < 0) {
        perror("stream_between");
        return 2;
    }
    rc = stream_pass(source, destination, NULL, &c, &err);
    printf("{\"rc\":%d,\"forward\":[%llu,%llu],\"return\":[%llu,%llu],\"zeros\":%llu,"
           "\"package_bytes\":%llu",
           rc, (unsigned long long)c.forward_bytes, (unsigned long long)c.forward_written,
           (unsigned long long)c.return_bytes, (unsigned long long)c.return_written,
           (unsigned long long)c.zero_pages, (unsigned long long)c.package_bytes);
    for (unsigned i = 0; i < STREAM_KINDS; i++)
        printf(",\"%s\":%llu", stream_kind_name((enum stream_kind)i),
               (unsigned long long)c.units[i]);
    for (unsigned i = 0; i < STREAM_RETURN_TYPES; i++)
        printf(",\"%s\":%llu", stream_return_name((enum stream_return_type)i),
               (unsigned long long)c.messages[i]);
    puts("}");
    if (rc)
        fprintf(stderr, "%s\n", err.text);
    return rc ? 1 : 0;
}
