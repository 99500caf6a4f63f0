/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * segments.c - register regions in segments: in parallel, and only what holds something
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cleanup.h"
#include "error.h"
#include "failpoint.h"
#include "foreign.h"
#include "log.h"
#include "mr.h"
#include "pagemap.h"
#include "segments.h"
#include "thread.h"

/* Small enough that one touched page does not cost much, large enough that a card's table of
 * registrations stays short. Where a registration pins, one page that is touched shortly before the
 * pause has its whole segment populated in it: so they are as small as their number permits, 64 MiB up
 * to 128 GiB of memory. Else 64 GiB are 512 segments of 128 MiB */
#define SEGMENT_BYTES_MIN (64ull << 20)
#define SEGMENTS_MAX 512u
#define SEGMENTS_MAX_PINNED 2048u
#define THREADS_MAX 8u
#define TRIES 8u
#define CUTS 64u /* parts of a segment at most: each takes a registration of its own */
#define CUT_MAX (FF_WIRE_PARTS_MAX / 4 * 3) /* segments and parts: pages that fail later need parts, too */

uint64_t ff_segments_size(const struct ff_regions *t, const struct ff_link *l)
{
    uint64_t total = 0, size = SEGMENT_BYTES_MIN;

    for (unsigned i = 0; i < t->n; i++)
        total += t->r[i].len_bytes;
    while (size * (l->pins ? SEGMENTS_MAX_PINNED : SEGMENTS_MAX) < total)
        size *= 2;
    while (size > l->max_mr_bytes)
        size /= 2;
    return size < FF_WIRE_SEGMENT_MIN ? 0 : size;
}

uint64_t ff_segments_of(uint64_t len_bytes, uint64_t segment_bytes)
{
    return (len_bytes + segment_bytes - 1) / segment_bytes;
}

int ff_segments_init(struct ff_segments *p, const struct ff_regions *t, uint64_t segment_bytes,
                   struct ff_error *err)
{
    uint64_t n = 0;

    for (unsigned i = 0; i < t->n; i++)
        n += ff_segments_of(t->r[i].len_bytes, segment_bytes);
    if (n > FF_WIRE_KEYS_MAX)
        return ff_error_set(err, E2BIG,
                            "segments: %llu of %llu MiB (at most %d): the device's largest "
                            "registration is too small for this guest",
                            (unsigned long long)n, (unsigned long long)segment_bytes >> 20,
                            FF_WIRE_KEYS_MAX);
    p->segment = calloc(n, sizeof(*p->segment));
    if (!p->segment)
        return ff_error_set(err, ENOMEM, "segments: out of memory");
    p->segment_bytes = segment_bytes;
    for (uint32_t i = 0; i < t->n; i++) {
        const struct ff_region *r = &t->r[i];
        uint32_t number = 0;
        for (uint64_t at = 0; at < r->len_bytes; at += segment_bytes)
            p->segment[p->n++] = (struct ff_segment){.region = i,
                                                 .number = number++,
                                                 .psize = r->psize,
                                                 .addr = (uint8_t *)r->host + at,
                                                 .len_bytes = FF_MIN(segment_bytes,
                                                                     r->len_bytes - at)};
    }
    return 0;
}

void ff_segments_free(struct ff_segments *p)
{
    free(p->segment);
    memset(p, 0, sizeof(*p));
}

/* --- what holds something --- */

/* A file: a hole that nobody has written or read to reads as zeros */
static bool file_populated(int fd, uint64_t offset, uint64_t len_bytes)
{
    off_t data = lseek(fd, (off_t)offset, SEEK_DATA);

    if (data < 0)
        return errno != ENXIO;
    return (uint64_t)data < offset + len_bytes;
}

bool ff_pagemap_populated(int pagemap, const struct ff_region *r, uint64_t at, uint64_t len_bytes)
{
    if (!r->zero_fill)
        return true;
    if (r->fd >= 0)
        return file_populated(r->fd, r->fd_offset + at, len_bytes);
    return ff_pagemap_any(pagemap, (uint8_t *)r->host + at, len_bytes) ||
           (r->is_private && file_populated(r->private_fd, r->fd_offset + at, len_bytes));
}

/* As ff_pagemap_populated(), of memory of process @of */
static bool foreign_populated(const struct ff_foreign *of, const struct ff_region *r, uint64_t at,
                              uint64_t len_bytes)
{
    return !r->zero_fill ||
           ff_foreign_any(of, (uintptr_t)r->host + at, len_bytes, r->psize) ||
           (r->is_private && file_populated(r->private_fd, r->fd_offset + at, len_bytes));
}

void ff_segments_lent(struct ff_segments *p, const struct ff_regions *t)
{
    for (unsigned i = 0; i < p->n; i++)
        p->segment[i].lent = t->r[p->segment[i].region].fd >= 0;
}

/* Pages of [@at, @at + @len_bytes) that the page tables of this process have */
static uint64_t mapped(const struct ff_region *r, uint64_t at, uint64_t len_bytes)
{
    unsigned char vec = 0;
    uint64_t n = 0;

    for (uint64_t end = at + len_bytes; at < end; at += r->psize)
        n += !mincore((uint8_t *)r->host + at, 1, &vec) && (vec & 1);
    return n;
}

/* A hugetlb file does not tell its holes. But when it takes no more than our page tables have,
 * every page of it is in them. Counted in this order, what is touched meanwhile does no harm. */
static bool tables_are_all(const struct ff_region *r)
{
    uint64_t have = mapped(r, 0, r->len_bytes) * r->psize;
    struct stat st;

    return !fstat(r->fd, &st) && (uint64_t)st.st_blocks * 512 == have;
}

unsigned ff_segments_want_populated(struct ff_segments *p, const struct ff_regions *t)
{
    FF_AUTO_CLOSE int pagemap = ff_pagemap_open();
    uint32_t asked = UINT32_MAX; /* the last region that is a hugetlb file */
    unsigned more = 0;
    bool all = false;

    for (unsigned i = 0; i < p->n; i++) {
        struct ff_segment *e = &p->segment[i];
        if (e->wanted || e->lent || e->is_part)
            continue;
        const struct ff_region *r = &t->r[e->region];
        uint64_t at = e->number * p->segment_bytes;
        const struct ff_foreign *of = t->of[e->region];
        e->wanted = of ? foreign_populated(of, r, at, e->len_bytes)
                       : ff_pagemap_populated(pagemap, r, at, e->len_bytes);
        if (e->wanted && r->fd >= 0 && r->zero_fill && r->psize > (uint32_t)sysconf(_SC_PAGESIZE)) {
            all = asked == e->region ? all : tables_are_all(r);
            asked = e->region;
            e->wanted = !all || mapped(r, at, e->len_bytes);
        }
        more += e->wanted;
    }
    return more;
}

/* --- registration --- */

/* -E2BIG, -ENOMEM */
static int add_segment(struct ff_segments *to, unsigned *room, const struct ff_segment *s,
                       struct ff_error *err)
{
    if (to->n == FF_WIRE_PARTS_MAX)
        return ff_error_set(err, E2BIG, "segments: too many pages that cannot be read: with them "
                            "memory is more than %d parts and segments", FF_WIRE_PARTS_MAX);
    if (to->n == *room) {
        struct ff_segment *more = realloc(to->segment, (*room + 64) * sizeof(*more));
        if (!more)
            return ff_error_set(err, ENOMEM, "segments: out of memory");
        to->segment = more;
        *room += 64;
    }
    to->segment[to->n++] = *s;
    return 0;
}

/* Bytes of @s from @at on that can all be read, or none of which can: whole pages, at least one. A
 * page may fail between two looks at it, so what has been found readable is not looked at again */
static uint64_t run_of(const struct ff_segment *s, uint64_t at, bool *readable)
{
    uint32_t page = (uint32_t)FF_MIN(s->psize, s->len_bytes), most, got;
    uint64_t end = at;

    do {
        most = (uint32_t)FF_MIN(s->len_bytes - end, 1ull << 30);
        got = ff_readable(s->addr + end, most) / page * page;
        end += got;
    } while (got == most && end < s->len_bytes);
    *readable = end > at;
    while (end == at || (!*readable && end < s->len_bytes &&
                         ff_readable(s->addr + end, page) < page))
        end += page;
    return end - at;
}

/* Cut @s at the pages that cannot be read; 0: there are such, 1: none; -errno */
static int split(struct ff_segments *to, unsigned *room, const struct ff_segment *s,
                 struct ff_error *err)
{
    bool readable, any = false;

    for (uint64_t at = 0, len; at < s->len_bytes; at += len) {
        len = run_of(s, at, &readable);
        struct ff_segment part = *s;
        part.addr += at;
        part.len_bytes = len;
        part.failed = false;
        part.is_part = true;
        part.unreadable = !readable;
        part.wanted = readable;
        if (len == s->len_bytes && readable)
            part.is_part = s->is_part;
        any |= !readable;
        int rc = add_segment(to, room, &part, err);
        if (rc)
            return rc;
    }
    return !any;
}

static int split_if_failed(struct ff_segments *to, unsigned *room, const struct ff_segment *s, const void *opaque,
                           struct ff_error *err)
{
    (void)opaque;
    return s->failed ? split(to, room, s, err) : add_segment(to, room, s, err);
}

typedef int change_fn(struct ff_segments *to, unsigned *room, const struct ff_segment *s, const void *opaque,
                      struct ff_error *err);

/* Have @change() add each segment, or its parts: 0; 1: it has returned that of one; -errno: nothing has changed */
static int change_each(struct ff_segments *p, change_fn *change, const void *opaque, struct ff_error *err)
{
    struct ff_segments to = {.segment = NULL};
    unsigned room = 0;
    int rc = 0, none = 0;

    for (unsigned i = 0; i < p->n && rc >= 0; i++) {
        rc = change(&to, &room, &p->segment[i], opaque, err);
        none |= rc > 0;
    }
    if (rc < 0) {
        free(to.segment);
        return rc;
    }
    free(p->segment);
    p->segment = to.segment;
    p->n = to.n;
    return none;
}

/* Split what failed: 0, 1: some of it can all be read, and failed for another reason; -errno: nothing
 * has changed */
static int split_failed(struct ff_segments *p, struct ff_error *err)
{
    return change_each(p, split_if_failed, NULL, err);
}

/* --- cut for the pause --- */

struct cut {
    const struct ff_segments *p;
    const struct ff_regions *t;
    int pagemap;
};

static bool may_cut(const struct cut *c, const struct ff_segment *s)
{
    return s->wanted && !s->mr.len_bytes && !s->lent && !s->is_part && !c->t->of[s->region] &&
           c->t->r[s->region].zero_fill && s->psize == (uint32_t)sysconf(_SC_PAGESIZE);
}

static uint64_t granule_at(const struct cut *c, const struct ff_segment *s, uint64_t at)
{
    return FF_MIN(FF_MAX(c->p->segment_bytes / CUTS, s->psize), s->len_bytes - at);
}

static bool granule_populated(const struct cut *c, const struct ff_segment *s, uint64_t at)
{
    const struct ff_region *r = &c->t->r[s->region];

    return ff_pagemap_populated(c->pagemap, r, (uint64_t)(s->addr - (uint8_t *)r->host) + at, granule_at(c, s, at));
}

static int cut_segment(struct ff_segments *to, unsigned *room, const struct ff_segment *s, const void *opaque,
                       struct ff_error *err)
{
    const struct cut *c = opaque;
    unsigned left = c->p->n - (unsigned)(s - c->p->segment);
    int rc = 0;

    if (!may_cut(c, s) || to->n + CUTS + left > CUT_MAX)
        return add_segment(to, room, s, err);
    for (uint64_t at = 0, end; at < s->len_bytes && !rc; at = end) {
        struct ff_segment part = *s;
        part.wanted = granule_populated(c, s, at);
        end = at + granule_at(c, s, at);
        while (end < s->len_bytes && granule_populated(c, s, end) == part.wanted)
            end += granule_at(c, s, end);
        part.addr += at;
        part.len_bytes = end - at;
        part.zeros = !part.wanted;
        part.is_part = part.zeros || part.len_bytes < s->len_bytes;
        rc = add_segment(to, room, &part, err);
    }
    return rc;
}

int ff_segments_cut(struct ff_segments *p, const struct ff_regions *t, struct ff_error *err)
{
    FF_AUTO_CLOSE int pagemap = ff_pagemap_open();
    const struct cut c = {.p = p, .t = t, .pagemap = pagemap};
    bool any = false;

    for (unsigned i = 0; i < p->n; i++)
        any |= may_cut(&c, &p->segment[i]);
    return any ? change_each(p, cut_segment, &c, err) : 0;
}

struct work {
    struct ff_segments *p;
    struct ff_link *l;
    unsigned access;
    _Atomic unsigned next;
    pthread_mutex_t lock; /* guards why */
    struct ff_error why;
    _Atomic int rc;
};

static void *worker(void *opaque)
{
    struct work *w = opaque;
    unsigned i;

    while (!w->rc && (i = w->next++) < w->p->n) {
        struct ff_segment *e = &w->p->segment[i];
        struct ff_error why;
        if (!e->wanted || e->mr.len_bytes)
            continue;
        bool published = w->access & FF_ACCESS_REMOTE_READ;
        int rc = published ? ff_failpoint("source.register") : 0;
        rc = rc ? ff_error_set(&why, -rc, "source: register: injected")
                : w->l->ops->reg(w->l, e->addr, e->len_bytes, w->access, &e->mr, &why);
        /* 0 stands for "none" on our wire, as FF_WIRE_PART_ZEROS does, and is what some devices give to memory that no peer
         * may access */
        uint32_t key = e->mr.rkey;
        if (!rc && (!key || key == FF_WIRE_PART_ZEROS) && w->access & (FF_ACCESS_REMOTE_READ | FF_ACCESS_REMOTE_WRITE)) {
            w->l->ops->dereg(w->l, &e->mr);
            rc = ff_error_set(&why, EIO, "the device gave key 0x%x", key);
        }
        if (!rc)
            continue;
        e->mr = (struct ff_mr){.len_bytes = 0};
        e->failed = rc == -EFAULT && published;
        pthread_mutex_lock(&w->lock);
        if (!w->rc)
            w->why = why;
        w->rc = e->failed ? w->rc : rc;
        pthread_mutex_unlock(&w->lock);
    }
    return NULL;
}

static int choose_on_demand(struct ff_segments *p, struct ff_link *l, uint64_t bytes,
                            enum ff_odp_choice odp, struct ff_error *err)
{
    if (!l->pins || p->on_demand) /* what was chosen first holds for what comes later */
        return 0;
    if (odp == FF_ODP_ON && !l->on_demand)
        return ff_error_set(err, ENOTSUP, "odp=on: the device has no on-demand paging for reads; "
                            "use odp=auto");
    int rc = odp != FF_ODP_ON && l->ops->may_pin ? l->ops->may_pin(l, bytes, err) : 0;
    p->on_demand = odp == FF_ODP_ON || (rc && odp == FF_ODP_AUTO && l->on_demand);
    if (rc && p->on_demand && err)
        ff_log(FF_LOG_INFO, "%s; using on-demand paging instead", err->text);
    return p->on_demand ? 0 : rc;
}

/* All that is wanted and is not registered, unless it @failed */
static int register_all(struct ff_segments *p, struct ff_link *l, unsigned access, unsigned jobs,
                        struct ff_error *err)
{
    struct work w = {.p = p, .l = l, .access = access | (p->on_demand ? FF_ACCESS_ON_DEMAND : 0)};
    pthread_t thread[THREADS_MAX];
    unsigned n_threads = 0;

    pthread_mutex_init(&w.lock, NULL);
    /* one less than it takes: this thread works too */
    unsigned want = FF_MIN(FF_MIN(jobs, THREADS_MAX), (unsigned)sysconf(_SC_NPROCESSORS_ONLN));
    while (n_threads + 1 < want &&
           !ff_thread_start(&thread[n_threads], worker, &w, "farfork-reg", NULL))
        n_threads++;
    worker(&w);
    while (n_threads)
        pthread_join(thread[--n_threads], NULL);
    pthread_mutex_destroy(&w.lock);
    *err = w.why;
    return w.rc;
}

static unsigned count_failed(const struct ff_segments *p)
{
    unsigned n = 0;

    for (unsigned i = 0; i < p->n; i++)
        n += p->segment[i].failed;
    return n;
}

int ff_segments_register(struct ff_segments *p, struct ff_link *l, unsigned access,
                       enum ff_odp_choice odp, struct ff_error *err)
{
    struct ff_error why = {.code = 0};
    unsigned jobs = 0;
    uint64_t bytes = 0;

    for (unsigned i = 0; i < p->n; i++) {
        const struct ff_segment *e = &p->segment[i];
        if (e->mr.len_bytes || e->lent || e->unreadable || e->zeros)
            continue;
        jobs += e->wanted;
        bytes += e->wanted || p->grows ? e->len_bytes : 0;
    }
    if (!jobs)
        return 0;
    int rc = choose_on_demand(p, l, bytes, odp, err);
    if (rc)
        return rc;
    /* perhaps it was such a page that has broken the last link */
    bool asks = p->on_demand && !p->grows && access & FF_ACCESS_REMOTE_READ;
    for (unsigned i = 0; asks && i < p->n; i++)
        p->segment[i].failed = p->segment[i].wanted;
    rc = asks ? FF_MIN(split_failed(p, &why), 0) : 0;
    /* more pages may fail meanwhile, but not for ever */
    for (unsigned tries = 0; !rc && tries < TRIES; tries++) {
        rc = register_all(p, l, access, jobs, &why);
        if (rc || !count_failed(p))
            break;
        struct ff_error refused = why;
        rc = split_failed(p, &why);
        if (rc > 0) { /* its memory is not the reason */
            why = refused;
            rc = -EFAULT;
        }
    }
    if (!rc && count_failed(p))
        rc = -EFAULT;
    if (rc && err)
        *err = why;
    return rc;
}

void ff_segments_dereg(struct ff_segments *p, struct ff_link *l)
{
    for (unsigned i = 0; i < p->n; i++) {
        if (p->segment[i].mr.len_bytes)
            l->ops->dereg(l, &p->segment[i].mr);
        p->segment[i].mr = (struct ff_mr){.len_bytes = 0};
        p->segment[i].failed = p->segment[i].told = false;
    }
    p->on_demand = false;
}
