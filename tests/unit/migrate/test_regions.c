/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * test_regions.c - the region table, and every difference between two of them
 */
#include "unit.h"

#include <fcntl.h>
#include <sys/mman.h>

#include "regions.h"

static struct ff_region region(const char *name, uintptr_t host, uint64_t len, uint32_t psize)
{
    return (struct ff_region){
        .name = name, .host = (void *)host, .len_bytes = len, .psize = psize, .fd = -1};
}

static void add(struct ff_regions *t, const char *name, uintptr_t host, uint64_t len,
                uint32_t psize)
{
    struct ff_region r = region(name, host, len, psize);
    struct ff_error err;
    assert_ok(ff_regions_add(t, &r, &err), err);
}

static void test_add(void **state)
{
    static struct ff_regions t;
    char name[300];
    (void)state;

    memset(name, 'n', sizeof(name));
    name[255] = '\0';
    add(&t, "pc.ram", 0x10000, 0x10000, 4096);
    add(&t, name, 0x20000, 0x1000, 4096); /* touches the first one */
    add(&t, "huge", 0x400000, 2 << 20, 2 << 20);
    add(&t, "below", 0xf000, 0x1000, 4096);
    strcpy(name, "changed afterwards");
    assert_int_equal(t.n, 4);
    assert_int_equal(strlen(t.r[1].name), 255);
    ff_regions_free(&t);
    assert_int_equal(t.n, 0);
}

static void test_add_refused(void **state)
{
    static struct ff_regions t;
    char large[300];
    (void)state;

    memset(large, 'n', sizeof(large));
    large[256] = '\0';
    add(&t, "one", 0x10000, 0x10000, 4096);
    const struct {
        struct ff_region r;
        int code;
        const char *says;
    } bad[] = {
        {region("", 0x40000, 4096, 4096), EINVAL, "0 bytes"},
        {region(large, 0x40000, 4096, 4096), EINVAL, "256"},
        {region("b", 0x40000, 4096, 2048), EINVAL, "2048"},
        {region("b", 0x40000, 4096, 0), EINVAL, "page size 0"},
        {region("b", 0x40000, 12288, 12288), EINVAL, "12288"},
        {region("b", 0x40000000, 1 << 30, 1 << 30), ENOTSUP, "1024 MiB"},
        {region("b", 0x40000, 0, 4096), EINVAL, "length 0x0"},
        {region("b", 0x40000, 4097, 4096), EINVAL, "0x1001"},
        {region("b", 0x40100, 4096, 4096), EINVAL, "0x40100"},
        {region("b", 0x40000, FF_WIRE_REGION_LEN_MAX + 4096, 4096), EINVAL, "0x400000001000"},
        {region("b", 0x40000, 2 << 20, 2 << 20), EINVAL, "0x40000"},
        {region("one", 0x40000, 4096, 4096), EEXIST, "of that name"},
        {region("b", 0x10000, 4096, 4096), EEXIST, "overlaps one"},
        {region("b", 0x1f000, 8192, 4096), EEXIST, "overlaps one"},
        {region("b", 0xf000, 8192, 4096), EEXIST, "overlaps one"},
        {region("b", 0xf000, 0x20000, 4096), EEXIST, "overlaps one"},
        {region("b", 0x12000, 4096, 4096), EEXIST, "overlaps one"},
    };
    for (size_t i = 0; i < FF_ARRAY_LEN(bad); i++) {
        struct ff_error err = {.code = 0};
        int rc = ff_regions_add(&t, &bad[i].r, &err);
        if (rc != -bad[i].code || !strstr(err.text, bad[i].says))
            fail_msg("case %zu: %d \"%s\", want %d \"%s\"", i, rc, err.text, -bad[i].code,
                     bad[i].says);
        assert_int_equal(t.n, 1);
    }
    for (unsigned i = 1; i < FF_WIRE_REGIONS_MAX; i++) {
        char name[16];
        snprintf(name, sizeof(name), "r%u", i);
        add(&t, name, 0x100000 + 0x1000u * i, 4096, 4096);
    }
    struct ff_region more = region("more", 0x1000, 4096, 4096);
    struct ff_error err;
    assert_fails(ff_regions_add(&t, &more, &err), E2BIG);
    assert_error(err, E2BIG, "512");
    ff_regions_free(&t);
}

/* One file as the memory of both sides: emptying the destination's would empty the source's */
static void test_same_file(void **state)
{
    static struct ff_regions a, b;
    int fd = memfd_create("unit-regions", MFD_CLOEXEC), again;
    struct ff_error err;
    char path[64];
    (void)state;

    assert_true(fd >= 0 && !ftruncate(fd, 1 << 20));
    snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
    again = open(path, O_RDWR | O_CLOEXEC); /* as another process would */
    assert_true(again >= 0);
    struct ff_region one = region("one", 0x10000, 4096, 4096), two = one;
    one.fd = fd;
    two.fd = again;
    assert_ok(ff_regions_add(&a, &one, &err), err);
    assert_fails(ff_regions_add(&b, &two, &err), EBUSY);
    assert_error(err, EBUSY, "same file", "one");
    assert_int_equal(b.n, 0);
    two.fd_offset = 65536; /* another part of it is nobody's */
    assert_ok(ff_regions_add(&b, &two, &err), err);
    ff_regions_free(&b);
    ff_regions_free(&a);
    two.fd_offset = 0; /* and free again afterwards */
    assert_ok(ff_regions_add(&b, &two, &err), err);
    ff_regions_free(&b);
    close(fd);
    close(again);
}

static void test_hello(void **state)
{
    static struct ff_regions t;
    struct ff_hello h;
    struct ff_error err;
    char config[300];
    (void)state;

    assert_fails(ff_regions_hello(&t, "c", &h, &err), EINVAL);
    add(&t, "pc.ram", 0x10000, 0x10000, 4096);
    add(&t, "huge", 0x400000, 4 << 20, 2 << 20);
    memset(config, 'c', sizeof(config));
    config[256] = '\0';
    assert_fails(ff_regions_hello(&t, config, &h, &err), EINVAL);
    assert_error(err, EINVAL, "256", "255");
    config[255] = '\0';
    assert_ok(ff_regions_hello(&t, config, &h, &err), err);
    assert_string_equal(h.config, config);
    assert_int_equal(h.version, FF_WIRE_VERSION);
    assert_int_equal(h.n_regions, 2);
    assert_string_equal(h.regions[1].name, "huge");
    assert_int_equal(h.regions[1].len_bytes, 4 << 20);
    assert_int_equal(h.regions[1].psize, 2 << 20);
    ff_hello_free(&h);
    ff_hello_free(&h);
    ff_regions_free(&t);
}

static void test_match(void **state)
{
    static struct ff_regions src, dst;
    struct ff_hello h;
    struct ff_error err;
    uint32_t map[8];
    (void)state;

    add(&src, "a", 0x10000, 0x10000, 4096);
    add(&src, "b", 0x30000, 0x20000, 4096);
    add(&src, "c", 0x400000, 2 << 20, 2 << 20);
    add(&dst, "c", 0x800000, 2 << 20, 2 << 20); /* another order, other addresses */
    add(&dst, "a", 0x90000, 0x10000, 4096);
    add(&dst, "b", 0xa0000, 0x20000, 4096);
    assert_ok(ff_regions_hello(&src, "pc", &h, &err), err);
    assert_ok(ff_regions_match(&dst, "pc", &h, map, &err), err);
    assert_int_equal(map[0], 1);
    assert_int_equal(map[1], 2);
    assert_int_equal(map[2], 0);
    ff_hello_free(&h);
    ff_regions_free(&src);
    ff_regions_free(&dst);
}

/* One difference at a time; both values are in the text */
static void test_differences(void **state)
{
    static const struct {
        const char *config;
        struct {
            const char *name;
            uint64_t len;
            uint32_t psize;
        } r[3];
        const char *says[4];
    } dest[] = {
        {"pc-q35-9",
         {{"a", 0x10000, 4096}, {"b", 0x200000, 4096}},
         {"machines differ", "\"pc-q35-10\"", "\"pc-q35-9\"", "start"}},
        {"", {{"a", 0x10000, 4096}, {"b", 0x200000, 4096}}, {"\"pc-q35-10\"", "\"\"", "", ""}},
        {"pc-q35-10", {{"a", 0x10000, 4096}}, {"region b", "0x200000", "only at the source", ""}},
        {"pc-q35-10",
         {{"a", 0x10000, 4096}, {"B", 0x200000, 4096}},
         {"region b", "0x200000", "only at the source", ""}},
        {"pc-q35-10",
         {{"a", 0x11000, 4096}, {"b", 0x200000, 4096}},
         {"region a", "length", "source 0x10000", "destination 0x11000"}},
        {"pc-q35-10",
         {{"a", 0x10000, 4096}, {"b", 0x200000, 2 << 20}},
         {"region b", "page size", "source 4096", "destination 2097152"}},
        {"pc-q35-10",
         {{"a", 0x10000, 4096}, {"b", 0x200000, 4096}, {"vga", 0x8000, 4096}},
         {"region vga", "0x8000", "only at the destination", ""}},
    };
    static struct ff_regions src, dst;
    struct ff_hello h;
    uint32_t map[8];
    struct ff_error err;
    (void)state;

    add(&src, "a", 0x10000, 0x10000, 4096);
    add(&src, "b", 0x200000, 0x200000, 4096);
    assert_ok(ff_regions_hello(&src, "pc-q35-10", &h, &err), err);
    for (size_t i = 0; i < FF_ARRAY_LEN(dest); i++) {
        for (unsigned k = 0; k < 3 && dest[i].r[k].name; k++)
            add(&dst, dest[i].r[k].name, 0x1000000 + 0x400000u * k, dest[i].r[k].len,
                dest[i].r[k].psize);
        memset(&err, 0, sizeof(err));
        assert_fails(ff_regions_match(&dst, dest[i].config, &h, map, &err), EINVAL);
        for (unsigned k = 0; k < 4; k++)
            if (!strstr(err.text, dest[i].says[k]))
                fail_msg("case %zu: \"%s\" is not in: %s", i, dest[i].says[k], err.text);
        ff_regions_free(&dst);
    }
    ff_hello_free(&h);
    ff_regions_free(&src);
}

UNIT_MAIN(cmocka_unit_test(test_add), cmocka_unit_test(test_add_refused),
          cmocka_unit_test(test_same_file), cmocka_unit_test(test_hello),
          cmocka_unit_test(test_match), cmocka_unit_test(test_differences))
