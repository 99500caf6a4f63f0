/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * attach_qemu.c - the QEMU of one side, by QMP
 */
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "attach_private.h"
#include "autojson.h"

#define END_LIMIT_MS 2000
#define TRY_LIMIT_S 2
#define CONT_AGAIN_MS 10000 /* the other QEMU may still have the locks of its images */

int attach_qmp(struct attach *a, const char *name, json_t *arguments, json_t **result,
              struct ff_error *err)
{
    pthread_mutex_lock(&a->qmp_lock);
    int rc = qmp_command(a->q, name, arguments, result, err);
    pthread_mutex_unlock(&a->qmp_lock);
    return rc;
}

/* With a limit of its own */
static int qmp_within(struct attach *a, int limit_ms, const char *name, json_t *arguments, json_t **result,
                      struct ff_error *err)
{
    pthread_mutex_lock(&a->qmp_lock);
    qmp_limit(a->q, limit_ms);
    int rc = qmp_command(a->q, name, arguments, result, err);
    qmp_limit(a->q, ATTACH_QMP_LIMIT_MS);
    pthread_mutex_unlock(&a->qmp_lock);
    return rc;
}

int attach_try_qmp(struct attach *a, const char *name, json_t *arguments, json_t **result,
                  struct ff_error *err)
{
    struct timespec end;

    clock_gettime(CLOCK_MONOTONIC, &end);
    end.tv_sec += TRY_LIMIT_S;
    if (pthread_mutex_clocklock(&a->qmp_lock, CLOCK_MONOTONIC, &end)) {
        json_decref(arguments);
        return ff_error_set(err, EBUSY, "%s: the QEMU is busy with another command", name);
    }
    int rc = -EAGAIN;
    if (atomic_load(&a->is_held)) {
        ff_error_set(err, EAGAIN, "%s: its QEMU stands still until its guest's move has ended", name);
        json_decref(arguments);
    } else {
        qmp_limit(a->q, TRY_LIMIT_S * 1000);
        rc = qmp_command(a->q, name, arguments, result, err);
        qmp_limit(a->q, ATTACH_QMP_LIMIT_MS);
    }
    pthread_mutex_unlock(&a->qmp_lock);
    return rc;
}

int attach_qemu_connect(struct attach *a, struct ff_error *err)
{
    return a->q ? 0 : qmp_connect(a->o->qmp, a->stop_fd, ATTACH_QMP_LIMIT_MS, &a->q, err);
}

int attach_qemu_status(struct attach *a, char out[32], bool *running, struct ff_error *err)
{
    FF_AUTO_JSON json_t *s = NULL;
    int rc = attach_qmp(a, "query-status", NULL, &s, err);

    if (rc)
        return rc;
    snprintf(out, 32, "%s", text_of(s, "status"));
    if (running)
        *running = json_is_true(json_object_get(s, "running"));
    return 0;
}

int attach_qemu_listen(struct attach *a, struct ff_error *err)
{
    FF_AUTO_FREE char *uri = xprintf("unix:%s", a->o->path);
    int rc = attach_qmp(a, "stop", NULL, NULL, err); /* as -S: `inmigrate`, then `paused` */

    if (!rc)
        rc = attach_qmp(a, "migrate-incoming", json_pack("{s:s}", "uri", uri), NULL, err);
    return rc ? ff_error_context(err, "QEMU: wait for its migration at %s", a->o->path) : 0;
}

/* What its migration says went wrong */
static void why_not_loaded(struct attach *a, const char *status, struct ff_error *err)
{
    FF_AUTO_JSON json_t *info = NULL;
    int rc = attach_qmp(a, "query-migrate", NULL, &info, err);
    const char *desc = text_of(info, "error-desc"), *migration = text_of(info, "status");

    if (!rc)
        ff_error_set(err, EREMOTEIO, "QEMU: load the device state: it is %s, its migration %s%s%s", status,
                     *migration ? migration : "none", *desc ? ": " : "", desc);
}

int attach_qemu_wait_loaded(struct attach *a, struct ff_error *err)
{
    FF_AUTO_JSON json_t *info = NULL;
    char status[32];

    for (;;) {
        int rc = attach_check(a, err);
        if (!rc)
            rc = attach_qemu_status(a, status, NULL, err);
        if (rc || !strcmp(status, "paused"))
            return rc;
        json_decref(info);
        info = NULL;
        rc = attach_qmp(a, "query-migrate", NULL, &info, err);
        if (rc)
            return rc;
        if (strcmp(status, "inmigrate") || !strcmp(text_of(info, "status"), "failed")) {
            why_not_loaded(a, status, err);
            return -err->code;
        }
        poll(NULL, 0, 1);
    }
}

void attach_qemu_end(struct attach *a)
{
    if (!a->q)
        return;
    qmp_cancel_by(a->q, -1);
    /* it may stand still in a page that does not come */
    if (qmp_within(a, END_LIMIT_MS, "quit", NULL, NULL, NULL) == -ETIMEDOUT)
        kill(a->pid, SIGKILL);
}

int attach_qemu_cont(struct attach *a, int limit_ms, struct ff_error *err)
{
    uint64_t end = ff_now_ms() + CONT_AGAIN_MS;
    int rc;

    while (((rc = qmp_within(a, limit_ms, "cont", NULL, NULL, err)) == -EREMOTEIO || rc == -ENODATA) && ff_now_ms() < end)
        poll(NULL, 0, 100);
    return rc;
}

int attach_qemu_take_back(struct attach *a, struct ff_error *err)
{
    char status[32];
    bool running;

    qmp_cancel_by(a->q, -1);
    int rc = attach_qemu_status(a, status, &running, err);
    if (!rc && a->was_running && !running)
        rc = attach_qemu_cont(a, ATTACH_QMP_LIMIT_MS, err);
    if (!rc)
        rc = attach_qemu_status(a, status, &running, err);
    if (!rc && running != a->was_running)
        rc = ff_error_set(err, EIO, "QEMU: its guest is %s", status);
    return rc;
}

static bool has_ended_within(const struct attach *a, int limit_ms)
{
    int fd = (int)syscall(SYS_pidfd_open, a->pid, 0);
    struct pollfd ended = {.fd = fd, .events = POLLIN};
    bool has = fd < 0 ? errno == ESRCH : poll(&ended, 1, limit_ms) > 0;

    ff_close_fd(&fd);
    return has;
}

bool attach_qemu_has_ended(const struct attach *a)
{
    return has_ended_within(a, END_LIMIT_MS);
}

bool attach_qemu_is_there(const struct attach *a)
{
    return !has_ended_within(a, 0);
}
