/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * agent_beside.c - a thread beside each child's QEMU
 */
/**
 * DOC: Theory of Operation
 *
 * Purpose      a child is any QEMU, started with -S -incoming defer and a monitor for this thread alone, which gives it its
 *              memory and its state.
 * Picture      find its RAM blocks; `migrate-incoming` of a socket, of which nothing comes yet
 *              ff_child_attach(): CONNECTED; wait for the image
 *                files by add-fd; the watcher maps them privately over RAM, and watches: ATTACHED
 *              write the stream: machine, block table, devices' state as it came   -> it loads
 *              links down; LOADED; wait: START; READY; wait: RUN
 *              `cont`                                                              -> RUNNING
 *              wait: COMPLETE; the watcher closes its userfaultfd: it needs nobody
 * Threads      one a child. It waits in its QEMU's monitor, which waits for pages perhaps: those come by the library's
 *              threads. When that QEMU ends, so does every wait for it.
 * Invariants   1. Nothing of an image that is missing is touched before it is watched: watch_files.h.
 *              2. Until COMPLETE the end of this thread, for whatever reason, is the end of its child, by the
 *                 watcher (watcher.h); without a watcher the child waits. It never reads zeros.
 *              3. Its guest runs by this thread's `cont` alone, which comes after RUN.
 * Failure      The reason goes to the child's log, and the agent ends the child.
 * Limits       What a virtio-serial port holds for a slow reader stays; devices start with the vCPUs.
 */
#include <errno.h>
#include <fcntl.h>
#include <malloc.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "agent_beside.h"
#include "autojson.h"
#include "cleanup.h"
#include "device_state.h"
#include "discards.h"
#include "farfork-clone.h"
#include "guest_page.h"
#include "incoming_stream.h"
#include "links.h"
#include "machine.h"
#include "movable.h"
#include "outside.h"
#include "thread.h"
#include "unannounced.h"
#include "watcher.h"
#include "xalloc.h"

#define LOOK_MS 5                         /* for its monitor */
#define CONNECT_LIMIT_MS 60000
#define COMMAND_LIMIT_MS (24 * 3600 * 1000) /* it may wait for pages, and they for a link */
#define END_LIMIT_S 5
#define STREAM "farfork"

struct beside {
    struct beside *next;
    pthread_t thread;
    struct beside_child of;
    char *agent, *watcher, *log, *path;
    bool isolated;
    int ended;   /* readable: what the agent has started has ended */
    int stop_fd; /* readable: waits end */
    /* the thread's */
    struct qmp *q;
    pid_t pid; /* of QEMU */
    struct outside_block *b;
    unsigned n, page_bits, advice;
    char *machine, *config;
    int stream; /* to QEMU */
    struct ff_child *child;
    struct watch watch;
};

/* --- its QEMU, before there is an image --- */

static int connect_qemu(struct beside *s, struct ff_error *err)
{
    struct pollfd p[2] = {{.fd = s->ended, .events = POLLIN}, {.fd = s->stop_fd, .events = POLLIN}};
    int rc;

    while ((rc = qmp_connect(s->path, s->stop_fd, CONNECT_LIMIT_MS, &s->q, err)) == -ENOENT || rc == -ECONNREFUSED)
        if (poll(p, 2, LOOK_MS) > 0)
            return ff_error_set(err, ESRCH, "its QEMU has ended");
    if (rc)
        return rc;
    qmp_limit(s->q, COMMAND_LIMIT_MS);
    s->pid = qmp_pid(s->q);
    return s->pid > 0 ? 0 : ff_error_set(err, ESRCH, "its QEMU is not of this PID namespace");
}

static int ask_bool(struct beside *s, const char *property, unsigned flag, bool flag_if, struct ff_error *err)
{
    FF_AUTO_JSON json_t *v = NULL;
    int rc = qmp_command(s->q, "qom-get", json_pack("{ss ss}", "path", "/machine", "property", property), &v, err);

    if (!rc && json_is_true(v) == flag_if)
        s->advice |= flag;
    return rc;
}

static int look_at_qemu(struct beside *s, struct ff_error *err)
{
    int rc = outside_may(s->pid, true, err);

    if (!rc) /* by some devices another process would reach memory that is not the child's any more */
        rc = movable_check(s->q, err);
    if (!rc)
        rc = discards_check(s->q, err);
    if (!rc)
        rc = guest_page_bits(s->q, &s->page_bits, err);
    if (!rc)
        rc = machine_name(s->q, &s->machine, err);
    if (!rc)
        rc = machine_config(s->q, s->machine, s->page_bits, &s->config, err);
    if (!rc)
        rc = ask_bool(s, "dump-guest-core", WATCH_NO_DUMP, false, err);
    if (!rc)
        rc = ask_bool(s, "mem-merge", WATCH_MERGE, true, err);
    if (!rc)
        rc = outside_list(s->q, &s->b, &s->n, err);
    if (!rc)
        rc = outside_place(s->q, s->pid, s->b, s->n, err);
    malloc_trim(0); /* that has read its heap, and the thread waits now, perhaps for long */
    return rc;
}

/* It does not announce itself, by a MAC that is its parent's yet (nor does its guest: unannounced.h); nor does it open
 * its disks before `cont`. Events say how its migration ends */
static int listen_qemu(struct beside *s, struct ff_error *err)
{
    int pair[2];
    int rc = qmp_command(s->q, "migrate-set-capabilities",
                         json_pack("{s:[{s:s,s:b},{s:s,s:b}]}", "capabilities", "capability", "late-block-activate", "state", 1,
                                   "capability", "events", "state", 1), NULL, err);

    if (!rc)
        rc = qmp_command(s->q, "migrate-set-parameters", json_pack("{s:i}", "announce-rounds", 0), NULL, err);
    if (rc)
        return rc;
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair))
        return ff_error_set(err, errno, "socketpair: %s", strerror(errno));
    s->stream = pair[0];
    rc = qmp_command_with_fd(s->q, "getfd", json_pack("{ss}", "fdname", STREAM), pair[1], NULL, err);
    close(pair[1]);
    return rc ? rc : qmp_command(s->q, "migrate-incoming", json_pack("{ss}", "uri", "fd:" STREAM), NULL, err);
}

/* --- its memory --- */

/* All in one set, the first call's; @set: -1 */
static int pass_file(struct beside *s, int fd, json_int_t *set, int *there, struct ff_error *err)
{
    FF_AUTO_JSON json_t *added = NULL;
    int rc = qmp_command_with_fd(s->q, "add-fd", *set < 0 ? NULL : json_pack("{sI}", "fdset-id", *set), fd, &added, err);
    const json_t *id = json_object_get(added, "fdset-id"), *number = json_object_get(added, "fd");

    if (rc)
        return rc;
    if (!json_is_integer(id) || !json_is_integer(number))
        return ff_error_set(err, EPROTO, "QEMU: add-fd: the answer has no fdset-id, or no fd");
    *set = json_integer_value(id);
    *there = (int)json_integer_value(number);
    return 0;
}

static int map_image_files(struct beside *s, const struct ff_child_file *f, unsigned n, struct watch_file *v, json_int_t *set,
                     struct ff_error *err)
{
    struct watch_device d = {.there = -1};
    bool is_missing = false;
    int rc = 0;

    for (unsigned i = 0; i < n && !rc; i++) {
        v[i] = (struct watch_file){.is_complete = f[i].present, .offset = f[i].region.fd_offset};
        is_missing |= !f[i].present;
        rc = pass_file(s, f[i].region.fd, set, &v[i].there, err);
    }
    if (!rc && is_missing)
        rc = watch_pass_device(s->q, &d, err);
    if (!rc)
        rc = watcher_files(&s->watch, s->watcher, s->pid, d.there, s->b, v, n, s->advice, err);
    watch_drop_device(s->q, &d);
    return rc;
}

/* Of ff_child_map_by() */
static int map_by(void *opaque, const struct ff_child_file *f, unsigned n, int *uffd, struct ff_error *err)
{
    struct beside *s = opaque;
    FF_AUTO_FREE struct watch_file *v = xcalloc(n, sizeof(*v));
    json_int_t set = -1;
    int rc = map_image_files(s, f, n, v, &set, err);

    if (set >= 0) /* where this fails, they go with its monitor's last client */
        qmp_command(s->q, "remove-fd", json_pack("{sI}", "fdset-id", set), NULL, NULL);
    if (!rc) {
        *uffd = s->watch.fd;
        s->watch.fd = -1;
    }
    return rc;
}

static int take_image(struct beside *s, struct ff_error *err)
{
    int rc = ff_child_new(s->agent, s->of.number, &s->child, err);

    for (unsigned i = 0; i < s->n && !rc; i++) {
        const struct ff_region r = {.name = s->b[i].name,
                                    .host = (void *)(uintptr_t)s->b[i].hva,
                                    .len_bytes = s->b[i].len_bytes,
                                    .psize = s->b[i].psize,
                                    .fd = -1};
        rc = ff_child_add_region(s->child, &r, err);
    }
    if (rc)
        return rc;
    ff_child_map_by(s->child, map_by, s);
    return ff_child_attach(s->child, s->config, err);
}

/* --- its state --- */

static int write_stream(struct beside *s, const void *state, size_t len, struct ff_error *err)
{
    FF_AUTO_FREE struct incoming_block *b = xcalloc(s->n, sizeof(*b));
    struct incoming_stream all = {0};

    for (unsigned i = 0; i < s->n; i++)
        b[i] = (struct incoming_block){.name = s->b[i].name, .len_bytes = s->b[i].len_bytes};
    int rc = incoming_stream_begin(&all, s->machine, s->page_bits, b, s->n, err);
    if (!rc)
        rc = incoming_stream_end(&all, s->page_bits, b, s->n, state, len, err);
    if (!rc)
        unannounced_from_load(all.data, all.len);
    for (size_t done = 0; !rc && done < all.len;) {
        ssize_t n = send(s->stream, all.data + done, all.len - done, MSG_NOSIGNAL);

        if (n < 0 && errno != EINTR)
            rc = ff_error_set(err, errno, "QEMU: write its stream: %s", strerror(errno));
        done += n > 0 ? (size_t)n : 0;
    }
    free(all.data);
    malloc_trim(0);
    return rc;
}

static int wait_loaded(struct beside *s, struct ff_error *err)
{
    FF_AUTO_JSON json_t *now = NULL;

    for (;;) {
        FF_AUTO_JSON json_t *e = NULL;
        int rc = qmp_wait_event(s->q, COMMAND_LIMIT_MS, &e, err);
        if (rc)
            return ff_error_context(err, "QEMU: load the devices");
        const char *status = text_of(json_object_get(e, "data"), "status");
        if (strcmp(text_of(e, "event"), "MIGRATION"))
            continue;
        if (!strcmp(status, "failed"))
            return ff_error_set(err, EREMOTEIO, "QEMU: load the devices: its migration failed");
        if (!strcmp(status, "completed"))
            break;
    }
    int rc = qmp_command(s->q, "query-status", NULL, &now, err);
    if (!rc && (json_is_true(json_object_get(now, "running")) || !strcmp(text_of(now, "status"), "inmigrate")))
        rc = ff_error_set(err, EIO, "QEMU: it has loaded the devices, and is %s (want paused)", text_of(now, "status"));
    return rc;
}

static int load_child(struct beside *s, bool *runs, struct ff_error *err)
{
    const void *state;
    size_t len;

    ff_child_state(s->child, &state, &len);
    *runs = device_state_runs(state, len);
    int rc = write_stream(s, state, len, err);
    if (!rc)
        rc = wait_loaded(s, err);
    if (!rc && s->isolated)
        rc = links_all_down(s->q, err);
    return rc ? rc : ff_child_loaded(s->child, err);
}

/* --- its guest --- */

static int run(struct beside *s, bool runs, struct ff_error *err)
{
    int rc = ff_child_wait_start(s->child, err);

    if (!rc)
        rc = ff_child_ready(s->child, err);
    if (!rc)
        rc = ff_child_wait_run(s->child, err);
    if (!rc && runs)
        rc = qmp_command(s->q, "cont", NULL, NULL, err);
    if (!rc)
        rc = ff_child_running(s->child, err);
    return rc ? rc : ff_child_wait_done(s->child, err);
}

static int follow(struct beside *s, struct ff_error *err)
{
    bool runs = false;
    int rc = connect_qemu(s, err);

    if (!rc)
        rc = look_at_qemu(s, err);
    if (!rc)
        rc = listen_qemu(s, err);
    if (!rc)
        rc = take_image(s, err);
    if (!rc)
        rc = load_child(s, &runs, err);
    return rc ? rc : run(s, runs, err);
}

/* What QEMU itself has said last is why it ended, and the agent says so: no word of this thread's comes after it */
static bool has_ended_itself(struct beside *s, int rc)
{
    struct pollfd p = {.fd = s->ended, .events = POLLIN};

    return poll(&p, 1, rc == -EPIPE || rc == -ECONNRESET ? 1000 * END_LIMIT_S : 0) > 0;
}

static void say_failed(struct beside *s, int rc, const struct ff_error *why)
{
    int fd = has_ended_itself(s, rc) ? -1 : open(s->log, O_WRONLY | O_APPEND | O_CLOEXEC | O_NOFOLLOW);

    if (fd >= 0)
        dprintf(fd, "farfork: clone %u: %s; it ends\n", s->of.number, why->text);
    ff_close_fd(&fd);
    s->of.failed(s->of.opaque, s->of.number);
}

static void *beside_main(void *opaque)
{
    struct beside *s = opaque;
    struct ff_error why = {0}, ignored;
    int rc = follow(s, &why);

    if (rc)
        say_failed(s, rc, &why);
    else
        watch_end(&s->watch, &ignored); /* one that keeps its descriptor has one that watches nothing */
    watch_leave(&s->watch); /* else the watcher ends it */
    ff_child_free(s->child);
    s->child = NULL;
    qmp_free(s->q);
    s->q = NULL;
    ff_close_fd(&s->stream);
    malloc_trim(0);
    return NULL;
}

/* --- the agent's main thread --- */

static void beside_free(struct beside *s)
{
    ff_close_fd(&s->ended);
    ff_close_fd(&s->stop_fd);
    free(s->agent);
    free(s->watcher);
    free(s->log);
    free(s->path);
    free(s->b);
    free(s->machine);
    free(s->config);
    free(s);
}

int agent_beside_begin(struct beside **list, const struct beside_child *c, struct ff_error *err)
{
    struct beside *s = xcalloc(1, sizeof(*s));
    int rc = 0;

    *s = (struct beside){.of = *c, .agent = xstrdup(c->agent), .watcher = xstrdup(c->watcher), .log = xstrdup(c->log),
                         .path = xstrdup(text_of(c->how, "qmp")), .stream = -1,
                         .isolated = json_is_true(json_object_get(c->how, "isolated")),
                         .watch = {.fd = -1, .there = -1, .by = -1}};
    s->of.how = NULL;
    s->of.agent = s->of.watcher = s->of.log = NULL;
    s->ended = (int)syscall(SYS_pidfd_open, c->pid, 0);
    s->stop_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (s->ended < 0 || s->stop_fd < 0)
        rc = ff_error_set(err, errno, "child %u: pidfd_open, eventfd: %s", c->number, strerror(errno));
    if (!rc)
        rc = ff_thread_start(&s->thread, beside_main, s, "beside", err);
    if (rc) {
        beside_free(s);
        return rc;
    }
    s->next = *list;
    *list = s;
    return 0;
}

void agent_beside_end(struct beside **list)
{
    struct timespec end;

    clock_gettime(CLOCK_MONOTONIC, &end);
    end.tv_sec += END_LIMIT_S;
    while (*list) {
        struct beside *s = *list;
        *list = s->next;
        if (pthread_clockjoin_np(s->thread, NULL, CLOCK_MONOTONIC, &end)) {
            eventfd_write(s->stop_fd, 1); /* nor does this process wait any longer: it ends */
            continue;
        }
        beside_free(s);
    }
}
