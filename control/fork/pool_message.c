/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * pool_message.c - JSON and descriptors between vmclone, a pool and what it keeps
 */
#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "cleanup.h"
#include "pool_message.h"
#include "xalloc.h"

#define MESSAGE_MAX_BYTES (160u << 10) /* a thousand hosts' names; a socket's buffer has 208 KiB */

int pool_send(int sock, json_t *m, const int *fds, unsigned n)
{
    FF_AUTO_FREE char *text = json_dumps(m, JSON_COMPACT);
    union {
        struct cmsghdr align;
        char data[CMSG_SPACE(POOL_FDS * sizeof(int))];
    } room = {0};
    struct iovec v = {.iov_base = text, .iov_len = text ? strlen(text) : 0};
    struct msghdr h = {.msg_iov = &v, .msg_iovlen = 1};

    json_decref(m);
    if (!text || v.iov_len > MESSAGE_MAX_BYTES)
        return -EMSGSIZE;
    if (n) {
        h.msg_control = room.data;
        h.msg_controllen = CMSG_SPACE(n * sizeof(int));
        struct cmsghdr *c = CMSG_FIRSTHDR(&h);
        c->cmsg_level = SOL_SOCKET;
        c->cmsg_type = SCM_RIGHTS;
        c->cmsg_len = CMSG_LEN(n * sizeof(int));
        memcpy(CMSG_DATA(c), fds, n * sizeof(int));
    }
    return sendmsg(sock, &h, MSG_NOSIGNAL | MSG_DONTWAIT) < 0 ? -errno : 0;
}

void pool_close(int fds[POOL_FDS])
{
    for (int i = 0; i < POOL_FDS; i++)
        ff_close_fd(&fds[i]);
}

int pool_recv(int sock, int limit_ms, json_t **m, int fds[POOL_FDS])
{
    FF_AUTO_FREE char *text = xcalloc(MESSAGE_MAX_BYTES, 1);
    union {
        struct cmsghdr align;
        char data[CMSG_SPACE(POOL_FDS * sizeof(int))];
    } room;
    struct iovec v = {.iov_base = text, .iov_len = MESSAGE_MAX_BYTES};
    struct msghdr h = {.msg_iov = &v, .msg_iovlen = 1};
    struct pollfd p = {.fd = sock, .events = POLLIN};
    int got[POOL_FDS] = {-1, -1};

    if (fds) {
        h.msg_control = room.data;
        h.msg_controllen = CMSG_LEN(sizeof(got)); /* with CMSG_SPACE one more would fit */
    }
    if (poll(&p, 1, limit_ms) <= 0)
        return -ETIMEDOUT;
    ssize_t n = recvmsg(sock, &h, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    if (n < 0 && errno == EAGAIN)
        return -ETIMEDOUT;
    if (n <= 0)
        return -EPIPE;
    struct cmsghdr *c = fds ? CMSG_FIRSTHDR(&h) : NULL;
    if (c && c->cmsg_type == SCM_RIGHTS)
        memcpy(got, CMSG_DATA(c), c->cmsg_len - CMSG_LEN(0));
    *m = h.msg_flags & MSG_TRUNC ? NULL : json_loadb(text, (size_t)n, 0, NULL);
    if (!json_is_object(*m)) {
        json_decref(*m);
        *m = NULL;
        pool_close(got);
        return -EPROTO;
    }
    if (fds)
        memcpy(fds, got, sizeof(got));
    return 0;
}
