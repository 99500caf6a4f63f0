/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * test_guest_page.c - the size of a guest's pages, from a QEMU that has pages of this one
 */
#include <jansson.h>

#include "guest_page.h"
#include "unit.h"

#define HAD 67108864

static json_int_t page, cache;
static bool knows;

static json_t *answer_to(const char *name, const json_t *arguments)
{
    json_int_t want = json_integer_value(json_object_get(arguments, "xbzrle-cache-size"));

    if (!strcmp(name, "query-migrate-parameters"))
        return json_pack("{so}", "return", knows ? json_pack("{sI}", "xbzrle-cache-size", cache) : json_object());
    assert_string_equal(name, "migrate-set-parameters");
    if (want < page)
        return json_pack("{s{ssss}}", "error", "class", "GenericError", "desc", "no less than the page");
    cache = want;
    return json_pack("{s{}}", "return");
}

static int carry(void *opaque, const char *line, int fd, char **answer, struct ff_error *why)
{
    json_t *m = json_loads(line, 0, NULL);
    json_t *a = answer_to(json_string_value(json_object_get(m, "execute")), json_object_get(m, "arguments"));

    (void)opaque;
    (void)why;
    (void)fd;
    *answer = json_dumps(a, 0);
    json_decref(a);
    json_decref(m);
    return 0;
}

static int ask(unsigned *bits, struct ff_error *err)
{
    struct qmp *q = qmp_by(carry, NULL, getpid());

    cache = HAD;
    int rc = guest_page_bits(q, bits, err);
    qmp_free(q);
    return rc;
}

static void test_sizes(void **unused)
{
    struct ff_error err;
    unsigned bits;

    (void)unused;
    knows = true;
    for (unsigned want = 10; want <= 16; want++) {
        page = (json_int_t)1 << want;
        assert_ok(ask(&bits, &err), err);
        assert_int_equal(bits, want);
        assert_int_equal(cache, HAD);
    }
}

static void test_unknown(void **unused)
{
    struct ff_error err;
    unsigned bits;

    (void)unused;
    knows = true;
    page = (json_int_t)1 << 17;
    assert_fails(ask(&bits, &err), EREMOTEIO);
    assert_int_equal(cache, HAD);
    knows = false;
    assert_fails(ask(&bits, &err), ENOTSUP);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_sizes), cmocka_unit_test(test_unknown)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
