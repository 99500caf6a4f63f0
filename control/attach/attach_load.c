/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * attach_load.c - what a destination does until READY: its QEMU is watched, and loads the state
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>

#include "attach_domain.h"
#include "autojson.h"
#include "discards.h"
#include "farfork-return.h"
#include "thread.h"

static int look_at_dest(struct attach *a, struct ff_error *err)
{
    char status[32];
    int rc = attach_look(a, err);

    if (!rc)
        rc = attach_qemu_status(a, status, NULL, err);
    if (!rc && strcmp(status, "inmigrate"))
        rc = ff_error_set(err, EINVAL, "QEMU: it waits for no migration, it is %s (start it with -incoming defer)",
                          status);
    if (!rc)
        rc = attach_find_blocks(a, err);
    if (!rc) /* or it opens its disks once it has loaded, before GO */
        rc = attach_qmp(a, "migrate-set-capabilities",
                       json_pack("{s:[{s:s,s:b}]}", "capabilities", "capability", "late-block-activate", "state", 1),
                       NULL, err);
    if (!rc)
        rc = attach_qemu_listen(a, err);
    a->listens = !rc;
    return rc;
}

/* precopy=1: what was written at the source since it came */
static int on_discard(void *opaque, const struct iovec *part, unsigned n, struct ff_error *err)
{
    struct attach *a = opaque;
    int rc = 0;

    for (unsigned i = 0; i < n && !rc; i += WATCH_PARTS)
        rc = watch_discard(&a->watch, part + i, FF_MIN(n - i, WATCH_PARTS), err);
    return rc;
}

static int open_dest(struct attach *a, struct ff_error *err)
{
    struct ff_dest *d;
    int rc = ff_dest_new(a->address, &d, err);

    if (rc)
        return rc;
    pthread_mutex_lock(&a->lock);
    a->dest = d;
    pthread_mutex_unlock(&a->lock);
    rc = ff_dest_elsewhere(d, err);
    if (a->domain)
        ff_dest_on_table(d, attach_restore_find, a);
    ff_dest_on_discard(d, on_discard, a);
    attach_lease_offer(a);
    rc = rc ? rc : attach_earlier_use(a, err);
    for (unsigned i = 0; !rc && i < a->n_main; i++)
        rc = attach_add_dest_region(a, &a->main[i], err);
    if (!rc)
        attach_event(a, "listening", json_pack("{s:I}", "port", (json_int_t)ff_dest_port(d)));
    return rc ? rc : attach_check(a, err);
}

static int watch_memory(struct attach *a, struct ff_error *err)
{
    struct watch *w = &a->watch;
    struct watch_device d = {.there = -1};

    pthread_mutex_lock(&a->qmp_lock);
    int rc = a->domain ? 0 : watch_pass_device(a->q, &d, err); /* libvirt's monitor is not free while it restores */
    pthread_mutex_unlock(&a->qmp_lock);
    if (rc)
        return rc;
    rc = a->o->watcher ? watcher_begin(w, a->o->watcher, a->pid, d.there, a->main, a->n_main, err)
                       : watch_begin(w, a->pid, 0, d.there, a->main, a->n_main, ff_address_visit(a->address), err);
    pthread_mutex_lock(&a->qmp_lock);
    watch_drop_device(a->q, &d);
    pthread_mutex_unlock(&a->qmp_lock);
    return rc;
}

/* Before WATCHING: a pass installs pages from then on */
static int adopt_watch(struct attach *a, struct ff_error *err)
{
    int fd = fcntl(a->watch.fd, F_DUPFD_CLOEXEC, 3);

    return fd < 0 ? ff_error_set(err, errno, "attach: duplicate a descriptor: %s", strerror(errno))
                  : ff_dest_adopt(a->dest, fd, err);
}

static int take_state(struct attach *a, struct ff_error *err)
{
    void *state = NULL;
    size_t len = 0;
    struct ff_stats st;
    int rc = ff_dest_recv_state(a->dest, &state, &len, err);

    if (rc)
        return rc;
    a->pause_ns = ff_now_ns();
    a->stream = (struct incoming_stream){.data = state, .len = len, .room = len};
    if (!len || a->stream.data[len - 1] > 1)
        return ff_error_set(err, EPROTO, "attach: the source does not say whether its guest runs");
    a->was_running = a->stream.data[--a->stream.len];
    a->state_bytes = len;
    ff_dest_stats(a->dest, &st);
    attach_event(a, "package",
                 json_pack("{s:I,s:I,s:I}", "bytes", (json_int_t)len, "precopied_bytes", (json_int_t)st.bytes_precopied,
                           "discarded_bytes", (json_int_t)st.bytes_discarded));
    return attach_check(a, err);
}

/* QEMU may wait for a page, and the page for a link, which does not come again before GO */
static void on_break(void *opaque, const char *reason)
{
    const struct attach *a = opaque;

    (void)reason;
    shutdown(a->sock, SHUT_RDWR);
}

static int write_all(int sock, const uint8_t *from, size_t len, struct ff_error *err)
{
    while (len) {
        ssize_t n = send(sock, from, len, MSG_NOSIGNAL);

        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return ff_error_set(err, errno, "QEMU: write its stream: %s", strerror(errno));
        from += n;
        len -= (size_t)n;
    }
    return 0;
}

static int give_stream(struct attach *a, struct ff_error *err)
{
    struct sockaddr_un to = {.sun_family = AF_UNIX};

    if (strlen(a->o->path) >= sizeof(to.sun_path))
        return ff_error_set(err, ENAMETOOLONG, "attach: connect to %s: too long", a->o->path);
    strcpy(to.sun_path, a->o->path);
    a->sock = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (a->sock < 0 || connect(a->sock, (struct sockaddr *)&to, sizeof(to)))
        return ff_error_set(err, errno, "attach: connect to %s: %s", a->o->path, strerror(errno));
    ff_dest_on_break(a->dest, on_break, a);
    int rc = write_all(a->sock, a->stream.data, a->stream.len, err);
    ff_dest_on_break(a->dest, NULL, NULL);
    shutdown(a->sock, SHUT_WR);
    return rc;
}

/* What a visit cannot do yet is refused before anything is touched */
static int check_visit(const struct attach *a, struct ff_error *err)
{
    if (!ff_address_visit(a->address))
        return 0;
    if (a->domain || a->o->watcher)
        return ff_error_set(err, ENOTSUP, "visit=on: not %s", a->domain ? "with a domain of libvirt's"
                            : "by a watcher: the agent has to be without its filter (--unconfined)");
    return written_possible(err);
}

static int check_discards(struct attach *a, struct ff_error *err)
{
    pthread_mutex_lock(&a->qmp_lock);
    int rc = ff_address_visit(a->address) ? discards_check(a->q, err) : 0;
    pthread_mutex_unlock(&a->qmp_lock);
    return rc;
}

int attach_load(struct attach *a, struct ff_error *err)
{
    char config[ATTACH_CONFIG_MAX];
    int rc = check_visit(a, err);

    if (!rc)
        rc = a->domain ? attach_restore_begin(a, err) : look_at_dest(a, err);
    if (!rc)
        rc = attach_replaced_look(a, err);
    if (!rc)
        rc = check_discards(a, err);
    if (!rc)
        rc = attach_earlier_open(a, err);
    attach_config(a, config);
    if (!rc)
        rc = open_dest(a, err);
    if (!rc)
        rc = ff_dest_accept(a->dest, config, err);
    if (!rc)
        attach_event(a, "connected", json_pack("{s:s}", "link", ff_dest_link(a->dest)));
    if (!rc)
        rc = watch_memory(a, err);
    if (!rc) /* its WATCHING lets the source stop its guest */
        rc = ff_dest_start(a->dest, err);
    if (!rc)
        rc = attach_lease_bind(a, err);
    if (!rc)
        rc = adopt_watch(a, err);
    if (!rc)
        rc = take_state(a, err);
    if (!rc && a->domain)
        return attach_restore_give(a, err);
    if (!rc)
        rc = give_stream(a, err);
    return rc ? rc : attach_qemu_wait_loaded(a, err);
}

/* A hole that is touched between the last page and the end of the watch waits for this */
static void *finish_main(void *opaque)
{
    struct attach *a = opaque;
    struct ff_error why = {0};

    a->watch_rc = ff_dest_wait_complete(a->dest, -1, &a->watch_why);
    if (!a->watch_rc)
        a->watch_rc = watch_stop(&a->watch, &a->watch_why);
    if (!a->watch_rc && watch_end(&a->watch, &why)) /* it keeps a descriptor that watches nothing */
        attach_say_why(a, "unconfirmed", &why);
    return NULL;
}

/* Every page is here, and the source is about to hear that nothing depends on it: so the holes must read as zeros */
static int on_complete(void *opaque, struct ff_error *err)
{
    struct attach *a = opaque;

    if (a->has_finish)
        pthread_join(a->finish_thread, NULL);
    else
        finish_main(a);
    a->has_finish = false;
    if (!a->watch_rc)
        attach_tell_returned(a);
    return a->watch_rc ? ff_error_set(err, -a->watch_rc, "%s", a->watch_why.text) : 0;
}

void attach_load_finish(struct attach *a)
{
    struct ff_error ignored; /* then on_complete() does it */

    ff_dest_on_complete(a->dest, on_complete, a);
    a->has_finish = !ff_thread_start(&a->finish_thread, finish_main, a, "attach-finish", &ignored);
}
