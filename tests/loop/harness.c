/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * harness.c - run each test in a child process of its own, with a limit
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "cleanup.h"
#include "failpoint.h"
#include "loop.h"

#define LIMIT_S 20

static const char *running = "setup";

void loop_fail(const char *file, int line, const char *fmt, ...)
{
    char text[1024];
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(text, sizeof(text), fmt, ap);
    va_end(ap);
    fprintf(stderr, "%s: %s:%d: %s\n", running, file, line, text);
    _exit(1); /* other threads may be anywhere, also blocked for good */
}

void loop_skip(const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    printf("SKIP: %s: ", running);
    vprintf(fmt, ap);
    va_end(ap);
    putchar('\n');
    fflush(stdout);
    _exit(77);
}

void loop_arm(const char *faults)
{
    struct ff_error err;

    must_ok(ff_failpoints_arm(faults, &err), err);
}

const struct ff_uffd_probe *loop_kernel(void)
{
    static struct ff_uffd_probe p; /* each test has a process of its own */

    ff_uffd_probe(&p);
    return &p;
}

bool loop_in_lab(void)
{
    return getenv("LAB_HOSTS");
}

bool wait_flag(const atomic_bool *flag, int limit_ms)
{
    uint64_t end = ff_now_ns() + (uint64_t)limit_ms * LAB_PATIENCE * 1000000u;

    while (!atomic_load(flag)) {
        if (ff_now_ns() > end)
            return false;
        usleep(1000);
    }
    return true;
}

int child_start(void (*fn)(void *), void *arg)
{
    pid_t parent = getpid();

    fflush(NULL);
    pid_t pid = fork();
    if (pid)
        return pid;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent)
        _exit(1);
    struct rlimit none = {0, 0};
    setrlimit(RLIMIT_CORE, &none); /* some tests end by abort(), as they should */
    fn(arg);
    exit(0); /* sanitizers look for leaks and races here */
}

static void run_test(void *arg)
{
    const struct loop_test *t = arg;
    running = t->name;
    t->fn();
}

int child_wait(int pid, unsigned limit_s)
{
    int status, fd = (int)syscall(SYS_pidfd_open, pid, 0);
    struct pollfd p = {.fd = fd, .events = POLLIN};
    uint64_t end = ff_now_ns() + limit_s * 1000000000ull;
    bool late = false;

    while (fd >= 0 && poll(&p, 1, 200) <= 0)
        if ((late = ff_now_ns() > end)) {
            kill(pid, SIGKILL);
            break;
        }
    if (fd >= 0)
        close(fd);
    while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
        ;
    return late ? -1 : status;
}

static bool is_wanted(const char *name, int argc, char **argv)
{
    for (int i = 1; i < argc; i++)
        if (strstr(name, argv[i]))
            return true;
    return argc < 2;
}

#define SAYS_S 5 /* of the runner's limit: to end what hangs, and to say so */

/* A test's own limit, or what is left of the runner's: who is killed by the runner names no test */
static unsigned limit_of(const struct loop_test *t, uint64_t since_ns)
{
    const char *all = getenv("FARFORK_TEST_LIMIT");
    unsigned limit_s = (t->limit_s ? t->limit_s : LIMIT_S) * (UNDER_SANITIZER ? 5 : 1);
    limit_s *= LAB_PATIENCE;
    if (!all)
        return limit_s;
    uint64_t past_s = (ff_now_ns() - since_ns) / 1000000000u + SAYS_S;
    uint64_t all_s = strtoull(all, NULL, 10);
    return (unsigned)FF_MIN((uint64_t)limit_s, all_s > past_s ? all_s - past_s : 1);
}

/* --- folders: one that a test leaves when it fails is removed after it --- */

static struct {
    atomic_uint n;
    char path[8][64];
} *folders; /* the test is another process */

char *loop_mkdtemp(char *path)
{
    if (!mkdtemp(path))
        return NULL;
    unsigned i = folders ? atomic_fetch_add(&folders->n, 1) : FF_ARRAY_LEN(folders->path);
    if (i < FF_ARRAY_LEN(folders->path))
        snprintf(folders->path[i], sizeof(folders->path[i]), "%s", path);
    return path;
}

static void remove_folders(void)
{
    unsigned n = atomic_exchange(&folders->n, 0);

    for (unsigned i = 0; i < n && i < FF_ARRAY_LEN(folders->path); i++) {
        DIR *d = opendir(folders->path[i]);
        for (struct dirent *e; d && (e = readdir(d));)
            unlinkat(dirfd(d), e->d_name, 0);
        if (d)
            closedir(d);
        rmdir(folders->path[i]);
    }
}

int loop_main(int argc, char **argv, void (*setup)(void), const struct loop_test *tests, size_t n)
{
    unsigned failed = 0, skipped = 0, passed = 0;
    const uint64_t begin = ff_now_ns();

    setvbuf(stdout, NULL, _IOLBF, 0);
    folders = mmap(NULL, sizeof(*folders), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1,
                   0);
    must(folders != MAP_FAILED);
    if (setup)
        setup();
    for (size_t i = 0; i < n; i++) {
        const struct loop_test *t = &tests[i];
        if (!is_wanted(t->name, argc, argv))
            continue;
        unsigned limit_s = limit_of(t, begin);
        uint64_t start = ff_now_ns();
        int status = child_wait(child_start(run_test, (void *)t), limit_s);
        unsigned ms = (unsigned)((ff_now_ns() - start) / 1000000);
        remove_folders();
        if (status == 0) {
            passed++;
            printf("ok    %6u ms  %s\n", ms, t->name);
        } else if (status > 0 && WIFEXITED(status) && WEXITSTATUS(status) == 77) {
            skipped++;
        } else {
            failed++;
            if (status < 0)
                printf("FAIL  %6u ms  %s: not done within %u s\n", ms, t->name, limit_s);
            else if (WIFSIGNALED(status))
                printf("FAIL  %6u ms  %s: %s\n", ms, t->name, strsignal(WTERMSIG(status)));
            else
                printf("FAIL  %6u ms  %s: exit code %d\n", ms, t->name, WEXITSTATUS(status));
        }
    }
    return failed ? 1 : passed ? 0 : skipped ? 77 : 1;
}

static char key_folder[40], key_path[48];

const char *loop_key_file(void)
{
    if (!*key_path) {
        snprintf(key_folder, sizeof(key_folder), "/tmp/farfork-loop-key-XXXXXX");
        must(loop_mkdtemp(key_folder));
        snprintf(key_path, sizeof(key_path), "%s/key", key_folder);
        FF_AUTO_CLOSE int fd = open(key_path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
        must(fd >= 0 && write(fd, LOOP_KEY, strlen(LOOP_KEY)) == (ssize_t)strlen(LOOP_KEY));
    }
    return key_path;
}

void loop_remove_key(void)
{
    must(!unlink(key_path) && !rmdir(key_folder));
    *key_path = '\0';
}

struct ff_address *loop_address(unsigned port, const char *options)
{
    const char *host = getenv("FARFORK_TEST_HOST"), *link = getenv("FARFORK_TEST_LINK");
    struct ff_address *a;
    struct ff_error err;
    char text[700];

    must(snprintf(text, sizeof(text), "%s:%u,link=%s%s%s", host ? host : "127.0.0.1", port,
                  link ? link : "tcp", host ? ",insecure=on" : "",
                  options) < (int)sizeof(text));
    must_ok(ff_address_parse(text, &a, &err), err);
    return a;
}

bool thread_asleep(pid_t pid, int tid)
{
    char path[64], stat[512] = "", state = '?';

    snprintf(path, sizeof(path), "/proc/%d/task/%d/stat", pid, tid);
    FILE *f = fopen(path, "re");
    if (f && fgets(stat, sizeof(stat), f) && strrchr(stat, ')'))
        sscanf(strrchr(stat, ')'), ") %c", &state);
    if (f)
        fclose(f);
    return state == 'S' || state == 'D';
}
