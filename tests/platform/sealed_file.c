/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * sealed_file.c - a file that is sealed against new writers: its old mapping goes on, nobody gets
 * in
 *
 * A descriptor for reading alone does not protect a memfd: /proc/self/fd opens it for writing. The
 * agent seals its files (F_SEAL_FUTURE_WRITE, SHRINK, GROW) once it has mapped them, and fills them
 * by UFFDIO_COPY into that mapping. Children map them privately.
 * Source: memfd_create(2), fcntl(2); measured by this program
 */
#include "platform.h"

#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x0010
#endif
#define SEALS (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_FUTURE_WRITE)

static int reopen(int fd, int how)
{
    char path[32];

    snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
    return open(path, how | O_CLOEXEC);
}

/* What may change the file: the first that is permitted, or NULL */
static const char *breach(int fd, size_t len)
{
    void *p = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);

    if (p != MAP_FAILED)
        return "a shared mapping that can be written to";
    p = mmap(NULL, len, PROT_READ, MAP_SHARED, fd, 0);
    if (p != MAP_FAILED && !mprotect(p, len, PROT_READ | PROT_WRITE))
        return "mprotect() of a shared mapping";
    if (pwrite(fd, "x", 1, 0) == 1)
        return "a write";
    if (!ftruncate(fd, 0) || !ftruncate(fd, (off_t)(4 * len)))
        return "another length";
    if (!fallocate(fd, FALLOC_FL_KEEP_SIZE | FALLOC_FL_PUNCH_HOLE, 0, (off_t)len))
        return "a hole";
    return NULL;
}

static void try(const char *what, int fd, size_t psize)
{
    unsigned char *agent, *child;
    const char *by;
    int uffd, view, writer;

    PL_MUST(fd >= 0 && ftruncate(fd, (off_t)(2 * psize)) == 0);
    agent = pl_map(fd, 2 * psize, MAP_SHARED);
    uffd = pl_uffd(0);
    PL_MUST(pl_register(uffd, agent, 2 * psize, UFFDIO_REGISTER_MODE_MISSING));
    view = reopen(fd, O_RDONLY);
    PL_MUST(view >= 0);
    writer = reopen(view, O_RDWR);
    if (fcntl(fd, F_ADD_SEALS, SEALS | F_SEAL_SEAL) < 0)
        pl_fails("%s: cannot be sealed while it is mapped: %s", what, strerror(errno));
    by = writer < 0 ? NULL : breach(writer, psize);
    if (!by && (writer = reopen(view, O_RDWR)) >= 0)
        by = breach(writer, psize);
    if (by)
        pl_fails("%s: a sealed file is changed by %s", what, by);
    child = pl_map(view, 2 * psize, MAP_PRIVATE);
    if (pl_copy(uffd, agent, pl_pattern(psize, 'S'), psize, NULL))
        pl_fails("%s: UFFDIO_COPY into a mapping of a sealed file: %s", what, strerror(errno));
    if (!pl_all(child, psize, 'S'))
        pl_fails("%s: what was copied in is not in the file", what);
    memset(child, 'C', psize);
    if (!pl_all(agent, psize, 'S'))
        pl_fails("%s: a private write is seen in the file", what);
    agent[0] = 'A';
    if (*(volatile unsigned char *)agent != 'A')
        pl_fails("%s: the mapping that was there before cannot be written to", what);
}

int main(void)
{
    const unsigned flags = MFD_CLOEXEC | MFD_ALLOW_SEALING;
    const char *why;

    pl_start();
    try("memfd", memfd_create("farfork-platform", flags), pl_page());
    why = pl_huge_reserve(4);
    if (why)
        pl_holds("for 4 KiB pages; huge pages: %s", why);
    try("hugetlb", memfd_create("farfork-platform", flags | MFD_HUGETLB | (21u << 26)), PL_HUGE);
    pl_holds("for 4 KiB and 2 MiB pages");
}
