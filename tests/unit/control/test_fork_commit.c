/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * test_fork_commit.c - a commit back into the parent's image: who must not have it, and when it is
 * given up
 */
#include "unit.h"

#include <endian.h>
#include <fcntl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>

#include "autojson.h"
#include "fork_disks.h"
#include "qcow2_header.h"
#include "overlay_records.h"
#include "rundir.h"

#define LIMIT_MS 1000

static char base[] = "/tmp/ff-commit-XXXXXX";
static char image[64], overlay[64], socket_path[64], asked[64];
static struct ff_error why;

static int set_up(void **state)
{
    (void)state;
    alarm(90); /* a commit without a limit has no end */
    assert_non_null(mkdtemp(base));
    snprintf(image, sizeof(image), "%s/image", base);
    snprintf(overlay, sizeof(overlay), "%s/overlay", base);
    snprintf(socket_path, sizeof(socket_path), "%s/qmp", base);
    snprintf(asked, sizeof(asked), "%s/asked", base);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    unlink(image);
    unlink(overlay);
    unlink(socket_path);
    unlink(asked);
    assert_int_equal(rmdir(base), 0);
    strcpy(base, "/tmp/ff-commit-XXXXXX");
    return 0;
}

static json_t *overlay_of(void)
{
    return json_pack("{ss ss ss ss ss}", "disk", "d", "node", "n", "frozen", image, "overlay-node",
                     "o", "overlay", overlay);
}

/* --- who has the image --- */

/* A file that begins as qcow2 does, with @behind as the name of its backing file */
static void make_overlay(const char *path, const char *behind)
{
    uint32_t h[18] = {htobe32(0x514649fb), htobe32(3), 0, htobe32(sizeof(h)),
                      htobe32((uint32_t)strlen(behind))};
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);

    assert_int_equal(write(fd, h, sizeof(h)), sizeof(h));
    assert_int_equal(write(fd, behind, strlen(behind)), strlen(behind));
    close(fd);
}

static void want_behind(const char *path, const char *want)
{
    FF_AUTO_FREE char *got = overlay_backing(path);

    if (want)
        assert_string_equal(got, want);
    else
        assert_null(got);
}

static void test_backing(void **state)
{
    (void)state;

    make_overlay(overlay, image);
    want_behind(overlay, image);
    make_overlay(overlay, "image"); /* relative to where the overlay is */
    want_behind(overlay, image);
    assert_int_equal(truncate(overlay, 75), 0);
    want_behind(overlay, NULL);
    make_overlay(overlay, "");
    want_behind(overlay, NULL);
    unlink(overlay);
    want_behind(overlay, NULL);
}

static void test_alone(void **state)
{
    FF_AUTO_JSON json_t *o = overlay_of(), *s = json_pack("{ss ss s[]}", "id", "f", "node", "n",
                                                       "children");
    FF_AUTO_FREE char *dir = NULL, *child = xprintf("%s/child", base);
    FF_AUTO_JSON json_t *files = json_pack("[s]", child), *own = json_pack("[s]", overlay);
    (void)state;

    close(open(image, O_WRONLY | O_CREAT, 0600));
    make_overlay(overlay, image);
    int fd = open(image, O_RDONLY | O_CLOEXEC);
    assert_int_equal(overlay_commit_check(o, base, getpid(), &why),
                     0); /* the parent has it, of course */
    assert_int_equal(overlay_commit_check(o, base, getppid(), &why), -EBUSY);
    FF_AUTO_FREE char *pid = xprintf("process %d ", (int)getpid());
    assert_non_null(strstr(why.text, pid));

    /* a descriptor does not name the link by which the parent has it */
    FF_AUTO_FREE char *real = xprintf("%s/real", base);
    assert_false(rename(image, real) || symlink(real, image));
    assert_int_equal(overlay_commit_check(o, base, getppid(), &why), -EBUSY);
    close(fd);
    assert_int_equal(overlay_commit_check(o, base, getppid(), &why), 0);
    assert_false(rename(real, image));

    /* one that has nothing open yet, or not on this host */
    assert_int_equal(rundir_make(base, "f", "n", &dir, &why), 0);
    assert_int_equal(rundir_write_state(dir, s), 0);
    assert_int_equal(overlay_records_add(dir, 1, own, &why), 0); /* the parent is a child itself */
    assert_int_equal(overlay_commit_check(o, base, getpid(), &why), 0);
    assert_int_equal(overlay_records_add(dir, 2, files, &why), 0);
    assert_int_equal(overlay_commit_check(o, base, getpid(), &why), 0);
    make_overlay(child, image);
    assert_int_equal(overlay_commit_check(o, base, getpid(), &why), -EBUSY);
    assert_non_null(strstr(why.text, "child 2 of fork f"));
    make_overlay(child, overlay);
    assert_int_equal(overlay_commit_check(o, base, getpid(), &why), 0);
    unlink(child);
    rundir_remove(dir);
}

/* --- a parent, played by a process of its own --- */

static void answer(int fd, const json_t *id, const char *what)
{
    FF_AUTO_FREE char *line = xprintf("{\"return\": %s, \"id\": %d}\n", what,
                                   (int)json_integer_value(id));
    (void)!write(fd, line, strlen(line));
}

/* Its job has 3 steps to do, and does one whenever it is asked, or none. @mute: it says nothing of
 * it */
static void play(int fd, bool stuck, bool mute)
{
    static const char greeting[] = "{\"QMP\": {}}\n";
    const char *status = "running";
    FILE *in = fdopen(fd, "r"), *log = fopen(asked, "we");
    char *line = NULL;
    size_t room = 0;
    int left = 3;

    (void)!write(fd, greeting, strlen(greeting));
    while (getline(&line, &room, in) > 0) {
        FF_AUTO_JSON json_t *m = json_loads(line, 0, NULL);
        const json_t *id = json_object_get(m, "id");
        const char *name = json_string_value(json_object_get(m, "execute"));
        fprintf(log, "%s ", name);
        fflush(log);
        if (!strcmp(name, "query-jobs")) {
            FF_AUTO_FREE char *jobs = xprintf("[{\"id\": \"o-back\", \"status\": \"%s\", \"total-progress\": 3, "
                                           "\"current-progress\": %d}]", status, 3 - left);
            if (!mute)
                answer(fd, id, jobs);
            left -= !stuck && left;
            if (!left && !strcmp(status, "running"))
                status = "ready";
            continue;
        }
        answer(fd, id, "{}");
        if (!strcmp(name, "block-job-cancel") || !strcmp(name, "job-complete"))
            status = "concluded";
    }
    _exit(0);
}

/* *@said: the commands that it was asked, with a space after each */
static int commit(bool stuck, bool mute, char **said)
{
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    FF_AUTO_JSON json_t *o = overlay_of();
    struct qmp *q;
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0), status;

    unlink(socket_path);
    strcpy(a.sun_path, socket_path);
    assert_false(bind(fd, (struct sockaddr *)&a, sizeof(a)) || listen(fd, 1));
    close(open(overlay, O_WRONLY | O_CREAT, 0600));
    pid_t pid = fork();
    if (!pid)
        play(accept(fd, NULL, NULL), stuck, mute);
    close(fd);
    assert_int_equal(qmp_connect(socket_path, -1, 30000, &q, &why), 0);
    if (mute)
        qmp_limit(q, 2000);
    int rc = overlay_commit(q, o, LIMIT_MS, &why);
    qmp_free(q);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    FILE *f = fopen(asked, "re");
    *said = xcalloc(4000, 1);
    assert_non_null(fgets(*said, 4000, f));
    fclose(f);
    return rc;
}

/* Each step is one in time, however long all of them take */
static void test_commit(void **state)
{
    FF_AUTO_FREE char *said = NULL;
    (void)state;

    assert_int_equal(commit(false, false, &said), 0);
    assert_non_null(strstr(said, "block-commit query-jobs "));
    assert_non_null(strstr(said, "job-complete query-jobs job-dismiss blockdev-del "));
    assert_null(strstr(said, "cancel"));
    assert_int_equal(access(overlay, F_OK), -1);
}

/* The parent goes on in its overlay, without a job that would end later */
static void want_given_up(bool mute)
{
    FF_AUTO_FREE char *said = NULL;

    assert_int_equal(commit(true, mute, &said), -ETIMEDOUT);
    assert_non_null(strstr(why.text, mute ? "query-jobs" : "made no progress for 1 s"));
    assert_non_null(strstr(said, "block-job-cancel "));
    assert_null(strstr(said, "job-complete "));
    assert_null(strstr(said, "blockdev-del "));
    assert_int_equal(access(overlay, F_OK), 0);
}

static void test_stuck(void **state)
{
    (void)state;
    want_given_up(false);
}

static void test_mute(void **state)
{
    (void)state;
    want_given_up(true);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_backing, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_alone, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_commit, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_stuck, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_mute, set_up, tear_down)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
