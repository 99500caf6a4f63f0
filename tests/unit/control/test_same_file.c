/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * test_same_file.c - two sides that mean the same file by a name, and two that do not
 *
 * Both sides are this process: what is shown by one kernel alone is taken from the question.
 */
#include "unit.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>

#include "autojson.h"
#include "same_file.h"
#include "strv.h"

static struct ff_error why;
static char dir[] = "/tmp/same-XXXXXX";

static char *at(const char *name)
{
    return xprintf("%s/%s", dir, name);
}

static char *make(const char *name)
{
    char *path = at(name);
    FF_AUTO_FREE char *folder = xstrdup(path);

    *strrchr(folder, '/') = '\0';
    mkdir(folder, 0700);
    int fd = open(path, O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
    assert_true(fd >= 0);
    close(fd);
    return path;
}

/* What the other side is asked; as if it ran on another kernel, and found the file by @path */
static json_t *ask(const struct same_files *s, const char *path)
{
    json_t *a = same_files_ask(s), *o = json_array_get(a, 0);

    if (o)
        json_object_set_new(o, "boot", json_string("another"));
    if (o && path)
        json_object_set_new(o, "path", json_string(path));
    return a;
}

static bool sees(const json_t *a)
{
    FF_AUTO_JSON json_t *found = same_files_look(a);

    return json_is_true(json_object_get(json_array_get(found, 0), "same"));
}

static struct same_files *begin(const char *path)
{
    FF_AUTO_JSON json_t *names = json_pack("[s]", path);

    return same_files_new(names);
}

static int count(const char *folder)
{
    FF_AUTO_FREE char *command = xprintf("exit $(ls -A %s | wc -l)", folder);

    return WEXITSTATUS(system(command));
}

static void test_kernel(void **state)
{
    (void)state;
    assert_non_null(mkdtemp(dir));
    FF_AUTO_FREE char *disk = make("a/disk"), *copy = make("b/disk"), *link = at("b/link");
    struct same_files *s = begin(disk);
    FF_AUTO_JSON json_t *a = same_files_ask(s);
    json_t *o = json_array_get(a, 0);

    assert_int_equal(symlink(disk, link), 0);
    json_object_del(o, "lock"); /* by device and inode alone */
    assert_true(sees(a));
    json_object_set_new(o, "path", json_string(link));
    assert_true(sees(a));
    json_object_set_new(o, "path", json_string(copy));
    assert_false(sees(a));
    json_object_set_new(o, "path", json_string(disk));
    json_object_set_new(o, "boot", json_string(""));
    assert_false(sees(a));
    json_object_set_new(o, "path", json_string("relative"));
    assert_false(sees(a));
    same_files_free(s);
}

static void test_lock(void **state)
{
    (void)state;
    FF_AUTO_FREE char *disk = make("a/disk"), *copy = make("b/disk");
    struct same_files *s = begin(disk);
    FF_AUTO_JSON json_t *a = ask(s, NULL), *b = ask(s, copy);

    assert_true(sees(a));
    assert_false(sees(b));
    /* one who has locked all of the copy is not this side */
    int fd = open(copy, O_RDWR | O_CLOEXEC);
    struct flock l = {.l_type = F_RDLCK, .l_whence = SEEK_SET};
    assert_int_equal(fcntl(fd, F_OFD_SETLK, &l), 0);
    assert_false(sees(b));
    close(fd);
    same_files_free(s);
    assert_false(sees(a)); /* the lock is over */
}

static void test_mark(void **state)
{
    (void)state;
    FF_AUTO_FREE char *disk = make("a/disk"), *copy = make("b/disk"), *other = make("a/other"), *link = at("b/link"),
                      *folder = at("a");
    struct same_files *s = begin(disk);
    FF_AUTO_JSON json_t *answer = json_pack("[{ss sb ss}]", "path", disk, "same", 0, "why", "no lock");

    assert_false(same_files_heard(s, answer));
    assert_true(same_files_mark(s));
    assert_int_equal(count(folder), 3);
    FF_AUTO_JSON json_t *a = ask(s, NULL), *b = ask(s, copy), *c = ask(s, other), *d = ask(s, link);
    json_t *all[] = {a, b, c, d};
    for (size_t i = 0; i < 4; i++)
        json_object_del(json_array_get(all[i], 0), "lock");
    assert_true(sees(a));
    assert_false(sees(b));
    assert_false(sees(c)); /* in that folder, but another one */
    assert_true(sees(d));
    assert_false(same_files_heard(s, answer));
    assert_int_equal(same_files_refuse(s, "h1", &why), -ESTALE);
    assert_non_null(strstr(why.text, disk));
    assert_non_null(strstr(why.text, "no lock"));
    FF_AUTO_JSON json_t *good = same_files_look(a);
    assert_true(same_files_heard(s, good));
    assert_int_equal(same_files_refuse(s, "h1", &why), 0);
    same_files_free(s);
    assert_int_equal(count(folder), 2);
}

/* What it says not, or of a file that is not there, is no yes */
static void test_unknown(void **state)
{
    (void)state;
    FF_AUTO_FREE char *disk = make("a/disk"), *gone = at("a/gone");
    struct same_files *s = begin(disk), *g = begin(gone);
    FF_AUTO_JSON json_t *empty = json_array(), *a = same_files_ask(g), *c = NULL;

    assert_int_equal(json_array_size(a), 1);
    assert_false(sees(a));
    assert_int_equal(same_files_check(a, &why), -ESTALE);
    assert_false(same_files_heard(g, empty));
    assert_false(same_files_mark(g));
    assert_int_equal(same_files_refuse(g, "h1", &why), -ESTALE);
    assert_non_null(strstr(why.text, "No such file"));
    assert_false(same_files_heard(s, NULL));
    assert_int_equal(same_files_refuse(s, "h1", &why), -ESTALE);
    same_files_free(s);
    same_files_free(g);
    c = json_pack("[{ss ss s[s]} s {}]", "path", disk, "mark", "../a/disk", "lock", "x", "y");
    FF_AUTO_JSON json_t *found = same_files_look(c);
    assert_int_equal(json_array_size(found), 3);
    assert_false(sees(c));
    FF_AUTO_FREE char *command = xprintf("rm -r %s", dir);
    assert_int_equal(system(command), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_kernel),
        cmocka_unit_test(test_lock),
        cmocka_unit_test(test_mark),
        cmocka_unit_test(test_unknown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
