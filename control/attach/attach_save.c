/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * attach_save.c - what a source does until GO: its guest stands still, and its state is sent
 */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <sys/uio.h>

#include "attach_domain.h"
#include "autojson.h"
#include "device_state.h"
#include "failpoint.h"
#include "guest_page.h"
#include "incoming_stream.h"
#include "machine.h"
#include "movable.h"

#define HOLD_TURN_MS 2

static int look_at_source(struct attach *a, struct ff_error *err)
{
    char status[32];
    int rc = (ff_address_precopy(a->address) && !a->o->image) || a->o->returns ? written_possible(err) : 0;

    if (!rc)
        rc = attach_look(a, err);
    if (!rc)
        rc = attach_qemu_status(a, status, &a->was_running, err);
    pthread_mutex_lock(&a->qmp_lock);
    if (!rc)
        rc = movable_check(a->q, err);
    if (!rc)
        rc = guest_page_bits(a->q, &a->page_bits, err);
    pthread_mutex_unlock(&a->qmp_lock);
    if (!rc)
        rc = attach_find_blocks(a, err);
    if (!rc)
        rc = attach_earlier_open(a, err);
    if (!rc && !a->earlier)
        rc = outside_check_whole(a->pid, a->all, a->n_all, err);
    if (!rc)
        rc = attach_new_source(a, err);
    return rc ? rc : attach_check(a, err);
}

static int begin_stream(struct attach *a, struct ff_error *err)
{
    FF_AUTO_FREE char *machine = NULL;

    pthread_mutex_lock(&a->qmp_lock);
    int rc = machine_name(a->q, &machine, err);
    pthread_mutex_unlock(&a->qmp_lock);
    return rc ? rc : incoming_stream_begin(&a->stream, machine, a->page_bits, a->incoming, a->n_all, err);
}

static int read_small(struct attach *a, struct ff_error *err)
{

    for (unsigned i = 0; i < a->n_all; i++) {
        const struct outside_block *b = &a->all[i];
        struct iovec here = {NULL, b->len_bytes}, there = {(void *)(uintptr_t)b->hva, b->len_bytes};

        if (attach_is_main(b))
            continue;
        here.iov_base = a->small[i] = malloc(b->len_bytes + 1);
        if (!here.iov_base)
            return ff_error_set(err, ENOMEM, "attach: out of memory");
        ssize_t n = process_vm_readv(a->pid, &here, 1, &there, 1, 0);
        if (n != (ssize_t)b->len_bytes)
            return ff_error_set(err, n < 0 ? errno : EFAULT, "QEMU: read block %s: %s", b->name,
                                strerror(n < 0 ? errno : EFAULT));
        a->incoming[i].bytes = here.iov_base;
    }
    return 0;
}

/* Another monitor may have let it run, or reset it, since its state was looked at last */
static int check_still_stopped(struct qmp *q, struct ff_error *err)
{
    static const char *const changes[] = {"RESUME", "RESET", "DEVICE_DELETED"};
    char seen[32] = "";

    qmp_drain(q);
    for (json_t *e; (e = qmp_take_event(q)); json_decref(e))
        for (size_t i = 0; i < FF_ARRAY_LEN(changes); i++)
            if (!strcmp(text_of(e, "event"), changes[i]))
                snprintf(seen, sizeof(seen), "%s", changes[i]);
    return *seen ? ff_error_set(err, EBUSY, "QEMU: event %s while its state was saved, by another monitor: move it again",
                                seen) : 0;
}

/* What runs there, and here if the move fails, is what runs now */
static int check_same_status(struct attach *a, struct ff_error *err)
{
    FF_AUTO_JSON json_t *s = NULL;
    int rc = qmp_command(a->q, "query-status", NULL, &s, err);

    if (rc || json_is_true(json_object_get(s, "running")) == a->was_running)
        return rc;
    return ff_error_set(err, EBUSY, "QEMU: its guest was %s when the move began, and is %s now: move it again",
                        a->was_running ? "running" : "not running", text_of(s, "status"));
}

/* A guest that starts anew makes some blocks longer */
static int check_same_blocks(struct attach *a, struct ff_error *err)
{
    FF_AUTO_FREE struct outside_block *now = NULL;
    unsigned n = 0;
    int rc = outside_list(a->q, &now, &n, err);
    bool same = n == a->n_all;

    for (unsigned i = 0; !rc && same && i < n; i++)
        same = !strcmp(now[i].name, a->all[i].name) && now[i].len_bytes == a->all[i].len_bytes &&
               (!now[i].hva || now[i].hva == a->all[i].hva);
    return rc || same ? rc : ff_error_set(err, EAGAIN, "QEMU: its memory blocks have changed since: the guest has just "
                                          "started, or a device was plugged: move it again");
}

/* Behind it: whether the guest is to run there */
static int send_stream(struct attach *a, struct ff_error *err)
{
    const struct incoming_stream *s = &a->stream;
    FF_AUTO_FREE uint8_t *all = malloc(s->len + 1);

    if (!all)
        return ff_error_set(err, ENOMEM, "attach: out of memory");
    memcpy(all, s->data, s->len);
    all[s->len] = a->was_running;
    return ff_source_send_state(a->source, all, s->len + 1, NULL, 0, err);
}

static int begin_hold_source(void *opaque, const struct stat *file, struct ff_error *err)
{
    struct attach *a = opaque;

    return hold_begin_at(a->pid, file, &a->hold, err);
}

static int await_hold_source(void *opaque, struct ff_error *err)
{
    struct attach *a = opaque;

    return hold_await(a->hold, HOLD_TURN_MS, err);
}

static int saved(struct ff_error *err)
{
    return ff_failpoint("attach.state") ? ff_error_set(err, EIO, "attach: injected") : 0;
}

/* Disks are given up by a save of its own, since QEMU does that when a state is whole: the one that is sent is the later one,
 * and from the moment on at which that is whole nobody's input changes it, or memory */
static int save_held(struct attach *a, uint8_t **state, size_t *len, struct ff_error *err)
{
    const struct device_stop stop = {.begin = begin_hold_source, .await = await_hold_source, .opaque = a};
    int rc = 0;

    if (a->was_running) {
        FF_AUTO_FREE uint8_t *other = NULL;

        rc = device_state_save(a->q, true, &other, len, err);
    }
    if (!rc)
        rc = device_state_save_held(a->q, &stop, &a->save, state, len, err);
    if (!rc)
        rc = saved(err);
    return rc ? rc : check_still_stopped(a->q, err);
}

/* Of a domain libvirt has the monitor, which answers it once the QEMU goes on */
static int save_domain(struct attach *a, uint8_t **state, size_t *len, struct ff_error *err)
{
    int rc = device_state_save(a->q, a->was_running, state, len, err);

    if (!rc)
        rc = attach_domain_hold(a, err);
    return rc ? rc : saved(err);
}

/* Disks of a guest that is paused are not given up, since only `cont` would take them back: `stop` flushes
 * them, and their locks end with the QEMU. What is movable is looked at again: the guest may have got a
 * device since, or mounted a host's folder. From `stop` on a failure gives the guest back: stay_here() */
static int stop_and_save(struct attach *a, struct ff_error *err)
{
    FF_AUTO_FREE uint8_t *state = NULL;
    size_t len;

    pthread_mutex_lock(&a->qmp_lock);
    int rc = movable_check(a->q, err);
    for (json_t *e; !rc && (e = qmp_take_event(a->q)); json_decref(e))
        continue;
    if (!rc)
        rc = check_same_status(a, err);
    a->pause_ns = ff_now_ns();
    a->stopped = !rc;
    if (!rc)
        rc = a->domain ? attach_domain_stop(a, err) : qmp_command(a->q, "stop", NULL, NULL, err);
    if (!rc)
        rc = check_same_blocks(a, err);
    if (!rc)
        rc = a->domain ? save_domain(a, &state, &len, err) : save_held(a, &state, &len, err);
    atomic_store(&a->is_held, a->hold != NULL);
    pthread_mutex_unlock(&a->qmp_lock);
    if (!rc)
        rc = read_small(a, err);
    if (!rc)
        rc = incoming_stream_end(&a->stream, a->page_bits, a->incoming, a->n_all, state, len, err);
    if (!rc)
        rc = attach_check(a, err);
    if (rc)
        return rc;
    a->state_bytes = a->stream.len;
    attach_event(a, "package", json_pack("{s:I}", "bytes", (json_int_t)a->stream.len));
    rc = attach_precopy_last(a, err);
    return rc ? rc : send_stream(a, err);
}

int attach_save(struct attach *a, struct ff_error *err)
{
    char config[ATTACH_CONFIG_MAX];
    int rc = look_at_source(a, err);

    attach_config(a, config);
    if (!rc)
        rc = begin_stream(a, err);
    if (!rc)
        rc = ff_source_connect(a->source, config, err);
    if (!rc)
        rc = ff_source_publish(a->source, err);
    if (!rc)
        rc = ff_source_wait_watched(a->source, err);
    if (!rc)
        attach_event(a, "connected", json_pack("{s:s}", "link", ff_source_link(a->source)));
    if (!rc)
        rc = attach_precopy(a, err);
    if (!rc)
        rc = stop_and_save(a, err);
    if (!rc)
        rc = ff_source_wait_ready(a->source, err);
    if (!rc)
        rc = hold_bind(a->hold, err);
    if (!rc)
        attach_event(a, "ready", NULL);
    return rc;
}

void attach_save_back(struct attach *a)
{
    if (a->hold)
        hold_end(a->hold, 0);
    a->hold = NULL;
    pthread_mutex_lock(&a->qmp_lock);
    if (a->save.q) {
        qmp_cancel_by(a->q, -1);
        device_state_over(&a->save);
    }
    pthread_mutex_unlock(&a->qmp_lock);
    attach_precopy_end(a);
    atomic_store(&a->is_held, false);
}

/* One that is kept, or of which nobody knows what has become of its guest, stands still: no monitor makes it run */
void attach_save_over(struct attach *a, int code)
{
    if (!a->hold)
        return;
    if (a->domain && !code)
        attach_domain_end(a);
    else
        hold_end(a->hold, !code && !a->o->keep ? SIGKILL : SIGSTOP);
    a->hold = NULL;
    atomic_store(&a->is_held, false);
}
