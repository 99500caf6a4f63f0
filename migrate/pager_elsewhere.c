/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * pager_elsewhere.c - destination: memory of another process; see pager_elsewhere.h
 */
#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "cleanup.h"
#include "log.h"
#include "pager_elsewhere.h"
#include "thread.h"

#define RING 1024u /* more than threads that can wait at once, mostly */
#define RETRY_MS 20

struct ff_asked {
    uint32_t region;
    uint64_t page, since_ns;
};

struct ff_elsewhere {
    pthread_mutex_t lock;
    pthread_cond_t taken;
    struct ff_asked ring[RING];
    unsigned first, n;
    _Atomic unsigned waiting; /* n, to be looked at without the lock */
    _Atomic bool adopted, cancelled;
    bool ended, complete; /* the fault thread has; with every page there, or a hole */
    void (*on_other)(void *opaque, uint64_t addr);
    void *on_other_opaque;
    int (*on_discard)(void *opaque, const struct iovec *part, unsigned n, struct ff_error *err);
    void *on_discard_opaque;
};

int ff_elsewhere_new(struct ff_pager *p, struct ff_error *err)
{
    struct ff_elsewhere *e = calloc(1, sizeof(*e));

    if (!e)
        return ff_error_set(err, ENOMEM, "pager: out of memory");
    pthread_mutex_init(&e->lock, NULL);
    ff_cond_init(&e->taken);
    p->elsewhere = e;
    return 0;
}

void ff_elsewhere_free(struct ff_pager *p)
{
    struct ff_elsewhere *e = p->elsewhere;

    if (!e)
        return;
    pthread_mutex_destroy(&e->lock);
    pthread_cond_destroy(&e->taken);
    free(e);
    p->elsewhere = NULL;
}

void ff_elsewhere_on_other(struct ff_pager *p, void (*fn)(void *opaque, uint64_t addr),
                           void *opaque)
{
    p->elsewhere->on_other = fn;
    p->elsewhere->on_other_opaque = opaque;
}

void ff_elsewhere_on_discard(struct ff_pager *p,
                             int (*fn)(void *opaque, const struct iovec *part, unsigned n, struct ff_error *err),
                             void *opaque)
{
    p->elsewhere->on_discard = fn;
    p->elsewhere->on_discard_opaque = opaque;
}

int ff_elsewhere_discard(struct ff_pager *p, const struct iovec *part, unsigned n, struct ff_error *err)
{
    const struct ff_elsewhere *e = p->elsewhere;

    return e->on_discard ? e->on_discard(e->on_discard_opaque, part, n, err)
                         : ff_error_set(err, ENOTSUP, "nobody discards memory of the other process");
}

int ff_elsewhere_adopt(struct ff_pager *p, int uffd, struct ff_error *err)
{
    const struct ff_uffd_range *first = &p->region[0].range;
    struct ff_uffd u = {.fd = -1, .keep_fd = -1};

    int rc = ff_uffd_adopt(&u, uffd, (uintptr_t)first->host, first->psize, err);
    for (unsigned i = 0; i < p->n_regions && !rc; i++)
        rc = ff_uffd_check(&u, &p->region[i].range, p->region[i].name, err);
    if (rc) {
        close(uffd);
        return rc;
    }
    p->uffd = u; /* read by the pass, which starts later, and once image_frozen is seen */
    atomic_store(&p->elsewhere->adopted, true);
    return 0;
}

bool ff_elsewhere_is_adopted(const struct ff_pager *p)
{
    return atomic_load(&p->elsewhere->adopted);
}

void ff_elsewhere_cancel(struct ff_pager *p)
{
    struct ff_elsewhere *e = p->elsewhere;

    atomic_store(&e->cancelled, true); /* before the lock, which answer_alone() may keep */
    pthread_mutex_lock(&e->lock);
    pthread_cond_broadcast(&e->taken);
    pthread_mutex_unlock(&e->lock);
}

int ff_elsewhere_received(struct ff_pager *p, unsigned region, uint64_t offset, uint64_t len_bytes,
                          bool discarded, struct ff_error *err)
{
    struct ff_pager_region *r = region < p->n_regions ? &p->region[region] : NULL;
    uint64_t n = 0;

    if (!r || offset > r->range.len_bytes || len_bytes > r->range.len_bytes - offset ||
        offset % r->range.psize || len_bytes % r->range.psize)
        return ff_error_set(err, EINVAL, "pager: received: region %u, offset 0x%llx, %llu bytes: no "
                                         "such pages", region, (unsigned long long)offset,
                            (unsigned long long)len_bytes);
    for (uint64_t page = offset / r->range.psize, end = page + len_bytes / r->range.psize; page < end;
         page++) {
        if (discarded) {
            n += ff_claim_forget(&r->claims, page);
        } else if (ff_claim_take(&r->claims, page)) {
            ff_claim_done(&r->claims, page);
            n++;
        }
    }
    n *= r->range.psize; /* whether all is there is asked once it is adopted */
    if (discarded)
        atomic_fetch_sub(&p->count.bytes_present, n);
    else
        atomic_fetch_add(&p->count.bytes_present, n);
    atomic_fetch_add(discarded ? &p->count.bytes_discarded : &p->count.bytes_precopied, n);
    return 0;
}

/* Every page was installed, but for holes, and nobody else serves */
static void answer_alone(struct ff_pager *p, const struct ff_asked *a)
{
    struct ff_pager_region *r = &p->region[a->region];
    struct ff_error why;
    uint64_t done;
    int rc = 0;

    if (!ff_claim_touch(&r->claims, a->page)) {
        ff_pager_wake(p, r, a->page);
        return;
    }
    while ((rc = ff_uffd_install(&p->uffd, &r->range, a->page * r->range.psize, NULL,
                                 r->range.psize, true, &done, &why)) &&
           ff_uffd_may_pass(rc) && !atomic_load(&p->elsewhere->cancelled))
        poll(NULL, 0, RETRY_MS);
    ff_claim_done(&r->claims, a->page);
    if (rc && !ff_pager_hole_is_gone(p, rc))
        ff_log(FF_LOG_ERROR, "pager: region %s: %s", r->name, why.text);
}

int ff_elsewhere_ask(struct ff_pager *p, unsigned region, uint64_t offset, struct ff_error *err)
{
    struct ff_elsewhere *e = p->elsewhere;

    if (region >= p->n_regions || offset >= p->region[region].range.len_bytes)
        return ff_error_set(err, EINVAL, "pager: request: region %u, offset 0x%llx: no such page",
                            region, (unsigned long long)offset);
    if (!atomic_load(&e->adopted))
        return ff_error_set(err, EINVAL, "pager: request: before the userfaultfd was adopted");
    const struct ff_asked a = {.region = region,
                               .page = offset / p->region[region].range.psize,
                               .since_ns = ff_now_ns()};
    pthread_mutex_lock(&e->lock);
    while (e->n == RING && !e->ended && !atomic_load(&e->cancelled))
        pthread_cond_wait(&e->taken, &e->lock);
    bool nobody = (e->ended || atomic_load(&e->cancelled)) && !e->complete;
    bool alone = e->complete;
    if (!alone && !nobody) {
        e->ring[(e->first + e->n++) % RING] = a;
        atomic_store(&e->waiting, e->n);
    }
    pthread_mutex_unlock(&e->lock);
    if (alone)
        answer_alone(p, &a); /* one claims the page */
    eventfd_write(p->wake_fd, 1);
    return nobody ? ff_error_set(err, ECANCELED, "pager: request: the move has ended") : 0;
}

static struct ff_asked take_one(struct ff_elsewhere *e)
{
    struct ff_asked a = e->ring[e->first];

    e->first = (e->first + 1) % RING;
    atomic_store(&e->waiting, --e->n);
    return a;
}

bool ff_elsewhere_is_due(const struct ff_pager *p)
{
    return p->elsewhere && atomic_load(&p->elsewhere->waiting) && ff_wants_room(p);
}

void ff_elsewhere_serve(struct ff_pager *p)
{
    struct ff_elsewhere *e = p->elsewhere;

    if (!e || !atomic_load(&e->waiting))
        return;
    pthread_mutex_lock(&e->lock);
    while (e->n && ff_wants_room(p)) {
        struct ff_asked a = take_one(e);
        pthread_mutex_unlock(&e->lock); /* what follows takes the pager's, and may call its owner */
        enum ff_claim was = ff_wants_page(p, a.region, a.page, a.since_ns);
        /* else an install follows, which wakes: of one in flight too, since who waits did so before
         * its owner's thread asked */
        if (was == FF_CLAIM_PRESENT || was == FF_CLAIM_POISONED)
            ff_pager_wake(p, &p->region[a.region], a.page);
        pthread_mutex_lock(&e->lock);
    }
    pthread_cond_broadcast(&e->taken);
    pthread_mutex_unlock(&e->lock);
}

int ff_elsewhere_other(struct ff_pager *p, uint64_t addr, struct ff_error *err)
{
    struct ff_elsewhere *e = p->elsewhere;
    struct ff_uffd_range there = {.host = (uint8_t *)(uintptr_t)(addr & ~0xfffull)};

    if (!e)
        return ff_error_set(err, EFAULT, "pager: fault at 0x%llx outside every region",
                            (unsigned long long)addr);
    if (e->on_other)
        e->on_other(e->on_other_opaque, addr);
    else
        ff_uffd_wake(&p->uffd, &there, 0, 4096, NULL);
    return 0;
}

void ff_elsewhere_end(struct ff_pager *p)
{
    struct ff_elsewhere *e = p->elsewhere;

    pthread_mutex_lock(&e->lock);
    e->ended = true;
    e->complete = ff_pager_was_complete(p);
    while (e->n) {
        struct ff_asked a = take_one(e);
        if (e->complete)
            answer_alone(p, &a);
    }
    pthread_cond_broadcast(&e->taken);
    pthread_mutex_unlock(&e->lock);
}
