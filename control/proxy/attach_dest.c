/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * attach_dest.c - the destination of a move by attaching; see attach.h
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>

#include "attach_private.h"
#include "autojson.h"
#include "thread.h"

static int look_at_dest(struct proxy *p, struct ff_error *err)
{
    char status[32];
    int rc = attach_look(p, err);

    if (!rc)
        rc = proxy_qemu_status(p, status, NULL, err);
    if (!rc && strcmp(status, "inmigrate"))
        rc = ff_error_set(err, EINVAL, "QEMU: it waits for no migration, it is %s (start it with -incoming defer)",
                          status);
    if (!rc)
        rc = attach_find_blocks(p, err);
    if (!rc) /* or it opens its disks once it has loaded, before GO */
        rc = proxy_qmp(p, "migrate-set-capabilities",
                       json_pack("{s:[{s:s,s:b}]}", "capabilities", "capability", "late-block-activate", "state", 1),
                       NULL, err);
    if (!rc)
        rc = proxy_qemu_listen(p, err);
    p->attach->listens = !rc;
    return rc;
}

bool attach_dest_listens(const struct proxy *p)
{
    return p->attach && p->attach->listens;
}

static int open_dest(struct proxy *p, struct ff_error *err)
{
    struct ff_dest *d;
    int rc = ff_dest_new(p->address, &d, err);

    if (rc)
        return rc;
    pthread_mutex_lock(&p->lock);
    p->dest = d;
    pthread_mutex_unlock(&p->lock);
    rc = ff_dest_elsewhere(d, err);
    for (unsigned i = 0; !rc && i < p->n_blocks; i++)
        rc = proxy_add_dest_region(p, &p->blocks[i], err);
    if (!rc)
        proxy_event(p, "listening", json_pack("{s:I}", "port", (json_int_t)ff_dest_port(d)));
    return rc ? rc : proxy_check(p, err);
}

static int watch_memory(struct proxy *p, struct ff_error *err)
{
    struct watch *w = &p->attach->watch;

    return p->o->watcher ? watcher_begin(w, p->o->watcher, p->pid, p->blocks, p->n_blocks, err)
                         : watch_begin(w, p->pid, 0, p->blocks, p->n_blocks, err);
}

static int take_state(struct proxy *p, struct ff_error *err)
{
    struct attach *a = p->attach;
    void *state = NULL;
    size_t len = 0;
    int rc = ff_dest_recv_state(p->dest, &state, &len, err);

    if (rc)
        return rc;
    p->pause_ns = ff_now_ns();
    a->stream = (struct incoming_stream){.data = state, .len = len, .room = len};
    if (!len || a->stream.data[len - 1] > 1)
        return ff_error_set(err, EPROTO, "attach: the source does not say whether its guest runs");
    p->was_running = a->stream.data[--a->stream.len];
    proxy_event(p, "package", json_pack("{s:I}", "bytes", (json_int_t)len));
    int fd = fcntl(a->watch.fd, F_DUPFD_CLOEXEC, 3);
    if (fd < 0)
        return ff_error_set(err, errno, "attach: duplicate a descriptor: %s", strerror(errno));
    rc = ff_dest_adopt(p->dest, fd, err);
    pthread_mutex_lock(&p->lock);
    p->adopted = !rc;
    pthread_mutex_unlock(&p->lock);
    return rc ? rc : proxy_check(p, err);
}

/* QEMU may wait for a page, and the page for a link, which does not come again before GO */
static void on_break(void *opaque, const char *reason)
{
    const struct proxy *p = opaque;

    (void)reason;
    shutdown(p->sock, SHUT_RDWR);
}

static int give_stream(struct proxy *p, struct ff_error *err)
{
    struct sockaddr_un to = {.sun_family = AF_UNIX};

    if (strlen(p->o->path) >= sizeof(to.sun_path))
        return ff_error_set(err, ENAMETOOLONG, "proxy: connect to %s: too long", p->o->path);
    strcpy(to.sun_path, p->o->path);
    p->sock = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (p->sock < 0 || connect(p->sock, (struct sockaddr *)&to, sizeof(to)))
        return ff_error_set(err, errno, "proxy: connect to %s: %s", p->o->path, strerror(errno));
    ff_dest_on_break(p->dest, on_break, p);
    int rc = proxy_write(p->sock, p->attach->stream.data, p->attach->stream.len, err);
    ff_dest_on_break(p->dest, NULL, NULL);
    shutdown(p->sock, SHUT_WR);
    return rc;
}

int attach_dest_ready(struct proxy *p, struct ff_error *err)
{
    int rc = attach_new(p, err);

    if (!rc)
        rc = look_at_dest(p, err);
    if (!rc)
        rc = open_dest(p, err);
    if (!rc)
        rc = ff_dest_accept(p->dest, proxy_config(p), err);
    if (!rc)
        proxy_event(p, "connected", json_pack("{s:s}", "link", ff_dest_link(p->dest)));
    if (!rc)
        rc = watch_memory(p, err);
    if (!rc) /* its WATCHING lets the source stop its guest */
        rc = ff_dest_start(p->dest, err);
    if (!rc)
        rc = take_state(p, err);
    return rc ? rc : give_stream(p, err);
}

/* A hole that is touched between the last page and the end of the watch waits for this */
static void *finish_main(void *opaque)
{
    struct proxy *p = opaque;
    struct ff_error why = {0};

    if (ff_dest_wait_complete(p->dest, -1, &why))
        return NULL; /* it was ended, and who ends it says why */
    if (watch_stop(&p->attach->watch, &why)) {
        proxy_say_why(p, "unconfirmed", &why);
        return NULL;
    }
    if (watch_end(&p->attach->watch, &why)) /* it keeps a descriptor that watches nothing */
        proxy_say_why(p, "unconfirmed", &why);
    return NULL;
}

int attach_dest_finish(struct proxy *p, struct ff_error *err)
{
    int rc = ff_thread_start(&p->finish_thread, finish_main, p, "attach-finish", err);

    p->has_finish = !rc;
    return rc;
}
