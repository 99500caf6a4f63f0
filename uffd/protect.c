/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * protect.c - userfaultfd: whoever writes to a page that is there waits, and is reported
 */
#include <errno.h>
#include <linux/userfaultfd.h>
#include <sched.h>
#include <string.h>
#include <sys/ioctl.h>

#include "cleanup.h"
#include "error.h"
#include "uffd.h"

#ifndef UFFD_FEATURE_WP_HUGETLBFS_SHMEM /* Linux 5.19 */
#define UFFD_FEATURE_WP_HUGETLBFS_SHMEM (1 << 12)
#endif

/* The address space changes: that takes microseconds, but a page that is not let go of hangs who waits */
#define AGAIN_LIMIT_NS 1000000000ull

bool ff_uffd_can_protect(uint64_t features, enum ff_uffd_memory memory)
{
    uint64_t need = UFFD_FEATURE_PAGEFAULT_FLAG_WP |
                    (memory == FF_UFFD_ANON ? 0 : UFFD_FEATURE_WP_HUGETLBFS_SHMEM);

    return (features & need) == need;
}

int ff_uffd_protect(struct ff_uffd *u, const struct ff_uffd_range *r, uint64_t offset, uint64_t len, bool on,
                    struct ff_error *err)
{
    struct uffdio_writeprotect w = {.range = {.start = (uintptr_t)r->host + offset, .len = len},
                                    .mode = on ? UFFDIO_WRITEPROTECT_MODE_WP : 0};
    uint64_t start = ff_now_ns();

    while (ioctl(u->fd, UFFDIO_WRITEPROTECT, &w) < 0) {
        int e = errno;
        if (e != EAGAIN || ff_now_ns() - start > AGAIN_LIMIT_NS)
            return ff_error_set(err, e, "uffd: %s %llu bytes at offset 0x%llx: %s", on ? "protect" : "unprotect",
                                (unsigned long long)len, (unsigned long long)offset, strerror(e));
        sched_yield();
    }
    return 0;
}
