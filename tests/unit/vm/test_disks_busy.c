/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * test_disks_busy.c - jobs, exports and filters of a guest's disks are refused by id, type and disk
 *
 * What QEMU says in truth: tests/e2e/refuse.py, tests/e2e/farfork_move.py.
 */
#include "unit.h"

#include "disks.h"
#include "autojson.h"

/* A disk d0: node "top" (raw) on "f" (file); the device's backend is 1, an export's 2, a job's 3 */
#define NODES                                                                                    \
    "{'node-name': 'top', 'drv': 'raw', 'file': '/d.img'},"                                      \
    "{'node-name': 'f', 'drv': 'file', 'file': '/d.img'}"
#define GRAPH(more)                                                                              \
    "{'nodes': [{'id': 1, 'type': 'block-backend', 'name': 'd0'},"                               \
    " {'id': 2, 'type': 'block-backend', 'name': ''}, {'id': 3, 'type': 'block-job', 'name': 'j'}," \
    " {'id': 4, 'type': 'block-driver', 'name': 'top'}, {'id': 5, 'type': 'block-driver', 'name': 'f'}," \
    " {'id': 6, 'type': 'block-driver', 'name': 'late'}], 'edges': ["                            \
    " {'parent': 1, 'child': 4, 'name': 'root', 'perm': ['write', 'consistent-read']},"          \
    " {'parent': 4, 'child': 5, 'name': 'file', 'perm': ['write', 'resize']}" more "]}"

static struct ff_error why;
static struct strv notes;

static json_t *json(const char *text)
{
    FF_AUTO_FREE char *copy = xstrdup(text);

    for (char *c = copy; *c; c++)
        if (*c == '\'')
            *c = '"';
    json_t *o = json_loads(copy, 0, NULL);
    assert_non_null(o);
    return o;
}

/* @graph NULL: this QEMU has none */
static int check(const char *jobs, const char *exports, const char *nodes, const char *graph,
                 const char *argv)
{
    FF_AUTO_JSON json_t *j = json(jobs), *e = json(exports), *n = json(nodes), *a = json(argv),
                        *g = graph ? json(graph) : NULL;
    const struct disks_busy b = {.argv = a, .jobs = j, .exports = e, .nodes = n, .graph = g};

    why.text[0] = '\0';
    strv_free(&notes);
    return disks_check_busy(&b, &notes, &why);
}

static void says(const char *a, const char *b, const char *c)
{
    if (!strstr(why.text, a) || !strstr(why.text, b) || !strstr(why.text, c))
        fail_msg("it says '%s', want %s, %s, %s", why.text, a, b, c);
}

#define EXPORT "[{'id': 'e', 'type': 'nbd', 'node-name': 'top', 'shutting-down': false}]"
#define WRITES ", {'parent': 2, 'child': 4, 'name': 'root', 'perm': ['write']}"
#define READS ", {'parent': 2, 'child': 4, 'name': 'root', 'perm': ['consistent-read']}"
#define ARGV "['qemu', '-blockdev', 'driver=raw,node-name=top,file.driver=throttle,file.node-name=mine']"

static void test_jobs(void **state)
{
    static const char job[] = "[{'id': 'j', 'type': 'mirror', 'status': 'ready'}]";
    static const char main_node[] =
        GRAPH(", {'parent': 3, 'child': 4, 'name': 'main node', 'perm': []}");

    (void)state;
    assert_int_equal(check("[]", "[]", "[" NODES "]", GRAPH(""), ARGV), 0);
    assert_int_equal(check(job, "[]", "[" NODES "]", main_node, ARGV), -EBUSY);
    says("job 'j'", "(mirror)", "of disk /d.img");
    assert_int_equal(check(job, "[]", "[" NODES "]", NULL, ARGV), -EBUSY);
    says("job 'j'", "(mirror)", "cancel");
    assert_int_equal(check("[{'id': 'j', 'type': 'create', 'status': 'concluded'}]", "[]", "[]",
                           NULL, ARGV), 0);
    assert_int_equal(check("[{'id': 'j', 'type': 'create'}]", "[]", "[]", NULL, ARGV), -EBUSY);
}

static void test_exports(void **state)
{
    (void)state;
    assert_int_equal(check("[]", EXPORT, "[" NODES "]", GRAPH(WRITES), ARGV), -EBUSY);
    says("export 'e'", "(nbd) of disk /d.img", "is writable");
    assert_int_equal(check("[]", EXPORT, "[" NODES "]", GRAPH(READS), ARGV), 0);
    assert_int_equal(notes.n, 1);
    assert_non_null(strstr(notes.v[0], "export 'e' (nbd) of disk /d.img stays behind"));
    /* whether it writes is not known */
    assert_int_equal(check("[]", EXPORT, "[" NODES "]", NULL, ARGV), -EBUSY);
    says("export 'e'", "may be writable", "end it");
    assert_int_equal(check("[]", "[{'id': 'e', 'type': 'nbd', 'node-name': 'gone'}]", "[]",
                           GRAPH(""), ARGV), -EBUSY);
}

static void test_filters(void **state)
{
    static const char used[] = GRAPH(", {'parent': 1, 'child': 6, 'name': 'root', 'perm': []}");
    static const struct {
        const char *nodes, *graph;
        int rc;
    } cases[] = {
        {"[" NODES ", {'node-name': 'late', 'drv': 'throttle', 'file': '/d.img'}]", used, -EBUSY},
        {"[" NODES ", {'node-name': 'late', 'drv': 'throttle', 'file': '/d.img'}]", NULL, -EBUSY},
        /* nobody has it */
        {"[" NODES ", {'node-name': 'late', 'drv': 'throttle', 'file': '/d.img'}]", GRAPH(""), 0},
        {"[{'node-name': 'mine', 'drv': 'throttle', 'file': '/d.img'}]", NULL, 0},
        {"[{'node-name': '#block7', 'drv': 'throttle', 'file': '/d.img'}]", NULL, 0},
        {"[{'node-name': '#block7', 'drv': 'mirror_top', 'file': '/d.img'}]", NULL, -EBUSY},
        {"[{'node-name': 'late', 'drv': 'copy-before-write', 'file': '/d.img'}]", GRAPH(""), -EBUSY},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        if (check("[]", "[]", cases[i].nodes, cases[i].graph, ARGV) != cases[i].rc)
            fail_msg("%s: '%s', want %d", cases[i].nodes, why.text, cases[i].rc);
        if (cases[i].rc)
            says("filter", "of disk /d.img", "run time");
    }
    strv_free(&notes);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_jobs),
        cmocka_unit_test(test_exports),
        cmocka_unit_test(test_filters),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
