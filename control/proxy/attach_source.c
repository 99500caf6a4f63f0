/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * attach_source.c - the source of a move by attaching; see attach.h
 */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/uio.h>

#include "attach_private.h"
#include "autojson.h"
#include "device_state.h"
#include "failpoint.h"
#include "incoming_stream.h"
#include "movable.h"

#define MACHINE_END "-machine"

/* --- its memory --- */

static int attach_add_region(struct proxy *p, unsigned i, struct ff_error *err)
{
    const struct outside_block *b = &p->blocks[i];
    struct outside_memory m = {.fd = -1};
    int rc = outside_open(p->pid, b, false, &m, err);

    if (rc)
        return rc;
    p->maps[i].fd = m.fd;
    struct ff_region r = {.name = b->name, .len_bytes = b->len_bytes, .psize = b->psize, .fd = m.fd,
                          .fd_offset = m.fd_offset, .zero_fill = true};
    if (m.fd < 0 || !m.is_shared) { /* in no file: read where it is */
        r.fd = -1;
        r.zero_fill = !m.has_file;
        r.host = (void *)(uintptr_t)b->hva;
        return ff_source_add_region_of(p->source, &r, p->pid, err);
    }
    r.host = mmap(NULL, b->len_bytes, PROT_READ, MAP_SHARED, m.fd, (off_t)m.fd_offset);
    if (r.host == MAP_FAILED)
        return ff_error_set(err, errno, "QEMU: map block %s: %s", b->name, strerror(errno));
    p->maps[i].at = r.host;
    return ff_source_add_region(p->source, &r, err);
}

static int open_source(struct proxy *p, struct ff_error *err)
{
    struct ff_source *s;
    int rc = ff_source_new(p->address, &s, err);

    if (rc)
        return rc;
    pthread_mutex_lock(&p->lock);
    p->source = s;
    pthread_mutex_unlock(&p->lock);
    p->maps = calloc(p->n_blocks + 1, sizeof(*p->maps));
    if (!p->maps)
        return ff_error_set(err, ENOMEM, "attach: out of memory");
    for (unsigned i = 0; i < p->n_blocks; i++)
        p->maps[i].fd = -1;
    for (unsigned i = 0; i < p->n_blocks && !rc; i++)
        rc = attach_add_region(p, i, err);
    if (!rc && ff_source_wants_precopy(s))
        rc = ff_error_set(err, ENOTSUP, "precopy=1: not by attaching yet: leave it out");
    return rc ? rc : proxy_check(p, err);
}

/* --- what QEMU is told --- */

static int look_at_source(struct proxy *p, struct ff_error *err)
{
    char status[32];
    int rc = proxy_qemu_connect(p, err);

    if (rc)
        return rc;
    p->pid = p->o->pid ? p->o->pid : qmp_pid(p->q);
    if (p->pid <= 0)
        return ff_error_set(err, ESRCH, "QEMU: its process is not of this PID namespace: name it by --pid");
    rc = proxy_qemu_status(p, status, &p->was_running, err);
    if (!rc)
        rc = outside_may(p->pid, true, err);
    pthread_mutex_lock(&p->qmp_lock);
    if (!rc)
        rc = movable_check(p->q, err);
    pthread_mutex_unlock(&p->qmp_lock);
    return rc ? rc : attach_find_blocks(p, err);
}

static int begin_stream(struct proxy *p, struct ff_error *err)
{
    struct attach *a = p->attach;
    FF_AUTO_JSON json_t *type = NULL;
    int rc = proxy_qmp(p, "qom-get", json_pack("{ss ss}", "path", "/machine", "property", "type"), &type, err);

    if (rc)
        return rc;
    FF_AUTO_FREE char *machine = xstrdup(json_is_string(type) ? json_string_value(type) : "");
    size_t len = strlen(machine), end = strlen(MACHINE_END);
    if (len <= end || strcmp(machine + len - end, MACHINE_END))
        return ff_error_set(err, EPROTO, "QEMU: its machine has the type '%s' (want NAME-machine)", machine);
    machine[len - end] = '\0';
    return incoming_stream_begin(&a->stream, machine, INCOMING_PAGE_BITS, a->incoming, a->n_all, err);
}

static int read_small(struct proxy *p, struct ff_error *err)
{
    struct attach *a = p->attach;

    for (unsigned i = 0; i < a->n_all; i++) {
        struct iovec here = {NULL, a->all[i].len_bytes}, there = {(void *)(uintptr_t)a->all[i].hva, a->all[i].len_bytes};

        if (attach_is_main(&a->all[i]))
            continue;
        here.iov_base = a->small[i] = malloc(a->all[i].len_bytes + 1);
        if (!here.iov_base)
            return ff_error_set(err, ENOMEM, "attach: out of memory");
        if (process_vm_readv(p->pid, &here, 1, &there, 1, 0) != (ssize_t)a->all[i].len_bytes)
            return ff_error_set(err, errno ? errno : EIO, "QEMU: read block %s: %s", a->all[i].name,
                                strerror(errno));
        a->incoming[i].bytes = here.iov_base;
    }
    return 0;
}

/* Another monitor may have given `cont` since its state was looked at last */
static int check_still_stopped(struct qmp *q, struct ff_error *err)
{
    bool ran = false;

    qmp_drain(q);
    for (json_t *e; (e = qmp_take_event(q)); json_decref(e))
        ran |= !strcmp(text_of(e, "event"), "RESUME");
    return ran ? ff_error_set(err, EBUSY, "QEMU: somebody has given `cont` while its state was saved: move it again") : 0;
}

/* A guest that starts anew makes some blocks longer */
static int check_same_blocks(struct proxy *p, struct ff_error *err)
{
    const struct attach *a = p->attach;
    FF_AUTO_FREE struct outside_block *now = NULL;
    unsigned n = 0;
    int rc = outside_list(p->q, &now, &n, err);
    bool same = n == a->n_all;

    for (unsigned i = 0; !rc && same && i < n; i++)
        same = !strcmp(now[i].name, a->all[i].name) && now[i].len_bytes == a->all[i].len_bytes &&
               (!now[i].hva || now[i].hva == a->all[i].hva);
    return rc || same ? rc : ff_error_set(err, EAGAIN, "QEMU: its memory blocks have changed since: the guest has just "
                                          "started, or a device was plugged: move it again");
}

/* Behind it: whether the guest is to run there */
static int send_stream(struct proxy *p, struct ff_error *err)
{
    const struct incoming_stream *s = &p->attach->stream;
    FF_AUTO_FREE uint8_t *all = malloc(s->len + 1);

    if (!all)
        return ff_error_set(err, ENOMEM, "attach: out of memory");
    memcpy(all, s->data, s->len);
    all[s->len] = p->was_running;
    return ff_source_send_state(p->source, all, s->len + 1, NULL, 0, err);
}

/* Disks of a guest that is paused are not given up, since only `cont` would take them back: `stop` flushes them, and their
 * locks end with the QEMU. Since it was looked at first the guest may have got a device, or mounted a host's folder. Then a failure gives
 * the guest back: stay_here() */
static int stop_and_save(struct proxy *p, struct ff_error *err)
{
    struct attach *a = p->attach;
    FF_AUTO_FREE uint8_t *state = NULL;
    size_t len;

    pthread_mutex_lock(&p->qmp_lock);
    int rc = movable_check(p->q, err);
    for (json_t *e; !rc && (e = qmp_take_event(p->q)); json_decref(e))
        continue;
    p->pause_ns = ff_now_ns();
    a->stopped = !rc;
    if (!rc)
        rc = qmp_command(p->q, "stop", NULL, NULL, err);
    if (!rc)
        rc = check_same_blocks(p, err);
    if (!rc)
        rc = device_state_save(p->q, p->was_running, &state, &len, err);
    if (!rc) /* nobody's input changes memory any more */
        rc = hold_begin(p->pid, &a->hold, err);
    if (!rc)
        rc = check_still_stopped(p->q, err);
    atomic_store(&p->is_held, a->hold != NULL);
    pthread_mutex_unlock(&p->qmp_lock);
    if (!rc && ff_failpoint("attach.state"))
        rc = ff_error_set(err, EIO, "attach: injected");
    if (!rc)
        rc = read_small(p, err);
    if (!rc)
        rc = incoming_stream_end(&a->stream, INCOMING_PAGE_BITS, a->incoming, a->n_all, state, len, err);
    if (!rc)
        rc = proxy_check(p, err);
    if (rc)
        return rc;
    p->counts.package_bytes = a->stream.len;
    proxy_event(p, "package", json_pack("{s:I}", "bytes", (json_int_t)a->stream.len));
    return send_stream(p, err);
}

int attach_source_ready(struct proxy *p, struct ff_error *err)
{
    int rc = attach_new(p, err);

    if (!rc)
        rc = look_at_source(p, err);
    if (!rc)
        rc = open_source(p, err);
    if (!rc)
        rc = begin_stream(p, err);
    if (!rc)
        rc = ff_source_connect(p->source, proxy_config(p), err);
    if (!rc)
        rc = ff_source_publish(p->source, err);
    if (!rc)
        rc = ff_source_wait_watched(p->source, err);
    if (!rc)
        proxy_event(p, "connected", json_pack("{s:s}", "link", ff_source_link(p->source)));
    if (!rc)
        rc = stop_and_save(p, err);
    if (!rc)
        rc = ff_source_wait_ready(p->source, err);
    if (!rc)
        rc = hold_bind(p->attach->hold, err);
    if (!rc)
        proxy_event(p, "ready", NULL);
    return rc;
}

void attach_source_back(struct proxy *p)
{
    if (p->attach && p->attach->hold)
        hold_end(p->attach->hold);
    if (p->attach)
        p->attach->hold = NULL;
    atomic_store(&p->is_held, false);
}

/* One that is kept, or of which nobody knows what has become of its guest, stands still: no monitor makes it run */
void attach_source_over(struct proxy *p, int code)
{
    struct attach *a = p->attach;

    if (!a || !a->hold)
        return;
    if (!code && !p->o->keep) {
        hold_kill(a->hold);
    } else {
        kill(p->pid, SIGSTOP);
        hold_end(a->hold);
    }
    a->hold = NULL;
    atomic_store(&p->is_held, false);
}

bool attach_has_stopped(const struct proxy *p)
{
    return p->attach && p->attach->stopped;
}
