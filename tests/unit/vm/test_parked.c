/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * test_parked.c - a thread that waits, one that ran meanwhile, one that is held
 */
#include <pthread.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/syscall.h>

#include "hold.h"
#include "parked.h"
#include "unit.h"

#define LIMIT_MS 20000

/* What stands in for a QEMU with two CPUs: a process whose threads wait for a condition, as CPUs do */
static struct shared {
    _Atomic pid_t tid[2];
    _Atomic int rounds; /* that the first has done */
    pthread_mutex_t lock;
    pthread_cond_t go_on;
    int wanted; /* rounds */
} * shared;

static void *cpu(void *opaque)
{
    const int number = (int)(intptr_t)opaque;

    pthread_mutex_lock(&shared->lock);
    shared->tid[number] = (pid_t)syscall(SYS_gettid);
    for (;;) {
        pthread_cond_wait(&shared->go_on, &shared->lock);
        while (!number && shared->rounds < shared->wanted)
            shared->rounds++;
    }
    return NULL;
}

static pid_t start(void)
{
    pthread_mutexattr_t m;
    pthread_condattr_t c;

    shared = mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(shared != MAP_FAILED);
    pthread_mutexattr_init(&m);
    pthread_mutexattr_setpshared(&m, PTHREAD_PROCESS_SHARED);
    pthread_mutex_init(&shared->lock, &m);
    pthread_condattr_init(&c);
    pthread_condattr_setpshared(&c, PTHREAD_PROCESS_SHARED);
    pthread_cond_init(&shared->go_on, &c);
    pid_t pid = fork();
    if (!pid) {
        pthread_t thread[2];
        for (intptr_t i = 0; i < 2; i++)
            pthread_create(&thread[i], NULL, cpu, (void *)i);
        alarm(LIMIT_MS / 1000);
        for (;;)
            pause();
    }
    while (!shared->tid[0] || !shared->tid[1])
        sched_yield();
    return pid;
}

/* Until both wait, as a caller does: two looks that show the same */
static void look(pid_t pid, struct parked *p)
{
    struct parked again[2];
    struct ff_error err;

    do {
        for (int i = 0; i < 2; i++)
            p[i].tid = again[i].tid = shared->tid[i];
        assert_ok(parked_look(pid, p, 2, &err), err);
        usleep(1000);
        assert_ok(parked_look(pid, again, 2, &err), err);
    } while (!parked_still(p, again, 2, false));
}

static void wake(void)
{
    pthread_mutex_lock(&shared->lock);
    int wanted = ++shared->wanted;
    pthread_cond_broadcast(&shared->go_on);
    pthread_mutex_unlock(&shared->lock);
    while (shared->rounds < wanted)
        sched_yield();
}

static void test_parked(void **unused)
{
    struct parked was[2], now[2];
    struct ff_error err;
    struct hold *h;
    pid_t pid = start();

    (void)unused;
    look(pid, was);
    memcpy(now, was, sizeof(now));
    assert_ok(hold_begin(pid, &h, &err), err);
    assert_ok(parked_look(pid, now, 2, &err), err);
    assert_true(parked_still(was, now, 2, true));
    assert_false(parked_still(was, now, 2, false)); /* being held is seen, too */
    hold_end(h, 0);

    look(pid, was);
    wake();
    assert_ok(hold_begin(pid, &h, &err), err);
    assert_ok(parked_look(pid, now, 2, &err), err);
    assert_false(parked_still(was, now, 2, true));
    hold_end(h, SIGKILL);
    assert_int_equal(waitpid(pid, NULL, 0), pid);
    assert_fails(parked_look(pid, now, 2, &err), ESRCH);
    munmap(shared, sizeof(*shared));
}

static void test_other_calls(void **unused)
{
    struct parked was = {.tid = getpid()}, now = {.tid = getpid()};
    struct ff_error err;

    (void)unused;
    assert_ok(parked_look(getpid(), &was, 1, &err), err); /* this one runs: it reads */
    now = was;
    assert_false(parked_still(&was, &now, 1, true));
}

UNIT_MAIN(cmocka_unit_test(test_parked), cmocka_unit_test(test_other_calls))
