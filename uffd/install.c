/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * install.c - userfaultfd: register ranges, read faults, install pages, wake
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <sched.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/pidfd.h>
#include <sys/uio.h>
#include <unistd.h>

#include "cleanup.h"
#include "error.h"
#include "failpoint.h"
#include "log.h"
#include "populate.h"
#include "uffd.h"

/* The kernel says EAGAIN while the address space changes, which takes microseconds */
#define AGAIN_LIMIT_NS 10000000ull

#define READ_BATCH 32
#define UNREGISTER_PIECE (64ull << 20)

#ifndef MADV_DONTNEED_LOCKED /* Linux 5.18 */
#define MADV_DONTNEED_LOCKED 24
#endif

/* Linux 6.6; see linux/userfaultfd.h there */
#ifndef UFFDIO_POISON
struct uffdio_poison {
    struct uffdio_range range;
    __u64 mode;
    __s64 updated;
};
#define UFFDIO_POISON _IOWR(UFFDIO, 0x08, struct uffdio_poison)
#endif

/* Linux 6.8; see linux/userfaultfd.h there */
#ifndef UFFDIO_MOVE
#define UFFD_FEATURE_MOVE (1 << 16)
struct uffdio_move {
    __u64 dst, src, len, mode;
    __s64 move;
};
#define UFFDIO_MOVE _IOWR(UFFDIO, 0x05, struct uffdio_move)
#endif

int ff_uffd_adopt(struct ff_uffd *u, int fd, uint64_t start, uint64_t len, struct ff_error *err)
{
    struct uffdio_range range = {.start = start, .len = len};
    int flags = fcntl(fd, F_GETFL);

    if (ioctl(fd, UFFDIO_WAKE, &range) < 0)
        return ff_error_set(err, EINVAL, "uffd: adopt: not a userfaultfd that watches memory: %s",
                            strerror(errno));
    if (flags < 0 || fcntl(fd, F_SETFL, flags | O_NONBLOCK) < 0)
        return ff_error_set(err, EINVAL, "uffd: adopt: %s", strerror(errno));
    *u = (struct ff_uffd){.fd = fd, .keep_fd = -1, .way = "another process"};
    return 0;
}

int ff_uffd_register(struct ff_uffd *u, const struct ff_uffd_range *r, const char *name,
                     struct ff_error *err)
{
    bool minor = ff_uffd_is_minor(r);
    uint64_t need = r->memory == FF_UFFD_HUGETLB ? UFFD_FEATURE_MINOR_HUGETLBFS
                                                 : UFFD_FEATURE_MINOR_SHMEM;
    uint64_t ioctls = (minor ? 1ull << _UFFDIO_CONTINUE : 0) |
                      (r->landing == FF_UFFD_COPY ? 1ull << _UFFDIO_COPY : 0) |
                      (r->guarded ? 1ull << _UFFDIO_WRITEPROTECT : 0);

    if (minor && (r->memory == FF_UFFD_ANON || !r->alias))
        return ff_error_set(err, EINVAL,
                            "uffd: register %s: landing by continue needs shared memory", name);
    if (minor && !(u->features & need))
        return ff_error_set(err, ENOSYS,
                            "uffd: register %s: this kernel has no minor faults for this memory; "
                            "use landing=copy", name);
    if (r->guarded && !ff_uffd_can_protect(u->features, r->memory))
        return ff_error_set(err, ENOTSUP,
                            "uffd: register %s: this kernel does not report writes to this memory (want Linux "
                            "5.7, of shared memory 5.19)", name);
    struct uffdio_register reg = {
        .range = {.start = (uintptr_t)r->host, .len = r->len_bytes},
        .mode = UFFDIO_REGISTER_MODE_MISSING | (minor ? UFFDIO_REGISTER_MODE_MINOR : 0) |
                (r->guarded ? UFFDIO_REGISTER_MODE_WP : 0),
    };
    if (ioctl(u->fd, UFFDIO_REGISTER, &reg) < 0) {
        int e = errno;
        return ff_error_set(err, e, "uffd: register %s (%llu bytes, page size %u): %s%s", name,
                            (unsigned long long)r->len_bytes, r->psize, strerror(e),
                            e == EINVAL ? "; memory must be anonymous, memfd, tmpfs or hugetlbfs"
                            : e == EBUSY ? "; another userfaultfd watches it"
                                         : "");
    }
    if ((reg.ioctls & ioctls) != ioctls) {
        ff_uffd_unregister(u, r, NULL);
        return ff_error_set(
            err, ENOSYS,
            "uffd: register %s: the kernel installs no pages there (ioctls 0x%llx, need 0x%llx)",
            name, (unsigned long long)reg.ioctls, (unsigned long long)ioctls);
    }
    return 0;
}

/* What is guarded is looked at page by page, with the lock of the mapping: by pieces others have it in between */
static void unregister_guarded(struct ff_uffd *u, const struct ff_uffd_range *r)
{
    for (uint64_t at = 0; at < r->len_bytes; at += UNREGISTER_PIECE) {
        struct uffdio_range piece = {.start = (uintptr_t)r->host + at,
                                     .len = FF_MIN(r->len_bytes - at, UNREGISTER_PIECE)};
        if (ioctl(u->fd, UFFDIO_UNREGISTER, &piece) < 0)
            return; /* the rest as a whole */
    }
}

int ff_uffd_unregister(struct ff_uffd *u, const struct ff_uffd_range *r, struct ff_error *err)
{
    struct uffdio_range range = {.start = (uintptr_t)r->host, .len = r->len_bytes};

    if (r->guarded)
        unregister_guarded(u, r);
    if (ioctl(u->fd, UFFDIO_UNREGISTER, &range) < 0)
        return ff_error_set(err, errno, "uffd: unregister: %s", strerror(errno));
    /* The kernel wakes who waits, and only then takes the mark away from the mapping: a thread that
     * faults by the lock of the mapping alone (Linux 6.7) can be back in between, and waits for
     * nobody. Nobody comes after that */
    if (ioctl(u->fd, UFFDIO_WAKE, &range) < 0)
        return ff_error_set(err, errno, "uffd: wake at the end: %s", strerror(errno));
    return 0;
}

/* Whoever shares the open file may clear O_NONBLOCK at any time: RWF_NOWAIT does not depend on it
 * (tests/platform/shared_uffd.c). Linux has it from 6.10 on; before that the flag is looked at */
static ssize_t read_now(struct ff_uffd *u, void *buf, size_t len)
{
    struct iovec iov = {.iov_base = buf, .iov_len = len};
    ssize_t got = u->may_block ? -1 : preadv2(u->fd, &iov, 1, -1, RWF_NOWAIT);

    if (got >= 0 || (!u->may_block && errno != EOPNOTSUPP))
        return got;
    u->may_block = true;
    int flags = fcntl(u->fd, F_GETFL);
    if (flags < 0 || !(flags & O_NONBLOCK)) {
        errno = EBADFD;
        return -1;
    }
    return read(u->fd, buf, len);
}

int ff_uffd_read(struct ff_uffd *u, uint64_t *addr, unsigned n, struct ff_error *err)
{
    struct uffd_msg msg[READ_BATCH];
    int found = 0;

    ssize_t got = read_now(u, msg, FF_MIN(n, (unsigned)READ_BATCH) * sizeof(msg[0]));
    if (got < 0)
        return errno == EAGAIN || errno == EINTR
                   ? 0
                   : ff_error_set(err, errno, "uffd: read: %s", strerror(errno));
    for (size_t i = 0; i < (size_t)got / sizeof(msg[0]); i++) {
        if (msg[i].event != UFFD_EVENT_PAGEFAULT)
            return ff_error_set(err, EPROTO, "uffd: read: unasked event %u", msg[i].event);
        addr[found++] = (msg[i].arg.pagefault.address & ~(uint64_t)FF_UFFD_WRITE) |
                        (msg[i].arg.pagefault.flags & UFFD_PAGEFAULT_FLAG_WP ? FF_UFFD_WRITE : 0);
    }
    return found;
}

/* What one ioctl did: bytes done, or -errno */
static int64_t install_once(struct ff_uffd *u, uint64_t dst, const void *src, uint64_t len,
                            bool as_continue, bool wake)
{
    if (as_continue) {
        struct uffdio_continue c = {.range = {.start = dst, .len = len},
                                    .mode = wake ? 0 : UFFDIO_CONTINUE_MODE_DONTWAKE};
        return ioctl(u->fd, UFFDIO_CONTINUE, &c) < 0 && c.mapped <= 0 ? -errno : c.mapped;
    }
    if (!src) {
        struct uffdio_zeropage z = {.range = {.start = dst, .len = len},
                                    .mode = wake ? 0 : UFFDIO_ZEROPAGE_MODE_DONTWAKE};
        return ioctl(u->fd, UFFDIO_ZEROPAGE, &z) < 0 && z.zeropage <= 0 ? -errno : z.zeropage;
    }
    struct uffdio_copy c = {.dst = dst,
                            .src = (uintptr_t)src,
                            .len = len,
                            .mode = (wake ? 0 : UFFDIO_COPY_MODE_DONTWAKE) | (u->protects ? UFFDIO_COPY_MODE_WP : 0)};
    return ioctl(u->fd, UFFDIO_COPY, &c) < 0 && c.copy <= 0 ? -errno : c.copy;
}

/* COPY looks at the destination first, then at the source, which cannot be read */
static int check_page(struct ff_uffd *u, uint64_t at, const void *unreadable, uint32_t psize)
{
    uint64_t start = ff_now_ns();
    int64_t n;

    do {
        n = install_once(u, at, unreadable, psize, false, false);
    } while (n == -EAGAIN && ff_now_ns() - start < AGAIN_LIMIT_NS);
    return n == -EFAULT || n == -EEXIST || n == -ENOMEM || n == -EAGAIN ? 0 : (int)n;
}

int ff_uffd_check(struct ff_uffd *u, const struct ff_uffd_range *r, const char *name,
                  struct ff_error *err)
{
    uint64_t first = (uintptr_t)r->host, last = first + r->len_bytes - r->psize;
    void *none = mmap(NULL, r->psize, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    if (none == MAP_FAILED)
        return ff_error_set(err, errno, "uffd: %s: map: %s", name, strerror(errno));
    int rc = check_page(u, first, none, r->psize);
    if (!rc)
        rc = check_page(u, last, none, r->psize);
    munmap(none, r->psize);
    if (rc == -ESRCH)
        return ff_error_set(err, ESRCH, "uffd: %s: the process that has this memory has ended",
                            name);
    return !rc ? 0
               : ff_error_set(err, EINVAL,
                              "uffd: %s: its userfaultfd does not watch 0x%llx to 0x%llx: %s", name,
                              (unsigned long long)first, (unsigned long long)last + r->psize,
                              strerror(-rc));
}

/* A page of hugetlb: in the file, whence CONTINUE maps it (and wakes nobody), or in the page table?
 * mincore() says so of every page of a file that this process may not write, but of private memory
 * nobody else has one */
static bool is_there(struct ff_uffd *u, const struct ff_uffd_range *r, uint64_t offset)
{
    uint8_t *page = r->host + offset;
    unsigned char mapped = 0;

    if (!r->shared)
        return !mincore(page, 1, &mapped) && mapped & 1;
    int64_t n = install_once(u, (uintptr_t)page, NULL, r->psize, true, false);
    return n > 0 || n == -EEXIST;
}

static int uffd_install_run(struct ff_uffd *u, const struct ff_uffd_range *r, uint64_t offset,
                            const uint8_t *src, uint64_t len, bool wake, uint64_t *done,
                            struct ff_error *err)
{
    bool as_continue = r->landing == FF_UFFD_CONTINUE || ff_uffd_ready(r, offset, len);
    uint64_t start = 0;

    while (len) {
        int64_t n = install_once(u, (uintptr_t)r->host + offset, src, len, as_continue, wake);
        if (n == -EEXIST && r->memory == FF_UFFD_HUGETLB && !is_there(u, r, offset))
            n = -ENOMEM; /* so the kernel says when the pool is empty */
        if (n == -EEXIST && r->elsewhere) { /* its owner's; who waited for it is awake, or was not */
            if (wake)
                ff_uffd_wake(u, r, offset, r->psize, NULL);
            n = r->psize;
        }
        if (n == -EAGAIN) {
            uint64_t now = ff_now_ns();
            start = start ? start : now;
            if (now - start < AGAIN_LIMIT_NS) {
                sched_yield();
                continue;
            }
        }
        if (n <= 0)
            return ff_error_set(err, n ? (int)-n : EIO,
                                "uffd: install %llu bytes at offset 0x%llx: %s",
                                (unsigned long long)len, (unsigned long long)offset,
                                n == -ENOMEM && r->memory == FF_UFFD_HUGETLB
                                    ? "no free huge pages (see HugePages_Free in /proc/meminfo)"
                                : n == -ESRCH ? "the process that has this memory has ended"
                                : n == -ENOENT ? "it is not watched any more"
                                    : strerror(n ? (int)-n : EIO));
        offset += (uint64_t)n;
        len -= (uint64_t)n;
        *done += (uint64_t)n;
        src = src ? src + n : NULL;
    }
    return 0;
}

/* hugetlb has no UFFDIO_ZEROPAGE; one page of zeros serves for all of them */
static int install_zeros_by_copy(struct ff_uffd *u, const struct ff_uffd_range *r, uint64_t offset,
                                 uint64_t len, bool wake, uint64_t *done, struct ff_error *err)
{
    static const uint8_t zeros[2 << 20];

    if (r->psize > sizeof(zeros))
        return ff_error_set(err, ENOTSUP, "uffd: install zeros: page size %u (at most %zu)",
                            r->psize, sizeof(zeros));
    for (uint64_t at = 0; at < len; at += r->psize) {
        int rc = uffd_install_run(u, r, offset + at, zeros, r->psize, wake, done, err);
        if (rc)
            return rc;
    }
    return 0;
}

/* The alias is written whole before the page can be seen. A file system that is full would answer
 * the write by SIGBUS */
static int fill_alias(const struct ff_uffd_range *r, uint64_t offset, const void *src, uint64_t len,
                      struct ff_error *err)
{
    uint8_t *to = r->alias + offset;

    if (src == to)
        return 0;
    int rc = src && ff_uffd_ready(r, offset, len) ? 0 : ff_populate(to, len, err);
    if (rc) {
        ff_error_pass(err, rc, "uffd: install at offset 0x%llx", (unsigned long long)offset);
        return rc;
    }
    if (src)
        memcpy(to, src, len);
    else
        memset(to, 0, len);
    return 0;
}

int ff_uffd_install(struct ff_uffd *u, const struct ff_uffd_range *r, uint64_t offset,
                    const void *src, uint64_t len, bool wake, uint64_t *done, struct ff_error *err)
{
    uint64_t ready = ff_uffd_ready(r, offset, len), more;

    *done = 0;
    if (ready && ready < len) {
        int rc = ff_uffd_install(u, r, offset, src, ready, wake, done, err);
        if (rc)
            return rc;
        src = src ? (const uint8_t *)src + ready : NULL;
        rc = ff_uffd_install(u, r, offset + ready, src, len - ready, wake, &more, err);
        *done += more;
        return rc;
    }
    if (ready || r->landing == FF_UFFD_CONTINUE) {
        int rc = fill_alias(r, offset, src, len, err);
        if (rc)
            return rc;
    } else if (!src && r->memory == FF_UFFD_HUGETLB) {
        return install_zeros_by_copy(u, r, offset, len, wake, done, err);
    }
    return uffd_install_run(u, r, offset, src, len, wake, done, err);
}

bool ff_uffd_drop_ready(const struct ff_uffd_range *r, uint64_t offset, uint64_t len)
{
    len = ff_uffd_ready(r, offset, len);
    return !len || !madvise(r->alias + offset, len, MADV_REMOVE);
}

int ff_uffd_empty_ready(const struct ff_uffd_range *r, struct ff_error *err)
{
    uint64_t ready = r->ready_bytes, rest = r->len_bytes - ready;

    if ((madvise(r->host, ready, MADV_DONTNEED) && madvise(r->host, ready, MADV_DONTNEED_LOCKED)) ||
        (rest && madvise(r->alias + ready, rest, MADV_REMOVE)))
        return ff_error_set(err, errno, "uffd: empty %llu bytes: %s (is the memory locked?)",
                            (unsigned long long)r->len_bytes, strerror(errno));
    return 0;
}

bool ff_uffd_can_move(const struct ff_uffd *u)
{
    return u->features & UFFD_FEATURE_MOVE;
}

int ff_uffd_move(struct ff_uffd *u, const struct ff_uffd_range *r, uint64_t offset, void *src,
                 uint64_t len, uint64_t *moved, uint64_t *done, struct ff_error *err)
{
    uint64_t start = ff_now_ns();

    for (*moved = *done = 0; *done < len; *moved = *done) {
        struct uffdio_move m = {.dst = (uintptr_t)r->host + offset + *done,
                                .src = (uintptr_t)src + *done,
                                .len = len - *done};
        int e = ioctl(u->fd, UFFDIO_MOVE, &m) < 0 ? errno : 0;
        if (m.move > 0)
            *done += (uint64_t)m.move;
        else if (e == EBUSY || e == EINVAL)
            return uffd_install_run(u, r, offset + *done, (uint8_t *)src + *done, len - *done, true,
                                    done, err);
        else if (e != EAGAIN || ff_now_ns() - start > AGAIN_LIMIT_NS)
            return ff_error_set(err, e ? e : EIO, "uffd: move %llu bytes to offset 0x%llx: %s",
                                (unsigned long long)(len - *done),
                                (unsigned long long)(offset + *done), strerror(e ? e : EIO));
        else
            sched_yield();
    }
    return 0;
}

/* Who makes a huge page of a file, khugepaged or another process, drops the page tables of those who
 * map it, and what is poisoned in them reads as zeros then. It leaves alone who has not mapped all
 * of the 2 MiB at once: advice that nobody else gives makes these pages a mapping of their own */
static void keep_apart(const struct ff_uffd_range *r, uint64_t start, uint64_t len)
{
    static atomic_bool told;

    if (r->shared && madvise((void *)(uintptr_t)start, len, MADV_RANDOM) &&
        !atomic_exchange(&told, true))
        ff_log(FF_LOG_WARN, "uffd: keep a poisoned page apart: %s (see vm.max_map_count): it may "
               "read as zeros when the kernel makes a huge page there", strerror(errno));
}

int ff_uffd_poison(struct ff_uffd *u, const struct ff_uffd_range *r, uint64_t offset, uint64_t len,
                   uint64_t *done, struct ff_error *err)
{
    uint64_t start = ff_now_ns();

    for (*done = 0; *done < len;) {
        struct uffdio_poison q = {
            .range = {.start = (uintptr_t)r->host + offset + *done, .len = len - *done}};
        int e = ff_failpoint("uffd.poison");
        e = e ? -e : ioctl(u->fd, UFFDIO_POISON, &q) < 0 ? errno : 0;
        if (q.updated > 0) {
            *done += (uint64_t)q.updated;
            if (!r->elsewhere)
                keep_apart(r, q.range.start, (uint64_t)q.updated);
        } else if (e != EAGAIN || ff_now_ns() - start > AGAIN_LIMIT_NS) {
            return ff_error_set(err, e ? e : EIO, "uffd: poison %llu bytes at offset 0x%llx: %s",
                                (unsigned long long)(len - *done),
                                (unsigned long long)(offset + *done),
                                e == EINVAL ? "this kernel cannot (Linux 6.6 can)"
                                            : strerror(e ? e : EIO));
        } else {
            sched_yield();
        }
    }
    return 0;
}

int ff_uffd_forbid(struct ff_uffd *u, const struct ff_uffd_range *r, uint64_t offset, uint64_t len,
                   struct ff_error *err)
{
    if (mprotect(r->host + offset, len, PROT_NONE))
        return ff_error_set(err, errno, "uffd: forbid %llu bytes at offset 0x%llx: %s",
                            (unsigned long long)len, (unsigned long long)offset, strerror(errno));
    return ff_uffd_wake(u, r, offset, len, err);
}

int ff_uffd_discard(const struct ff_uffd_range *r, const struct iovec *part, unsigned n,
                    struct ff_error *err)
{
    /* a file's page would come back from the file, were it only unmapped */
    int advice = r->shared && r->landing == FF_UFFD_COPY ? MADV_REMOVE : MADV_DONTNEED;
    FF_AUTO_CLOSE int self = n > 1 ? pidfd_open(getpid(), 0) : -1;
    size_t total = 0;

    for (unsigned i = 0; i < n; i++)
        total += part[i].iov_len;
    /* all at once costs half: 0.4 us a page, not 1.9 us a part. Own memory: from Linux 6.13 on */
    if (self >= 0 && process_madvise(self, part, n, advice, 0) == (ssize_t)total)
        return 0;
    for (unsigned i = 0; i < n; i++) {
        if (!madvise(part[i].iov_base, part[i].iov_len, advice))
            continue;
        int e = errno;
        return ff_error_set(err, e, "uffd: discard %zu bytes at offset 0x%llx: %s%s",
                            part[i].iov_len,
                            (unsigned long long)((uint8_t *)part[i].iov_base - r->host),
                            strerror(e),
                            e != EINVAL                     ? ""
                            : r->memory == FF_UFFD_HUGETLB ? " (hugetlb: needs Linux 5.18)"
                                                           : " (is the memory locked?)");
    }
    return 0;
}

int ff_uffd_wake(struct ff_uffd *u, const struct ff_uffd_range *r, uint64_t offset, uint64_t len,
                 struct ff_error *err)
{
    struct uffdio_range range = {.start = (uintptr_t)r->host + offset, .len = len};
    if (ioctl(u->fd, UFFDIO_WAKE, &range) < 0)
        return ff_error_set(err, errno, "uffd: wake: %s", strerror(errno));
    return 0;
}

int ff_uffd_map_again(struct ff_uffd *u, const struct ff_uffd_range *r, uint64_t offset,
                      struct ff_error *err)
{
    int64_t n = install_once(u, (uintptr_t)r->host + offset, NULL, r->psize, true, true);

    /* EEXIST, and all that a later try may mend: who waits asks again if it is not mapped */
    return n == -EEXIST || n == -ENOMEM || n == -EAGAIN || n > 0
               ? ff_uffd_wake(u, r, offset, r->psize, err)
               : ff_error_set(err, n ? (int)-n : EIO, "uffd: map offset 0x%llx again: %s",
                              (unsigned long long)offset, strerror(n ? (int)-n : EIO));
}
