/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * test_collapse.c - whether this host wants huge pages: what its settings say
 */
#include "unit.h"

#include <sys/stat.h>
#include <unistd.h>

#include "collapse.h"

static char dir[64];

static void set(const char *name, const char *text)
{
    char path[128];

    snprintf(path, sizeof(path), "%s/%s", dir, name);
    unlink(path);
    if (!text)
        return;
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    assert_true(fputs(text, f) >= 0);
    assert_int_equal(fclose(f), 0);
}

static void check(const char *all, const char *size, int want)
{
    struct ff_error err = {0};

    set("enabled", all);
    set("hugepages-2048kB/enabled", size);
    int rc = ff_collapse_permitted(dir, &err);
    if (rc != want)
        print_message("enabled \"%s\", of 2 MiB \"%s\"\n", all ? all : "-", size ? size : "-");
    assert_int_equal(rc, want);
    assert_int_equal(err.code, -want);
}

static void test_settings(void **state)
{
    char sub[128];

    (void)state;
    snprintf(dir, sizeof(dir), "/tmp/farfork-collapse-XXXXXX");
    assert_non_null(mkdtemp(dir));
    snprintf(sub, sizeof(sub), "%s/hugepages-2048kB", dir);
    assert_int_equal(mkdir(sub, 0700), 0);
    check("[always] madvise never\n", NULL, 0);
    check("always [madvise] never\n", NULL, 0);
    check("always madvise [never]\n", NULL, -ENOTSUP);
    check(NULL, NULL, -ENOTSUP);
    check("", NULL, -ENOTSUP);
    check("always [madvise] never\n", "always [inherit] madvise never\n", 0);
    check("always madvise [never]\n", "always [inherit] madvise never\n", -ENOTSUP);
    check("always madvise [never]\n", "always inherit [madvise] never\n", 0);
    check("[always] madvise never\n", "always inherit madvise [never]\n", -ENOTSUP);
    set("enabled", NULL);
    set("hugepages-2048kB/enabled", NULL);
    rmdir(sub);
    rmdir(dir);
}

UNIT_MAIN(cmocka_unit_test(test_settings))
