/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * test_unreadable.c - pages that nobody can read are found without a touch, wherever they are; also
 *                     in an agent's sandbox. Pages of a file that is too short stand in for memory
 *                     that has failed
 */
#include "unit.h"

#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include "cleanup.h"
#include "mr.h"
#include "uffd.h"

#define PAGE 4096u
#define N 1100u /* more than one call looks at */

static uint8_t *mem;

static uint8_t *map_new(int fd)
{
    uint8_t *p = mmap(NULL, N * PAGE, PROT_READ | PROT_WRITE,
                      fd < 0 ? MAP_PRIVATE | MAP_ANONYMOUS : MAP_SHARED, fd, 0);

    assert_true(p != MAP_FAILED);
    return p;
}

static void spoil(uint32_t page)
{
    FF_AUTO_CLOSE int fd = memfd_create("too short", MFD_CLOEXEC);

    assert_true(mmap(mem + (size_t)page * PAGE, PAGE, PROT_READ, MAP_SHARED | MAP_FIXED, fd, 0) !=
                MAP_FAILED);
}

static void test_readable(void **state)
{
    static const uint32_t from[] = {0, 1, 4095, 4096, 5000};
    (void)state;

    mem = map_new(-1);
    for (size_t i = 0; i < FF_ARRAY_LEN(from); i++)
        for (uint32_t len = 1; len <= N * PAGE - from[i]; len = len * 7 + 5)
            assert_int_equal(ff_readable(mem + from[i], len), len);
    assert_int_equal(ff_readable(mem, N * PAGE), N * PAGE);
    static const uint32_t bad[] = {1030, 512, 511, 3}; /* each before the one before it */
    for (size_t b = 0; b < FF_ARRAY_LEN(bad); b++) {
        spoil(bad[b]);
        for (size_t i = 0; i < FF_ARRAY_LEN(from); i++)
            assert_int_equal(ff_readable(mem + from[i], N * PAGE - from[i]),
                             bad[b] * PAGE - from[i]);
        assert_int_equal(ff_readable(mem, bad[b] * PAGE), bad[b] * PAGE);
        assert_int_equal(ff_readable(mem + bad[b] * PAGE + 9, 1), 0);
    }
    munmap(mem, N * PAGE);
}

static bool bit(const uint8_t *map, uint32_t i)
{
    return map[i / 8] & (1u << (i % 8));
}

/* Pages 3, 4, 700 and the last cannot be read; of the others each third is not zero */
static void check_scan(const struct ff_backing *file, uint32_t granule)
{
    uint32_t per = granule / PAGE, n = 1024 / per, left_out = 0;
    uint8_t zero[128] = {0}, poison[128] = {0};

    uint32_t got = ff_zero_scan_file(file, mem, n * granule, granule, zero, poison);
    for (uint32_t i = 0; i < n; i++) {
        bool bad = false, zeros = true;
        for (uint32_t page = i * per; page < (i + 1) * per; page++) {
            bool is_bad = page == 3 || page == 4 || page == 700 || page == 1023;
            bad |= is_bad;
            zeros &= is_bad || page % 3;
        }
        assert_int_equal(bit(poison, i), bad);
        assert_int_equal(bit(zero, i), bad || zeros);
        left_out += bad || zeros;
    }
    assert_int_equal(got, left_out);
}

static void spoil_all(void)
{
    spoil(3);
    spoil(4);
    spoil(700);
    spoil(1023);
}

static void test_scan(void **state)
{
    const struct ff_backing none = {.fd = -1};
    (void)state;

    mem = map_new(-1);
    for (uint32_t page = 0; page < N; page += 3)
        mem[(size_t)page * PAGE + page] = 1;
    spoil_all();
    check_scan(&none, PAGE);
    check_scan(&none, 2 * PAGE);
    check_scan(&none, 64 * PAGE);
    munmap(mem, N * PAGE);
}

/* The holes of the file stay holes, and what it has no page for is found as well */
static void test_scan_file(void **state)
{
    FF_AUTO_CLOSE int fd = memfd_create("file", MFD_CLOEXEC);
    struct ff_backing file = {.fd = fd};
    struct stat before, after;
    (void)state;

    assert_int_equal(ftruncate(fd, N * PAGE), 0);
    mem = map_new(fd);
    for (uint32_t page = 0; page < N; page += 3)
        mem[(size_t)page * PAGE + page] = 1;
    /* of a hole the file itself would say that it is one */
    mem[(size_t)4 * PAGE] = mem[(size_t)700 * PAGE] = 1;
    spoil_all();
    assert_int_equal(fstat(fd, &before), 0);
    check_scan(&file, PAGE);
    assert_int_equal(fstat(fd, &after), 0);
    assert_true(before.st_blocks == after.st_blocks && after.st_blocks);
    munmap(mem, N * PAGE);
}

/* Behind the file's end nothing can be read: there are no holes */
static void test_file_cut(void **state)
{
    FF_AUTO_CLOSE int fd = memfd_create("file", MFD_CLOEXEC);
    struct ff_backing file = {.fd = fd};
    uint8_t zero[128] = {0}, poison[128] = {0};
    (void)state;

    assert_int_equal(ftruncate(fd, N * PAGE), 0);
    mem = map_new(fd);
    for (uint32_t page = 0; page < 16; page += 2)
        mem[(size_t)page * PAGE] = 1;
    assert_int_equal(ftruncate(fd, 13 * PAGE), 0);
    assert_int_equal(ff_zero_scan_file(&file, mem, 16 * PAGE, PAGE, zero, poison), 9);
    for (uint32_t page = 0; page < 16; page++) {
        assert_int_equal(bit(poison, page), page >= 13);
        assert_int_equal(bit(zero, page), page % 2 || page >= 13);
    }
    munmap(mem, N * PAGE);
}

/* What a destination on a kernel that cannot poison forbids, its guest's next move finds */
static void test_forbidden(void **state)
{
    (void)state;

    mem = map_new(-1);
    assert_int_equal(mprotect(mem + 700 * PAGE, PAGE, PROT_NONE), 0);
    assert_int_equal(ff_readable(mem, N * PAGE), 700 * PAGE);
    assert_int_equal(ff_readable(mem + 700 * PAGE + 9, 1), 0);
    munmap(mem, N * PAGE);
}

/* A hole, and a page that was poisoned by userfaultfd, as in a guest that came with one: of memory
 * of each kind */
static void check_marked(int fd, bool shared, enum ff_uffd_memory memory, uint32_t psize)
{
    /* QEMU offers shared memory that has such pages without its file */
    const struct ff_backing file = {.fd = shared ? -1 : fd, .is_private = !shared};
    uint8_t zero = 0, poison = 0, here;
    struct ff_error err;
    struct ff_uffd u;
    uint64_t done;

    mem = mmap(NULL, 2 * psize, PROT_READ | PROT_WRITE,
               (shared ? MAP_SHARED : MAP_PRIVATE) | (fd < 0 ? MAP_ANONYMOUS : MAP_NORESERVE), fd,
               0);
    assert_true(mem != MAP_FAILED);
    struct ff_uffd_range r = {.host = mem, .len_bytes = 2 * psize, .psize = psize, .shared = shared,
                              .memory = memory, .landing = FF_UFFD_COPY};
    if (ff_uffd_open(&u, &err)) {
        print_message("SKIP: %s\n", err.text);
        skip();
    }
    assert_ok(ff_uffd_register(&u, &r, "memory", &err), err);
    int rc = ff_uffd_poison(&u, &r, psize, psize, &done, &err);
    if (rc == -EINVAL) {
        print_message("SKIP: %s\n", err.text);
        skip();
    }
    assert_ok(rc, err);
    assert_ok(ff_uffd_unregister(&u, &r, &err), err);
    ff_uffd_close(&u);
    assert_int_equal(ff_zero_scan_file(&file, mem, 2 * psize, psize, &zero, &poison), 2);
    assert_int_equal(zero, 3);
    assert_int_equal(poison, 2);
    assert_int_equal(ff_readable(mem + psize, psize), 0);
    assert_true(fd < 0 || shared || (!mincore(mem, 1, &here) && !(here & 1)));
    munmap(mem, 2 * psize);
}

static void test_marked(void **state)
{
    FF_AUTO_CLOSE int fd = memfd_create("file", MFD_CLOEXEC);
    (void)state;

    assert_int_equal(ftruncate(fd, 2 * PAGE), 0);
    check_marked(-1, false, FF_UFFD_ANON, PAGE);
    check_marked(fd, false, FF_UFFD_ANON, PAGE);
    check_marked(fd, true, FF_UFFD_SHMEM, PAGE);
}

/* Also in the pool of huge pages, of which the hole takes none */
static void test_marked_huge(void **state)
{
    FF_AUTO_CLOSE int fd = memfd_create("huge", MFD_CLOEXEC | MFD_HUGETLB | 21u << 26);
    struct stat st;
    (void)state;

    if (fd < 0 || ftruncate(fd, 4 << 20)) {
        print_message("SKIP: no huge pages: %s\n", strerror(errno));
        skip();
    }
    check_marked(fd, false, FF_UFFD_HUGETLB, 2 << 20);
    assert_false(fstat(fd, &st));
    assert_int_equal(st.st_blocks, 0);
}

/* From here on, as agent_confine() has it */
static int deny(void **state)
{
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_process_vm_writev, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)};
    const struct sock_fprog program = {.len = FF_ARRAY_LEN(code), .filter = code};
    char a = 1, b = 0;
    (void)state;

    assert_false(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0));
    assert_false(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program));
    assert_int_equal(process_vm_writev(getpid(), &(struct iovec){&a, 1}, 1, &(struct iovec){&b, 1},
                                       1, 0), -1);
    assert_int_equal(errno, EPERM);
    return 0;
}

#define DENIED(test) {#test ", denied", test, deny, NULL, NULL}

UNIT_MAIN(cmocka_unit_test(test_readable), cmocka_unit_test(test_scan),
          cmocka_unit_test(test_scan_file), cmocka_unit_test(test_file_cut),
          cmocka_unit_test(test_forbidden), cmocka_unit_test(test_marked),
          cmocka_unit_test(test_marked_huge), DENIED(test_readable), DENIED(test_scan),
          DENIED(test_scan_file), DENIED(test_file_cut), DENIED(test_forbidden),
          DENIED(test_marked), DENIED(test_marked_huge))
