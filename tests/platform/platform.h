/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * platform.h - what the platform programs share: verdicts, limits, userfaultfd, a touching thread
 */
/**
 * DOC: Theory of Operation
 *
 * Purpose      Each tests/platform/NAME.c tries one assumption about the kernel and prints what it
 *              found. This header keeps them short. It is not used by the library.
 * Verdicts     0 the assumption holds; 1 it does not: Farfork would be wrong here; 77 it cannot be
 *              tried here, with the reason and what to do. A danger that Farfork guards against
 *              (a torn page, a silent zero) is printed; the verdict is about the guard.
 * Threads      main handles faults; one struct pl_touch reads or writes one byte of a watched page.
 * Limits       PL_WAIT_MS for one wait, PL_TOTAL_S for a program, then verdict 1; twice as long in
 *              the lab, where everything is emulated. To show that a thread stays blocked, it must be
 *              asleep by /proc after PL_STILL_MS without answer.
 * Sources      userfaultfd(2), ioctl_userfaultfd(2), Documentation/admin-guide/mm/userfaultfd.rst
 */
#ifndef FARFORK_TESTS_PLATFORM_H
#define FARFORK_TESTS_PLATFORM_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <linux/userfaultfd.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/file.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define PL_IN_LAB (getenv("LAB_HOSTS") ? 2 : 1)
#define PL_WAIT_MS (10000 * PL_IN_LAB)
#define PL_STILL_MS 100
#define PL_TOTAL_S (40u * (unsigned)PL_IN_LAB)
#define PL_HUGE ((size_t)2 << 20)
#define PL_HUGE_DIR "/sys/kernel/mm/hugepages/hugepages-2048kB/"

/* Kernel interface newer than the headers of Debian 12 (6.1). */
#ifndef UFFD_FEATURE_WP_UNPOPULATED
#define UFFD_FEATURE_WP_UNPOPULATED (1 << 13)
#endif
#ifndef UFFD_FEATURE_POISON
#define UFFD_FEATURE_POISON (1 << 14)
#endif
#ifndef UFFD_FEATURE_WP_ASYNC
#define UFFD_FEATURE_WP_ASYNC (1 << 15)
#endif
#ifndef UFFDIO_MOVE
#define UFFD_FEATURE_MOVE (1 << 16)
#define _UFFDIO_MOVE (0x05)
struct uffdio_move {
    uint64_t dst, src, len, mode;
    int64_t move; /* written by the kernel: bytes moved, or -errno */
};
#define UFFDIO_MOVE _IOWR(UFFDIO, _UFFDIO_MOVE, struct uffdio_move)
#endif

/* Verdicts */

static int pl_huge_fd = -1;           /* nr_hugepages, locked while we hold added pages */
static volatile sig_atomic_t pl_huge_added;

/* Give back what pl_huge_reserve() added to the pool. Async-signal-safe but for the digits,
 * which are made by hand for that reason. */
static inline void pl_huge_restore(void)
{
    char text[24];
    long count = 0;
    size_t at = sizeof(text);
    ssize_t got;

    if (pl_huge_fd < 0 || !pl_huge_added)
        return;
    got = pread(pl_huge_fd, text, sizeof(text), 0);
    for (ssize_t i = 0; i < got && text[i] >= '0' && text[i] <= '9'; i++)
        count = count * 10 + (text[i] - '0');
    count = count > pl_huge_added ? count - pl_huge_added : 0;
    pl_huge_added = 0;
    do
        text[--at] = (char)('0' + count % 10);
    while (count /= 10);
    if (pwrite(pl_huge_fd, text + at, sizeof(text) - at, 0) < 0)
        return;
}

_Noreturn static inline void pl_verdict(int code, const char *word, const char *fmt, va_list args)
{
    printf("%s: %s: ", program_invocation_short_name, word);
    vprintf(fmt, args);
    putchar('\n');
    fflush(stdout);
    pl_huge_restore();
    _exit(code); /* threads may be blocked in faults for good: no exit handlers */
}

#define PL_VERDICT(name, code, word)                                                             \
    __attribute__((format(printf, 1, 2))) _Noreturn static inline void name(const char *fmt, ...) \
    {                                                                                            \
        va_list args;                                                                            \
        va_start(args, fmt);                                                                     \
        pl_verdict(code, word, fmt, args);                                                       \
    }
PL_VERDICT(pl_holds, 0, "holds")
PL_VERDICT(pl_fails, 1, "does not hold")
PL_VERDICT(pl_skip, 77, "cannot be tried here")

/* A step that every case needs and that is not itself the assumption. */
#define PL_MUST(cond)                                                                            \
    do {                                                                                         \
        if (!(cond))                                                                             \
            pl_fails("line %d: %s: %s", __LINE__, #cond, strerror(errno));                       \
    } while (0)

static inline void pl_on_signal(int sig)
{
    static const char late[] = ": does not hold: no answer within the time limit\n";
    const char *name = program_invocation_short_name;

    if (sig == SIGALRM && (write(STDOUT_FILENO, name, strlen(name)) < 0 ||
                           write(STDOUT_FILENO, late, sizeof(late) - 1) < 0))
        sig = SIGALRM; /* nobody reads it; the exit code still tells */
    pl_huge_restore();
    _exit(sig == SIGALRM ? 1 : 128 + sig);
}

static cpu_set_t pl_cpus; /* those this program may use */

static inline void pl_start(void)
{
    if (sched_getaffinity(0, sizeof(pl_cpus), &pl_cpus) != 0)
        CPU_ZERO(&pl_cpus);
    signal(SIGALRM, pl_on_signal);
    signal(SIGINT, pl_on_signal);
    signal(SIGTERM, pl_on_signal);
    signal(SIGPIPE, SIG_IGN);
    alarm(PL_TOTAL_S);
}

/* This thread on the @nth CPU, 0 or 1, where there are two: on one, threads never truly race. */
static inline void pl_on_cpu(int nth)
{
    cpu_set_t one;
    int cpu = -1;

    if (CPU_COUNT(&pl_cpus) < 2)
        return;
    for (int seen = -1; seen < nth;)
        if (CPU_ISSET(++cpu, &pl_cpus))
            seen++;
    CPU_ZERO(&one);
    CPU_SET(cpu, &one);
    PL_MUST((errno = pthread_setaffinity_np(pthread_self(), sizeof(one), &one)) == 0);
}

/* First number in a file of /proc or /sys, or -errno. */
static inline long pl_number(const char *path)
{
    char text[64] = "";
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t got = fd < 0 ? -1 : read(fd, text, sizeof(text) - 1);
    int err = errno;

    if (fd >= 0)
        close(fd);
    return got < 0 ? -err : strtol(text, NULL, 10);
}

/* Memory */

static inline size_t pl_page(void)
{
    return (size_t)sysconf(_SC_PAGESIZE);
}

static inline unsigned char *pl_map(int fd, size_t len, int flags)
{
    void *p = mmap(NULL, len, PROT_READ | PROT_WRITE, flags, fd, 0);

    PL_MUST(p != MAP_FAILED);
    return p;
}

static inline unsigned char *pl_anon(size_t len)
{
    return pl_map(-1, len, MAP_PRIVATE | MAP_ANONYMOUS);
}

static inline int pl_memfd(size_t len)
{
    int fd = memfd_create("farfork-platform", MFD_CLOEXEC);

    PL_MUST(fd >= 0 && ftruncate(fd, (off_t)len) == 0);
    return fd;
}

/* A page of one repeated byte, to copy from; good until the next call. */
static inline unsigned char *pl_pattern(size_t len, int byte)
{
    static unsigned char *page;
    static size_t have;

    if (have < len) {
        page = pl_anon(len);
        have = len;
    }
    return memset(page, byte, len);
}

static inline bool pl_all(const unsigned char *p, size_t len, int byte)
{
    for (size_t i = 0; i < len; i++)
        if (p[i] != byte)
            return false;
    return true;
}

/* At least @n free 2 MiB pages for this program; what had to be added to the pool goes back at the
 * verdict. Returns NULL, or why there are none. */
static inline const char *pl_huge_reserve(long n)
{
    long free_pages, total;

    if (access(PL_HUGE_DIR "nr_hugepages", F_OK) != 0)
        return "the kernel has no 2 MiB hugetlb pages (CONFIG_HUGETLBFS)";
    pl_huge_fd = open(PL_HUGE_DIR "nr_hugepages", O_RDWR | O_CLOEXEC);
    /* One such program at a time: two would each restore the other's count. The alarm limits it. */
    if (pl_huge_fd >= 0)
        PL_MUST(flock(pl_huge_fd, LOCK_EX) == 0);
    signal(SIGINT, pl_on_signal); /* these give the pages back */
    signal(SIGTERM, pl_on_signal);
    free_pages = pl_number(PL_HUGE_DIR "free_hugepages") - pl_number(PL_HUGE_DIR "resv_hugepages");
    if (free_pages >= n)
        return NULL;
    if (pl_huge_fd < 0)
        return "too few free 2 MiB pages: run as root, or: sysctl vm.nr_hugepages=8";
    total = pl_number(PL_HUGE_DIR "nr_hugepages");
    if (dprintf(pl_huge_fd, "%ld", total + n - free_pages) < 0)
        return "the kernel refuses more 2 MiB pages: sysctl vm.nr_hugepages=8 as root";
    pl_huge_added = (sig_atomic_t)(pl_number(PL_HUGE_DIR "nr_hugepages") - total);
    if (pl_huge_added < n - free_pages)
        return "no contiguous 2 MiB pages left: free memory, or: sysctl vm.compact_memory=1";
    return NULL;
}

/* userfaultfd */

/* Whichever way opens one; kernel faults included if this user may have them. */
static inline int pl_uffd_open(void)
{
    int dev = open("/dev/userfaultfd", O_RDWR | O_CLOEXEC);
    int fd = dev < 0 ? -1 : ioctl(dev, USERFAULTFD_IOC_NEW, O_CLOEXEC | O_NONBLOCK);

    if (dev >= 0)
        close(dev);
    if (fd < 0)
        fd = (int)syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK);
    if (fd < 0)
        fd = (int)syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK | UFFD_USER_MODE_ONLY);
    if (fd < 0)
        pl_skip("userfaultfd: %s; see uffd_open for how to allow it", strerror(errno));
    return fd;
}

static inline uint64_t pl_uffd_known(void)
{
    struct uffdio_api api = {.api = UFFD_API};
    int fd = pl_uffd_open();

    PL_MUST(ioctl(fd, UFFDIO_API, &api) == 0);
    close(fd);
    return api.features;
}

static inline int pl_uffd(uint64_t features)
{
    struct uffdio_api api = {.api = UFFD_API, .features = features};
    uint64_t lacking = features & ~pl_uffd_known();
    int fd = pl_uffd_open();

    if (lacking)
        pl_skip("kernel lacks userfaultfd features %#" PRIx64 " (see uffd_features): newer kernel",
                lacking);
    PL_MUST(ioctl(fd, UFFDIO_API, &api) == 0);
    return fd;
}

/* The ioctls the range allows, or 0 with errno. */
static inline uint64_t pl_register(int uffd, void *p, size_t len, uint64_t mode)
{
    struct uffdio_register r = {.range = {(uintptr_t)p, len}, .mode = mode};

    return ioctl(uffd, UFFDIO_REGISTER, &r) == 0 ? r.ioctls : 0;
}

/* These return 0 or -errno; @done (may be NULL) is the kernel's answer field: bytes, or -errno. */
static inline int pl_copy(int uffd, void *dst, const void *src, size_t len, int64_t *done)
{
    struct uffdio_copy c = {.dst = (uintptr_t)dst, .src = (uintptr_t)src, .len = len};
    int ret = ioctl(uffd, UFFDIO_COPY, &c) == 0 ? 0 : -errno;

    if (done)
        *done = c.copy;
    return ret;
}

static inline int pl_continue(int uffd, void *p, size_t len)
{
    struct uffdio_continue c = {.range = {(uintptr_t)p, len}};

    return ioctl(uffd, UFFDIO_CONTINUE, &c) == 0 ? 0 : -errno;
}

static inline int pl_zeropage(int uffd, void *p, size_t len)
{
    struct uffdio_zeropage z = {.range = {(uintptr_t)p, len}};

    return ioctl(uffd, UFFDIO_ZEROPAGE, &z) == 0 ? 0 : -errno;
}

static inline int pl_wake(int uffd, void *p, size_t len)
{
    struct uffdio_range r = {(uintptr_t)p, len};

    return ioctl(uffd, UFFDIO_WAKE, &r) == 0 ? 0 : -errno;
}

static inline bool pl_readable(int fd, int ms)
{
    struct pollfd p = {.fd = fd, .events = POLLIN};

    return poll(&p, 1, ms) == 1 && (p.revents & POLLIN);
}

static inline bool pl_event(int uffd, struct uffd_msg *msg, int ms)
{
    return pl_readable(uffd, ms) && read(uffd, msg, sizeof(*msg)) == sizeof(*msg);
}

/* Is the next event, within the limit, a fault on the page at @p of kind @want (0 is MISSING)? */
static inline bool pl_fault(int uffd, const void *p, size_t psize, uint64_t want)
{
    const uint64_t kind = UFFD_PAGEFAULT_FLAG_MINOR | UFFD_PAGEFAULT_FLAG_WP;
    struct uffd_msg msg;

    return pl_event(uffd, &msg, PL_WAIT_MS) && msg.event == UFFD_EVENT_PAGEFAULT &&
           (msg.arg.pagefault.flags & kind) == want &&
           (msg.arg.pagefault.address & ~(uint64_t)(psize - 1)) == (uintptr_t)p;
}

/* A thread that touches one byte */

struct pl_touch {
    pthread_t thread;
    volatile unsigned char *addr;
    int write;          /* byte to write, or -1 to read */
    int seen;           /* what a read saw; valid after pl_touched() */
    int done_fd;
    _Atomic pid_t tid;
};

static inline void *pl_touch_main(void *arg)
{
    struct pl_touch *t = arg;

    atomic_store(&t->tid, (pid_t)syscall(SYS_gettid));
    if (t->write >= 0)
        *t->addr = (unsigned char)t->write;
    else
        t->seen = *t->addr;
    eventfd_write(t->done_fd, 1);
    return NULL;
}

static inline void pl_touch(struct pl_touch *t, void *addr, int byte)
{
    *t = (struct pl_touch){.addr = addr, .write = byte, .seen = -1, .done_fd = eventfd(0, 0)};
    PL_MUST(t->done_fd >= 0);
    PL_MUST((errno = pthread_create(&t->thread, NULL, pl_touch_main, t)) == 0);
}

/* Has the access finished, within the limit? To be called until it says yes, and then no more. */
static inline bool pl_touched(struct pl_touch *t)
{
    if (!pl_readable(t->done_fd, PL_WAIT_MS))
        return false;
    pthread_join(t->thread, NULL);
    close(t->done_fd);
    return true;
}

/* Is the thread still inside its access, asleep (and not merely short of CPU)? */
static inline bool pl_blocked(struct pl_touch *t)
{
    char path[64], stat[512], state = '?';

    for (int ms = 0; ms < PL_WAIT_MS; ms += PL_STILL_MS) {
        FILE *f;

        if (pl_readable(t->done_fd, PL_STILL_MS))
            return false;
        snprintf(path, sizeof(path), "/proc/self/task/%d/stat", (int)atomic_load(&t->tid));
        f = fopen(path, "re");
        if (f && fgets(stat, sizeof(stat), f) && strrchr(stat, ')'))
            sscanf(strrchr(stat, ')'), ") %c", &state);
        if (f)
            fclose(f);
        if (state == 'S' || state == 'D')
            return true;
    }
    return false;
}

/* Touch a page that is there: no sleep, no event. Returns the byte, or -1 if it blocked. */
static inline int pl_peek(void *addr)
{
    struct pl_touch t;

    pl_touch(&t, addr, -1);
    return pl_touched(&t) ? t.seen : -1;
}

#endif
