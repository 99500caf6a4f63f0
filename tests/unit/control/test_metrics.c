/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * test_metrics.c - metrics as text and back, and files that several programs add to
 */
#include "unit.h"

#include <fcntl.h>
#include <math.h>
#include <sys/file.h>
#include <sys/stat.h>

#include "metrics_text.h"
#include "xalloc.h"

#define WRITERS 3
#define ROUNDS 1000

static char dir[] = "/tmp/ff-metrics-XXXXXX";
static struct ff_error why;

static char *in_dir(const char *name)
{
    return xprintf("%s/%s", dir, name);
}

static int make_dir(void **state)
{
    (void)state;
    strcpy(dir, "/tmp/ff-metrics-XXXXXX");
    return mkdtemp(dir) ? 0 : -1;
}

static int remove_dir(void **state)
{
    static const char *const names[] = {METRICS_FILE, METRICS_FILE_OPENMETRICS,
                                        METRICS_FILE ".damaged", "stderr"};
    (void)state;

    for (size_t i = 0; i < FF_ARRAY_LEN(names); i++) {
        FF_AUTO_FREE char *path = in_dir(names[i]);
        unlink(path);
    }
    return rmdir(dir); /* fails if something else is left */
}

static char *read_text(const char *name)
{
    FF_AUTO_FREE char *path = in_dir(name);
    char *text = xcalloc(1, 1 << 20);
    int fd = open(path, O_RDONLY);

    if (fd >= 0 && read(fd, text, (1 << 20) - 1) < 0)
        fail_msg("read %s", path);
    if (fd >= 0)
        close(fd);
    return text;
}

static void write_text(const char *name, const char *text)
{
    FF_AUTO_FREE char *path = in_dir(name);
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0644);

    assert_int_equal(write(fd, text, strlen(text)), strlen(text));
    close(fd);
}

/* metrics_write(), with what it says on standard error in the file "stderr" */
static int write_heard(struct metrics *m, int limit_ms)
{
    FF_AUTO_FREE char *path = in_dir("stderr");
    int was = dup(2), fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);

    assert_true(was >= 0 && fd >= 0);
    dup2(fd, 2);
    int rc = metrics_write(m, limit_ms);
    dup2(was, 2);
    close(was);
    close(fd);
    return rc;
}

static bool was_said(const char *words)
{
    FF_AUTO_FREE char *text = read_text("stderr");

    return strstr(text, words) != NULL;
}

/* The value of the one line that begins so */
static double sample(const char *head)
{
    FF_AUTO_FREE char *text = read_text(METRICS_FILE), *line = xprintf("\n%s ", head);
    char *at = strstr(text, line);

    return at ? strtod(at + strlen(line), NULL) : -1;
}

static void add_one(struct metrics *m)
{
    metrics_put(m, METRIC_FORK_STARTED, 1, NULL);
}

#define STARTED "farfork_fork_started_total"

/* --- text --- */

static void gather(struct series_list *list, enum metric metric, double value, ...)
{
    va_list pairs;

    va_start(pairs, value);
    struct series s = series_of(metric, value, series_labels(pairs));
    va_end(pairs);
    series_merge(list, &s);
    free(s.labels);
}

static void test_formats(void **state)
{
    struct series_list list = {0};
    size_t len;
    (void)state;

    gather(&list, METRIC_FORK_PAUSE, 0.003, NULL);
    gather(&list, METRIC_FORK_PAUSE, 10, NULL);
    gather(&list, METRIC_FORK_PAUSE, 11.5, NULL);
    gather(&list, METRIC_MIGRATION_BYTES, 4096, "side", "source", "via", "attach", NULL);
    gather(&list, METRIC_MIGRATION_BYTES, 8192, "side", "source", "via", "attach", NULL);
    gather(&list, METRIC_MIGRATION_LAST_TOTAL, 7, NULL);
    gather(&list, METRIC_MIGRATION_LAST_TOTAL, 5, NULL); /* a gauge: the last one */
    FF_AUTO_FREE char *prom = series_print(&list, false, &len);
    assert_int_equal(len, strlen(prom));
    assert_string_equal(
        prom,
        "# HELP farfork_migration_processed_bytes_total Guest memory that moves brought.\n"
        "# TYPE farfork_migration_processed_bytes_total counter\n"
        "# UNIT farfork_migration_processed_bytes_total bytes\n"
        "farfork_migration_processed_bytes_total{side=\"source\",via=\"attach\"} 12288\n"
        "# HELP farfork_migration_data_total_bytes Guest memory of the last move.\n"
        "# TYPE farfork_migration_data_total_bytes gauge\n"
        "# UNIT farfork_migration_data_total_bytes bytes\n"
        "farfork_migration_data_total_bytes 5\n"
        "# HELP farfork_fork_pause_seconds How long a parent stood still.\n"
        "# TYPE farfork_fork_pause_seconds histogram\n"
        "# UNIT farfork_fork_pause_seconds seconds\n"
        "farfork_fork_pause_seconds_bucket{le=\"0.001\"} 0\n"
        "farfork_fork_pause_seconds_bucket{le=\"0.0025\"} 0\n"
        "farfork_fork_pause_seconds_bucket{le=\"0.005\"} 1\n"
        "farfork_fork_pause_seconds_bucket{le=\"0.01\"} 1\n"
        "farfork_fork_pause_seconds_bucket{le=\"0.025\"} 1\n"
        "farfork_fork_pause_seconds_bucket{le=\"0.05\"} 1\n"
        "farfork_fork_pause_seconds_bucket{le=\"0.1\"} 1\n"
        "farfork_fork_pause_seconds_bucket{le=\"0.25\"} 1\n"
        "farfork_fork_pause_seconds_bucket{le=\"0.5\"} 1\n"
        "farfork_fork_pause_seconds_bucket{le=\"1.0\"} 1\n"
        "farfork_fork_pause_seconds_bucket{le=\"2.5\"} 1\n"
        "farfork_fork_pause_seconds_bucket{le=\"5.0\"} 1\n"
        "farfork_fork_pause_seconds_bucket{le=\"10.0\"} 2\n" /* an edge belongs to its bucket */
        "farfork_fork_pause_seconds_bucket{le=\"+Inf\"} 3\n"
        "farfork_fork_pause_seconds_sum 21.503\n"
        "farfork_fork_pause_seconds_count 3\n"
        "# EOF\n");
    FF_AUTO_FREE char *open = series_print(&list, true, &len);
    assert_non_null(strstr(open, "# TYPE farfork_migration_processed_bytes counter\n"
                                 "# UNIT farfork_migration_processed_bytes bytes\n"
                                 "farfork_migration_processed_bytes_total{"));
    assert_non_null(strstr(open, "# TYPE farfork_fork_pause_seconds histogram\n"));
    assert_null(strstr(open, "_total counter"));
    series_free(&list);
}

/* Each family, with labels and without; every number as it was */
static void test_round_trip(void **state)
{
    struct series_list list = {0}, again;
    size_t len, len_again;
    (void)state;

    for (enum metric metric = 0; metric < METRICS; metric++) {
        gather(&list, metric, 0.1 + 0.2, NULL);
        gather(&list, metric, 1e15 + metric, "how", "one", NULL);
        gather(&list, metric, 1.0 / 3, "how", "other", "side", "a", NULL);
        gather(&list, metric, 2.0 / 3, "how", "other", "side", "a", NULL);
    }
    FF_AUTO_FREE char *text = series_print(&list, false, &len);
    assert_ok(series_parse(text, len, &again, &why), why);
    assert_int_equal(again.n, list.n);
    FF_AUTO_FREE char *text_again = series_print(&again, false, &len_again);
    assert_string_equal(text, text_again);
    for (size_t i = 0; i < again.n; i++) {
        assert_true(again.v[i].value == list.v[i].value);
        assert_memory_equal(again.v[i].count, list.v[i].count, sizeof(list.v[i].count));
    }
    series_free(&again);
    for (size_t cut = 0; cut < len; cut++) { /* no file that was cut off is one */
        assert_fails(series_parse(text, cut, &again, &why), EBADMSG);
        assert_int_equal(again.n, 0);
    }
    series_free(&list);
}

static void test_hostile_labels(void **state)
{
    static const struct {
        const char *value, *want;
    } of[] = {{"a\"} 1\nfarfork_fork_started_total 9", "a\\\"} 1\\nfarfork_fork_started_total 9"},
              {"back\\slash\\", "back\\\\slash\\\\"},
              {"\",le=\"0.001\"", "\\\",le=\\\"0.001\\\""},
              {"gr\xc3\xbc\xc3\x9f", "gr\xc3\xbc\xc3\x9f"},
              {"\xff\xfe\xc3", "???"},
              {"\t\r\x1b[2J", "???[2J"},
              {"", ""}};
    struct series_list list = {0}, again;
    char longer[300];
    size_t len;
    (void)state;

    memset(longer, 'x', sizeof(longer) - 1);
    longer[sizeof(longer) - 1] = '\0';
    for (size_t i = 0; i < FF_ARRAY_LEN(of); i++) {
        gather(&list, METRIC_MIGRATION_DOWNTIME, 0.5, "link", of[i].value, NULL);
        gather(&list, METRIC_MIGRATION_SUCCEEDED, 1, "link", of[i].value, NULL);
        FF_AUTO_FREE char *want = xprintf("link=\"%s\"", of[i].want);
        assert_string_equal(list.v[list.n - 1].labels, want);
    }
    gather(&list, METRIC_MIGRATION_SUCCEEDED, 1, "link", longer, NULL);
    assert_int_equal(strlen(list.v[list.n - 1].labels), strlen("link=\"\"") + 64);
    FF_AUTO_FREE char *text = series_print(&list, false, &len);
    assert_ok(series_parse(text, len, &again, &why), why);
    assert_int_equal(again.n, list.n);
    assert_null(strstr(text, "\nfarfork_fork_started_total"));
    series_free(&list);
    series_free(&again);
}

static void test_refused(void **state)
{
    static const char *const texts[] = {
        "", "# EOF", "\n# EOF\n", "x# EOF\n", "# EOF\n# more\n",
        STARTED " -1\n# EOF\n", STARTED " NaN\n# EOF\n", STARTED " 1e999\n# EOF\n",
        STARTED " 1x\n# EOF\n", STARTED " 0x10\n# EOF\n", STARTED "\n# EOF\n", STARTED "  1\n# EOF\n",
        STARTED " 1\n" STARTED " 1\n# EOF\n", STARTED "{} 1\n# EOF\n", STARTED "{a=\"b\" 1\n# EOF\n",
        STARTED "{a=\"b} 1\n# EOF\n", STARTED "{a=\"b\\\"} 1\n# EOF\n",
        STARTED "{a=\"b\",} 1\n# EOF\n", STARTED "{a=\"\\t\"} 1\n# EOF\n",
        STARTED "{=\"b\"} 1\n# EOF\n", "Far-fork 1\n# EOF\n",
        "farfork_fork_pause_seconds_sum 1\n# EOF\n",
        "farfork_fork_pause_seconds_bucket{le=\"0.001\"} 1\n# EOF\n",
        "farfork_fork_pause_seconds_bucket{le=\"0.0025\"} 1\n# EOF\n",
        "farfork_fork_pause_seconds_bucket 1\n# EOF\n"};
    struct series_list list = {0};
    size_t len;
    (void)state;

    for (size_t i = 0; i < FF_ARRAY_LEN(texts); i++)
        if (series_parse(texts[i], strlen(texts[i]), &list, &why) != -EBADMSG)
            fail_msg("taken: %s", texts[i]);
    gather(&list, METRIC_FORK_PAUSE, 0.003, NULL);
    FF_AUTO_FREE char *good = series_print(&list, false, &len);
    series_free(&list);
    static const char *const changes[][2] = {
        {"le=\"0.01\"} 1", "le=\"0.01\"} 0"}, {"le=\"0.01\"} 1", "le=\"0.02\"} 1"},
        {"+Inf\"} 1", "+Inf\"} 2"}, {"seconds_count 1", "seconds_count 2"},
        {"seconds_sum ", "seconds_max "}};
    for (size_t i = 0; i < FF_ARRAY_LEN(changes); i++) {
        char *at = strstr(good, changes[i][0]);
        FF_AUTO_FREE char *bad = xprintf("%.*s%s%s", (int)(at - good), good, changes[i][1],
                                         at + strlen(changes[i][0]));
        if (series_parse(bad, strlen(bad), &list, &why) != -EBADMSG)
            fail_msg("taken with %s", changes[i][1]);
    }
    /* of another version of this program: only left out */
    static const char newer[] = "farfork_new_total{a=\"b\"} 3\n# EOF\n";
    assert_ok(series_parse(newer, strlen(newer), &list, &why), why);
    assert_int_equal(list.n, 0);
}

static void test_unknown_values(void **state)
{
    struct metrics *m = metrics_new(dir, "test");
    (void)state;

    metrics_put(m, METRIC_FORK_PAUSE, -0.001, NULL);
    metrics_put(m, METRIC_FORK_PAUSE, NAN, NULL);
    metrics_put(m, METRIC_FORK_STARTED, INFINITY, NULL);
    assert_false(metrics_pending(m));
    assert_int_equal(metrics_write(m, 0), 0);
    assert_int_equal(sample(STARTED), -1);
    metrics_free(m);
    assert_null(metrics_new(NULL, "test"));
    metrics_put(NULL, METRIC_FORK_STARTED, 1, NULL);
    assert_int_equal(metrics_write(NULL, 0), 0);
}

static void test_series_limit(void **state)
{
    struct metrics *m = metrics_new(dir, "test");
    (void)state;

    for (int i = 0; i < 2 * METRICS_SERIES_MAX; i++) {
        FF_AUTO_FREE char *name = xprintf("n%d", i);
        metrics_put(m, METRIC_MIGRATION_DURATION, 1, "link", name, NULL);
    }
    for (int i = 0; i < 2; i++, add_one(m)) /* a full file is read and written */
        assert_int_equal(metrics_write(m, 0), 0);
    assert_int_equal(sample("farfork_migration_duration_seconds_count{link=\"n499\"}"), 1);
    assert_int_equal(sample("farfork_migration_duration_seconds_count{link=\"n500\"}"), -1);
    metrics_free(m);
}

/* --- files --- */

static void test_goes_up(void **state)
{
    struct stat st;
    FF_AUTO_FREE char *path = in_dir(METRICS_FILE);
    mode_t was = umask(0077); /* monitoring is another user */
    (void)state;

    for (int i = 1; i <= 3; i++) {
        struct metrics *m = metrics_new(dir, "test");
        add_one(m);
        metrics_put(m, METRIC_FORK_PAUSE, 0.5, NULL);
        assert_int_equal(metrics_write(m, 0), 0);
        assert_false(metrics_pending(m));
        assert_int_equal(metrics_write(m, 0), 0); /* nothing twice */
        assert_int_equal(sample(STARTED), i);
        assert_int_equal(sample("farfork_fork_pause_seconds_count"), i);
        metrics_free(m);
    }
    umask(was);
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0644);
}

static void write_many(int begin)
{
    struct metrics *m = metrics_new(dir, "test");
    int rc = 0;
    char c;

    alarm(100); /* under TCG, on an older machine */
    if (read(begin, &c, 1)) /* its end: all are here */
        _exit(2);
    for (int i = 0; i < ROUNDS && !rc; i++) {
        add_one(m);
        metrics_put(m, METRIC_FORK_PAUSE, 0.25, NULL);
        rc = metrics_write(m, 30000);
    }
    _exit(rc != 0);
}

/* What a reader sees meanwhile is whole, and never less than before */
static void test_at_once(void **state)
{
    pid_t writers[WRITERS];
    int begin[2];
    double seen = 0;
    int status, left = WRITERS;
    unsigned reads = 0;
    (void)state;

    assert_int_equal(pipe(begin), 0);
    for (int i = 0; i < WRITERS; i++) {
        writers[i] = fork();
        if (!writers[i]) {
            close(begin[1]);
            write_many(begin[0]);
        }
    }
    close(begin[0]);
    close(begin[1]);
    while (left) {
        FF_AUTO_FREE char *text = read_text(METRICS_FILE);
        struct series_list list;
        if (*text) {
            assert_ok(series_parse(text, strlen(text), &list, &why), why);
            assert_int_equal(list.n, 2);
            assert_true(list.v[0].value >= seen);
            seen = list.v[0].value;
            series_free(&list);
            reads++;
        }
        for (int i = 0; i < WRITERS; i++)
            if (writers[i] && waitpid(writers[i], &status, WNOHANG) == writers[i]) {
                assert_int_equal(status, 0);
                writers[i] = 0;
                left--;
            }
        usleep(1000); /* a reader that never rests has a CPU that writers want */
    }
    assert_true(reads > 1);
    assert_int_equal(sample(STARTED), WRITERS * ROUNDS);
    assert_int_equal(sample("farfork_fork_pause_seconds_count"), WRITERS * ROUNDS);
}

static void test_damaged(void **state)
{
    static const char *const texts[] = {"", STARTED " 7\n", "garbage", STARTED " 7\n# EO"};
    struct metrics *m = metrics_new(dir, "test");
    FF_AUTO_FREE char *path = in_dir(METRICS_FILE);
    (void)state;

    for (size_t i = 0; i < FF_ARRAY_LEN(texts); i++) {
        write_text(METRICS_FILE, texts[i]);
        add_one(m);
        assert_int_equal(write_heard(m, 0), 0);
        assert_true(was_said("damaged, and counting begins anew"));
        assert_int_equal(sample(STARTED), 1);
        FF_AUTO_FREE char *aside = read_text(METRICS_FILE ".damaged");
        assert_string_equal(aside, texts[i]);
    }
    /* what is no file is not waited for, nor followed */
    unlink(path);
    assert_int_equal(mkfifo(path, 0600), 0);
    add_one(m);
    assert_int_equal(write_heard(m, 0), 0);
    assert_int_equal(sample(STARTED), 1);
    unlink(path);
    assert_int_equal(symlink("/etc/passwd", path), 0);
    add_one(m);
    assert_int_equal(write_heard(m, 0), 0);
    assert_int_equal(sample(STARTED), 1);
    metrics_free(m);
}

static void test_full_disk(void **state)
{
    struct metrics *m = metrics_new(dir, "test");
    struct rlimit was, none;
    FF_AUTO_FREE char *fresh = in_dir("." METRICS_FILE ".new");
    (void)state;

    add_one(m);
    assert_int_equal(metrics_write(m, 0), 0);
    FF_AUTO_FREE char *before = read_text(METRICS_FILE);
    signal(SIGXFSZ, SIG_IGN);
    getrlimit(RLIMIT_FSIZE, &was);
    none = (struct rlimit){60, was.rlim_max}; /* some of it can be written */
    setrlimit(RLIMIT_FSIZE, &none);
    add_one(m);
    int rc = metrics_write(m, 0);
    setrlimit(RLIMIT_FSIZE, &was);
    assert_int_equal(rc, -EFBIG);
    FF_AUTO_FREE char *after = read_text(METRICS_FILE);
    assert_string_equal(before, after);
    assert_int_equal(access(fresh, F_OK), -1);
    assert_true(metrics_pending(m));
    add_one(m); /* room again: nothing was lost */
    assert_int_equal(metrics_write(m, 0), 0);
    assert_int_equal(sample(STARTED), 3);
    metrics_free(m);
}

static void test_lock_is_kept(void **state)
{
    struct metrics *m = metrics_new(dir, "test");
    int fd = open(dir, O_RDONLY | O_DIRECTORY);
    (void)state;

    assert_int_equal(flock(fd, LOCK_EX), 0);
    add_one(m);
    assert_int_equal(write_heard(m, 50), -EBUSY);
    assert_true(was_said("another program has it"));
    assert_int_equal(write_heard(m, 0), -EBUSY);
    assert_false(was_said("warning")); /* once */
    close(fd);
    assert_int_equal(write_heard(m, 0), 0);
    assert_int_equal(sample(STARTED), 1);
    metrics_free(m);
}

static void test_no_folder(void **state)
{
    FF_AUTO_FREE char *none = in_dir("none");
    struct metrics *m = metrics_new(none, "test");
    (void)state;

    add_one(m);
    assert_int_equal(write_heard(m, 0), -ENOENT);
    assert_true(was_said("none: No such file or directory: not counted"));
    metrics_free(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_formats),
        cmocka_unit_test(test_round_trip),
        cmocka_unit_test(test_hostile_labels),
        cmocka_unit_test(test_refused),
        cmocka_unit_test_setup_teardown(test_unknown_values, make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(test_series_limit, make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(test_goes_up, make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(test_at_once, make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(test_damaged, make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(test_full_disk, make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(test_lock_is_kept, make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(test_no_folder, make_dir, remove_dir),
    };
    return cmocka_run_group_tests(tests, NULL, NULL) ? 1 : 0;
}
