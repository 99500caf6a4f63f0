/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * pager.c - what the fault thread and the prefill thread share; see pager.h
 */
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "cleanup.h"
#include "fault.h"
#include "log.h"
#include "pager.h"

static int init_region(struct ff_pager *p, const struct ff_region *r, struct ff_error *err)
{
    struct ff_pager_region *pr = &p->region[p->n_regions];
    bool shared = r->fd >= 0;

    *pr = (struct ff_pager_region){
        .name = r->name,
        .chunk_bytes = FF_MAX(p->opts->chunk_bytes, r->psize),
        .first_chunk = p->n_chunks,
        .range = {.host = r->host,
                  .len_bytes = r->len_bytes,
                  .psize = r->psize,
                  .memory = r->psize > (uint32_t)sysconf(_SC_PAGESIZE) ? FF_UFFD_HUGETLB
                            : shared                                   ? FF_UFFD_SHMEM
                                                                       : FF_UFFD_ANON,
                  .landing = p->opts->landing == FF_LANDING_CONTINUE && shared
                                 ? FF_UFFD_CONTINUE
                                 : FF_UFFD_COPY},
    };
    if (ff_claims_init(&pr->claims, r->len_bytes / r->psize))
        return ff_error_set(err, ENOMEM, "pager: claims of region %s: out of memory", r->name);
    p->n_regions++;
    if (pr->range.landing == FF_UFFD_CONTINUE) {
        void *alias = mmap(NULL, r->len_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, r->fd,
                           (off_t)r->fd_offset);
        if (alias == MAP_FAILED)
            return ff_error_set(err, errno, "pager: map region %s a second time: %s", r->name,
                                strerror(errno));
        pr->range.alias = alias;
    }
    p->bytes_total += r->len_bytes;
    p->n_chunks += (r->len_bytes + pr->chunk_bytes - 1) / pr->chunk_bytes;
    return 0;
}

int ff_pager_init(struct ff_pager *p, struct ff_link *link, const struct ff_address *opts,
                  const struct ff_regions *regions, struct ff_error *err)
{
    pthread_condattr_t attr;

    memset(p, 0, sizeof(*p));
    p->link = link;
    p->opts = opts;
    p->silence_ms = opts->timeout_ms;
    p->uffd.fd = p->uffd.keep_fd = -1;
    pthread_mutex_init(&p->lock, NULL);
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&p->changed, &attr);
    pthread_condattr_destroy(&attr);
    p->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (p->wake_fd < 0)
        return ff_error_set(err, errno, "pager: eventfd: %s", strerror(errno));
    for (unsigned i = 0; i < regions->n; i++) {
        int rc = init_region(p, &regions->r[i], err);
        if (rc)
            return rc;
    }
    int rc = ff_fault_engine_new(p, err);
    return rc ? rc : ff_prefill_engine_new(p, err);
}

static int start_thread(pthread_t *t, void *(*fn)(void *), void *arg, const char *name,
                        struct ff_error *err)
{
    sigset_t all, old;

    /* signals belong to the program's own threads */
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    int rc = pthread_create(t, NULL, fn, arg);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    if (rc)
        return ff_error_set(err, rc, "pager: start thread %s: %s", name, strerror(rc));
    pthread_setname_np(*t, name);
    return 0;
}

int ff_pager_start(struct ff_pager *p, struct ff_error *err)
{
    int rc = ff_uffd_open(&p->uffd, err);
    for (unsigned i = 0; i < p->n_regions && !rc; i++) {
        rc = ff_uffd_register(&p->uffd, &p->region[i].range, p->region[i].name, err);
        p->region[i].watched = !rc;
    }
    if (!rc)
        rc = start_thread(&p->fault_thread, ff_fault_main, p, "farfork-fault", err);
    p->fault_up = !rc;
    return rc;
}

void ff_pager_image_frozen(struct ff_pager *p)
{
    atomic_store(&p->image_frozen, true);
    eventfd_write(p->wake_fd, 1);
}

int ff_pager_first_touch(struct ff_pager *p, const struct ff_page_ref *pages, unsigned n,
                         struct ff_error *err)
{
    return n ? ff_fault_engine_want(p, pages, n, err) : 0;
}

int ff_pager_start_prefill(struct ff_pager *p, struct ff_error *err)
{
    if (!p->opts->prefill)
        return 0;
    int rc = start_thread(&p->prefill_thread, ff_prefill_main, p, "farfork-prefill", err);
    p->prefill_up = !rc;
    return rc;
}

static void fail(struct ff_pager *p, enum ff_pager_state state, const struct ff_error *why)
{
    pthread_mutex_lock(&p->lock);
    bool first = p->state == FF_PAGER_UP;
    if (first) {
        p->state = state;
        p->why = *why;
        if (p->on_break && !atomic_load(&p->stop))
            p->on_break(p->on_break_opaque, why->text);
    }
    pthread_cond_broadcast(&p->changed);
    pthread_mutex_unlock(&p->lock);
    if (first && !atomic_load(&p->stop))
        p->link->ops->shutdown(p->link); /* the other queue and the control channel learn it */
}

void ff_pager_break(struct ff_pager *p, const struct ff_error *why)
{
    fail(p, FF_PAGER_BROKEN, why);
}

int ff_pager_install(struct ff_pager *p, struct ff_pager_region *r, uint64_t page, uint64_t n,
                     const void *src)
{
    uint64_t offset = page * r->range.psize, len = n * r->range.psize;
    struct ff_error why;

    int rc = ff_fault("dest.install");
    if (rc)
        ff_error_set(&why, -rc, "injected");
    else
        rc = ff_uffd_install(&p->uffd, &r->range, offset, src, len, &why);
    if (rc) {
        ff_error_context(&why, "pager: region %s", r->name);
        if (atomic_load(&p->guest_runs)) {
            /* somebody waits for this page and nobody can bring it: whoever let the guest
             * run on would show it memory that never was (pager.h, invariant 4) */
            ff_log(FF_LOG_ERROR, "%s: aborting, the guest cannot go on", why.text);
            abort();
        }
        fail(p, FF_PAGER_FAILED, &why);
        return rc;
    }
    for (uint64_t i = 0; i < n; i++)
        ff_claim_done(&r->claims, page + i);
    if (!src)
        atomic_fetch_add(&p->count.bytes_zero, len);
    if (atomic_fetch_add(&p->count.bytes_present, len) + len == p->bytes_total) {
        pthread_mutex_lock(&p->lock);
        pthread_cond_broadcast(&p->changed);
        pthread_mutex_unlock(&p->lock);
    }
    return 0;
}

int ff_pager_wait(struct ff_pager *p, int timeout_ms, struct ff_error *err)
{
    uint64_t end = ff_now_ns() + (uint64_t)timeout_ms * 1000000u;
    struct timespec ts = {.tv_sec = (time_t)(end / 1000000000u),
                          .tv_nsec = (long)(end % 1000000000u)};
    int rc = 0;

    pthread_mutex_lock(&p->lock);
    while (atomic_load(&p->count.bytes_present) != p->bytes_total && p->state == FF_PAGER_UP && !rc)
        rc = pthread_cond_timedwait(&p->changed, &p->lock, &ts);
    if (atomic_load(&p->count.bytes_present) == p->bytes_total) {
        rc = 0;
    } else if (p->state != FF_PAGER_UP) {
        if (err)
            *err = p->why;
        rc = -p->why.code;
    } else {
        rc = 1;
    }
    pthread_mutex_unlock(&p->lock);
    return rc;
}

int ff_pager_check(struct ff_pager *p, enum ff_pager_state limit, struct ff_error *err)
{
    int rc = 0;

    pthread_mutex_lock(&p->lock);
    if (p->state >= limit) {
        if (err)
            *err = p->why;
        rc = -p->why.code;
    }
    pthread_mutex_unlock(&p->lock);
    return rc;
}

void ff_pager_finish(struct ff_pager *p)
{
    atomic_store(&p->stop, true);
    if (p->wake_fd >= 0)
        eventfd_write(p->wake_fd, 1);
    if (p->prefill_up)
        pthread_join(p->prefill_thread, NULL);
    if (p->fault_up)
        pthread_join(p->fault_thread, NULL);
    p->prefill_up = p->fault_up = false;
    for (unsigned i = 0; i < p->n_regions; i++) {
        struct ff_pager_region *r = &p->region[i];
        if (r->watched)
            ff_uffd_unregister(&p->uffd, &r->range, NULL);
        r->watched = false;
    }
}

void ff_pager_free(struct ff_pager *p)
{
    ff_pager_finish(p);
    ff_uffd_close(&p->uffd);
    for (unsigned i = 0; i < p->n_regions; i++) {
        struct ff_pager_region *r = &p->region[i];
        ff_claims_free(&r->claims);
        if (r->range.alias)
            munmap(r->range.alias, r->range.len_bytes);
    }
    ff_fault_engine_free(p->fault);
    ff_prefill_engine_free(p->prefill);
    ff_close_fd(&p->wake_fd);
    pthread_mutex_destroy(&p->lock);
    pthread_cond_destroy(&p->changed);
}

void ff_pager_stats(struct ff_pager *p, struct ff_stats *st)
{
    struct ff_pager_counters *c = &p->count;

    st->bytes_total = p->bytes_total;
    st->bytes_present = atomic_load(&c->bytes_present);
    st->bytes_prefill = atomic_load(&c->bytes_prefill);
    st->bytes_fault = atomic_load(&c->bytes_fault);
    st->bytes_zero = atomic_load(&c->bytes_zero);
    st->bytes_duplicated = atomic_load(&c->bytes_duplicated);
    st->faults = atomic_load(&c->faults);
    st->faults_waited = atomic_load(&c->faults_waited);
    st->faults_late = atomic_load(&c->faults_late);
    st->first_touch = atomic_load(&c->first_touch);
    st->fault_p50_ns = ff_hist_at(&p->fault_ns, 500);
    st->fault_p90_ns = ff_hist_at(&p->fault_ns, 900);
    st->fault_p99_ns = ff_hist_at(&p->fault_ns, 990);
    st->fault_p999_ns = ff_hist_at(&p->fault_ns, 999);
    st->fault_max_ns = ff_hist_at(&p->fault_ns, 1000);
}
