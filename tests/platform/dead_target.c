/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * dead_target.c - the watched process dies: COPY says ESRCH, WAKE says ok, a pidfd tells
 *
 * The userfaultfd itself stays silent, so a handler in another process must watch a pidfd.
 * Source: measured by this program; pidfd_open(2); ioctl_userfaultfd(2), UFFDIO_COPY, ESRCH
 */
#include "platform.h"
#include <sys/prctl.h>
#include <sys/socket.h>

union control {
    struct cmsghdr head; /* for its alignment */
    char space[CMSG_SPACE(sizeof(int))];
};

static bool send_fd(int sock, int fd)
{
    union control c = {0};
    char byte = 0;
    struct iovec iov = {&byte, 1};
    struct msghdr m = {.msg_iov = &iov, .msg_iovlen = 1, .msg_control = c.space,
                       .msg_controllen = sizeof(c.space)};

    c.head = (struct cmsghdr){.cmsg_len = CMSG_LEN(sizeof(int)), .cmsg_level = SOL_SOCKET,
                              .cmsg_type = SCM_RIGHTS};
    memcpy(CMSG_DATA(CMSG_FIRSTHDR(&m)), &fd, sizeof(fd));
    return sendmsg(sock, &m, 0) == 1;
}

static int receive_fd(int sock)
{
    union control c = {0};
    char byte;
    struct iovec iov = {&byte, 1};
    struct msghdr m = {.msg_iov = &iov, .msg_iovlen = 1, .msg_control = c.space,
                       .msg_controllen = sizeof(c.space)};
    int fd = -1;

    if (pl_readable(sock, PL_WAIT_MS) && recvmsg(sock, &m, MSG_CMSG_CLOEXEC) == 1 &&
        CMSG_FIRSTHDR(&m) && c.head.cmsg_type == SCM_RIGHTS)
        memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&m)), sizeof(fd));
    return fd;
}

/* The machine: watches @p, hands the userfaultfd over, touches @p and waits there for good. */
_Noreturn static void machine(int sock, unsigned char *p)
{
    int uffd;

    prctl(PR_SET_PDEATHSIG, SIGKILL);
    uffd = pl_uffd(0);
    PL_MUST(pl_register(uffd, p, pl_page(), UFFDIO_REGISTER_MODE_MISSING) && send_fd(sock, uffd));
    close(uffd);
    _exit(*(volatile unsigned char *)p);
}

int main(void)
{
    const size_t psize = pl_page();
    int sock[2], uffd, pidfd, copied, woken;
    unsigned char *p;
    pid_t pid;

    pl_start();
    close(pl_uffd(0)); /* skips here, not in the child */
    p = pl_anon(psize);
    PL_MUST(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sock) == 0);
    pid = fork();
    PL_MUST(pid >= 0);
    if (pid == 0)
        machine(sock[1], p);
    pidfd = (int)syscall(SYS_pidfd_open, pid, 0);
    if (pidfd < 0)
        pl_skip("pidfd_open: %s; Linux 5.3 or newer needed", strerror(errno));
    uffd = receive_fd(sock[0]);
    if (uffd < 0 || !pl_fault(uffd, p, psize, 0))
        pl_fails("no userfaultfd, or no fault event, from the other process");
    if (pl_readable(pidfd, 0))
        pl_fails("the pidfd is readable while the process waits in its fault");

    PL_MUST(kill(pid, SIGKILL) == 0);
    if (!pl_readable(pidfd, PL_WAIT_MS))
        pl_fails("the process died and the pidfd does not tell");
    copied = pl_copy(uffd, p, pl_pattern(psize, 'A'), psize, NULL);
    woken = pl_wake(uffd, p, psize);
    if (copied != -ESRCH)
        pl_fails("COPY into a dead process: %d, expected ESRCH", copied);
    if (pl_readable(uffd, 0))
        pl_fails("the userfaultfd of a dead process became readable");
    PL_MUST(waitpid(pid, NULL, 0) == pid);
    pl_holds("dead process: pidfd readable, COPY says ESRCH, WAKE says %s, the userfaultfd is "
             "silent", woken ? strerror(-woken) : "ok");
}
