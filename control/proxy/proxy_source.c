/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * proxy_source.c - the source's proxy: its QEMU's stream without main memory, which the engine
 * reads
 */
/**
 * DOC: Theory of Operation
 *
 * Picture      QEMU --> forward thread: stream.h --> tunnel; the package's body --> @package
 *              QEMU <-- back thread <-- tunnel
 *              main thread: the engine's calls and QMP, in proxy.h's order
 * Failure      until GO was sent the forward thread goes on reading and throws away what it reads:
 *              QEMU's way back may lead through the end of its stream (proxy_qemu_take_back()).
 */
#include "proxy_state.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include "autojson.h"
#include "domain.h"
#include "failpoint.h"
#include "proxy_keeper.h"
#include "proxy_small.h"

#define COMPLETED_LIMIT_MS 30000

/* --- the stream --- */

static int on_source_blocks(struct proxy *p, const struct stream_event *e, struct ff_error *err)
{
    unsigned n;
    const struct stream_block *b = stream_blocks(p->stream, &n);

    for (unsigned i = 0; i < n; i++) {
        int m = proxy_find_main(p, b[i].name);

        if (m < 0 && b[i].len_bytes >= OUTSIDE_MAIN_BYTES)
            return ff_error_set(err, EPROTO, "QEMU: block %s: in its stream, not in its list",
                                b[i].name);
        if (m >= 0 && b[i].len_bytes != p->blocks[m].len_bytes)
            return ff_error_set(err, EPROTO,
                                "QEMU: block %s: %llu bytes in its stream, %llu in "
                                "its list",
                                b[i].name, (unsigned long long)b[i].len_bytes,
                                (unsigned long long)p->blocks[m].len_bytes);
    }
    return proxy_small_see(p, e, err);
}

static int on_source_package(struct proxy *p, const struct stream_event *e, struct ff_error *err)
{
    size_t left = (size_t)(e->value - (e->len - PROXY_PACKAGE_HEAD));

    p->header_due = true;
    if (e->value > PROXY_STATE_MAX - PROXY_STATE_HEAD || ff_failpoint("proxy.package")) {
        struct ff_error why = {0}; /* and go on to the stream's end: QEMU's way back leads there */

        ff_error_set(&why, E2BIG, "QEMU: device state of %llu bytes (permitted %llu)",
                     (unsigned long long)e->value, (unsigned long long)PROXY_STATE_MAX);
        proxy_fail(p, &why);
        return STREAM_FORWARD;
    }
    pthread_mutex_lock(&p->lock);
    p->pause_ns = ff_now_ns();
    p->package = malloc(PROXY_STATE_HEAD + left);
    p->package_len = p->package_got = PROXY_STATE_HEAD;
    if (p->package) {
        p->package[0] = p->was_running;
        p->package_len += left;
    }
    pthread_mutex_unlock(&p->lock);
    if (!p->package)
        return ff_error_set(err, ENOMEM, "proxy: device state of %llu bytes: no memory",
                            (unsigned long long)e->value);
    p->package_left = left;
    p->counts.package_bytes = e->value;
    return STREAM_FORWARD;
}

static int on_source_unit(void *opaque, const struct stream_event *e, struct ff_error *err)
{
    struct proxy *p = opaque;

    if (p->counts.package_bytes && ff_failpoint("proxy.unit"))
        return ff_error_set(err, EPROTO, "QEMU: its stream: injected");
    switch (e->kind) {
    case STREAM_BLOCKS:
        return on_source_blocks(p, e, err);
    case STREAM_DISCARD:
        return proxy_small_see(p, e, err);
    case STREAM_PAGE:
        if (proxy_main_block(p, e->block) < 0) {
            p->counts.pages_passed++;
            return proxy_small_see(p, e, err);
        }
        p->counts.pages_dropped++;
        return STREAM_DROP;
    case STREAM_PACKAGE:
        return on_source_package(p, e, err);
    case STREAM_DEVICES:
        return ff_error_set(err, ENOTSUP,
                            "QEMU: its migration became a pre-copy (want "
                            "post-copy: postcopy-ram on, migrate-start-postcopy)");
    case STREAM_EOF:
        pthread_mutex_lock(&p->lock);
        p->stream_over = true;
        pthread_cond_broadcast(&p->changed);
        pthread_mutex_unlock(&p->lock);
        return STREAM_FORWARD;
    default:
        return STREAM_FORWARD;
    }
}

static void gather_package(struct proxy *p, const void *data, size_t len)
{
    memcpy(p->package + p->package_got, data, len);
    p->package_got += len;
    p->package_left -= len;
    if (p->package_left)
        return;
    pthread_mutex_lock(&p->lock);
    p->package_whole = true;
    pthread_cond_broadcast(&p->changed);
    pthread_mutex_unlock(&p->lock);
    ff_source_interrupt(p->source);
}

static int on_source_bytes(void *opaque, const void *data, size_t len, struct ff_error *err)
{
    struct proxy *p = opaque;

    if (!p->header_due && p->package_left) {
        gather_package(p, data, len);
        return 0;
    }
    p->header_due = false;
    pthread_mutex_lock(&p->lock);
    bool drains = p->drains;
    pthread_mutex_unlock(&p->lock);
    if (drains)
        return 0;
    p->counts.tunnel_bytes += len;
    struct ff_error why = {0};
    if (ff_tunnel_send(p->tunnel, data, len, &why)) {
        proxy_fail(p, &why); /* and go on to the stream's end */
        (void)err;
    }
    return 0;
}

static int accept_qemu(struct proxy *p, struct ff_error *err)
{
    int fd;

    do
        fd = accept4(p->port, NULL, NULL, SOCK_CLOEXEC);
    while (fd < 0 && errno == EINTR);
    if (fd < 0)
        return ff_error_set(err, errno, "QEMU: wait at %s: %s", p->o->path, strerror(errno));
    pthread_mutex_lock(&p->lock);
    p->sock = fd;
    pthread_cond_broadcast(&p->changed);
    pthread_mutex_unlock(&p->lock);
    return 0;
}

/* 0: the stream is to be read */
static int wait_released(struct proxy *p, struct ff_error *err)
{
    pthread_mutex_lock(&p->lock);
    while (p->held && !p->failed)
        pthread_cond_wait(&p->changed, &p->lock);
    bool held = p->held;
    pthread_mutex_unlock(&p->lock);
    return held ? ff_error_set(err, ECANCELED, "%s", p->why.text) : 0;
}

/* 0: QEMU has ended its stream */
static int forward_all(struct proxy *p, uint8_t *buf, struct ff_error *err)
{
    for (;;) {
        ssize_t n = recv(p->sock, buf, PROXY_READ_LEN, 0);

        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && errno != ECONNRESET)
            return ff_error_set(err, errno, "QEMU: read its stream: %s", strerror(errno));
        if (n <= 0)
            return stream_end(p->stream, err);
        p->counts.stream_bytes += (uint64_t)n;
        atomic_store(&p->read_ns, ff_now_ns());
        n = stream_feed(p->stream, buf, (size_t)n, err);
        if (n < 0)
            return (int)n;
    }
}

static void *forward_source(void *opaque)
{
    struct proxy *p = opaque;
    struct ff_error why = {0};
    FF_AUTO_FREE uint8_t *buf = malloc(PROXY_READ_LEN);
    int rc = buf ? accept_qemu(p, &why) : ff_error_set(&why, ENOMEM, "proxy: no memory");

    if (!rc)
        proxy_keeper_give(p->keeper, p->sock);
    if (!rc)
        rc = wait_released(p, &why);
    bool reads = !rc;
    if (!rc)
        rc = forward_all(p, buf, &why);
    if (!rc)
        rc = ff_tunnel_end(p->tunnel, &why);
    if (rc)
        proxy_fail(p, &why);
    if (rc && reads) {
        if (!ff_tunnel_end(p->tunnel, NULL)) /* after GO the destination goes on with what it has */
            proxy_say_why(p, "stream-ended", &why);
        return proxy_drain(p);
    }
    pthread_mutex_lock(&p->lock);
    p->forward_ended = true;
    pthread_cond_broadcast(&p->changed);
    pthread_mutex_unlock(&p->lock);
    return NULL;
}

/* Nobody answers any more. Before the guest runs there QEMU is not to learn that: it has no way back
 * from there */
static void end_back(struct proxy *p)
{
    pthread_mutex_lock(&p->lock);
    while (p->stage < PROXY_RUNS && !p->failed)
        pthread_cond_wait(&p->changed, &p->lock);
    if (!p->failed)
        shutdown(p->sock, SHUT_WR);
    pthread_mutex_unlock(&p->lock);
}

/* A QEMU that hears of an error runs its guest again: 7.2 without its disks, and also after GO */
static int on_source_message(void *opaque, const struct stream_return *m, struct ff_error *err)
{
    (void)opaque;
    return m->type == STREAM_RETURN_SHUT && m->value
               ? ff_error_set(err, EREMOTEIO, "the QEMU there ended its migration with an error: "
                              "its own messages say why")
               : STREAM_FORWARD;
}

static int on_source_back(void *opaque, const void *data, size_t len, struct ff_error *err)
{
    (void)err;
    proxy_write(((struct proxy *)opaque)->sock, data, len, NULL);
    return 0; /* if it has ended, the other direction says why */
}

/* Once QEMU is there: from the tunnel to it */
static void *back_source(void *opaque)
{
    struct proxy *p = opaque;
    struct ff_error why = {0};
    FF_AUTO_FREE uint8_t *buf = malloc(PROXY_READ_LEN);

    pthread_mutex_lock(&p->lock);
    while (p->sock < 0 && !p->forward_ended && !p->failed)
        pthread_cond_wait(&p->changed, &p->lock);
    pthread_mutex_unlock(&p->lock);
    p->reader.sink = (struct stream_return_sink){
        .event = on_source_message, .bytes = on_source_back, .opaque = p};
    while (buf && p->sock >= 0) {
        ssize_t n = ff_tunnel_recv(p->tunnel, buf, PROXY_READ_LEN, &why);

        if (!n)
            end_back(p);
        if (n > 0)
            n = stream_return_feed(&p->reader, buf, (size_t)n, &why) ? -1 : 1;
        if (n < 0)
            proxy_fail(p, &why);
        if (n <= 0)
            break;
    }
    return NULL;
}

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

static int add_block(struct proxy *p, unsigned i, struct ff_error *err)
{
    const struct outside_block *b = &p->blocks[i];
    struct outside_memory m = {.fd = -1};
    int rc = outside_open(p->pid, b, false, &m, err);

    if (rc)
        return rc;
    p->maps[i].fd = m.fd;
    struct ff_region r = {.name = b->name,
                          .len_bytes = b->len_bytes,
                          .psize = b->psize,
                          .fd = m.fd,
                          .fd_offset = m.fd_offset,
                          .zero_fill = true};
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

static int prepare_source(struct proxy *p, struct ff_error *err)
{
    struct stream_sink sink = {.event = on_source_unit, .bytes = on_source_bytes, .opaque = p};
    struct ff_source *s;
    int rc = p->o->domain ? domain_connect(p, err) : 0;

    if (!rc)
        rc = proxy_qemu_look(p, err);
    if (!rc)
        rc = listen_for_qemu(p, err);
    p->stream = stream_new(&sink);
    p->maps = calloc(FF_MAX(p->n_blocks, 1u), sizeof(*p->maps));
    for (unsigned i = 0; p->maps && i < p->n_blocks; i++)
        p->maps[i].fd = -1;
    if (!rc && (!p->stream || !p->maps))
        rc = ff_error_set(err, ENOMEM, "proxy: no memory");
    if (!rc)
        rc = ff_source_new(p->address, &s, err);
    if (rc)
        return rc;
    pthread_mutex_lock(&p->lock);
    p->source = s;
    pthread_mutex_unlock(&p->lock);
    for (unsigned i = 0; !rc && i < p->n_blocks; i++)
        rc = add_block(p, i, err);
    if (!rc)
        rc = ff_source_tunnel(s, &p->tunnel, err);
    return rc ? rc : proxy_check(p, err);
}

static int connect_source(struct proxy *p, struct ff_error *err)
{
    int rc = ff_source_connect(p->source, PROXY_CONFIG, err);

    if (!rc)
        rc = ff_source_publish(p->source, err);
    if (!rc)
        rc = ff_source_wait_watched(p->source, err);
    if (!rc)
        proxy_event(p, "connected", json_pack("{s:s}", "link", ff_source_link(p->source)));
    return rc;
}

static int begin_migration(struct proxy *p, struct ff_error *err)
{
    FF_AUTO_FREE char *uri = xprintf("unix:%s", p->o->path);
    proxy_keeper_tell(p->keeper, p);
    int rc = proxy_qmp(p, "migrate", json_pack("{s:s}", "uri", uri), NULL, err);
    p->switching = !rc;
    proxy_keeper_tell(p->keeper, p);
    if (!rc && ff_failpoint("proxy.postcopy"))
        rc = ff_error_set(err, EIO, "proxy: injected");
    if (!rc)
        rc = proxy_qmp(p, "migrate-start-postcopy", NULL, NULL, err);
    if (!rc)
        proxy_event(p, "migrating", NULL);
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
        rc = proxy_start_threads(p, forward_source, back_source, err);
    if (!rc && p->o->domain)
        rc = domain_migrate(p, err);
    if (!rc)
        rc = connect_source(p, err);
    if (!rc && !p->o->domain)
        rc = proxy_start_threads(p, forward_source, back_source, err);
    if (!rc)
        rc = p->o->domain ? domain_postcopy(p, err) : begin_migration(p, err);
    if (!rc)
        rc = wait_package(p, err);
    if (!rc)
        rc = ff_source_send_state(p->source, p->package, p->package_len, NULL, 0, err);
    if (!rc)
        rc = ff_source_wait_ready(p->source, err);
    if (!rc)
        proxy_event(p, "ready", NULL);
    return rc;
}

/* --- after GO --- */

static int serve_there(struct proxy *p, struct ff_error *err)
{
    int rc = ff_source_wait_running(p->source, err);

    if (!rc && !p->run_ns) {
        struct ff_error why = {0};

        proxy_go_on(p);
        proxy_runs(p);
        if (!p->o->domain && proxy_qemu_full_speed(p, &why))
            proxy_say_why(p, "slow", &why); /* its stream is; memory is the engine's */
    }
    return rc ? rc : ff_source_wait_done(p->source, err);
}

static bool is_not_started(struct proxy *p)
{
    pthread_mutex_lock(&p->lock);
    bool is = p->not_started;
    pthread_mutex_unlock(&p->lock);
    return is;
}

/* 0: the destination has everything; -ETIME: it never ran the guest */
static int give_away(struct proxy *p, struct ff_error *err)
{
    struct ff_error why = {0};

    proxy_keeper_let_go(p->keeper, true);
    int rc = ff_source_go(p->source, err);
    if (rc == -ETIME)
        return rc;
    pthread_mutex_lock(&p->lock);
    p->stage = PROXY_GONE; /* whatever has failed meanwhile */
    pthread_mutex_unlock(&p->lock);
    proxy_event(p, "go", NULL);
    if (!rc)
        rc = serve_there(p, err);
    while (rc) {
        proxy_say_why(p, "paused", err);
        if (!p->reconnect_ms)
            return rc == -ETIME ? -EIO : rc; /* an adapter's: only a resume knows better */
        rc = ff_source_resume(p->source, NULL, (int)p->reconnect_ms, &why);
        if (rc == -EINTR && is_not_started(p))
            rc = ff_source_not_started(p->source, &why);
        if (rc) {
            *err = why;
            return rc;
        }
        proxy_event(p, "resumed", NULL);
        rc = serve_there(p, err);
    }
    return 0;
}

/* GO was not sent, or came to nothing there */
static int stay_here(struct proxy *p, const struct ff_error *why)
{
    struct ff_error back = {0}, virsh = {0};

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

static int follow_source(struct proxy *p)
{
    struct ff_error why = {0};
    int rc = until_ready(p, &why);

    if (!rc)
        rc = proxy_set_stage(p, PROXY_LET_GO, &why);
    if (rc) {
        proxy_check(p, &why); /* the first reason, if a thread had one */
        return stay_here(p, &why);
    }
    rc = give_away(p, &why);
    if (rc == -ETIME)
        return stay_here(p, &why);
    if (rc) {
        proxy_say_why(p, "lost", &why);
        return PROXY_EXIT_TROUBLE;
    }
    if (!p->stream_over && proxy_small_check(p, &why)) {
        say_lost_stream(p, &why);
        return PROXY_EXIT_TROUBLE;
    }
    /* the destination has everything */
    if (p->o->domain ? domain_end(p, &why) : proxy_qemu_completed(p, COMPLETED_LIMIT_MS, &why))
        proxy_say_why(p, "unconfirmed", &why);
    proxy_event(p, "complete", NULL);
    return 0;
}

int proxy_source_run(const struct proxy_options *o)
{
    static struct proxy p;
    struct ff_error why = {0};
    struct proxy_keeper *keeper = o->domain ? NULL : proxy_keeper_start(o);
    int rc = proxy_open(&p, o, true, &why), code = PROXY_EXIT_HERE;

    p.keeper = keeper;
    if (!rc)
        rc = proxy_take_address(&p, &why);
    if (rc)
        proxy_say_why(&p, "failed", &why);
    else
        proxy_begins(&p);
    if (!rc)
        code = follow_source(&p);
    proxy_keeper_end(keeper);
    proxy_qemu_restore(&p);
    if (!rc)
        proxy_summary(&p, code);
    proxy_last_word(&p, code);
    proxy_monitor_end(&p);
    if (p.listens)
        unlink(o->path);
    proxy_close(&p);
    return code;
}
