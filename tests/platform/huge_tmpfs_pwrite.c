/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * huge_tmpfs_pwrite.c - one 4 KiB pwrite into a huge tmpfs makes all 512 pages count as present
 *
 * Guards: fill in whole 2 MiB, or register MISSING|MINOR, under which an unfilled page waits. The
 * verdict is about the second. The tmpfs is mounted nowhere and vanishes with the program.
 * Source: measured by this program; Documentation/filesystems/tmpfs.rst, huge=
 */
#include "platform.h"
#include <sys/mount.h>

enum { SMALL = 512 }; /* 4 KiB pages in 2 MiB */

static int huge_file(size_t len)
{
    int fs = fsopen("tmpfs", FSOPEN_CLOEXEC), mnt, fd;

    if (fs < 0)
        pl_skip("no tmpfs of our own (%s): run as root", strerror(errno));
    if (fsconfig(fs, FSCONFIG_SET_STRING, "huge", "always", 0) != 0 ||
        fsconfig(fs, FSCONFIG_CMD_CREATE, NULL, NULL, 0) != 0)
        pl_skip("tmpfs with huge=always: %s; kernel with CONFIG_TRANSPARENT_HUGEPAGE needed",
                strerror(errno));
    mnt = fsmount(fs, FSMOUNT_CLOEXEC, 0);
    PL_MUST(mnt >= 0);
    fd = openat(mnt, "file", O_CREAT | O_EXCL | O_RDWR | O_CLOEXEC, 0600);
    PL_MUST(fd >= 0 && ftruncate(fd, (off_t)len) == 0);
    return fd;
}

static unsigned char *aligned(int fd, size_t len)
{
    unsigned char *p = pl_map(-1, len + PL_HUGE, MAP_PRIVATE | MAP_ANONYMOUS);

    p += -(uintptr_t)p & (PL_HUGE - 1);
    PL_MUST(mmap(p, len, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0) == p);
    return p;
}

int main(void)
{
    unsigned char resident[SMALL], *p;
    const size_t psize = pl_page();
    int uffd, fd, present = 0, seen;
    struct pl_touch t;

    pl_start();
    if (psize != PL_HUGE / SMALL)
        pl_skip("pages are %zu bytes here, not 4 KiB: nothing to do", psize);
    fd = huge_file(PL_HUGE);
    p = aligned(fd, PL_HUGE);
    PL_MUST(pwrite(fd, pl_pattern(psize, 'P'), psize, 0) == (ssize_t)psize);
    PL_MUST(mincore(p, PL_HUGE, resident) == 0);
    for (int i = 0; i < SMALL; i++)
        present += resident[i] & 1;
    if (present == 1)
        pl_skip("the kernel used a small page (shmem_enabled=deny, or no 2 MiB block free): echo "
                "never >/sys/kernel/mm/transparent_hugepage/shmem_enabled, free memory, try again");

    uffd = pl_uffd(UFFD_FEATURE_MISSING_SHMEM | UFFD_FEATURE_MINOR_SHMEM);
    PL_MUST(pl_register(uffd, p, PL_HUGE, UFFDIO_REGISTER_MODE_MISSING));
    seen = pl_peek(p + 300 * psize);
    close(uffd);

    fd = huge_file(PL_HUGE);
    p = aligned(fd, PL_HUGE);
    PL_MUST(pwrite(fd, pl_pattern(psize, 'P'), psize, 0) == (ssize_t)psize);
    uffd = pl_uffd(UFFD_FEATURE_MISSING_SHMEM | UFFD_FEATURE_MINOR_SHMEM);
    PL_MUST(pl_register(uffd, p, PL_HUGE,
                        UFFDIO_REGISTER_MODE_MISSING | UFFDIO_REGISTER_MODE_MINOR));
    pl_touch(&t, p + 300 * psize, -1);
    if (!pl_fault(uffd, p + 300 * psize, psize, UFFD_PAGEFAULT_FLAG_MINOR) || !pl_blocked(&t))
        pl_fails("MISSING|MINOR: a page never filled did not wait for its handler");
    pl_holds("after one 4 KiB pwrite %d of %d pages are present; page 300, never filled, under "
             "MISSING alone %s; under MISSING|MINOR it waits", present, SMALL,
             seen == 0 ? "reads 0 without an event, as recorded" : "waits");
}
