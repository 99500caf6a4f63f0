/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * fork_metrics.c - vmclone --metrics-dir: what a fork adds to this host's counters
 */
#include "fork.h"
#include "metrics.h"

struct metrics *fork_metrics_begin(const struct fork *f)
{
    struct metrics *metrics = metrics_new(f->s.o.metrics_dir, f->s.kind->program);

    metrics_put(metrics, METRIC_FORK_STARTED, 1, NULL);
    metrics_write(metrics, METRICS_LIMIT_MS);
    return metrics;
}

static void put_hosts(const struct fork *f, struct metrics *metrics)
{
    for (size_t i = 0; i < f->s.n_hosts; i++) {
        const struct host *h = &f->s.hosts[i];
        metrics_put(metrics, METRIC_FORK_BYTES, (double)(h->present_bytes - h->lent_bytes), "how",
                    "sent", NULL);
        metrics_put(metrics, METRIC_FORK_BYTES, (double)h->lent_bytes, "how", "lent", NULL);
        metrics_put(metrics, METRIC_FORK_FAULTS, (double)h->child_faults, NULL);
        metrics_put(metrics, METRIC_FORK_BREAKS, h->pauses, NULL);
    }
}

void fork_metrics_end(const struct fork *f, int code, struct metrics *metrics)
{
    struct fork_phases p = fork_phases_of(f);

    if (code == EXIT_ALL)
        metrics_put(metrics, METRIC_FORK_SUCCEEDED, 1, NULL);
    else
        metrics_put(metrics, METRIC_FORK_FAILED, 1, "outcome", code == EXIT_SOME ? "some" : "none",
                    NULL);
    put_hosts(f, metrics);
    for (size_t i = 0; i < f->s.n_vms; i++) {
        const struct vm *child = &f->s.vms[i];
        metrics_put(metrics, METRIC_FORK_CHILDREN, 1, "outcome",
                    vm_runs(child) ? "running" : "failed", NULL);
        if (child->running_ms && f->export_ms && !f->paused)
            metrics_put(metrics, METRIC_FORK_CHILD_START, (child->running_ms - f->export_ms) / 1e3,
                        NULL);
    }
    metrics_put(metrics, METRIC_FORK_PAUSE, p.freeze / 1e3, NULL);
    metrics_put(metrics, METRIC_FORK_DURATION, p.complete / 1e3, NULL);
    metrics_write(metrics, METRICS_LIMIT_MS);
    metrics_free(metrics);
}
