/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * test_hold.c - processes that are held, with threads that come and go
 */
#include "unit.h"

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include "hold.h"
#include "outside.h"

#define THREADS 6

static struct ff_error err;

struct shared {
    _Atomic uint64_t count[THREADS + 1];
    _Atomic bool over;
};

static struct shared *shared;

static void *count(void *opaque)
{
    _Atomic uint64_t *mine = opaque;

    while (!atomic_load(&shared->over)) {
        atomic_fetch_add(mine, 1);
        if (mine == shared->count)
            usleep(100);
    }
    return NULL;
}

static void *once(void *opaque)
{
    atomic_fetch_add(&shared->count[THREADS], 1);
    return opaque;
}

static void many(void)
{
    pthread_t t[THREADS], more;

    for (int i = 0; i < THREADS; i++)
        pthread_create(&t[i], NULL, count, &shared->count[i]);
    while (!atomic_load(&shared->over)) { /* new ones all the time */
        pthread_create(&more, NULL, once, NULL);
        pthread_join(more, NULL);
    }
    for (int i = 0; i < THREADS; i++)
        pthread_join(t[i], NULL);
}

static pid_t start(void (*fn)(void))
{
    shared = mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_ptr_not_equal(shared, MAP_FAILED);
    pid_t pid = fork();
    if (!pid) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        fn();
        _exit(0);
    }
    return pid;
}

static void wait_counts(void)
{
    struct shared was = {0};

    for (int i = 0; i <= THREADS; i++)
        was.count[i] = atomic_load(&shared->count[i]);
    for (int i = 0; i <= THREADS; i++)
        for (int k = 0; atomic_load(&shared->count[i]) <= was.count[i]; k++) {
            assert_true(k < 5000);
            usleep(1000);
        }
}

static void wait_state(pid_t pid, char want)
{
    char path[64], text[256];

    snprintf(path, sizeof(path), "/proc/%d/stat", (int)pid);
    for (int i = 0;; i++, usleep(1000)) {
        FILE *f = fopen(path, "re");
        assert_non_null(f);
        assert_non_null(fgets(text, sizeof(text), f));
        fclose(f);
        if (strrchr(text, ')')[2] == want)
            return;
        assert_true(i < 5000);
    }
}

static void check_still(void)
{
    uint64_t was[THREADS + 1];

    for (int i = 0; i <= THREADS; i++)
        was[i] = atomic_load(&shared->count[i]);
    usleep(20000);
    for (int i = 0; i <= THREADS; i++)
        assert_int_equal(atomic_load(&shared->count[i]), was[i]);
}

static void check_end(pid_t pid, bool killed)
{
    int status;

    assert_int_equal(waitpid(pid, &status, 0), pid);
    if (killed)
        assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
    else
        assert_int_equal(status, 0);
    munmap(shared, sizeof(*shared));
}

static void test_stands_still_and_goes_on(void **state)
{
    (void)state;
    pid_t pid = start(many);

    for (int i = 0; i < 10; i++) {
        struct hold *h;

        wait_counts();
        assert_int_equal(hold_begin(pid, &h, &err), 0);
        check_still();
        hold_end(h, 0);
    }
    wait_counts();
    atomic_store(&shared->over, true);
    check_end(pid, false);
}

static void test_stays_stopped(void **state)
{
    struct hold *h;
    (void)state;
    pid_t pid = start(many);

    wait_counts();
    assert_int_equal(hold_begin(pid, &h, &err), 0);
    hold_end(h, SIGSTOP);
    wait_state(pid, 'T');
    check_still();
    kill(pid, SIGCONT);
    wait_counts();
    atomic_store(&shared->over, true);
    check_end(pid, false);
}

static void test_is_killed(void **state)
{
    struct hold *h;
    (void)state;
    pid_t pid = start(many);

    wait_counts();
    assert_int_equal(hold_begin(pid, &h, &err), 0);
    hold_end(h, SIGKILL);
    check_end(pid, true);
    assert_int_equal(hold_begin(pid, &h, &err), -ESRCH);
}

static void test_does_not_outlive_its_holder(void **state)
{
    int status;
    (void)state;
    pid_t pid = start(many);

    wait_counts();
    pid_t holder = fork();
    if (!holder) {
        struct hold *h;

        _exit(hold_begin(pid, &h, &err) || hold_bind(h, &err) ? 1 : 0); /* it ends without a word */
    }
    assert_int_equal(waitpid(holder, &status, 0), holder);
    assert_int_equal(status, 0);
    check_end(pid, true);
}

/* Not bound yet: it goes on, with all of its threads */
static void test_outlives_who_holds_it_only(void **state)
{
    int status;
    (void)state;
    pid_t pid = start(many);

    wait_counts();
    pid_t holder = fork();
    if (!holder) {
        struct hold *h;

        if (hold_begin(pid, &h, &err))
            _exit(1);
        check_still();
        kill(getpid(), SIGKILL);
    }
    assert_int_equal(waitpid(holder, &status, 0), holder);
    assert_true(WIFSIGNALED(status));
    wait_counts();
    atomic_store(&shared->over, true);
    check_end(pid, false);
}

static void test_ends_while_held(void **state)
{
    struct hold *h;
    (void)state;
    pid_t pid = start(many);

    wait_counts();
    assert_int_equal(hold_begin(pid, &h, &err), 0);
    kill(pid, SIGKILL);
    check_end(pid, true);
    assert_int_equal(hold_bind(h, &err), -ESRCH);
    hold_end(h, 0);
}

static void vforks(void)
{
    if (!vfork()) {
        while (!atomic_load(&shared->over))
            usleep(1000);
        _exit(0);
    }
}

/* Nobody dies of an attempt that failed */
static void test_does_not_stop(void **state)
{
    struct hold *h;
    (void)state;
    if (UNDER_TSAN)
        skip(); /* which makes a fork of vfork: nobody waits in D */
    pid_t pid = start(vforks);

    wait_state(pid, 'D');
    assert_int_equal(hold_begin(pid, &h, &err), -ETIMEDOUT);
    atomic_store(&shared->over, true);
    check_end(pid, false);
}

static int file;

/* As QEMU saves a state: written in parts, closed; and then comes what ought not to come */
static void saves(void)
{
    while (!atomic_load(&shared->over)) {
        char path[40];

        if (atomic_load(&shared->count[1]) == atomic_load(&shared->count[0])) {
            usleep(100);
            continue;
        }
        snprintf(path, sizeof(path), "/proc/self/fd/%d", file);
        int fd = open(path, O_WRONLY);
        for (int i = 0; i < 3; i++)
            (void)!write(fd, "state", 5);
        close(fd);
        atomic_fetch_add(&shared->count[0], 1);
    }
}

static int await_held(struct hold *h)
{
    int rc = -EAGAIN;

    for (int i = 0; i < 2000 && rc == -EAGAIN; i++)
        rc = hold_await(h, 5, &err);
    return rc;
}

static void check_untraced(pid_t pid)
{
    for (int i = 0; outside_number(pid, "TracerPid:"); i++) {
        assert_true(i < 1000);
        usleep(1000);
    }
}

static void test_stands_where_it_closes_a_file(void **state)
{
    struct hold *h;
    struct stat st;
    (void)state;
    file = memfd_create("state", MFD_CLOEXEC);
    assert_int_equal(fstat(file, &st), 0);
    pid_t pid = start(saves);

    for (uint64_t i = 1; i <= 20; i++) {
        assert_int_equal(ftruncate(file, 0), 0);
        assert_int_equal(hold_begin_at(pid, &st, &h, &err), 0);
        if (i == 1)
            assert_int_equal(hold_await(h, 20, &err), -EAGAIN);
        atomic_store(&shared->count[1], i);
        assert_int_equal(await_held(h), 0);
        assert_int_equal(lseek(file, 0, SEEK_END), 15);
        if (i < 3)
            check_still();
        assert_int_equal(atomic_load(&shared->count[0]), i - 1);
        hold_end(h, 0);
        for (int k = 0; atomic_load(&shared->count[0]) < i; k++) {
            assert_true(k < 5000);
            usleep(1000);
        }
    }
    assert_int_equal(hold_begin_at(pid, &st, &h, &err), 0); /* nobody waits for it any more */
    hold_end(h, 0);
    check_untraced(pid);
    assert_int_equal(hold_begin_at(pid, &st, &h, &err), 0);
    kill(pid, SIGKILL);
    assert_int_equal(await_held(h), -ESRCH);
    hold_end(h, 0);
    check_end(pid, true);
    close(file);
}

static void has_no_room(void)
{
    signal(SIGXFSZ, SIG_IGN);
    setrlimit(RLIMIT_FSIZE, &(struct rlimit){8, 8});
    saves();
}

static void test_what_it_could_not_write(void **state)
{
    struct hold *h;
    struct stat st;
    (void)state;
    file = memfd_create("state", MFD_CLOEXEC);
    assert_int_equal(fstat(file, &st), 0);
    pid_t pid = start(has_no_room);
    wait_state(pid, 'S');
    assert_int_equal(hold_begin_at(pid, &st, &h, &err), 0);
    atomic_store(&shared->count[1], 1);
    assert_int_equal(await_held(h), -EIO);
    hold_end(h, 0);
    check_untraced(pid);
    atomic_store(&shared->over, true);
    check_end(pid, false);
    close(file);
}

/* One end of a pair of sockets, and a file: what its other end says */
static void test_names(void **state)
{
    struct hold *h;
    char x, path[64];
    int pair[2], kept = memfd_create("kept", 0);

    (void)state;
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, pair), 0);
    pid_t pid = start(many);
    close(pair[1]);
    wait_counts();
    if (hold_begin(pid, &h, &err) || hold_bind(h, &err))
        fail_msg("hold: %s", err.text);
    assert_int_equal(recv(pair[0], &x, 1, MSG_DONTWAIT), -1);
    for (int i = 0; i < 2; i++) { /* again: there is nothing left to do */
        if (hold_let_go_of_names(h, &err))
            fail_msg("names: %s", err.text);
        assert_int_equal(recv(pair[0], &x, 1, MSG_DONTWAIT), 0); /* closed */
    }
    snprintf(path, sizeof(path), "/proc/%d/fd/%d", (int)pid, kept);
    assert_int_equal(access(path, F_OK), 0);
    kill(pid, SIGKILL);
    assert_int_equal(waitpid(pid, NULL, 0), pid);
    assert_int_equal(hold_let_go_of_names(h, &err), -ESRCH);
    hold_end(h, 0);
    close(pair[0]);
    close(kept);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_names),
        cmocka_unit_test(test_stands_still_and_goes_on), cmocka_unit_test(test_stays_stopped),
        cmocka_unit_test(test_is_killed),
        cmocka_unit_test(test_does_not_outlive_its_holder), cmocka_unit_test(test_outlives_who_holds_it_only),
        cmocka_unit_test(test_ends_while_held),
        cmocka_unit_test(test_does_not_stop),
        cmocka_unit_test(test_stands_where_it_closes_a_file), cmocka_unit_test(test_what_it_could_not_write),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
