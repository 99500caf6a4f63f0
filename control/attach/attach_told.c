/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * attach_told.c - one side is told by QMP what to do, and says by QMP how far it is
 */
/**
 * DOC: Theory of Operation
 *
 * Purpose      farfork move and its agents speak to a QEMU that has the transport: object-add of the
 *              key, migrate or migrate-incoming, query-migrate. One side of attaching answers the same, so that
 *              they need not know what they speak to. Other commands go on to the QEMU.
 * Picture      take_address()        -> waits for migrate or migrate-incoming: the address, perhaps
 *              with the key that was added before
 *              on_event()            -> what query-migrate says from then on
 *              end_monitor()         -> the last word stays until somebody has heard it, or for
 *                                       LINGER_MS
 * States       of query-migrate: none, setup (nobody has come yet), active, device (the guest stands
 *              still at the source), pre-switchover (destination: the link broke before GO, which it takes no more),
 *              postcopy-active (GO was sent), postcopy-paused (there is no link), completed; failed (the guest is
 *              the source's)
 */
#include <errno.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <signal.h>

#include "attach_domain.h"
#include "autojson.h"
#include "farfork-return.h"
#include "monitor.h"
#include "qmp_secret.h"
#include "secret.h"
#include "thread.h"

#define LINGER_MS 10000
#define LINGER_LOOK_NS 50000000u
#define LISTEN_LIMIT_MS 10000
#define SCHEME "rdma-postcopy:"
#define KEY_OPTION ",key=" KEY_SECRET

/* What an event makes of the migration. NULL: nothing */
static const char *status_after(const struct attach *a, const char *event)
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
    return !strcmp(event, "failed") && !(a->is_source && a->stopped) ? "failed" : NULL; /* else it is taken back first */
}

static void on_attach_event(struct attach *a, const char *event, const json_t *fields)
{
    const char *status = status_after(a, event);

    pthread_mutex_lock(&a->lock);
    if (status && !a->is_source && a->stage < ATTACH_GONE && !strcmp(event, "paused"))
        status = "pre-switchover";
    if (status)
        a->status = status;
    if (!strcmp(event, "listening"))
        a->listens_at = json_integer_value(json_object_get(fields, "port"));
    pthread_cond_broadcast(&a->changed);
    pthread_mutex_unlock(&a->lock);
}

/* Under lock */
static json_t *query_migrate(struct attach *a)
{
    json_t *o = json_pack("{ss so}", "status", a->status, "x-rdma-postcopy", attach_numbers(a));

    if (a->take_back)
        json_object_set_new(json_object_get(o, "x-rdma-postcopy"), "take-back", json_string(a->take_back));
    if (*a->reason)
        json_object_set_new(o, "error-desc", json_string(a->reason));
    if (a->run_ns > a->pause_ns && a->pause_ns)
        json_object_set_new(o, "downtime",
                            json_integer((json_int_t)((a->run_ns - a->pause_ns) / 1000000)));
    if (a->listens_at)
        json_object_set_new(o, "socket-address",
                            json_pack("[{so}]", "port", json_sprintf("%d", (int)a->listens_at)));
    /* who has heard that may not ask again, and wait for this program's end */
    a->said_last |= a->is_over || !strcmp(a->status, "completed");
    pthread_cond_broadcast(&a->changed);
    return o;
}

/* The address in @uri, with the key if that is asked for */
static int take_uri(struct attach *a, const json_t *arguments, struct ff_error *why)
{
    FF_AUTO_FREE char *text = xstrdup(text_of(arguments, "uri"));
    char *key = strstr(text, KEY_OPTION), *after = key ? key + strlen(KEY_OPTION) : NULL;

    if (strncmp(text, SCHEME, strlen(SCHEME)))
        return ff_error_set(why, EINVAL, "uri %s: want " SCHEME "HOST:PORT[,option...]", text);
    if (key && *after && *after != ',')
        key = NULL;
    if (key)
        memmove(key, after, strlen(after) + 1);
    if (a->address)
        return ff_error_set(why, EBUSY, "a migration is under way");
    if (key && !a->key)
        return ff_error_set(why, ENOENT, "there is no object " KEY_SECRET);
    struct ff_address *address = NULL;
    int rc = ff_address_parse(text + strlen(SCHEME), &address, why);
    if (!rc && key)
        rc = ff_address_set_key(address, a->key, KEY_TEXT_LEN, why);
    if (rc) {
        ff_address_free(address);
        return rc;
    }
    a->address = address;
    snprintf(a->sent_to, sizeof(a->sent_to), "%.*s", (int)strcspn(text, ","), text);
    a->status = "setup";
    pthread_cond_broadcast(&a->changed);
    return 0;
}

/* Until there is a port, or a reason why there is none */
static int wait_listening(struct attach *a, struct ff_error *why)
{
    uint64_t end = ff_now_ns() + LISTEN_LIMIT_MS * 1000000ull;
    int rc = 0;

    while (!rc && !a->listens_at && strcmp(a->status, "failed"))
        rc = ff_cond_wait_until(&a->changed, &a->lock, end);
    return a->listens_at ? 0 : ff_error_set(why, EIO, "%s", *a->reason ? a->reason : "no answer");
}

static int take_key_object(struct attach *a, const json_t *arguments, const char *key, struct ff_error *why)
{
    if (strcmp(text_of(arguments, "id"), KEY_SECRET) || !key)
        return ff_error_set(why, EINVAL, "object-add: want the secret " KEY_SECRET ", of %d digits",
                            KEY_TEXT_LEN);
    key_text_free(a->key);
    a->key = key_text_new(key);
    return a->key ? 0 : ff_error_set(why, ENOMEM, "object-add: out of memory");
}

/* Under lock. The address guards against a command that was meant for another move */
static int check_lost(const struct attach *a, const json_t *arguments, struct ff_error *why)
{
    const char *uri = text_of(arguments, "uri");

    if (a->stage < ATTACH_GONE || strcmp(a->status, "postcopy-paused"))
        return ff_error_set(why, EINVAL, "the link is not broken, or the guest was not let go of");
    if (a->is_source ? !ff_address_fallback(a->address) : !ff_dest_has_fallback(a->dest))
        return ff_error_set(why, EINVAL, "the guest was let go for good, without fallback=go");
    if (a->is_source && (strncmp(uri, a->sent_to, strlen(a->sent_to)) || strcspn(uri, ",") != strlen(a->sent_to)))
        return ff_error_set(why, EINVAL, "this guest was sent to %s, not to %s", a->sent_to, uri);
    return 0;
}

/* Under lock. With fallback=go */
static int lost_command(struct attach *a, const json_t *arguments, struct ff_error *why)
{
    int rc = check_lost(a, arguments, why);

    if (rc)
        return rc;
    if (a->is_source) {
        a->takes_back = true;
        a->take_back = "waiting";
        ff_source_interrupt(a->source);
    } else {
        ff_dest_release(a->dest);
        ff_dest_interrupt(a->dest); /* with all memory here, that was all it waited for */
    }
    pthread_cond_broadcast(&a->changed);
    return 0;
}

/* Under lock. What the guest of a visit is to get first; what it has waited for */
static int working_set_command(struct attach *a, const json_t *arguments, json_t **result, struct ff_error *why)
{
    const char *first = json_string_value(json_object_get(arguments, "first"));
    bool is_here = a->stage == ATTACH_GONE || a->stage == ATTACH_RUNS;

    if (!a->dest || !ff_address_visit(a->address) || a->stage == ATTACH_OVER || (first && is_here))
        return ff_error_set(why, EINVAL, "no guest visits this QEMU, or it is here already");
    int rc = first ? ff_dest_first(a->dest, first, why) : 0;
    if (rc)
        return rc;
    FF_AUTO_FREE char *text = is_here ? ff_dest_working_set(a->dest) : NULL;
    *result = json_pack("{ss}", "text", text ? text : "");
    return 0;
}

static int own_command(struct attach *a, const char *execute, const json_t *arguments,
                       const char *key, json_t **result, struct ff_error *why)
{
    if (!strcmp(execute, "query-migrate")) {
        *result = query_migrate(a);
        return 0;
    }
    if (a->is_source && !strcmp(execute, "x-rdma-postcopy-not-started")) {
        if (!a->hears_not_started || a->stage != ATTACH_GONE || strcmp(a->status, "postcopy-paused"))
            return ff_error_set(why, EINVAL, "the link is not broken, or the guest runs there, or it is too late");
        int rc = ff_source_check_mark(a->source, text_of(arguments, "mark"), why);
        if (rc)
            return rc;
        snprintf(a->not_started, sizeof(a->not_started), "%s", text_of(arguments, "mark"));
        ff_source_interrupt(a->source);
        pthread_cond_broadcast(&a->changed);
        return 0;
    }
    if (!strcmp(execute, a->is_source ? "x-rdma-postcopy-take-back" : "x-rdma-postcopy-release"))
        return lost_command(a, arguments, why);
    if (!a->is_source && !strcmp(execute, "x-rdma-postcopy-working-set"))
        return working_set_command(a, arguments, result, why);
    if (!strcmp(execute, "x-farfork-visit"))
        return attach_visit_command(a, result, why);
    if (a->is_source && !strcmp(execute, "x-farfork-give-up"))
        return attach_give_up_command(a, why);
    if (a->is_source && !strcmp(execute, "x-farfork-let-go"))
        return attach_let_go_command(a, why);
    if (!strcmp(execute, "x-farfork-returned"))
        return attach_returned_command(a, arguments, why);
    if (!strcmp(execute, "object-add"))
        return take_key_object(a, arguments, key, why);
    if (!strcmp(execute, "object-del")) {
        bool there = a->key;
        key_text_free(a->key);
        a->key = NULL;
        return there ? 0 : ff_error_set(why, ENOENT, "there is no object " KEY_SECRET);
    }
    if (!strcmp(execute, a->is_source ? "migrate" : "migrate-incoming")) {
        int rc = take_uri(a, arguments, why);
        return rc || a->is_source ? rc : wait_listening(a, why);
    }
    return -ENOSYS;
}

static int on_monitor_command(void *opaque, const char *execute, const json_t *arguments,
                              const char *key, json_t **result, struct ff_error *why)
{
    struct attach *a = opaque;

    if (!strcmp(execute, "migrate_cancel")) {
        ff_error_set(why, EINTR, "canceled");
        return attach_interrupt(a, why);
    }
    if (!a->is_source && !strcmp(execute, "x-farfork-visit")) {
        int left = attach_lease_may_leave(a, why);
        if (left)
            return left;
    }
    if (!a->is_source && !strcmp(execute, "x-rdma-postcopy-release") && json_is_true(json_object_get(arguments, "heard")))
        return attach_lease_released(a, why);
    pthread_mutex_lock(&a->lock);
    int rc = own_command(a, execute, arguments, key, result, why);
    bool is_over = !strcmp(a->status, "completed");
    bool visits = !a->is_source && a->stage == ATTACH_RUNS && ff_address_visit(a->address);
    pthread_mutex_unlock(&a->lock);
    if (rc != -ENOSYS)
        return rc;
    bool asks = visits || !strncmp(execute, "query-", 6) || !strcmp(execute, "x-debug-query-block-graph");
    if ((!is_over || a->is_source) && !asks) /* nobody is to run, stop or end it */
        return ff_error_set(why, EPERM, "%s: not while its guest is moved", execute);
    int passed = attach_try_qmp(a, execute, json_deep_copy(arguments), result, why);
    return passed == -EAGAIN || passed == -EBUSY ? passed : monitor_passed_on(passed, why);
}

static int wait_told(struct attach *a, struct ff_error *err)
{
    prctl(PR_SET_PDEATHSIG, SIGTERM); /* until there is something that others must not end */
    if (getppid() != a->starter)
        return ff_error_set(err, EINTR, "attach: who started it has ended");
    int rc = attach_qemu_connect(a, err); /* for who asks meanwhile */

    if (rc)
        return rc;
    a->on_event = on_attach_event;
    rc = monitor_start(a->o->monitor, on_monitor_command, a, &a->monitor, err);
    if (rc)
        return rc;
    pthread_mutex_lock(&a->lock);
    while (!a->failed && !a->address)
        pthread_cond_wait(&a->changed, &a->lock);
    rc = a->failed ? ff_error_set(err, a->why.code, "%s", a->why.text) : 0;
    pthread_mutex_unlock(&a->lock);
    if (!rc)
        prctl(PR_SET_PDEATHSIG, 0);
    return rc;
}

static int take_address(struct attach *a, struct ff_error *err)
{
    int rc = a->o->monitor ? wait_told(a, err) : ff_address_parse(a->o->address, &a->address, err);

    if (!rc && a->o->domain)
        rc = attach_read_input(a, err);
    if (rc)
        return rc;
    a->reconnect_ms = (unsigned)ff_address_reconnect_ms(a->address);
    if (a->o->domain && ff_address_fallback(a->address))
        return ff_error_set(err, ENOTSUP, "fallback=go: not with a domain: libvirt has its QEMU there, and its disks");
    return 0;
}

static void end_monitor(struct attach *a)
{
    uint64_t end = ff_now_ns() + LINGER_MS * 1000000ull;

    if (!a->monitor)
        return;
    pthread_mutex_lock(&a->lock);
    a->is_over = true;
    bool counts = (a->o->returns || a->o->image) && !a->is_source && !strcmp(a->status, "completed"); /* who waits for it asks now and then */
    while (a->address && !a->said_last && (counts || monitor_has_clients(a->monitor)) && ff_now_ns() < end)
        ff_cond_wait_until(&a->changed, &a->lock, ff_now_ns() + LINGER_LOOK_NS); /* nobody says that a client has gone */
    pthread_mutex_unlock(&a->lock);
    monitor_end(a->monitor);
    key_text_free(a->key);
}

int attach_run(struct attach *a, const struct attach_options *o, bool is_source, int (*follow)(struct attach *a))
{
    struct ff_error why = {0};
    int rc = attach_open(a, o, is_source, &why), code = ATTACH_EXIT_HERE;

    if (!rc)
        rc = take_address(a, &why);
    if (rc) {
        attach_say_why(a, "failed", &why);
    } else {
        attach_begins(a);
        code = follow(a);
        attach_summary(a, code);
    }
    ff_close_fd(&a->alone); /* who hears the last word may begin anew */
    attach_last_word(a, code);
    end_monitor(a);
    return code;
}
