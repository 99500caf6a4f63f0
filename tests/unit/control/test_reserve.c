/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * test_reserve.c - memory that is promised to one fork is no other's
 */
#include "unit.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "autojson.h"
#include "reserve.h"
#include "rundir.h"

static char base[] = "/tmp/farfork-reserve-XXXXXX";

static int take(const char *id, uint64_t bytes, uint64_t available, uint64_t *others)
{
    struct ff_error why;

    return reserve_take(base, id, "node", bytes, available, others, &why);
}

static char *promises(void)
{
    char host[256] = "";

    assert_int_equal(gethostname(host, sizeof(host) - 1), 0);
    return xprintf("%s/.reserved-%s", base, host);
}

static void test_taken_once(void **state)
{
    uint64_t others;

    (void)state;
    assert_int_equal(reserve_left(base), 0);
    assert_int_equal(take("a", 600, 1000, &others), 0);
    assert_int_equal(others, 0);
    assert_int_equal(take("b", 401, 1000, &others), -ENOMEM);
    assert_int_equal(others, 600);
    assert_int_equal(take("b", 400, 1000, &others), 0);
    assert_int_equal(reserve_left(base), 1000);
    /* another amount for the same one */
    assert_int_equal(take("a", 500, 1000, &others), 0);
    assert_int_equal(others, 400);
    assert_int_equal(take("a", 601, 1000, &others), -ENOMEM);
    assert_int_equal(reserve_left(base), 900);
    assert_int_equal(take("a", 0, 0, &others), 0);
    assert_int_equal(reserve_left(base), 400);
    assert_int_equal(take("c", UINT64_MAX, 1000, &others), -ENOMEM);
}

/* One whose time is over counts if its agent is here, less what it uses; else it is gone */
static void test_over(void **state)
{
    const uint64_t gib = 1u << 30;
    struct ff_error why;
    uint64_t others;

    (void)state;
    FF_AUTO_JSON json_t *o = json_pack("{sI sI}", "bytes", (json_int_t)gib, "until_s", (json_int_t)0);
    FF_AUTO_FREE char *folder = promises();
    FF_AUTO_FREE char *here = xprintf("%s/d,node", folder), *gone = xprintf("%s/e,node", folder);
    assert_int_equal(json_dump_file(o, here, 0), 0);
    assert_int_equal(json_dump_file(o, gone, 0), 0);
    char *dir = NULL;
    assert_int_equal(rundir_make(base, "d", "node", &dir, &why), 0);
    FF_AUTO_JSON json_t *s = json_pack("{si sI s[]}", "agent", (int)getpid(), "start",
                                       (json_int_t)process_start_time(getpid()), "children");
    assert_int_equal(rundir_write_state(dir, s), 0);
    uint64_t left = reserve_left(base);
    assert_true(left > 400 + gib / 2 && left < 400 + gib);
    assert_int_equal(access(gone, F_OK), -1);
    rundir_remove(dir);
    free(dir);
    assert_int_equal(reserve_left(base), 400);
    assert_int_equal(take("b", 0, 0, &others), 0);
}

/* One whose agent is in a container that cannot be seen counts for a day, and not for ever */
static void test_unseen(void **state)
{
    struct timespec now;
    struct ff_error why;
    char *dir = NULL;

    (void)state;
    assert_int_equal(clock_gettime(CLOCK_BOOTTIME, &now), 0);
    FF_AUTO_FREE char *folder = promises(), *path = xprintf("%s/u,node", folder), *file = NULL;
    assert_int_equal(rundir_make(base, "u", "node", &dir, &why), 0);
    file = xprintf("%s/" STATE_FILE, dir);
    FF_AUTO_JSON json_t *s = json_pack("{si sI ss s[]}", "agent", (int)getpid(), "start", (json_int_t)1, "pid-namespace",
                                       "pid:[1]", "children");
    assert_int_equal(json_dump_file(s, file, 0), 0);
    for (int over = 0; over <= 1; over++) {
        json_int_t until = (json_int_t)now.tv_sec - 1 - (over ? RESERVE_UNSEEN_S : 0); /* also before the boot */
        FF_AUTO_JSON json_t *o = json_pack("{sI sI}", "bytes", (json_int_t)7, "until_s", until);
        assert_int_equal(json_dump_file(o, path, 0), 0);
        assert_int_equal(reserve_left(base), over ? 0 : 7);
        assert_int_equal(access(path, F_OK), over ? -1 : 0);
    }
    unlink(path);
    rundir_remove(dir);
    free(dir);
}

/* What somebody has broken promises nothing */
static void test_broken(void **state)
{
    static const char *const texts[] = {"", "{", "[]", "{\"bytes\":\"x\"}", "{\"bytes\":-1,\"until_s\":99999999999}",
                                        "{\"bytes\":1000000,\"until_s\":99999999999}" /* of an earlier boot */};

    (void)state;
    for (size_t i = 0; i < FF_ARRAY_LEN(texts); i++) {
        FF_AUTO_FREE char *folder = promises(), *path = xprintf("%s/x,node", folder);
        FILE *f = fopen(path, "w");
        assert_non_null(f);
        fputs(texts[i], f);
        fclose(f);
        assert_int_equal(reserve_left(base), 0);
    }
}

/* Links that a confined child may have put there, as this user: no file that they lead to is removed or
 * written over */
static void test_links(void **state)
{
    FF_AUTO_FREE char *folder = promises(), *was = xprintf("%s-was", folder);
    FF_AUTO_FREE char *other = xprintf("%s/other", base), *file = xprintf("%s/passwd", other);
    FF_AUTO_FREE char *promise = xprintf("%s/x,node", other), *mine = xprintf("%s/y,node", folder);
    FF_AUTO_JSON json_t *o = json_pack("{}");
    uint64_t others;
    (void)state;

    assert_int_equal(mkdir(other, 0700), 0);
    assert_int_equal(json_dump_file(o, file, 0), 0);
    assert_int_equal(json_dump_file(o, promise, 0), 0);
    assert_int_equal(symlink(file, mine), 0);
    assert_int_equal(take("y", 5, 1000, &others), 0);
    assert_int_equal(rename(folder, was), 0);
    assert_int_equal(symlink(other, folder), 0);
    assert_int_equal(reserve_left(base), 0);
    assert_int_equal(access(promise, F_OK), 0);
    unlink(folder);
    assert_int_equal(rename(was, folder), 0);
    assert_int_equal(reserve_left(base), 5);
    FF_AUTO_JSON json_t *back = json_load_file(file, 0, NULL);
    assert_true(json_equal(back, o));
    FF_AUTO_FREE char *named = xprintf("%s/passwd", folder);
    assert_int_equal(rename(file, named), 0); /* a file of such a name is no promise */
    assert_int_equal(reserve_left(base), 5);
    assert_int_equal(access(named, F_OK), 0);
}

static int begin(void **state)
{
    (void)state;
    return !mkdtemp(base);
}

static int end(void **state)
{
    FF_AUTO_FREE char *line = xprintf("rm -rf %s", base);

    (void)state;
    return system(line);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_taken_once),
        cmocka_unit_test(test_over),        cmocka_unit_test(test_unseen),
        cmocka_unit_test(test_broken),
        cmocka_unit_test(test_links),
    };
    return cmocka_run_group_tests(tests, begin, end);
}
