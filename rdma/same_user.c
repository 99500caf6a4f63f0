/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * same_user.c - is the peer of a socket a process of this user on this host?
 */
/**
 * DOC: Theory of Operation
 *
 * Picture      a connection within a host has two sockets, both in /proc/net/tcp (or tcp6) of their
 *              network namespace:
 *                ours     local A, remote B           what getsockname() and getpeername() say
 *                theirs   local B, remote A, uid      who made it: the line that is looked for
 *
 * Invariants   1. An address is this host's only where the kernel lets no other host use it: both
 *                 ends are the same address, or both are in 127.0.0.0/8 or are ::1. The
 *                 kernel drops packets from outside with such a source (martians).
 *              2. A socket without an inode belongs to nobody any more, and shows uid 0: that is
 *                 no answer. Nor is the overflow uid, which stands for every user that this user
 *                 namespace does not know.
 * Limits       A process of this user that forwards connections (ssh -L, socat) lends its user to
 *              whoever reaches it. One look reads all of the host's TCP connections.
 * Sources      proc(5); Documentation/networking/proc_net_tcp.rst
 */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "cleanup.h"
#include "same_user.h"

#define OVERFLOW_UID 65534u
#define ESTABLISHED 1u

/* As the file writes it: each word of four bytes as this host has it, and the port */
static void write_address(const struct sockaddr_storage *sa, char out[64])
{
    const struct sockaddr_in *in = (const void *)sa;
    const struct sockaddr_in6 *in6 = (const void *)sa;
    uint32_t w[4];

    if (sa->ss_family == AF_INET) {
        snprintf(out, 64, "%08X:%04X", in->sin_addr.s_addr, ntohs(in->sin_port));
        return;
    }
    memcpy(w, &in6->sin6_addr, sizeof(w));
    snprintf(out, 64, "%08X%08X%08X%08X:%04X", w[0], w[1], w[2], w[3], ntohs(in6->sin6_port));
}

static bool is_loopback(const struct sockaddr_storage *sa)
{
    const struct sockaddr_in *in = (const void *)sa;
    const struct sockaddr_in6 *in6 = (const void *)sa;

    return sa->ss_family == AF_INET ? ntohl(in->sin_addr.s_addr) >> 24 == IN_LOOPBACKNET
                                    : IN6_IS_ADDR_LOOPBACK(&in6->sin6_addr);
}

static bool is_this_host(const struct sockaddr_storage *a, const struct sockaddr_storage *b)
{
    const struct sockaddr_in *a4 = (const void *)a, *b4 = (const void *)b;
    const struct sockaddr_in6 *a6 = (const void *)a, *b6 = (const void *)b;

    if (a->ss_family != b->ss_family || (a->ss_family != AF_INET && a->ss_family != AF_INET6))
        return false;
    if (is_loopback(a) && is_loopback(b))
        return true;
    return a->ss_family == AF_INET
               ? a4->sin_addr.s_addr == b4->sin_addr.s_addr
               : !memcmp(&a6->sin6_addr, &b6->sin6_addr, sizeof(a6->sin6_addr));
}

/* The user of the socket from @local to @remote: 0, or -EACCES */
static int find_user(const char *path, const char *local, const char *remote, unsigned *uid,
                     struct ff_error *err)
{
    FILE *f = fopen(path, "re");
    char line[512], l[64], r[64];
    unsigned state, user;
    unsigned long inode;
    bool found = false;

    if (!f)
        return ff_error_set(err, errno, "tcp: whose is the peer: %s: %s", path, strerror(errno));
    while (!found && fgets(line, sizeof(line), f))
        found = sscanf(line, " %*u: %63s %63s %x %*s %*s %*s %u %*u %lu", l, r, &state, &user,
                       &inode) == 5 &&
                !strcmp(l, local) && !strcmp(r, remote);
    fclose(f);
    if (!found || state != ESTABLISHED || !inode || user == OVERFLOW_UID)
        return ff_error_set(err, EACCES, "tcp: whose is the peer: %s",
                            found && inode && state == ESTABLISHED
                                ? "a user that is not known here" : "it has left");
    *uid = user;
    return 0;
}

int ff_same_user(int fd, struct ff_error *err)
{
    struct sockaddr_storage here = {0}, there = {0};
    socklen_t here_len = sizeof(here), there_len = sizeof(there);
    char local[64], remote[64];
    unsigned uid = OVERFLOW_UID;

    if (getsockname(fd, (struct sockaddr *)&here, &here_len) ||
        getpeername(fd, (struct sockaddr *)&there, &there_len))
        return ff_error_set(err, EACCES, "tcp: whose is the peer: %s", strerror(errno));
    if (here.ss_family == AF_UNIX)
        return 0;
    if (!is_this_host(&here, &there))
        return ff_error_set(err, EACCES, "tcp: the peer is not on this host");
    write_address(&there, local);
    write_address(&here, remote);
    int rc = find_user(here.ss_family == AF_INET ? "/proc/thread-self/net/tcp"
                                                 : "/proc/thread-self/net/tcp6",
                       local, remote, &uid, err);
    if (rc)
        return rc;
    return uid == geteuid() ? 0
                            : ff_error_set(err, EACCES, "tcp: the peer is of user %u (this is %u)",
                                           uid, geteuid());
}
