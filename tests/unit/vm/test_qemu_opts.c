/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * test_qemu_opts.c - arguments of QEMU's options: what is read, what is changed, what stays as it
 * was
 */
#include "unit.h"

#include "qemu_opts.h"
#include "error.h"
#include "strv.h"

#define assert_text(got, want)                                                              \
    do {                                                                                    \
        FF_AUTO_FREE char *got_ = (got);                                                       \
        assert_non_null(got_);                                                              \
        assert_string_equal(got_, want);                                                    \
    } while (0)

static void test_get(void **state)
{
    const char *s = "socket,id=mon,path=/a,,b,server,wait=off,x=";
    (void)state;

    assert_text(qemu_opts_get(s, "path"), "/a,b");
    assert_text(qemu_opts_get(s, "id"), "mon");
    assert_text(qemu_opts_get(s, "x"), "");
    assert_text(qemu_opts_get(s, "server"), "on");
    assert_null(qemu_opts_get(s, "pat"));
    assert_text(qemu_opts_get_first(s, "backend"), "socket");
    assert_text(qemu_opts_get_first("backend=file,id=a", "backend"), "file");
    assert_text(qemu_opts_get("a=1,a=2", "a"), "2");
    assert_true(qemu_opts_is(s, "server"));
    assert_false(qemu_opts_is(s, "wait"));
}

static void test_change(void **state)
{
    const char *s = "user,id=n,hostfwd=tcp::1-:2,net=a,,b,hostfwd=tcp::3-:4";
    (void)state;

    assert_text(qemu_opts_drop(s, "hostfwd"), "user,id=n,net=a,,b");
    assert_text(qemu_opts_drop(s, "none"), s);
    assert_text(qemu_opts_drop("a=1", "a"), "");
    assert_text(qemu_opts_set("x,path=/a,y=1", "path", "/b,c"), "x,path=/b,,c,y=1");
    assert_text(qemu_opts_set("x,y=1", "path", "/b"), "x,y=1,path=/b");
    assert_text(qemu_opts_set("a=1,b=2,a=3", "a", "4"), "a=4,b=2");
    assert_text(qemu_opts_set_first("vm1,process=p", "guest", "vm2"), "vm2,process=p");
    assert_text(qemu_opts_set_first("process=p,guest=vm1", "guest", "vm2"), "process=p,guest=vm2");
    const char *const kept[] = {"id", "mac", NULL};
    assert_text(qemu_opts_only("tap,fd=3,mac=1:2,id=n", "type", kept), "tap,id=n,mac=1:2");
}

static void test_json(void **state)
{
    const char *s = "{\"driver\":\"qcow2\",\"file\":{\"driver\":\"file\",\"filename\":\"/a\"},"
                    "\"read-only\":true,\"n\":7}";
    (void)state;

    assert_true(qemu_opts_valid(s));
    assert_false(qemu_opts_valid("{\"driver\":"));
    assert_text(qemu_opts_get(s, "file.filename"), "/a");
    assert_text(qemu_opts_get(s, "n"), "7");
    assert_text(qemu_opts_get_first(s, "driver"), "qcow2");
    assert_true(qemu_opts_is(s, "read-only"));
    assert_null(qemu_opts_get(s, "file"));
    assert_text(qemu_opts_set(s, "file.filename", "/b"),
                "{\"driver\":\"qcow2\",\"file\":{\"driver\":\"file\",\"filename\":\"/b\"},"
                "\"read-only\":true,\"n\":7}");
    assert_text(qemu_opts_drop("{\"a\": 1, \"b\": 2}", "a"), "{\"b\":2}");
    assert_text(qemu_opts_drop("{\"a\": 1, \"b\": 2}", "c"), "{\"a\": 1, \"b\": 2}");
    assert_text(qemu_opts_set_number("{\"a\":1}", "hubid", 9), "{\"a\":1,\"hubid\":9}");
}

UNIT_MAIN(cmocka_unit_test(test_get), cmocka_unit_test(test_change), cmocka_unit_test(test_json))
