/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * settle.c - wait until the devices of a stopped guest have done what they had begun
 */
/**
 * DOC: Theory of Operation
 *
 * Purpose      a device leaves to a bottom half of QEMU's main loop what follows a request to a
 *              disk (pvscsi, AHCI), a packet (EHCI) or a notification of the guest (virtio-gpu):
 *              that writes guest memory, and begins the next request. What is still to come when
 *              the state is saved would write memory that is an image by then. `stop` drains disks,
 *              but what follows comes after its answer; and then a throttled disk takes seconds.
 *
 * Picture      wait until idle                    no bottom half is left
 *              query-blockstats                   requests that have ended so far
 *              query-status, stop                 drains: what was under way ends
 *              wait until idle                    what followed is done, or has begun requests
 *              query-blockstats                   as many: nothing was under way; else again
 *
 * Idle         QEMU's main loop polls with a limit of 0 while a bottom half is scheduled, and the
 *              kernel does not put a thread to sleep for that. So where the main thread sleeps in
 *              ppoll(2), as /proc/PID/syscall says, none is scheduled: a count of turns proves
 *              less, since EHCI alone needs dozens for what a guest has queued.
 *
 * Limits       Requests that QEMU does not count (scsi-generic) are drained, but may be followed by
 *              others. What comes from outside, as input of a chardev, comes at any time.
 * Sources      do_vm_stop(), aio_compute_timeout(), main_loop_wait() of QEMU;
 *              task_current_syscall() of Linux
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>

#include "autojson.h"
#include "cleanup.h"
#include "outside.h"
#include "settle.h"

#define LOOK_AGAIN_US 50
#define COUNTED "_operations"

#ifdef SYS_poll
#define IS_POLL(nr) ((nr) == SYS_ppoll || (nr) == SYS_poll)
#else
#define IS_POLL(nr) ((nr) == SYS_ppoll)
#endif

int settle_check_stopped(struct qmp *q, struct ff_error *err)
{
    FF_AUTO_JSON json_t *s = NULL;
    int rc = qmp_command(q, "query-status", NULL, &s, err);

    if (rc)
        return rc;
    const char *status = text_of(s, "status");
    if (strcmp(status, "paused") && strcmp(status, "prelaunch"))
        return ff_error_set(
            err, EINVAL,
            "device state: the guest is '%s' (permitted 'paused', 'prelaunch'): stop it, "
            "or let it leave that state first",
            status);
    return 0;
}

/* 1: it sleeps in poll(2); 0: it does something else */
static int is_idle(pid_t pid, struct ff_error *err)
{
    char path[40], line[128];
    long nr;

    snprintf(path, sizeof(path), "/proc/%d/syscall", (int)pid);
    FILE *f = fopen(path, "re");
    const char *got = f ? fgets(line, sizeof(line), f) : NULL;
    const int code = got ? 0 : f && !ferror(f) ? ESRCH : errno;
    if (f)
        fclose(f);
    if (code) {
        int rc = outside_may(pid, true, err);

        return rc ? rc : ff_error_set(err, code, "%s: read: %s", path, strerror(code));
    }
    return sscanf(line, "%ld", &nr) == 1 && IS_POLL(nr); /* "running": no number */
}

int settle_wait_idle(pid_t pid, int limit_ms, struct ff_error *err)
{
    const uint64_t end = ff_now_ms() + (uint64_t)FF_MAX(limit_ms, 0);
    int rc;

    while (!(rc = is_idle(pid, err))) {
        if (ff_now_ms() >= end)
            return ff_error_set(err, ETIMEDOUT,
                                "device state: QEMU (process %d) is still busy: try again when the "
                                "guest's disks and USB devices have less to do",
                                (int)pid);
        usleep(LOOK_AGAIN_US); /* nothing tells when a thread begins to sleep */
    }
    return rc < 0 ? rc : 0;
}

/* Requests to disks that have ended, of each kind */
static int count_requests(struct qmp *q, json_int_t *n, struct ff_error *err)
{
    FF_AUTO_JSON json_t *disks = NULL;
    int rc = qmp_command(q, "query-blockstats", NULL, &disks, err);

    *n = 0;
    for (size_t i = 0; i < json_array_size(disks); i++) {
        json_t *stats = json_object_get(json_array_get(disks, i), "stats");

        for (void *at = json_object_iter(stats); at; at = json_object_iter_next(stats, at))
            if (strstr(json_object_iter_key(at), COUNTED))
                *n += json_integer_value(json_object_iter_value(at));
    }
    return rc;
}

int settle_devices(struct qmp *q, int limit_ms, struct ff_error *err)
{
    const uint64_t end = ff_now_ms() + (uint64_t)limit_ms;
    json_int_t before = -1, now;
    int rc = settle_check_stopped(q, err);

    if (!rc)
        rc = settle_wait_idle(qmp_pid(q), limit_ms, err);
    if (!rc)
        rc = count_requests(q, &before, err);
    while (!rc) {
        rc = settle_check_stopped(q, err);
        if (!rc)
            rc = qmp_command(q, "stop", NULL, NULL, err);
        if (!rc)
            rc = settle_wait_idle(qmp_pid(q), (int)((int64_t)end - (int64_t)ff_now_ms()), err);
        if (!rc)
            rc = count_requests(q, &now, err);
        if (rc || now == before)
            break;
        before = now;
        if (ff_now_ms() >= end)
            rc = ff_error_set(
                err, ETIMEDOUT,
                "device state: devices of the stopped guest are still busy after %d ms: "
                "try again when its disks and USB devices have less to do",
                limit_ms);
    }
    return rc;
}
