/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * pager_install.c - pages that have come: installed, counted; what cannot be
 */
#include <errno.h>
#include <stdlib.h>
#include <sys/eventfd.h>

#include "cleanup.h"
#include "failpoint.h"
#include "log.h"
#include "pager.h"

/* So long a page may wait for memory before anybody is told: a cgroup that is squeezed, or huge
 * pages that another process gives back, take less */
#define SHORT_NS 5000000000ull

static void fail(struct ff_pager *p, enum ff_pager_state state, const struct ff_error *why)
{
    pthread_mutex_lock(&p->lock);
    bool first = p->state == FF_PAGER_UP;
    if (state > p->state) { /* an agent installs also while its link is away */
        p->state = state;
        p->why = *why;
    }
    if (first) {
        atomic_store(&p->count.broken_ns, ff_now_ns());
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

/* @rc is what an install said: -EAGAIN: it may work later; else the image is of no use */
static int install_failed(struct ff_pager *p, struct ff_pager_region *r, int rc,
                          struct ff_error *why)
{
    ff_error_pass(why, rc, "pager: region %s", r->name);
    if (ff_uffd_may_pass(rc)) {
        pthread_mutex_lock(&p->lock);
        p->no_memory = *why;
        pthread_mutex_unlock(&p->lock);
        return -EAGAIN;
    }
    if (atomic_load(&p->guest_runs) && !p->children && !p->elsewhere) {
        /* somebody waits for this page and nobody can bring it: whoever let the guest
         * run on would show it memory that never was (pager.h, invariant 4) */
        ff_log(FF_LOG_ERROR, "%s: aborting, the guest cannot go on", why->text);
        abort();
    }
    fail(p, FF_PAGER_FAILED, why);
    return rc;
}

static void count_present(struct ff_pager *p, uint64_t len)
{
    if (!len || atomic_fetch_add(&p->count.bytes_present, len) + len != p->bytes_total)
        return;
    ff_pager_was_complete(p); /* it remembers that */
    pthread_mutex_lock(&p->lock);
    pthread_cond_broadcast(&p->changed);
    pthread_mutex_unlock(&p->lock);
}

/* Of pages whose claims the caller holds the first @done are there; @rc is what stopped it */
static int installed(struct ff_pager *p, struct ff_pager_region *r, uint64_t page, uint64_t done,
                     int rc, struct ff_error *why)
{
    for (uint64_t i = 0; i < done; i++)
        ff_claim_done(&r->claims, page + i);
    count_present(p, done * r->range.psize);
    return rc ? install_failed(p, r, rc, why) : 0;
}

int ff_pager_short(struct ff_pager *p, enum ff_installer who)
{
    uint64_t now = ff_now_ns(), since = atomic_load(&p->short_ns[who]);
    struct ff_error why;

    if (!since)
        atomic_store(&p->short_ns[who], now);
    if (!since || now - since < SHORT_NS || atomic_load(&p->guest_runs))
        return 0;
    pthread_mutex_lock(&p->lock);
    why = p->no_memory;
    pthread_mutex_unlock(&p->lock);
    fail(p, FF_PAGER_FAILED, &why);
    return -ENOMEM;
}

bool ff_pager_is_short(struct ff_pager *p, struct ff_error *why)
{
    uint64_t now = ff_now_ns();
    bool is = false;

    for (unsigned i = 0; i < FF_INSTALLERS; i++) {
        uint64_t since = atomic_load(&p->short_ns[i]);
        is |= since && now > since && now - since >= SHORT_NS;
    }
    pthread_mutex_lock(&p->lock);
    *why = p->no_memory;
    pthread_mutex_unlock(&p->lock);
    return is;
}

/* One install by userfaultfd; waits for nothing but the kernel */
static int install_pages(struct ff_pager *p, struct ff_pager_region *r, uint64_t page, uint64_t n,
                         const void *src, bool wake, uint64_t *done, struct ff_error *why)
{
    uint32_t psize = r->range.psize;
    int rc = ff_failpoint("dest.install");

    return rc ? ff_error_set(why, -rc, "injected")
              : ff_uffd_install(&p->uffd, &r->range, page * psize, src, n * psize, wake, done, why);
}

int ff_pager_install(struct ff_pager *p, struct ff_pager_region *r, uint64_t page, uint64_t n,
                     const void *src, bool wake, uint64_t *done)
{
    uint64_t len = 0;
    struct ff_error why;

    int rc = install_pages(p, r, page, n, src, wake, &len, &why);
    uint64_t mapped = r->range.landing == FF_UFFD_CONTINUE
                          ? len : ff_uffd_ready(&r->range, page * r->range.psize, len);
    atomic_fetch_add(src ? &p->count.bytes_continued : &p->count.bytes_zero, mapped);
    atomic_fetch_add(src ? &p->count.bytes_copied : &p->count.bytes_zero, len - mapped);
    *done = len / r->range.psize;
    ff_pager_give_back(r, page, *done);
    return installed(p, r, page, *done, rc, &why);
}

int ff_pager_poison(struct ff_pager *p, struct ff_pager_region *r, uint64_t page, uint64_t n,
                    uint64_t *done)
{
    uint64_t psize = r->range.psize, at = page * psize, len;
    struct ff_error why;

    ff_uffd_drop_ready(&r->range, at, n * psize);
    int rc = ff_uffd_poison(&p->uffd, &r->range, at, n * psize, &len, &why);
    if (rc == -EINVAL && atomic_load(&p->guest_runs) && !p->children && !p->elsewhere) {
        rc = ff_uffd_forbid(&p->uffd, &r->range, at + len, n * psize - len, &why);
        len = rc ? len : n * psize;
    }
    *done = len / psize;
    if (len)
        ff_log(FF_LOG_WARN,
               "pager: region %s: the source cannot read %llu bytes at offset 0x%llx (poisoned "
               "memory): who touches them here gets a signal",
               r->name, (unsigned long long)len, (unsigned long long)at);
    atomic_fetch_add(&p->count.bytes_poisoned, len);
    for (uint64_t i = 0; i < *done; i++)
        ff_claim_poisoned(&r->claims, page + i);
    ff_pager_give_back(r, page, *done);
    count_present(p, len);
    return rc ? install_failed(p, r, rc, &why) : 0;
}

void ff_pager_leave_holes(struct ff_pager *p, struct ff_pager_region *r, uint64_t page, uint64_t n)
{
    uint64_t len = n * r->range.psize;

    ff_claim_hole(&r->claims, page, n);
    /* whoever waits by now was told that an install would wake it */
    ff_uffd_wake(&p->uffd, &r->range, page * r->range.psize, len, NULL);
    atomic_fetch_add(&p->count.bytes_zero, len);
    count_present(p, len);
}

void ff_pager_count_hole(struct ff_pager *p, struct ff_pager_region *r, bool there)
{
    uint32_t len = r->range.psize;

    if (there) {
        atomic_fetch_add(&p->count.bytes_zero, len);
        count_present(p, len);
    } else {
        atomic_fetch_sub(&p->count.bytes_present, len);
        atomic_fetch_sub(&p->count.bytes_zero, len);
    }
}

int ff_pager_install_hole(struct ff_pager *p, struct ff_pager_region *r, uint64_t page)
{
    struct ff_error why;
    uint64_t len;

    int rc = install_pages(p, r, page, 1, NULL, true, &len, &why);
    if (rc && !ff_pager_hole_is_gone(p, rc))
        return install_failed(p, r, rc, &why);
    ff_claim_done(&r->claims, page);
    ff_pager_count_hole(p, r, true);
    return 0;
}

void ff_pager_wake(struct ff_pager *p, struct ff_pager_region *r, uint64_t page)
{
    ff_uffd_wake(&p->uffd, &r->range, page * r->range.psize, r->range.psize, NULL);
}

void ff_pager_wake_late(struct ff_pager *p, struct ff_pager_region *r, uint64_t page)
{
    struct ff_error why;
    uint64_t done;

    /* its owner may have discarded the page since (a balloon): zeros, if it is not there; where that fails
     * who waits asks again */
    if (r->range.elsewhere && atomic_load(&p->image_frozen) && ff_claim_get(&r->claims, page) == FF_CLAIM_PRESENT &&
        !ff_uffd_install(&p->uffd, &r->range, page * r->range.psize, NULL, r->range.psize, true, &done, &why))
        return;
    if (!ff_uffd_is_minor(&r->range) || !atomic_load(&p->image_frozen) ||
        ff_claim_get(&r->claims, page) == FF_CLAIM_POISONED)
        ff_pager_wake(p, r, page);
    else if (ff_uffd_map_again(&p->uffd, &r->range, page * r->range.psize, &why))
        ff_log(FF_LOG_ERROR, "pager: region %s: %s; threads that wait for the page hang", r->name,
               why.text);
}

void ff_pager_installed(struct ff_pager *p)
{
    atomic_fetch_add(&p->installs, 1);
    if (atomic_load(&p->waiting))
        eventfd_write(p->wake_fd, 1);
}

int ff_pager_move_in(struct ff_pager *p, struct ff_pager_region *r, uint64_t page, uint64_t n,
                     void *src, uint64_t *done)
{
    uint64_t moved, len;
    struct ff_error why;

    int rc = ff_uffd_move(&p->uffd, &r->range, page * r->range.psize, src, n * r->range.psize,
                          &moved, &len, &why);
    atomic_fetch_add(&p->count.bytes_moved, moved);
    atomic_fetch_add(&p->count.bytes_copied, len - moved);
    *done = len / r->range.psize;
    moved /= r->range.psize;
    ff_pager_give_back(r, page + moved, *done - moved);
    return installed(p, r, page, *done, rc, &why);
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
