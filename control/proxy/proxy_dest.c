/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * proxy_dest.c - the destination's proxy: its QEMU's stream from the tunnel, its memory by its own
 * userfaultfd
 */
/**
 * DOC: Theory of Operation
 *
 * Picture      tunnel --> forward thread: stream.h --> QEMU, the package's body from @package
 *              tunnel <-- back thread: stream_return.h <-- QEMU; requests of main memory are the
 *                         pager's
 *              main thread: the engine's calls and QMP, in proxy.h's order
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
#include "process.h"
#include "thread.h"

#define COMPLETED_LIMIT_MS 30000
#define CONT_LIMIT_MS (24 * 3600 * 1000) /* it may wait for pages, and they for a link */
#define LOAD_LIMIT_MS 60000
#define GONE_LIMIT_MS 5000 /* for a source that has sent GO to a QEMU that has ended */

/* --- the stream --- */

static int on_dest_unit(void *opaque, const struct stream_event *e, struct ff_error *err)
{
    struct proxy *p = opaque;

    switch (e->kind) {
    case STREAM_PAGE:
        if (proxy_main_block(p, e->block) >= 0)
            return ff_error_set(err, EPROTO, "proxy: the source sent a page of main memory");
        p->counts.pages_passed++;
        return STREAM_FORWARD;
    case STREAM_PACKAGE:
        if (p->header_due) { /* asked again: STATE has come */
            p->header_due = false;
            return STREAM_FORWARD;
        }
        p->header_due = true;
        p->package_head = e->len;
        p->package_left = e->value - (e->len - PROXY_PACKAGE_HEAD);
        p->counts.package_bytes = e->value;
        return STREAM_HOLD;
    case STREAM_SECTION:
        if (e->section == STREAM_SECTION_END) {
            int rc = ff_dest_wait_complete(p->dest, -1, err);

            return rc ? rc : STREAM_FORWARD;
        }
        return STREAM_FORWARD;
    default:
        return STREAM_FORWARD;
    }
}

static int on_dest_bytes(void *opaque, const void *data, size_t len, struct ff_error *err)
{
    return proxy_write(((struct proxy *)opaque)->sock, data, len, err);
}

/* The package's unit is held: its body is STATE. Returns bytes of @data that belonged to the unit */
static ssize_t forward_package(struct proxy *p, const uint8_t *data, size_t len,
                               struct ff_error *err)
{
    ssize_t n = 0;

    pthread_mutex_lock(&p->lock);
    while (!p->package_whole && !p->failed)
        pthread_cond_wait(&p->changed, &p->lock);
    int rc = p->failed ? ff_error_set(err, ECANCELED, "%s", p->why.text) : 0;
    pthread_mutex_unlock(&p->lock);
    if (!rc && (p->package_len != PROXY_STATE_HEAD + p->package_left || p->package[0] > 1))
        rc = ff_error_set(err, EPROTO, "proxy: device state of %zu bytes (want %llu)",
                          p->package_len, (unsigned long long)p->package_left);
    if (rc)
        return rc;
    p->package_left = 0;
    p->was_running = p->package[0];
    n = stream_feed(p->stream, NULL, 0, err); /* where the unit lies in the parser */
    if (n >= 0 && p->header_due)              /* or else in @data */
        n = stream_feed(p->stream, data, FF_MIN(len, p->package_head), err);
    if (n < 0)
        return n;
    ssize_t body = stream_feed(p->stream, p->package + PROXY_STATE_HEAD,
                               p->package_len - PROXY_STATE_HEAD, err);
    if (body < 0)
        return body;
    pthread_mutex_lock(&p->lock);
    p->package_passed = true;
    pthread_cond_broadcast(&p->changed);
    pthread_mutex_unlock(&p->lock);
    return n;
}

static int forward_some(struct proxy *p, const uint8_t *data, size_t len, struct ff_error *err)
{
    while (len) {
        ssize_t n = stream_feed(p->stream, data, len, err);

        if (n < 0)
            return (int)n;
        data += n;
        len -= (size_t)n;
        if (!stream_holds(p->stream))
            continue;
        n = forward_package(p, data, len, err);
        if (n < 0)
            return (int)n;
        data += n;
        len -= (size_t)n;
    }
    return 0;
}

/* QEMU takes no more. Between READY and GO the source is to hear that nothing runs here: without a
 * link GO does not come, and wait_go() answers it */
static void end_early(struct proxy *p, const struct ff_error *why)
{
    pthread_mutex_lock(&p->lock);
    bool let_go = p->stage == PROXY_LET_GO;
    p->qemu_gone |= let_go;
    pthread_mutex_unlock(&p->lock);
    if (let_go)
        ff_dest_pause(p->dest);
    else
        proxy_fail(p, why);
}

static void *forward_dest(void *opaque)
{
    struct proxy *p = opaque;
    struct ff_error why = {0};
    FF_AUTO_FREE uint8_t *buf = malloc(PROXY_READ_LEN);
    int rc = buf ? 0 : ff_error_set(&why, ENOMEM, "proxy: no memory");

    while (!rc) {
        ssize_t n = ff_tunnel_recv(p->tunnel, buf, PROXY_READ_LEN, &why);

        if (!n)
            shutdown(p->sock, SHUT_WR);
        if (!n)
            break;
        if (n > 0) {
            p->counts.tunnel_bytes += (uint64_t)n;
            rc = forward_some(p, buf, (size_t)n, &why);
        } else {
            rc = (int)n;
        }
    }
    if (rc)
        end_early(p, &why);
    return NULL;
}

/* --- the return path --- */

/* QEMU may ask before its userfaultfd is ours */
static int wait_adopted(struct proxy *p, struct ff_error *err)
{
    pthread_mutex_lock(&p->lock);
    while (!p->adopted && !p->failed)
        pthread_cond_wait(&p->changed, &p->lock);
    int rc = p->adopted ? 0 : ff_error_set(err, ECANCELED, "%s", p->why.text);
    pthread_mutex_unlock(&p->lock);
    return rc;
}

static int on_dest_message(void *opaque, const struct stream_return *m, struct ff_error *err)
{
    struct proxy *p = opaque;
    int rc = 0, main_block;

    if (m->type != STREAM_RETURN_REQ_PAGES && m->type != STREAM_RETURN_REQ_PAGES_ID)
        return STREAM_FORWARD;
    p->counts.requests++;
    main_block = proxy_find_main(p, m->name);
    if (main_block < 0)
        return STREAM_FORWARD;
    p->counts.requests_taken++;
    rc = wait_adopted(p, err);
    if (!rc)
        rc = ff_dest_request(p->dest, (unsigned)main_block, m->addr, err);
    return rc ? rc : STREAM_DROP;
}

static int on_dest_back(void *opaque, const void *data, size_t len, struct ff_error *err)
{
    return ff_tunnel_send(((struct proxy *)opaque)->tunnel, data, len, err);
}

static void *back_dest(void *opaque)
{
    struct proxy *p = opaque;
    struct ff_error why = {0};
    FF_AUTO_FREE uint8_t *buf = malloc(PROXY_READ_LEN);
    int rc = buf ? 0 : ff_error_set(&why, ENOMEM, "proxy: no memory");

    p->reader.sink =
        (struct stream_return_sink){.event = on_dest_message, .bytes = on_dest_back, .opaque = p};
    while (!rc) {
        ssize_t n = recv(p->sock, buf, PROXY_READ_LEN, 0);

        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            break;
        rc = stream_return_feed(&p->reader, buf, (size_t)n, &why);
    }
    pthread_mutex_lock(&p->lock);
    enum proxy_stage stage = p->stage;
    pthread_mutex_unlock(&p->lock);
    if (!rc && stage < PROXY_GONE)
        rc = ff_error_set(&why, EPIPE,
                          "QEMU: it has ended its migration before it had the guest: "
                          "see its own messages");
    else if (!rc)
        rc = ff_tunnel_end(p->tunnel, &why);
    if (rc)
        end_early(p, &why);
    return NULL;
}

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

/* That a page of private huge memory is there cannot be told from an empty pool */
static int check_huge(const struct proxy *p, const struct outside_block *b, struct ff_error *err)
{
    struct outside_memory m = {.fd = -1};
    int rc = b->psize > 4096 ? outside_open(p->pid, b, false, &m, err) : 0;

    ff_close_fd(&m.fd);
    if (rc || b->psize == 4096 || m.is_shared)
        return rc;
    return ff_error_set(err, ENOTSUP,
                        "QEMU: block %s: private huge pages (want share=on for its memory backend)",
                        b->name);
}

static int prepare_dest(struct proxy *p, struct ff_error *err)
{
    struct stream_sink sink = {.event = on_dest_unit, .bytes = on_dest_bytes, .opaque = p};
    struct ff_dest *d;
    int rc = p->o->argv ? start_child(p, err) : 0;

    if (!rc)
        rc = proxy_qemu_look(p, err);
    if (!rc)
        rc = proxy_qemu_listen(p, err);
    p->stream = stream_new(&sink);
    if (!rc && !p->stream)
        rc = ff_error_set(err, ENOMEM, "proxy: no memory");
    if (!rc)
        rc = ff_dest_new(p->address, &d, err);
    if (rc)
        return rc;
    pthread_mutex_lock(&p->lock);
    p->dest = d;
    pthread_mutex_unlock(&p->lock);
    rc = ff_dest_elsewhere(d, err);
    for (unsigned i = 0; !rc && i < p->n_blocks; i++) {
        const struct outside_block *b = &p->blocks[i];
        struct ff_region r = {.name = b->name,
                              .host = (void *)(uintptr_t)b->hva,
                              .len_bytes = b->len_bytes,
                              .psize = b->psize,
                              .fd = -1,
                              .zero_fill = true};

        rc = check_huge(p, b, err);
        if (!rc)
            rc = ff_dest_add_region(d, &r, err);
    }
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
    return proxy_start_threads(p, forward_dest, back_dest, err);
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
    p->package_whole = true;
    pthread_cond_broadcast(&p->changed);
    while (!p->package_passed && !p->failed)
        pthread_cond_wait(&p->changed, &p->lock);
    pthread_mutex_unlock(&p->lock);
    proxy_event(p, "package", json_pack("{s:I}", "bytes", (json_int_t)len));
    return proxy_check(p, err);
}

/* QEMU opens and registers it while it reads the package */
static int adopt_userfaultfd(struct proxy *p, struct ff_error *err)
{
    uint64_t end = ff_now_ms() + LOAD_LIMIT_MS;
    int fd, rc;

    for (;;) {
        fd = outside_userfaultfd(p->pid, p->blocks, p->n_blocks, err);
        if (fd != -EAGAIN)
            break;
        rc = proxy_check(p, err);
        if (rc)
            return rc;
        if (ff_now_ms() > end)
            return ff_error_set(err, ETIMEDOUT, "QEMU: it watches no memory after %d ms",
                                LOAD_LIMIT_MS);
        poll(NULL, 0, 1);
    }
    if (fd < 0)
        return fd;
    rc = ff_dest_adopt(p->dest, fd, err);
    pthread_mutex_lock(&p->lock);
    p->adopted = !rc;
    pthread_cond_broadcast(&p->changed);
    pthread_mutex_unlock(&p->lock);
    return rc;
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
        rc = ff_dest_accept(p->dest, PROXY_CONFIG, err);
    if (!rc)
        proxy_event(p, "connected", json_pack("{s:s}", "link", ff_dest_link(p->dest)));
    if (!rc)
        rc = ff_dest_start(p->dest, err);
    if (!rc)
        rc = connect_to_qemu(p, err);
    if (!rc)
        rc = receive_state(p, err);
    if (!rc)
        rc = adopt_userfaultfd(p, err);
    return rc ? rc : wait_loaded(p, err);
}

/* --- after GO --- */

/* In a thread of its own: it may wait for pages, and they for the next link */
static void *run_cont(void *opaque)
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

static int next_link(struct proxy *p, struct ff_error *err)
{
    struct ff_error why = {0};
    int rc;

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
static void on_link_broken(void *opaque, const char *reason)
{
    struct proxy *p = opaque;

    (void)reason;
    pthread_mutex_lock(&p->lock);
    p->broke = true;
    pthread_cond_broadcast(&p->changed);
    pthread_mutex_unlock(&p->lock);
}

static int run_guest(struct proxy *p, struct ff_error *err)
{
    int rc = ff_thread_start(&p->cont_thread, run_cont, p, "proxy-cont", err);

    if (rc)
        return rc;
    ff_dest_on_break(p->dest, on_link_broken, p);
    pthread_mutex_lock(&p->lock);
    while (!rc && !p->cont_done) {
        if (!p->broke) {
            pthread_cond_wait(&p->changed, &p->lock);
            continue;
        }
        pthread_mutex_unlock(&p->lock);
        ff_error_set(err, EPIPE, "the link broke while the guest was started");
        rc = next_link(p, err);
        pthread_mutex_lock(&p->lock);
    }
    bool done = p->cont_done;
    pthread_mutex_unlock(&p->lock);
    ff_dest_on_break(p->dest, NULL, NULL);
    if (done) {
        pthread_join(p->cont_thread, NULL);
        qmp_limit(p->q, PROXY_QMP_LIMIT_MS);
    }
    if (!rc && p->cont_rc)
        rc = ff_error_set(err, p->cont_why.code, "%s", p->cont_why.text);
    return rc;
}

/* 0: the guest runs here with all of its memory */
static int finish_here(struct proxy *p, struct ff_error *err)
{
    int rc = p->was_running ? run_guest(p, err) : 0; /* or it is paused, as it was there */

    if (rc)
        return rc;
    proxy_runs(p);
    rc = ff_dest_running(p->dest, err);
    if (!rc)
        rc = ff_dest_wait_done(p->dest, err);
    while (rc) {
        rc = next_link(p, err);
        if (rc)
            return rc;
        rc = ff_dest_wait_done(p->dest, err);
    }
    if (!ff_dest_is_told(p->dest) && p->reconnect_ms)
        ff_dest_recover(p->dest, (int)p->reconnect_ms, NULL); /* the source may not know yet */
    struct ff_error why = {0}; /* every page is here: that QEMU has ended since changes nothing */
    if (proxy_qemu_completed(p, COMPLETED_LIMIT_MS, &why))
        proxy_say_why(p, "unconfirmed", &why);
    return 0;
}

/* READY was sent: 0: GO has come; -ESTALE: it never will */
static int wait_go(struct proxy *p, struct ff_error *err)
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

static int follow_dest(struct proxy *p)
{
    struct ff_error why = {0};
    int rc = until_dest_ready(p, &why);

    if (!rc)
        rc = proxy_set_stage(p, PROXY_LET_GO, &why);
    if (rc)
        proxy_check(p, &why); /* the first reason, if a thread had one */
    else
        rc = wait_go(p, &why);
    if (rc) {
        proxy_fail(p, &why);
        proxy_say_why(p, "failed", &why);
        if (p->has_forward || p->child)
            proxy_qemu_end(p);
        return PROXY_EXIT_HERE;
    }
    rc = finish_here(p, &why);
    if (rc) {
        proxy_say_why(p, "incomplete", &why);
        return PROXY_EXIT_TROUBLE;
    }
    proxy_event(p, "complete", NULL);
    return 0;
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
        code = follow_dest(&p);
    proxy_qemu_restore(&p);
    if (!rc)
        proxy_summary(&p);
    proxy_monitor_end(&p);
    if (code == PROXY_EXIT_TROUBLE)
        return code; /* the guest runs here: nothing may be freed that it waits for */
    proxy_close(&p);
    return code;
}
