/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * test_disks_held.c - a name that stands for another file than the one that is open
 */
#include "unit.h"

#include <fcntl.h>
#include <sys/stat.h>

#include "disks.h"
#include "autojson.h"

static struct ff_error why;
static char dir[] = "/tmp/held-XXXXXX";

static char *at(const char *name)
{
    return xprintf("%s/%s", dir, name);
}

static void make(const char *name)
{
    FF_AUTO_FREE char *path = at(name);
    int fd = open(path, O_CREAT | O_WRONLY | O_CLOEXEC, 0600);

    assert_true(fd >= 0);
    close(fd);
}

static int check(pid_t pid, const char *driver, const char *file, const char *device, bool ro)
{
    FF_AUTO_JSON json_t *nodes = json_pack("[{ss ss ss} {ss ss ss}]", "node-name", "n", "drv", driver, "file", file,
                                           "node-name", "z", "drv", "null-co", "file", "null-co://");
    FF_AUTO_JSON json_t *block = json_pack("[{ss ss s{ss sb}}]", "device", device, "qdev", "/machine/x", "inserted",
                                           "file", file, "ro", (int)ro);

    why.text[0] = '\0';
    return disks_check_held(pid, dir, block, nodes, &why);
}

static void refused(const char *file, int rc)
{
    int got = check(getpid(), "file", file, "d", false);

    if (got != rc || (rc && !strstr(why.text, strrchr(file, '/') ? file : "disk")))
        fail_msg("%s: %d (%s), want %d and its name", file, got, why.text, rc);
}

static void test_names(void **state)
{
    FF_AUTO_FREE char *disk = NULL, *other = NULL, *link = NULL, *json = NULL;
    (void)state;

    assert_non_null(mkdtemp(dir));
    disk = at("disk");
    other = at("other");
    link = at("link");
    json = xprintf("json:{\"driver\": \"file\", \"filename\": \"%s\", \"x\": 1}", disk);
    make("disk");
    make("other");
    assert_int_equal(symlink("disk", link), 0);
    int fd = open(disk, O_RDONLY | O_CLOEXEC);
    assert_true(fd >= 0);
    refused(disk, 0);
    refused(link, 0);
    refused("disk", 0); /* of its folder */
    refused("./disk", 0);
    assert_int_equal(check(getpid(), "file", json, "d", false), 0);
    refused(other, -ESTALE);
    assert_int_equal(unlink(link), 0);
    assert_int_equal(symlink("other", link), 0);
    refused(link, -ESTALE);
    assert_int_equal(rename(other, disk), 0);
    refused(disk, -ESTALE);
    refused("disk", -ESTALE);
    assert_int_equal(check(getpid(), "file", json, "d", false), -ESTALE);
    assert_int_equal(check(getpid(), "host_device", "/dev/full", "d", false), -ESTALE);
    /* firmware goes with the guest's memory; not what is written to it */
    assert_int_equal(check(getpid(), "file", disk, "pflash0", true), 0);
    assert_int_equal(check(getpid(), "file", disk, "pflash1", false), -ESTALE);
    /* these have no file of a name */
    assert_int_equal(check(getpid(), "nbd", disk, "d", false), 0);
    assert_int_equal(check(getpid(), "file", "/dev/fdset/1", "d", false), 0);
    int full = open("/dev/full", O_RDONLY | O_CLOEXEC);
    assert_int_equal(check(getpid(), "host_device", "/dev/full", "d", false), 0);
    close(full);
    assert_int_equal(unlink(disk), 0);
    refused(disk, 0); /* nobody can open it */
    close(fd);
}

/* What a machine elsewhere opens by its name */
static void test_files(void **state)
{
    (void)state;
    FF_AUTO_JSON json_t *nodes = json_pack("[{ss ss} {ss ss} {ss ss} {ss ss} {ss ss}]", "drv", "file", "file", "a.img",
                                           "drv", "file", "file", "a.img", "drv", "qcow2", "file", "a.img", "drv",
                                           "file", "file", "/nonexistent/vl.X1", "drv", "file", "file", "vars.fd");
    FF_AUTO_JSON json_t *block = json_pack("[{ss s{ss sb}}]", "device", "pflash1", "inserted", "file", "vars.fd", "ro", 0);
    FF_AUTO_JSON json_t *files = disks_files("/cwd", block, nodes), *want = json_pack("[s]", "/cwd/a.img");

    assert_true(json_equal(files, want));
}

/* Whether it has that file is not known */
static void test_unseen(void **state)
{
    (void)state;
    make("disk");
    FF_AUTO_FREE char *disk = at("disk");
    pid_t none = fork();
    if (!none)
        _exit(0);
    assert_int_equal(waitpid(none, NULL, 0), none);
    assert_int_equal(check(none, "file", disk, "d", false), -ENOENT);
    assert_non_null(strstr(why.text, "cannot be seen"));
    unlink(disk);
    rmdir(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_names),
        cmocka_unit_test(test_files),
        cmocka_unit_test(test_unseen),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
