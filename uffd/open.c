/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * open.c - userfaultfd: get a descriptor, find out what the kernel offers
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include "cleanup.h"
#include "error.h"
#include "uffd.h"

/* Debian 12's kernel headers are older than kernels that we run on */
#ifndef UFFD_FEATURE_EXACT_ADDRESS
#define UFFD_FEATURE_EXACT_ADDRESS (1 << 11)
#endif
#ifndef UFFD_FEATURE_WP_HUGETLBFS_SHMEM
#define UFFD_FEATURE_WP_HUGETLBFS_SHMEM (1 << 12)
#endif
#ifndef UFFD_FEATURE_WP_UNPOPULATED
#define UFFD_FEATURE_WP_UNPOPULATED (1 << 13)
#endif
#ifndef UFFD_FEATURE_POISON
#define UFFD_FEATURE_POISON (1 << 14)
#endif
#ifndef UFFD_FEATURE_WP_ASYNC
#define UFFD_FEATURE_WP_ASYNC (1 << 15)
#endif
#ifndef UFFD_FEATURE_MOVE
#define UFFD_FEATURE_MOVE (1 << 16)
#endif
#ifndef USERFAULTFD_IOC_NEW
#define USERFAULTFD_IOC_NEW _IO(0xAA, 0x00)
#endif

static const struct {
    uint64_t bit;
    const char *name;
} features[] = {
    {UFFD_FEATURE_PAGEFAULT_FLAG_WP, "wp"},
    {UFFD_FEATURE_EVENT_FORK, "event-fork"},
    {UFFD_FEATURE_EVENT_REMAP, "event-remap"},
    {UFFD_FEATURE_EVENT_REMOVE, "event-remove"},
    {UFFD_FEATURE_MISSING_HUGETLBFS, "missing-hugetlbfs"},
    {UFFD_FEATURE_MISSING_SHMEM, "missing-shmem"},
    {UFFD_FEATURE_EVENT_UNMAP, "event-unmap"},
    {UFFD_FEATURE_SIGBUS, "sigbus"},
    {UFFD_FEATURE_THREAD_ID, "thread-id"},
    {UFFD_FEATURE_MINOR_HUGETLBFS, "minor-hugetlbfs"},
    {UFFD_FEATURE_MINOR_SHMEM, "minor-shmem"},
    {UFFD_FEATURE_EXACT_ADDRESS, "exact-address"},
    {UFFD_FEATURE_WP_HUGETLBFS_SHMEM, "wp-hugetlbfs-shmem"},
    {UFFD_FEATURE_WP_UNPOPULATED, "wp-unpopulated"},
    {UFFD_FEATURE_POISON, "poison"},
    {UFFD_FEATURE_WP_ASYNC, "wp-async"},
    {UFFD_FEATURE_MOVE, "move"},
};

void ff_uffd_feature_names(uint64_t bits, char *out, unsigned len)
{
    unsigned used = 0;

    out[0] = '\0';
    for (size_t i = 0; i < FF_ARRAY_LEN(features) && used < len; i++)
        if (bits & features[i].bit)
            used += (unsigned)snprintf(out + used, len - used, "%s%s", used ? " " : "",
                                       features[i].name);
}

static int open_dev(void)
{
    FF_AUTO_CLOSE int dev = open("/dev/userfaultfd", O_RDWR | O_CLOEXEC);
    if (dev < 0)
        return -errno;
    int fd = ioctl(dev, USERFAULTFD_IOC_NEW, O_CLOEXEC | O_NONBLOCK);
    return fd < 0 ? -errno : fd;
}

static int open_syscall(void)
{
    /* Without UFFD_USER_MODE_ONLY: KVM and vhost touch guest memory from the kernel */
    int fd = (int)syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK);
    return fd < 0 ? -errno : fd;
}

static int read_sysctl(void)
{
    FF_AUTO_CLOSE int fd = open("/proc/sys/vm/unprivileged_userfaultfd", O_RDONLY | O_CLOEXEC);
    char c;
    return fd >= 0 && read(fd, &c, 1) == 1 ? c - '0' : -1;
}

static int handshake(int fd, uint64_t want, uint64_t *have)
{
    struct uffdio_api api = {.api = UFFD_API, .features = want};
    if (ioctl(fd, UFFDIO_API, &api) < 0)
        return -errno;
    *have = api.features;
    return 0;
}

/* There is nothing to read */
static bool reads_now(int fd)
{
    struct uffd_msg msg;
    struct iovec iov = {.iov_base = &msg, .iov_len = sizeof(msg)};

    return preadv2(fd, &iov, 1, -1, RWF_NOWAIT) < 0 && errno == EAGAIN;
}

void ff_uffd_probe(struct ff_uffd_probe *p)
{
    memset(p, 0, sizeof(*p));
    for (int way = 0; way < 2; way++) {
        FF_AUTO_CLOSE int fd = way == 0 ? open_dev() : open_syscall();
        *(way == 0 ? &p->dev_errno : &p->syscall_errno) = fd < 0 ? -fd : 0;
        if (fd >= 0 && !handshake(fd, 0, &p->features))
            p->reads_now = reads_now(fd);
    }
    p->moves = p->features & UFFD_FEATURE_MOVE;
    p->poisons = p->features & UFFD_FEATURE_POISON;
    p->continues = p->features & UFFD_FEATURE_MINOR_SHMEM;
    p->unprivileged = read_sysctl();
}

static int open_any(const char **way, struct ff_error *err)
{
    int dev = open_dev();
    if (dev >= 0) {
        *way = "/dev/userfaultfd";
        return dev;
    }
    int sys = open_syscall();
    if (sys >= 0) {
        *way = "userfaultfd(2)";
        return sys;
    }
    return ff_error_set(err, -sys,
                        "uffd: open: /dev/userfaultfd: %s; userfaultfd(2): %s; either give this "
                        "user access to /dev/userfaultfd (chmod or an ACL), or run with "
                        "CAP_SYS_PTRACE, or set sysctl vm.unprivileged_userfaultfd=1 (now %d)",
                        strerror(-dev), strerror(-sys), read_sysctl());
}

int ff_uffd_open(struct ff_uffd *u, struct ff_error *err)
{
    const uint64_t need = UFFD_FEATURE_MISSING_SHMEM | UFFD_FEATURE_MISSING_HUGETLBFS;
    const uint64_t like = UFFD_FEATURE_MINOR_SHMEM | UFFD_FEATURE_MINOR_HUGETLBFS |
                          UFFD_FEATURE_MOVE | UFFD_FEATURE_PAGEFAULT_FLAG_WP |
                          UFFD_FEATURE_WP_HUGETLBFS_SHMEM;
    struct ff_uffd_probe p;

    ff_uffd_probe(&p);
    int fd = open_any(&u->way, err);
    if (fd < 0)
        return fd;
    if ((p.features & need) != need) {
        close(fd);
        return ff_error_set(
            err, ENOSYS,
            "uffd: open: this kernel's userfaultfd cannot watch "
            "shared memory (features 0x%llx, need 0x%llx); use kernel 4.11 or newer",
            (unsigned long long)p.features, (unsigned long long)need);
    }
    int rc = handshake(fd, need | (p.features & like), &u->features);
    int keep = rc ? -1 : fcntl(fd, F_DUPFD_CLOEXEC, 0);
    if (rc || keep < 0) {
        rc = rc ? rc : -errno;
        close(fd);
        return ff_error_set(err, -rc, "uffd: open: handshake: %s", strerror(-rc));
    }
    u->fd = fd;
    u->keep_fd = keep;
    u->features &= need | like;
    u->protects = false;
    return 0;
}

void ff_uffd_close(struct ff_uffd *u)
{
    ff_close_fd(&u->fd);
    ff_close_fd(&u->keep_fd);
}
