/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * child.c - a guest on an image that an agent holds; see farfork.h
 */
/**
 * DOC: Theory of Operation
 *
 * Picture      hear the agent out -> map each region, not accessible -> watch -> accessible
 *                                                                   -> hand the userfaultfd over
 * Threads      the caller's; ff_child_running() and ff_child_cancel() beside a
 *              ff_child_wait_done().
 * Invariants   1. A page of the image that is missing is never touched unwatched: that would
 *                 put a page of zeros into the file, for every child. So a region is not
 *                 accessible until it is watched: not to other threads, not to mlockall().
 *              2. Until ff_child_wait_done() returned 0 a descriptor of the userfaultfd is open in
 *                 this process: whoever waits for a page goes on waiting when the agent dies
 *                 (tests/platform/last_uffd_closed.c).
 *              3. Regions are not inherited by fork(2): the userfaultfd would not be.
 *              4. It leaks its userfaultfd rather than close it before it is complete; one of another process
 *                 (ff_child_map_by()) that process has, too, by the same rule.
 * Limits       ANSWER_MS for each answer of the agent once the image is there.
 */
#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cleanup.h"
#include "error.h"
#include "farfork-clone.h"
#include "failpoint.h"
#include "files.h"
#include "log.h"
#include "message.h"
#include "policy.h"
#include "regions.h"
#include "uffd.h"

#define ANSWER_MS 60000

struct ff_child {
    char *path;
    unsigned number;
    struct ff_regions regions;
    struct memory {
        int fd;
        uint64_t offset;
        bool present, watched;
    } memory[FF_WIRE_REGIONS_MAX];
    int sock, cancel_fd;
    struct ff_uffd uffd;
    void *state;
    size_t state_bytes;
    bool attached, may_start, may_run, done;
    /* NULL: the memory is this process's */
    int (*map_by)(void *opaque, const struct ff_child_file *f, unsigned n, int *uffd, struct ff_error *err);
    void *map_by_opaque;
};

int ff_child_new(const char *socket_path, unsigned number, struct ff_child **out,
                 struct ff_error *err)
{
    int rc = ff_failpoints_start(err);
    if (rc)
        return rc;
    struct ff_child *c = calloc(1, sizeof(*c));
    if (!c)
        return ff_error_set(err, ENOMEM, "child: out of memory");
    for (unsigned i = 0; i < FF_WIRE_REGIONS_MAX; i++)
        c->memory[i].fd = -1;
    c->number = number;
    c->sock = c->uffd.fd = c->uffd.keep_fd = -1;
    c->cancel_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    c->path = strdup(socket_path);
    if (c->cancel_fd >= 0 && c->path) {
        *out = c;
        return 0;
    }
    rc = c->path ? ff_error_set(err, errno, "child: eventfd: %s", strerror(errno))
                 : ff_error_set(err, ENOMEM, "child: out of memory");
    ff_child_free(c);
    return rc;
}

int ff_child_add_region(struct ff_child *c, const struct ff_region *r, struct ff_error *err)
{
    struct ff_region mine = *r;

    mine.fd = -1;
    return ff_regions_add(&c->regions, &mine, err);
}

void ff_child_map_by(struct ff_child *c,
                     int (*fn)(void *opaque, const struct ff_child_file *f, unsigned n, int *uffd,
                               struct ff_error *err),
                     void *opaque)
{
    c->map_by = fn;
    c->map_by_opaque = opaque;
}

/* --- what the agent says --- */

static int send_hello(struct ff_child *c, const char *config, struct ff_error *err)
{
    struct ff_clone_msg m = {.type = FF_CLONE_HELLO, .number = c->number};

    int rc = ff_regions_hello(&c->regions, config, &m.table, err);
    if (rc)
        return rc;
    for (unsigned i = 0; i < c->regions.n; i++)
        m.host[i] = (uintptr_t)c->regions.r[i].host;
    c->sock = ff_clone_connect(c->path, err);
    rc = c->sock < 0 ? c->sock : ff_clone_send(c->sock, &m, err);
    ff_hello_free(&m.table);
    return rc;
}

static int expect(struct ff_child *c, enum ff_clone_type type, struct ff_clone_msg *m,
                  int timeout_ms, struct ff_error *err)
{
    int rc = ff_clone_expect(c->sock, c->cancel_fd, m, timeout_ms, err);

    if (!rc && m->type != type) {
        rc = ff_error_set(err, EPROTO, "the agent sent %s (want %s)", ff_clone_name(m->type),
                          ff_clone_name(type));
        ff_clone_close(m);
    }
    return rc;
}

/* The state, and whether the image is complete */
static int receive_image_message(struct ff_child *c, struct ff_error *err)
{
    struct ff_clone_msg m;

    int rc = expect(c, FF_CLONE_IMAGE, &m, -1, err); /* as long as it takes; cancellable */
    if (rc)
        return rc;
    c->done = m.complete;
    c->state_bytes = m.state_bytes;
    rc = ff_file_check_sealed(m.fd[0], m.state_bytes, "child", err);
    void *p = rc ? MAP_FAILED : mmap(NULL, m.state_bytes, PROT_READ, MAP_PRIVATE, m.fd[0], 0);
    if (p != MAP_FAILED)
        c->state = p;
    else if (!rc)
        rc = ff_error_set(err, errno, "map the state: %s", strerror(errno));
    ff_clone_close(&m);
    return rc;
}

static int take_region_file(struct ff_child *c, const struct ff_clone_memory *e, int *fd,
                            struct ff_error *err)
{
    const struct ff_region *r = e->region < c->regions.n ? &c->regions.r[e->region] : NULL;
    struct stat st;

    if (!r || c->memory[e->region].fd >= 0)
        return ff_error_set(err, EPROTO, "a file for region %u (of %u, once each)", e->region,
                            c->regions.n);
    if (fstat(*fd, &st) || (uint64_t)st.st_size < e->offset ||
        (uint64_t)st.st_size - e->offset < r->len_bytes)
        return ff_error_set(err, EPROTO, "region %s: the agent's file is too short", r->name);
    c->memory[e->region] = (struct memory){
        .fd = *fd, .offset = e->offset, .present = e->present || c->done};
    *fd = -1; /* taken */
    return 0;
}

static int take_files(struct ff_child *c, struct ff_error *err)
{
    int rc = 0;

    for (unsigned have = 0; have < c->regions.n && !rc;) {
        struct ff_clone_msg m;
        rc = expect(c, FF_CLONE_MEMORY, &m, ANSWER_MS, err);
        if (rc)
            return rc;
        for (unsigned i = 0; i < m.n && !rc; i++, have++)
            rc = take_region_file(c, &m.memory[i], &m.fd[i], err);
        ff_clone_close(&m);
    }
    return rc;
}

/* --- memory --- */

static int map_region(struct ff_child *c, unsigned i, struct ff_error *err)
{
    const struct ff_region *r = &c->regions.r[i];
    struct memory *m = &c->memory[i];
    bool huge = r->psize > (uint32_t)sysconf(_SC_PAGESIZE);
    struct ff_policy policy = ff_policy_at(r->host); /* goes with what is mapped there */
    struct ff_uffd_range range = {.host = r->host,
                                  .len_bytes = r->len_bytes,
                                  .psize = r->psize,
                                  .memory = huge ? FF_UFFD_HUGETLB : FF_UFFD_SHMEM,
                                  .landing = FF_UFFD_COPY};

    /* for hugetlb the kernel sets aside all pages that the child may come to write to, or fails */
    if (mmap(r->host, r->len_bytes, PROT_NONE, MAP_PRIVATE | MAP_FIXED, m->fd, (off_t)m->offset) ==
        MAP_FAILED) {
        int e = errno;
        return ff_error_set(err, e, "region %s: map 0x%llx bytes: %s%s", r->name,
                            (unsigned long long)r->len_bytes, strerror(e),
                            e == ENOMEM && huge
                                ? "; a child needs as many free huge pages as it has memory (see "
                                  "HugePages_Free in /proc/meminfo)"
                                : "");
    }
    int rc = ff_policy_set(&policy, r->host, r->len_bytes);
    if (rc)
        return ff_error_set(err, -rc, "region %s: NUMA policy: %s", r->name, strerror(-rc));
    if (madvise(r->host, r->len_bytes, MADV_DONTFORK) < 0)
        return ff_error_set(err, errno, "region %s: madvise: %s", r->name, strerror(errno));
    if (!m->present) /* as image.c has it; fails for hugetlb */
        madvise(r->host, r->len_bytes, MADV_NOHUGEPAGE);
    rc = m->present ? 0 : ff_uffd_register(&c->uffd, &range, r->name, err);
    m->watched = !rc && !m->present;
    if (!rc && mprotect(r->host, r->len_bytes, PROT_READ | PROT_WRITE) < 0)
        rc = ff_error_set(err, errno, "region %s: mprotect: %s", r->name, strerror(errno));
    return rc;
}

static int map_all(struct ff_child *c, bool *watches, struct ff_error *err)
{
    *watches = false;
    for (unsigned i = 0; i < c->regions.n; i++)
        *watches |= !c->memory[i].present;
    int rc = *watches ? ff_uffd_open(&c->uffd, err) : 0;
    for (unsigned i = 0; i < c->regions.n && !rc; i++)
        rc = map_region(c, i, err);
    return rc;
}

/* The other process watches by a userfaultfd of its own, of which a duplicate comes */
static int map_elsewhere(struct ff_child *c, bool *watches, struct ff_error *err)
{
    FF_AUTO_FREE struct ff_child_file *f = calloc(c->regions.n + 1, sizeof(*f));

    if (!f)
        return ff_error_set(err, ENOMEM, "out of memory");
    *watches = false;
    for (unsigned i = 0; i < c->regions.n; i++) {
        f[i] = (struct ff_child_file){.region = c->regions.r[i], .present = c->memory[i].present};
        f[i].region.fd = c->memory[i].fd;
        f[i].region.fd_offset = c->memory[i].offset;
        *watches |= !c->memory[i].present;
    }
    int rc = c->map_by(c->map_by_opaque, f, c->regions.n, &c->uffd.fd, err);
    if (!rc && *watches && c->uffd.fd < 0)
        rc = ff_error_set(err, EINVAL, "some memory is missing, but is not watched");
    for (unsigned i = 0; i < c->regions.n && !rc; i++)
        c->memory[i].watched = !c->memory[i].present;
    return rc;
}

static int map_image(struct ff_child *c, const char *config, struct ff_error *err)
{
    struct ff_clone_msg m = {.type = FF_CLONE_WATCH};
    bool watches = false;

    int rc = send_hello(c, config, err);
    if (!rc)
        rc = receive_image_message(c, err);
    if (!rc)
        rc = take_files(c, err);
    if (!rc)
        rc = (c->map_by ? map_elsewhere : map_all)(c, &watches, err);
    if (rc)
        return rc;
    m.n_fds = watches;
    m.fd[0] = c->uffd.fd;
    rc = ff_clone_send(c->sock, &m, err);
    if (!rc)
        rc = expect(c, FF_CLONE_ATTACHED, &m, ANSWER_MS, err);
    c->attached = !rc;
    return rc;
}

int ff_child_attach(struct ff_child *c, const char *config, struct ff_error *err)
{
    if (c->sock >= 0)
        return ff_error_set(err, EINVAL, "child %u: attach: a second time", c->number);
    int rc = map_image(c, config, err);
    if (rc)
        ff_error_pass(err, rc, "child %u: attach", c->number);
    return rc;
}

void ff_child_state(const struct ff_child *c, const void **state, size_t *len)
{
    *state = c->state;
    *len = c->state_bytes;
}

int ff_child_fd(const struct ff_child *c, unsigned region, uint64_t *offset)
{
    if (region >= c->regions.n)
        return -1;
    *offset = c->memory[region].offset;
    return c->memory[region].fd;
}

/* What it means that the agent has gone those say that wait */
static int send_type(struct ff_child *c, enum ff_clone_type type, struct ff_error *err)
{
    int rc = ff_clone_send_type(c->sock, type, err);

    return rc == -EPIPE || rc == -ECONNRESET ? 0 : rc;
}

int ff_child_loaded(struct ff_child *c, struct ff_error *err)
{
    int rc = ff_failpoint("child.loaded");

    if (rc)
        return ff_error_set(err, -rc, "injected");
    return send_type(c, FF_CLONE_LOADED, err);
}

int ff_child_ready(struct ff_child *c, struct ff_error *err)
{
    return send_type(c, FF_CLONE_READY, err);
}

int ff_child_running(struct ff_child *c, struct ff_error *err)
{
    return send_type(c, FF_CLONE_RUNNING, err);
}

static void unwatch(struct ff_child *c)
{
    for (unsigned i = 0; i < c->regions.n; i++) {
        struct ff_uffd_range range = {.host = c->regions.r[i].host,
                                      .len_bytes = c->regions.r[i].len_bytes};
        struct ff_error why;
        /* it wakes whoever still waits */
        if (c->memory[i].watched && ff_uffd_unregister(&c->uffd, &range, &why))
            ff_log(FF_LOG_WARN, "child %u: region %s: %s", c->number, c->regions.r[i].name,
                   why.text);
        c->memory[i].watched = false;
    }
    ff_uffd_close(&c->uffd);
}

/* Take messages until @what is true */
static int wait_for(struct ff_child *c, const bool *what, struct ff_error *err)
{
    struct ff_clone_msg m;
    int rc = 0;

    if (!c->attached)
        return ff_error_set(err, EINVAL, "child %u: wait: it is not attached", c->number);
    while (!*what && !rc) {
        rc = ff_clone_expect(c->sock, c->cancel_fd, &m, -1, err);
        if (rc == -ECONNRESET && c->done) { /* it needs nobody */
            c->may_start = c->may_run = true;
            return 0;
        }
        if (rc && rc != -ECANCELED)
            ff_error_pass(err, rc, "child %u: missing memory will not come", c->number);
        if (rc)
            return rc;
        if (m.type == FF_CLONE_START && !c->may_start) {
            c->may_start = true;
        } else if (m.type == FF_CLONE_RUN && !c->may_run) {
            c->may_run = true;
        } else if (m.type == FF_CLONE_COMPLETE) {
            if (!c->done) /* it may have been when the child came */
                unwatch(c);
            c->done = true;
        } else {
            rc = ff_error_set(err, EPROTO, "child %u: the agent sent %s", c->number,
                              ff_clone_name(m.type));
        }
        ff_clone_close(&m);
    }
    return rc;
}

int ff_child_wait_start(struct ff_child *c, struct ff_error *err)
{
    return wait_for(c, &c->may_start, err);
}

int ff_child_wait_run(struct ff_child *c, struct ff_error *err)
{
    return wait_for(c, &c->may_run, err);
}

int ff_child_wait_done(struct ff_child *c, struct ff_error *err)
{
    return wait_for(c, &c->done, err);
}

void ff_child_cancel(struct ff_child *c)
{
    eventfd_write(c->cancel_fd, 1);
}

void ff_child_free(struct ff_child *c)
{
    if (!c)
        return;
    bool watched = false;
    for (unsigned i = 0; i < c->regions.n; i++) {
        watched |= c->memory[i].watched;
        ff_close_fd(&c->memory[i].fd);
    }
    if (!watched || c->map_by) /* else left open, on purpose: what is missing would read as zeros */
        ff_uffd_close(&c->uffd);
    if (c->state)
        munmap(c->state, c->state_bytes);
    ff_close_fd(&c->sock);
    ff_close_fd(&c->cancel_fd);
    ff_regions_free(&c->regions);
    free(c->path);
    free(c);
}
