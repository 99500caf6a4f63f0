/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * proxy_qemu.c - a proxy's QEMU, by QMP: what it must not have, what it is told; see proxy.h
 */
#include "proxy_state.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>

#include "autojson.h"
#include "thread.h"
#include "versions.h"

#define BEGIN_LIMIT_MS 15000 /* a QEMU that this program started makes its socket */
#define END_LIMIT_MS 2000
#define TRY_LIMIT_S 2
#define CONT_AGAIN_MS 10000 /* the other QEMU may still have the locks of its images */
#define DRAIN_LIMIT_MS 120000
#define UNLIMITED (1ll << 40) /* bytes in a second; 0 means none to max-bandwidth */

/* The stream cannot be followed, or memory comes another way */
static const char *const refused[] = {"xbzrle",
                                      "compress",
                                      "multifd",
                                      "release-ram",
                                      "x-ignore-shared",
                                      "background-snapshot",
                                      "postcopy-preempt",
                                      "postcopy-blocktime",
                                      "x-colo",
                                      "mapped-ram",
                                      "dirty-bitmaps",
                                      "pause-before-switchover"};

int proxy_qmp(struct proxy *p, const char *name, json_t *arguments, json_t **result,
              struct ff_error *err)
{
    pthread_mutex_lock(&p->qmp_lock);
    int rc = qmp_command(p->q, name, arguments, result, err);
    pthread_mutex_unlock(&p->qmp_lock);
    return rc;
}

int proxy_try_qmp(struct proxy *p, const char *name, json_t *arguments, json_t **result,
                  struct ff_error *err)
{
    struct timespec end;

    clock_gettime(CLOCK_MONOTONIC, &end);
    end.tv_sec += TRY_LIMIT_S;
    if (pthread_mutex_clocklock(&p->qmp_lock, CLOCK_MONOTONIC, &end)) {
        json_decref(arguments);
        return ff_error_set(err, EBUSY, "%s: the QEMU is busy with another command", name);
    }
    int rc = qmp_command(p->q, name, arguments, result, err);
    pthread_mutex_unlock(&p->qmp_lock);
    return rc;
}

static int set_postcopy(struct proxy *p, struct ff_error *err)
{
    return proxy_qmp(p, "migrate-set-capabilities",
        json_pack("{s:[{s:s,s:b}]}", "capabilities", "capability", "postcopy-ram", "state", 1),
        NULL, err);
}

static int prepare_capabilities(struct proxy *p, struct ff_error *err)
{
    FF_AUTO_JSON json_t *list = NULL;
    int rc = proxy_qmp(p, "query-migrate-capabilities", NULL, &list, err);

    if (rc)
        return rc;
    for (size_t i = 0; i < FF_ARRAY_LEN(refused); i++) {
        const json_t *o = json_find(list, "capability", refused[i]);

        if (o && json_is_true(json_object_get(o, "state")))
            return ff_error_set(err, ENOTSUP,
                                "QEMU: capability %s: not with a proxy (turn it off by "
                                "migrate-set-capabilities)",
                                refused[i]);
    }
    rc = set_postcopy(p, err);
    return rc ? ff_error_context(err, "QEMU: turn postcopy-ram on") : 0;
}

/* No limit: what is sent by the stream is little, and pages of main memory are dropped at once */
static int lift_bandwidth(struct proxy *p, struct ff_error *err)
{
    FF_AUTO_JSON json_t *now = NULL;
    int rc = proxy_qmp(p, "query-migrate-parameters", NULL, &now, err);

    if (rc)
        return rc;
    p->old_bandwidth = json_integer_value(json_object_get(now, "max-bandwidth"));
    p->old_postcopy_bandwidth = json_integer_value(json_object_get(now, "max-postcopy-bandwidth"));
    rc = proxy_qmp(p, "migrate-set-parameters",
                     json_pack("{s:I,s:I}", "max-bandwidth", (json_int_t)UNLIMITED,
                               "max-postcopy-bandwidth", (json_int_t)0),
                     NULL, err);
    p->has_bandwidth = !rc;
    return rc;
}

void proxy_qemu_restore(struct proxy *p)
{
    if (!p->q || !p->has_bandwidth)
        return;
    p->has_bandwidth = false;
    qmp_cancel_by(p->q, -1);
    proxy_qmp(p, "migrate-set-parameters",
                json_pack("{s:I,s:I}", "max-bandwidth", p->old_bandwidth, "max-postcopy-bandwidth",
                          p->old_postcopy_bandwidth),
                NULL, NULL);
}

/* Main memory alone is kept, each with its address */
static int find_blocks(struct proxy *p, struct ff_error *err)
{
    unsigned n = 0;
    int rc = outside_blocks(p->q, &p->blocks, &p->n_blocks, err);

    for (unsigned i = 0; !rc && i < p->n_blocks; i++)
        if (p->blocks[i].len_bytes >= OUTSIDE_MAIN_BYTES)
            p->blocks[n++] = p->blocks[i];
    p->n_blocks = n;
    if (!rc && !n)
        rc = ff_error_set(err, ENOTSUP, "QEMU: no block of memory of 32 MiB or more");
    for (unsigned i = 0; !rc && i < n; i++)
        if (!p->blocks[i].hva)
            rc = outside_locate(p->pid, &p->blocks[i], err);
    return rc;
}

/* A QEMU that was just started has no socket at first */
int proxy_qemu_connect(struct proxy *p, struct ff_error *err)
{
    uint64_t end = ff_now_ms() + BEGIN_LIMIT_MS;
    int rc;

    while (!p->q) {
        rc = qmp_connect(p->o->qmp, p->stop_fd, PROXY_QMP_LIMIT_MS, &p->q, err);
        if (!rc || !p->child || ff_now_ms() > end || proxy_check(p, NULL))
            return rc;
        if (waitpid(p->child, NULL, WNOHANG)) {
            p->child = 0;
            return ff_error_set(err, ECHILD, "QEMU: it ended before it had its socket %s",
                                p->o->qmp);
        }
        poll(NULL, 0, PROXY_POLL_MS);
    }
    return 0;
}

static int check_version(struct proxy *p, struct ff_error *err)
{
    FF_AUTO_JSON json_t *answer = NULL;
    struct proxy_version ignored;
    int rc = proxy_qmp(p, "query-version", NULL, &answer, err);

    return rc ? rc
              : proxy_version_check(answer, p->is_source ? "source" : "destination",
                                    p->o->untested, &ignored, err);
}

int proxy_qemu_look(struct proxy *p, struct ff_error *err)
{
    char status[32];
    int rc = proxy_qemu_connect(p, err);

    if (rc)
        return rc;
    p->pid = p->o->pid ? p->o->pid : qmp_pid(p->q);
    rc = check_version(p, err);
    if (!rc)
        rc = proxy_qemu_status(p, status, &p->was_running, err);
    if (!rc && !p->is_source && strcmp(status, "inmigrate"))
        rc = ff_error_set(err, EINVAL,
                          "QEMU: it waits for no migration, it is %s (start it with "
                          "-incoming defer)",
                          status);
    if (!rc)
        rc = outside_may(p->pid, true, err);
    if (!rc)
        rc = prepare_capabilities(p, err);
    if (!rc)
        rc = lift_bandwidth(p, err);
    return rc ? rc : find_blocks(p, err);
}

int proxy_qemu_status(struct proxy *p, char out[32], bool *running, struct ff_error *err)
{
    FF_AUTO_JSON json_t *s = NULL;
    int rc = proxy_qmp(p, "query-status", NULL, &s, err);

    if (rc)
        return rc;
    snprintf(out, 32, "%s", text_of(s, "status"));
    if (running)
        *running = json_is_true(json_object_get(s, "running"));
    return 0;
}

int proxy_qemu_migration(struct proxy *p, char out[32], struct ff_error *err)
{
    FF_AUTO_JSON json_t *s = NULL;
    int rc = proxy_qmp(p, "query-migrate", NULL, &s, err);

    if (rc)
        return rc;
    snprintf(out, 32, "%s", text_of(s, "status"));
    if (*text_of(s, "error-desc"))
        ff_error_set(err, EREMOTEIO, "QEMU: %s", text_of(s, "error-desc"));
    else
        ff_error_set(err, EREMOTEIO, "QEMU: its migration is %s", *out ? out : "none");
    return 0;
}

/* One of the words of @want, separated by blanks */
static bool status_is_among(const char *status, const char *want)
{
    size_t len = strlen(status);
    const char *at = want;

    while (len && (at = strstr(at, status))) {
        if ((at == want || at[-1] == ' ') && (at[len] == ' ' || !at[len]))
            return true;
        at += len;
    }
    return false;
}

/* Until query-migrate says one of @want: 0; -EREMOTEIO: one of @never */
static int wait_migration(struct proxy *p, const char *want, const char *never, int limit_ms,
                          struct ff_error *err)
{
    uint64_t end = ff_now_ms() + (uint64_t)limit_ms;
    struct ff_error why = {0};
    char status[32];

    for (;;) {
        int rc = proxy_qemu_migration(p, status, &why);

        if (!rc && status_is_among(status, want))
            return 0;
        if (rc || status_is_among(status, never))
            return ff_error_set(err, why.code, "%s", why.text);
        if (ff_now_ms() > end)
            return ff_error_set(err, ETIMEDOUT,
                                "QEMU: its migration is still %s after %d ms (want "
                                "%s)",
                                status, limit_ms, want);
        poll(NULL, 0, PROXY_POLL_MS);
    }
}

int proxy_qemu_completed(struct proxy *p, int limit_ms, struct ff_error *err)
{
    return wait_migration(p, "completed", "failed cancelled postcopy-paused", limit_ms, err);
}

/* There is no cancel in post-copy: QEMU 10 refuses it. The proxy plays a destination that has
 * everything: it takes the stream to its end and says so. From 10.2 on that end comes only once the
 * package's own PING was answered; to others that answer says nothing. */
static int play_destination(struct proxy *p, struct ff_error *err)
{
    static const uint8_t pong[] = {0, STREAM_RETURN_PONG, 0, 4, 0, 0, 0, STREAM_PING_LOADED};
    static const uint8_t shut[] = {0, STREAM_RETURN_SHUT, 0, 4, 0, 0, 0, 0};
    uint64_t end = ff_now_ns() + DRAIN_LIMIT_MS * 1000000ull;
    bool over;
    int rc = proxy_write(p->sock, pong, sizeof(pong), err);

    if (rc)
        return rc;
    pthread_mutex_lock(&p->lock);
    while (!p->stream_over && !p->forward_ended && !ff_cond_wait_until(&p->changed, &p->lock, end))
        continue;
    over = p->stream_over;
    pthread_mutex_unlock(&p->lock);
    if (!over)
        return ff_error_set(err, EPROTO, "QEMU: its stream did not come to its end");
    rc = proxy_write(p->sock, shut, sizeof(shut), err);
    return rc ? rc : proxy_qemu_completed(p, PROXY_QMP_LIMIT_MS, err);
}

static int cont_here(struct proxy *p, struct ff_error *err)
{
    uint64_t end = ff_now_ms() + CONT_AGAIN_MS;
    int rc;

    while ((rc = proxy_qmp(p, "cont", NULL, NULL, err)) == -EREMOTEIO && ff_now_ms() < end)
        poll(NULL, 0, 100);
    return rc;
}

int proxy_qemu_take_back(struct proxy *p, struct ff_error *err)
{
    char status[32], migration[32];
    bool running;
    int rc;

    qmp_cancel_by(p->q, -1);
    rc = proxy_qemu_migration(p, migration, err);
    if (!rc && status_is_among(migration, "postcopy-active postcopy-device")) {
        rc = play_destination(p, err);
    } else if (!rc && status_is_among(migration, "setup active device cancelling wait-unplug")) {
        rc = proxy_qmp(p, "migrate_cancel", NULL, NULL, err);
        if (rc == -EREMOTEIO)
            rc = play_destination(p, err);
        else if (!rc)
            rc = wait_migration(p, "cancelled failed completed", "postcopy-paused", PROXY_QMP_LIMIT_MS,
                                err);
    }
    if (!rc)
        rc = proxy_qemu_status(p, status, &running, err);
    if (!rc && !running && p->was_running)
        rc = cont_here(p, err);
    if (!rc)
        rc = proxy_qemu_status(p, status, &running, err);
    if (!rc && running != p->was_running)
        rc = ff_error_set(err, EIO, "QEMU: its guest is %s", status);
    return rc;
}

int proxy_qemu_listen(struct proxy *p, struct ff_error *err)
{
    FF_AUTO_FREE char *uri = xprintf("unix:%s", p->o->path);
    int rc = proxy_qmp(p, "stop", NULL, NULL, err); /* as -S: `inmigrate`, then `paused` */

    if (!rc)
        rc = proxy_qmp(p, "migrate-incoming", json_pack("{s:s}", "uri", uri), NULL, err);
    return rc ? ff_error_context(err, "QEMU: wait for its migration at %s", p->o->path) : 0;
}

void proxy_qemu_end(struct proxy *p)
{
    if (p->child) {
        kill(p->child, SIGKILL);
        waitpid(p->child, NULL, 0);
        p->child = 0;
        return;
    }
    if (!p->q)
        return;
    qmp_cancel_by(p->q, -1);
    qmp_limit(p->q, END_LIMIT_MS); /* it may stand still in a page that does not come */
    if (proxy_qmp(p, "quit", NULL, NULL, NULL) == -ETIMEDOUT)
        kill(p->pid, SIGKILL);
}
