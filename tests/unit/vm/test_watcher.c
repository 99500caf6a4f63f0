/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * test_watcher.c - whose memory a watcher watches, for whom, and for how long
 *
 *   test, the agent --fork--> watcher
 *     +--fork--> owner: memory that is watched
 */
#include "unit.h"

#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>

#include "watcher.h"

#define PAGES 16u
#define PAGE 4096u
#define OTHER 4242

static struct ff_error err;
static char folder[] = "/tmp/ff-watcher-XXXXXX", path[64];
static struct outside_block block = {.name = "ram", .len_bytes = PAGES * PAGE, .max_bytes = PAGES * PAGE, .psize = PAGE};
static pid_t watcher, owner;
static int alive, go, told;
static int device = -1; /* /dev/userfaultfd: the owner has it, too */

static pid_t start_watcher(pid_t agent)
{
    struct sockaddr_un at = {.sun_family = AF_UNIX};
    int pair[2], listener = socket(AF_UNIX, SOCK_SEQPACKET, 0);

    snprintf(path, sizeof(path), "%s/socket", folder);
    unlink(path);
    strcpy(at.sun_path, path);
    assert_int_equal(bind(listener, (struct sockaddr *)&at, sizeof(at)), 0);
    assert_int_equal(listen(listener, 4), 0);
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, pair), 0);
    pid_t pid = fork();
    if (!pid) {
        close(pair[0]);
        watcher_serve(listener, pair[1], agent);
        _exit(0);
    }
    close(listener);
    close(pair[1]);
    alive = pair[0];
    return pid;
}

/* It fills its memory, and says each byte that it then reads there when it is asked to */
static void own(int from, int to)
{
    uint8_t *at = (uint8_t *)block.hva;
    uint8_t page;

    prctl(PR_SET_PDEATHSIG, SIGKILL);
    (void)!setresuid(OTHER, OTHER, OTHER); /* who may make no userfaultfd */
    prctl(PR_SET_DUMPABLE, 1);
    memset(at, 7, block.len_bytes);
    while (read(from, &page, 1) == 1)
        if (write(to, at + page * PAGE, 1) != 1)
            _exit(1);
    _exit(0);
}

static uint8_t ask_owner(uint8_t page)
{
    uint8_t got = 0xff;

    assert_int_equal(write(go, &page, 1), 1);
    assert_int_equal(read(told, &got, 1), 1);
    return got;
}

static int setup(void **state)
{
    int to[2], from[2];
    (void)state;

    if (!mkdtemp(folder) || pipe(to) || pipe(from))
        return -1;
    device = open("/dev/userfaultfd", O_RDWR);
    void *at = mmap(NULL, block.len_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    block.hva = (uintptr_t)at;
    owner = fork();
    if (!owner) {
        close(to[1]);
        close(from[0]);
        own(to[0], from[1]);
    }
    close(to[0]);
    close(from[1]);
    go = to[1];
    told = from[0];
    return ask_owner(3) == 7 ? 0 : -1;
}

static int teardown(void **state)
{
    (void)state;
    close(go);
    close(told);
    waitpid(owner, NULL, 0);
    unlink(path);
    rmdir(folder);
    return 0;
}

static void check_watcher_ends(void)
{
    int status;

    close(alive);
    assert_int_equal(waitpid(watcher, &status, 0), watcher);
    assert_int_equal(status, 0);
}

static void install(int fd, unsigned page, uint8_t value)
{
    static uint8_t bytes[PAGE];
    struct uffdio_copy c = {.dst = block.hva + page * PAGE, .src = (uintptr_t)bytes, .len = PAGE};

    memset(bytes, value, sizeof(bytes));
    assert_int_equal(ioctl(fd, UFFDIO_COPY, &c), 0);
}

/* Asked by a child of the agent's: exit code 0: it was watched, and each page came as it should */
static int ask_for_owner(void)
{
    struct watch w;

    if (watcher_begin(&w, path, owner, device, &block, 1, &err))
        return 1;
    install(w.fd, 3, 9);
    if (ask_owner(3) != 9)
        return 2;
    const struct iovec again = {(uint8_t *)block.hva + 3 * PAGE, PAGE}, beyond = {(uint8_t *)block.hva + PAGE, block.len_bytes};
    if (watch_discard(&w, &again, 1, &err))
        return 5;
    install(w.fd, 3, 8); /* or it would be there already */
    if (ask_owner(3) != 8)
        return 6;
    if (watch_discard(&w, &beyond, 1, &err) != -EINVAL)
        return 7;
    if (watch_stop(&w, &err) || watch_end(&w, &err))
        return 3;
    return ask_owner(4) ? 4 : 0; /* it was emptied, and nobody waits any more */
}

static int in_child(int (*fn)(void))
{
    int status;
    pid_t pid = fork();

    if (!pid) {
        int rc = fn();
        if (rc)
            fprintf(stderr, "%d: %s\n", rc, err.text);
        _exit(rc);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status));
    return WEXITSTATUS(status);
}

static void test_watches(void **state)
{
    (void)state;
    if (geteuid() || device < 0) {
        print_message("      skipped: run it as root, on Linux 6.1 or newer: it needs /dev/userfaultfd\n");
        skip();
    }
    watcher = start_watcher(getpid());
    assert_int_equal(in_child(ask_for_owner), 0);
    check_watcher_ends();
}

/* Who has no right to make one, and was passed no device: the error says what to do */
static int ask_without_device(void)
{
    struct watch w;

    return watcher_begin(&w, path, owner, -1, &block, 1, &err) == -EPERM && strstr(err.text, "/dev/userfaultfd") ? 0 : 1;
}

static void test_no_right(void **state)
{
    int fd = open("/proc/sys/vm/unprivileged_userfaultfd", O_RDONLY);
    char permitted = '1';

    (void)state;
    if (geteuid() || fd < 0 || read(fd, &permitted, 1) != 1 || permitted != '0') {
        print_message("      skipped: run it as root, with vm.unprivileged_userfaultfd=0\n");
        skip();
    }
    close(fd);
    watcher = start_watcher(getpid());
    assert_int_equal(in_child(ask_without_device), 0);
    check_watcher_ends();
}

/* A descriptor of something else: no ioctl(2) of that is called there */
static int ask_by_other_device(void)
{
    struct watch w;

    return watcher_begin(&w, path, owner, 0, &block, 1, &err) == -EINVAL ? 0 : 1;
}

static void test_other_device(void **state)
{
    (void)state;
    if (access("/dev/userfaultfd", F_OK)) {
        print_message("      skipped: it needs /dev/userfaultfd, of Linux 6.1 or newer\n");
        skip();
    }
    watcher = start_watcher(getpid());
    assert_int_equal(in_child(ask_by_other_device), 0);
    check_watcher_ends();
}

static int ask_for_parent(void)
{
    struct watch w;

    return watcher_begin(&w, path, getppid(), -1, &block, 1, &err) == -EPERM && strstr(err.text, "none that") ? 0 : 1;
}

/* The agent itself is no descendant of its own */
static void test_not_the_agents(void **state)
{
    (void)state;
    watcher = start_watcher(getpid());
    assert_int_equal(in_child(ask_for_parent), 0);
    check_watcher_ends();
}

static int ask_from_elsewhere(void)
{
    struct watch w;

    return watcher_begin(&w, path, owner, -1, &block, 1, &err) == -EPIPE ? 0 : 1;
}

static void test_no_descendant_asks(void **state)
{
    (void)state;
    pid_t other = fork();
    if (!other)
        for (;;)
            pause();
    watcher = start_watcher(other);
    assert_int_equal(in_child(ask_from_elsewhere), 0);
    check_watcher_ends();
    kill(other, SIGKILL);
    waitpid(other, NULL, 0);
}

static int send_nonsense(void)
{
    static const uint32_t bad[][2] = {{1, 0}, {1, 1}, {1, 100000}, {0, 0xffffffff}};
    struct sockaddr_un to = {.sun_family = AF_UNIX};
    char x;

    strcpy(to.sun_path, path);
    for (unsigned i = 0; i < FF_ARRAY_LEN(bad); i++) {
        int fd = socket(AF_UNIX, SOCK_SEQPACKET, 0);
        if (connect(fd, (struct sockaddr *)&to, sizeof(to)) || send(fd, bad[i], sizeof(bad[i]), 0) < 0 ||
            recv(fd, &x, 1, 0) > 0)
            return 1;
        close(fd);
    }
    return 0;
}

static void test_nonsense(void **state)
{
    (void)state;
    watcher = start_watcher(getpid());
    assert_int_equal(in_child(send_nonsense), 0);
    check_watcher_ends();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_watches),
        cmocka_unit_test(test_no_right),
        cmocka_unit_test(test_other_device),
        cmocka_unit_test(test_not_the_agents),
        cmocka_unit_test(test_no_descendant_asks),
        cmocka_unit_test(test_nonsense),
    };

    return cmocka_run_group_tests(tests, setup, teardown);
}
