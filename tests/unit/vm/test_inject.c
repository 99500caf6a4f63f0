/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * test_inject.c - system calls in real processes, whatever these do meanwhile
 *
 * A child does one thing for as long as it is told to, and says whether all went as it should.
 */
#include "unit.h"

#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/time.h>

#include "failpoint.h"
#include "inject.h"

#define NOBODY 65534
#define QUEUED 200

static struct ff_error err;

/* --- a child --- */

struct child {
    pid_t pid;
    int go, told; /* its end, or a byte, there: go on; a byte from it: ready, and again: all is well */
};

static void broken(void)
{
    _exit(9);
}

static void say(int fd)
{
    if (write(fd, "x", 1) != 1)
        broken();
}

static struct child start(void (*fn)(int go, int told))
{
    int go[2], told[2];
    struct child c;

    assert_int_equal(pipe(go), 0);
    assert_int_equal(pipe(told), 0);
    c.pid = fork();
    if (!c.pid) {
        close(go[1]);
        close(told[0]);
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        fn(go[0], told[1]);
        _exit(0);
    }
    close(go[0]);
    close(told[1]);
    c.go = go[1];
    c.told = told[0];
    char x;
    assert_int_equal(read(c.told, &x, 1), 1);
    return c;
}

/* It goes on, and ends by itself with exit code @code */
static void end(struct child *c, int code)
{
    int status;

    if (c->go >= 0)
        close(c->go);
    assert_int_equal(waitpid(c->pid, &status, 0), c->pid);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), code);
    close(c->told);
}

static void go_on(struct child *c)
{
    assert_int_equal(write(c->go, "x", 1), 1);
    end(c, 0);
}

static char state_of(pid_t pid)
{
    char path[64], text[256] = "";
    FILE *f;

    snprintf(path, sizeof(path), "/proc/%d/stat", (int)pid);
    f = fopen(path, "re");
    assert_non_null(f);
    assert_true(fread(text, 1, sizeof(text) - 1, f) > 0);
    fclose(f);
    return strrchr(text, ')')[2];
}

static uint64_t blocked_of(pid_t pid)
{
    char path[64], line[256];
    uint64_t blocked = 1;

    snprintf(path, sizeof(path), "/proc/%d/status", (int)pid);
    FILE *f = fopen(path, "re");
    assert_non_null(f);
    while (fgets(line, sizeof(line), f))
        if (!strncmp(line, "SigBlk:", 7))
            blocked = strtoull(line + 7, NULL, 16);
    fclose(f);
    return blocked;
}

static void wait_state(pid_t pid, char want)
{
    for (int i = 0; state_of(pid) != want; i++) {
        assert_true(i < 5000);
        usleep(1000);
    }
}

/* --- what is called there --- */

static const uint64_t none[INJECT_ARGS];

struct calls {
    pid_t pid;
    int n;
};

static int ask_pid(struct inject *in, void *opaque, struct ff_error *why)
{
    const struct calls *c = opaque;

    for (int i = 0; i < c->n; i++) {
        int64_t got = 0;
        int rc = inject_call(in, SYS_getpid, none, &got, why);

        if (rc)
            return rc;
        if (got != c->pid)
            return ff_error_set(why, EBADMSG, "getpid: %d", (int)got);
    }
    return 0;
}

static int ask(pid_t pid, int n)
{
    struct calls c = {.pid = pid, .n = n};

    memset(&err, 0, sizeof(err));
    return inject_run(pid, 0, ask_pid, &c, &err);
}

static void ask_well(pid_t pid, int n)
{
    int rc = ask(pid, n);

    if (rc)
        print_error("%s\n", err.text);
    assert_int_equal(rc, 0);
}

/* --- a process that waits --- */

static void reads(int go, int told)
{
    char x;

    say(told);
    if (read(go, &x, 1) != 1) /* restarted, not EINTR, each time */
        broken();
}

static void test_waits_in_read(void **state)
{
    (void)state;
    struct child c = start(reads);

    wait_state(c.pid, 'S');
    for (int i = 0; i < 100; i++)
        ask_well(c.pid, 1);
    ask_well(c.pid, 100);
    go_on(&c);
}

static void sleeps(int go, int told)
{
    struct timespec t = {.tv_sec = 1}, a, b;

    (void)go;
    say(told);
    clock_gettime(CLOCK_MONOTONIC, &a);
    if (nanosleep(&t, NULL)) /* a restart block: the rest of the time, not all of it again */
        broken();
    clock_gettime(CLOCK_MONOTONIC, &b);
    double took = (double)(b.tv_sec - a.tv_sec) + (double)(b.tv_nsec - a.tv_nsec) / 1e9;
    _exit(took < 1 ? 3 : 0);
}

static void test_waits_for_time(void **state)
{
    (void)state;
    struct child c = start(sleeps);

    for (int i = 0; i < 10; i++)
        ask_well(c.pid, 1);
    end(&c, 0);
}

static atomic_int usr1;

static void count(int signo)
{
    (void)signo;
    atomic_fetch_add(&usr1, 1);
}

/* As QEMU's main loop: a signal that is blocked but for the wait */
static void polls(int go, int told)
{
    struct pollfd p = {.fd = go, .events = POLLIN};
    sigset_t blocked, open;

    signal(SIGUSR1, count);
    sigemptyset(&blocked);
    sigemptyset(&open);
    sigaddset(&blocked, SIGUSR1);
    sigprocmask(SIG_BLOCK, &blocked, NULL);
    say(told);
    if (ppoll(&p, 1, NULL, &open) != -1 || errno != EINTR || atomic_load(&usr1) != 1)
        broken();
    sigprocmask(SIG_BLOCK, NULL, &blocked);
    if (!sigismember(&blocked, SIGUSR1)) /* the mask of before the wait */
        broken();
}

static void test_mask_of_a_wait(void **state)
{
    (void)state;
    struct child c = start(polls);

    wait_state(c.pid, 'S');
    ask_well(c.pid, 3);
    wait_state(c.pid, 'S');
    kill(c.pid, SIGUSR1);
    int go = c.go; /* open until it has ended: the signal alone ends the wait */
    c.go = -1;
    end(&c, 0);
    close(go);
}

/* --- a process that computes --- */

static double mix(double x)
{
    return x * 1.000001 + 0.5 - (x > 1e6 ? 1e6 : 0);
}

static void computes(int go, int told)
{
    struct pollfd p = {.fd = go, .events = POLLIN};
    double x = 1, y = 1;
    uint64_t n = 0, h = 1;

    say(told);
    do {
        for (int i = 0; i < 20000; i++, n++) {
            x = mix(x);
            h = h * 6364136223846793005u + n;
        }
    } while (!poll(&p, 1, 0));
    uint64_t again = 1;
    for (uint64_t i = 0; i < n; i++) {
        y = mix(y);
        again = again * 6364136223846793005u + i;
    }
    if (memcmp(&x, &y, sizeof(x)) || h != again)
        broken();
}

static void test_computes(void **state)
{
    (void)state;
    struct child c = start(computes);

    for (int i = 0; i < 300; i++)
        ask_well(c.pid, 2);
    end(&c, 0);
}

/* --- signals --- */

static void counts(int go, int told)
{
    struct sigaction a = {.sa_handler = count, .sa_flags = SA_RESTART};
    char x;

    sigaction(SIGRTMIN, &a, NULL);
    say(told);
    if (read(go, &x, 1) != 1)
        broken();
    _exit(atomic_load(&usr1) == QUEUED ? 0 : 4);
}

static void *send_queued(void *opaque)
{
    const struct child *c = opaque;

    for (int i = 0; i < QUEUED; i++) {
        assert_int_equal(sigqueue(c->pid, SIGRTMIN, (union sigval){.sival_int = i}), 0);
        usleep(200);
    }
    return NULL;
}

static void test_no_signal_is_lost(void **state)
{
    static struct child c;
    pthread_t sender;
    (void)state;

    if (UNDER_TSAN)
        skip(); /* which holds signals back, and one of a kind at most */
    c = start(counts);

    assert_int_equal(pthread_create(&sender, NULL, send_queued, &c), 0);
    for (int i = 0; i < 100; i++)
        ask_well(c.pid, 5);
    pthread_join(sender, NULL);
    go_on(&c);
}

static void test_stopped_stays_so(void **state)
{
    (void)state;
    struct child c = start(reads);

    kill(c.pid, SIGSTOP);
    wait_state(c.pid, 'T');
    ask_well(c.pid, 10);
    wait_state(c.pid, 'T');
    ask_well(c.pid, 10);
    wait_state(c.pid, 'T');
    kill(c.pid, SIGCONT);
    wait_state(c.pid, 'S');
    go_on(&c);
}

static int stop_it(struct inject *in, void *opaque, struct ff_error *why)
{
    struct calls *c = opaque;

    kill(c->pid, SIGSTOP);
    return ask_pid(in, opaque, why);
}

static void test_stopped_meanwhile(void **state)
{
    (void)state;
    struct child c = start(reads);

    for (int i = 0; i < 20; i++) {
        struct calls calls = {.pid = c.pid, .n = 3};
        assert_int_equal(inject_run(c.pid, 0, stop_it, &calls, &err), 0);
        wait_state(c.pid, 'T'); /* it is not forgotten */
        kill(c.pid, SIGCONT);
        wait_state(c.pid, 'S');
    }
    go_on(&c);
}

static void *stop_and_go(void *opaque)
{
    const struct child *c = opaque;

    for (int i = 0; i < 200; i++) {
        kill(c->pid, i % 2 ? SIGCONT : SIGSTOP);
        usleep(300);
    }
    return NULL;
}

static void test_stops_and_goes(void **state)
{
    static struct child c; /* of a thread that goes on where an assertion fails */
    pthread_t other;
    (void)state;

    c = start(computes);
    assert_int_equal(pthread_create(&other, NULL, stop_and_go, &c), 0);
    for (int i = 0; i < 200; i++)
        ask_well(c.pid, 3);
    pthread_join(other, NULL);
    kill(c.pid, SIGCONT);
    end(&c, 0);
}

/* --- an end --- */

static int kill_it(struct inject *in, void *opaque, struct ff_error *why)
{
    struct calls *c = opaque;

    kill(c->pid, SIGKILL);
    int rc = ask_pid(in, opaque, why);
    assert_int_equal(rc, -ESRCH);
    return ask_pid(in, opaque, why); /* and ever after */
}

static void test_ends_meanwhile(void **state)
{
    int status;
    (void)state;
    struct child c = start(reads);
    struct calls calls = {.pid = c.pid, .n = 1000000};

    assert_int_equal(inject_run(c.pid, 0, kill_it, &calls, &err), -ESRCH);
    assert_non_null(strstr(err.text, "process"));
    assert_int_equal(waitpid(c.pid, &status, 0), c.pid); /* its parent hears it all the same */
    assert_true(WIFSIGNALED(status));
    assert_int_equal(ask(c.pid, 1), -ESRCH);
    close(c.go);
    close(c.told);
}

static void *exec_other(void *opaque)
{
    char x;
    int go = *(int *)opaque;

    if (read(go, &x, 1) != 1)
        broken();
    execl("/bin/sleep", "sleep", "60", NULL);
    broken();
    return NULL;
}

static void execs(int go, int told)
{
    pthread_t other;

    pthread_create(&other, NULL, exec_other, &go);
    say(told);
    for (;;)
        pause();
}

static int let_exec(struct inject *in, void *opaque, struct ff_error *why)
{
    struct calls *c = opaque;

    assert_int_equal(write(c->n, "x", 1), 1);
    c->n = 100000;
    return ask_pid(in, opaque, why);
}

static void test_another_program(void **state)
{
    int status;
    (void)state;
    struct child c = start(execs);
    struct calls calls = {.pid = c.pid, .n = c.go};

    int rc = inject_run(c.pid, 0, let_exec, &calls, &err);
    assert_true(rc == -ESRCH || rc == -EIO);
    kill(c.pid, SIGKILL);
    assert_int_equal(waitpid(c.pid, &status, 0), c.pid);
    close(c.go);
    close(c.told);
}

/* --- what forbids it --- */

static void is_traced(int go, int told)
{
    char x;

    ptrace(PTRACE_TRACEME, 0, NULL, NULL); /* by its parent, this test */
    say(told);
    if (read(go, &x, 1) != 1)
        broken();
}

static void test_is_traced(void **state)
{
    (void)state;
    struct child c = start(is_traced);

    assert_int_equal(ask(c.pid, 1), -EBUSY);
    assert_non_null(strstr(err.text, "traced by process"));
    go_on(&c);
}

static void filters(int go, int told)
{
    static struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_getpid, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog prog = {.len = 4, .filter = code};
    char x;

    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &prog))
        broken();
    say(told);
    if (read(go, &x, 1) != 1)
        broken();
}

/* @fn in a process of another user */
static void as_nobody(int (*fn)(pid_t of), pid_t of)
{
    int status;

    if (geteuid()) {
        print_message("      skipped: run it as root: it starts processes of another user\n");
        skip();
    }
    pid_t pid = fork();
    if (!pid)
        _exit(setgid(NOBODY) || setuid(NOBODY) ? 9 : fn(of));
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
}

/* Its child has a filter that it may not suspend: it goes on, and nothing has killed it */
static int ask_filtered(pid_t of)
{
    int status;
    (void)of;
    prctl(PR_SET_DUMPABLE, 1);
    struct child mine = start(filters);

    if (ask(mine.pid, 1) != -EPERM || !strstr(err.text, "seccomp"))
        return 8;
    close(mine.go);
    waitpid(mine.pid, &status, 0);
    return WIFEXITED(status) && WEXITSTATUS(status) == 9 ? 0 : 7;
}

static void test_filter_is_suspended(void **state)
{
    (void)state;
    as_nobody(ask_filtered, 0);
    struct child c = start(filters);

    ask_well(c.pid, 3); /* would kill it */
    go_on(&c);
}

static int ask_strangers(pid_t of)
{
    return ask(of, 1) == -EPERM && strstr(err.text, "user") ? 0 : 8;
}

static void test_another_user(void **state)
{
    (void)state;
    struct child c = start(reads);

    as_nobody(ask_strangers, c.pid);
    go_on(&c);
}

/* Who makes a call there is killed where the signals have been blocked, or are about to be let in again */
static void test_is_killed_at_the_mask(void **state)
{
    (void)state;
    for (unsigned at = 1; at <= 3; at++) {
        struct child c = start(reads);
        char fault[48];
        int status;

        wait_state(c.pid, 'S');
        pid_t who = fork();
        if (!who) {
            snprintf(fault, sizeof(fault), "inject.mask=kill@%u", at);
            if (ff_failpoints_arm(fault, &err))
                _exit(2);
            _exit(ask(c.pid, 1) ? 3 : 4);
        }
        assert_int_equal(waitpid(who, &status, 0), who);
        assert_true(WIFSIGNALED(status));
        wait_state(c.pid, 'S');
        assert_int_equal(blocked_of(c.pid), 0);
        ask_well(c.pid, 1);
        go_on(&c);
    }
}

/* Its main thread waits for its vfork(2), which nothing but SIGKILL interrupts */
static void vforks(int go, int told)
{
    char x;

    say(told);
    if (!vfork()) {
        if (syscall(SYS_read, go, &x, 1) != 1)
            _exit(9);
        _exit(0);
    }
}

static void test_does_not_stop(void **state)
{
    (void)state;
    if (UNDER_TSAN)
        skip(); /* which makes a fork of vfork: nobody waits in D */
    struct child c = start(vforks);

    wait_state(c.pid, 'D');
    assert_int_equal(ask(c.pid, 1), -ETIMEDOUT);
    assert_int_equal(write(c.go, "x", 1), 1);
    end(&c, 0); /* it was let go: nobody waits for a tracer */
}

/* --- memory, as it is for --- */

static int map_there(struct inject *in, void *opaque, struct ff_error *why)
{
    uint64_t args[INJECT_ARGS] = {0, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, (uint64_t)-1, 0};
    int64_t *got = opaque;
    int rc = inject_call(in, SYS_mmap, args, &got[0], why);
    uint64_t close_args[INJECT_ARGS] = {9999};

    return rc ? rc : inject_call(in, SYS_close, close_args, &got[1], why);
}

static void test_six_arguments(void **state)
{
    static char text[1 << 20]; /* a sanitizer has many */
    int64_t got[2] = {0};
    char path[64], want[32];
    (void)state;
    struct child c = start(reads);

    assert_int_equal(inject_run(c.pid, 0, map_there, got, &err), 0);
    assert_int_equal(got[1], -EBADF); /* its failure is no failure of the injection */
    snprintf(path, sizeof(path), "/proc/%d/maps", (int)c.pid);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    for (ssize_t n, at = 0; (n = read(fd, text + at, sizeof(text) - 1 - (size_t)at)) > 0; at += n)
        continue;
    close(fd);
    snprintf(want, sizeof(want), "%llx", (unsigned long long)got[0]);
    assert_true(got[0] > 0);
    assert_non_null(strstr(text, want));
    go_on(&c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_waits_in_read), cmocka_unit_test(test_waits_for_time),
        cmocka_unit_test(test_mask_of_a_wait), cmocka_unit_test(test_computes),
        cmocka_unit_test(test_no_signal_is_lost), cmocka_unit_test(test_stopped_stays_so),
        cmocka_unit_test(test_stopped_meanwhile), cmocka_unit_test(test_stops_and_goes),
        cmocka_unit_test(test_ends_meanwhile), cmocka_unit_test(test_another_program),
        cmocka_unit_test(test_is_traced), cmocka_unit_test(test_filter_is_suspended),
        cmocka_unit_test(test_another_user), cmocka_unit_test(test_does_not_stop),
        cmocka_unit_test(test_six_arguments), cmocka_unit_test(test_is_killed_at_the_mask),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
