/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * proxy_dest.c - the destination's proxy: its QEMU's stream from the tunnel, its memory by its own
 * userfaultfd
 */
/**
 * DOC: Theory of Operation
 *
 * Picture      main thread: the engine's calls and QMP, in proxy.h's order. The threads beside it:
 *              proxy_dest_stream.c
 * Failure      before GO: the QEMU here is ended, it never ran the guest. After it the guest is here.
 */
#include "proxy_state.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <sys/socket.h>
#include <sys/un.h>

#include "autojson.h"
#include "domain.h"
#include "process.h"
#include "thread.h"

#define COMPLETED_LIMIT_MS 30000
#define CONT_LIMIT_MS (24 * 3600 * 1000) /* it may wait for pages, and they for a link */
#define QEMU_SNDBUF (64 << 10) /* what waits there when the package comes delays it: pages of zeros */
#define GONE_LIMIT_MS 5000 /* for a source that is to hear that the QEMU has ended */

/* --- before GO --- */

static int start_child(struct proxy *p, struct ff_error *err)
{
    int null = open("/dev/null", O_RDONLY | O_CLOEXEC), rc;
    int fds[] = {null, STDERR_FILENO, STDERR_FILENO};
    struct ff_process child = {.fds = fds, .argv = p->o->argv};

    rc = ff_process_exec(&child, &p->child, NULL, err);
    ff_close_fd(&null);
    if (!rc)
        proxy_event(p, "started", json_pack("{s:I}", "pid", (json_int_t)p->child));
    return rc;
}

static int prepare_dest(struct proxy *p, struct ff_error *err)
{
    struct ff_dest *d;
    int rc = p->o->argv ? start_child(p, err) : 0;

    if (!rc && !p->o->domain)
        rc = proxy_qemu_look(p, err);
    if (!rc && !p->o->domain)
        rc = proxy_qemu_listen(p, err);
    if (!rc)
        rc = proxy_dest_stream(p, err);
    if (!rc)
        rc = ff_dest_new(p->address, &d, err);
    if (rc)
        return rc;
    pthread_mutex_lock(&p->lock);
    p->dest = d;
    pthread_mutex_unlock(&p->lock);
    rc = p->o->from_stream ? 0 : ff_dest_elsewhere(d, err);
    for (unsigned i = 0; !rc && i < p->n_blocks; i++)
        rc = proxy_add_dest_region(p, &p->blocks[i], err);
    if (!rc && p->o->domain)
        rc = domain_await(p, err);
    if (!rc)
        rc = ff_dest_tunnel(d, &p->tunnel, err);
    if (!rc)
        proxy_event(p, "listening", json_pack("{s:I}", "port", (json_int_t)ff_dest_port(d)));
    return rc ? rc : proxy_check(p, err);
}

static int connect_to_qemu(struct proxy *p, struct ff_error *err)
{
    struct sockaddr_un a = {.sun_family = AF_UNIX};

    if (strlen(p->o->path) >= sizeof(a.sun_path))
        return ff_error_set(err, ENAMETOOLONG, "proxy: connect to %s: too long", p->o->path);
    strcpy(a.sun_path, p->o->path);
    p->sock = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (p->sock < 0 || connect(p->sock, (struct sockaddr *)&a, sizeof(a)))
        return ff_error_set(err, errno, "proxy: connect to %s: %s", p->o->path, strerror(errno));
    setsockopt(p->sock, SOL_SOCKET, SO_SNDBUF, &(int){QEMU_SNDBUF}, sizeof(int));
    if (p->o->domain)
        unlink(p->o->path); /* a QEMU that libvirt ends leaves it */
    return proxy_start_threads(p, proxy_forward_dest, proxy_back_dest, err);
}

static int receive_state(struct proxy *p, struct ff_error *err)
{
    void *state = NULL;
    size_t len = 0;
    int rc = ff_dest_recv_state(p->dest, &state, &len, err);

    if (rc)
        return rc;
    pthread_mutex_lock(&p->lock);
    p->pause_ns = ff_now_ns();
    p->package = state;
    p->package_len = len;
    pthread_mutex_unlock(&p->lock);
    proxy_event(p, "package", json_pack("{s:I}", "bytes", (json_int_t)len));
    return proxy_check(p, err);
}

/* To QEMU, which watches its memory then */
static int pass_package(struct proxy *p, struct ff_error *err)
{
    pthread_mutex_lock(&p->lock);
    p->package_whole = true;
    pthread_cond_broadcast(&p->changed);
    while (!p->package_passed && !p->failed && !p->stream_lost)
        pthread_cond_wait(&p->changed, &p->lock);
    int rc = !p->package_passed && p->stream_lost
                 ? ff_error_set(err, EPIPE, "QEMU: its package did not pass: %s", p->lost_why.text) : 0;
    pthread_mutex_unlock(&p->lock);
    if (!rc)
        rc = proxy_check(p, err);
    return rc || p->o->from_stream ? rc : proxy_adopt_userfaultfd(p, err);
}

/* Until QEMU has loaded the state: it would run now, if it had not been told to stop */
static int wait_loaded(struct proxy *p, struct ff_error *err)
{
    char status[32], migration[32];
    struct ff_error why = {0};
    int rc;

    for (;;) {
        rc = proxy_check(p, err);
        if (!rc)
            rc = proxy_qemu_status(p, status, NULL, err);
        if (rc || !strcmp(status, "paused"))
            return rc;
        rc = proxy_qemu_migration(p, migration, &why);
        if (rc || strcmp(status, "inmigrate") || !strcmp(migration, "failed"))
            return ff_error_set(err, EREMOTEIO, "QEMU: load the device state: %s (%s)", why.text,
                                status);
        poll(NULL, 0, 1);
    }
}

static int until_dest_ready(struct proxy *p, struct ff_error *err)
{
    int rc = prepare_dest(p, err);

    if (!rc)
        rc = ff_dest_accept(p->dest, proxy_config(p), err);
    if (!rc)
        proxy_event(p, "connected", json_pack("{s:s}", "link", ff_dest_link(p->dest)));
    if (!rc)
        rc = ff_dest_start(p->dest, err);
    if (!rc)
        rc = connect_to_qemu(p, err);
    if (!rc)
        rc = receive_state(p, err);
    if (!rc && p->o->domain)
        return domain_wait_prepared(p, err);
    if (!rc)
        rc = pass_package(p, err);
    return rc ? rc : wait_loaded(p, err);
}

/* --- after GO --- */

/* In a thread of its own: it may wait for pages, and they for the next link */
static void *old_run_cont(void *opaque)
{
    struct proxy *p = opaque;
    struct ff_error why = {0};

    qmp_limit(p->q, CONT_LIMIT_MS);
    int rc = proxy_qmp(p, "cont", NULL, NULL, &why);

    pthread_mutex_lock(&p->lock);
    p->cont_done = true;
    p->cont_rc = rc;
    p->cont_why = why;
    pthread_cond_broadcast(&p->changed);
    pthread_mutex_unlock(&p->lock);
    return NULL;
}

static int old_next_link(struct proxy *p, struct ff_error *err)
{
    struct ff_error why = {0};
    int rc;

    if ((err->code == ESRCH || proxy_check(p, NULL)) && proxy_qemu_has_ended(p))
        return -ESRCH; /* that broke the link */
    proxy_say_why(p, "paused", err);
    if (!p->reconnect_ms)
        return -err->code;
    pthread_mutex_lock(&p->lock);
    p->broke = false;
    pthread_mutex_unlock(&p->lock);
    rc = ff_dest_recover(p->dest, (int)p->reconnect_ms, &why);
    if (rc)
        *err = why;
    else
        proxy_event(p, "resumed", NULL);
    return rc;
}

/* Where only the library notices: the QEMU waits in `cont` for a page, and the page for a link */
static void old_on_link_broken(void *opaque, const char *reason)
{
    struct proxy *p = opaque;

    (void)reason;
    pthread_mutex_lock(&p->lock);
    p->broke = true;
    pthread_cond_broadcast(&p->changed);
    pthread_mutex_unlock(&p->lock);
}

static int old_run_guest(struct proxy *p, struct ff_error *err)
{
    int rc = ff_thread_start(&p->cont_thread, old_run_cont, p, "proxy-cont", err);

    if (rc)
        return rc;
    ff_dest_on_break(p->dest, old_on_link_broken, p);
    pthread_mutex_lock(&p->lock);
    while (!rc && !p->cont_done) {
        if (!p->broke) {
            pthread_cond_wait(&p->changed, &p->lock);
            continue;
        }
        pthread_mutex_unlock(&p->lock);
        ff_error_set(err, EPIPE, "the link broke while the guest was started");
        rc = old_next_link(p, err);
        pthread_mutex_lock(&p->lock);
    }
    bool done = p->cont_done;
    pthread_mutex_unlock(&p->lock);
    p->cont_waits = !done;
    ff_dest_on_break(p->dest, NULL, NULL);
    if (done) {
        pthread_join(p->cont_thread, NULL);
        qmp_limit(p->q, PROXY_QMP_LIMIT_MS);
    }
    if (!rc && p->cont_rc)
        rc = ff_error_set(err, p->cont_why.code, "%s", p->cont_why.text);
    return rc;
}

/* All of main memory is here that does not come by the stream, and nobody answers for holes in it any more */
static int leave_incomplete(struct proxy *p, struct ff_error *err)
{
    struct ff_error why = {0};

    if (p->n_blocks && outside_unwatch(p->pid, p->blocks, p->n_blocks, &why))
        proxy_say_why(p, "unconfirmed", &why);
    return ff_error_set(err, ENODATA,
                        "%sthe guest runs; but %s, and who touches that waits for ever: save what you can "
                        "from inside, and start the guest anew",
                        p->n_blocks ? "all of main memory is here, and " : "", p->lost_why.text);
}

/* 0: the guest runs here, and every page has come that its proxy serves */
static int old_fetch_all(struct proxy *p, struct ff_error *err)
{
    struct ff_error why = {0};
    int rc = p->o->domain     ? pass_package(p, err) /* and libvirt says `cont` */
             : p->was_running ? old_run_guest(p, err)
                              : 0; /* or it is paused, as it was there */

    if (rc)
        return rc;
    proxy_runs(p);
    if (proxy_start_finish(p, &why)) /* then QEMU has the end of its stream once that comes */
        proxy_say_why(p, "slow", &why);
    rc = ff_dest_running(p->dest, err);
    if (!rc)
        rc = ff_dest_wait_done(p->dest, err);
    while (rc) {
        rc = old_next_link(p, err);
        if (rc)
            return rc;
        rc = ff_dest_wait_done(p->dest, err);
    }
    return 0;
}

/* 0: the guest has all of its memory */
static int finish_here(struct proxy *p, struct ff_error *err)
{
    struct ff_error why = {0};

    pthread_mutex_lock(&p->lock);
    bool lost = p->stream_lost; /* before the tunnel's end, which has been waited for */
    if (!lost && p->o->from_stream && !atomic_load(&p->has_all)) {
        lost = true;
        ff_error_set(&p->lost_why, ENODATA, "its QEMU has not said that it has all of its memory");
    }
    pthread_mutex_unlock(&p->lock);
    if (lost)
        return leave_incomplete(p, err);
    /* every page is here: that QEMU has ended since changes nothing */
    if (!p->o->domain && proxy_qemu_completed(p, COMPLETED_LIMIT_MS, &why))
        proxy_say_why(p, "unconfirmed", &why);
    return 0;
}

/* READY was sent: 0: GO has come; -ESTALE: it never will */
static int old_wait_go(struct proxy *p, struct ff_error *err)
{
    int rc = ff_dest_ready(p->dest, err);

    if (!rc) {
        proxy_event(p, "ready", NULL);
        rc = ff_dest_wait_go(p->dest, err);
    }
    if (rc && rc != -EREMOTEIO && rc != -ECANCELED && ff_dest_is_ready(p->dest) &&
        p->reconnect_ms) {
        struct ff_error why = {0};

        proxy_say_why(p, "paused", err);
        pthread_mutex_lock(&p->lock);
        unsigned limit =
            p->qemu_gone ? FF_MIN(p->reconnect_ms, (unsigned)GONE_LIMIT_MS) : p->reconnect_ms;
        pthread_mutex_unlock(&p->lock);
        if (ff_dest_recover(p->dest, (int)limit, &why) != -ESTALE)
            *err = why;
    }
    if (!rc) {
        proxy_set_stage(p, PROXY_GONE, NULL);
        proxy_event(p, "go", NULL);
    }
    return rc;
}

static int old_follow_dest(struct proxy *p)
{
    struct ff_error why = {0};
    int rc = until_dest_ready(p, &why);

    if (!rc)
        rc = proxy_set_stage(p, PROXY_LET_GO, &why);
    if (rc)
        proxy_check(p, &why); /* the first reason, if a thread had one */
    else
        rc = old_wait_go(p, &why);
    if (rc) {
        proxy_fail(p, &why);
        proxy_say_why(p, "failed", &why);
        if (p->has_forward || p->child )
            proxy_qemu_end(p);
        return PROXY_EXIT_HERE;
    }
    rc = old_fetch_all(p, &why);
    bool all = !rc;
    if (all)
        rc = finish_here(p, &why);
    if (rc) {
        if (proxy_qemu_has_ended(p)) {
            ff_error_set(&why, ESRCH, "its QEMU here has ended, and the guest with it");
            ff_dest_refuse(p->dest, why.text, GONE_LIMIT_MS, NULL);
        }
        proxy_say_why(p, "incomplete", &why);
    } else {
        proxy_event(p, "complete", NULL);
    }
    if (all && !ff_dest_is_told(p->dest) && p->reconnect_ms) /* the source may not know yet */
        ff_dest_recover(p->dest, (int)p->reconnect_ms, NULL);
    return rc ? PROXY_EXIT_TROUBLE : 0;
}

int proxy_dest_run(const struct proxy_options *o)
{
    static struct proxy p; /* threads may use it until the process has ended */
    struct ff_error why = {0};
    int rc = proxy_open(&p, o, false, &why), code = PROXY_EXIT_HERE;

    if (!rc)
        rc = proxy_take_address(&p, &why);
    if (rc)
        proxy_say_why(&p, "failed", &why);
    else
        proxy_begins(&p);
    if (!rc)
        code = old_follow_dest(&p);
    if (!p.cont_waits) /* else that has the monitor */
        proxy_qemu_restore(&p);
    if (!rc)
        proxy_summary(&p, code);
    proxy_last_word(&p, code);
    if (o->domain && code == PROXY_EXIT_HERE)
        unlink(o->path); /* likewise, where the source did not come so far */
    if (code == PROXY_EXIT_TROUBLE)
        return code; /* the guest runs here: nothing may be freed that it waits for */
    proxy_close(&p);
    return code;
}
