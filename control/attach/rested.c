/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * rested.c - whether no CPU of a guest has run since it was stopped, where nobody says events
 */
#include "rested.h"

#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "autojson.h"
#include "settle.h"
#include "xalloc.h"

#define REST_TURNS 20 /* each as long as a command takes */

int rested_find(struct qmp *q, struct rested *r, struct ff_error *err)
{
    FF_AUTO_JSON json_t *list = NULL;
    int rc = qmp_command(q, "query-cpus-fast", NULL, &list, err);

    if (rc)
        return rc;
    free(r->vcpus);
    r->n = (unsigned)json_array_size(list);
    r->vcpus = xcalloc(2 * r->n + 1, sizeof(*r->vcpus));
    for (unsigned i = 0; i < 2 * r->n; i++)
        r->vcpus[i].tid = (pid_t)json_integer_value(json_object_get(json_array_get(list, i % r->n), "thread-id"));
    return r->n ? 0 : ff_error_set(err, EPROTO, "QEMU: query-cpus-fast: no CPU");
}

int rested_await(struct qmp *q, pid_t pid, struct rested *r, struct ff_error *err)
{
    struct parked *was = r->vcpus, *now = was + r->n;
    int rc = parked_look(pid, now, r->n, err);

    for (int i = 0; i < REST_TURNS && !rc; i++) {
        memcpy(was, now, r->n * sizeof(*was));
        rc = settle_check_stopped(q, err);
        if (!rc)
            rc = parked_look(pid, now, r->n, err);
        if (!rc && parked_still(was, now, r->n, false))
            return 0;
    }
    return rc ? rc : ff_error_set(err, ETIMEDOUT, "QEMU: a CPU of its guest does not come to rest: try again");
}

int rested_check(pid_t pid, struct rested *r, struct ff_error *err)
{
    struct parked *was = r->vcpus, *now = was + r->n;
    int rc = parked_look(pid, now, r->n, err);

    return rc || parked_still(was, now, r->n, true)
               ? rc
               : ff_error_set(err, EBUSY, "QEMU: somebody resumed its guest while its state was saved: try again");
}

void rested_free(struct rested *r)
{
    free(r->vcpus);
    *r = (struct rested){0};
}
