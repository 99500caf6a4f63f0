/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * agent_metrics.c - farfork agent --metrics-dir: what an agent adds to its host's counters
 */
/**
 * DOC: Theory of Operation
 *
 * Purpose      count what this host holds for others: agents, images, QEMUs.
 * Threads      the main one. It gathers, and writes once a second at most: a wave of children waits
 *              for no file.
 * Failure      what could not be written is tried again after a minute, and at the end; where another
 *              process has the lock, after a second.
 */
#include <errno.h>

#include "agent_state.h"
#include "metrics.h"

#define WRITE_EVERY_MS 1000
#define FAILED_EVERY_MS 60000
#define LOCK_MS 100 /* the loop waits for nothing else than poll(); it can try again */

void agent_metrics_begin(struct agent *a)
{
    a->metrics = metrics_new(a->metrics_dir, "farfork agent");
    metrics_put(a->metrics, METRIC_AGENT_STARTED, 1, "kind", a->listen ? "fork" : "move", NULL);
}

void agent_metrics_image(struct agent *a)
{
    struct ff_agent_stats s;
    bool complete = a->image == COMPLETE;

    if (!a->metrics)
        return;
    ff_agent_stats(a->ff, &s);
    metrics_put(a->metrics, METRIC_AGENT_IMAGES, 1, "outcome", complete ? "complete" : "lost",
                NULL);
    metrics_put(a->metrics, METRIC_AGENT_BYTES, (double)(s.image.bytes_present - s.bytes_lent),
                "how", "sent", NULL);
    metrics_put(a->metrics, METRIC_AGENT_BYTES, (double)s.bytes_lent, "how", "lent", NULL);
    if (complete)
        metrics_put(a->metrics, METRIC_AGENT_IMAGE, (double)(ff_now_ms() - a->image_ms) / 1e3,
                    NULL);
}

void agent_metrics_started(struct agent *a)
{
    metrics_put(a->metrics, METRIC_AGENT_CHILDREN_STARTED, 1, NULL);
}

void agent_metrics_ended(struct agent *a, const struct agent_vm *vm)
{
    metrics_put(a->metrics, METRIC_AGENT_CHILDREN_ENDED, 1, "how",
                vm->unused ? "exit" : vm->code < 0 ? "signal" : vm->code ? "error" : "exit", NULL);
}

bool agent_metrics_write(struct agent *a, bool last)
{
    uint64_t now = ff_now_ms();

    if (metrics_pending(a->metrics) && (last || now >= a->metrics_ms)) {
        int rc = metrics_write(a->metrics, last ? METRICS_LIMIT_MS : LOCK_MS);
        a->metrics_ms = now + (rc && rc != -EBUSY ? FAILED_EVERY_MS : WRITE_EVERY_MS);
    }
    bool pending = metrics_pending(a->metrics);
    if (last)
        metrics_free(a->metrics);
    return pending;
}
