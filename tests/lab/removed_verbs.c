/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * removed_verbs.c - inside the lab: a device goes in the middle of a move, and comes back
 */
/**
 * DOC: Theory of Operation
 *
 * Purpose      the kernel removes soft-RoCE's device when nobody has it open any more, and librdmacm keeps
 *              it open until its process ends. So a process of its own sees the device go; that a
 *              listener is made again in the same one is in tests/unit/rdma/test_verbs_listen.c.
 */
#include "hosts.h"

#include <poll.h>
#include <sys/wait.h>

#include "kept_log.h"

static void spawn(pid_t *pid, char *const argv[])
{
    assert_int_equal(posix_spawnp(pid, argv[0], NULL, NULL, argv, environ), 0);
}

static int on_hostb(const char *line)
{
    char cmd[256];

    snprintf(cmd, sizeof(cmd), "ip netns exec hostb %s > /dev/null 2>&1", line);
    return system(cmd);
}

/* A link breaks, and says why; so does a destination that listens on an address of the device, or on
 * every address, and it goes on waiting */
static void test_device_goes(void **state)
{
    char *const remove[] = {"ip", "netns", "exec", "hostb", "rdma", "link", "delete", "rxeb", NULL};
    static uint8_t buf[FF_MSG_MAX];
    struct passive s = {.rc = 0};
    struct ff_error err;
    pid_t pid;
    (void)state;

    open_pair(1);
    passive_start(&s, accept_main);
    spawn(&pid, remove); /* it ends when this process has */
    assert_fails(p.b->ops->recv(p.b, buf, SOON_MS, &err), ENODEV);
    assert_error(err, ENODEV, "device rxeb was removed");
    uint64_t end_ns = ff_now_ns() + SOON_MS * 1000000ull;
    while (!atomic_load(&n_logs) && ff_now_ns() < end_ns)
        poll(NULL, 0, 20);
    assert_non_null(strstr(last_log, "listens (rxeb) was removed; listening again"));
    ff_port_cancel(port);
    join_soon(s.thread);
    assert_int_equal(s.rc, -ECANCELED);
}

static void test_device_is_back(void **state)
{
    (void)state;
    open_pair(1);
    read_all(p.a, p.b, FF_QUEUE_FAULT);
}

/* Until the device is gone, with who had it open */
static int wait_gone(void)
{
    uint64_t end_ns = ff_now_ns() + SOON_MS * 1000000ull;

    while (!on_hostb("rdma link show rxeb/1"))
        if (ff_now_ns() > end_ns || poll(NULL, 0, 100))
            return -1;
    return 0;
}

int main(int argc, char **argv)
{
    const struct CMUnitTest goes[] = {WITH(test_device_goes)}, back[] = {WITH(test_device_is_back)};
    char *const self[] = {"/proc/self/exe", "goes", NULL};
    int status = -1;
    pid_t pid;

    int rc = enter_lab();
    if (rc)
        return rc;
    if (argc == 2 && !strcmp(argv[1], "goes")) {
        keep_logs_from_now(FF_LOG_WARN);
        return cmocka_run_group_tests(goes, NULL, NULL) ? 1 : 0;
    }
    spawn(&pid, self);
    waitpid(pid, &status, 0);
    if (wait_gone()) {
        fprintf(stderr, "rxeb is still there\n");
        return 1;
    }
    if (on_hostb("rdma link add rxeb type rxe netdev ethb"))
        return 1;
    return cmocka_run_group_tests(back, NULL, NULL) || status ? 1 : 0;
}
