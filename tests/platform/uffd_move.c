/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * uffd_move.c - UFFDIO_MOVE: what it takes as a source, and what it refuses
 *
 * Farfork stages pages in anonymous memory that was never shared by fork, never mlocked and is no
 * memfd, and moves them. Refused: EBUSY after a fork, EINVAL for mlocked and memfd sources.
 * Source: ioctl_userfaultfd(2), UFFDIO_MOVE; measured by this program
 */
#include "platform.h"

static int move(int uffd, unsigned char *dst, unsigned char *src, size_t len)
{
    struct uffdio_move m = {.dst = (uintptr_t)dst, .src = (uintptr_t)src, .len = len};

    return ioctl(uffd, UFFDIO_MOVE, &m) == 0 ? 0 : -errno;
}

/* 2 MiB aligned anonymous memory; a huge page if the kernel has one to give. */
static unsigned char *aligned(void)
{
    unsigned char *p = pl_anon(2 * PL_HUGE);

    p += -(uintptr_t)p & (PL_HUGE - 1);
    PL_MUST(madvise(p, PL_HUGE, MADV_HUGEPAGE) == 0 || errno == EINVAL);
    return p;
}

/* Kilobytes of the mapping at @p that are in huge pages. */
static long huge_kib(const unsigned char *p)
{
    FILE *f = fopen("/proc/self/smaps", "re");
    char line[256];
    unsigned long lo, hi;
    bool here = false;
    long kib = 0;

    PL_MUST(f);
    while (fgets(line, sizeof(line), f)) {
        if (sscanf(line, "%lx-%lx ", &lo, &hi) == 2)
            here = (uintptr_t)p >= lo && (uintptr_t)p < hi;
        if (here && sscanf(line, "AnonHugePages: %ld", &kib) == 1)
            break;
    }
    fclose(f);
    return kib;
}

static void forked(unsigned char *p)
{
    pid_t pid = fork();

    PL_MUST(pid >= 0);
    if (pid == 0)
        _exit(p[0] != 'M');
    PL_MUST(waitpid(pid, NULL, 0) == pid);
}

int main(void)
{
    const size_t psize = pl_page();
    unsigned char *dst, *src, *big;
    struct pl_touch t;
    int uffd, ret;
    long before, after;

    pl_start();
    uffd = pl_uffd(UFFD_FEATURE_MOVE);
    dst = pl_anon(8 * psize);
    PL_MUST(pl_register(uffd, dst, 8 * psize, UFFDIO_REGISTER_MODE_MISSING));

    src = memset(pl_anon(psize), 'M', psize);
    pl_touch(&t, dst, -1);
    PL_MUST(pl_fault(uffd, dst, psize, 0));
    ret = move(uffd, dst, src, psize);
    if (ret || !pl_touched(&t) || !pl_all(dst, psize, 'M') || src[0] != 0)
        pl_fails("MOVE of a staged page: %d, the thread saw %d, the source keeps %d", ret, t.seen,
                 src[0]);
    ret = move(uffd, dst, memset(src, 'X', psize), psize);
    if (ret != -EEXIST || dst[0] != 'M')
        pl_fails("MOVE onto a present page: %d, expected EEXIST", ret);

    src = memset(pl_anon(psize), 'M', psize);
    forked(src);
    ret = move(uffd, dst + psize, src, psize);
    if (ret != -EBUSY)
        pl_fails("MOVE of a page once shared by fork: %d, expected EBUSY", ret);
    src = memset(pl_anon(psize), 'M', psize);
    if (mlock(src, psize) == 0 && (ret = move(uffd, dst + psize, src, psize)) != -EINVAL)
        pl_fails("MOVE of an mlocked page: %d, expected EINVAL", ret);
    src = memset(pl_map(pl_memfd(psize), psize, MAP_SHARED), 'M', psize);
    ret = move(uffd, dst + psize, src, psize);
    if (ret != -EINVAL)
        pl_fails("MOVE of a memfd page: %d, expected EINVAL", ret);

    big = aligned();
    PL_MUST(pl_register(uffd, big, PL_HUGE, UFFDIO_REGISTER_MODE_MISSING));
    src = memset(aligned(), 'M', PL_HUGE);
    before = huge_kib(src);
    ret = move(uffd, big, src, PL_HUGE);
    after = huge_kib(big);
    if (ret || !pl_all(big, PL_HUGE, 'M'))
        pl_fails("MOVE of 2 MiB: %d, or the content differs", ret);
    pl_holds("MOVE takes staged pages; EEXIST, EBUSY after fork, EINVAL mlocked or memfd; 2 MiB: "
             "%ld KiB huge before, %ld after", before, after);
}
