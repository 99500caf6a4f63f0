/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * child_domain.c - a child of a fork that is a domain of libvirt's; see child_domain.h
 */
#include "child_domain.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "attach_domain.h"
#include "autojson.h"
#include "device_state.h"
#include "farfork-clone.h"
#include "links.h"
#include "pass_files.h"
#include "thread.h"
#include "unannounced.h"
#include "watch_files.h"
#include "xml_scan.h"

struct child_domain {
    struct attach a;
    struct attach_options o;
    const json_t *how; /* of the file */
    struct outside_block *b;
    unsigned n;
    struct ff_child *child;
};

static json_int_t how_number(const struct child_domain *c, const char *name)
{
    return json_integer_value(json_object_get(c->how, name));
}

/* --- SIGTERM --- */

/* The domain of that name is the one that was made here, and none that had the name before */
static bool is_own_domain(const struct child_domain *c)
{
    FF_AUTO_FREE char *xml = NULL;
    FF_AUTO_FREE char *uuid = NULL;
    FF_AUTO_FREE char *own = NULL;
    struct ff_error ignored;

    return !libvirt_ask(LIBVIRT_XML, c->o.domain, NULL, &xml, &ignored) &&
           !xml_element(xml, "/domain/uuid", &uuid, &ignored) && uuid &&
           !xml_element(c->a.domain->xml, "/domain/uuid", &own, &ignored) && own && !strcmp(uuid, own);
}

/* libvirt ends it in its own way; where that does not answer the kernel does */
static void end_domain(struct child_domain *c)
{
    struct attach_domain *d = c->a.domain;
    struct ff_error ignored;

    if (!d)
        return;
    int rc = is_own_domain(c) ? libvirt_ask(LIBVIRT_DESTROY, c->o.domain, NULL, NULL, &ignored) : -EAGAIN;
    if (rc && rc != -ESRCH && rc != -EALREADY && d->qemu_fd >= 0)
        syscall(SYS_pidfd_send_signal, d->qemu_fd, SIGKILL, NULL, 0);
    if (d->fifo)
        unlink(d->fifo);
}

static void *await_term_signal(void *opaque)
{
    struct child_domain *c = opaque;
    sigset_t set;
    int sig;

    sigemptyset(&set);
    sigaddset(&set, SIGTERM);
    sigwait(&set, &sig);
    end_domain(c);
    _exit(128 + SIGTERM);
}

/* --- its memory --- */

static int find_child_blocks(struct child_domain *c, struct ff_error *err)
{
    const json_t *list = json_object_get(c->how, "blocks"), *o;
    size_t i;
    int rc = 0;

    c->b = xcalloc(json_array_size(list) + 1, sizeof(*c->b));
    json_array_foreach(list, i, o) {
        struct outside_block *b = &c->b[c->n++];

        snprintf(b->name, sizeof(b->name), "%s", text_of(o, "name"));
        b->len_bytes = (uint64_t)json_integer_value(json_object_get(o, "length"));
        b->psize = (uint32_t)json_integer_value(json_object_get(o, "page-size"));
        rc = rc ? rc : outside_locate(c->a.pid, b, err);
    }
    return rc || c->n ? rc : ff_error_set(err, EPROTO, "attach: the parent's memory was not named");
}

/* Of ff_child_map_by() */
static int map_domain_by(void *opaque, const struct ff_child_file *f, unsigned n, int *uffd, struct ff_error *err)
{
    struct child_domain *c = opaque;
    FF_AUTO_FREE struct watch_file *v = xcalloc(n + 1, sizeof(*v));
    FF_AUTO_FREE int *fd = xcalloc(n + 1, sizeof(*fd)), *there = xcalloc(n + 1, sizeof(*there));

    for (unsigned i = 0; i < n; i++)
        fd[i] = f[i].region.fd;
    int rc = pass_files(c->a.pid, fd, n, there, err);
    for (unsigned i = 0; i < n; i++)
        v[i] = (struct watch_file){.there = there[i], .is_complete = f[i].present, .offset = f[i].region.fd_offset};
    if (rc)
        return rc;
    rc = watch_files_begin(&c->a.watch, c->a.pid, 0, -1, c->b, v, n, (unsigned)how_number(c, "advice"), err);
    pass_files_close(c->a.pid, there, n);
    if (!rc) {
        *uffd = c->a.watch.fd;
        c->a.watch.fd = -1;
    }
    return rc;
}

static int take_child_image(struct child_domain *c, struct ff_error *err)
{
    int rc = ff_child_new(text_of(c->how, "agent"), (unsigned)how_number(c, "number"), &c->child, err);

    for (unsigned i = 0; i < c->n && !rc; i++) {
        const struct ff_region r = {.name = c->b[i].name,
                                    .host = (void *)(uintptr_t)c->b[i].hva,
                                    .len_bytes = c->b[i].len_bytes,
                                    .psize = c->b[i].psize,
                                    .fd = -1};
        rc = ff_child_add_region(c->child, &r, err);
    }
    if (rc)
        return rc;
    ff_child_map_by(c->child, map_domain_by, c);
    return ff_child_attach(c->child, text_of(c->how, "config"), err);
}

/* --- its devices --- */

static int load_child_domain(struct child_domain *c, bool *runs, struct ff_error *err)
{
    FF_AUTO_FREE struct incoming_block *b = xcalloc(c->n, sizeof(*b));
    const unsigned bits = (unsigned)how_number(c, "page-bits");
    const void *state;
    size_t len;

    for (unsigned i = 0; i < c->n; i++)
        b[i] = (struct incoming_block){.name = c->b[i].name, .len_bytes = c->b[i].len_bytes};
    ff_child_state(c->child, &state, &len);
    *runs = device_state_runs(state, len);
    int rc = incoming_stream_begin(&c->a.stream, text_of(c->how, "machine"), bits, b, c->n, err);
    if (!rc)
        rc = incoming_stream_end(&c->a.stream, bits, b, c->n, state, len, err);
    if (!rc)
        unannounced_from_load(c->a.stream.data, c->a.stream.len);
    if (!rc)
        rc = attach_restore_load(&c->a, err);
    free(c->a.stream.data);
    c->a.stream = (struct incoming_stream){0};
    if (!rc && json_is_true(json_object_get(c->how, "isolated")))
        rc = links_all_down(c->a.q, err);
    return rc ? rc : ff_child_loaded(c->child, err);
}

/* --- its guest --- */

static int run_child_domain(struct child_domain *c, bool runs, struct ff_error *err)
{
    int rc = ff_child_wait_start(c->child, err);

    if (!rc)
        rc = ff_child_ready(c->child, err);
    if (!rc)
        rc = ff_child_wait_run(c->child, err);
    if (!rc && runs)
        rc = attach_restore_run(&c->a, err);
    if (!rc)
        rc = ff_child_running(c->child, err);
    if (!rc)
        rc = ff_child_wait_done(c->child, err);
    return rc ? rc : watch_end(&c->a.watch, err);
}

static int follow_child_domain(struct child_domain *c, struct ff_error *err)
{
    bool runs = false;
    int rc = attach_restore_begin(&c->a, err);

    if (!rc)
        rc = find_child_blocks(c, err);
    if (!rc)
        rc = take_child_image(c, err);
    if (!rc)
        rc = load_child_domain(c, &runs, err);
    return rc ? rc : run_child_domain(c, runs, err);
}

static void await_end_of(const struct child_domain *c)
{
    struct pollfd ended = {.fd = c->a.domain->qemu_fd, .events = POLLIN};

    ff_child_free(c->child);
    while (poll(&ended, 1, -1) < 0 && errno == EINTR)
        continue;
}

static int begin_child_domain(struct child_domain *c, const char *path, struct ff_error *err)
{
    json_error_t why;
    pthread_t term;

    c->how = json_load_file(path, 0, &why);
    if (!c->how)
        return ff_error_set(err, EINVAL, "%s: %s", path, why.text);
    c->o = (struct attach_options){.domain = text_of(c->how, "name"), .json = true};
    FF_AUTO_FREE char *line = json_dumps(c->how, JSON_COMPACT);
    c->a = (struct attach){.o = &c->o, .side = "child", .alone = -1, .watch = {.fd = -1, .there = -1, .by = -1}, .sock = -1,
                           .stop_fd = eventfd(0, EFD_CLOEXEC)};
    pthread_mutex_init(&c->a.lock, NULL);
    pthread_mutex_init(&c->a.qmp_lock, NULL);
    signal(SIGPIPE, SIG_IGN);
    int rc = attach_domain_new(&c->a, line, err);
    return rc ? rc : ff_thread_start(&term, await_term_signal, c, "attach-term", err);
}

int child_domain_run(const char *path)
{
    static struct child_domain c; /* a thread has it to the end */
    struct ff_error why = {0};
    sigset_t set;

    sigemptyset(&set);
    sigaddset(&set, SIGTERM);
    pthread_sigmask(SIG_BLOCK, &set, NULL);
    int rc = begin_child_domain(&c, path, &why);
    if (!rc)
        rc = follow_child_domain(&c, &why);
    if (!rc) {
        await_end_of(&c);
        return 0;
    }
    fprintf(stderr, "farfork attach: %s\n", why.text);
    fflush(stderr);
    end_domain(&c);
    return ATTACH_EXIT_HERE;
}
