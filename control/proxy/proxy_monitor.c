/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * proxy_monitor.c - a proxy that is told by QMP what to do, and says by QMP how far it is
 */
/**
 * DOC: Theory of Operation
 *
 * Purpose      farfork move and its agents speak to a QEMU that has the transport: object-add of the
 *              key, migrate or migrate-incoming, query-migrate. A proxy answers the same, so that
 *              they need not know what they speak to. Other commands go on to the QEMU.
 * Picture      proxy_take_address()  -> waits for migrate or migrate-incoming: the address, perhaps
 *              with the key that was added before
 *              on_event()            -> what query-migrate says from then on
 *              proxy_monitor_end()   -> the last word stays until somebody has heard it, or for
 *                                       LINGER_MS
 * States       of query-migrate: none, setup (nobody has come yet), active, device (the guest stands
 *              still at the source), postcopy-active (GO was sent), postcopy-paused (there
 *              is no link), completed; failed (the guest is the source's)
 */
#include <errno.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <signal.h>

#include "autojson.h"
#include "monitor.h"
#include "proxy_state.h"
#include "qmp_secret.h"
#include "secret.h"
#include "thread.h"

#define LINGER_MS 10000
#define LISTEN_LIMIT_MS 10000
#define SCHEME "rdma-postcopy:"
#define KEY_OPTION ",key=" KEY_SECRET

/* What an event makes of the migration. NULL: nothing */
static const char *status_after(const struct proxy *p, const char *event)
{
    static const struct {
        const char *event, *status;
    } of[] = {{"connected", "active"},       {"package", "device"},
              {"go", "postcopy-active"},     {"paused", "postcopy-paused"},
              {"resumed", "postcopy-active"}, {"lost", "postcopy-paused"},
              {"incomplete", "postcopy-paused"}, {"complete", "completed"},
              {"here", "failed"},            {"stuck", "failed"},
              {"nowhere", "failed"}};

    for (size_t i = 0; i < FF_ARRAY_LEN(of); i++)
        if (!strcmp(of[i].event, event))
            return of[i].status;
    return !strcmp(event, "failed") && !(p->is_source && p->has_forward) ? "failed" : NULL;
}

static void on_proxy_event(struct proxy *p, const char *event, const json_t *fields)
{
    const char *status = status_after(p, event);

    pthread_mutex_lock(&p->lock);
    if (status)
        p->status = status;
    if (!strcmp(event, "listening"))
        p->listens_at = json_integer_value(json_object_get(fields, "port"));
    pthread_cond_broadcast(&p->changed);
    pthread_mutex_unlock(&p->lock);
}

/* Under lock */
static json_t *query_migrate(struct proxy *p)
{
    json_t *o = json_pack("{ss so}", "status", p->status, "x-rdma-postcopy", proxy_numbers(p));

    if (*p->reason)
        json_object_set_new(o, "error-desc", json_string(p->reason));
    if (p->run_ns > p->pause_ns && p->pause_ns)
        json_object_set_new(o, "downtime",
                            json_integer((json_int_t)((p->run_ns - p->pause_ns) / 1000000)));
    if (p->listens_at)
        json_object_set_new(o, "socket-address",
                            json_pack("[{so}]", "port", json_sprintf("%d", (int)p->listens_at)));
    /* who has heard that may not ask again, and wait for this program's end */
    p->said_last |= p->is_over || !strcmp(p->status, "completed");
    pthread_cond_broadcast(&p->changed);
    return o;
}

/* The address in @uri, with the key if that is asked for */
static int take_uri(struct proxy *p, const json_t *arguments, struct ff_error *why)
{
    FF_AUTO_FREE char *text = xstrdup(text_of(arguments, "uri"));
    char *key = strstr(text, KEY_OPTION), *after = key ? key + strlen(KEY_OPTION) : NULL;

    if (strncmp(text, SCHEME, strlen(SCHEME)))
        return ff_error_set(why, EINVAL, "uri %s: want " SCHEME "HOST:PORT[,option...]", text);
    if (key && *after && *after != ',')
        key = NULL;
    if (key)
        memmove(key, after, strlen(after) + 1);
    if (p->address)
        return ff_error_set(why, EBUSY, "a migration is under way");
    if (key && !p->key)
        return ff_error_set(why, ENOENT, "there is no object " KEY_SECRET);
    struct ff_address *a = NULL;
    int rc = ff_address_parse(text + strlen(SCHEME), &a, why);
    if (!rc && key)
        rc = ff_address_set_key(a, p->key, KEY_TEXT_LEN, why);
    if (rc) {
        ff_address_free(a);
        return rc;
    }
    p->address = a;
    p->status = "setup";
    pthread_cond_broadcast(&p->changed);
    return 0;
}

/* Until there is a port, or a reason why there is none */
static int wait_listening(struct proxy *p, struct ff_error *why)
{
    uint64_t end = ff_now_ns() + LISTEN_LIMIT_MS * 1000000ull;
    int rc = 0;

    while (!rc && !p->listens_at && strcmp(p->status, "failed"))
        rc = ff_cond_wait_until(&p->changed, &p->lock, end);
    return p->listens_at ? 0 : ff_error_set(why, EIO, "%s", *p->reason ? p->reason : "no answer");
}

static int take_key_object(struct proxy *p, const json_t *arguments, const char *key, struct ff_error *why)
{
    if (strcmp(text_of(arguments, "id"), KEY_SECRET) || !key)
        return ff_error_set(why, EINVAL, "object-add: want the secret " KEY_SECRET ", of %d digits",
                            KEY_TEXT_LEN);
    key_text_free(p->key);
    p->key = key_text_new(key);
    return p->key ? 0 : ff_error_set(why, ENOMEM, "object-add: out of memory");
}

static int own_command(struct proxy *p, const char *execute, const json_t *arguments,
                       const char *key, json_t **result, struct ff_error *why)
{
    if (!strcmp(execute, "query-migrate")) {
        *result = query_migrate(p);
        return 0;
    }
    if (p->is_source && !strcmp(execute, "x-rdma-postcopy-not-started")) {
        if (p->stage != PROXY_GONE || strcmp(p->status, "postcopy-paused"))
            return ff_error_set(why, EINVAL, "the link is not broken, or the guest runs there");
        int rc = ff_source_check_mark(p->source, text_of(arguments, "mark"), why);
        if (rc)
            return rc;
        snprintf(p->not_started, sizeof(p->not_started), "%s", text_of(arguments, "mark"));
        ff_source_interrupt(p->source);
        return 0;
    }
    if (!strcmp(execute, "object-add"))
        return take_key_object(p, arguments, key, why);
    if (!strcmp(execute, "object-del")) {
        bool there = p->key;
        key_text_free(p->key);
        p->key = NULL;
        return there ? 0 : ff_error_set(why, ENOENT, "there is no object " KEY_SECRET);
    }
    if (!strcmp(execute, p->is_source ? "migrate" : "migrate-incoming")) {
        int rc = take_uri(p, arguments, why);
        return rc || p->is_source ? rc : wait_listening(p, why);
    }
    return -ENOSYS;
}

static int on_monitor_command(void *opaque, const char *execute, const json_t *arguments,
                              const char *key, json_t **result, struct ff_error *why)
{
    struct proxy *p = opaque;

    if (!strcmp(execute, "migrate_cancel")) {
        ff_error_set(why, EINTR, "canceled");
        return proxy_interrupt(p, why);
    }
    pthread_mutex_lock(&p->lock);
    int rc = own_command(p, execute, arguments, key, result, why);
    bool is_over = !strcmp(p->status, "completed");
    pthread_mutex_unlock(&p->lock);
    if (rc != -ENOSYS)
        return rc;
    if (!is_over && strncmp(execute, "query-", 6)) /* nobody is to run, stop or end it meanwhile */
        return ff_error_set(why, EPERM, "%s: not while its guest is moved by a proxy", execute);
    if (atomic_load(&p->is_held))
        return ff_error_set(why, EAGAIN, "%s: its QEMU stands still until its guest's move has ended", execute);
    return proxy_try_qmp(p, execute, json_deep_copy(arguments), result, why);
}

static int wait_told(struct proxy *p, struct ff_error *err)
{
    int rc = proxy_qemu_connect(p, err); /* for who asks meanwhile */

    if (rc)
        return rc;
    prctl(PR_SET_PDEATHSIG, SIGTERM); /* until there is something that others must not end */
    p->on_event = on_proxy_event;
    rc = monitor_start(p->o->monitor, on_monitor_command, p, &p->monitor, err);
    if (rc)
        return rc;
    pthread_mutex_lock(&p->lock);
    while (!p->failed && !p->address)
        pthread_cond_wait(&p->changed, &p->lock);
    rc = p->failed ? ff_error_set(err, p->why.code, "%s", p->why.text) : 0;
    pthread_mutex_unlock(&p->lock);
    if (!rc)
        prctl(PR_SET_PDEATHSIG, 0);
    return rc;
}

int proxy_take_address(struct proxy *p, struct ff_error *err)
{
    int rc = p->o->monitor ? wait_told(p, err) : ff_address_parse(p->o->address, &p->address, err);

    if (!rc && p->o->keyed)
        rc = proxy_read_input(p, err);
    if (rc)
        return rc;
    p->reconnect_ms = (unsigned)ff_address_reconnect_ms(p->address);
    if (ff_address_fallback(p->address))
        return ff_error_set(err, ENOTSUP, "proxy: fallback=go: needs the patched QEMU on both hosts");
    return 0;
}

void proxy_monitor_end(struct proxy *p)
{
    uint64_t end = ff_now_ns() + LINGER_MS * 1000000ull;

    if (!p->monitor)
        return;
    pthread_mutex_lock(&p->lock);
    p->is_over = true;
    while (p->address && !p->said_last && monitor_has_clients(p->monitor) &&
           !ff_cond_wait_until(&p->changed, &p->lock, end))
        ;
    pthread_mutex_unlock(&p->lock);
    monitor_end(p->monitor);
    key_text_free(p->key);
}
