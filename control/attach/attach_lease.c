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
 *              it is let go for good     the leash is taken off, by who asks for that, or once all is here
 *
 * Threads      lease_changed(): the library's; no_lease is under lock. The leash is that thread's while no_lease is set, else
 *              it is taken under lock, once.
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

#define LEASH_NONE (struct leash){.pidfd = -1, .kept = -1, .given = -1}
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

    if (may_run) /* before another thread may take it off */
        leash_go(&a->leash);
    pthread_mutex_lock(&a->lock);
    a->no_lease = !may_run;
    bool runs = a->run_ns, is_off = a->leash.pidfd < 0; /* it was let go meanwhile, and this is told so next */
    pthread_cond_broadcast(&a->changed);
    pthread_mutex_unlock(&a->lock);
    if (!may_run && is_off) {
        a->lease_ran = false;
        return;
    }
    if (!may_run) {
        a->lease_ran = runs && a->was_running && stop_by_monitor(a);
        leash_stop(&a->leash);
        attach_shut_down_look(a);
        attach_event(a, "no-lease", NULL);
        return;
    }
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

/* The overlay that this image is, or has below it. NULL: none */
static const char *overlay_in(const struct attach *a, const json_t *image)
{
    json_t *one;
    size_t i;

    for (; image; image = json_object_get(image, "backing-image"))
        json_array_foreach(a->overlays, i, one)
            if (json_equal(one, json_object_get(image, "filename")))
                return json_string_value(one);
    return NULL;
}

/* In one step with the look at whether the QEMU stands still by it, since the lease's thread would go on with what is taken.
 * false: it stands still, and @unless_still */
static bool take_leash(struct attach *a, bool unless_still, struct leash *taken)
{
    pthread_mutex_lock(&a->lock);
    bool takes = !unless_still || !a->no_lease;
    *taken = takes ? a->leash : LEASH_NONE;
    if (takes)
        a->leash = LEASH_NONE;
    pthread_mutex_unlock(&a->lock);
    return takes;
}

static void end_leash(struct attach *a, struct leash *taken)
{
    if (taken->pidfd < 0)
        return;
    leash_end(taken);
    attach_try_qmp(a, "closefd", json_pack("{ss}", "fdname", FD_NAME), NULL, NULL);
}

int attach_lease_released(struct attach *a, struct ff_error *err)
{
    struct leash taken;


    if (!a->dest || !ff_dest_is_released(a->dest))
        return ff_error_set(err, EINVAL, "the source has not said yet that it never takes the guest back");
    if (!take_leash(a, true, &taken)) /* its threads are about to go on */
        return ff_error_set(err, EBUSY, "its QEMU stands still, and does not go on yet");
    end_leash(a, &taken);
    return 0;
}

int attach_lease_may_leave(struct attach *a, struct ff_error *err)
{
    FF_AUTO_JSON json_t *list = NULL;
    json_t *disk;
    size_t i;

    if (!a->dest || !ff_dest_has_fallback(a->dest))
        return 0;
    int rc = attach_lease_released(a, err);
    if (!rc)
        rc = attach_try_qmp(a, "query-block", NULL, &list, err);
    json_array_foreach(list, i, disk) {
        const char *overlay = overlay_in(a, json_object_get(json_object_get(disk, "inserted"), "image"));

        if (overlay)
            return ff_error_set(err, EBUSY, "its disk %s is in an overlay: commit %s first", text_of(disk, "device"), overlay);
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
    struct leash taken;

    take_leash(a, false, &taken);
    end_leash(a, &taken);
}
