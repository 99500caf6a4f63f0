/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * proxy_qemu.c - a proxy's QEMU, by QMP: what it must not have, what it is told; see proxy.h
 */
#include "proxy_state.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "autojson.h"
#include "thread.h"
#include "versions.h"

#define BEGIN_LIMIT_MS 15000 /* a QEMU that this program started makes its socket */
#define END_LIMIT_MS 2000
#define TRY_LIMIT_S 2
#define SLOWEST 10 /* bytes in a second; QEMU counts tenths of it, and takes 0 for no limit */
#define FASTEST ((json_int_t)1 << 40)
#define SLOW (1ll << 20) /* a page that is asked for passes at once, whatever the limit */

/* The stream cannot be followed, or memory comes another way */
static const char *const refused[] = {"xbzrle",
                                      "compress",
                                      "multifd",
                                      "release-ram",
                                      "block",
                                      "x-ignore-shared",
                                      "background-snapshot",
                                      "postcopy-preempt",
                                      "postcopy-blocktime",
                                      "x-colo",
                                      "mapped-ram",
                                      "dirty-bitmaps",
                                      "pause-before-switchover"};
#define LIBVIRTS_OWN "pause-before-switchover" /* libvirt uses it, and goes on by itself */

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

int proxy_qemu_refuse(struct proxy *p, struct ff_error *err)
{
    FF_AUTO_JSON json_t *list = NULL;
    int rc = proxy_qmp(p, "query-migrate-capabilities", NULL, &list, err);

    if (rc)
        return rc;
    for (size_t i = 0; i < FF_ARRAY_LEN(refused); i++) {
        const json_t *o = json_find(list, "capability", refused[i]);

        if (p->o->domain && !strcmp(refused[i], LIBVIRTS_OWN))
            continue;
        if (o && json_is_true(json_object_get(o, "state")))
            return ff_error_set(err, ENOTSUP,
                                "QEMU: capability %s: not with a proxy (turn it off by "
                                "migrate-set-capabilities)",
                                refused[i]);
    }
    return 0;
}

static int prepare_capabilities(struct proxy *p, struct ff_error *err)
{
    int rc = proxy_qemu_refuse(p, err);

    if (rc)
        return rc;
    rc = set_postcopy(p, err);
    return rc ? ff_error_context(err, "QEMU: turn postcopy-ram on") : 0;
}

/* The backend of vhost-user waits for pages in a userfaultfd of its own, and what a proxy installs does
 * not wake it. QEMU sends nothing of the state of a virtio-pmem, without a word */
static int refuse_devices(struct proxy *p, struct ff_error *err)
{
    static const char user[] =
        "not with a proxy (unplug it, or give the guest that device by QEMU or by vhost in the kernel)";
    static const struct {
        const char *command, *mark, *why;
    } lists[] = {{"info qtree", "dev: vhost-user-", user},
                 {"info network", "type=vhost-user", user},
                 {"info qtree", "dev: virtio-pmem", "QEMU does not save its state (unplug it)"}};

    for (size_t i = 0; i < FF_ARRAY_LEN(lists); i++) {
        FF_AUTO_JSON json_t *text = NULL;
        int rc = proxy_qmp(p, "human-monitor-command",
                           json_pack("{ss}", "command-line", lists[i].command), &text, err);

        if (rc)
            return ff_error_context(err, "QEMU: %s", lists[i].command);
        const char *at = strstr(json_is_string(text) ? json_string_value(text) : "",
                                lists[i].mark);
        if (at)
            return ff_error_set(err, ENOTSUP, "QEMU: %s has '%.*s': %s", lists[i].command,
                                (int)strcspn(at, ",\r\n"), at, lists[i].why);
    }
    return 0;
}

/* Before post-copy as little as possible: else a QEMU with little memory to send is at the end of a
 * pre-copy before it is told to start post-copy, which has a limit of its own: until all memory is
 * there (proxy_source_stream.c). With a downtime of 0 QEMU does not end while anything is left to send,
 * before post-copy or in it */
static int set_parameters(struct proxy *p, struct ff_error *err)
{
    FF_AUTO_JSON json_t *now = NULL;
    int rc = proxy_qmp(p, "query-migrate-parameters", NULL, &now, err);

    if (rc)
        return rc;
    if (*text_of(now, "tls-creds"))
        return ff_error_set(err, ENOTSUP,
                            "QEMU: parameter tls-creds: not with a proxy, whose link has a key of "
                            "its own (clear it by migrate-set-parameters)");
    if (!p->is_source)
        return 0;
    p->has_bandwidth = true; /* from before: its answer may be lost */
    p->old_bandwidth = json_integer_value(json_object_get(now, "max-bandwidth"));
    p->old_postcopy_bandwidth = json_integer_value(json_object_get(now, "max-postcopy-bandwidth"));
    p->old_downtime_ms = json_integer_value(json_object_get(now, "downtime-limit"));
    json_int_t rest = p->o->from_stream ? 0 : SLOW;
    return proxy_qmp(p, "migrate-set-parameters",
                     json_pack("{s:I,s:I,s:I}", "max-bandwidth", (json_int_t)SLOWEST,
                               "max-postcopy-bandwidth", rest, "downtime-limit", (json_int_t)0),
                     NULL, err);
}

int proxy_qemu_pass(struct proxy *p, bool ends, struct ff_error *err)
{
    return proxy_qmp(p, "migrate-set-parameters",
                     json_pack("{s:I}", "max-bandwidth", ends ? (json_int_t)SLOWEST : FASTEST),
                     NULL, err);
}

int proxy_qemu_full_speed(struct proxy *p, struct ff_error *err)
{
    return proxy_qmp(p, "migrate-set-parameters",
                     json_pack("{s:I}", "max-postcopy-bandwidth", (json_int_t)0), NULL, err);
}

void proxy_qemu_restore(struct proxy *p)
{
    if (!p->q || !p->has_bandwidth)
        return;
    p->has_bandwidth = false;
    qmp_cancel_by(p->q, -1);
    proxy_qmp(p, "migrate-set-parameters",
                json_pack("{s:I,s:I,s:I}", "max-bandwidth", p->old_bandwidth,
                          "max-postcopy-bandwidth", p->old_postcopy_bandwidth, "downtime-limit",
                          p->old_downtime_ms),
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
    struct proxy_version v = {0};
    int rc = proxy_qmp(p, "query-version", NULL, &answer, err);

    if (!rc)
        rc = proxy_version_check(answer, p->is_source ? "source" : "destination", p->o->untested, &v,
                                 err);
    p->has_device = !rc && v.back == PROXY_BACK_CLOSE;
    p->cancel_races = !rc && v.back == PROXY_BACK_CANCEL;
    return rc;
}

int proxy_qemu_look(struct proxy *p, struct ff_error *err)
{
    char status[32];
    int rc = proxy_qemu_connect(p, err);

    if (rc)
        return rc;
    if (!p->o->domain)
        p->pid = p->o->pid ? p->o->pid : qmp_pid(p->q);
    rc = check_version(p, err);
    if (!rc)
        rc = proxy_qemu_status(p, status, &p->was_running, err);
    if (!rc && !p->is_source && strcmp(status, "inmigrate"))
        rc = ff_error_set(err, EINVAL,
                          "QEMU: it waits for no migration, it is %s (start it with "
                          "-incoming defer)",
                          status);
    if (!rc && p->o->domain && !p->was_running)
        rc = ff_error_set(err, EINVAL, "domain %s: it is %s: libvirt's post-copy wants it running "
                                       "(virsh resume)", p->o->domain, status);
    if (!rc && p->pid <= 0)
        rc = ff_error_set(err, ESRCH, "QEMU: its process is not of this PID namespace: name it by --pid");
    if (!rc && !p->o->from_stream) {
        rc = outside_may(p->pid, true, err);
        if (rc == -EPERM && !p->o->domain)
            ff_error_context(err, "without --from-stream, which is slower");
    }
    if (!rc)
        rc = refuse_devices(p, err);
    if (!rc && !p->o->domain)
        rc = prepare_capabilities(p, err);
    if (!rc && !p->o->domain)
        rc = set_parameters(p, err);
    return rc || p->o->from_stream ? rc : find_blocks(p, err);
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

bool proxy_status_is_among(const char *status, const char *want)
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

int proxy_qemu_wait(struct proxy *p, const char *want, const char *never, int limit_ms,
                    struct ff_error *err)
{
    uint64_t end = ff_now_ms() + (uint64_t)limit_ms;
    struct ff_error why = {0};
    char status[32];

    for (;;) {
        int rc = proxy_qemu_migration(p, status, &why);

        if (!rc && proxy_status_is_among(status, want))
            return 0;
        if (rc || proxy_status_is_among(status, never))
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
    return proxy_qemu_wait(p, "completed", "failed cancelled postcopy-paused", limit_ms, err);
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

bool proxy_qemu_has_ended(const struct proxy *p)
{
    int fd = (int)syscall(SYS_pidfd_open, p->pid, 0);
    struct pollfd ended = {.fd = fd, .events = POLLIN};
    bool has = fd < 0 ? errno == ESRCH : poll(&ended, 1, END_LIMIT_MS) > 0;

    ff_close_fd(&fd);
    return has;
}
