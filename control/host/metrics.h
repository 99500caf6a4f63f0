/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * metrics.h - what a host's moves, forks and agents count, in files for its monitoring
 */
/**
 * DOC: Theory of Operation
 *
 * Purpose      --metrics-dir DIR: counters and histograms that outlast the programs that count. It
 *              measures nothing itself, and nothing that it fails at makes a move or a fork fail.
 * Picture      DIR/farfork.prom           text format 0.0.4, for node_exporter's textfile collector
 *              DIR/farfork.openmetrics    the same as OpenMetrics 1.0
 *
 *              A program gathers changes; metrics_write() adds them to what is in the first file,
 *              under a lock on DIR, and replaces both by rename().
 * Invariants   1. A reader sees a whole file, the old one or the new one.
 *              2. Two programs at once lose nothing: each reads under the lock what the other wrote.
 *              3. No label names a guest, a fork or a host: the number of series stays small.
 * Failure      a full disk, a lock that somebody keeps, a folder that is not there: the changes stay
 *              with the program, which warns once; metrics_write() may be tried again. A file that
 *              is none of ours, or cut off, becomes DIR/farfork.prom.damaged, with a warning, and
 *              counting begins anew.
 * Limits       a file of 8 MiB; 500 series: more than that are left out.
 * Sources      https://prometheus.io/docs/instrumenting/exposition_formats/, OpenMetrics 1.0
 */
#ifndef FF_CONTROL_HOST_METRICS_H
#define FF_CONTROL_HOST_METRICS_H

#include <stdbool.h>

#define METRICS_FILE "farfork.prom"
#define METRICS_FILE_OPENMETRICS "farfork.openmetrics"
#define METRICS_LIMIT_MS 2000 /* a program that ends anyway; writing takes under a millisecond */

/* In the order of the file; metrics_text.c has their names */
enum metric {
    METRIC_MIGRATION_STARTED,
    METRIC_MIGRATION_SUCCEEDED,
    METRIC_MIGRATION_FAILED,
    METRIC_MIGRATION_BYTES,
    METRIC_MIGRATION_FAULTS,
    METRIC_MIGRATION_BREAKS,
    METRIC_MIGRATION_PAUSED,
    METRIC_MIGRATION_AGAIN,
    METRIC_MIGRATION_DURATION,
    METRIC_MIGRATION_DOWNTIME,
    METRIC_MIGRATION_FAULT_P99,
    METRIC_MIGRATION_LAST_TOTAL,
    METRIC_MIGRATION_LAST_PROCESSED,
    METRIC_MIGRATION_LAST_REMAINING,
    METRIC_MIGRATION_LAST_RATE,
    METRIC_MIGRATION_LAST_START,
    METRIC_MIGRATION_LAST_END,
    METRIC_FORK_STARTED,
    METRIC_FORK_SUCCEEDED,
    METRIC_FORK_FAILED,
    METRIC_FORK_CHILDREN,
    METRIC_FORK_BYTES,
    METRIC_FORK_FAULTS,
    METRIC_FORK_BREAKS,
    METRIC_FORK_PAUSE,
    METRIC_FORK_DURATION,
    METRIC_FORK_CHILD_START,
    METRIC_AGENT_STARTED,
    METRIC_AGENT_IMAGES,
    METRIC_AGENT_BYTES,
    METRIC_AGENT_IMAGE,
    METRIC_AGENT_CHILDREN_STARTED,
    METRIC_AGENT_CHILDREN_ENDED,
    METRICS
};

struct metrics;

/**
 * metrics_new() - begin to gather
 * @dir:     an existing folder; NULL: nothing is to be counted
 * @program: for warnings
 *
 * Return: to be given to metrics_free(); NULL for no @dir, with which every call here does nothing
 */
struct metrics *metrics_new(const char *dir, const char *program);
void metrics_free(struct metrics *m);

/**
 * metrics_put() - one change: add to a counter, set a gauge, put a value into a histogram
 * @value: bytes, seconds or a number; one that is negative or not finite is left out: not known
 * @...:   names and values of labels, then NULL. A value may be any bytes
 */
void metrics_put(struct metrics *m, enum metric metric, double value, ...)
    __attribute__((sentinel));

/* Now, in seconds since 1970 */
double metrics_time(void);

/* A move as one side has seen it; what is < 0 is not known there */
struct metrics_move {
    const char *side, *via, *link;
    const char *outcome; /* NULL: the guest runs there with all its memory */
    double total_bytes, present_bytes, again_bytes, faults, breaks, paused_s;
    double duration_s, downtime_s, fault_p99_s;
};

void metrics_begin_move(struct metrics *m, const char *side);
void metrics_end_move(struct metrics *m, const struct metrics_move *done);

bool metrics_pending(const struct metrics *m); /* something is not in the file yet */

/**
 * metrics_write() - into the files
 * @limit_ms: how long to wait for another program that writes
 *
 * Return: 0: nothing is pending; else -errno, and a warning on standard error, once
 */
int metrics_write(struct metrics *m, int limit_ms);

#endif
