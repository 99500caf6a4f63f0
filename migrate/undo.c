/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * undo.c - destination: memory that is kept is as it was, when its guest does not return after all; see undo.h
 */
#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/uio.h>

#include "cleanup.h"
#include "failpoint.h"
#include "log.h"
#include "thread.h"
#include "undo.h"
#include "wants.h"

#define PIECE (16ull << 20) /* the mapping's lock is held for less than a millisecond */
#define AHEAD (256u << 10)  /* after GO, around what is written: one stop instead of many */
#define SLAB 255u           /* pages, and one for what they are */
#define AGAIN_MS 20

/* In memory of its own: who waits in a page may have the heap's lock */
struct ff_undo_slab {
    struct ff_undo_slab *next;
    unsigned n;
    struct {
        uint32_t region;
        uint64_t page;
    } of[SLAB];
};

static size_t head_bytes(void)
{
    size_t psize = (size_t)sysconf(_SC_PAGESIZE);

    return (sizeof(struct ff_undo_slab) + psize - 1) / psize * psize;
}

static size_t slab_bytes(void)
{
    return head_bytes() + SLAB * (size_t)sysconf(_SC_PAGESIZE);
}

static uint8_t *slot_of(struct ff_undo_slab *s, unsigned i)
{
    return (uint8_t *)s + head_bytes() + i * (size_t)sysconf(_SC_PAGESIZE);
}

int ff_undo_new(struct ff_pager *p, struct ff_error *err)
{
    struct ff_undo *u = p->undo = calloc(1, sizeof(*u));

    for (unsigned i = 0; i < p->n_regions && u; i++) {
        struct ff_pager_region *r = &p->region[i];
        r->range.guarded = true;
        u->region[i].copied = ff_bitmap_new(r->claims.n_pages);
        u->region[i].zeros = ff_bitmap_new(r->claims.n_pages);
        if (!u->region[i].copied || !u->region[i].zeros)
            return ff_error_set(err, ENOMEM, "return: out of memory");
    }
    return u ? 0 : ff_error_set(err, ENOMEM, "return: out of memory");
}

int ff_undo_protect(struct ff_pager *p, struct ff_error *err)
{
    for (unsigned i = 0; i < p->n_regions; i++) {
        struct ff_uffd_range *range = &p->region[i].range;
        for (uint64_t at = 0; at < range->len_bytes; at += PIECE) {
            int rc = ff_uffd_protect(&p->uffd, range, at, FF_MIN(range->len_bytes - at, PIECE), true, err);
            if (rc)
                return ff_error_pass(err, rc, "return: region %s", p->region[i].name);
        }
    }
    return 0;
}

/* --- before GO --- */

static struct ff_undo_slab *with_room(struct ff_undo *u)
{
    if (u->slab && u->slab->n < SLAB)
        return u->slab;
    void *m = mmap(NULL, slab_bytes(), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (m == MAP_FAILED)
        return NULL;
    madvise(m, slab_bytes(), MADV_DONTFORK);
    struct ff_undo_slab *s = m;
    s->next = u->slab;
    return u->slab = s;
}

/* Not memcpy(): ThreadSanitizer takes the writer, which waits, for one that does not */
__attribute__((no_sanitize("thread"))) static void copy_page(uint8_t *to, const uint8_t *from, size_t len)
{
    const volatile uint64_t *src = (const volatile uint64_t *)from;
    uint64_t *dst = (uint64_t *)to;

    for (size_t i = 0; i < len / sizeof(*dst); i++)
        dst[i] = src[i];
}

/* With keep_lock. What is protected is there, and is not discarded meanwhile: reading it waits for nobody */
static int copy_kept(struct ff_pager *p, struct ff_pager_region *r, uint64_t page, struct ff_error *err)
{
    struct ff_undo *u = p->undo;
    uint32_t i = (uint32_t)(r - p->region);

    if (atomic_load(&u->over) || ff_claim_get(&r->claims, page) != FF_CLAIM_HOLE ||
        ff_bitmap_get(u->region[i].copied, page))
        return 0;
    int rc = ff_failpoint("dest.undo");
    struct ff_undo_slab *s = rc ? NULL : with_room(u);
    if (!s)
        return ff_error_set(err, ENOMEM, "return: region %s: no memory to copy what is written before GO", r->name);
    copy_page(slot_of(s, s->n), r->range.host + page * r->range.psize, r->range.psize);
    s->of[s->n].region = i;
    s->of[s->n++].page = page;
    ff_bitmap_set(u->region[i].copied, page);
    return 0;
}

/* Who is to write to @page, or after GO around it, goes on */
static int let_write(struct ff_pager *p, struct ff_pager_region *r, uint64_t page, struct ff_error *err)
{
    uint64_t len = r->range.psize, at = page * len;

    if (atomic_load(&p->undo->over)) {
        at -= at % AHEAD;
        len = FF_MIN(r->range.len_bytes - at, (uint64_t)AHEAD);
    }
    return ff_uffd_protect(&p->uffd, &r->range, at, len, false, err);
}

void ff_undo_later(struct ff_pager *p)
{
    if (!p->undo->again_ns)
        p->undo->again_ns = ff_now_ns() + AGAIN_MS * 1000000ull;
}

static void wake_all(struct ff_pager *p)
{
    for (unsigned i = 0; i < p->n_regions; i++)
        ff_uffd_wake(&p->uffd, &p->region[i].range, 0, p->region[i].range.len_bytes, NULL);
}

int ff_undo_again(struct ff_pager *p)
{
    if (!p->undo || !p->undo->again_ns)
        return -1;
    if (ff_now_ns() < p->undo->again_ns)
        return AGAIN_MS;
    p->undo->again_ns = 0;
    wake_all(p);
    return 0;
}

void ff_undo_fault(struct ff_pager *p, struct ff_pager_region *r, uint64_t page)
{
    struct ff_error why;

    pthread_mutex_lock(&p->keep_lock);
    int rc = copy_kept(p, r, page, &why);
    pthread_mutex_unlock(&p->keep_lock);
    if (!rc)
        rc = let_write(p, r, page, &why);
    if (rc && !p->undo->told)
        ff_log(FF_LOG_ERROR, "destination: %s", why.text);
    p->undo->told = rc;
    if (!rc)
        return;
    if (!atomic_load(&p->guest_runs))
        ff_pager_break(p, &why);
    ff_undo_later(p);
}

/* Who waits for a page of an attempt that was given up gets zeros */
static void give_zeros(struct ff_pager *p, struct ff_pager_region *r, uint64_t page)
{
    struct ff_error why;
    uint64_t len;

    pthread_mutex_lock(&p->keep_lock);
    if (ff_claim_get(&r->claims, page) == FF_CLAIM_HOLE)
        ff_undo_filled(p, r, page);
    int rc = ff_uffd_install(&p->uffd, &r->range, page * r->range.psize, NULL, r->range.psize, true, &len, &why);
    pthread_mutex_unlock(&p->keep_lock);
    if (rc && ff_uffd_may_pass(rc))
        ff_undo_later(p);
    else if (rc)
        ff_pager_wake(p, r, page);
}

void ff_undo_stay(struct ff_pager *p)
{
    uint64_t addr[FF_WANTS_EVENTS];
    eventfd_t ignored;

    if (!p->undo || atomic_load(&p->guest_runs))
        return;
    wake_all(p); /* who waits by now asks again */
    while (!atomic_load(&p->undo->ends)) {
        struct pollfd fds[] = {{.fd = p->uffd.fd, .events = POLLIN}, {.fd = p->wake_fd, .events = POLLIN}};
        poll(fds, FF_ARRAY_LEN(fds), ff_undo_again(p));
        eventfd_read(p->wake_fd, &ignored);
        int n = ff_uffd_read(&p->uffd, addr, FF_WANTS_EVENTS, NULL);
        if (n < 0) /* no event can be read: there is nothing else to do */
            poll(NULL, 0, AGAIN_MS);
        for (int k = 0; k < n; k++) {
            int i = ff_wants_find_region(p, addr[k]);
            if (i < 0)
                continue;
            struct ff_pager_region *r = &p->region[i];
            uint64_t page = (addr[k] - (uintptr_t)r->range.host) / r->range.psize;
            if (addr[k] & FF_UFFD_WRITE)
                ff_undo_fault(p, r, page);
            else
                give_zeros(p, r, page);
        }
    }
}

/* --- GO, or not --- */

static void free_slabs(struct ff_undo_slab *s)
{
    while (s) {
        struct ff_undo_slab *next = s->next;
        munmap(s, slab_bytes());
        s = next;
    }
}

static void *forget_main(void *opaque)
{
    struct ff_pager *p = opaque;
    struct ff_error why;
    int rc = 0;

    ff_thread_later();
    pthread_mutex_lock(&p->keep_lock);
    struct ff_undo_slab *s = p->undo->slab;
    p->undo->slab = NULL;
    pthread_mutex_unlock(&p->keep_lock);
    free_slabs(s);
    for (unsigned i = 0; i < p->n_regions; i++) {
        struct ff_uffd_range *range = &p->region[i].range;
        for (uint64_t at = 0; at < range->len_bytes && !rc && !atomic_load(&p->stop); at += PIECE) {
            ff_failpoint("dest.forget");
            rc = ff_uffd_protect(&p->uffd, range, at, FF_MIN(range->len_bytes - at, PIECE), false, &why);
        }
    }
    if (rc)
        ff_log(FF_LOG_WARN, "destination: %s; the guest waits for a moment where it writes first", why.text);
    return NULL;
}

void ff_undo_forget(struct ff_pager *p)
{
    struct ff_undo *u = p->undo;
    struct ff_error why;

    pthread_mutex_lock(&p->keep_lock);
    atomic_store(&u->over, true);
    pthread_mutex_unlock(&p->keep_lock);
    int rc = ff_thread_start(&u->thread, forget_main, p, "farfork-forget", &why);
    u->thread_up = !rc;
    if (rc) /* it is gone when the pager ends */
        ff_log(FF_LOG_WARN, "destination: %s; the guest waits for a moment where it writes first", why.text);
}

void ff_undo_end(struct ff_pager *p)
{
    if (!p->undo)
        return;
    atomic_store(&p->undo->ends, true);
    if (p->undo->thread_up)
        pthread_join(p->undo->thread, NULL);
    p->undo->thread_up = false;
}

/* Nothing lies in [@page, @page + @n) again; where that cannot be, zeros do */
static void empty_run(const struct ff_pager_region *r, uint64_t page, uint64_t n)
{
    struct iovec part = {.iov_base = r->range.host + page * r->range.psize, .iov_len = n * r->range.psize};
    struct ff_error why;

    if (ff_uffd_discard(&r->range, &part, 1, &why))
        memset(part.iov_base, 0, part.iov_len);
}

static void empty_filled(const struct ff_pager_region *r, uint64_t *zeros)
{
    for (uint64_t i = 0, n; i < r->claims.n_pages; i += n) {
        for (n = 0; i + n < r->claims.n_pages && ff_bitmap_get(zeros, i + n); n++)
            ;
        if (n)
            empty_run(r, i, n);
        else
            n = i % 64 || zeros[i / 64] ? 1 : 64;
    }
    memset(zeros, 0, (r->claims.n_pages + 63) / 64 * sizeof(*zeros));
}

void ff_undo_roll_back(struct ff_pager *p)
{
    struct ff_undo *u = p->undo;

    if (!u || atomic_load(&u->over))
        return;
    for (struct ff_undo_slab *s = u->slab; s; s = s->next)
        for (unsigned k = 0; k < s->n; k++) {
            const struct ff_pager_region *r = &p->region[s->of[k].region];
            if (ff_claim_get(&r->claims, s->of[k].page) == FF_CLAIM_HOLE) /* else the other side has it */
                memcpy(r->range.host + s->of[k].page * r->range.psize, slot_of(s, k), r->range.psize);
        }
    free_slabs(u->slab);
    u->slab = NULL;
    for (unsigned i = 0; i < p->n_regions && u->region[i].zeros; i++)
        empty_filled(&p->region[i], u->region[i].zeros);
}

void ff_undo_free(struct ff_pager *p)
{
    if (!p->undo)
        return;
    free_slabs(p->undo->slab);
    for (unsigned i = 0; i < p->n_regions; i++) {
        free(p->undo->region[i].copied);
        free(p->undo->region[i].zeros);
    }
    free(p->undo);
    p->undo = NULL;
}
