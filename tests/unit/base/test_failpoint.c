/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * test_failpoint.c - fault points: what is parsed, what happens when, and that none is only a name
 *
 * Run from the top folder, or with FARFORK_TOP naming it: the sources are read.
 */
#include "unit.h"

#include <dirent.h>

#include "failpoint.h"

static int disarm(void **state)
{
    (void)state;
    unsetenv("FARFORK_FAILPOINTS");
    return ff_failpoints_arm("", NULL);
}

static void test_off(void **state)
{
    struct ff_error err = {.code = 0};
    (void)state;

    assert_false(ff_failpoints_armed);
    assert_int_equal(ff_failpoint("dest.fault"), 0);
    assert_int_equal(ff_failpoint_hits("dest.fault"), 0);
    assert_ok(ff_failpoints_arm("", &err), err);
    assert_ok(ff_failpoints_arm(NULL, &err), err); /* the variable is not set */
    assert_false(ff_failpoints_armed);
}

static void test_environment(void **state)
{
    struct ff_error err;
    (void)state;

    setenv("FARFORK_FAILPOINTS", "dest.fault=fail:7", 1);
    assert_ok(ff_failpoints_arm(NULL, &err), err);
    assert_true(ff_failpoints_armed);
    assert_int_equal(ff_failpoint("dest.fault"), -7);
    setenv("FARFORK_FAILPOINTS", "dest.nowhere=fail", 1);
    assert_fails(ff_failpoints_arm(NULL, &err), EINVAL);
    assert_false(ff_failpoints_armed);
    assert_int_equal(ff_failpoint("dest.fault"), 0);
}

static void test_rejected(void **state)
{
    static const struct {
        const char *spec, *says;
    } bad[] = {
        {"dest.fault", "dest.fault"},
        {"dest.fault@3=fail", "NAME=ACTION"},
        {"=fail", "no such point"},
        {"tcp.serve=fail", "tcp.serve"}, /* the start of a name is no name */
        {"dest.faults=fail", "dest.faults"},
        {" dest.fault=fail", "no such point"},
        {"dest.fault=", "action"},
        {"dest.fault=explode", "explode"},
        {"dest.fault=delay", "delay"},
        {"dest.fault=delay:", "delay"},
        {"dest.fault=delay:soon", "soon"},
        {"dest.fault=delay:5x", "5x"},
        {"dest.fault=delay:-5", "-5"},
        {"dest.fault=fail:", "fail"},
        {"dest.fault=fail:0", "0"}, /* would test nothing */
        {"dest.fault=fail:EIO", "EIO"},
        {"dest.fault=kill:9", "kill"},
        {"dest.fault=fail@", "count"},
        {"dest.fault=fail@0", "0"},
        {"dest.fault=fail@x", "x"},
        {"dest.fault=fail@2-", "2-"},
        {"dest.fault=fail@2++", "2++"},
        {"dest.fault=fail@-1", "-1"},
        {"dest.fault=fail@3-2", "3-2"},
        {"dest.fault=fail@2-x", "2-x"},
        {"dest.fault=fail,nope=kill", "nope"}, /* one bad part refuses the whole */
    };
    (void)state;

    for (size_t i = 0; i < FF_ARRAY_LEN(bad); i++) {
        struct ff_error err = {.code = 0};
        if (ff_failpoints_arm(bad[i].spec, &err) != -EINVAL)
            fail_msg("accepted: \"%s\"", bad[i].spec);
        if (!strstr(err.text, bad[i].says))
            fail_msg("\"%s\": \"%s\" is not in: %s", bad[i].spec, bad[i].says, err.text);
        assert_false(ff_failpoints_armed);
        assert_int_equal(ff_failpoint("dest.fault"), 0);
    }
}

static void test_too_many(void **state)
{
    char spec[1024] = "";
    struct ff_error err;
    (void)state;

    for (int i = 0; i < 16; i++)
        strcat(spec, "dest.fault=delay:1,");
    assert_ok(ff_failpoints_arm(spec, &err), err);
    strcat(spec, "dest.fault=delay:1");
    assert_fails(ff_failpoints_arm(spec, &err), EINVAL);
    assert_error(err, EINVAL, "16");
}

static void test_counts(void **state)
{
    struct ff_error err;
    (void)state;

    assert_ok(ff_failpoints_arm("dest.fault=fail", &err), err);
    for (int i = 0; i < 3; i++)
        assert_int_equal(ff_failpoint("dest.fault"), -EIO);
    assert_int_equal(ff_failpoint("dest.install"), 0);
    assert_int_equal(ff_failpoint_hits("dest.fault"), 3);

    assert_ok(ff_failpoints_arm("dest.fault=fail:11@3", &err), err);
    assert_int_equal(ff_failpoint_hits("dest.fault"), 0);
    for (int i = 1; i <= 5; i++)
        assert_int_equal(ff_failpoint("dest.fault"), i == 3 ? -11 : 0);

    assert_ok(ff_failpoints_arm("dest.fault=fail:11@3+", &err), err);
    for (int i = 1; i <= 5; i++)
        assert_int_equal(ff_failpoint("dest.fault"), i >= 3 ? -11 : 0);

    assert_ok(ff_failpoints_arm("dest.fault=fail:11@2-4", &err), err);
    for (int i = 1; i <= 5; i++)
        assert_int_equal(ff_failpoint("dest.fault"), i >= 2 && i <= 4 ? -11 : 0);

    /* two rules for one point */
    assert_ok(ff_failpoints_arm("dest.fault=fail:1@1,dest.fault=fail:2@2", &err), err);
    assert_int_equal(ff_failpoint("dest.fault"), -1);
    assert_int_equal(ff_failpoint("dest.fault"), -2);
    assert_int_equal(ff_failpoint("dest.fault"), 0);
}

static void test_delay(void **state)
{
    struct ff_error err;
    (void)state;

    assert_ok(ff_failpoints_arm("dest.fault=delay:20000@2", &err), err);
    uint64_t a = ff_now_ns();
    assert_int_equal(ff_failpoint("dest.fault"), 0);
    uint64_t b = ff_now_ns();
    assert_int_equal(ff_failpoint("dest.fault"), 0);
    uint64_t c = ff_now_ns();
    assert_true(c - b >= 20000000);
    assert_true(b - a < c - b + 20000000); /* no more than a slow machine explains */
}

static void kill_second(void *arg)
{
    (void)arg;
    if (!ff_failpoints_arm("dest.fault=kill@2", NULL)) {
        ff_failpoint("dest.fault");
        printf("still here\n");
        ff_failpoint("dest.fault");
    }
}

static void kill_never(void *arg)
{
    (void)arg;
    if (!ff_failpoints_arm("dest.fault=kill@2", NULL))
        ff_failpoint("dest.fault");
}

static void test_kill(void **state)
{
    (void)state;
    assert_int_equal(signal_of(kill_second, NULL), SIGKILL);
    assert_int_equal(signal_of(kill_never, NULL), 0);
}

/* As a program does: the first source or destination arms what the variable says */
static void start_twice(void *arg)
{
    struct ff_error err;

    setenv("FARFORK_FAILPOINTS", arg, 1);
    int first = ff_failpoints_start(&err), second = ff_failpoints_start(&err);
    if (strstr(arg, "nowhere")) {
        if (first != -EINVAL || second != -EINVAL || ff_failpoints_armed)
            abort();
    } else if (first || second || ff_failpoint("dest.fault") != -9) {
        abort();
    }
}

static void armed_by_hand(void *arg)
{
    struct ff_error err;
    (void)arg;

    if (ff_failpoints_arm("dest.fault=fail:8", &err) || ff_failpoints_start(&err) ||
        ff_failpoint("dest.fault") != -8)
        abort();
}

static void test_start(void **state)
{
    (void)state;
    assert_int_equal(signal_of(start_twice, "dest.fault=fail:9"), 0);
    assert_int_equal(signal_of(start_twice, "dest.nowhere=fail"), 0);
    assert_int_equal(signal_of(armed_by_hand, NULL), 0);
}

/* --- the list of points and the sources say the same --- */

#define NAMES_MAX 96

struct names {
    char name[NAMES_MAX][32];
    unsigned n;
};

static void add_name(struct names *names, const char *text, size_t len)
{
    char name[32];

    assert_in_range(len, 1, sizeof(name) - 1);
    memcpy(name, text, len);
    name[len] = '\0';
    for (unsigned i = 0; i < names->n; i++)
        if (!strcmp(names->name[i], name))
            return;
    assert_true(names->n < NAMES_MAX);
    strcpy(names->name[names->n++], name);
}

/* Every string literal between ff_failpoint( and the parenthesis that closes it */
static void scan_text(struct names *names, const char *text)
{
    for (const char *p = text; (p = strstr(p, "ff_failpoint(")); p++) {
        int depth = 0;
        const char *q = p + strlen("ff_failpoint");
        do {
            if (*q == '(')
                depth++;
            else if (*q == ')')
                depth--;
            else if (*q == '"') {
                size_t len = strcspn(q + 1, "\"");
                add_name(names, q + 1, len);
                q += len + 1;
            }
        } while (*q++ && depth);
    }
}

static bool scan_folder(struct names *names, const char *top, const char *folder)
{
    char path[4096];
    struct dirent *e;

    snprintf(path, sizeof(path), "%s/%s", top, folder);
    DIR *dir = opendir(path);
    if (!dir)
        return false;
    while ((e = readdir(dir))) {
        size_t len = strlen(e->d_name);
        if (len < 3 || strcmp(e->d_name + len - 2, ".c"))
            continue;
        snprintf(path, sizeof(path), "%s/%s/%s", top, folder, e->d_name);
        FILE *f = fopen(path, "r");
        assert_non_null(f);
        static char text[1 << 20];
        size_t n = fread(text, 1, sizeof(text) - 1, f);
        assert_true(n < sizeof(text) - 1);
        text[n] = '\0';
        fclose(f);
        scan_text(names, text);
    }
    closedir(dir);
    return true;
}

static void test_list_equals_sources(void **state)
{
    static const char *const folders[] = {"base", "rdma", "uffd", "migrate", "probe", "clone",
                                          "control/attach", "control/host", "control/move", "vm/attach"};
    const char *top = getenv("FARFORK_TOP") ? getenv("FARFORK_TOP") : ".";
    static struct names used;
    (void)state;

    for (size_t i = 0; i < FF_ARRAY_LEN(folders); i++) {
        if (!scan_folder(&used, top, folders[i])) {
            print_message("SKIP: no sources in %s: run from the top folder or set FARFORK_TOP\n",
                          top);
            skip();
        }
    }
    assert_true(used.n > 10);
    for (unsigned i = 0; i < used.n; i++) {
        struct ff_error err;
        char spec[64];
        snprintf(spec, sizeof(spec), "%s=fail", used.name[i]);
        if (ff_failpoints_arm(spec, &err))
            fail_msg("used in the sources, but unknown: %s", used.name[i]);
    }
    for (unsigned i = 0; i < ff_failpoints_n; i++) {
        bool found = false;
        for (unsigned k = 0; k < used.n; k++)
            found |= !strcmp(used.name[k], ff_failpoints[i]);
        if (!found)
            fail_msg("known, but nowhere in the sources: %s", ff_failpoints[i]);
    }
    assert_int_equal(used.n, ff_failpoints_n);
}

UNIT_MAIN(cmocka_unit_test_setup_teardown(test_off, disarm, disarm),
          cmocka_unit_test_setup_teardown(test_environment, disarm, disarm),
          cmocka_unit_test_setup_teardown(test_rejected, disarm, disarm),
          cmocka_unit_test_setup_teardown(test_too_many, disarm, disarm),
          cmocka_unit_test_setup_teardown(test_counts, disarm, disarm),
          cmocka_unit_test_setup_teardown(test_delay, disarm, disarm),
          cmocka_unit_test_setup_teardown(test_kill, disarm, disarm),
          cmocka_unit_test_setup_teardown(test_start, disarm, disarm),
          cmocka_unit_test_setup_teardown(test_list_equals_sources, disarm, disarm))
