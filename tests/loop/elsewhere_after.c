/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * elsewhere_after.c - requests that come late, or cannot be served: the owner watches no more, the
 *                     link is away, the move is cancelled
 *
 * The owner is this process: what tells it from another one is tested in elsewhere.c.
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "cleanup.h"
#include "farfork-elsewhere.h"
#include "loop.h"

#define RING 1024u   /* requests that wait, migrate/pager_elsewhere.c */
#define WANTS 8192u  /* pages that do, migrate/wants.h */
#define PAGES (WANTS + 2 * RING)
#define LIMIT_MS ((int)LAB_PATIENCE * (UNDER_SANITIZER ? 100000 : 20000))

struct after {
    const char *options;
    uint64_t n_pages;
    struct ff_address *at;
    struct ff_source *source;
    struct ff_dest *dest;
    struct area image, own;
    int uffd;
    int source_rc, ask_rc;
    struct ff_error source_err, ask_err;
    pthread_t source_thread, asker;
    _Atomic uint64_t asked;
};

static bool is_zero_page(uint64_t page)
{
    return page % 3 == 1;
}

static void *after_source(void *arg)
{
    struct after *a = arg;
    struct ff_error *err = &a->source_err;

    int rc = ff_source_connect(a->source, "test", err);
    if (!rc)
        rc = ff_source_publish(a->source, err);
    if (!rc)
        rc = ff_source_wait_watched(a->source, err);
    if (!rc)
        rc = ff_source_send_state(a->source, "state", 5, NULL, 0, err);
    if (!rc)
        rc = ff_source_wait_ready(a->source, err);
    if (!rc)
        rc = ff_source_go(a->source, err);
    if (!rc)
        rc = ff_source_wait_running(a->source, err);
    if (!rc)
        rc = ff_source_wait_done(a->source, err);
    a->source_rc = rc;
    return NULL;
}

static void add_memory(struct after *a)
{
    struct ff_error err;

    area_new(&a->image, MEM_MEMFD, a->n_pages * 4096);
    area_new(&a->own, MEM_ANON, a->n_pages * 4096);
    for (uint64_t page = 0; page < a->n_pages; page++)
        if (!is_zero_page(page))
            memset(a->image.host + page * 4096, (int)(1 + page % 250), 4096);
    struct ff_region r = {.name = "after", .host = a->image.host, .len_bytes = a->image.len_bytes,
                          .psize = 4096, .fd = a->image.fd, .zero_fill = true};
    must_ok(ff_source_add_region(a->source, &r, &err), err);
    r.host = a->own.host;
    r.fd = -1;
    must_ok(ff_dest_add_region(a->dest, &r, &err), err);
}

static void watch_here(struct after *a, bool watch)
{
    struct uffdio_api api = {.api = UFFD_API};
    struct uffdio_register r = {
        .range = {.start = (uintptr_t)a->own.host, .len = a->own.len_bytes},
        .mode = UFFDIO_REGISTER_MODE_MISSING};

    if (watch) {
        a->uffd = (int)syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK);
        must(a->uffd >= 0 && !ioctl(a->uffd, UFFDIO_API, &api));
    }
    must(!ioctl(a->uffd, watch ? UFFDIO_REGISTER : UFFDIO_UNREGISTER, &r));
}

/* A move up to RUNNING */
static void after_begin(struct after *a)
{
    struct ff_error err;
    char options[128];
    void *state = NULL;
    size_t len;

    snprintf(options, sizeof(options), ",timeout=5,%s", a->options);
    a->at = loop_address(0, options);
    must_ok(ff_dest_new(a->at, &a->dest, &err), err);
    must_ok(ff_dest_elsewhere(a->dest, &err), err);
    ff_address_free(a->at);
    a->at = loop_address(ff_dest_port(a->dest), options);
    must_ok(ff_source_new(a->at, &a->source, &err), err);
    add_memory(a);
    must(!pthread_create(&a->source_thread, NULL, after_source, a));
    must_ok(ff_dest_accept(a->dest, "test", &err), err);
    must_ok(ff_dest_start(a->dest, &err), err);
    must_ok(ff_dest_recv_state(a->dest, &state, &len, &err), err);
    free(state);
    watch_here(a, true);
    must(ff_dest_request(a->dest, 0, 0, &err) == -EINVAL);
    must_ok(ff_dest_adopt(a->dest, dup(a->uffd), &err), err);
    must_ok(ff_dest_ready(a->dest, &err), err);
    must_ok(ff_dest_wait_go(a->dest, &err), err);
    must_ok(ff_dest_running(a->dest, &err), err);
}

static void after_end(struct after *a)
{
    ff_source_cancel(a->source);
    must(!pthread_join(a->source_thread, NULL));
    ff_source_free(a->source);
    ff_dest_free(a->dest);
    ff_address_free(a->at);
    close(a->uffd);
}

/* More than are taken at once, so that the last ones wait for the first to be served */
static void ask_for_holes(struct after *a)
{
    struct ff_error err;

    for (uint64_t i = 0; i < PAGES; i++) {
        uint64_t page = i * 3 % a->n_pages + 1;
        if (page < a->n_pages && is_zero_page(page))
            must_ok(ff_dest_request(a->dest, 0, page * 4096, &err), err);
    }
}

static void unwatched_then_asked(void)
{
    static struct after a = {.options = "prefill=pull", .n_pages = 3 * RING};
    struct ff_error err;

    after_begin(&a);
    must_ok(ff_dest_wait_complete(a.dest, LIMIT_MS, &err), err);
    watch_here(&a, false);
    ask_for_holes(&a); /* served by the fault thread, mostly */
    must_ok(ff_dest_wait_complete(a.dest, 0, &err), err);
    must_ok(ff_dest_wait_done(a.dest, &err), err);
    ask_for_holes(&a); /* it has ended */
    must_ok(ff_dest_wait_complete(a.dest, 0, &err), err);
    for (uint64_t page = 0; page < a.n_pages; page++)
        must(a.own.host[page * 4096] == (is_zero_page(page) ? 0 : 1 + page % 250));
    after_end(&a);
    must_ok(a.source_rc, a.source_err);
}

/* Before all is here that is an error, and nobody goes on with zeros by mistake */
static void unwatched_early(void)
{
    static struct after a = {.options = "prefill=off", .n_pages = 64};
    struct ff_error err;

    after_begin(&a);
    watch_here(&a, false);
    must_ok(ff_dest_request(a.dest, 0, 4096, &err), err);
    must(ff_dest_wait_complete(a.dest, LIMIT_MS, &err) == -ENOENT);
    must(strstr(err.text, "region after") && strstr(err.text, "not watched any more"));
    must(ff_dest_wait_done(a.dest, &err) == -ENOENT);
    after_end(&a);
    must(a.source_rc);
}

static void *ask_for_all(void *arg)
{
    struct after *a = arg;

    for (uint64_t page = 0; page < a->n_pages && !a->ask_rc; page++) {
        a->ask_rc = ff_dest_request(a->dest, 0, page * 4096, &a->ask_err);
        atomic_fetch_add(&a->asked, 1);
    }
    return NULL;
}

/* Without a link pages are gathered until there is no room: then who asks waits */
static void cancelled_while_asking(void)
{
    static struct after a = {.options = "prefill=off", .n_pages = PAGES};
    const struct timespec look = {.tv_nsec = 500000};
    struct ff_error err;

    after_begin(&a);
    ff_dest_pause(a.dest);
    must(ff_dest_wait_done(a.dest, &err));
    must(!pthread_create(&a.asker, NULL, ask_for_all, &a));
    while (atomic_load(&a.asked) < WANTS + RING / 2)
        nanosleep(&look, NULL);
    must(ff_dest_wait_complete(a.dest, 1, &err) == -ETIMEDOUT);
    ff_dest_cancel(a.dest);
    must(!pthread_join(a.asker, NULL));
    must(a.ask_rc == -ECANCELED);
    must(ff_dest_wait_complete(a.dest, LIMIT_MS, &err) == -ECANCELED);
    after_end(&a);
}

int main(int argc, char **argv)
{
    static const struct loop_test tests[] = {
        {"asked when nobody watches any more", unwatched_then_asked, 0},
        {"watched no more before all is here", unwatched_early, 0},
        {"cancelled while it asks", cancelled_while_asking, 0},
    };

    return loop_main(argc, argv, NULL, tests, FF_ARRAY_LEN(tests));
}
