/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * test_uffd.c - a userfaultfd that another process holds, too
 */
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "uffd.h"
#include "unit.h"

/* Its other holder clears O_NONBLOCK: an agent that reads it must not wait, for it has others to
 * serve */
static void cleared_flag(void **state)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    uint8_t *p = mmap(NULL, page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    struct ff_uffd_range r = {.host = p, .len_bytes = page, .psize = (uint32_t)page,
                              .memory = FF_UFFD_ANON, .landing = FF_UFFD_COPY};
    struct ff_uffd own, agents;
    struct ff_error err = {.code = 0};
    uint64_t addr[4];

    (void)state;
    assert_true(p != MAP_FAILED);
    if (ff_uffd_open(&own, &err)) {
        print_message("SKIP: %s\n", err.text);
        skip();
    }
    assert_ok(ff_uffd_register(&own, &r, "page", &err), err);
    assert_ok(ff_uffd_adopt(&agents, fcntl(own.fd, F_DUPFD_CLOEXEC, 0), (uintptr_t)p, page, &err),
              err);
    assert_int_equal(ff_uffd_read(&agents, addr, 4, &err), 0);
    assert_int_equal(fcntl(own.fd, F_SETFL, fcntl(own.fd, F_GETFL) & ~O_NONBLOCK), 0);
    alarm(20); /* a read that waits ends this program */
    int rc = ff_uffd_read(&agents, addr, 4, &err);
    alarm(0);
    /* 0: nothing is there; a kernel that cannot read so has to refuse */
    assert_true(!rc || rc == -EBADFD);
    ff_uffd_close(&agents);
    ff_uffd_close(&own);
    munmap(p, page);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(cleared_flag)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
