/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * fd_pass.c - bytes with a descriptor over a unix socket
 */
#include <errno.h>
#include <string.h>
#include <sys/socket.h>

#include "fd_pass.h"

int ff_fd_send(int sock, const void *data, size_t len, int fd)
{
    struct iovec v = {.iov_base = (void *)data, .iov_len = len};
    char control[CMSG_SPACE(sizeof(int))] = {0};
    struct msghdr m = {.msg_iov = &v, .msg_iovlen = 1};

    if (fd >= 0) {
        m.msg_control = control;
        m.msg_controllen = sizeof(control);
        struct cmsghdr *c = CMSG_FIRSTHDR(&m);
        *c = (struct cmsghdr){
            .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS, .cmsg_len = CMSG_LEN(sizeof(int))};
        memcpy(CMSG_DATA(c), &fd, sizeof(fd));
    }
    while (v.iov_len) {
        ssize_t n = sendmsg(sock, &m, MSG_NOSIGNAL);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return n < 0 ? -errno : -EPIPE;
        v.iov_base = (char *)v.iov_base + n;
        v.iov_len -= (size_t)n;
        m.msg_control = NULL;
        m.msg_controllen = 0;
    }
    return 0;
}

int ff_fd_receive(int sock, void *data, size_t len, int *fd)
{
    struct iovec v = {.iov_base = data, .iov_len = len};
    char control[CMSG_SPACE(sizeof(int))];
    struct msghdr m = {.msg_iov = &v, .msg_iovlen = 1};

    while (v.iov_len) {
        m.msg_control = fd ? control : NULL;
        m.msg_controllen = fd ? sizeof(control) : 0;
        ssize_t n = recvmsg(sock, &m, MSG_CMSG_CLOEXEC);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return n < 0 ? -errno : -EPIPE;
        struct cmsghdr *c = fd && m.msg_controllen ? CMSG_FIRSTHDR(&m) : NULL;
        if (c && c->cmsg_type == SCM_RIGHTS)
            memcpy(fd, CMSG_DATA(c), sizeof(*fd));
        v.iov_base = (char *)v.iov_base + n;
        v.iov_len -= (size_t)n;
    }
    return 0;
}
