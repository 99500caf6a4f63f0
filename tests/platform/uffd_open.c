/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * uffd_open.c - which of the three ways to a userfaultfd are open to this user
 *
 * KVM takes guest faults inside the kernel. A descriptor opened with UFFD_USER_MODE_ONLY does not
 * serve those: the kernel's access fails with EFAULT instead of waiting. Farfork needs a full one.
 * Source: userfaultfd(2), NOTES; Documentation/admin-guide/mm/userfaultfd.rst
 */
#include "platform.h"

static int open_device(void)
{
    int dev = open("/dev/userfaultfd", O_RDWR | O_CLOEXEC);
    int fd = dev < 0 ? -errno : ioctl(dev, USERFAULTFD_IOC_NEW, O_CLOEXEC | O_NONBLOCK);

    if (dev >= 0 && fd < 0)
        fd = -errno;
    if (dev >= 0)
        close(dev);
    return fd;
}

static int open_syscall(int flags)
{
    int fd = (int)syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK | flags);

    return fd < 0 ? -errno : fd;
}

/* What a kernel access to a missing page gives under a user-mode-only descriptor. */
static const char *kernel_fault(int uffd)
{
    struct uffdio_api api = {.api = UFFD_API};
    unsigned char *p = pl_anon(pl_page());
    int pipefd[2];

    PL_MUST(ioctl(uffd, UFFDIO_API, &api) == 0 && pipe2(pipefd, O_CLOEXEC) == 0);
    PL_MUST(pl_register(uffd, p, pl_page(), UFFDIO_REGISTER_MODE_MISSING));
    if (write(pipefd[1], p, 1) >= 0)
        return "passed without a fault";
    return errno == EFAULT ? "EFAULT" : strerror(errno);
}

static const char *word(int fd)
{
    return fd < 0 ? strerror(-fd) : "works";
}

int main(void)
{
    int dev, full, user;
    long sysctl;

    pl_start();
    dev = open_device();
    full = open_syscall(0);
    user = open_syscall(UFFD_USER_MODE_ONLY);
    sysctl = pl_number("/proc/sys/vm/unprivileged_userfaultfd");

    printf("/dev/userfaultfd: %s; ", word(dev));
    printf("system call: %s; ", word(full));
    printf("user faults only: %s%s%s; ", word(user), user < 0 ? "" : ", kernel access gives ",
           user < 0 ? "" : kernel_fault(user));
    printf("vm.unprivileged_userfaultfd=%ld\n", sysctl);

    if (dev >= 0 || full >= 0)
        pl_holds("kernel faults can be served through %s",
                 dev < 0 ? "the system call" : full < 0 ? "the device" : "the device and the call");
    if (full == -ENOSYS)
        pl_fails("this kernel was built without userfaultfd (CONFIG_USERFAULTFD)");
    pl_skip("user %d may not serve kernel faults: give it /dev/userfaultfd (chown or setfacl), or "
            "CAP_SYS_PTRACE, or set sysctl vm.unprivileged_userfaultfd=1", (int)geteuid());
}
