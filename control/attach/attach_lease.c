/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * attach_lease.c - fallback=go at the destination: the guest runs here for as long as its source is heard; see attach.h
 */
/**
 * DOC: Theory of Operation
 *
 * Purpose      what a QEMU with the transport does to itself when a lease ends (migrate/lease.c), done to any QEMU.
 *
 * Picture      before READY              the QEMU is put on a leash (leash.h)
 *              two thirds of a lease     `stop`, where its monitor answers at once, so that the guest's clocks stand still;
 *              without an answer         then SIGSTOP, whatever the monitor said
 *              heard again               SIGCONT; `cont` if the guest ran
 *              the lease has ended, and  the kernel ends this process, and by the leash the QEMU
 *              it does not stand still
 *              it is let go for good     the leash is taken off
 *
 * Threads      lease_changed(): the library's; no_lease is under lock.
 * Invariants   1. From before READY until the source lets go for good the QEMU does not outlive this process.
 *              2. Without a lease no thread of the QEMU runs, so no monitor makes its guest run: also where GO came
 *                 when the lease had ended, and `cont` was not given yet.
 *              3. What the guest writes here can be dropped: each of its disks is an overlay. That it is an empty one is up
 *                 to who made it: farfork move does.
 * Limits       STOP_MS: of a lease of 1 s a third is left when it has to stand still.
 */
#include <errno.h>
#include <time.h>

#include "attach_private.h"
#include "autojson.h"
#include "farfork-return.h"

#define FD_NAME "farfork-lease"
#define STOP_MS 100

/* Whether the guest runs, or is about to: what is not known is no reason to leave it paused later */
static bool stop_by_monitor(struct attach *a)
{
    FF_AUTO_JSON json_t *status = NULL;
    struct timespec end;
    bool runs = true;

    clock_gettime(CLOCK_MONOTONIC, &end);
    end.tv_nsec += STOP_MS * 1000000;
    end.tv_sec += end.tv_nsec / 1000000000;
    end.tv_nsec %= 1000000000;
    if (pthread_mutex_clocklock(&a->qmp_lock, CLOCK_MONOTONIC, &end))
        return runs;
    qmp_limit(a->q, STOP_MS);
    if (!qmp_command(a->q, "query-status", NULL, &status, NULL)) {
        runs = json_is_true(json_object_get(status, "running"));
        qmp_command(a->q, "stop", NULL, NULL, NULL);
    }
    qmp_limit(a->q, ATTACH_QMP_LIMIT_MS);
    pthread_mutex_unlock(&a->qmp_lock);
    return runs;
}

static void lease_changed(void *opaque, bool may_run)
{
    struct attach *a = opaque;
    struct ff_error why = {0};

    pthread_mutex_lock(&a->lock);
    a->no_lease = !may_run;
    bool runs = a->run_ns;
    pthread_cond_broadcast(&a->changed);
    pthread_mutex_unlock(&a->lock);
    if (!may_run) {
        a->lease_ran = runs && a->was_running && stop_by_monitor(a);
        leash_stop(&a->leash);
        attach_shut_down_look(a);
        attach_event(a, "no-lease", NULL);
        return;
    }
    leash_go(&a->leash);
    attach_event(a, "lease", NULL);
    if (a->lease_ran && attach_try_qmp(a, "cont", NULL, NULL, &why))
        attach_say_why(a, "stuck-paused", &why);
}

void attach_lease_offer(struct attach *a)
{
    if (a->reconnect_ms)
        ff_dest_on_lease(a->dest, lease_changed, a);
    else
        ff_dest_refuse_lease(a->dest, "it does not resume, with reconnect=0");
}

/* Each disk that the guest writes to is an overlay; their files are kept in mind. -ENOTSUP: its writes could not be dropped */
static int lease_check_disks(struct attach *a, struct ff_error *err)
{
    FF_AUTO_JSON json_t *list = NULL;
    json_t *disk;
    size_t i;
    int rc = attach_qmp(a, "query-block", NULL, &list, err);

    if (rc)
        return rc;
    a->overlays = json_array();
    json_array_foreach(list, i, disk) {
        const json_t *in = json_object_get(disk, "inserted"), *image = json_object_get(in, "image");

        if (!in || !json_object_get(disk, "qdev") || json_is_true(json_object_get(in, "ro")))
            continue;
        if (!json_object_get(image, "backing-image"))
            return ff_error_set(err, ENOTSUP, "fallback=go: its disk %s is no overlay (want the source's disk as backing "
                                "file, in a new overlay)", text_of(disk, "device"));
        json_array_append(a->overlays, json_object_get(image, "filename"));
    }
    return 0;
}

static bool is_overlay(const struct attach *a, const json_t *file)
{
    json_t *one;
    size_t i;

    json_array_foreach(a->overlays, i, one)
        if (json_equal(one, file))
            return true;
    return false;
}

int attach_lease_may_leave(struct attach *a, struct ff_error *err)
{
    FF_AUTO_JSON json_t *list = NULL;
    json_t *disk;
    size_t i;

    if (!a->dest || !ff_dest_has_fallback(a->dest))
        return 0;
    if (!ff_dest_is_released(a->dest))
        return ff_error_set(err, EBUSY, "its source has not said yet that it never takes the guest back");
    int rc = attach_try_qmp(a, "query-block", NULL, &list, err);
    json_array_foreach(list, i, disk) {
        const json_t *file = json_object_get(json_object_get(json_object_get(disk, "inserted"), "image"), "filename");

        if (file && is_overlay(a, file))
            return ff_error_set(err, EBUSY, "its disk %s is in an overlay: commit %s first", text_of(disk, "device"),
                                json_string_value(file));
    }
    return rc;
}

int attach_lease_bind(struct attach *a, struct ff_error *err)
{
    if (!ff_dest_has_fallback(a->dest))
        return 0;
    int rc = lease_check_disks(a, err);
    if (!rc)
        rc = leash_begin(&a->leash, a->pid, err);
    if (rc)
        return rc;
    pthread_mutex_lock(&a->qmp_lock); /* that stays in QEMU when this monitor's client has gone */
    rc = qmp_command_with_fd(a->q, "getfd", json_pack("{ss}", "fdname", FD_NAME), a->leash.given, NULL, err);
    pthread_mutex_unlock(&a->qmp_lock);
    return rc;
}

void attach_lease_end(struct attach *a)
{
    if (a->leash.pidfd < 0)
        return;
    leash_end(&a->leash);
    attach_try_qmp(a, "closefd", json_pack("{ss}", "fdname", FD_NAME), NULL, NULL);
}
