/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * test_fork_disks.c - the server of a parent's disks is ended, and no other process that has its number
 */
#include "unit.h"

#include <sys/wait.h>

#include "fork_disks.c"

static void other_process(void **state)
{
    struct fork_disks d = {.server_dir = xstrdup("/nonexistent"), .server = fork()};
    siginfo_t ended = {0};

    (void)state;
    while (!d.server) {
        alarm(60);
        pause();
    }
    pid_t pid = d.server;
    d.server_start = process_start_time(pid) + 1;
    fork_disks_end_server(&d);
    assert_int_equal(d.server, 0);
    assert_int_equal(waitid(P_PID, (id_t)pid, &ended, WEXITED | WNOHANG | WNOWAIT), 0);
    assert_int_equal(ended.si_pid, 0);
    d.server = pid;
    d.server_start--;
    fork_disks_end_server(&d); /* it waits for its end */
    assert_int_equal(waitid(P_PID, (id_t)pid, &ended, WEXITED | WNOHANG), 0);
    assert_int_equal(ended.si_pid, pid);
    assert_int_equal(ended.si_status, SIGTERM);
    free(d.server_dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(other_process)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
