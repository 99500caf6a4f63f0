/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * test_freeze.c - the memory of real processes with threads, frozen while they write to it
 *
 * A process writes the number of its turn to each page, in order, and finds there that of the turn before. So memory of one
 * instant has the number of a turn up to some page, and from there on that of the turn before.
 */
#include "unit.h"

#include <dirent.h>
#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <linux/userfaultfd.h>

#include "failpoint.h"
#include "foreign.h"
#include "freeze.h"

#define PAGES 512u
#define PAGE 4096u
#define WORDS (PAGE / 8)
#define OTHERS 3

static struct ff_error err;

struct guest {
    pid_t pid;
    struct outside_block b[2]; /* anonymous; a memfd */
    unsigned n;
    uint64_t *at[2];
    _Atomic uint64_t *turns; /* shared with it, as is: */
    _Atomic bool *over, *vforks, *ends_vfork, *opens;
    int fd; /* of the memfd, there */
};

static struct guest now; /* what its threads see */

static void *count_on(void *opaque)
{
    while (!atomic_load(now.over)) {
        usleep(50);
        if (opaque && atomic_load(now.opens)) {
            char path[40];

            snprintf(path, sizeof(path), "/proc/self/fd/%d", now.fd);
            atomic_store(now.opens, open(path, O_RDWR | O_CLOEXEC) < 0);
        }
        if (opaque && atomic_exchange(now.vforks, false) && !vfork()) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            while (!atomic_load(now.ends_vfork))
                usleep(1000);
            _exit(0);
        }
    }
    return NULL;
}

static void write_on(void)
{
    pthread_t t[OTHERS];

    for (int i = 0; i < OTHERS; i++)
        pthread_create(&t[i], NULL, count_on, i ? NULL : &now);
    for (uint64_t turn = 1; !atomic_load(now.over); turn++) {
        for (unsigned k = 0; k < now.n; k++)
            for (unsigned i = 0; i < PAGES; i++) {
                uint64_t *p = now.at[k] + i * WORDS;

                if (p[0] != turn - 1 || p[WORDS - 1] != turn - 1)
                    _exit(7);
                p[0] = turn;
                p[WORDS - 1] = turn;
            }
        atomic_fetch_add(now.turns, 1);
    }
    for (int i = 0; i < OTHERS; i++)
        pthread_join(t[i], NULL);
}

static void wait_turns(const struct guest *g, uint64_t n)
{
    const uint64_t from = atomic_load(g->turns);

    for (int i = 0; atomic_load(g->turns) < from + n; i++) {
        assert_true(i < 20000);
        usleep(500);
    }
}

static unsigned sealing = MFD_ALLOW_SEALING; /* of its memfd */

static void start(struct guest *g, bool anonymous, bool file)
{
    static const char *const names[] = {"anonymous", "memfd"};
    void *both = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    int fd = file ? memfd_create("memory", MFD_CLOEXEC | sealing) : -1;

    *g = (struct guest){.turns = both, .over = (_Atomic bool *)((char *)both + 64),
                        .vforks = (_Atomic bool *)((char *)both + 128), .ends_vfork = (_Atomic bool *)((char *)both + 192),
                        .opens = (_Atomic bool *)((char *)both + 256), .fd = fd};
    assert_true(!file || (fd >= 0 && !ftruncate(fd, (off_t)PAGES * PAGE)));
    for (int i = 0; i < 2; i++) {
        if (!(i ? file : anonymous))
            continue;
        void *at = mmap(NULL, (size_t)PAGES * PAGE, PROT_READ | PROT_WRITE, i ? MAP_SHARED : MAP_PRIVATE | MAP_ANONYMOUS,
                        i ? fd : -1, 0);
        assert_ptr_not_equal(at, MAP_FAILED);
        g->at[g->n] = at;
        strcpy(g->b[g->n].name, names[i]);
        g->b[g->n].hva = (uintptr_t)at;
        g->b[g->n].len_bytes = (uint64_t)PAGES * PAGE;
        g->b[g->n++].psize = PAGE;
    }
    g->pid = fork();
    assert_true(g->pid >= 0);
    if (!g->pid) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        for (unsigned i = 0; i < g->n; i++)
            madvise(g->at[i], (size_t)PAGES * PAGE, MADV_DONTFORK); /* as QEMU does */
        now = *g;
        write_on();
        _exit(0);
    }
    for (unsigned i = 0; i < g->n; i++)
        munmap(g->at[i], (size_t)PAGES * PAGE);
    if (fd >= 0)
        close(fd);
    wait_turns(g, 3);
}

static void end(struct guest *g)
{
    int status;

    atomic_store(g->over, true);
    assert_int_equal(waitpid(g->pid, &status, 0), g->pid);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
}

/* --- what is frozen --- */

struct taken {
    uint64_t turn;  /* of the last page */
    unsigned until; /* so many pages of it all have the next one */
};

/* Of a view that was frozen before: what the copy has in no page table is the file's */
static void read_view(const struct freeze *z, const struct outside_block *b, const struct freeze_image *m, uint8_t *into)
{
    const struct ff_foreign_rest rest = {.file_fd = m->view_fd, .file_offset = m->fd_offset, .psize = PAGE};
    uint8_t zero[PAGES / 8 + 1] = {0}, poison[PAGES / 8 + 1] = {0};
    struct ff_foreign *f;

    assert_int_equal(ff_foreign_open(freeze_pid(z), &f, &err), 0);
    assert_int_equal(ff_foreign_read(f, &rest, b->hva, PAGES * PAGE, PAGE, zero, poison, into, &err), 0);
    for (unsigned i = 0; i < sizeof(zero); i++)
        assert_int_equal(zero[i] | poison[i], 0);
    ff_foreign_unref(f);
}

static uint64_t *image_of(const struct freeze *z, const struct guest *g)
{
    const size_t len = (size_t)PAGES * PAGE;
    uint64_t *all = malloc(g->n * len);

    assert_non_null(all);
    for (unsigned i = 0; i < g->n; i++) {
        const struct freeze_image m = freeze_image(z, i);
        struct iovec here = {(char *)all + i * len, len}, there = {(void *)(uintptr_t)g->b[i].hva, len};

        if (m.fd >= 0)
            assert_int_equal(pread(m.fd, here.iov_base, len, (off_t)m.fd_offset), len);
        else if (m.view_fd >= 0)
            read_view(z, &g->b[i], &m, here.iov_base);
        else
            assert_int_equal(process_vm_readv(freeze_pid(z), &here, 1, &there, 1, 0), len);
    }
    return all;
}

static struct taken check_instant(const uint64_t *all, const struct guest *g)
{
    const unsigned n = g->n * PAGES;
    struct taken t = {.turn = all[(n - 1) * (size_t)WORDS + WORDS - 1]};
    unsigned torn = 0;

    for (unsigned i = 0; i < n; i++) {
        const uint64_t first = all[i * (size_t)WORDS], last = all[i * (size_t)WORDS + WORDS - 1];

        assert_true(first == t.turn || first == t.turn + 1);
        assert_true(first == last || first == last + 1);
        torn += first != last;
        if (last == t.turn + 1) {
            assert_int_equal(t.until, i);
            t.until = i + 1;
        }
    }
    assert_true(torn <= 1); /* the page at which it was stopped */
    return t;
}

/* @turns: of then; *@all: to be freed */
static struct freeze *frozen(const struct guest *g, uint64_t **all)
{
    struct freeze *z;
    const uint64_t before = atomic_load(g->turns);
    int rc = freeze_new(g->pid, g->b, g->n, false, &z, &err);

    if (rc)
        print_error("%s\n", err.text);
    assert_int_equal(rc, 0);
    assert_int_equal(freeze_hold(z, &err), 0);
    if ((rc = freeze_take(z, &err)))
        print_error("%s\n", err.text);
    assert_int_equal(rc, 0);
    freeze_go(z);
    *all = image_of(z, g);
    const struct taken t = check_instant(*all, g);
    assert_true(t.turn >= before && t.turn <= atomic_load(g->turns));
    if ((rc = freeze_tidy(z, &err)))
        print_error("%s\n", err.text);
    assert_int_equal(rc, 0);
    return z;
}

static void check_same(const struct freeze *z, const struct guest *g, uint64_t *was)
{
    uint64_t *is = image_of(z, g);

    assert_memory_equal(is, was, (size_t)g->n * PAGES * PAGE);
    free(is);
    free(was);
}

/* Processes that it has made, dead ones too */
static unsigned copies_of(pid_t pid)
{
    char path[64], text[512] = "";
    unsigned n = 0;

    snprintf(path, sizeof(path), "/proc/%d/task/%d/children", (int)pid, (int)pid);
    FILE *f = fopen(path, "re");
    assert_non_null(f);
    if (!fgets(text, sizeof(text), f))
        text[0] = '\0';
    fclose(f);
    for (const char *at = text; (at = strchr(at, ' ')); at++)
        n++;
    return n;
}

/* Of any of its threads */
static bool any_thread(pid_t pid, const char *name, const char *none)
{
    char path[64], line[256];
    bool any = false;
    struct dirent *e;

    snprintf(path, sizeof(path), "/proc/%d/task", (int)pid);
    DIR *d = opendir(path);
    assert_non_null(d);
    while ((e = readdir(d))) {
        char file[600];

        snprintf(file, sizeof(file), "%s/%s/%s", path, e->d_name, name);
        FILE *f = e->d_name[0] == '.' ? NULL : fopen(file, "re");
        for (bool is = !*none; f && fgets(line, sizeof(line), f);)
            any |= is || (!strncmp(line, none, strlen(none)) && atoi(line + strlen(none)));
        if (f)
            fclose(f);
    }
    closedir(d);
    return any;
}

static bool copies_of_any(pid_t pid)
{
    return any_thread(pid, "children", "");
}

static bool is_traced(pid_t pid)
{
    return any_thread(pid, "status", "TracerPid:");
}

static void test_goes_on(bool anonymous, bool file)
{
    struct guest g;
    uint64_t *first, *second;

    start(&g, anonymous, file);
    for (int i = 0; i < 2; i++) {
        struct freeze *z = frozen(&g, &first), *more;

        wait_turns(&g, 3);
        more = frozen(&g, &second); /* while the first one is held */
        assert_true(!file || freeze_image(more, g.n - 1).view_fd >= 0);
        wait_turns(&g, 3);
        check_same(z, &g, first);
        freeze_end(z);
        wait_turns(&g, 2);
        check_same(more, &g, second);
        freeze_end(more);
        assert_int_equal(copies_of(g.pid), 0);
    }
    end(&g);
}

static void test_anonymous(void **state)
{
    (void)state;
    test_goes_on(true, false);
}

static void test_memfd(void **state)
{
    (void)state;
    test_goes_on(false, true);
}

static void test_both(void **state)
{
    (void)state;
    test_goes_on(true, true);
}

/* Their numbers, in order */
static void open_files_of(pid_t pid, char *to, size_t room)
{
    char path[64];
    struct stat st;
    size_t n = 0;

    to[0] = '\0';
    for (int fd = 0; fd < 256; fd++) {
        snprintf(path, sizeof(path), "/proc/%d/fd/%d", (int)pid, fd);
        if (!lstat(path, &st) && n < room)
            n += (size_t)snprintf(to + n, room - n, "%d ", fd);
    }
}

/* As a balloon, or somebody who is plugged later, would. @n: descriptors that it has */
static void check_closed_to_writers(const struct guest *g, int n)
{
    int pidfd = (int)syscall(SYS_pidfd_open, g->pid, 0), tried = 0;

    for (int i = 0; i < 32; i++) {
        int fd = (int)syscall(SYS_pidfd_getfd, pidfd, i, 0);
        char path[64], to[64] = "";

        snprintf(path, sizeof(path), "/proc/%d/fd/%d", (int)g->pid, i);
        if (fd >= 0 && readlink(path, to, sizeof(to) - 1) > 0 && !strncmp(to, "/memfd:memory", 13)) {
            assert_true(fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, PAGE) < 0);
            assert_true(write(fd, "x", 1) < 0);
            tried++;
        }
        if (fd >= 0)
            close(fd);
    }
    close(pidfd);
    assert_int_equal(tried, n);
}

static void test_file_is_closed_to_writers(void **state)
{
    (void)state;
    struct guest g;
    uint64_t *all;

    start(&g, false, true);
    struct freeze *z = frozen(&g, &all);
    check_closed_to_writers(&g, 1);
    check_same(z, &g, all);
    freeze_end(z);
    end(&g);
}

/* After the first look, as QEMU does for who is plugged then */
static void test_opened_meanwhile(void **state)
{
    (void)state;
    struct guest g;
    struct freeze *z;

    sealing = 0; /* as QEMU's, which are sealed against more seals */
    start(&g, false, true);
    sealing = MFD_ALLOW_SEALING;
    assert_int_equal(freeze_new(g.pid, g.b, g.n, false, &z, &err), 0);
    atomic_store(g.opens, true);
    for (int i = 0; atomic_load(g.opens); i++) {
        assert_true(i < 5000);
        usleep(1000);
    }
    assert_int_equal(freeze_hold(z, &err), 0);
    assert_int_equal(freeze_take(z, &err), 0);
    freeze_go(z);
    assert_int_equal(freeze_tidy(z, &err), 0);
    check_closed_to_writers(&g, 2);
    freeze_end(z);
    end(&g);
}

/* Of memory that a core dump is not to have: neither has it the view that comes there */
static void test_no_dump(void **state)
{
    (void)state;
    struct guest g;
    struct freeze *z;
    char path[64], line[512];
    uint64_t from, to;
    bool is_it = false, any = false;

    start(&g, false, true);
    assert_int_equal(freeze_new(g.pid, g.b, g.n, true, &z, &err), 0);
    assert_int_equal(freeze_hold(z, &err), 0);
    assert_int_equal(freeze_take(z, &err), 0);
    freeze_end(z);
    snprintf(path, sizeof(path), "/proc/%d/smaps", (int)g.pid);
    FILE *f = fopen(path, "re");
    assert_non_null(f);
    while (fgets(line, sizeof(line), f)) {
        if (sscanf(line, "%" SCNx64 "-%" SCNx64 " ", &from, &to) == 2)
            is_it = from < g.b[0].hva + g.b[0].len_bytes && to > g.b[0].hva;
        if (is_it && !strncmp(line, "VmFlags:", 8)) {
            assert_non_null(strstr(line, " dd"));
            any = true;
        }
    }
    fclose(f);
    assert_true(any);
    end(&g);
}

/* The process has ended, and its number is another's: nothing is called there */
static void test_number_is_anothers(void **state)
{
    (void)state;
    struct guest g;
    struct freeze *z;
    int status, ready[2];
    char was[4096], is[4096];

    start(&g, false, true);
    assert_int_equal(freeze_new(g.pid, g.b, g.n, false, &z, &err), 0);
    kill(g.pid, SIGKILL);
    assert_int_equal(waitpid(g.pid, &status, 0), g.pid);
    assert_int_equal(pipe(ready), 0);
    pid_t other = -1;
    for (int i = 0; i < 50 && other != g.pid; i++) {
        FILE *f = fopen("/proc/sys/kernel/ns_last_pid", "we");

        if (other > 0) {
            kill(other, SIGKILL);
            waitpid(other, &status, 0);
        }
        if (f)
            fprintf(f, "%d", (int)g.pid - 1);
        if (f && fclose(f))
            f = NULL;
        other = fork();
        if (!other) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            for (int fd = 10; fd < 64; fd++)
                dup2(ready[0], fd);
            (void)!write(ready[1], "x", 1);
            for (;;)
                pause();
        }
        assert_int_equal(read(ready[0], was, 1), 1);
        if (!f)
            break;
    }
    if (other == g.pid) {
        open_files_of(other, was, sizeof(was));
        freeze_end(z);
        open_files_of(other, is, sizeof(is));
        assert_string_equal(was, is);
    } else {
        freeze_end(z);
    }
    kill(other, SIGKILL);
    waitpid(other, &status, 0);
    close(ready[0]);
    close(ready[1]);
    if (other != g.pid)
        skip(); /* who may not choose a number: root may */
}

static void test_ends_meanwhile(void **state)
{
    (void)state;
    struct guest g;
    uint64_t *all;
    int status;

    start(&g, true, true);
    struct freeze *z = frozen(&g, &all);
    kill(g.pid, SIGKILL);
    assert_int_equal(waitpid(g.pid, &status, 0), g.pid);
    assert_true(WIFSIGNALED(status));
    check_same(z, &g, all); /* its memory is there as long as somebody needs it */
    pid_t copy = freeze_pid(z);
    char byte;
    struct iovec here = {&byte, 1}, there = {(void *)(uintptr_t)g.b[0].hva, 1};
    freeze_end(z);
    assert_int_equal(process_vm_readv(copy, &here, 1, &there, 1, 0), -1);

    start(&g, true, true); /* while it is held */
    assert_int_equal(freeze_new(g.pid, g.b, g.n, false, &z, &err), 0);
    assert_int_equal(freeze_hold(z, &err), 0);
    kill(g.pid, SIGKILL);
    assert_true(freeze_take(z, &err) < 0);
    freeze_go(z);
    assert_int_equal(waitpid(g.pid, &status, 0), g.pid);
    freeze_end(z);
}

/* A thread that waits for its vfork(2) does not stop: it is let go of at once, and so are the others */
static void test_does_not_stop(void **state)
{
    (void)state;
    struct guest g;
    struct freeze *z;

    if (UNDER_TSAN)
        skip(); /* which makes a fork of vfork */
    start(&g, true, false);
    assert_int_equal(freeze_new(g.pid, g.b, g.n, false, &z, &err), 0);
    atomic_store(g.vforks, true);
    for (int i = 0; !copies_of_any(g.pid); i++) {
        assert_true(i < 5000);
        usleep(1000);
    }
    assert_int_equal(freeze_hold(z, &err), -ETIMEDOUT);
    for (int i = 0; is_traced(g.pid); i++) {
        assert_true(i < 1000);
        usleep(1000);
    }
    wait_turns(&g, 2);
    assert_true(freeze_take(z, &err) < 0);
    freeze_go(z);
    atomic_store(g.ends_vfork, true);
    freeze_end(z);
    end(&g);
}

/* Mappings of its memfd that are none of a block's */
static unsigned others_of(const struct guest *g)
{
    struct outside_mapping *m = NULL;
    unsigned n;

    assert_int_equal(outside_list_others(g->pid, g->b, g->n, &m, &n, &err), 0);
    free(m);
    return n;
}

/* --- this process is killed --- */

static void freeze_for_ever(const struct guest *g)
{
    struct freeze *z;

    for (;;) {
        if (freeze_new(g->pid, g->b, g->n, false, &z, &err) || freeze_hold(z, &err) || freeze_take(z, &err))
            _exit(5);
        freeze_go(z);
        freeze_tidy(z, NULL);
        freeze_end(z);
    }
}

static void test_is_killed(void **state)
{
    (void)state;
    struct guest g;

    start(&g, true, true);
    for (unsigned i = 0; i < 40; i++) {
        int status;
        pid_t who = fork();

        if (!who) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            freeze_for_ever(&g);
        }
        usleep(2000 + i * 977 % 23000);
        assert_int_equal(waitpid(who, &status, WNOHANG), 0);
        kill(who, SIGKILL);
        assert_int_equal(waitpid(who, &status, 0), who);
        wait_turns(&g, 2);
    }
    struct freeze *z;
    assert_int_equal(freeze_new(g.pid, g.b, g.n, false, &z, &err), 0);
    freeze_end(z);
    assert_int_equal(copies_of(g.pid), 0);
    assert_int_equal(others_of(&g), 0);
    end(&g); /* with its own registers, and memory */
}

static unsigned count_files_of(pid_t pid)
{
    char all[4096];
    unsigned n = 0;

    open_files_of(pid, all, sizeof(all));
    for (const char *at = all; (at = strchr(at, ' ')); at++)
        n++;
    return n;
}

/* What a process that was killed has left there the next one takes away; but not of one that lives */
static void test_what_is_left_is_removed(void **state)
{
    (void)state;
    for (int stage = 0; stage < 3; stage++) { /* killed when all is ready; with a copy; with an image */
        struct guest g;
        struct freeze *z, *more;
        int status;

        start(&g, true, true);
        const unsigned files = count_files_of(g.pid);
        pid_t who = fork();
        if (!who) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            if ((stage == 1 && ff_failpoints_arm("freeze.copy=kill", &err)) ||
                freeze_new(g.pid, g.b, g.n, false, &z, &err) || (stage && (freeze_hold(z, &err) || freeze_take(z, &err))))
                _exit(5);
            kill(getpid(), SIGKILL);
        }
        assert_int_equal(waitpid(who, &status, 0), who);
        assert_true(WIFSIGNALED(status));
        wait_turns(&g, 2);
        assert_int_equal(others_of(&g), 1);
        assert_int_equal(copies_of(g.pid), stage > 0);
        assert_int_equal(count_files_of(g.pid), files + 1);
        assert_int_equal(freeze_new(g.pid, g.b, g.n, false, &z, &err), 0);
        assert_int_equal(copies_of(g.pid), 0);
        assert_int_equal(others_of(&g), stage < 2); /* its own view */
        assert_int_equal(freeze_new(g.pid, g.b, g.n, false, &more, &err), 0);
        assert_int_equal(others_of(&g), stage < 2 ? 2 : 0);
        freeze_end(more);
        freeze_end(z);
        assert_int_equal(others_of(&g), 0);
        assert_int_equal(count_files_of(g.pid), files + (stage == 2));
        wait_turns(&g, 2);
        end(&g);
    }
}

static void test_still_to_come(void **state)
{
    (void)state;
    struct guest g;
    struct freeze *z;
    int fd = (int)syscall(SYS_userfaultfd, O_CLOEXEC | UFFD_USER_MODE_ONLY);

    if (fd < 0)
        skip();
    start(&g, true, false); /* it has that, too */
    assert_int_equal(freeze_new(g.pid, g.b, g.n, false, &z, &err), -EBUSY);
    close(fd);
    end(&g);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_anonymous),   cmocka_unit_test(test_memfd),
        cmocka_unit_test(test_both),        cmocka_unit_test(test_file_is_closed_to_writers),
        cmocka_unit_test(test_ends_meanwhile), cmocka_unit_test(test_is_killed),
        cmocka_unit_test(test_still_to_come), cmocka_unit_test(test_does_not_stop),
        cmocka_unit_test(test_opened_meanwhile), cmocka_unit_test(test_no_dump), cmocka_unit_test(test_number_is_anothers),
        cmocka_unit_test(test_what_is_left_is_removed),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
