/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * proxy_back.c - GO was not sent: the guest goes on at the source, by the way that its QEMU has
 */
/**
 * DOC: Theory of Operation
 *
 * Purpose      get a guest back from a migration that has sent its package. A proxy whose own thread
 *              still follows the stream does so, and one that has lost its place in it, and the keeper
 *              of one that was killed (proxy_keeper.h).
 * Picture      before the package: migrate_cancel
 *              after it: take the stream to its end, as a destination that has everything; SHUT; cont
 * Limits       migrate_cancel is no way after the package: from 10.0 on QEMU refuses it, and before
 *              that its two threads race for it. Who loses stays in postcopy-paused for good. So
 *              where the switch is under way, it is waited for.
 *              SHUT before the stream's end ends a 7.2 likewise. Who has lost its place in the stream
 *              knows the end by this: QEMU says that no page is left, and nothing comes for
 *              SILENT_MS. The tail that is buffered then is of some KiB.
 */
#include "proxy_state.h"

#include <errno.h>
#include <poll.h>
#include <sys/socket.h>

#include "autojson.h"
#include "thread.h"

#define CONT_AGAIN_MS 10000 /* the other QEMU may still have the locks of its images */
#define STALL_LIMIT_MS 60000
#define SWITCH_LIMIT_MS 10000
#define SILENT_MS 2000
#define LOOK_MS 100

static const uint8_t pong[] = {0, STREAM_RETURN_PONG, 0, 4, 0, 0, 0, STREAM_PING_LOADED};

void *proxy_drain(void *opaque)
{
    struct proxy *p = opaque;
    uint8_t buf[64 << 10];
    ssize_t n;

    pthread_mutex_lock(&p->lock);
    p->blind = true;
    pthread_mutex_unlock(&p->lock);
    while (p->sock >= 0 && ((n = recv(p->sock, buf, sizeof(buf), 0)) > 0 || (n < 0 && errno == EINTR)))
        atomic_store(&p->read_ns, ff_now_ns());
    pthread_mutex_lock(&p->lock);
    p->forward_ended = true;
    pthread_cond_broadcast(&p->changed);
    pthread_mutex_unlock(&p->lock);
    return NULL;
}

static bool has_sent_all(struct proxy *p)
{
    FF_AUTO_JSON json_t *info = NULL;

    if (proxy_qmp(p, "query-migrate", NULL, &info, NULL))
        return false;
    const json_t *left = json_object_get(json_object_get(info, "ram"), "remaining");
    return left && !json_integer_value(left);
}

int proxy_wait_stream_over(struct proxy *p, struct ff_error *err)
{
    uint64_t now = ff_now_ns(), since = now, read_ns;

    for (;;) {
        pthread_mutex_lock(&p->lock);
        if (!p->stream_over && !p->forward_ended)
            ff_cond_wait_until(&p->changed, &p->lock, now + LOOK_MS * 1000000ull);
        bool over = p->stream_over, ended = p->forward_ended, blind = p->blind;
        pthread_mutex_unlock(&p->lock);
        if (over)
            return 0;
        if (ended)
            return ff_error_set(err, EPIPE, "QEMU: its stream ended early: see its own messages");
        now = ff_now_ns();
        read_ns = FF_MAX(atomic_load(&p->read_ns), since);
        if (blind && now > read_ns + SILENT_MS * 1000000ull && has_sent_all(p))
            return 0;
        if (now > read_ns + STALL_LIMIT_MS * 1000000ull)
            return ff_error_set(err, ETIMEDOUT, "QEMU: its stream stands still for %d s",
                                STALL_LIMIT_MS / 1000);
    }
}

/* From 10.2 on the stream's end comes only once the package's own PING was answered; to others that
 * answer says nothing. A domain's says that it failed: libvirt takes `completed` for the end of the
 * move, and ends the QEMU here */
static int play_destination(struct proxy *p, struct ff_error *err)
{
    const uint8_t shut[] = {0, STREAM_RETURN_SHUT, 0, 4, 0, 0, 0, p->o->domain != NULL};
    int rc = proxy_write(p->sock, pong, sizeof(pong), err);

    if (!rc)
        rc = proxy_wait_stream_over(p, err);
    if (!rc)
        rc = proxy_write(p->sock, shut, sizeof(shut), err);
    return rc ? rc
           : p->o->domain ? proxy_qemu_wait(p, "failed", "completed cancelled postcopy-paused",
                                            PROXY_QMP_LIMIT_MS, err)
                          : proxy_qemu_completed(p, PROXY_QMP_LIMIT_MS, err);
}

static int cancel_migration_here(struct proxy *p, struct ff_error *err)
{
    int rc = proxy_qmp(p, "migrate_cancel", NULL, NULL, err);

    if (rc == -EREMOTEIO)
        return play_destination(p, err);
    return rc ? rc
              : proxy_qemu_wait(p, "cancelled failed completed", "postcopy-paused",
                                PROXY_QMP_LIMIT_MS, err);
}

static int end_migration_here(struct proxy *p, struct ff_error *err)
{
    static const char before[] = "setup active pre-switchover device cancelling wait-unplug";
    char migration[32];

    pthread_mutex_lock(&p->lock);
    bool settles = p->o->domain ? !p->held : p->switching && p->cancel_races;
    pthread_mutex_unlock(&p->lock);
    if (settles)
        proxy_qemu_wait(p, "postcopy-active postcopy-device device cancelled failed completed",
                        "postcopy-paused", SWITCH_LIMIT_MS, NULL);
    int rc = proxy_qemu_migration(p, migration, err);
    if (!rc && proxy_status_is_among(migration, "postcopy-active postcopy-device"))
        return play_destination(p, err);
    if (!rc && proxy_status_is_among(migration, before))
        return cancel_migration_here(p, err);
    return rc;
}

static int old_cont_here(struct proxy *p, struct ff_error *err)
{
    uint64_t end = ff_now_ms() + CONT_AGAIN_MS;
    int rc;

    while ((rc = proxy_qmp(p, "cont", NULL, NULL, err)) == -EREMOTEIO && ff_now_ms() < end)
        poll(NULL, 0, 100);
    return rc;
}

int proxy_qemu_take_back(struct proxy *p, struct ff_error *err)
{
    char status[32];
    bool running;
    int rc;

    qmp_cancel_by(p->q, -1);
    if (!p->o->domain)
        proxy_qemu_full_speed(p, NULL); /* or it takes longer */
    rc = end_migration_here(p, err);
    if (!rc)
        rc = proxy_qemu_status(p, status, &running, err);
    /* a domain's also where it runs: by itself it may have left its disks inactive */
    if (!rc && p->was_running && (!running || p->o->domain))
        rc = old_cont_here(p, err);
    if (!rc)
        rc = proxy_qemu_status(p, status, &running, err);
    if (!rc && running != p->was_running)
        rc = ff_error_set(err, EIO, "QEMU: its guest is %s", status);
    return rc;
}

int proxy_leave_device(struct proxy *p, struct ff_error *err)
{
    int rc = p->has_device ? proxy_write(p->sock, pong, sizeof(pong), err) : 0;

    return rc || !p->has_device
               ? rc
               : proxy_qemu_wait(p, "postcopy-active", "failed cancelled completed postcopy-paused",
                                 SWITCH_LIMIT_MS, err);
}

void proxy_never_here(struct proxy *p)
{
    static const uint8_t shut[] = {0, STREAM_RETURN_SHUT, 0, 4, 0, 0, 0, 0};

    if (atomic_load(&p->has_let_go) && p->sock >= 0 && !atomic_exchange(&p->has_shut, true))
        proxy_write(p->sock, shut, sizeof(shut), NULL);
}

int proxy_say_back(struct proxy *p, int rc, const struct ff_error *why)
{
    if (!rc)
        proxy_event(p, "here", NULL);
    else if (proxy_qemu_has_ended(p))
        proxy_event(p, "nowhere",
                    json_pack("{s:s}", "reason",
                              "its QEMU here has ended before it let the guest go: the guest runs "
                              "nowhere; start it again from its disks"));
    else
        proxy_event(p, "stuck",
                    json_pack("{s:s+}", "reason", why->text,
                              ": the guest did not run elsewhere; see query-status, "
                              "and give cont at its QEMU here (of a domain by virsh "
                              "qemu-monitor-command)"));
    return rc ? PROXY_EXIT_TROUBLE : PROXY_EXIT_HERE;
}
