/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * tcp_user_timeout.c - a dead TCP peer can be noticed in seconds: TCP_USER_TIMEOUT and keepalive
 *
 * Without them a link whose peer vanished stays up for a quarter of an hour, and so do the vCPUs
 * that wait for its pages. Set on both ends of a loopback connection and read back.
 * Source: tcp(7); RFC 5482
 */
#include "platform.h"
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

static const struct {
    int level, name, value;
    const char *text;
} options[] = {
    {SOL_SOCKET, SO_KEEPALIVE, 1, "SO_KEEPALIVE"},
    {IPPROTO_TCP, TCP_KEEPIDLE, 1, "TCP_KEEPIDLE 1 s"},
    {IPPROTO_TCP, TCP_KEEPINTVL, 1, "TCP_KEEPINTVL 1 s"},
    {IPPROTO_TCP, TCP_KEEPCNT, 3, "TCP_KEEPCNT 3"},
    {IPPROTO_TCP, TCP_USER_TIMEOUT, 4000, "TCP_USER_TIMEOUT 4000 ms"},
    {IPPROTO_TCP, TCP_NODELAY, 1, "TCP_NODELAY"},
};

static void set_all(int sock, const char *end)
{
    for (size_t i = 0; i < sizeof(options) / sizeof(options[0]); i++) {
        int value = options[i].value;
        socklen_t size = sizeof(value);

        if (setsockopt(sock, options[i].level, options[i].name, &value, size) != 0)
            pl_fails("%s end: %s: %s", end, options[i].text, strerror(errno));
        value = -1;
        if (getsockopt(sock, options[i].level, options[i].name, &value, &size) != 0 ||
            value != options[i].value)
            pl_fails("%s end: %s reads back as %d", end, options[i].text, value);
    }
}

int main(void)
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    socklen_t size = sizeof(at);
    int listener, calling, called;

    pl_start();
    listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    calling = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    PL_MUST(listener >= 0 && calling >= 0);
    if (bind(listener, (struct sockaddr *)&at, sizeof(at)) != 0 || listen(listener, 1) != 0 ||
        getsockname(listener, (struct sockaddr *)&at, &size) != 0 ||
        connect(calling, (struct sockaddr *)&at, sizeof(at)) != 0)
        pl_skip("no TCP over 127.0.0.1 (%s): ip link set lo up", strerror(errno));
    called = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
    PL_MUST(called >= 0);
    set_all(calling, "connecting");
    set_all(called, "accepting");
    pl_holds("TCP_USER_TIMEOUT, keepalive (idle, interval, count) and NODELAY set and read back on "
             "both ends");
}
