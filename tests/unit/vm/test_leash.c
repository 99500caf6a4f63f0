/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * test_leash.c - a process ends with who holds it, and stands still when it is told to
 *
 *   test +--fork--> held: two threads that count
 *        +--fork--> holder: does what the test tells it, a letter each
 */
#include "unit.h"

#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>

#include "fd_pass.h"
#include "leash.h"

#define LIMIT_MS 10000
#define STILL_MS 30 /* nothing happens: that can be waited for by time alone */

static struct ff_error err;
static pid_t held, holder;
static int order;            /* to the holder, and from there */
static atomic_ulong *count; /* of each thread */

static void *count_up(void *arg)
{
    for (atomic_ulong *n = arg;; atomic_fetch_add(n, 1))
        ;
    return NULL;
}

static void be_held(int from)
{
    pthread_t t;
    char x;
    int fd = -1;

    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (ff_fd_receive(from, &x, 1, &fd) || fd < 0 || pthread_create(&t, NULL, count_up, &count[0]))
        _exit(1);
    count_up(&count[1]);
}

static void hold(int from, int to_held)
{
    struct leash l;
    char what;

    while (read(from, &what, 1) == 1) {
        bool ok = true;

        switch (what) {
        case 'b': ok = !leash_begin(&l, held, &err) && !ff_fd_send(to_held, "x", 1, l.given); break;
        case 's': ok = leash_stop(&l); break;
        case 'g': leash_go(&l); break;
        case 'e': leash_end(&l);
        }
        if (write(from, ok ? &what : "!", 1) != 1)
            break;
    }
    _exit(0);
}

/* What the holder says: the same, or '!' */
static char tell(char what)
{
    char got = 0;

    assert_int_equal(write(order, &what, 1), 1);
    assert_int_equal(read(order, &got, 1), 1);
    return got;
}

static bool both_count(int limit_ms)
{
    unsigned long a = atomic_load(&count[0]), b = atomic_load(&count[1]);

    for (int i = 0; i < limit_ms && (a == atomic_load(&count[0]) || b == atomic_load(&count[1])); i++)
        poll(NULL, 0, 1);
    return a != atomic_load(&count[0]) && b != atomic_load(&count[1]);
}

static int start(void **state)
{
    int orders[2], pass[2];

    (void)state;
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, orders) || socketpair(AF_UNIX, SOCK_STREAM, 0, pass), 0);
    held = fork();
    if (!held) {
        close(pass[0]);
        close(orders[0]);
        close(orders[1]);
        be_held(pass[1]);
    }
    holder = fork();
    if (!holder) {
        close(orders[0]);
        hold(orders[1], pass[0]);
    }
    close(orders[1]);
    close(pass[0]);
    close(pass[1]);
    order = orders[0];
    assert_int_equal(tell('b'), 'b');
    assert_true(both_count(LIMIT_MS));
    return 0;
}

static int finish(void **state)
{
    (void)state;
    close(order);
    waitpid(holder, NULL, 0);
    kill(held, SIGKILL);
    waitpid(held, NULL, 0);
    return 0;
}

/* The signal that ended the held process; 0: it has not ended for a while */
static int signal_of_held(int limit_ms)
{
    int status;

    for (int i = 0; i < limit_ms; i++, poll(NULL, 0, 1))
        if (waitpid(held, &status, WNOHANG) == held)
            return WIFSIGNALED(status) ? WTERMSIG(status) : -1;
    return 0;
}

static void test_ends_with_its_holder(void **state)
{
    (void)state;
    kill(holder, SIGKILL);
    assert_int_equal(signal_of_held(LIMIT_MS), SIGKILL);
}

/* Neither of them runs, and nobody has to */
static void test_ends_stopped(void **state)
{
    (void)state;
    kill(held, SIGSTOP);
    kill(holder, SIGSTOP);
    kill(holder, SIGKILL);
    assert_int_equal(signal_of_held(LIMIT_MS), SIGKILL);
}

static void test_let_go(void **state)
{
    (void)state;
    assert_int_equal(tell('e'), 'e');
    kill(holder, SIGKILL);
    waitpid(holder, NULL, 0);
    assert_int_equal(signal_of_held(STILL_MS), 0);
    assert_true(both_count(LIMIT_MS));
}

static void test_stands_still(void **state)
{
    (void)state;
    assert_int_equal(tell('s'), 's');
    unsigned long a = atomic_load(&count[0]), b = atomic_load(&count[1]);
    poll(NULL, 0, STILL_MS);
    assert_int_equal(a, atomic_load(&count[0]));
    assert_int_equal(b, atomic_load(&count[1]));
    assert_int_equal(tell('g'), 'g');
    assert_true(both_count(LIMIT_MS));
}

static void test_has_ended(void **state)
{
    (void)state;
    kill(held, SIGKILL);
    assert_int_equal(tell('s'), '!');
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_ends_with_its_holder, start, finish),
        cmocka_unit_test_setup_teardown(test_ends_stopped, start, finish),
        cmocka_unit_test_setup_teardown(test_let_go, start, finish),
        cmocka_unit_test_setup_teardown(test_stands_still, start, finish),
        cmocka_unit_test_setup_teardown(test_has_ended, start, finish),
    };

    count = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    return count == MAP_FAILED ? 1 : cmocka_run_group_tests(tests, NULL, NULL);
}
