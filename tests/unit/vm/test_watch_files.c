/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * test_watch_files.c - private views of an image's file in another process: what it reads, and what becomes of it
 *
 *   test, the agent --fork--> watcher
 *     +--fork--> owner: its memory becomes a view of the image
 *     +--fork--> who looks after it
 */
#include "unit.h"

#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>

#include "watcher.h"

#define PAGES 16u
#define PAGE 4096u
#define HERE 3u     /* a page that the image has */
#define MISSING 5u
#define WRITE 0x80u
#define QUIET_MS 200 /* so long nothing is heard of one that waits */

static struct ff_error err;
static char folder[] = "/tmp/ff-watch-files-XXXXXX", path[64];
static struct outside_block block = {.name = "ram", .len_bytes = PAGES * PAGE, .max_bytes = PAGES * PAGE, .psize = PAGE};
static struct watch_file view;
static pid_t watcher, owner;
static int alive, go, told, image, device = -1;

/* Reads a page's first byte, and says it; with WRITE, it writes there first */
static void own(int from, int to, bool locks)
{
    volatile uint8_t *at = (uint8_t *)block.hva;
    uint8_t page;

    prctl(PR_SET_PDEATHSIG, SIGKILL);
    close(alive);
    memset((void *)at, 7, block.len_bytes);
    if (locks && syscall(SYS_mlock, at, (size_t)PAGE)) /* mlock() does nothing under a sanitizer */
        _exit(2);
    while (read(from, &page, 1) == 1) {
        if (page & WRITE)
            at[(page & ~WRITE) * PAGE] = 77;
        uint8_t got = at[(page & ~WRITE) * PAGE];
        if (write(to, &got, 1) != 1)
            _exit(1);
    }
    _exit(0);
}

static void ask(uint8_t page)
{
    assert_int_equal(write(go, &page, 1), 1);
}

/* -1: nothing is heard */
static int heard(int limit_ms)
{
    struct pollfd p = {.fd = told, .events = POLLIN};
    uint8_t got;

    return poll(&p, 1, limit_ms) > 0 && read(told, &got, 1) == 1 ? got : -1;
}

static int look(uint8_t page)
{
    ask(page);
    return heard(10000);
}

static void start_owner(bool locks)
{
    int to[2], from[2];

    assert_false(pipe(to) || pipe(from));
    owner = fork();
    if (!owner) {
        close(to[1]);
        close(from[0]);
        own(to[0], from[1], locks);
    }
    close(to[0]);
    close(from[1]);
    go = to[1];
    told = from[0];
    assert_int_equal(look(HERE), 7); /* it has written all of its own by then */
}

static void fill(unsigned page, uint8_t value)
{
    uint8_t bytes[PAGE];

    memset(bytes, value, sizeof(bytes));
    assert_int_equal(pwrite(image, bytes, PAGE, page * PAGE), PAGE);
}

static int setup(void **state)
{
    int pair[2], listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    struct sockaddr_un at = {.sun_family = AF_UNIX};
    char name[32];
    (void)state;

    strcpy(folder + strlen(folder) - 6, "XXXXXX");
    if (!mkdtemp(folder))
        return -1;
    image = memfd_create("image", 0);
    assert_int_equal(ftruncate(image, PAGES * PAGE), 0);
    fill(HERE, 9);
    snprintf(name, sizeof(name), "/proc/self/fd/%d", image);
    view = (struct watch_file){.there = open(name, O_RDONLY)};
    device = open("/dev/userfaultfd", O_RDWR);
    block.hva = (uintptr_t)mmap(NULL, block.len_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    snprintf(path, sizeof(path), "%s/socket", folder);
    strcpy(at.sun_path, path);
    assert_int_equal(bind(listener, (struct sockaddr *)&at, sizeof(at)), 0);
    assert_int_equal(listen(listener, 4), 0);
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, pair), 0);
    watcher = fork();
    if (!watcher) {
        close(pair[0]);
        watcher_serve(listener, pair[1], getppid());
        _exit(0);
    }
    close(listener);
    close(pair[1]);
    alive = pair[0];
    return 0;
}

static int teardown(void **state)
{
    int status;
    (void)state;

    close(alive);
    waitpid(watcher, &status, 0);
    close(go);
    close(told);
    if (owner > 0)
        waitpid(owner, NULL, 0);
    owner = 0;
    munmap((void *)block.hva, block.len_bytes);
    close(image);
    close(view.there);
    unlink(path);
    rmdir(folder);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

/* As a descendant of the agent's does, which the watcher serves alone: it hands on the userfaultfd by pidfd_getfd(2) */
struct looker {
    pid_t pid;
    int say, hear;
};

static int look_after(int from, int to)
{
    struct watch w;
    char x;
    close(alive); /* the agent's alone */
    int rc = watcher_files(&w, path, owner, device, &block, &view, 1, WATCH_NO_DUMP, &err);
    int answer[2] = {rc, rc ? -1 : w.fd};

    if (rc)
        fprintf(stderr, "%s\n", err.text);
    if (write(to, answer, sizeof(answer)) != sizeof(answer) || read(from, &x, 1) != 1)
        return 1;
    return rc ? 0 : watch_end(&w, &err) ? 2 : 0;
}

static int start_looker(struct looker *l)
{
    int to[2], from[2], answer[2] = {-EIO, -1};

    assert_false(pipe(to) || pipe(from));
    l->pid = fork();
    if (!l->pid) {
        close(to[1]);
        close(from[0]);
        _exit(look_after(to[0], from[1]));
    }
    close(to[0]);
    close(from[1]);
    l->say = to[1];
    l->hear = from[0];
    assert_int_equal(read(l->hear, answer, sizeof(answer)), sizeof(answer));
    if (answer[0] || answer[1] < 0)
        return answer[0];
    int pidfd = (int)syscall(SYS_pidfd_open, l->pid, 0);
    int fd = (int)syscall(SYS_pidfd_getfd, pidfd, answer[1], 0);
    close(pidfd);
    return fd;
}

static void end_looker(struct looker *l, bool well)
{
    int status;

    if (well)
        assert_int_equal(write(l->say, "x", 1), 1);
    else
        kill(l->pid, SIGKILL);
    assert_int_equal(waitpid(l->pid, &status, 0), l->pid);
    assert_int_equal(well ? status : 0, 0);
    close(l->say);
    close(l->hear);
}

static void wake(int uffd, unsigned page)
{
    struct uffdio_range r = {block.hva + page * PAGE, PAGE};

    assert_int_equal(ioctl(uffd, UFFDIO_WAKE, &r), 0);
}

/* What the image has is read, what it lacks is waited for, and what is written stays in that process */
static void test_view(void **state)
{
    struct uffdio_range all;
    struct looker l;
    uint8_t byte;
    (void)state;

    start_owner(false);
    int uffd = start_looker(&l);
    assert_true(uffd >= 0);
    assert_int_equal(look(HERE), 9);
    ask(MISSING);
    assert_int_equal(heard(QUIET_MS), -1);
    fill(MISSING, 11);
    wake(uffd, MISSING);
    assert_int_equal(heard(10000), 11);
    assert_int_equal(look(HERE | WRITE), 77);
    assert_int_equal(pread(image, &byte, 1, HERE * PAGE), 1);
    assert_int_equal(byte, 9);
    assert_int_equal(lseek(image, 0, SEEK_HOLE), 0); /* nobody put a page of zeros there */
    all = (struct uffdio_range){block.hva, block.len_bytes};
    assert_int_equal(ioctl(uffd, UFFDIO_UNREGISTER, &all), 0);
    end_looker(&l, true);
    assert_int_equal(look(HERE), 77); /* and is there still */
    assert_int_equal(look(0), 0);
    close(uffd);
}

/* Whoever looked after it was killed while it waits for a page: it is ended, and has read nothing */
static void test_looker_dies(void **state)
{
    struct looker l;
    int status;
    (void)state;

    start_owner(false);
    int uffd = start_looker(&l);
    assert_true(uffd >= 0);
    ask(MISSING);
    close(uffd);
    end_looker(&l, false);
    assert_int_equal(waitpid(owner, &status, 0), owner);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
    assert_int_equal(heard(0), -1);
    owner = 0;
}

/* And the agent: the watcher ends them, whoever holds a connection still */
static void test_agent_dies(void **state)
{
    struct looker l;
    int status;
    (void)state;

    start_owner(false);
    int uffd = start_looker(&l);
    assert_true(uffd >= 0);
    ask(MISSING);
    close(alive);
    assert_int_equal(waitpid(owner, &status, 0), owner);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
    owner = 0;
    close(uffd);
    end_looker(&l, false);
}

/* Nobody is there any more, not even the watcher: it waits, and reads no zeros */
static void test_all_die(void **state)
{
    struct looker l;
    (void)state;

    start_owner(false);
    int uffd = start_looker(&l);
    assert_true(uffd >= 0);
    ask(MISSING);
    assert_int_equal(kill(watcher, SIGSTOP), 0);
    close(uffd);
    end_looker(&l, false);
    assert_int_equal(kill(watcher, SIGKILL), 0);
    assert_int_equal(waitpid(watcher, NULL, 0), watcher);
    assert_int_equal(heard(QUIET_MS), -1);
    kill(owner, SIGKILL);
    watcher = fork();
    if (!watcher)
        _exit(0);
}

/* All of it is there: nothing is watched, and a hole is zeros */
static void test_complete(void **state)
{
    struct looker l;
    (void)state;

    start_owner(false);
    view.is_complete = true;
    assert_int_equal(start_looker(&l), 0);
    assert_int_equal(look(HERE), 9);
    assert_int_equal(look(MISSING), 0);
    end_looker(&l, true);
    assert_int_equal(look(HERE), 9);
}

/* What is locked the kernel would populate: refused, and ended, since it may not go on as it is */
static void test_locked(void **state)
{
    struct looker l;
    (void)state;

    start_owner(true);
    assert_int_equal(start_looker(&l), -ENOTSUP);
    end_looker(&l, true);
}

static const uint8_t code[PAGE] = {1};

/* What is no memory of a guest stays as it is */
static void test_elsewhere(void **state)
{
    const struct outside_block was = block;
    struct looker l;
    (void)state;

    for (int i = 0; i < 3; i++) {
        start_owner(false);
        block.hva = i == 0 ? (uintptr_t)&code & ~(uint64_t)(PAGE - 1) : i == 1 ? PAGE : was.hva - was.len_bytes / 2;
        assert_true(start_looker(&l) < 0);
        block = was;
        end_looker(&l, true);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_view, setup, teardown),
        cmocka_unit_test_setup_teardown(test_looker_dies, setup, teardown),
        cmocka_unit_test_setup_teardown(test_agent_dies, setup, teardown),
        cmocka_unit_test_setup_teardown(test_all_die, setup, teardown),
        cmocka_unit_test_setup_teardown(test_complete, setup, teardown),
        cmocka_unit_test_setup_teardown(test_locked, setup, teardown),
        cmocka_unit_test_setup_teardown(test_elsewhere, setup, teardown),
    };

    if (geteuid()) {
        printf("SKIP: run it as root, which may make a userfaultfd for another process\n");
        return 77;
    }
    signal(SIGPIPE, SIG_IGN);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
