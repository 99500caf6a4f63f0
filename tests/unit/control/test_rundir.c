/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * test_rundir.c - run directories, state files, processes that are still the same, lines of JSON
 */
#include "unit.h"

#include <fcntl.h>
#include <limits.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include "autojson.h"
#include "jsonl.h"
#include "ps.h"
#include "rundir.h"

static char base[] = "/tmp/ff-rundir-XXXXXX";
static struct ff_error why;

static int make_base(void **state)
{
    (void)state;
    return mkdtemp(base) ? 0 : -1;
}

static int remove_base(void **state)
{
    (void)state;
    return rmdir(base); /* fails if a test left something behind */
}

static void count(void *opaque, const char *dir, json_t *state)
{
    assert_non_null(dir);
    assert_int_equal(json_integer_value(json_object_get(state, "n")), 1);
    ++*(int *)opaque;
}

/* Another machine may have the folder, and the name of this one; no process outlives a boot */
static void test_boot(void **state)
{
    (void)state;
    json_t *s = json_pack("{ss si s[{si}]}", "machine", "another", "start", 7, "children", "start", 8);

    assert_false(rundir_is_of_here(s));
    json_object_del(s, "machine");
    assert_true(rundir_is_of_here(s));
    assert_int_equal(json_integer_value(json_object_get(s, "start")), 7);
    json_object_set_new(s, "boot", json_string("another"));
    assert_true(rundir_is_of_here(s));
    json_t *k = json_array_get(json_object_get(s, "children"), 0);
    assert_int_equal(json_integer_value(json_object_get(s, "start")), 0);
    assert_int_equal(json_integer_value(json_object_get(k, "start")), 0);
    assert_int_equal(rundir_look(s, "agent"), PROCESS_GONE);
    json_decref(s);
}

/* A pid of another PID namespace says nothing here, in whichever boot that was; what is known to have ended has */
static void test_namespace(void **state)
{
    json_t *s = json_pack("{ss ss si si s[{si si}{si si}]}", "pid-namespace", "pid:[1]", "boot", "another", "agent",
                          INT_MAX, "start", 7, "children", "pid", INT_MAX, "start", 8, "pid", INT_MAX, "start", 0);
    const json_t *children = json_object_get(s, "children");
    (void)state;

    assert_int_equal(rundir_look(s, "agent"), PROCESS_GONE); /* of this namespace it would be */
    assert_true(rundir_is_of_here(s));
    assert_int_equal(rundir_look(s, "agent"), PROCESS_UNKNOWN);
    assert_int_equal(rundir_look(json_array_get(children, 0), "pid"), PROCESS_UNKNOWN);
    assert_int_equal(rundir_look(json_array_get(children, 1), "pid"), PROCESS_GONE);
    json_decref(s);
}

/* No descriptor is left for /proc: what cannot be read has not ended */
static void test_unreadable(void **state)
{
    struct rlimit all, none;
    uint64_t own = process_start_time(getpid());
    (void)state;

    assert_int_equal(getrlimit(RLIMIT_NOFILE, &all), 0);
    none = (struct rlimit){.rlim_max = all.rlim_max};
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &none), 0);
    uint64_t start = process_start_time(getpid());
    enum process_state here = process_look(getpid(), own), none_there = process_look(INT_MAX, own);
    double age = process_age_s(getpid());
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &all), 0);
    assert_true(start == START_UNKNOWN && age == 0);
    assert_int_equal(here, PROCESS_UNKNOWN);
    assert_int_equal(none_there, PROCESS_GONE); /* the kernel says so without */
    assert_int_equal(process_look(getpid(), START_UNKNOWN), PROCESS_UNKNOWN);
    assert_int_equal(process_look(getpid(), own), PROCESS_ALIVE);
}

/* It is shown once: by its run directory, or, without that, by what outlasts a boot */
static void test_lasting(void **state)
{
    char *lasting, *a = NULL, *b = NULL;
    json_t *s = json_pack("{si}", "n", 1);
    int n = 0;
    (void)state;

    assert_null(rundir_lasting_base(base)); /* a folder that was named */
    assert_int_equal(rundir_make_lasting(base, "f", "n", &b, &why), 0);
    assert_null(b);
    assert_true(asprintf(&lasting, "%s-lasting", base) > 0);
    setenv("FARFORK_STATEDIR", lasting, 1);
    assert_int_equal(rundir_make(base, "f", "n", &a, &why), 0);
    assert_int_equal(rundir_make_lasting(base, "f", "n", &b, &why), 0);
    assert_int_equal(rundir_make_lasting(base, "f", "n", &b, &why), -EEXIST);
    assert_int_equal(rundir_write_state(a, s), 0);
    assert_int_equal(rundir_write_state(b, s), 0);
    assert_int_equal(rundir_sync_state(b), 0);
    rundir_each(base, NULL, count, &n);
    assert_int_equal(n, 1);
    rundir_remove(a);
    rundir_each(base, NULL, count, &n);
    assert_int_equal(n, 2);
    rundir_remove(b);
    assert_int_equal(rmdir(lasting), 0);
    unsetenv("FARFORK_STATEDIR");
    json_decref(s);
    free(lasting);
    free(a);
    free(b);
}

/* What has no folder beside run directories; a variable that is empty is as if it were not set */
static void test_lasting_base(void **state)
{
    char *named, *made;
    bool is_root = !geteuid();
    struct stat st;
    (void)state;

    assert_true(asprintf(&named, "%s-a/b/c", base) > 0);
    setenv("FARFORK_STATEDIR", named, 1);
    made = rundir_make_lasting_base(NULL);
    assert_string_equal(made, named);
    assert_int_equal(stat(made, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0700);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(rmdir(named), 0);
        *strrchr(named, '/') = '\0';
    }
    free(made);
    free(named);
    unsetenv("FARFORK_STATEDIR");
    if (is_root) /* it has a folder that needs neither */
        assert_int_equal(seteuid(12345), 0);
    setenv("HOME", "/some/home", 1);
    setenv("XDG_STATE_HOME", "", 1);
    made = rundir_lasting_base(NULL);
    assert_string_equal(made, "/some/home/.local/state/farfork");
    free(made);
    setenv("XDG_STATE_HOME", "/some/state", 1);
    made = rundir_lasting_base(NULL);
    assert_string_equal(made, "/some/state/farfork");
    free(made);
    unsetenv("XDG_STATE_HOME");
    unsetenv("HOME");
    assert_null(rundir_make_lasting_base(NULL));
    if (is_root)
        assert_int_equal(seteuid(0), 0);
}

static void test_directory(void **state)
{
    char *a = NULL, *b = NULL, *again = NULL;
    struct stat st;
    int n = 0;
    (void)state;

    assert_int_equal(rundir_make(base, "f1", "n1", &a, &why), 0);
    assert_int_equal(rundir_make(base, "f1", "n2", &b, &why), 0);
    assert_int_equal(stat(a, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0700);
    assert_int_equal(rundir_make(base, "f1", "n1", &again, &why), -EEXIST);
    assert_non_null(strstr(why.text, "vmclone --kill f1"));
    assert_null(again);

    json_t *s = json_pack("{si}", "n", 1);
    assert_int_equal(rundir_write_state(a, s), 0);
    assert_int_equal(rundir_write_state(a, s), 0);
    assert_int_equal(rundir_write_state("/no-such-folder", s), -ENOENT);
    json_t *back = rundir_read_state(a);
    assert_true(rundir_is_of_here(back));
    json_object_set_new(s, "of", json_string("another host"));
    assert_false(rundir_is_of_here(s));
    static const char *const own[] = {"of", "machine", "boot", "pid-namespace"};
    for (size_t i = 0; i < FF_ARRAY_LEN(own); i++) {
        assert_non_null(json_object_get(back, own[i]));
        json_object_del(back, own[i]);
        json_object_del(s, own[i]);
    }
    assert_true(json_equal(s, back));
    assert_null(rundir_read_state(b));
    rundir_each(base, NULL, count, &n);
    assert_int_equal(n, 1);
    rundir_each(base, "f2", count, &n);
    assert_int_equal(n, 1);
    assert_int_equal(chmod(base, 0777), 0); /* anybody could say whom to kill */
    rundir_each(base, NULL, count, &n);
    assert_int_equal(chmod(base, 0700), 0);
    assert_int_equal(n, 1);
    json_decref(s);
    json_decref(back);

    rundir_remove(a);
    assert_int_equal(stat(b, &st), 0);
    rundir_remove(b);
    FF_AUTO_FREE char *fork_dir = xprintf("%s/f1", base);
    assert_int_equal(stat(fork_dir, &st), -1);
    free(a);
    free(b);
}

/* Nobody's trap is walked into */
static void test_refused(void **state)
{
    FF_AUTO_FREE char *open_dir = xprintf("%s/open", base), *link = xprintf("%s/link", base);
    char *out = NULL;
    (void)state;

    assert_int_equal(mkdir(open_dir, 0700), 0);
    assert_int_equal(chmod(open_dir, 0777), 0);
    assert_int_equal(symlink("/tmp", link), 0);
    assert_int_equal(rundir_make(base, "open", "n", &out, &why), -EPERM);
    assert_int_equal(rundir_make(base, "link", "n", &out, &why), -EPERM);
    assert_int_equal(rundir_make("relative", "f", "n", &out, &why), -ENAMETOOLONG);
    assert_int_equal(rundir_make("/a,b", "f", "n", &out, &why), -ENAMETOOLONG);
    rmdir(open_dir);
    unlink(link);
    assert_true(rundir_name_valid("vm1-3f.a_b"));
    assert_false(rundir_name_valid("../x"));
    assert_false(rundir_name_valid(".x"));
    assert_false(rundir_name_valid(""));
    assert_false(rundir_name_valid("a/b"));
    FF_AUTO_FREE char *made = rundir_name_from("root@[fd08::1]");
    assert_true(rundir_name_valid(made));
}

/* Another user was first in /tmp: nothing there is used or believed, and what to do is said */
static void test_squatted(void **state)
{
    FF_AUTO_FREE char *dir = xprintf("%s/base", base), *fork_dir = xprintf("%s/f", dir);
    FF_AUTO_FREE char *node_dir = xprintf("%s/n", fork_dir);
    json_t *s = json_pack("{si}", "n", 1), *hosts = json_pack("[s]", "h");
    char *out = NULL;
    int n = 0, lock;
    (void)state;

    if (geteuid())
        skip();
    assert_int_equal(mkdir(dir, 0700), 0);
    assert_int_equal(rundir_make(dir, "f", "n", &out, &why), 0);
    assert_int_equal(rundir_write_state(out, s), 0);
    assert_int_equal(rundir_write_hosts(dir, "f", hosts, &why), 0);
    rundir_each(dir, NULL, count, &n);
    assert_int_equal(n, 1);
    assert_int_equal(chown(dir, 12345, 12345), 0);
    assert_int_equal(rundir_make(dir, "g", "n", &out, &why), -EPERM);
    assert_non_null(strstr(why.text, "--rundir or FARFORK_RUNDIR"));
    assert_int_equal(rundir_write_hosts(dir, "f", hosts, &why), -EPERM);
    assert_null(rundir_read_hosts(dir, "f"));
    assert_int_equal(rundir_lock(dir, 0, &lock, &why), 0);
    assert_int_equal(lock, -1);
    rundir_each(dir, NULL, count, &n);
    assert_int_equal(n, 1);
    assert_int_equal(chown(dir, 0, 0), 0);
    assert_int_equal(rundir_write_hosts(dir, "f", NULL, &why), 0);
    rundir_remove(out);
    FF_AUTO_FREE char *records = xprintf("%s/" RECORDS_FOLDER, dir);
    assert_int_equal(rmdir(records), 0);
    assert_int_equal(rmdir(dir), 0);
    free(out);
    json_decref(s);
    json_decref(hosts);
}

static void see_unfinished(void *opaque, const char *dir, json_t *state)
{
    (void)dir;
    *(int *)opaque += json_object_get(state, "unfinished") ? 1 : 100;
}

/* What a confined child may have written, as this user, beside its own state: no command is taken from
 * it, nor the name of a file to be removed, and no folder is emptied that it has put a link to */
static void test_confined_wrote(void **state)
{
    FF_AUTO_FREE char *fork_dir = xprintf("%s/f", base), *path = xprintf("%s/" HOSTS_FILE, fork_dir);
    FF_AUTO_FREE char *records = xprintf("%s/" RECORDS_FOLDER, base), *kept = xprintf("%s/kept", base);
    FF_AUTO_FREE char *file = xprintf("%s/n/file", kept), *kept_dir = xprintf("%s/n", kept);
    FF_AUTO_FREE char *link = xprintf("%s/n2", fork_dir), *fork_link = xprintf("%s/g", base);
    FF_AUTO_FREE char *through = xprintf("%s/n", fork_link);
    json_t *hosts = json_pack("[s]", "h"), *s = json_pack("{s[s]}", "unfinished", "/some/file");
    char *dir = NULL, *record = NULL;
    int n = 0;
    (void)state;

    assert_int_equal(rundir_make(base, "f", "n", &dir, &why), 0);
    assert_int_equal(json_dump_file(hosts, path, 0), 0);
    assert_null(rundir_read_hosts(base, "f"));
    FF_AUTO_JSON json_t *ids = rundir_recorded(base);
    assert_int_equal(json_array_size(ids), 0);
    assert_int_equal(rundir_write_hosts(base, "f", hosts, &why), 0);
    FF_AUTO_JSON json_t *back = rundir_read_hosts(base, "f"), *more = rundir_recorded(base);
    assert_true(json_equal(back, hosts));
    assert_string_equal(json_string_value(json_array_get(more, 0)), "f");
    assert_int_equal(chmod(records, 0777), 0);
    assert_null(rundir_read_hosts(base, "f"));
    assert_int_equal(chmod(records, 0700), 0);
    assert_int_equal(rundir_write_hosts(base, "f", NULL, &why), 0);
    unlink(path);

    assert_int_equal(rundir_write_state(dir, s), 0);
    rundir_each(base, NULL, see_unfinished, &n);
    assert_int_equal(n, 100);
    assert_int_equal(rundir_make_record(base, "f", "_new", &record, &why), 0);
    assert_int_equal(rundir_write_state(record, s), 0);
    n = 0;
    rundir_each(base, "f", see_unfinished, &n);
    assert_int_equal(n, 101);
    rundir_remove(record);
    assert_int_equal(rmdir(records), 0);

    assert_int_equal(mkdir(kept, 0700), 0);
    assert_int_equal(mkdir(kept_dir, 0700), 0);
    assert_int_equal(json_dump_file(hosts, file, 0), 0);
    assert_int_equal(symlink(kept_dir, link), 0);
    assert_int_equal(symlink(kept, fork_link), 0);
    rundir_remove(link);
    rundir_remove(through);
    assert_int_equal(access(file, F_OK), 0);
    unlink(fork_link);
    unlink(link);
    rundir_remove(kept_dir);
    rundir_remove(dir);
    json_decref(hosts);
    json_decref(s);
    free(record);
    free(dir);
}

/* One that is held has a limit; one that others can hold is none */
static void test_lock(void **state)
{
    FF_AUTO_FREE char *dir = xprintf("%s/base", base);
    json_t *hosts = json_pack("[s]", "h");
    char *out = NULL;
    int lock, other;
    (void)state;

    assert_int_equal(rundir_lock(dir, 0, &lock, &why), 0); /* there is nothing to lock */
    assert_int_equal(lock, -1);
    assert_int_equal(mkdir(dir, 0700), 0);
    assert_int_equal(rundir_lock(dir, 0, &lock, &why), 0);
    assert_true(lock >= 0);
    alarm(60); /* without a limit it waits for this process */
    assert_int_equal(rundir_lock(dir, 50, &other, &why), -EBUSY);
    alarm(0);
    assert_int_equal(other, -1);
    assert_non_null(strstr(why.text, dir));
    assert_non_null(strstr(why.text, "fuser"));
    rundir_unlock(lock);
    rundir_unlock(other);
    assert_int_equal(rundir_lock(dir, 0, &lock, &why), 0);
    rundir_unlock(lock);

    static const mode_t modes[] = {0755, 0740, 0704};
    for (size_t i = 0; i < FF_ARRAY_LEN(modes); i++) {
        assert_int_equal(chmod(dir, modes[i]), 0);
        assert_int_equal(rundir_lock(dir, 0, &lock, &why), -EPERM);
        assert_int_equal(lock, -1);
        assert_int_equal(rundir_make(dir, "f", "n", &out, &why), -EPERM);
        assert_non_null(strstr(why.text, "chmod 700"));
        assert_int_equal(rundir_write_hosts(dir, "f", hosts, &why), -EPERM);
    }
    assert_int_equal(chmod(dir, 0711), 0); /* nobody else can open it */
    assert_int_equal(rundir_make(dir, "f", "n", &out, &why), 0);
    rundir_remove(out);
    free(out);
    assert_int_equal(rmdir(dir), 0);
    json_decref(hosts);
}

/* A folder that cannot be read is not one without that file */
static void test_left(void **state)
{
    FF_AUTO_FREE char *file = xprintf("%s/left", base), *below = xprintf("%s/left/file", base);
    FF_AUTO_FREE char *none = xprintf("%s/none/file", base);
    (void)state;

    assert_int_equal(rundir_was_left(NULL), LEFT_NO);
    assert_int_equal(rundir_was_left(""), LEFT_NO);
    assert_int_equal(rundir_was_left(file), LEFT_NO);
    assert_int_equal(rundir_was_left(none), LEFT_NO);
    assert_int_equal(symlink("left", file), 0);
    assert_int_equal(rundir_was_left(file), LEFT_YES);
    assert_int_equal(rundir_was_left(below), LEFT_UNKNOWN); /* a circle; for another user a folder of mode 0 */
    unlink(file);
    json_t *k = json_pack("{s[{sisisssssssi}]}", "children", "number", 1, "pid", 1, "until_go", none, "shut_down_file",
                          below, "state", "attached", "start", 0);
    char *dir = NULL;
    json_object_set_new(k, "id", json_string("f"));
    assert_int_equal(rundir_make(base, "f", "n", &dir, &why), 0);
    assert_int_equal(symlink("left", file), 0);
    assert_int_equal(rundir_write_state(dir, k), 0);
    FF_AUTO_JSON json_t *forks = ps_forks(base);
    const json_t *child = json_array_get(json_object_get(json_array_get(forks, 0), "children"), 0);
    assert_string_equal(text_of(child, "state"), "unknown");
    unlink(file);
    rundir_remove(dir);
    free(dir);
    json_decref(k);
}

static void test_process(void **state)
{
    uint64_t own = process_start_time(getpid());
    (void)state;

    assert_true(own > 0);
    assert_true(process_is(getpid(), own));
    assert_false(process_is(getpid(), own + 1));
    pid_t pid = fork();
    if (!pid)
        _exit(0);
    siginfo_t info;
    assert_int_equal(waitid(P_PID, (id_t)pid, &info, WEXITED | WNOWAIT), 0);
    assert_int_equal(process_start_time(pid),
                     0); /* it has ended, though nobody has waited for it */
    assert_int_equal(waitpid(pid, NULL, 0), pid);
    assert_int_equal(process_start_time(pid), 0);
}

static void test_lines(void **state)
{
    struct jsonl_reader r = {0};
    int p[2];
    (void)state;

    assert_int_equal(pipe2(p, O_NONBLOCK), 0);
    assert_int_equal(jsonl_write(p[1], "one\r\ntw", 7, 100), 0);
    assert_int_equal(jsonl_read(&r, p[0]), 0);
    assert_string_equal(jsonl_next(&r), "one");
    assert_null(jsonl_next(&r));
    assert_int_equal(jsonl_write(p[1], "o\n\nrest", 7, 100), 0);
    assert_int_equal(jsonl_read(&r, p[0]), 0);
    assert_string_equal(jsonl_next(&r), "two");
    assert_string_equal(jsonl_next(&r), "");
    assert_null(jsonl_next(&r));
    while (write(p[1], "x", 1) == 1) /* a reader that does not read */
        ;
    assert_int_equal(jsonl_write(p[1], "more", 4, 50), -ETIMEDOUT);
    close(p[1]);
    assert_int_equal(jsonl_read(&r, p[0]), 0);
    while (!r.ended)
        assert_int_equal(jsonl_read(&r, p[0]), 0);
    assert_int_equal(strncmp(jsonl_next(&r), "restxxx", 7), 0);
    assert_null(jsonl_next(&r));
    jsonl_free(&r);
    signal(SIGPIPE, SIG_IGN);
    close(p[0]);
}

/* A text of its own length, the number at both ends */
static json_t *numbered(int n)
{
    FF_AUTO_FREE char *text = xprintf("%0*d", 1 + n * 7919 % 9000, 0);

    return json_pack("{si ss si}", "n", n, "text", text, "again", n);
}

/* Both files of the state are used in turn, and a reader sees one state as a whole */
static void test_state_whole(void **state)
{
    char *dir = NULL;
    int last = 0, seen = 0;
    (void)state;

    assert_int_equal(rundir_make(base, "f", "n", &dir, &why), 0);
    assert_int_equal(rundir_reserve_state(dir, 16384, &why), 0);
    assert_null(rundir_read_state(dir)); /* nothing is written yet */
    json_t *first = numbered(0);
    assert_int_equal(rundir_write_state(dir, first), 0);
    json_decref(first);
    pid_t pid = fork();
    for (int n = 1; !pid && n <= 3000; n++) {
        json_t *s = numbered(n);
        if (rundir_write_state(dir, s))
            _exit(1);
        json_decref(s);
    }
    if (!pid)
        _exit(0);
    while (last < 3000) {
        json_t *s = rundir_read_state(dir);
        assert_non_null(s);
        int n = (int)json_integer_value(json_object_get(s, "n"));
        assert_int_equal(json_integer_value(json_object_get(s, "again")), n);
        assert_int_equal(json_string_length(json_object_get(s, "text")), 1 + n * 7919 % 9000);
        assert_true(n >= last);
        seen += n > last;
        last = n;
        json_decref(s);
    }
    assert_true(seen > 1);
    assert_int_equal(waitpid(pid, NULL, 0), pid);
    rundir_remove(dir);
    free(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_directory), cmocka_unit_test(test_boot),
                                       cmocka_unit_test(test_namespace), cmocka_unit_test(test_unreadable),
        cmocka_unit_test(test_lasting),
                                       cmocka_unit_test(test_state_whole),
                                       cmocka_unit_test(test_refused),
                                       cmocka_unit_test(test_squatted),
        cmocka_unit_test(test_confined_wrote),
                                       cmocka_unit_test(test_lock),
                                       cmocka_unit_test(test_left), cmocka_unit_test(test_process),
                                       cmocka_unit_test(test_lines),
                                       cmocka_unit_test(test_lasting_base)};
    return cmocka_run_group_tests(tests, make_base, remove_base);
}
