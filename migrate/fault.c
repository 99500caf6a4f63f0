/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * fault.c - the fault thread: page fault -> one-sided read -> install; see pager.h
 */
/**
 * DOC: Theory of Operation
 *
 * Picture      event -> claim -> free slot? -> post READ -> completion -> install -> slot free
 *                                   no: pending (FIFO) until one is
 *              no memory to install it: the slot keeps the page, and is tried again every
 *              RETRY_MS, also when the link is broken by then; so are holes that are pending
 *              First-touch pages come in by the same way: the source names them and sends no
 *              bytes. So one path installs pages, of any size, and claims and statistics hold
 *              for these too. It costs a round trip while the device state is on its way.
 * Limits       FF_WANTS_MAX: threads that can wait at once, and the first-touch pages; when it
 *              is full no more events are read: they stay in the kernel's queue.
 */
#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>

#include "children.h"
#include "cleanup.h"
#include "failpoint.h"
#include "fault_around.h"
#include "fault_private.h"
#include "log.h"
#include "pager_elsewhere.h"
#include "thread.h"
#include "undo.h"
#include "verify.h"
#include "wants.h"

#define WAKE_APART 16u /* of so many faults one is woken apart from its install, to time both */
#define AT_ONCE 16u /* so many turns without poll(), while there are faults */
#define RETRY_MS 20
#define CPU_TURNS 32u /* asking for the CPU time is a system call */

static void broke(struct ff_pager *p, const struct ff_error *why)
{
    p->fault->broken = true;
    ff_pager_break(p, why);
}

static struct slot *free_slot(struct ff_fault_engine *f)
{
    for (unsigned i = 0; i < f->n_slots; i++)
        if (!f->slot[i].busy)
            return &f->slot[i];
    return NULL;
}

static void count_served(struct ff_pager *p, const struct ff_want *w)
{
    if (w->first_touch)
        atomic_fetch_add(&p->count.first_touch, 1);
    else if (!w->hole && !w->around)
        ff_hist_add(&p->fault_ns, ff_now_ns() - w->since_ns);
}

/* @came: the bytes of @s; they are installed by now, and @apart: nobody is awake yet */
static void count_stages(struct ff_pager *p, const struct slot *s, uint64_t came, bool apart)
{
    const struct ff_want *w = &s->want;
    uint64_t installed = ff_now_ns();

    if (apart)
        ff_pager_wake(p, &p->region[w->region], w->page);
    if (w->first_touch || w->around)
        return;
    ff_around_measure(p, came - s->posted_ns, s->beside);
    ff_hist_add(&p->stage_ns[FF_STAGE_CLAIM], w->queued_ns - w->since_ns);
    ff_hist_add(&p->stage_ns[FF_STAGE_POST], s->posted_ns - w->queued_ns);
    ff_hist_add(&p->stage_ns[FF_STAGE_WIRE], came - s->posted_ns);
    if (apart) {
        ff_hist_add(&p->stage_ns[FF_STAGE_INSTALL], installed - came);
        ff_hist_add(&p->stage_ns[FF_STAGE_WAKE], ff_now_ns() - installed);
    }
}

/* Read the page of @s: 0, -EAGAIN: a completion makes room, or the link is broken */
static int post_slot(struct ff_pager *p, struct slot *s, struct ff_error *why)
{
    struct ff_fault_engine *f = p->fault;
    struct ff_pager_region *r = &p->region[s->want.region];
    size_t i = (size_t)(s - f->slot);
    uint32_t lkey;

    s->zero = s->poison = 0;
    s->local = ff_pager_in_place(r, s->want.page, &lkey);
    bool in_file = s->local && !ff_pager_is_ready(r, s->want.page, 1);
    if (!s->local) {
        s->local = f->memory + i * f->slot_bytes;
        lkey = f->mr.lkey;
    }
    struct ff_wr wr = {.id = i, .op = FF_OP_READ,
                       .local = s->local,
                       .in_file = in_file,
                       .lkey = lkey,
                       .remote = r->remote + s->want.page * r->range.psize,
                       .rkey = ff_pager_rkey(r, s->want.page),
                       .len_bytes = r->range.psize,
                       .granule_bytes = r->range.psize,
                       .zero = &s->zero, .poison = &s->poison};
    return ff_pager_post(p, FF_QUEUE_FAULT, r, &wr, why);
}

static bool must_retry(const struct ff_pager *p)
{
    const struct ff_fault_engine *f = p->fault;

    return f->n_kept || (f->broken && p->wants->n_holes);
}

/* The page of @s has been read, or is zeros: install it. False: the slot keeps it until there is
 * memory, or the image is of no use */
static bool install_slot(struct ff_pager *p, struct slot *s, bool wake)
{
    struct ff_fault_engine *f = p->fault;
    struct ff_pager_region *r = &p->region[s->want.region];
    const uint8_t *src = s->zero & 1 ? NULL : s->local;
    uint64_t done;

    int rc = s->want.hole    ? ff_pager_install_hole(p, r, s->want.page)
             : s->poison & 1 ? ff_pager_poison(p, r, s->want.page, 1, &done)
                             : ff_pager_install(p, r, s->want.page, 1, src, wake, &done);
    f->n_kept -= s->kept;
    s->busy = s->kept = rc == -EAGAIN;
    f->n_kept += s->kept;
    if (rc == -EAGAIN)
        rc = ff_pager_short(p, FF_BY_FAULT);
    f->broken |= rc != 0;
    if (rc || s->kept)
        return false;
    ff_children_arrived(p, s->want.region, s->want.page);
    if (!must_retry(p))
        ff_pager_enough(p, FF_BY_FAULT); /* what was short over the last link is here by this one */
    return true;
}

/* The bytes of @s came over the link, and are installed */
static void fault_arrived(struct ff_pager *p, const struct slot *s)
{
    if (!(s->zero & 1))
        atomic_fetch_add(&p->count.bytes_fault, p->region[s->want.region].range.psize);
    count_served(p, &s->want);
}

static int post_claimed(struct ff_pager *p, struct slot *s)
{
    struct ff_fault_engine *f = p->fault;
    struct ff_error why;

    int rc = post_slot(p, s, &why);
    if (rc && rc != -EAGAIN)
        broke(p, &why);
    if (rc)
        return rc;
    s->posted_ns = ff_now_ns();
    if (!f->n_busy++)
        f->last_progress_ns = s->posted_ns;
    s->busy = true;
    s->beside = f->n_around;
    return 0;
}

/* There is nothing to read for @s: it holds zeros, or the source cannot read it */
static bool needs_no_read(const struct ff_pager *p, struct slot *s)
{
    const struct ff_pager_region *r = &p->region[s->want.region];
    s->zero = 1;
    s->poison = !s->want.hole && ff_pager_is_unreadable(r, s->want.page);
    return s->want.hole || s->poison || !ff_pager_rkey(r, s->want.page);
}

/* What the last link did not bring comes first: others may wait for it, and its claims are ours */
static void post_due(struct ff_pager *p)
{
    struct ff_fault_engine *f = p->fault;

    for (struct slot *s = f->slot; f->n_due && !f->broken; s++) {
        if (!s->due)
            continue;
        if (!needs_no_read(p, s)) {
            if (post_claimed(p, s))
                return;
            atomic_fetch_add(&p->count.bytes_again, p->region[s->want.region].range.psize);
        } else if (install_slot(p, s, true)) { /* it was not known to the last link */
            fault_arrived(p, s);
        }
        s->due = false;
        f->n_due--;
    }
}

/* Fetch what is pending, oldest first: into free slots, or at once where nothing was ever
 * written at the source */
static void post_pending(struct ff_pager *p)
{
    struct ff_fault_engine *f = p->fault;
    struct slot *s;

    if (!atomic_load(&p->image_frozen))
        return; /* the bytes may still change at the source */
    post_due(p);
    if (f->n_due)
        return;
    while (p->wants->n && !f->broken && (s = free_slot(f))) {
        struct ff_want *w = &p->wants->want[p->wants->first];

        s->want = *w;
        if (needs_no_read(p, s)) {
            if (install_slot(p, s, true))
                count_served(p, w);
        } else if (post_claimed(p, s)) {
            return;
        }
        ff_wants_take(p->wants);
    }
}

static void completed(struct ff_pager *p, struct slot *s)
{
    struct ff_fault_engine *f = p->fault;
    bool apart = !(f->n_served++ % WAKE_APART);
    uint64_t came = ff_now_ns();

    f->n_busy--;
    if (!install_slot(p, s, !apart))
        return;
    count_stages(p, s, came, apart);
    fault_arrived(p, s);
}

/* The link is broken: holes need neither it nor a slot, and no slot may be free again */
static void fill_pending_holes(struct ff_pager *p)
{
    for (unsigned n = p->wants->n; n && p->wants->n_holes; n--) {
        struct ff_want w = ff_wants_take(p->wants);
        int rc = w.hole ? ff_pager_install_hole(p, &p->region[w.region], w.page) : -EAGAIN;
        if (rc == -EAGAIN)
            ff_wants_add(p->wants, w);
        if (rc == -EAGAIN && w.hole)
            ff_pager_short(p, FF_BY_FAULT);
        if (!rc)
            ff_children_arrived(p, w.region, w.page);
    }
}

/* Perhaps there is memory by now */
static void retry_kept(struct ff_pager *p)
{
    struct ff_fault_engine *f = p->fault;

    if (!must_retry(p) || ff_now_ns() < f->retry_ns)
        return;
    for (unsigned i = 0; i < f->n_slots; i++)
        if (f->slot[i].kept && install_slot(p, &f->slot[i], true))
            fault_arrived(p, &f->slot[i]);
    ff_around_retry(p);
    if (f->broken)
        fill_pending_holes(p);
    if (!must_retry(p))
        ff_pager_enough(p, FF_BY_FAULT);
    f->retry_ns = ff_now_ns() + RETRY_MS * 1000000ull;
}

/* True: there is nothing more, and the link's descriptor tells what comes. To say so costs system
 * calls, and who got the last page may want the next one already: unless @all, not asked once
 * nothing is in flight. */
static bool drain_link(struct ff_pager *p, bool all)
{
    struct ff_fault_engine *f = p->fault;
    struct ff_wc wc[16];
    struct ff_error why;

    while (!f->broken && (all || f->n_busy)) {
        int n = ff_pager_poll(p, FF_QUEUE_FAULT, wc, FF_ARRAY_LEN(wc), 0, &why);
        if (n < 0)
            broke(p, &why);
        if (n <= 0)
            return true;
        f->last_progress_ns = ff_now_ns();
        for (int i = 0; i < n && !f->broken; i++) {
            struct slot *s = wc[i].id < f->n_slots ? &f->slot[wc[i].id] : NULL;
            if (wc[i].op == FF_WC_READ && s && s->busy && !s->kept) {
                completed(p, s);
                continue;
            }
            if (wc[i].op == FF_WC_READ && ff_around_is(p, wc[i].id)) {
                ff_around_arrived(p, wc[i].id);
                continue;
            }
            /* a WRITE of the peer: that it names slot 0 means nothing */
            ff_error_set(&why, EPROTO, "pager: faults: 0x%x arrived unasked", wc[i].imm);
            broke(p, &why);
        }
    }
    return f->broken;
}

/* Keep the time of those whose page is there by now */
static void check_waiters(struct ff_pager *p)
{
    struct ff_fault_engine *f = p->fault;

    for (unsigned i = 0; i < f->n_waiters;) {
        struct ff_want *w = &f->waiter[i];
        if (ff_claim_get(&p->region[w->region].claims, w->page) == FF_CLAIM_INFLIGHT) {
            i++;
            continue;
        }
        ff_hist_add(&p->fault_ns, ff_now_ns() - w->since_ns);
        *w = f->waiter[--f->n_waiters];
        atomic_fetch_sub(&p->waiting, 1);
    }
}

static void add_waiter(struct ff_pager *p, struct ff_want w)
{
    struct ff_fault_engine *f = p->fault;

    if (f->n_waiters == WAITERS)
        return;
    f->waiter[f->n_waiters++] = w;
    atomic_fetch_add(&p->waiting, 1);
    check_waiters(p); /* it may have come just now, when nobody was known to wait */
}

/* Somebody waits for the page of @w */
static void serve_fault(struct ff_pager *p, struct ff_want w)
{
    struct ff_pager_region *r = &p->region[w.region];
    uint64_t offset = w.page * r->range.psize;

    switch (ff_wants_claim(p, w)) {
    case FF_CLAIM_MISSING:
        ff_wants_touched(p->wants, w.region, w.page);
        atomic_fetch_add(&p->count.faults, 1);
        atomic_store(&p->hint, r->first_chunk + offset / r->chunk_bytes + 1);
        break;
    case FF_CLAIM_INFLIGHT:
        /* Its owner installs after this event was queued, and an install wakes */
        atomic_fetch_add(&p->count.faults_waited, 1);
        add_waiter(p, w);
        break;
    case FF_CLAIM_PRESENT:
    case FF_CLAIM_POISONED:
        atomic_fetch_add(&p->count.faults_late, 1);
        ff_pager_wake_late(p, r, w.page);
        break;
    case FF_CLAIM_HOLE:
        atomic_fetch_add(&p->count.faults_late, 1);
        if (!ff_wants_fill_hole(p, r, w.page)) /* discarded just now, perhaps: it asks again */
            ff_pager_wake(p, r, w.page);
        break;
    }
}

/* The image does not change any more: whoever has waited for that is served */
static void serve_early(struct ff_pager *p)
{
    struct ff_fault_engine *f = p->fault;

    if (!f->n_early || !atomic_load(&p->image_frozen) || FF_WANTS_MAX - p->wants->n <= EARLY)
        return;
    for (unsigned i = 0; i < f->n_early; i++)
        serve_fault(p, f->early[i]);
    f->n_early = 0;
}

static void handle_event(struct ff_pager *p, uint64_t addr)
{
    struct ff_fault_engine *f = p->fault;
    int i = ff_wants_find_region(p, addr);
    struct ff_error why;
    if (i < 0) {
        ff_error_set(&why, EFAULT, "pager: fault at 0x%llx outside every region",
                     (unsigned long long)(addr & ~(uint64_t)FF_UFFD_WRITE));
        broke(p, &why);
        return;
    }
    struct ff_pager_region *r = &p->region[i];
    uint64_t offset = addr - (uintptr_t)r->range.host;
    struct ff_want w = {
        .region = (uint32_t)i, .page = offset / r->range.psize, .since_ns = ff_now_ns()};

    if (r->kept && addr & FF_UFFD_WRITE) {
        ff_undo_fault(p, r, w.page);
        return;
    }
    bool early = !atomic_load(&p->image_frozen);
    if (early && r->kept && ff_pager_fill_kept(p, r, w.page))
        return;
    if (early && f->n_early < EARLY) {
        /* not claimed: a pass may bring the page, soon, and its install wakes who waits */
        f->early[f->n_early++] = w;
        atomic_store(&p->hint, r->first_chunk + offset / r->chunk_bytes + 1);
        return;
    }
    ff_hist_add(&p->stage_ns[FF_STAGE_READ], w.since_ns - f->awake_ns);
    serve_fault(p, w);
}

/* Whether there was one */
static bool drain_events(struct ff_pager *p)
{
    uint64_t addr[FF_WANTS_EVENTS];
    struct ff_error why;
    bool any = false;

    while (ff_pager_events_fd(p) >= 0 && ff_wants_room(p)) { /* -1: all memory was lent */
        int n = ff_uffd_read(&p->uffd, addr, FF_WANTS_EVENTS, &why);
        any |= n > 0;
        if (n < 0)
            broke(p, &why);
        for (int i = 0; i < n; i++) {
            ff_failpoint("dest.fault");
            handle_event(p, addr[i]);
        }
        if (n < (int)FF_WANTS_EVENTS)
            break;
    }
    return any;
}

/* See drain_link() */
static bool fetch(struct ff_pager *p, bool all)
{
    post_pending(p);
    bool drained = drain_link(p, all);
    post_pending(p);
    ff_around_post(p);
    check_waiters(p);
    ff_children_check(p);
    return drained;
}

static void take_asked(struct ff_pager *p)
{
    struct ff_fault_engine *f = p->fault;
    eventfd_t ignored;

    eventfd_read(p->wake_fd, &ignored);
    pthread_mutex_lock(&f->lock);
    for (unsigned i = 0; i < f->n_asked && ff_wants_room(p); i++) {
        uint64_t page = f->asked[i].offset / p->region[f->asked[i].region].range.psize;
        ff_wants_claim(p, (struct ff_want){
                         .region = f->asked[i].region, .page = page, .first_touch = true});
    }
    f->n_asked = 0; /* what did not fit is fetched when it is touched */
    pthread_mutex_unlock(&f->lock);
}

static void check_silence(struct ff_pager *p)
{
    struct ff_fault_engine *f = p->fault;
    struct ff_error why;

    if (f->broken || !f->n_busy ||
        ff_now_ns() - f->last_progress_ns < (uint64_t)p->silence_ms * 1000000u)
        return;
    ff_error_set(&why, ETIMEDOUT, "pager: %u reads for faults unanswered for %d s%s", f->n_busy,
                 p->silence_ms / 1000, ff_verify_lacks(p, FF_QUEUE_FAULT));
    broke(p, &why);
}

void *ff_fault_main(void *opaque)
{
    struct ff_pager *p = opaque;
    struct ff_fault_engine *f = p->fault;
    unsigned turns = 0;

    ff_thread_soon();
    while (!atomic_load(&p->stop)) {
        bool at_once = ff_fault_follow_link(p);
        short events = 0;
        int fd = f->broken ? -1 : p->link->ops->fd(p->link, FF_QUEUE_FAULT, &events);
        struct pollfd fds[4] = {
            {.fd = ff_wants_room(p) ? ff_pager_events_fd(p) : -1, .events = POLLIN},
            {.fd = p->wake_fd, .events = POLLIN},
            {.fd = fd, .events = events},
            {.fd = ff_children_fd(p), .events = POLLIN},
        };
        int again_ms = ff_undo_again(p);
        int wait_ms = at_once ? 0 : must_retry(p) ? RETRY_MS : f->n_busy ? 500 : 5000;
        wait_ms = again_ms < 0 ? wait_ms : FF_MIN(wait_ms, again_ms);
        int n = poll(fds, FF_ARRAY_LEN(fds), wait_ms);
        f->awake_ns = ff_now_ns();
        if (n < 0 && errno != EINTR)
            ff_log(FF_LOG_ERROR, "pager: poll: %s", strerror(errno));
        if (fds[0].revents)
            drain_events(p);
        if (fds[1].revents)
            take_asked(p);
        if (fds[3].revents)
            ff_children_serve(p);
        serve_early(p);
        retry_kept(p);
        for (unsigned i = 0; !fetch(p, i == AT_ONCE);) {
            f->awake_ns = ff_now_ns();
            i = drain_events(p) ? i + 1 : AT_ONCE;
        }
        check_silence(p);
        if (!(++turns % CPU_TURNS))
            atomic_store(&p->count.fault_cpu_ns, ff_thread_cpu_ns());
    }
    check_waiters(p);
    ff_children_check(p); /* what came last: from here on there are no notes */
    ff_fault_leave_holes(p);
    ff_undo_stay(p);
    atomic_store(&p->count.fault_cpu_ns, ff_thread_cpu_ns());
    return NULL;
}
