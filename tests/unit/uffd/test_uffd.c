/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * test_uffd.c - installs that the kernel does in part, or not now; a userfaultfd that another
 *               process holds, too
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <unistd.h>

#include "kept_log.h"
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

/* --- the kernel's answers to UFFDIO_COPY, by turns --- */

#define PAGE 4096u

/* Bytes that are done, or -errno; 0: it is asked really, which here means of a closed descriptor */
static const int64_t *answers;
static unsigned n_asked;
static struct uffdio_copy asked[16];

int __real_ioctl(int fd, unsigned long request, ...);
int __wrap_ioctl(int fd, unsigned long request, ...);

int __wrap_ioctl(int fd, unsigned long request, ...)
{
    va_list ap;

    va_start(ap, request);
    void *arg = va_arg(ap, void *);
    va_end(ap);
    if (!answers || request != UFFDIO_COPY)
        return __real_ioctl(fd, request, arg);
    struct uffdio_copy *c = arg;
    assert_true(n_asked < 16);
    asked[n_asked] = *c;
    int64_t answer = answers[n_asked++];
    if (answer == (int64_t)c->len) {
        c->copy = answer;
        return 0;
    }
    c->copy = answer; /* as the kernel has it: part of it, and EAGAIN */
    errno = answer > 0 ? EAGAIN : (int)-answer;
    return -1;
}

static int install_by(const int64_t *says, uint64_t len, uint64_t *done, struct ff_error *err)
{
    static uint8_t page[4 * PAGE];
    struct ff_uffd u = {.fd = -1, .keep_fd = -1};
    struct ff_uffd_range r = {.host = (uint8_t *)0x10000, .len_bytes = sizeof(page), .psize = PAGE,
                              .memory = FF_UFFD_ANON, .landing = FF_UFFD_COPY};

    answers = says;
    n_asked = 0;
    int rc = ff_uffd_install(&u, &r, 0, page, len, true, done, err);
    answers = NULL;
    for (uint64_t i = 1; i < n_asked; i++) /* what is left, from where it comes */
        assert_int_equal(asked[i].dst - asked[0].dst, asked[i].src - asked[0].src);
    return rc;
}

static void part_of_a_copy(void **state)
{
    static const int64_t parts[] = {PAGE, -EAGAIN, 2 * PAGE, PAGE};
    struct ff_error err;
    uint64_t done;

    (void)state;
    assert_ok(install_by(parts, 4 * PAGE, &done, &err), err);
    assert_int_equal(done, 4 * PAGE);
    assert_int_equal(n_asked, 4);
    assert_int_equal(asked[1].dst, 0x10000 + PAGE);
    assert_int_equal(asked[2].len, 3 * PAGE);
    assert_int_equal(asked[3].dst, 0x10000 + 3 * PAGE);
}

static void part_and_no_memory(void **state)
{
    static const int64_t parts[] = {2 * PAGE, -ENOMEM};
    struct ff_error err;
    uint64_t done;

    (void)state;
    int rc = install_by(parts, 4 * PAGE, &done, &err);
    assert_int_equal(rc, -ENOMEM);
    assert_int_equal(err.code, ENOMEM);
    assert_true(ff_uffd_may_pass(rc));
    assert_int_equal(done, 2 * PAGE); /* these are there, and are not installed again */
    assert_int_equal(n_asked, 2);
}

static void part_and_another_has_it(void **state)
{
    static const int64_t parts[] = {PAGE, -EEXIST};
    struct ff_error err;
    uint64_t done;

    (void)state;
    assert_int_equal(install_by(parts, 2 * PAGE, &done, &err), -EEXIST);
    assert_int_equal(done, PAGE);
    assert_false(ff_uffd_may_pass(-EEXIST));
}

/* --- a file system without room --- */

#define SMALL_FS "/tmp"

/* A tmpfs of eight pages, in a mount namespace of this process: a file in it that claims more */
static int file_in_small_fs(uint64_t len, int *filler)
{
    if (unshare(CLONE_NEWNS) || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) ||
        mount("none", SMALL_FS, "tmpfs", 0, "size=32K"))
        return -1;
    int fd = open(SMALL_FS "/memory", O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    assert_true(fd >= 0 && !ftruncate(fd, (off_t)len));
    *filler = open(SMALL_FS "/filler", O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    assert_true(*filler >= 0 && !fallocate(*filler, 0, 0, 4 * PAGE));
    return fd;
}

static void no_room_in_file(void **state)
{
    uint64_t len = 16 * PAGE, done = 0, at = 0;
    static const uint8_t page[PAGE] = {7};
    struct ff_error err = {.code = 0};
    struct ff_uffd u;
    int rc = 0, filler = -1;

    (void)state;
    if (ff_uffd_open(&u, &err)) {
        print_message("SKIP: %s\n", err.text);
        skip();
    }
    int fd = file_in_small_fs(len, &filler);
    if (fd < 0) {
        print_message("SKIP: cannot mount a tmpfs here: %s\n", strerror(errno));
        ff_uffd_close(&u);
        skip();
    }
    uint8_t *p = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    uint8_t *alias = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    struct ff_uffd_range r = {.host = p, .len_bytes = len, .psize = PAGE, .shared = true,
                              .memory = FF_UFFD_SHMEM, .landing = FF_UFFD_CONTINUE,
                              .alias = alias};
    assert_true(p != MAP_FAILED && alias != MAP_FAILED);
    assert_ok(ff_uffd_register(&u, &r, "file", &err), err);
    for (; at < len && !rc; at += PAGE) /* not by SIGBUS */
        rc = ff_uffd_install(&u, &r, at, at % (2 * PAGE) ? page : NULL, PAGE, true, &done, &err);
    at -= PAGE;
    assert_int_equal(rc, -ENOMEM);
    assert_true(ff_uffd_may_pass(rc) && strstr(err.text, "no room in the file"));
    assert_true(at >= 2 * PAGE && at <= 4 * PAGE && !done);
    assert_false(ftruncate(filler, 0)); /* somebody makes room: the same page goes in */
    assert_ok(ff_uffd_install(&u, &r, at, page, PAGE, true, &done, &err), err);
    assert_int_equal(p[at], 7);
    assert_int_equal(p[PAGE], 7);
    ff_uffd_close(&u);
    munmap(p, len);
    munmap(alias, len);
    close(fd);
    close(filler);
    assert_false(umount2(SMALL_FS, MNT_DETACH));
}

/* --- what is poisoned stays so --- */

#define HUGE (2u << 20)
#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25
#endif

static sigjmp_buf back;

static void on_signal(int sig)
{
    siglongjmp(back, sig);
}

static int signal_at(const volatile uint8_t *p)
{
    int sig = sigsetjmp(back, 1);

    if (!sig)
        (void)*p;
    return sig;
}

static uint8_t *map_huge(int fd)
{
    uint8_t *p = mmap(NULL, 2 * HUGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    assert_true(p != MAP_FAILED);
    p += -(uintptr_t)p & (HUGE - 1);
    p = mmap(p, HUGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0);
    assert_true(p != MAP_FAILED);
    return p;
}

/* Also when somebody makes a huge page of the file, where the page is a hole */
static void poisoned_for_good(void **state)
{
    struct sigaction act = {.sa_handler = on_signal}, before;
    int fd = memfd_create("poisoned", MFD_CLOEXEC);
    struct ff_error err = {.code = 0};
    static uint8_t src[HUGE];
    uint64_t done;

    (void)state;
    assert_true(fd >= 0 && !ftruncate(fd, HUGE));
    uint8_t *p = map_huge(fd), *other = map_huge(fd);
    struct ff_uffd_range r = {.host = p, .len_bytes = HUGE, .psize = PAGE, .shared = true,
                              .memory = FF_UFFD_SHMEM, .landing = FF_UFFD_COPY};
    struct ff_uffd u;
    if (ff_uffd_open(&u, &err)) {
        print_message("SKIP: %s\n", err.text);
        skip();
    }
    assert_ok(ff_uffd_register(&u, &r, "file", &err), err);
    int rc = ff_uffd_poison(&u, &r, 7 * PAGE, PAGE, &done, &err);
    if (rc == -EINVAL) {
        print_message("SKIP: %s\n", err.text);
        skip();
    }
    assert_ok(rc, err);
    memset(src, 5, sizeof(src));
    assert_ok(ff_uffd_install(&u, &r, 0, src, 7 * PAGE, true, &done, &err), err);
    assert_ok(ff_uffd_install(&u, &r, 8 * PAGE, src, HUGE - 8 * PAGE, true, &done, &err), err);
    assert_ok(ff_uffd_unregister(&u, &r, &err), err);
    ff_uffd_close(&u);
    assert_false(sigaction(SIGBUS, &act, &before));
    assert_int_equal(signal_at(p + 7 * PAGE), SIGBUS);
    madvise(p, HUGE, MADV_HUGEPAGE);
    madvise(p, HUGE, MADV_COLLAPSE);
    assert_int_equal(signal_at(p + 7 * PAGE), SIGBUS);
    assert_int_equal(other[0], 5);
    if (madvise(other, HUGE, MADV_COLLAPSE))
        print_message("SKIP: nobody can make a huge page here: %s\n", strerror(errno));
    assert_int_equal(other[7 * PAGE], 0);
    assert_int_equal(signal_at(p + 7 * PAGE), SIGBUS);
    assert_int_equal(p[6 * PAGE] + p[8 * PAGE], 10);
    assert_false(sigaction(SIGBUS, &before, NULL));
    munmap(p, HUGE);
    munmap(other, HUGE);
    close(fd);
}

/* --- a kernel that refuses advice --- */

static bool refuses_advice;

int __real_madvise(void *p, size_t len, int advice);
int __wrap_madvise(void *p, size_t len, int advice);

int __wrap_madvise(void *p, size_t len, int advice)
{
    if (!refuses_advice || advice != MADV_RANDOM)
        return __real_madvise(p, len, advice);
    errno = ENOMEM; /* it has as many mappings as it may */
    return -1;
}

/* It is poisoned all the same, and who reads the log learns of it once */
static void poisoned_not_for_good(void **state)
{
    int fd = memfd_create("poisoned", MFD_CLOEXEC);
    struct ff_error err = {.code = 0};
    struct ff_uffd u;
    uint64_t done;

    (void)state;
    assert_true(fd >= 0 && !ftruncate(fd, 2 * PAGE));
    uint8_t *p = mmap(NULL, 2 * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    assert_true(p != MAP_FAILED);
    struct ff_uffd_range r = {.host = p, .len_bytes = 2 * PAGE, .psize = PAGE, .shared = true,
                              .memory = FF_UFFD_SHMEM, .landing = FF_UFFD_COPY};
    if (ff_uffd_open(&u, &err)) {
        print_message("SKIP: %s\n", err.text);
        skip();
    }
    assert_ok(ff_uffd_register(&u, &r, "file", &err), err);
    keep_logs_from_now(FF_LOG_WARN);
    refuses_advice = true;
    for (unsigned i = 0; i < 2; i++) {
        int rc = ff_uffd_poison(&u, &r, i * PAGE, PAGE, &done, &err);
        if (rc == -EINVAL) {
            print_message("SKIP: %s\n", err.text);
            skip();
        }
        assert_ok(rc, err);
    }
    refuses_advice = false;
    assert_int_equal(atomic_load(&n_logs), 1);
    assert_non_null(strstr(last_log, "vm.max_map_count"));
    ff_log_set(NULL, FF_LOG_WARN);
    assert_ok(ff_uffd_unregister(&u, &r, &err), err);
    ff_uffd_close(&u);
    munmap(p, 2 * PAGE);
    close(fd);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(cleared_flag),
        cmocka_unit_test(part_of_a_copy),
        cmocka_unit_test(part_and_no_memory),
        cmocka_unit_test(part_and_another_has_it),
        cmocka_unit_test(no_room_in_file),
        cmocka_unit_test(poisoned_for_good),
        cmocka_unit_test(poisoned_not_for_good),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
