/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * memory_verbs.c - inside the lab: memory of the verbs link: pinned, on demand, limits, leaks
 */
#include "hosts.h"

#include <sys/stat.h>

/* --- memory --- */

/* Memory of its own mapping, never touched */
static uint8_t *untouched(size_t len, int fd)
{
    uint8_t *m = mmap(NULL, len + 8192, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_true(m != MAP_FAILED);
    m = mmap(m + 4096, len, PROT_READ | PROT_WRITE,
             MAP_FIXED | (fd < 0 ? MAP_PRIVATE | MAP_ANONYMOUS : MAP_SHARED), fd, 0);
    assert_true(m != MAP_FAILED);
    return m;
}

static void forget(uint8_t *m, size_t len)
{
    munmap(m - 4096, len + 8192);
}

/* Pages that @m, or the file behind it, has memory for */
static size_t populated(const uint8_t *m, int fd)
{
    FILE *f = fopen("/proc/self/smaps", "r");
    char line[256], start_of[32];
    struct stat st;
    long kib = -1;
    bool in = false;

    if (fd >= 0) {
        fclose(f);
        assert_int_equal(fstat(fd, &st), 0);
        return (size_t)st.st_blocks * 512 / 4096;
    }
    snprintf(start_of, sizeof(start_of), "%lx-", (unsigned long)m);
    while (kib < 0 && fgets(line, sizeof(line), f)) {
        in = in || !strncmp(line, start_of, strlen(start_of));
        if (in)
            sscanf(line, "Rss: %ld", &kib);
    }
    fclose(f);
    assert_true(kib >= 0);
    return (size_t)kib / 4;
}

static double ms_since(uint64_t ns)
{
    return (double)(ff_now_ns() - ns) / 1e6;
}

static void try_registering(const char *what, int fd, unsigned access)
{
    const size_t len = 64u << 20, pages = len / 4096, part = 1u << 20;
    uint8_t *m = untouched(len, fd);
    struct ff_error err;

    open_pair(1);
    struct ff_mr to = must_reg(p.b, dst, LARGE, 0);
    assert_int_equal(populated(m, fd), 0);
    uint64_t start_ns = ff_now_ns();
    struct ff_mr mr = must_reg(p.a, m, len, FF_ACCESS_REMOTE_READ | access);
    double took = ms_since(start_ns);
    size_t after_reg = populated(m, fd);
    memset(dst, 0xee, part);
    struct ff_wr wr = read_of(&mr, part, dst, (uint32_t)part); /* never touched */
    wr.lkey = to.lkey;
    assert_ok(run_wr(p.b, FF_QUEUE_FAULT, &wr, &err), err);
    for (size_t i = 0; i < part; i++)
        assert_int_equal(dst[i], 0);
    size_t after_read = populated(m, fd);
    memcpy(m + 2 * part, src, part); /* touched after it was registered */
    wr = read_of(&mr, 2 * part, dst, (uint32_t)part);
    wr.lkey = to.lkey;
    assert_ok(run_wr(p.b, FF_QUEUE_FAULT, &wr, &err), err);
    assert_true(!memcmp(dst, src, part));
    start_ns = ff_now_ns();
    p.a->ops->dereg(p.a, &mr);
    printf("memory_verbs: %s, %s: register %zu pages: %.1f ms, %zu populated; READ of %zu "
           "untouched pages: %zu populated; dereg %.1f ms\n", what,
           access ? "on demand" : "pinned", pages, took, after_reg, part / 4096,
           after_read - after_reg, ms_since(start_ns));
    if (access)
        assert_int_equal(after_reg, 0);
    else
        assert_int_equal(after_reg, pages);
    if (access && fd < 0)
        assert_int_equal(after_read, 0); /* the kernel's page of zeros is read */
    pair_close(&p);
    forget(m, len);
}

static void test_on_demand(void **state)
{
    (void)state;
    open_pair(1);
    assert_true(p.a->pins);
    if (!p.a->on_demand) {
        printf("SKIP: on-demand paging: this kernel's soft-RoCE has none: use LAB_KERNEL=7.2\n");
        return;
    }
    pair_close(&p);
    for (unsigned i = 0; i < 2; i++) {
        int fd = memfd_create("memory_verbs", MFD_CLOEXEC);
        assert_true(fd >= 0 && !ftruncate(fd, 64 << 20));
        try_registering("anonymous", -1, i ? FF_ACCESS_ON_DEMAND : 0);
        try_registering("memfd", fd, i ? FF_ACCESS_ON_DEMAND : 0);
        close(fd);
    }
    /* landing on demand */
    open_pair(1);
    uint8_t *m = untouched(LARGE, -1);
    struct ff_error err;
    struct ff_mr from = must_reg(p.a, src, LARGE, FF_ACCESS_REMOTE_READ);
    struct ff_mr to = must_reg(p.b, m, LARGE, FF_ACCESS_ON_DEMAND);
    struct ff_wr wr = read_of(&from, 0, m, LARGE);
    wr.lkey = to.lkey;
    assert_ok(run_wr(p.b, FF_QUEUE_PREFILL, &wr, &err), err);
    assert_true(!memcmp(m, src, LARGE));
    p.b->ops->dereg(p.b, &to);
    forget(m, LARGE);
}

struct registrar {
    pthread_t thread;
    uint8_t *at;
    struct ff_mr mr[400];
    unsigned n;
};

static void *register_main(void *arg)
{
    struct registrar *r = arg;
    struct ff_error err;

    for (; r->n < FF_ARRAY_LEN(r->mr); r->n++)
        if (p.a->ops->reg(p.a, r->at + r->n * 2048, 2048, FF_ACCESS_REMOTE_READ, &r->mr[r->n],
                          &err))
            break;
    for (unsigned i = 0; i < r->n; i += 3) {
        p.a->ops->dereg(p.a, &r->mr[i]);
        r->mr[i].rkey = 0;
    }
    return NULL;
}

static void test_many_registrations(void **state)
{
    static struct registrar r[4];
    struct ff_error err;
    (void)state;

    open_pair(1);
    struct ff_mr to = must_reg(p.b, dst, LARGE, 0);
    memset(r, 0, sizeof(r));
    for (unsigned t = 0; t < 4; t++) {
        r[t].at = src + t * (LARGE / 4);
        assert_int_equal(pthread_create(&r[t].thread, NULL, register_main, &r[t]), 0);
    }
    for (unsigned t = 0; t < 4; t++)
        join_soon(r[t].thread);
    for (unsigned t = 0; t < 4; t++) {
        assert_int_equal(r[t].n, FF_ARRAY_LEN(r[t].mr));
        for (unsigned i = 1; i < r[t].n; i += 97) {
            if (!r[t].mr[i].rkey)
                continue;
            struct ff_wr wr = read_of(&r[t].mr[i], 0, dst, 2048);
            wr.lkey = to.lkey;
            assert_ok(run_wr(p.b, FF_QUEUE_FAULT, &wr, &err), err);
            assert_true(!memcmp(dst, r[t].mr[i].addr, 2048));
        }
    }
}

static void test_memlock_bound(void **state)
{
    struct rlimit lim = {.rlim_cur = 20u << 20, .rlim_max = 20u << 20};
    struct ff_error err;
    struct ff_mr mr;
    (void)state;

    assert_int_equal(setrlimit(RLIMIT_MEMLOCK, &lim), 0);
    open_pair(1);
    must_reg(p.a, src, LARGE, FF_ACCESS_REMOTE_READ);
    uint8_t *m = untouched(32u << 20, -1);
    assert_fails(p.a->ops->may_pin(p.a, 32u << 20, &err), ENOMEM);
    printf("memory_verbs: %s\n", err.text);
    /* two links of this process: 1.1 MiB each for control; 4 MiB were registered */
    assert_error(err, ENOMEM, "pin 32 MiB", "limit is 20 MiB", "7 MiB pinned", "ulimit -l",
                 "LimitMEMLOCK=", "limits.conf", "at least 39 MiB", "odp=on");
    assert_ok(p.a->ops->may_pin(p.a, 8u << 20, &err), err);
    assert_fails(p.a->ops->reg(p.a, m, 32u << 20, FF_ACCESS_REMOTE_READ, &mr, &err), ENOMEM);
    assert_error(err, ENOMEM, "pin 32 MiB", "limit is 20 MiB");
    must_reg(p.a, m, 8u << 20, FF_ACCESS_REMOTE_READ); /* what fits is still there to be had */
    if (p.a->on_demand) /* for which the limit does not matter */
        must_reg(p.a, m, 32u << 20, FF_ACCESS_REMOTE_READ | FF_ACCESS_ON_DEMAND);
}

static void test_memlock(void **state)
{
    static char *const argv[] = {"memory_verbs", "memlock", NULL};
    struct rlimit old, lim;
    struct ff_error err;
    int status;
    pid_t pid;
    (void)state;

    assert_int_equal(posix_spawn(&pid, "/proc/self/exe", NULL, NULL, argv, environ), 0);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);

    /* the limit is not for who has CAP_IPC_LOCK */
    open_pair(1);
    assert_int_equal(getrlimit(RLIMIT_MEMLOCK, &old), 0);
    lim = (struct rlimit){.rlim_cur = 1u << 20, .rlim_max = old.rlim_max};
    assert_int_equal(setrlimit(RLIMIT_MEMLOCK, &lim), 0);
    int rc = p.a->ops->may_pin(p.a, 1ull << 40, &err);
    assert_int_equal(setrlimit(RLIMIT_MEMLOCK, &old), 0);
    assert_ok(rc, err);
}

/* --- leaks --- */

static unsigned count_fds(void)
{
    char path[32];
    unsigned n = 0;

    for (int fd = 0; fd < 1024; fd++) {
        snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
        n += !access(path, F_OK);
    }
    return n;
}

/* "N: rxea: pd 1 cq 1 qp 1 cm_id 0 mr 0 ctx 0 srq 0", a line a device */
static void count_resources(char *out, size_t room)
{
    FILE *f = popen("rdma resource show 2>&1", "r");
    size_t n = f ? fread(out, 1, room - 1, f) : 0;

    out[n] = '\0';
    assert_true(f && !pclose(f));
    assert_non_null(strstr(out, "rxea"));
}

static void test_hundred_connections(void **state)
{
    char before[1024], after[1024];
    unsigned fds = 0;
    (void)state;

    for (unsigned i = 0; i <= 100; i++) {
        open_pair(1 + i % 4);
        struct ff_mr from = must_reg(p.a, src, LARGE, FF_ACCESS_REMOTE_READ);
        struct ff_mr to = must_reg(p.b, dst, LARGE, 0);
        struct ff_error err;
        struct ff_wr wr = read_of(&from, i, dst, 4096);
        wr.lkey = to.lkey;
        assert_ok(run_wr(p.b, FF_QUEUE_PREFILL, &wr, &err), err);
        assert_true(!memcmp(dst, src + i, 4096));
        if (i % 2) /* what was not given back goes with the link */
            p.a->ops->dereg(p.a, &from);
        if (i % 3 == 0)
            p.b->ops->shutdown(p.b);
        pair_close(&p);
        if (!i) { /* the first one opens what the libraries keep open */
            fds = count_fds();
            count_resources(before, sizeof(before));
        }
    }
    assert_int_equal(count_fds(), fds);
    for (int ms = 0; ms < SOON_MS; ms += 100) { /* what a connection leaves in timewait goes */
        count_resources(after, sizeof(after));
        if (!strcmp(before, after))
            break;
        usleep(100000);
    }
    assert_string_equal(after, before);
    printf("memory_verbs: after 100 connections: %u descriptors; %s", fds, after);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {WITH(test_on_demand), WITH(test_many_registrations),
                                       WITH(test_memlock), WITH(test_hundred_connections)};
    const struct CMUnitTest bound[] = {WITH(test_memlock_bound)};
    int rc = enter_lab();

    if (rc)
        return rc;
    if (argc == 2 && !strcmp(argv[1], "memlock")) {
        drop_ipc_lock();
        return cmocka_run_group_tests(bound, NULL, NULL) ? 1 : 0;
    }
    return cmocka_run_group_tests(tests, NULL, NULL) ? 1 : 0;
}
