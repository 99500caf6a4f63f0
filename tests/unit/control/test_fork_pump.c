/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * test_fork_pump.c - a host that is silent is late, whatever others say; but not for the silence of one that feeds it
 */
#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include "unit.h"

#include "fork.h"

#define HOSTS 3
#define LIMIT_MS 400
#define WORD "{\"event\":\"pong\"}\n"

static struct host hosts[HOSTS];
static const struct node node = {.host = "h"};
static struct fork_options options;
static struct fork f;
static pid_t speakers[HOSTS];
static enum host_state state_of_first; /* when the second was late */

static void hosts_are(int fanout)
{
    options = (struct fork_options){.fanout = fanout};
    f = (struct fork){.o = &options, .fanout = 1, .s = {.hosts = hosts, .n_hosts = HOSTS, .signals = -1, .o.quiet = true}};
    for (size_t i = 0; i < HOSTS; i++)
        hosts[i] = (struct host){.node = &node, .keyed = true, .verified = true, .state = HOST_IMAGE,
                                 .address = "198.18.0.1", .run = SPAWN_NONE};
}

/* @h says something every 50 ms, @n times, and then that it is complete */
static void speak(struct host *h, unsigned n)
{
    static const char last[] = "{\"event\":\"complete\"}\n";
    int fd[2];

    assert_int_equal(pipe2(fd, O_NONBLOCK | O_CLOEXEC), 0);
    h->run.out = fd[0];
    pid_t pid = fork();
    if (!pid) {
        alarm(60);
        while (n--) {
            poll(NULL, 0, 50);
            if (write(fd[1], WORD, strlen(WORD)) < 0)
                _exit(1);
        }
        bool good = write(fd[1], last, strlen(last)) > 0;
        pause(); /* the end of its pipe would be the host's */
        _exit(!good);
    }
    close(fd[1]);
    speakers[h - hosts] = pid;
}

static void end(void)
{
    for (size_t i = 0; i < HOSTS; i++) {
        if (speakers[i]) {
            kill(speakers[i], SIGKILL);
            waitpid(speakers[i], NULL, 0);
            close(hosts[i].run.out);
        }
        speakers[i] = 0;
        free(hosts[i].error);
        spawn_free(&hosts[i].run);
    }
}

static bool is_incomplete(const struct fork *of, const struct host *h)
{
    (void)of;
    return h->state == HOST_IMAGE;
}

static void fail_host(struct fork *of, struct host *h)
{
    if (h == &hosts[1])
        state_of_first = hosts[0].state;
    host_fail(&of->s, h, "late");
}

/* The others get their memory from now on */
static void fail_and_feed(struct fork *of, struct host *h)
{
    host_fail(&of->s, h, "late");
    for (size_t i = 1; h == &hosts[0] && i < HOSTS; i++)
        speak(&hosts[i], 4);
}

/* One talks for three times as long as another may be silent */
static void test_own_clock(void **state)
{
    (void)state;
    hosts_are(0);
    speak(&hosts[0], 24);
    hosts[2].state = HOST_COMPLETE;
    assert_int_equal(fork_pump(&f, is_incomplete, fail_host, LIMIT_MS), 0);
    assert_int_equal(hosts[0].state, HOST_COMPLETE);
    assert_int_equal(hosts[1].state, HOST_FAILED);
    assert_int_equal(state_of_first, HOST_IMAGE);
    end();
}

/* It waits for another link, and is heard of by then; that helps no other one */
static void test_paused(void **state)
{
    (void)state;
    hosts_are(0);
    hosts[0].paused_until_ms = ff_now_ms() + 3 * LIMIT_MS;
    speak(&hosts[0], 24);
    hosts[2].state = HOST_COMPLETE;
    assert_int_equal(fork_pump(&f, is_incomplete, fail_host, LIMIT_MS), 0);
    assert_int_equal(hosts[0].state, HOST_COMPLETE);
    assert_int_equal(state_of_first, HOST_IMAGE);
    end();
}

/* The first of a chain hangs: the others get nothing for that long, and then from the parent */
static void test_fed(void **state)
{
    (void)state;
    hosts_are(1);
    for (size_t i = 1; i < HOSTS; i++) {
        hosts[i].is_fed = true;
        hosts[i].feeder = &hosts[i - 1];
    }
    assert_int_equal(fork_pump(&f, is_incomplete, fail_and_feed, LIMIT_MS), 0);
    assert_int_equal(hosts[0].state, HOST_FAILED);
    assert_int_equal(hosts[1].state, HOST_COMPLETE);
    assert_int_equal(hosts[2].state, HOST_COMPLETE);
    assert_null(hosts[1].feeder);
    end();
}

/* Each of two is to have from the other what it lacks, and neither says anything any more */
static void test_circle(void **state)
{
    (void)state;
    hosts_are(0);
    hosts[0].feeder = &hosts[1];
    hosts[1].feeder = &hosts[0];
    hosts[2].feeder = &hosts[0];
    assert_int_equal(fork_pump(&f, is_incomplete, fail_host, LIMIT_MS), 0);
    for (size_t i = 0; i < HOSTS; i++)
        assert_int_equal(hosts[i].state, HOST_FAILED);
    end();
}

UNIT_MAIN(cmocka_unit_test(test_own_clock), cmocka_unit_test(test_paused), cmocka_unit_test(test_fed),
          cmocka_unit_test(test_circle))
