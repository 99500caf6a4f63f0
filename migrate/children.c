/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * children.c - destination: faults of other processes; see children.h
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include "children.h"
#include "cleanup.h"
#include "failpoint.h"
#include "log.h"

#define NOTES 8192u
#define BUCKETS 4096u
#define EVENTS FF_WANTS_EVENTS
#define READY 16

struct ff_pager_child {
    struct ff_uffd uffd;
    int hangup;
    bool dropped;
    struct ff_pager_child *next;
    uint64_t host[]; /* of each of the pager's regions */
};

/* Some thread of @child waits for a page */
struct note {
    struct ff_pager_child *child;
    uint32_t region;
    uint32_t next; /* of its bucket, as there */
    uint64_t page, since_ns;
};

struct ff_children {
    pthread_mutex_t lock;
    int epoll_fd;
    struct ff_pager_child *first;
    _Atomic unsigned n_notes;
    struct note note[NOTES];
    uint32_t bucket[BUCKETS]; /* by page: the number of a note and one; 0: none */
    unsigned seen;            /* of the pager's installs by others, when all were looked at */
    _Atomic uint64_t faults, waited, late;
};

int ff_children_new(struct ff_pager *p, struct ff_error *err)
{
    struct ff_children *c = calloc(1, sizeof(*c));

    if (!c)
        return ff_error_set(err, ENOMEM, "children: out of memory");
    pthread_mutex_init(&c->lock, NULL);
    p->children = c;
    c->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    return c->epoll_fd < 0 ? ff_error_set(err, errno, "children: epoll: %s", strerror(errno)) : 0;
}

void ff_children_free(struct ff_pager *p)
{
    struct ff_children *c = p->children;

    if (!c)
        return;
    while (c->first)
        ff_children_remove(p, c->first);
    ff_close_fd(&c->epoll_fd);
    pthread_mutex_destroy(&c->lock);
    free(c);
    p->children = NULL;
}

int ff_children_add(struct ff_pager *p, int uffd, const uint64_t *host, int hangup,
                    struct ff_pager_child **out, struct ff_error *err)
{
    struct ff_children *c = p->children;
    struct ff_pager_child *k = calloc(1, sizeof(*k) + p->n_regions * sizeof(k->host[0]));
    struct epoll_event ev = {.events = EPOLLIN, .data.ptr = k};

    int rc = k ? ff_uffd_adopt(&k->uffd, uffd, host[0], p->region[0].range.psize, err)
               : ff_error_set(err, ENOMEM, "children: out of memory");
    if (rc) {
        close(uffd);
        free(k);
        return rc;
    }
    k->hangup = hangup;
    memcpy(k->host, host, p->n_regions * sizeof(k->host[0]));
    pthread_mutex_lock(&c->lock);
    if (epoll_ctl(c->epoll_fd, EPOLL_CTL_ADD, uffd, &ev) < 0) {
        rc = ff_error_set(err, errno, "children: watch its userfaultfd: %s", strerror(errno));
    } else {
        k->next = c->first;
        c->first = k;
    }
    pthread_mutex_unlock(&c->lock);
    if (rc) {
        ff_uffd_close(&k->uffd);
        free(k);
        return rc;
    }
    *out = k;
    return 0;
}

static uint32_t *notes_at(struct ff_children *c, uint32_t region, uint64_t page)
{
    return &c->bucket[(page ^ region << 10) % BUCKETS];
}

/* What leads to note @i in its bucket */
static uint32_t *link_to_note(struct ff_children *c, unsigned i)
{
    uint32_t *at = notes_at(c, c->note[i].region, c->note[i].page);

    while (*at != i + 1)
        at = &c->note[*at - 1].next;
    return at;
}

static void add_note(struct ff_pager *p, struct note n)
{
    struct ff_children *c = p->children;
    uint32_t *bucket = notes_at(c, n.region, n.page);

    n.next = *bucket;
    c->note[c->n_notes] = n;
    *bucket = ++c->n_notes;
    atomic_fetch_add(&p->waiting, 1); /* seen by who makes it PRESENT after the next look */
}

static void drop_note(struct ff_pager *p, unsigned i)
{
    struct ff_children *c = p->children;
    unsigned last = c->n_notes - 1;

    *link_to_note(c, i) = c->note[i].next;
    if (i != last) {
        *link_to_note(c, last) = i + 1;
        c->note[i] = c->note[last];
    }
    c->n_notes--;
    atomic_fetch_sub(&p->waiting, 1);
}

void ff_children_remove(struct ff_pager *p, struct ff_pager_child *child)
{
    struct ff_children *c = p->children;
    struct ff_pager_child **at = &c->first;

    pthread_mutex_lock(&c->lock);
    while (*at != child)
        at = &(*at)->next;
    *at = child->next;
    if (!child->dropped)
        epoll_ctl(c->epoll_fd, EPOLL_CTL_DEL, child->uffd.fd, NULL);
    for (unsigned i = 0; i < c->n_notes;)
        if (c->note[i].child == child)
            drop_note(p, i);
        else
            i++;
    pthread_mutex_unlock(&c->lock);
    ff_uffd_close(&child->uffd);
    free(child);
}

/* Of no use any more, but the list's until it is removed */
static void drop_child(struct ff_children *c, struct ff_pager_child *k, const char *why)
{
    ff_log(FF_LOG_WARN, "children: drop one: %s", why);
    epoll_ctl(c->epoll_fd, EPOLL_CTL_DEL, k->uffd.fd, NULL);
    k->dropped = true;
    shutdown(k->hangup, SHUT_RDWR);
}

/* @page is there, or never will be: then the child's mapping is told, since its file is not */
static void wake(struct ff_pager *p, struct ff_pager_child *k, uint32_t region, uint64_t page)
{
    uint32_t psize = p->region[region].range.psize;
    struct ff_uffd_range there = {.host = (uint8_t *)(uintptr_t)k->host[region]};
    struct ff_error why;
    uint64_t done;

    if (ff_claim_get(&p->region[region].claims, page) == FF_CLAIM_POISONED) {
        int rc = ff_uffd_poison(&k->uffd, &there, page * psize, psize, &done, &why);
        if (rc && rc != -EEXIST && !k->dropped)
            drop_child(p->children, k, why.text);
    }
    /* a child that has died has nobody to be woken: its connection says so */
    ff_uffd_wake(&k->uffd, &there, page * psize, psize, NULL);
}

static int find_child_region(const struct ff_pager *p, const struct ff_pager_child *k,
                             uint64_t addr)
{
    for (unsigned i = 0; i < p->n_regions; i++)
        if (addr >= k->host[i] && addr - k->host[i] < p->region[i].range.len_bytes)
            return (int)i;
    return -1;
}

static bool is_settled(const struct ff_pager *p, uint32_t region, uint64_t page)
{
    enum ff_claim now = ff_claim_get(&p->region[region].claims, page);

    return now == FF_CLAIM_PRESENT || now == FF_CLAIM_POISONED;
}

static void serve_event(struct ff_pager *p, struct ff_pager_child *k, uint32_t region,
                        uint64_t page)
{
    struct ff_children *c = p->children;
    uint64_t now = ff_now_ns();

    atomic_fetch_add(&c->faults, 1);
    if (!is_settled(p, region, page)) {
        add_note(p, (struct note){.child = k, .region = region, .page = page, .since_ns = now});
        enum ff_claim was = ff_wants_page(p, region, page, now);
        if (was != FF_CLAIM_PRESENT && was != FF_CLAIM_POISONED) {
            if (was == FF_CLAIM_INFLIGHT)
                atomic_fetch_add(&c->waited, 1);
            if (was == FF_CLAIM_HOLE) /* there was no room: ff_children_check() has to look */
                c->seen = atomic_load(&p->installs) - 1;
            return;
        }
        drop_note(p, c->n_notes - 1);
    }
    atomic_fetch_add(&c->late, 1);
    wake(p, k, region, page);
}

static void serve_child(struct ff_pager *p, struct ff_pager_child *k)
{
    struct ff_children *c = p->children;
    struct ff_error why;
    uint64_t addr[EVENTS];

    if (!ff_wants_room(p) || c->n_notes + EVENTS > NOTES)
        return;
    int n = ff_uffd_read(&k->uffd, addr, EVENTS, &why);
    if (n < 0)
        drop_child(c, k, why.text);
    for (int i = 0; i < n && !k->dropped; i++) {
        ff_failpoint("dest.fault");
        int r = find_child_region(p, k, addr[i]);
        if (r < 0)
            drop_child(c, k, "a fault outside its regions");
        else
            serve_event(p, k, (uint32_t)r, (addr[i] - k->host[r]) / p->region[r].range.psize);
    }
}

int ff_children_fd(const struct ff_pager *p)
{
    const struct ff_children *c = p->children;

    return c && ff_wants_room(p) && c->n_notes + EVENTS <= NOTES ? c->epoll_fd : -1;
}

void ff_children_serve(struct ff_pager *p)
{
    struct ff_children *c = p->children;
    struct epoll_event ready[READY];

    pthread_mutex_lock(&c->lock);
    int n = epoll_wait(c->epoll_fd, ready, READY, 0);
    for (int i = 0; i < n; i++) {
        struct ff_pager_child *k = ready[i].data.ptr;
        if (ready[i].events & EPOLLIN)
            serve_child(p, k);
        else
            drop_child(c, k, "its userfaultfd fails");
    }
    pthread_mutex_unlock(&c->lock);
}

void ff_children_want(struct ff_pager *p)
{
    struct ff_children *c = p->children;

    pthread_mutex_lock(&c->lock);
    for (unsigned i = 0; i < c->n_notes && p->wants->n < FF_WANTS_MAX; i++) {
        const struct note *w = &c->note[i];
        if (ff_claim_get(&p->region[w->region].claims, w->page) == FF_CLAIM_MISSING)
            ff_wants_claim(p, (struct ff_want){
                                  .region = w->region, .page = w->page, .since_ns = w->since_ns});
    }
    pthread_mutex_unlock(&c->lock);
}

void ff_children_check(struct ff_pager *p)
{
    struct ff_children *c = p->children;
    unsigned installs = atomic_load(&p->installs); /* before the first look: who has more then pokes */
    bool again = false;

    if (!c || !c->n_notes || c->seen == installs)
        return;
    pthread_mutex_lock(&c->lock);
    for (unsigned i = 0; i < c->n_notes;) {
        struct note w = c->note[i];
        struct ff_pager_region *r = &p->region[w.region];
        if (!is_settled(p, w.region, w.page) && !ff_wants_fill_hole(p, r, w.page)) {
            again |= ff_claim_get(&r->claims, w.page) == FF_CLAIM_HOLE; /* there was no room */
            i++;
            continue;
        }
        drop_note(p, i);
        wake(p, w.child, w.region, w.page);
    }
    c->seen = again ? installs - 1 : installs;
    pthread_mutex_unlock(&c->lock);
}

void ff_children_arrived(struct ff_pager *p, uint32_t region, uint64_t page)
{
    struct ff_children *c = p->children;
    unsigned next = 0;

    if (!c || !c->n_notes)
        return;
    pthread_mutex_lock(&c->lock);
    for (uint32_t i = *notes_at(c, region, page); i; i = next) {
        struct note w = c->note[i - 1];
        next = w.next;
        if (w.region != region || w.page != page)
            continue;
        drop_note(p, i - 1);
        wake(p, w.child, region, page);
        next = *notes_at(c, region, page); /* another note may have its number by now */
    }
    pthread_mutex_unlock(&c->lock);
}

void ff_children_poison(struct ff_pager *p, struct ff_pager_child *k)
{
    if (!ff_pager_poisoned(p))
        return;
    pthread_mutex_lock(&p->children->lock);
    for (uint32_t i = 0; i < p->n_regions; i++)
        for (uint64_t page = 0; page < p->region[i].claims.n_pages; page++)
            if (ff_claim_get(&p->region[i].claims, page) == FF_CLAIM_POISONED)
                wake(p, k, i, page);
    pthread_mutex_unlock(&p->children->lock);
}

void ff_children_stats(const struct ff_pager *p, struct ff_children_stats *out)
{
    const struct ff_children *c = p->children;

    *out = (struct ff_children_stats){.faults = 0};
    if (!c)
        return;
    out->faults = atomic_load(&c->faults);
    out->waited = atomic_load(&c->waited);
    out->late = atomic_load(&c->late);
}
