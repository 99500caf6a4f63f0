/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * proxy_source.c - the source's proxy: its QEMU's migration, whose main memory the engine reads
 */
/**
 * DOC: Theory of Operation
 *
 * Picture      main thread: the engine's calls and QMP, in proxy.h's order. The threads beside it:
 *              proxy_source_stream.c
 * Failure      before GO: the guest goes on here. After it nobody runs it here again.
 */
#include "proxy_small.h"

#include <errno.h>
#include <stdio.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include "autojson.h"
#include "domain.h"
#include "failpoint.h"
#include "proxy_keeper.h"
#include "thread.h"

#define COMPLETED_LIMIT_MS 30000
/* When the pass of precopy=1 ends QEMU has to have something to send still, or it would complete as a
 * pre-copy. The socket and its buffers may hold pages of zeros alone, of so many bytes each */
#define ZERO_PAGE_BYTES 9
#define QEMU_BUFFER_BYTES (64u << 10)
#define STREAM_END_LIMIT_MS 10000
#define TAKEN_LIMIT_MS 5000 /* a tunnel's window, to the QEMU there */

/* --- the QEMU --- */

static int listen_for_qemu(struct proxy *p, struct ff_error *err)
{
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    mode_t old;
    int rc;

    if (strlen(p->o->path) >= sizeof(a.sun_path))
        return ff_error_set(err, ENAMETOOLONG, "proxy: listen at %s: too long", p->o->path);
    strcpy(a.sun_path, p->o->path);
    p->port = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    old = umask(077);
    rc = p->port < 0 || bind(p->port, (struct sockaddr *)&a, sizeof(a)) || listen(p->port, 1);
    umask(old);
    p->listens = !rc;
    return rc ? ff_error_set(err, errno, "proxy: listen at %s: %s", p->o->path, strerror(errno))
              : 0;
}

static int prepare_source(struct proxy *p, struct ff_error *err)
{
    int rc = p->o->domain ? domain_connect(p, err) : 0;

    if (!rc)
        rc = proxy_qemu_look(p, err);
    proxy_keeper_tell(p->keeper, p); /* what has been changed there, for one */
    if (!rc)
        rc = listen_for_qemu(p, err);
    if (!rc)
        rc = proxy_source_stream(p, err);
    if (!rc)
        rc = proxy_new_source(p, err);
    if (!rc)
        rc = ff_source_tunnel(p->source, &p->tunnel, err);
    return rc ? rc : proxy_check(p, err);
}

static int connect_source(struct proxy *p, struct ff_error *err)
{
    int rc = ff_source_connect(p->source, proxy_config(p), err);

    if (!rc)
        rc = ff_source_publish(p->source, err);
    if (!rc)
        rc = ff_source_wait_watched(p->source, err);
    if (!rc)
        proxy_event(p, "connected", json_pack("{s:s}", "link", ff_source_link(p->source)));
    return rc;
}

static int plan_pass(struct proxy *p, struct ff_error *err)
{
    int sndbuf = 0; /* as of the socket that QEMU makes */
    socklen_t len = sizeof(sndbuf);
    uint64_t bytes = 0, rest;

    if (!ff_source_wants_precopy(p->source))
        return 0;
    if (p->o->domain)
        return ff_error_set(err, ENOTSUP, "precopy=1: not with a domain, whose pre-copy is libvirt's");
    if (p->o->from_stream)
        return ff_error_set(err, ENOTSUP, "precopy=1: not with memory from the stream (leave it out, or permit "
                                          "farfork to look into both QEMUs: 'farfork doctor' says how)");
    for (unsigned i = 0; i < p->n_blocks; i++)
        bytes += p->blocks[i].len_bytes;
    getsockopt(p->port, SOL_SOCKET, SO_SNDBUF, &sndbuf, &len);
    rest = ((uint64_t)sndbuf + QEMU_BUFFER_BYTES) / ZERO_PAGE_BYTES * STREAM_PAGE_LEN;
    rest += rest / 8;
    if (bytes > rest)
        p->pass_pages = (bytes - rest) / STREAM_PAGE_LEN;
    return 0;
}

/* Until QEMU has sent nearly all once. Its stream is not read from then on, until it is in post-copy */
static int wait_pass(struct proxy *p, struct ff_error *err)
{
    bool passed = false;
    int rc = 0;

    while (!rc && !passed) {
        rc = ff_source_hear(p->source, err);
        if (!rc)
            rc = proxy_check(p, err);
        pthread_mutex_lock(&p->lock);
        passed = p->passed;
        pthread_mutex_unlock(&p->lock);
    }
    if (!rc)
        proxy_event(p, "passed", NULL);
    if (!rc) /* the package comes behind that */
        rc = ff_tunnel_wait_taken(p->tunnel, TAKEN_LIMIT_MS, err);
    return rc < 0 ? rc : proxy_qemu_pass(p, true, err);
}

static int begin_migration(struct proxy *p, struct ff_error *err)
{
    FF_AUTO_FREE char *uri = xprintf("unix:%s", p->o->path);
    proxy_keeper_tell(p->keeper, p);
    int rc = p->pass_pages ? proxy_qemu_pass(p, false, err) : 0;
    if (!rc)
        rc = proxy_qmp(p, "migrate", json_pack("{s:s}", "uri", uri), NULL, err);
    if (!rc && ff_failpoint("proxy.postcopy"))
        rc = ff_error_set(err, EIO, "proxy: injected");
    if (!rc)
        proxy_event(p, "migrating", NULL);
    if (!rc && p->pass_pages)
        rc = wait_pass(p, err);
    p->switching = !rc;
    proxy_keeper_tell(p->keeper, p);
    if (!rc)
        rc = proxy_qmp(p, "migrate-start-postcopy", NULL, NULL, err);
    pthread_mutex_lock(&p->lock);
    p->passed = false;
    pthread_cond_broadcast(&p->changed);
    pthread_mutex_unlock(&p->lock);
    return rc;
}

/* Until the package is here, whole */
static int wait_package(struct proxy *p, struct ff_error *err)
{
    bool whole = false;
    int rc = 0;

    while (!rc && !whole) {
        rc = ff_source_hear(p->source, err);
        if (!rc)
            rc = proxy_check(p, err);
        pthread_mutex_lock(&p->lock);
        whole = p->package_whole;
        pthread_mutex_unlock(&p->lock);
    }
    if (!rc)
        proxy_event(p, "package", json_pack("{s:I}", "bytes", (json_int_t)p->package_len));
    return rc;
}

static int until_ready(struct proxy *p, struct ff_error *err)
{
    int rc = prepare_source(p, err);

    if (!rc && p->o->domain) /* the QEMU there is libvirt's, too */
        rc = proxy_start_threads(p, proxy_forward_source, proxy_back_source, err);
    if (!rc && p->o->domain)
        rc = domain_migrate(p, err);
    if (!rc)
        rc = connect_source(p, err);
    if (!rc)
        rc = plan_pass(p, err);
    if (!rc && !p->o->domain)
        rc = proxy_start_threads(p, proxy_forward_source, proxy_back_source, err);
    if (!rc)
        rc = p->o->domain ? domain_postcopy(p, err) : begin_migration(p, err);
    if (!rc)
        rc = wait_package(p, err);
    if (!rc)
        rc = ff_source_send_state(p->source, p->package, p->package_len, NULL, 0, err);
    if (!rc)
        rc = ff_source_wait_ready(p->source, err);
    if (!rc)
        rc = proxy_leave_device(p, err);
    if (!rc)
        proxy_event(p, "ready", NULL);
    return rc;
}

/* --- after GO --- */

static int old_serve_there(struct proxy *p, struct ff_error *err)
{
    int rc = ff_source_wait_running(p->source, err);

    if (!rc && !p->run_ns) {
        proxy_go_on(p);
        proxy_runs(p);
    }
    return rc ? rc : ff_source_wait_done(p->source, err);
}

static bool old_is_not_started(struct proxy *p)
{
    pthread_mutex_lock(&p->lock);
    bool is = *p->not_started;
    pthread_mutex_unlock(&p->lock);
    return is;
}

/* 0: the destination has everything; -ETIME: it never ran the guest */
static int old_give_away(struct proxy *p, struct ff_error *err)
{
    struct ff_error why = {0};

    proxy_keeper_let_go(p->keeper, true);
    atomic_store(&p->has_let_go, true);
    int rc = ff_source_go(p->source, err);
    if (rc == -ETIME)
        return rc;
    pthread_mutex_lock(&p->lock);
    p->stage = PROXY_GONE; /* whatever has failed meanwhile */
    pthread_mutex_unlock(&p->lock);
    proxy_event(p, "go", NULL);
    if (!rc)
        rc = old_serve_there(p, err);
    while (rc) {
        proxy_say_why(p, "paused", err);
        if (!p->reconnect_ms)
            return rc == -ETIME ? -EIO : rc; /* an adapter's: only a resume knows better */
        rc = ff_source_resume(p->source, NULL, (int)p->reconnect_ms, &why);
        if (rc == -EINTR && old_is_not_started(p))
            rc = ff_source_not_started(p->source, p->not_started, &why);
        if (rc) {
            *err = why;
            return rc;
        }
        proxy_event(p, "resumed", NULL);
        rc = old_serve_there(p, err);
    }
    return 0;
}

/* GO was not sent, or came to nothing there */
static int old_stay_here(struct proxy *p, const struct ff_error *why)
{
    struct ff_error back = {0}, virsh = {0};

    atomic_store(&p->has_let_go, false);
    proxy_keeper_let_go(p->keeper, false);
    proxy_fail(p, why);
    if (p->source) /* GO came to nothing: who waits in the tunnel is to drain QEMU's stream */
        ff_source_cancel(p->source);
    proxy_say_why(p, "failed", why);
    if (!p->has_forward)
        return PROXY_EXIT_HERE;
    int rc = proxy_qemu_take_back(p, &back);
    if (p->o->domain) /* libvirt waits for the QEMU there, which waits for the stream */
        proxy_stop_stream(p);
    if (p->o->domain && domain_end(p, &virsh) && !rc) /* libvirt's own words on it */
        proxy_say_why(p, "virsh", &virsh);
    return proxy_say_back(p, rc, &back);
}

/* QEMU has ended, or was not understood, before its small blocks were there */
static void say_lost_stream(struct proxy *p, const struct ff_error *why)
{
    proxy_event(p, "incomplete",
                json_pack("{s:s+}", "reason", why->text,
                          " to the destination, and nobody else has them: the guest runs there until "
                          "it touches them; save what you can from inside"));
}

static int old_follow_source(struct proxy *p)
{
    struct ff_error why = {0};
    int rc = until_ready(p, &why);

    if (!rc)
        rc = proxy_set_stage(p, PROXY_LET_GO, &why);
    if (rc) {
        proxy_check(p, &why); /* the first reason, if a thread had one */
        return old_stay_here(p, &why);
    }
    rc = old_give_away(p, &why);
    if (rc == -ETIME)
        return old_stay_here(p, &why);
    if (rc) {
        proxy_say_why(p, "lost", &why);
        return PROXY_EXIT_TROUBLE;
    }
    pthread_mutex_lock(&p->lock);
    bool over = p->stream_over;
    pthread_mutex_unlock(&p->lock);
    if (p->o->from_stream ? !atomic_load(&p->has_all)
                          : !atomic_load(&p->is_there) && !over && proxy_small_check(p, &why)) {
        if (p->o->from_stream)
            ff_error_set(&why, ENODATA, "its QEMU's pages have not all come");
        say_lost_stream(p, &why);
        return PROXY_EXIT_TROUBLE;
    }
    /* the destination has everything */
    proxy_event(p, "there", NULL);
    rc = proxy_wait_stream_over(p, &why); /* it may still send main memory */
    if (p->o->domain)
        rc = domain_end(p, &why);
    else if (!rc)
        rc = proxy_qemu_completed(p, COMPLETED_LIMIT_MS, &why);
    if (rc)
        proxy_say_why(p, "unconfirmed", &why);
    proxy_event(p, "complete", NULL);
    return 0;
}

/* After GO: QEMU's stream is read to its end before anybody closes it: one that breaks while QEMU
 * completes makes that run its guest again, whatever it has heard */
static void end_for_good(struct proxy *p, int code)
{
    if (code == PROXY_EXIT_TROUBLE)
        ff_source_cancel(p->source); /* so that it is read, whatever became of the link */
    proxy_never_here(p);
    if (code == PROXY_EXIT_TROUBLE && !p->o->domain) {
        qmp_cancel_by(p->q, -1);
        proxy_qemu_full_speed(p, NULL);
    }
    if (p->has_forward)
        proxy_wait_stream_over(p, NULL); /* as long as it brings anything */
    uint64_t end = ff_now_ns() + STREAM_END_LIMIT_MS * 1000000ull;
    pthread_mutex_lock(&p->lock);
    while (p->has_forward && !p->forward_ended && !ff_cond_wait_until(&p->changed, &p->lock, end))
        continue;
    pthread_mutex_unlock(&p->lock);
}

int proxy_source_run(const struct proxy_options *o)
{
    static struct proxy p;
    struct ff_error why = {0};
    struct proxy_keeper *keeper = proxy_keeper_start(o);
    int rc = proxy_open(&p, o, true, &why), code = PROXY_EXIT_HERE;

    p.keeper = keeper;
    if (!rc)
        rc = proxy_take_address(&p, &why);
    if (rc)
        proxy_say_why(&p, "failed", &why);
    else
        proxy_begins(&p);
    if (!rc)
        code = old_follow_source(&p);
    if (atomic_load(&p.has_let_go))
        end_for_good(&p, code);
    if (p.has_speed)
        pthread_join(p.speed_thread, NULL);
    proxy_keeper_end(keeper);
    proxy_qemu_restore(&p);
    if (!rc)
        proxy_summary(&p, code);
    proxy_last_word(&p, code);
    if (p.listens)
        unlink(o->path);
    proxy_close(&p);
    return code;
}
