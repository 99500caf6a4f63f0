/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * collapse.c - anonymous memory that came page by page becomes huge pages again
 */
/**
 * DOC: Theory of Operation
 *
 * Purpose      what arrives in pages of 4 KiB stays in them until khugepaged comes by: 16 MiB in
 *              10 s, as kernels are set. This thread asks for each range of 2 MiB at once
 *              (MADV_COLLAPSE, Linux 6.1). It knows nothing of moves: memory is complete and
 *              watched by nobody, the guest runs on it. Only anonymous memory counts; files, memfds
 *              among them, stay as they are. While memory is watched it may not be huge: a fault
 *              would bring 2 MiB. QEMU begins the thread when both sides have completed and its
 *              blocks are MADV_HUGEPAGE again, so no total time depends on it. QEMU ends it at
 *              quit, at any migration, and before memory is unplugged.
 *
 * Picture      range:   count pages of its own (pagemap) --> less than half: leave it
 *                                   | half or more
 *                       MADV_COLLAPSE: the kernel copies 512 pages into a huge one
 *                                   |
 *                       rest three times as long --> next range
 *
 * Threads      one, of the usual priority: the kernel holds mmap_lock for writing while it
 *              copies, and a thread that is seldom let run would hold it for long. With
 *              SCHED_IDLE or nice 19, and as many busy threads as CPUs, single calls took 2.0
 *              and 0.4 s. What keeps it out of the guest's way are the rests. lock guards stop and
 *              the statistics.
 * Invariants   1. No byte changes: the kernel copies with the pages unmapped.
 *              2. Memory does not grow by more than what it holds: a range is left alone while
 *                 more than half of it is the shared page of zeros, or nothing.
 *              3. Where the administrator turned huge pages off nothing is done; the kernel
 *                 itself would, since MADV_COLLAPSE is an explicit wish.
 * Failure      a range that cannot be had (no free huge page, pages pinned) is skipped; after
 *              FAILURES in a row it ends, and khugepaged has the rest.
 * Limits       a guest thread that touches the range under way, or faults, waits for one copy:
 *              0.5 ms (5 ms into memory that a host under this one has not backed yet).
 * Sources      madvise(2); Documentation/admin-guide/mm/transhuge.rst, pagemap.rst
 */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "cleanup.h"
#include "collapse.h"
#include "error.h"
#include "farfork.h"
#include "log.h"
#include "pagemap.h"
#include "thread.h"

#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25
#endif

#define HUGE_BYTES (2ull << 20)
#define SMALL_BYTES 4096u
#define PAGES (HUGE_BYTES / SMALL_BYTES)
#define RESTS 3 /* times as long as the work before: a quarter of a CPU, and of the guest's time */
#define FAILURES 16

/* The shared page of zeros is not alone */
#define PM_OWN (FF_PM_PRESENT | FF_PM_ALONE)

struct range {
    uint8_t *start, *end; /* whole huge pages */
};

struct ff_collapse {
    struct range *range;
    unsigned n_ranges;
    int pagemap;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool stop;
    struct ff_collapse_counts stats;
};

/* --- whether it is wanted --- */

/* The word in brackets in @dir/@name; "": there is no such file */
static void chosen(const char *dir, const char *name, char out[32])
{
    char path[256], text[128] = "";

    snprintf(path, sizeof(path), "%s/%s", dir, name);
    FF_AUTO_CLOSE int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t n = fd < 0 ? -1 : read(fd, text, sizeof(text) - 1);
    out[0] = '\0';
    if (n > 0 && strchr(text, '['))
        sscanf(strchr(text, '['), "[%31[a-z]]", out);
}

int ff_collapse_permitted(const char *dir, struct ff_error *err)
{
    char size[32], all[32];

    chosen(dir, "hugepages-2048kB/enabled", size); /* Linux 6.8; it has the last word */
    chosen(dir, "enabled", all);
    bool off = *size && strcmp(size, "inherit") ? !strcmp(size, "never")
                                                : !*all || !strcmp(all, "never");
    return off ? ff_error_set(err, ENOTSUP, "collapse: no transparent huge pages of 2 MiB: %s",
                              *all ? "this host has them turned off" : "this kernel has none")
               : 0;
}

/* --- the thread --- */

/* Pages of a range that take memory of their own */
static unsigned own_pages(int pagemap, const uint8_t *at)
{
    uint64_t entry[PAGES];
    unsigned n = 0;

    if (!ff_pagemap_read(pagemap, at, PAGES, entry))
        return 0;
    for (unsigned i = 0; i < PAGES; i++)
        n += (entry[i] & PM_OWN) == PM_OWN;
    return n;
}

/* False: it was stopped */
static bool rest(struct ff_collapse *c, uint64_t ns)
{
    uint64_t end = ff_now_ns() + ns;

    pthread_mutex_lock(&c->lock);
    c->stats.cpu_ns = ff_thread_cpu_ns();
    while (!c->stop && !ff_cond_wait_until(&c->changed, &c->lock, end))
        ;
    bool go_on = !c->stop;
    pthread_mutex_unlock(&c->lock);
    return go_on;
}

static void count_up(struct ff_collapse *c, uint64_t *what)
{
    pthread_mutex_lock(&c->lock);
    ++*what;
    pthread_mutex_unlock(&c->lock);
}

/* True: on with the next region */
static bool collapse_region(struct ff_collapse *c, const struct range *r, unsigned *failures)
{
    for (uint8_t *at = r->start; at < r->end; at += HUGE_BYTES) {
        uint64_t from = ff_now_ns();
        if (own_pages(c->pagemap, at) < PAGES / 2) {
            count_up(c, &c->stats.sparse);
        } else if (!madvise(at, HUGE_BYTES, MADV_COLLAPSE)) {
            count_up(c, &c->stats.huge);
            *failures = 0;
        } else {
            bool never = errno == EINVAL; /* the kernel is too old, or this mapping is of no use */
            count_up(c, &c->stats.failed);
            if (never || ++*failures == FAILURES)
                return never;
        }
        if (!rest(c, RESTS * (ff_now_ns() - from)))
            return false;
    }
    return true;
}

static void *collapse_main(void *arg)
{
    struct ff_collapse *c = arg;
    struct ff_collapse_counts *st = &c->stats;
    uint64_t from = ff_now_ns();
    unsigned failures = 0;

    for (unsigned i = 0; i < c->n_ranges && collapse_region(c, &c->range[i], &failures); i++)
        ;
    pthread_mutex_lock(&c->lock);
    st->cpu_ns = ff_thread_cpu_ns();
    st->ended = true;
    struct ff_collapse_counts is = *st;
    pthread_mutex_unlock(&c->lock);
    ff_log(FF_LOG_INFO, "collapse: %llu of %llu ranges of 2 MiB are huge pages, %llu hold too "
           "little, %llu failed; %llu ms, %llu ms of CPU", (unsigned long long)is.huge,
           (unsigned long long)is.ranges, (unsigned long long)is.sparse,
           (unsigned long long)is.failed, (unsigned long long)(ff_now_ns() - from) / 1000000,
           (unsigned long long)is.cpu_ns / 1000000);
    return NULL;
}

/* --- for the caller --- */

static void add_region(struct ff_collapse *c, const struct ff_region *r)
{
    uintptr_t start = ((uintptr_t)r->host + HUGE_BYTES - 1) & ~(HUGE_BYTES - 1);
    uintptr_t end = ((uintptr_t)r->host + r->len_bytes) & ~(HUGE_BYTES - 1);

    /* anonymous memory in small pages; files are khugepaged's */
    if (r->fd >= 0 || !r->zero_fill || r->psize != SMALL_BYTES || start >= end)
        return;
    c->range[c->n_ranges++] = (struct range){(uint8_t *)start, (uint8_t *)end};
    c->stats.ranges += (end - start) / HUGE_BYTES;
}

static void free_all(struct ff_collapse *c)
{
    ff_close_fd(&c->pagemap);
    pthread_mutex_destroy(&c->lock);
    pthread_cond_destroy(&c->changed);
    free(c->range);
    free(c);
}

int ff_collapse_start(const struct ff_region *r, unsigned n, struct ff_collapse **out,
                      struct ff_error *err)
{
    int rc = ff_collapse_permitted(FF_THP_DIR, err);
    if (rc)
        return rc;
    struct ff_collapse *c = calloc(1, sizeof(*c));
    if (!c)
        return ff_error_set(err, ENOMEM, "collapse: out of memory");
    pthread_mutex_init(&c->lock, NULL);
    ff_cond_init(&c->changed);
    c->pagemap = ff_pagemap_open();
    if (c->pagemap < 0)
        rc = ff_error_set(err, errno, "collapse: open /proc/self/pagemap: %s", strerror(errno));
    c->range = calloc(n + 1, sizeof(*c->range));
    if (!rc && !c->range)
        rc = ff_error_set(err, ENOMEM, "collapse: out of memory");
    for (unsigned i = 0; i < n && !rc; i++)
        add_region(c, &r[i]);
    if (!rc)
        rc = ff_thread_start(&c->thread, collapse_main, c, "farfork-huge", err);
    if (rc)
        free_all(c);
    else
        *out = c;
    return rc;
}

void ff_collapse_stats(struct ff_collapse *c, struct ff_collapse_counts *out)
{
    pthread_mutex_lock(&c->lock);
    *out = c->stats;
    pthread_mutex_unlock(&c->lock);
}

void ff_collapse_stop(struct ff_collapse *c)
{
    if (!c)
        return;
    pthread_mutex_lock(&c->lock);
    c->stop = true;
    pthread_cond_broadcast(&c->changed);
    pthread_mutex_unlock(&c->lock);
    pthread_join(c->thread, NULL);
    free_all(c);
}
