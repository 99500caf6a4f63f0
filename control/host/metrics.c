/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * metrics.c - changes of metrics, added to the files of this host; see metrics.h
 */
#include "metrics.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "cleanup.h"
#include "metrics_text.h"
#include "rundir.h"
#include "whole_file.h"
#include "xalloc.h"

#define FILE_BYTES_MAX (8 << 20)
#define FRESH(name) "." name ".new"
#define DAMAGED METRICS_FILE ".damaged"

struct metrics {
    const char *program;
    char *dir;
    struct series_list pending;
    bool warned;
};

struct metrics *metrics_new(const char *dir, const char *program)
{
    struct metrics *m = dir ? xcalloc(1, sizeof(*m)) : NULL;

    if (m) {
        m->program = program;
        m->dir = xstrdup(dir);
    }
    return m;
}

void metrics_free(struct metrics *m)
{
    if (!m)
        return;
    series_free(&m->pending);
    free(m->dir);
    free(m);
}

void metrics_put(struct metrics *m, enum metric metric, double value, ...)
{
    va_list pairs;

    if (!m || !isfinite(value) || value < 0)
        return;
    va_start(pairs, value);
    struct series s = series_of(metric, value, series_labels(pairs));
    va_end(pairs);
    series_merge(&m->pending, &s);
    free(s.labels);
}

double metrics_time(void)
{
    struct timespec t;

    clock_gettime(CLOCK_REALTIME, &t);
    return (double)t.tv_sec + (double)(t.tv_nsec / 1000000) / 1e3;
}

void metrics_begin_move(struct metrics *m, const char *side)
{
    metrics_put(m, METRIC_MIGRATION_STARTED, 1, "side", side, NULL);
    metrics_put(m, METRIC_MIGRATION_LAST_START, metrics_time(), "side", side, NULL);
    metrics_write(m, METRICS_LIMIT_MS);
}

void metrics_end_move(struct metrics *m, const struct metrics_move *done)
{
    const struct {
        enum metric metric;
        double value;
    } values[] = {{METRIC_MIGRATION_BYTES, done->present_bytes},
                  {METRIC_MIGRATION_FAULTS, done->faults},
                  {METRIC_MIGRATION_BREAKS, done->breaks},
                  {METRIC_MIGRATION_PAUSED, done->paused_s},
                  {METRIC_MIGRATION_AGAIN, done->again_bytes},
                  {METRIC_MIGRATION_DURATION, done->duration_s},
                  {METRIC_MIGRATION_DOWNTIME, done->downtime_s},
                  {METRIC_MIGRATION_FAULT_P99, done->fault_p99_s}},
      last[] = {{METRIC_MIGRATION_LAST_TOTAL, done->total_bytes},
                {METRIC_MIGRATION_LAST_PROCESSED, done->present_bytes},
                {METRIC_MIGRATION_LAST_REMAINING, done->total_bytes - done->present_bytes},
                {METRIC_MIGRATION_LAST_RATE,
                 done->duration_s > 0 ? done->present_bytes / done->duration_s : 0},
                {METRIC_MIGRATION_LAST_END, metrics_time()}};

    if (done->outcome)
        metrics_put(m, METRIC_MIGRATION_FAILED, 1, "side", done->side, "via", done->via, "link",
                    done->link, "outcome", done->outcome, NULL);
    else
        metrics_put(m, METRIC_MIGRATION_SUCCEEDED, 1, "side", done->side, "via", done->via, "link",
                    done->link, NULL);
    for (unsigned i = 0; i < FF_ARRAY_LEN(values); i++)
        metrics_put(m, values[i].metric, values[i].value, "side", done->side, "via", done->via,
                    "link", done->link, NULL);
    for (unsigned i = 0; i < FF_ARRAY_LEN(last); i++)
        metrics_put(m, last[i].metric, last[i].value, "side", done->side, NULL);
    metrics_write(m, METRICS_LIMIT_MS);
}

bool metrics_pending(const struct metrics *m)
{
    return m && m->pending.n;
}

/* --- the files --- */

/* What is there; *@text NULL: nothing yet. -EBADMSG: no file that can be ours */
static int read_old(int dir, char **text, size_t *len, struct ff_error *why)
{
    /* NONBLOCK: not to wait for who writes to a pipe that was put there */
    FF_AUTO_CLOSE int fd =
        openat(dir, METRICS_FILE, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    struct stat st;

    *text = NULL;
    if (fd < 0 && errno == ENOENT)
        return 0;
    if (fd < 0 && errno != ELOOP)
        return ff_error_set(why, errno, "read " METRICS_FILE ": %s", strerror(errno));
    if (fd < 0 || fstat(fd, &st) < 0 || !S_ISREG(st.st_mode) || st.st_size > FILE_BYTES_MAX)
        return ff_error_set(why, EBADMSG, "no file of up to %d bytes", FILE_BYTES_MAX);
    char *room = xcalloc(1, (size_t)st.st_size + 1);
    ssize_t got = read(fd, room, (size_t)st.st_size);
    if (got != st.st_size) {
        free(room);
        return ff_error_set(why, got < 0 ? errno : EIO, "read " METRICS_FILE ": %s",
                            got < 0 ? strerror(errno) : "it is cut off");
    }
    *text = room;
    *len = (size_t)got;
    return 0;
}

static int read_series(const struct metrics *m, int dir, struct series_list *list,
                       struct ff_error *why)
{
    FF_AUTO_FREE char *text = NULL;
    size_t len = 0;
    int rc = read_old(dir, &text, &len, why);

    if (!rc && text)
        rc = series_parse(text, len, list, why);
    if (rc != -EBADMSG)
        return rc;
    fprintf(stderr, "%s: warning: metrics: %s/" METRICS_FILE ": %s: it is now %s/" DAMAGED
            ", and counting begins anew\n", m->program, m->dir, why->text, m->dir);
    if (renameat(dir, METRICS_FILE, dir, DAMAGED) < 0)
        return ff_error_set(why, errno, "rename it: %s", strerror(errno));
    return 0;
}

/* Monitoring is another user */
static int write_new(int dir, const char *name, const struct series_list *list, bool openmetrics,
                       struct ff_error *why)
{
    size_t len;
    FF_AUTO_FREE char *text = series_print(list, openmetrics, &len);

    unlinkat(dir, name, 0); /* of one that was killed */
    FF_AUTO_CLOSE int fd = openat(dir, name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
    int rc = fd < 0 || fchmod(fd, 0644) < 0 ? -errno : whole_file_write(fd, text, len);
    if (rc)
        unlinkat(dir, name, 0);
    return rc ? ff_error_set(why, -rc, "write %s: %s", name, strerror(-rc)) : 0;
}

static int replace_files(int dir, const struct series_list *list, struct ff_error *why)
{
    int rc = write_new(dir, FRESH(METRICS_FILE_OPENMETRICS), list, true, why);

    if (rc)
        return rc;
    rc = write_new(dir, FRESH(METRICS_FILE), list, false, why);
    /* the last one is the one that is read back */
    if (!rc &&
        (renameat(dir, FRESH(METRICS_FILE_OPENMETRICS), dir, METRICS_FILE_OPENMETRICS) < 0 ||
         renameat(dir, FRESH(METRICS_FILE), dir, METRICS_FILE) < 0))
        rc = ff_error_set(why, errno, "rename: %s", strerror(errno));
    if (rc) {
        unlinkat(dir, FRESH(METRICS_FILE_OPENMETRICS), 0);
        unlinkat(dir, FRESH(METRICS_FILE), 0);
    }
    return rc;
}

static int write_locked(const struct metrics *m, int dir, struct ff_error *why)
{
    struct series_list all = {0};
    int rc = read_series(m, dir, &all, why);

    for (size_t i = 0; !rc && i < m->pending.n; i++)
        series_merge(&all, &m->pending.v[i]);
    if (!rc)
        rc = replace_files(dir, &all, why);
    series_free(&all);
    return rc;
}

int metrics_write(struct metrics *m, int limit_ms)
{
    struct ff_error why;

    if (!metrics_pending(m))
        return 0;
    FF_AUTO_CLOSE int dir = open(m->dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    int rc = dir < 0 ? ff_error_set(&why, errno, "%s", strerror(errno)) : 0;
    if (!rc && (rc = lock_within(dir, limit_ms)))
        ff_error_set(&why, -rc, "lock: %s",
                     rc == -EBUSY ? "another program has it (`fuser -v` names it)" : strerror(-rc));
    if (!rc)
        rc = write_locked(m, dir, &why); /* closed, it is unlocked */
    if (!rc)
        series_free(&m->pending);
    else if (!m->warned)
        fprintf(stderr, "%s: warning: metrics: %s: %s: not counted; nothing else is touched by that\n",
                m->program, m->dir, why.text);
    m->warned = rc != 0;
    return rc;
}
