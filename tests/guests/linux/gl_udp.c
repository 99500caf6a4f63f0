/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * gl_udp.c - UDP echo: what a client sends comes back, so that it can tell when nobody was there
 */
#include "guestload.h"

#include <arpa/inet.h>
#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define PACKET_MAX_BYTES 2048u

static void *run_udp(void *arg)
{
    int fd = *(int *)arg;
    char packet[PACKET_MAX_BYTES];

    for (;;) {
        struct sockaddr_storage from;
        socklen_t from_len = sizeof(from);
        ssize_t n = recvfrom(fd, packet, sizeof(packet), 0, (struct sockaddr *)&from, &from_len);

        /* an answer that cannot be sent is a lost packet: the client counts those */
        if (n >= 0)
            sendto(fd, packet, (size_t)n, 0, (struct sockaddr *)&from, from_len);
    }
    return NULL;
}

void gl_udp_start(void)
{
    static int fd;
    struct sockaddr_in6 any = { .sin6_family = AF_INET6, .sin6_addr = IN6ADDR_ANY_INIT,
                                .sin6_port = htons((uint16_t)gl_config.port) };
    int zero = 0;

    fd = socket(AF_INET6, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd < 0 || setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &zero, sizeof(zero)) < 0 ||
        bind(fd, (struct sockaddr *)&any, sizeof(any)) < 0) {
        gl_fail(&gl_stats.tcp_errors, "udp: bind to %d: %s", (int)gl_config.port, strerror(errno));
        if (fd >= 0)
            close(fd);
        return;
    }
    gl_start(run_udp, &fd, GL_FIFO);
}
