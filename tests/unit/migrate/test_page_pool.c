/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * test_page_pool.c - how much memory may be made ready: the host's, and control groups of both
 * versions
 */
#include "unit.h"

#include <sys/stat.h>

#include "page_pool.h"

#define MIB (1ull << 20)
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

UNIT_MAIN(cmocka_unit_test_setup_teardown(host_alone, new_host, end_host),
          cmocka_unit_test_setup_teardown(version_2, new_host, end_host),
          cmocka_unit_test_setup_teardown(version_1, new_host, end_host),
          cmocka_unit_test_setup_teardown(hybrid, new_host, end_host),
          cmocka_unit_test_setup_teardown(container, new_host, end_host))
