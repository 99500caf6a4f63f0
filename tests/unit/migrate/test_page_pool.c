/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * test_page_pool.c - how much memory may be made ready: the host's, and control groups of both
 * versions
 */
#include "unit.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>

#include "page_pool.h"

#define MIB (1ull << 20)
#define FILE_LEN (2 * MIB)
#define HOST (7000 - 1000) /* MiB: available, less an eighth of the total */

static char root[64];

static void put(const char *path, const char *text)
{
    char full[512];

    snprintf(full, sizeof(full), "%s%s", root, path);
    for (char *at = full + strlen(root) + 1; (at = strchr(at, '/')); *at++ = '/') {
        *at = '\0';
        assert_true(!mkdir(full, 0700) || errno == EEXIST);
    }
    FILE *f = fopen(full, "we");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
}

static int new_host(void **state)
{
    char meminfo[128];

    (void)state;
    snprintf(root, sizeof(root), "/tmp/farfork-stock-XXXXXX");
    assert_non_null(mkdtemp(root));
    snprintf(meminfo, sizeof(meminfo), "MemTotal: %llu kB\nMemFree: 1 kB\nMemAvailable: %llu kB\n",
             8000 * MIB >> 10, 7000 * MIB >> 10);
    put("/proc/meminfo", meminfo);
    return 0;
}

static int end_host(void **state)
{
    char command[128];

    (void)state;
    snprintf(command, sizeof(command), "rm -r '%s'", root);
    return system(command);
}

static void group(const char *dir, bool v1, uint64_t max_mib, uint64_t used_mib)
{
    char path[256], text[32];

    snprintf(path, sizeof(path), "/sys/fs/cgroup%s/%s", dir,
             v1 ? "memory.limit_in_bytes" : "memory.max");
    snprintf(text, sizeof(text), "%llu\n", (unsigned long long)(max_mib * MIB));
    put(path, max_mib ? text : v1 ? "9223372036854771712\n" : "max\n");
    snprintf(path, sizeof(path), "/sys/fs/cgroup%s/%s", dir,
             v1 ? "memory.usage_in_bytes" : "memory.current");
    snprintf(text, sizeof(text), "%llu\n", (unsigned long long)(used_mib * MIB));
    put(path, text);
}

static void want(uint64_t mib)
{
    assert_int_equal(ff_page_pool_room(root) / MIB, mib);
}

static void host_alone(void **state)
{
    (void)state;
    want(HOST);
    put("/proc/self/cgroup", "0::/\n");
    want(HOST);
}

static void version_2(void **state)
{
    (void)state;
    put("/proc/self/cgroup", "0::/a.slice/b.service\n");
    group("/a.slice/b.service", false, 0, 300);
    group("/a.slice", false, 0, 300);
    want(HOST);
    group("/a.slice/b.service", false, 800, 300);
    want(400);
    group("/a.slice", false, 800, 500); /* the parent's is the tighter one */
    want(200);
    group("/a.slice", false, 800, 750);
    want(0);
}

static void version_1(void **state)
{
    (void)state;
    put("/proc/self/cgroup", "9:name=systemd:/x\n4:memory:/a/b\n3:cpuset:/\n");
    group("/memory/a/b", true, 0, 300);
    group("/memory/a", true, 0, 300);
    group("/memory", true, 0, 300);
    want(HOST);
    group("/memory/a/b", true, 800, 300);
    want(400);
    group("/memory/a", true, 400, 300);
    want(50);
}

/* Both are mounted, and version 1 has the memory controller */
static void hybrid(void **state)
{
    (void)state;
    group("/memory/a", true, 1600, 300);
    put("/proc/self/cgroup", "12:memory:/a\n1:name=systemd:/a\n0::/a\n");
    want(1100);
}

/* A container sees its group's files at the root, under the name that the host has for it */
static void container(void **state)
{
    (void)state;
    put("/proc/self/cgroup", "4:memory:/docker/0123456789\n");
    group("/memory", true, 800, 100);
    want(600);
    put("/proc/self/cgroup", "0::/docker/0123456789\n");
    want(HOST);
    group("", false, 1600, 200);
    want(1200);
}

static uint64_t bytes_in(int fd)
{
    struct stat st;

    assert_int_equal(fstat(fd, &st), 0);
    return (uint64_t)st.st_blocks * 512;
}

/* A pool that has come to its end, for FILE_LEN of @fd, which becomes a file of @len_bytes that holds
 * something in its first page. *@made: bytes that are ready */
static struct ff_page_pool *pool_of(int fd, uint64_t len_bytes, uint64_t *made)
{
    static struct ff_page_pool pool;
    struct ff_regions regions = {.n = 1};

    assert_int_equal(ftruncate(fd, (off_t)len_bytes), 0);
    assert_int_equal(pwrite(fd, "taken", 5, 0), 5);
    void *host = mmap(NULL, FILE_LEN, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    assert_ptr_not_equal(host, MAP_FAILED);
    regions.r[0] = (struct ff_region){.name = "ram", .host = host, .len_bytes = FILE_LEN,
                                      .psize = (uint32_t)getpagesize(), .fd = fd};
    ff_page_pool_start(&pool, &regions, false, true);
    if (pool.running)
        pthread_join(pool.thread, NULL);
    pool.running = false;
    *made = atomic_load(&pool.ready_bytes);
    munmap(host, FILE_LEN);
    return &pool;
}

static int unnamed(void)
{
    int fd = memfd_create("pool", MFD_CLOEXEC);
    assert_true(fd >= 0);
    return fd;
}

static void files(void **state)
{
    uint64_t made;
    int fd = unnamed();
    struct ff_page_pool *s = pool_of(fd, FILE_LEN, &made);

    (void)state;
    assert_int_equal(made, FILE_LEN);
    assert_non_null(ff_page_pool_take(s, 0, &made));
    ff_page_pool_free(s);
    assert_int_equal(bytes_in(fd), FILE_LEN); /* it was taken */
    s = pool_of(fd, FILE_LEN, &made); /* it is not empty any more */
    assert_int_equal(made, 0);
    ff_page_pool_free(s);
    assert_int_equal(bytes_in(fd), FILE_LEN);
    close(fd);

    fd = unnamed();
    s = pool_of(fd, FILE_LEN, &made);
    assert_non_null(ff_page_pool_take(s, 0, &made));
    ff_page_pool_return(s);
    ff_page_pool_free(s);
    assert_int_equal(bytes_in(fd), 0);
    close(fd);
}

/* The file ends, or its file system is full, in the middle of what is asked for at once */
static void no_room(void **state)
{
    uint64_t made;
    int fd = unnamed();
    struct ff_page_pool *s = pool_of(fd, FILE_LEN / 2, &made);

    (void)state;
    assert_int_equal(made, 0);
    assert_null(ff_page_pool_take(s, 0, &made));
    assert_int_equal(bytes_in(fd), 0); /* what nobody knows to be ready is not there */
    ff_page_pool_free(s);
    close(fd);
}

/* A process that locks what it will map gets its file back, too */
static void locked(void **state)
{
    uint64_t made;
    int fd = unnamed();

    (void)state;
    if (mlockall(MCL_FUTURE | MCL_ONFAULT))
        skip();
    struct ff_page_pool *s = pool_of(fd, FILE_LEN, &made);
    assert_int_equal(made, FILE_LEN);
    ff_page_pool_free(s);
    munlockall();
    assert_int_equal(bytes_in(fd), 0);
    close(fd);
}

/* Others may have it: it is left alone, with what it holds */
static void left_alone(const char *folder)
{
    char path[128], text[6] = "";
    uint64_t made;

    snprintf(path, sizeof(path), "%s/farfork-pool-XXXXXX", folder);
    int fd = mkstemp(path);
    if (fd < 0)
        return;
    struct ff_page_pool *s = pool_of(fd, FILE_LEN, &made);
    assert_int_equal(made, 0);
    ff_page_pool_free(s);
    assert_int_equal(pread(fd, text, 5, 0), 5);
    assert_string_equal(text, "taken");
    unlink(path);
    close(fd);
}

static void named_files(void **state)
{
    (void)state;
    left_alone("/dev/shm");
    left_alone(root);
}

UNIT_MAIN(cmocka_unit_test_setup_teardown(host_alone, new_host, end_host),
          cmocka_unit_test_setup_teardown(version_2, new_host, end_host),
          cmocka_unit_test_setup_teardown(version_1, new_host, end_host),
          cmocka_unit_test_setup_teardown(hybrid, new_host, end_host),
          cmocka_unit_test_setup_teardown(container, new_host, end_host),
          cmocka_unit_test(files),
          cmocka_unit_test(no_room),
          cmocka_unit_test(locked),
          cmocka_unit_test_setup_teardown(named_files, new_host, end_host))
