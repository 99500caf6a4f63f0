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

#include "freeze.h"

#define PAGES 512u
#define PAGE 4096u

/* Of Linux 6.6 */
#define FEATURE_POISON (1u << 14)
struct poison {
    uint64_t start, len, mode;
    int64_t updated;
};
#define POISON _IOWR(UFFDIO, 0x08, struct poison)

static struct ff_error err;

/* A mark of poison is in the page tables alone: its file has a hole there */
static void test_poisoned(void **state)
{
    struct uffdio_api api = {.api = UFFD_API};
    struct freeze *z = NULL;
    const struct outside_block b = {.name = "memfd", .len_bytes = PAGES * PAGE, .psize = PAGE};
    int fd = memfd_create("memory", MFD_CLOEXEC), ready[2];

    (void)state;
    int uffd = (int)syscall(SYS_userfaultfd, O_CLOEXEC | UFFD_USER_MODE_ONLY);
    if (uffd < 0 || ioctl(uffd, UFFDIO_API, &api) || !(api.features & FEATURE_POISON))
        skip();
    close(uffd);
    assert_true(fd >= 0 && !ftruncate(fd, (off_t)PAGES * PAGE) && !pipe(ready));
    void *at = mmap(NULL, (size_t)PAGES * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    const pid_t pid = fork();
    if (!pid) {
        struct poison q = {(uintptr_t)at + 7 * PAGE, PAGE, 0, 0};
        struct uffdio_register all = {.range = {(uintptr_t)at, PAGES * PAGE}, .mode = UFFDIO_REGISTER_MODE_MISSING};
        int own = (int)syscall(SYS_userfaultfd, O_CLOEXEC | UFFD_USER_MODE_ONLY);

        api.features = FEATURE_POISON;
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (ioctl(own, UFFDIO_API, &api) || ioctl(own, UFFDIO_REGISTER, &all) || ioctl(own, POISON, &q))
            _exit(1);
        close(own);
        memset(at, 1, 3 * PAGE);
        if (write(ready[1], "r", 1) != 1)
            _exit(1);
        pause();
    }
    close(ready[1]);
    char c;
    assert_int_equal(read(ready[0], &c, 1), 1);
    close(ready[0]);
    struct outside_block there = b;
    there.hva = (uintptr_t)at;
    assert_fails(freeze_new(pid, &there, 1, false, &z, &err), ENOTSUP);
    assert_error(err, ENOTSUP, "0x7000", "poisoned");
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
    munmap(at, (size_t)PAGES * PAGE);
    close(fd);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_poisoned)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
