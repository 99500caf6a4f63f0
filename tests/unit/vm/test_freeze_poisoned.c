/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * test_freeze_poisoned.c - shared memory with a page that a move could not read is not frozen
 */
#include "unit.h"

#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include "cleanup.h"
#include "freeze.h"
#include "pagemap.h"

#define PAGES 16u
#ifndef MFD_HUGE_2MB
#define MFD_HUGE_2MB (21u << 26)
#endif

/* Of Linux 6.6 */
#define FEATURE_POISON (1u << 14)
struct poison {
    uint64_t start, len, mode;
    int64_t updated;
};
#define POISON _IOWR(UFFDIO, 0x08, struct poison)

static struct ff_error err;

static void be_guest(void *at, size_t len, unsigned page, int ready)
{
    struct uffdio_api api = {.api = UFFD_API, .features = FEATURE_POISON};
    struct uffdio_register all = {.range = {(uintptr_t)at, len}, .mode = UFFDIO_REGISTER_MODE_MISSING};
    struct poison q = {(uintptr_t)at + 7 * page, page, 0, 0};
    int own = (int)syscall(SYS_userfaultfd, O_CLOEXEC | UFFD_USER_MODE_ONLY);

    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (ioctl(own, UFFDIO_API, &api) || ioctl(own, UFFDIO_REGISTER, &all) || ioctl(own, POISON, &q))
        _exit(1);
    close(own);
    if (write(ready, "r", 1) == 1)
        pause();
    _exit(1);
}

/* A mark of poison is in the page tables alone: its file has a hole there */
static void refused(unsigned page, unsigned flags, const char *where)
{
    const size_t len = (size_t)PAGES * page;
    struct outside_block b = {.name = "memfd", .len_bytes = len, .psize = page};
    struct freeze *z = NULL;
    int fd = memfd_create("memory", MFD_CLOEXEC | flags), ready[2];
    char c;

    assert_true(fd >= 0 && !ftruncate(fd, (off_t)len) && !pipe(ready));
    void *at = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd, 0);
    assert_ptr_not_equal(at, MAP_FAILED);
    const pid_t pid = fork();
    if (!pid)
        be_guest(at, len, page, ready[1]);
    close(ready[1]);
    assert_int_equal(read(ready[0], &c, 1), 1);
    close(ready[0]);
    b.hva = (uintptr_t)at;
    assert_fails(freeze_new(pid, &b, 1, false, &z, &err), ENOTSUP);
    assert_error(err, ENOTSUP, "poisoned");
    assert_non_null(strstr(err.text, where));
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
    munmap(at, len);
    close(fd);
}

static bool can_poison(void)
{
    struct uffdio_api api = {.api = UFFD_API};
    int uffd = (int)syscall(SYS_userfaultfd, O_CLOEXEC | UFFD_USER_MODE_ONLY);
    bool can = uffd >= 0 && !ioctl(uffd, UFFDIO_API, &api) && api.features & FEATURE_POISON;

    if (uffd >= 0)
        close(uffd);
    return can;
}

static void test_small(void **state)
{
    (void)state;
    if (!can_poison())
        skip();
    refused(4096, 0, "0x7000");
}

/* None of its pages is there, so no pool is needed */
static void test_huge(void **state)
{
    struct pm_scan_arg nothing = {.size = sizeof(nothing)};
    FF_AUTO_CLOSE int pagemap = ff_pagemap_open();

    (void)state;
    if (!can_poison() || ioctl(pagemap, PAGEMAP_SCAN, &nothing))
        skip();
    refused(2 << 20, MFD_HUGETLB | MFD_HUGE_2MB, "0xe00000");
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_small), cmocka_unit_test(test_huge)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
