/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * dead_tap.c - a tap that leads nowhere: dead_tap.h
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/if_tun.h>
#include <net/if.h>
#include <sched.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cleanup.h"
#include "command_line.h"
#include "dead_tap.h"
#include "fd_pass.h"

/* In a process that ends: a user namespace cannot be left again */
static int open_elsewhere(void)
{
    struct ifreq r = {.ifr_name = NET_DEAD_END, .ifr_flags = IFF_TAP | IFF_NO_PI | IFF_VNET_HDR};

    if (unshare(CLONE_NEWNET) && unshare(CLONE_NEWUSER | CLONE_NEWNET))
        return -errno;
    int fd = open("/dev/net/tun", O_RDWR | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0 || ioctl(fd, TUNSETIFF, &r) < 0)
        return -errno;
    return fd;
}

static void be_opener(int to)
{
    int fd = open_elsewhere(), rc = fd < 0 ? fd : 0;

    (void)ff_fd_send(to, &rc, sizeof(rc), fd < 0 ? -1 : fd);
    _exit(0);
}

int dead_tap_open(struct ff_error *err)
{
    int pair[2], rc = 0, fd = -1;

    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) < 0)
        return ff_error_set(err, errno, "tap: socketpair: %s", strerror(errno));
    pid_t pid = fork();
    if (!pid)
        be_opener(pair[1]);
    int code = errno;
    ff_close_fd(&pair[1]);
    int heard = pid < 0 ? -code : ff_fd_receive(pair[0], &rc, sizeof(rc), &fd);
    ff_close_fd(&pair[0]);
    while (pid > 0 && waitpid(pid, NULL, 0) < 0 && errno == EINTR)
        ;
    rc = heard ? heard : rc;
    if (!rc && fd >= 0)
        return fd;
    ff_close_fd(&fd);
    rc = rc ? rc : -EBADMSG;
    return ff_error_set(err, -rc, "make a tap in a network namespace of its own: %s%s", strerror(-rc),
                        rc == -EPERM    ? " (as root, or where users may have namespaces: sysctl kernel.unprivileged_userns_clone, "
                                          "user.max_net_namespaces)"
                        : rc == -ENOENT ? " (/dev/net/tun: modprobe tun)"
                                        : "");
}
