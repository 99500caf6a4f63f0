/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * test_written.c - which pages of another process are written, whoever writes them for it
 *
 *   owner: memory of one kind; it does what it is told, a word each, and says when that is done
 */
#include "unit.h"

#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <linux/userfaultfd.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/uio.h>

#include "bitmap.h"
#include "pagemap.h"
#include "watch.h"
#include "written.h"

#define PAGES 4096u /* 16 MiB */
#define PAGE 4096u
#define HUGE (2u << 20)

enum what { STORE, READ_CALL, LOOK, DROP, MAP_ANEW };

struct order {
    uint32_t what, page;
};

static struct ff_error err;
static struct outside_block block;
static struct written w;
static uint64_t bits[PAGES / 64 + 1], n_pages;
static pid_t owner;
static int go, told;

static int source(void) /* of bytes for read(2) */
{
    int fd = open("/dev/zero", O_RDONLY | O_CLOEXEC);
    return fd < 0 ? _exit(8), -1 : fd;
}

static void own(uint8_t *at, int from, int to)
{
    struct order o;
    int zeros = source();

    prctl(PR_SET_PDEATHSIG, SIGKILL);
    while (read(from, &o, sizeof(o)) == sizeof(o)) {
        volatile uint8_t *p = at + o.page * PAGE;
        bool bad = false;

        switch (o.what) {
        case STORE: *p = *p + 1; break;
        case READ_CALL: bad = read(zeros, at + o.page * PAGE + 7, 100) != 100; break;
        case LOOK: (void)*p; break;
        case DROP: bad = madvise(at + o.page * PAGE, PAGE, MADV_DONTNEED); break; /* of a file: the entry alone */
        case MAP_ANEW:
            bad = mmap(at + o.page * PAGE, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) ==
                  MAP_FAILED;
        }
        if (bad || write(to, "", 1) != 1)
            _exit(1);
    }
    _exit(0);
}

static void tell(enum what what, uint32_t page)
{
    struct order o = {what, page};
    char x;

    assert_int_equal(write(go, &o, sizeof(o)), sizeof(o));
    assert_int_equal(read(told, &x, 1), 1);
}

/* Every second page has something, and the second half nothing at all */
static void start_owner(void *at, uint32_t psize)
{
    int to[2], from[2];

    assert_ptr_not_equal(at, MAP_FAILED);
    assert_int_equal(pipe(to) || pipe(from), 0);
    owner = fork();
    if (!owner) {
        close(to[1]);
        close(from[0]);
        for (unsigned i = 0; i < PAGES / 2; i += 2)
            ((uint8_t *)at)[i * PAGE] = 7;
        own(at, to[0], from[1]);
    }
    close(to[0]);
    close(from[1]);
    go = to[1];
    told = from[0];
    munmap(at, PAGES * PAGE);
    block = (struct outside_block){.name = "ram", .len_bytes = PAGES * PAGE, .max_bytes = PAGES * PAGE, .hva = (uintptr_t)at,
                                   .psize = psize};
    tell(LOOK, 0);
}

static void end_owner(void)
{
    close(go);
    close(told);
    waitpid(owner, NULL, 0);
}

static void begin(void)
{
    if (written_begin(&w, owner, 0, &block, 1, &err))
        fail_msg("begin: %s", err.text);
}

/* Exactly these are written; UINT32_MAX ends them */
static void check_written(const uint32_t *want)
{
    uint64_t n = 0;

    if (written_read(&w, 0, bits, &n_pages, &err))
        fail_msg("read: %s", err.text);
    for (; want[n] != UINT32_MAX; n++)
        if (!ff_bitmap_get(bits, want[n]))
            fail_msg("page %u was written, and is not said to be", want[n]);
    if (n_pages != n)
        fail_msg("%llu pages (want %llu)", (unsigned long long)n_pages, (unsigned long long)n);
}

/* Nothing of it is there: no descriptor, and no block that is registered */
static void check_nothing_left(void)
{
    char path[64], line[512];
    FILE *f;

    snprintf(path, sizeof(path), "ls -l /proc/%d/fd", (int)owner);
    f = popen(path, "r");
    while (f && fgets(line, sizeof(line), f))
        if (strstr(line, "userfaultfd"))
            fail_msg("left: %s", line);
    pclose(f);
    snprintf(path, sizeof(path), "/proc/%d/smaps", (int)owner);
    f = fopen(path, "re");
    while (f && fgets(line, sizeof(line), f))
        if (strstr(line, "VmFlags") && strstr(line, " uw"))
            fail_msg("still registered: %s", line);
    fclose(f);
}

static bool is_possible(void)
{
    if (!written_possible(&err))
        return true;
    print_message("      skipped: %s\n", err.text);
    return false;
}

static void write_from_outside(uint32_t page)
{
    struct iovec here = {(void *)"abc", 3}, there = {(uint8_t *)block.hva + page * PAGE, 3};

    assert_int_equal(process_vm_writev(owner, &here, 1, &there, 1, 0), 3);
}

static void log_writes(void *at)
{
    if (!is_possible())
        skip();
    start_owner(at, PAGE);
    begin();
    check_written((uint32_t[]){UINT32_MAX});
    tell(STORE, 4);
    tell(STORE, PAGES - 1);
    tell(READ_CALL, 6);
    tell(LOOK, 8);
    write_from_outside(2050);
    check_written((uint32_t[]){4, 6, 2050, PAGES - 1, UINT32_MAX});
    tell(STORE, 4);
    tell(STORE, 5); /* a hole beside others that have something */
    check_written((uint32_t[]){4, 5, 6, 2050, PAGES - 1, UINT32_MAX}); /* nothing is forgotten */
    written_end(&w);
    check_nothing_left();
    tell(STORE, 9);
    end_owner();
}

static void *private_memory(void)
{
    void *at = mmap(NULL, PAGES * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    madvise(at, PAGES * PAGE, MADV_NOHUGEPAGE);
    return at;
}

static void *shared_memory(int fd)
{
    assert_int_equal(ftruncate(fd, PAGES * PAGE), 0);
    void *at = mmap(NULL, PAGES * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    return at;
}

static void test_private(void **state)
{
    (void)state;
    log_writes(private_memory());
}

/* Who reads that memory then populates nothing: empty entries have no markers */
static void test_private_stays_empty(void **state)
{
    char path[64];
    uint64_t entry;

    (void)state;
    if (!is_possible())
        skip();
    start_owner(private_memory(), PAGE);
    begin();
    snprintf(path, sizeof(path), "/proc/%d/pagemap", (int)owner);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    assert_true(ff_pagemap_read(fd, (void *)(block.hva + 12 * PAGE), 1, &entry));
    assert_true(entry & FF_PM_PRESENT);
    assert_true(ff_pagemap_read(fd, (void *)(block.hva + 13 * PAGE), 1, &entry));
    assert_false(entry & (FF_PM_PRESENT | FF_PM_SWAPPED));
    close(fd);
    written_end(&w);
    end_owner();
}

static void test_memfd(void **state)
{
    (void)state;
    log_writes(shared_memory(memfd_create("ram", MFD_CLOEXEC)));
}

static void test_file(void **state)
{
    char name[] = "/var/tmp/ff-written-XXXXXX";
    int fd = mkstemp(name);

    (void)state;
    unlink(name);
    log_writes(shared_memory(fd));
}

/* What was written and is reclaimed since has an empty entry: a file's own says nothing of it */
static void test_reclaimed(void **state)
{
    (void)state;
    if (!is_possible())
        skip();
    start_owner(shared_memory(memfd_create("ram", MFD_CLOEXEC)), PAGE);
    begin();
    tell(STORE, 12);
    tell(DROP, 12);
    check_written((uint32_t[]){12, UINT32_MAX});
    tell(DROP, 14); /* nobody wrote to that one: a marker stays */
    check_written((uint32_t[]){12, UINT32_MAX});
    written_end(&w);
    end_owner();
}

/* A huge page is split by the first write: no more is said to be written than was, once it is */
static void test_huge(void **state)
{
    uint8_t *at = mmap(NULL, PAGES * PAGE + HUGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    uint8_t *aligned = (uint8_t *)(((uintptr_t)at + HUGE - 1) & ~(uintptr_t)(HUGE - 1));

    (void)state;
    if (!is_possible())
        skip();
    madvise(aligned, PAGES * PAGE, MADV_HUGEPAGE);
    start_owner(aligned, PAGE);
    begin();
    check_written((uint32_t[]){UINT32_MAX});
    tell(STORE, 513);
    check_written((uint32_t[]){513, UINT32_MAX});
    written_end(&w);
    check_nothing_left();
    end_owner();
}

static void test_hugetlb(void **state)
{
    void *at = mmap(NULL, PAGES * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_HUGETLB, -1, 0);

    (void)state;
    if (at == MAP_FAILED || !is_possible()) {
        print_message("      skipped: no pool of huge pages (vm.nr_hugepages=16)\n");
        skip();
    }
    start_owner(at, HUGE);
    begin();
    check_written((uint32_t[]){UINT32_MAX});
    tell(STORE, 513);
    tell(STORE, 7 * 512);
    check_written((uint32_t[]){1, 7, UINT32_MAX});
    written_end(&w);
    check_nothing_left();
    end_owner();
}

/* The kernel takes all of it away from the other process */
static void test_killed(void **state)
{
    int status;

    (void)state;
    if (!is_possible())
        skip();
    start_owner(private_memory(), PAGE);
    pid_t pid = fork();
    if (!pid) {
        begin();
        raise(SIGKILL);
    }
    waitpid(pid, &status, 0);
    assert_true(WIFSIGNALED(status));
    check_nothing_left();
    tell(STORE, 3);
    begin(); /* and another one can */
    tell(STORE, 2);
    check_written((uint32_t[]){2, UINT32_MAX});
    written_end(&w);
    end_owner();
}

static void test_mapped_anew(void **state)
{
    (void)state;
    if (!is_possible())
        skip();
    start_owner(private_memory(), PAGE);
    begin();
    tell(MAP_ANEW, 17);
    assert_fails(written_read(&w, 0, bits, &n_pages, &err), EFAULT);
    assert_error(err, EFAULT, "ram", "mapped anew");
    written_end(&w);
    end_owner();
}

static void test_watched_already(void **state)
{
    struct written other;

    (void)state;
    if (!is_possible())
        skip();
    start_owner(private_memory(), PAGE);
    begin();
    assert_fails(written_begin(&other, owner, 0, &block, 1, &err), EBUSY);
    assert_error(err, EBUSY, "ram", "another userfaultfd");
    written_end(&other);
    tell(STORE, 1);
    check_written((uint32_t[]){1, UINT32_MAX});
    written_end(&w);
    end_owner();
}

static void test_has_ended(void **state)
{
    (void)state;
    if (!is_possible())
        skip();
    start_owner(private_memory(), PAGE);
    begin();
    kill(owner, SIGKILL);
    end_owner();
    assert_true(written_read(&w, 0, bits, &n_pages, &err) < 0);
    written_end(&w);
}

/* The kernel is as one before PAGEMAP_SCAN */
static int ask_old_kernel(void)
{
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_ioctl, 0, 3),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[1])),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, PAGEMAP_SCAN, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ENOTTY),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog filter = {.len = FF_ARRAY_LEN(code), .filter = code};

    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter))
        return 3;
    int rc = written_begin(&w, getppid(), 0, &block, 1, &err);
    written_end(&w);
    return rc == -ENOTSUP && strstr(err.text, "leave precopy=1 out") ? 0 : 1;
}

static void test_old_kernel(void **state)
{
    int status;

    (void)state;
    pid_t pid = fork();
    if (!pid)
        _exit(ask_old_kernel());
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
}

/* --- memory that a watch logs --- */

static void land(const struct watch *watch, unsigned page, bool zeros)
{
    static uint8_t bytes[PAGE] = {9};
    struct uffdio_copy c = {.dst = block.hva + page * PAGE, .src = (uintptr_t)bytes, .len = PAGE, .mode = UFFDIO_COPY_MODE_WP};
    struct uffdio_zeropage z = {.range = {block.hva + page * PAGE, PAGE}};

    assert_int_equal(zeros ? ioctl(watch->fd, UFFDIO_ZEROPAGE, &z) : ioctl(watch->fd, UFFDIO_COPY, &c), 0);
}

/* What lands protected and is read is as it came; of zeros nobody knows */
static void look(void *at)
{
    struct watch watch;

    if (!is_possible())
        skip();
    start_owner(at, PAGE);
    int rc = watch_begin(&watch, owner, 0, -1, &block, 1, true, &err);
    if (rc == -EPERM) { /* an ordinary user's */
        watch_leave(&watch);
        kill(owner, SIGKILL);
        end_owner();
        skip();
    }
    assert_int_equal(rc, 0);
    for (unsigned i = 0; i < 8; i++)
        land(&watch, i, i == 7);
    if (written_look(&w, owner, &block, 1, &err))
        fail_msg("look: %s", err.text);
    check_written((uint32_t[]){7, UINT32_MAX});
    tell(STORE, 2);
    tell(READ_CALL, 4);
    tell(LOOK, 3);
    write_from_outside(5);
    check_written((uint32_t[]){2, 4, 5, 7, UINT32_MAX});
    tell(STORE, 2);
    check_written((uint32_t[]){2, 4, 5, 7, UINT32_MAX});
    written_end(&w);
    watch_leave(&watch);
    end_owner();
}

static void test_look_private(void **state)
{
    (void)state;
    look(private_memory());
}

static void test_look_memfd(void **state)
{
    (void)state;
    look(shared_memory(memfd_create("looked", 0)));
}

/* --- a private view of a file --- */

/* The file has page numbers, whatever is written over it */
static void check_file_of_view(pid_t holder)
{
    struct outside_memory m = {.fd = -1};
    uint32_t there[2];

    if (outside_open_view(owner, holder, &block, &m, &err))
        fail_msg("view: %s", err.text);
    for (uint32_t i = 0; i < PAGES; i += 511) {
        assert_int_equal(pread(m.fd, there, sizeof(there), (off_t)(m.fd_offset + i * PAGE)), sizeof(there));
        assert_int_equal(there[0], i);
    }
    close(m.fd);
}

static void test_view(void **state)
{
    (void)state;
    int fd = memfd_create("image", 0);

    assert_int_equal(ftruncate(fd, (PAGES + 1) * PAGE), 0);
    for (uint32_t i = 0; i < PAGES; i++)
        assert_int_equal(pwrite(fd, &i, sizeof(i), (i + 1) * PAGE), sizeof(i));
    start_owner(mmap(NULL, PAGES * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE, fd, PAGE), PAGE);
    for (uint32_t i = 0; i < PAGES / 2; i += 2)
        tell(DROP, i); /* what it had written is the file's again */
    if (written_view(&w, owner, &block, 1, &err))
        fail_msg("view: %s", err.text);
    check_written((uint32_t[]){UINT32_MAX});
    tell(LOOK, 3);
    tell(STORE, 4);
    tell(READ_CALL, 6);
    write_from_outside(2050);
    tell(STORE, PAGES - 1);
    check_written((uint32_t[]){4, 6, 2050, PAGES - 1, UINT32_MAX});
    tell(DROP, 6);
    tell(MAP_ANEW, 9);
    tell(STORE, 9);
    check_written((uint32_t[]){4, 9, 2050, PAGES - 1, UINT32_MAX});
    written_end(&w);
    end_owner();
    start_owner(mmap(NULL, PAGES * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE, fd, PAGE), PAGE);
    tell(STORE, 0);
    check_file_of_view(0);
    check_file_of_view(getpid());
    close(fd);
    end_owner();
}

static void test_no_view(void **state)
{
    struct outside_memory m = {.fd = -1};

    (void)state;
    for (int i = 0; i < 2; i++) {
        start_owner(i ? private_memory() : shared_memory(memfd_create("shared", 0)), PAGE);
        assert_int_equal(written_view(&w, owner, &block, 1, &err), -ENOTSUP);
        written_end(&w);
        assert_int_equal(outside_open_view(owner, 0, &block, &m, &err), -ENOTSUP);
        end_owner();
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_view),
        cmocka_unit_test(test_no_view),
        cmocka_unit_test(test_look_private),
        cmocka_unit_test(test_look_memfd),
        cmocka_unit_test(test_private),
        cmocka_unit_test(test_private_stays_empty),
        cmocka_unit_test(test_memfd),
        cmocka_unit_test(test_file),
        cmocka_unit_test(test_reclaimed),
        cmocka_unit_test(test_huge),
        cmocka_unit_test(test_hugetlb),
        cmocka_unit_test(test_killed),
        cmocka_unit_test(test_mapped_anew),
        cmocka_unit_test(test_watched_already),
        cmocka_unit_test(test_has_ended),
        cmocka_unit_test(test_old_kernel),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
