/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * test_outside_process.c - the memory of real processes: its files, its userfaultfd, who may look
 *
 * A child makes memory, tells its addresses and waits; the test looks at it from outside.
 */
#include "unit.h"

#include <fcntl.h>
#include <inttypes.h>
#include <linux/memfd.h>
#include <linux/userfaultfd.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>

#include "outside_private.h"

#define MIB (1u << 20)
#define LEN (4u * MIB)
#define NOBODY 65534

static struct ff_error err;

/* --- a child that makes memory --- */

struct other {
    pid_t pid;
    int go, told; /* a byte there: the next step; what it tells */
    uint64_t at;
};

static void tell(int fd, uint64_t at)
{
    if (write(fd, &at, sizeof(at)) != sizeof(at))
        _exit(2);
}

static void hear(int fd)
{
    char c;

    if (read(fd, &c, 1) != 1) /* the test has ended, or wants the child to end */
        _exit(0);
}

/* @steps runs in the child, with what it tells and what it hears */
static void start(struct other *o, void (*steps)(int told, int go))
{
    int down[2], up[2];

    assert_int_equal(pipe2(down, O_CLOEXEC), 0);
    assert_int_equal(pipe2(up, O_CLOEXEC), 0);
    o->pid = fork();
    assert_true(o->pid >= 0);
    if (!o->pid) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        close(down[1]);
        close(up[0]);
        steps(up[1], down[0]);
        hear(down[0]);
        _exit(0);
    }
    close(down[0]);
    close(up[1]);
    o->go = down[1];
    o->told = up[0];
}

static uint64_t hear_from(struct other *o)
{
    struct pollfd p = {.fd = o->told, .events = POLLIN};

    assert_int_equal(poll(&p, 1, 20000), 1);
    assert_int_equal(read(o->told, &o->at, sizeof(o->at)), sizeof(o->at));
    return o->at;
}

static void next_step(struct other *o)
{
    assert_int_equal(write(o->go, "", 1), 1);
}

static void end(struct other *o)
{
    int status;

    close(o->go);
    assert_int_equal(waitpid(o->pid, &status, 0), o->pid);
    close(o->told);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

static struct outside_block block_of(uint64_t at)
{
    return (struct outside_block){.name = "ram", .hva = at, .len_bytes = LEN, .psize = 4096};
}

static char *map(int fd, off_t offset, size_t len, int flags)
{
    char *p = mmap(NULL, len, PROT_READ | PROT_WRITE, flags | (fd < 0 ? MAP_ANONYMOUS : 0), fd,
                   offset);

    if (p == MAP_FAILED)
        _exit(3);
    return p;
}

static int memfd(unsigned flags, size_t len)
{
    int fd = memfd_create("memory-backend-memfd", flags);

    if (fd < 0 || ftruncate(fd, (off_t)len))
        _exit(77); /* no huge pages */
    return fd;
}

/* --- shared memory: the same bytes here --- */

static void split_memfd(int told, int go)
{
    int fd = memfd(MFD_CLOEXEC, LEN + MIB);
    char *p = map(fd, MIB, LEN, MAP_SHARED), *twice = map(fd, 0, LEN, MAP_SHARED);

    madvise(p + MIB, 8192, MADV_DONTFORK); /* three VMAs */
    strcpy(p + 2 * MIB, "in the memfd");
    tell(told, (uintptr_t)p);
    tell(told, (uintptr_t)twice); /* as a virtiofs window may be */
    hear(go);
    mprotect(p + MIB, 4096, PROT_NONE);
    munmap(p + 3 * MIB, 4096); /* a hole */
    tell(told, 0);
}

static void test_memfd(void **state)
{
    struct outside_memory m;
    struct other o;
    char text[32];
    (void)state;

    start(&o, split_memfd);
    struct outside_block b = block_of(hear_from(&o)), again = block_of(hear_from(&o));
    assert_ok(outside_open(o.pid, &b, true, &m, &err), err);
    assert_true(m.fd >= 0 && m.is_shared && !m.is_hugetlb && m.fd_offset == MIB);
    assert_int_equal(pread(m.fd, text, sizeof(text), (off_t)m.fd_offset + 2 * MIB), sizeof(text));
    assert_string_equal(text, "in the memfd");
    assert_int_equal(fcntl(m.fd, F_GETFL) & O_ACCMODE, O_RDWR);
    assert_true(fcntl(m.fd, F_GETFD) & FD_CLOEXEC);
    close(m.fd);
    assert_ok(outside_open(o.pid, &again, false, &m, &err), err);
    assert_true(m.fd_offset == 0); /* by its address, not by its file */
    assert_int_equal(fcntl(m.fd, F_GETFL) & O_ACCMODE, O_RDONLY);
    close(m.fd);
    next_step(&o);
    hear_from(&o);
    assert_fails(outside_open(o.pid, &b, false, &m, &err), ENOENT);
    assert_error(err, ENOENT, "a hole");
    end(&o);
}

/* --- pages that have not arrived --- */

static void watched(int told, int go)
{
    int fd = (int)syscall(SYS_userfaultfd, O_CLOEXEC | UFFD_USER_MODE_ONLY);
    struct uffdio_api api = {.api = UFFD_API};
    char *p = map(-1, 0, LEN, MAP_PRIVATE);
    struct uffdio_register r = {.range = {(uintptr_t)p + MIB, MIB}, .mode = UFFDIO_REGISTER_MODE_MISSING};

    if (fd < 0 || ioctl(fd, UFFDIO_API, &api))
        _exit(77);
    tell(told, (uintptr_t)p);
    hear(go);
    tell(told, (uintptr_t)ioctl(fd, UFFDIO_REGISTER, &r));
    hear(go);
    tell(told, (uintptr_t)ioctl(fd, UFFDIO_UNREGISTER, &r.range));
    hear(go);
}

static void test_not_whole(void **state)
{
    struct other o;
    (void)state;

    start(&o, watched);
    struct outside_block b[] = {block_of(hear_from(&o)), block_of(o.at)};
    b[0].len_bytes = MIB; /* before what is watched */
    assert_ok(outside_check_whole(o.pid, b, 2, &err), err);
    next_step(&o);
    assert_int_equal(hear_from(&o), 0);
    assert_ok(outside_check_whole(o.pid, b, 1, &err), err);
    assert_fails(outside_check_whole(o.pid, b, 2, &err), EBUSY);
    next_step(&o);
    assert_int_equal(hear_from(&o), 0);
    assert_ok(outside_check_whole(o.pid, b, 2, &err), err); /* complete: the descriptor may stay */
    end(&o);
}

static void short_memfd(int told, int go)
{
    (void)go;
    int fd = memfd(MFD_CLOEXEC, LEN);
    char *p = map(fd, 0, LEN, MAP_SHARED);

    if (ftruncate(fd, MIB))
        _exit(2);
    tell(told, (uintptr_t)p);
}

static void test_short_file(void **state)
{
    struct outside_memory m;
    struct other o;
    (void)state;

    start(&o, short_memfd);
    struct outside_block b = block_of(hear_from(&o));
    assert_fails(outside_open(o.pid, &b, false, &m, &err), EFBIG);
    assert_error(err, EFBIG, "1048576 bytes", "4194304");
    assert_int_equal(m.fd, -1);
    end(&o);
}

/* A mapping whose descriptor is closed, and whose file has no name any more */
static void closed_memfd(int told, int go)
{
    (void)go;
    int fd = memfd(MFD_CLOEXEC, LEN);

    tell(told, (uintptr_t)map(fd, 0, LEN, MAP_SHARED));
    close(fd);
}

static void shared_anonymous(int told, int go)
{
    (void)go;
    tell(told, (uintptr_t)map(-1, 0, LEN, MAP_SHARED));
}

static void test_no_descriptor(void **state)
{
    void (*const kinds[])(int, int) = {closed_memfd, shared_anonymous};
    (void)state;

    for (size_t i = 0; i < FF_ARRAY_LEN(kinds); i++) {
        struct outside_memory m;
        struct other o;

        start(&o, kinds[i]);
        struct outside_block b = block_of(hear_from(&o));
        assert_ok(outside_open(o.pid, &b, false, &m, &err), err);
        assert_true(m.is_shared);
        if (!geteuid()) /* map_files */
            assert_true(m.fd >= 0);
        ff_close_fd(&m.fd);
        end(&o);
    }
}

static void private_anonymous(int told, int go)
{
    (void)go;
    tell(told, (uintptr_t)map(-1, 0, LEN, MAP_PRIVATE));
}

static void private_memfd(int told, int go)
{
    (void)go;
    tell(told, (uintptr_t)map(memfd(MFD_CLOEXEC, LEN), 0, LEN, MAP_PRIVATE));
}

static void test_private(void **state)
{
    void (*const kinds[])(int, int) = {private_anonymous, private_memfd};
    (void)state;

    for (size_t i = 0; i < FF_ARRAY_LEN(kinds); i++) {
        struct outside_memory m;
        struct other o;

        start(&o, kinds[i]);
        struct outside_block b = block_of(hear_from(&o));
        assert_ok(outside_open(o.pid, &b, true, &m, &err), err);
        assert_true(m.fd == -1 && !m.is_shared && !m.is_hugetlb);
        end(&o);
    }
}

static bool has_huge_page(void)
{
    int fd = memfd_create("probe", MFD_HUGETLB | MFD_HUGE_2MB | MFD_CLOEXEC);
    void *p = fd < 0 ? MAP_FAILED : mmap(NULL, LEN, PROT_READ, MAP_SHARED, fd, 0);

    if (p != MAP_FAILED)
        munmap(p, LEN);
    if (fd >= 0)
        close(fd);
    return p != MAP_FAILED;
}

static void huge_memfd(int told, int go)
{
    (void)go;
    tell(told, (uintptr_t)map(memfd(MFD_HUGETLB | MFD_HUGE_2MB | MFD_CLOEXEC, LEN), 0, LEN,
                              MAP_SHARED));
}

static void test_huge(void **state)
{
    struct outside_memory m;
    struct other o;
    (void)state;

    if (!has_huge_page())
        skip(); /* sysctl vm.nr_hugepages=2 */
    start(&o, huge_memfd);
    struct outside_block b = block_of(hear_from(&o));
    b.psize = 2 * MIB;
    assert_ok(outside_open(o.pid, &b, false, &m, &err), err);
    assert_true(m.fd >= 0 && m.is_shared && m.is_hugetlb);
    close(m.fd);
    end(&o);
}

/* --- a file that the caller may not open --- */

static void file_of_root(int told, int go)
{
    char path[] = "/tmp/outsideXXXXXX";
    int fd = mkstemp(path);

    if (fd < 0 || unlink(path) || ftruncate(fd, LEN) || setresgid(NOBODY, NOBODY, NOBODY) ||
        setresuid(NOBODY, NOBODY, NOBODY))
        _exit(2);
    prctl(PR_SET_DUMPABLE, 1);
    prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY);
    tell(told, (uintptr_t)map(fd, 0, LEN, MAP_SHARED));
    hear(go);
    tell(told, 0);
}

/* Run @fn in a process of user nobody, which has no capability; what it returns, or a signal */
static int as_nobody(int (*fn)(struct other *o), struct other *o)
{
    int status;
    pid_t pid = fork();

    assert_true(pid >= 0);
    if (!pid) {
        if (setresgid(NOBODY, NOBODY, NOBODY) || setresuid(NOBODY, NOBODY, NOBODY))
            _exit(100);
        prctl(PR_SET_DUMPABLE, 1);
        int rc = fn(o);
        if (rc)
            fprintf(stderr, "%s\n", err.text);
        _exit(rc);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
}

static int take_its_file(struct other *o)
{
    struct outside_block b = block_of(o->at);
    struct outside_memory m;

    if (outside_open(o->pid, &b, true, &m, &err))
        return 1;
    return m.fd >= 0 && (fcntl(m.fd, F_GETFL) & O_ACCMODE) == O_RDWR ? 0 : 2;
}

/* libvirt and others open files as root and start a QEMU that could not: its descriptor is taken */
static void test_file_of_root(void **state)
{
    struct other o;
    (void)state;

    if (geteuid())
        skip();
    start(&o, file_of_root);
    hear_from(&o);
    assert_int_equal(as_nobody(take_its_file, &o), 0);
    next_step(&o);
    hear_from(&o);
    end(&o);
}

/* --- who may --- */

static int may_attach(struct other *o)
{
    return -outside_may(o->pid, true, &err);
}

static int may_not_as_another_user(struct other *o)
{
    struct outside_block b = block_of(o->at);
    struct outside_memory m;

    if (outside_may(o->pid, false, &err) != -EPERM || !strstr(err.text, "another user's") ||
        !strstr(err.text, "this process 65534") || !strstr(err.text, "CAP_SYS_PTRACE"))
        return 1;
    if (outside_may(o->pid, true, &err) != -EPERM || !strstr(err.text, "another user's"))
        return 2;
    err.text[0] = '\0'; /* and each call says so */
    if (outside_open(o->pid, &b, false, &m, &err) != -EPERM || !strstr(err.text, "another user's"))
        return 3;
    b.hva = 0;
    if (outside_locate(o->pid, &b, &err) != -EPERM || !strstr(err.text, "another user's"))
        return 5;
    return 0;
}

static int may_not_undumpable(struct other *o)
{
    if (outside_may(o->pid, true, &err) != -EPERM)
        return 1;
    return !strstr(err.text, "not dumpable") || !strstr(err.text, "-runas");
}

static void test_may(void **state)
{
    struct other o;
    (void)state;

    assert_ok(outside_may(getpid(), true, &err), err);
    start(&o, private_anonymous);
    hear_from(&o);
    assert_ok(outside_may(o.pid, true, &err), err);
    if (!geteuid())
        assert_int_equal(as_nobody(may_not_as_another_user, &o), 0);
    end(&o);
    assert_fails(outside_may(o.pid, true, &err), ESRCH); /* it has ended */
    assert_fails(outside_may(o.pid, false, &err), ESRCH);
}

static int may_stranger(struct other *o)
{
    (void)o;
    return -outside_may_stranger(&err);
}

/* A process of the same user that the caller did not start: what yama may forbid */
static void test_stranger(void **state)
{
    char scope = '0';
    int fd = open("/proc/sys/kernel/yama/ptrace_scope", O_RDONLY | O_CLOEXEC);
    (void)state;

    if (fd >= 0) {
        assert_int_equal(read(fd, &scope, 1), 1);
        close(fd);
    }
    if (!geteuid())
        assert_int_equal(as_nobody(may_stranger, NULL), scope == '0' ? 0 : EPERM);
    else
        assert_int_equal(may_stranger(NULL), scope == '0' ? 0 : EPERM);
    assert_int_equal(waitpid(-1, NULL, WNOHANG), -1); /* it leaves no process */
    assert_int_equal(errno, ECHILD);
}

static void undumpable(int told, int go)
{
    if (setresgid(NOBODY, NOBODY, NOBODY) || setresuid(NOBODY, NOBODY, NOBODY))
        _exit(2);
    prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY);
    prctl(PR_SET_DUMPABLE, 0);
    tell(told, 0);
    hear(go);
    prctl(PR_SET_DUMPABLE, 1);
    tell(told, 0);
}

static void test_undumpable(void **state)
{
    struct other o;
    (void)state;

    if (geteuid())
        skip();
    start(&o, undumpable);
    hear_from(&o);
    assert_int_equal(as_nobody(may_not_undumpable, &o), 0);
    assert_ok(outside_may(o.pid, true, &err), err); /* root may nevertheless */
    next_step(&o);
    hear_from(&o);
    assert_int_equal(as_nobody(may_attach, &o), 0); /* nothing else forbade it */
    end(&o);
}

/* --- where --- */

#define ODD_LEN (37u * MIB + 12288u)

static void two_memories(int told, int go)
{
    char *p = map(memfd(MFD_CLOEXEC, ODD_LEN), 0, ODD_LEN, MAP_SHARED);

    tell(told, (uintptr_t)p);
    hear(go);
    map(memfd(MFD_CLOEXEC, ODD_LEN), 0, ODD_LEN, MAP_SHARED);
    tell(told, (uintptr_t)p);
}

static void test_locate(void **state)
{
    struct outside_block b = {.name = "ram", .len_bytes = ODD_LEN, .psize = 4096}, c = b;
    struct other o;
    (void)state;

    start(&o, two_memories);
    hear_from(&o);
    assert_ok(outside_locate(o.pid, &b, &err), err);
    assert_true(b.hva == o.at);
    next_step(&o);
    hear_from(&o);
    assert_fails(outside_locate(o.pid, &c, &err), ENOTUNIQ);
    assert_error(err, ENOTUNIQ, "have its length");
    assert_ok(outside_locate(o.pid, &b, &err), err); /* known already */
    end(&o);
    assert_fails(outside_locate(o.pid, &c, &err), ESRCH);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_memfd),
        cmocka_unit_test(test_not_whole),         cmocka_unit_test(test_short_file),
        cmocka_unit_test(test_no_descriptor), cmocka_unit_test(test_private),
        cmocka_unit_test(test_huge),          cmocka_unit_test(test_file_of_root),
        cmocka_unit_test(test_may),           cmocka_unit_test(test_undumpable),
        cmocka_unit_test(test_stranger),      cmocka_unit_test(test_locate),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
