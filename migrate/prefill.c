/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * prefill.c - the prefill thread: fetch in chunks what nobody has touched; see pager.h
 */
/**
 * DOC: Theory of Operation
 *
 * Picture      chunks, counted over all regions:
 *                |--asked--|--asked--|     |     |--asked--|     |     |
 *                                    ^ cursor          ^ last fault: the cursor jumps there
 *              The next chunk is the first one from the cursor on, around the end, that
 *              nobody asked for yet. Before all chunks come the spans of the working set, if it is
 *              known (working_set.h): several share a buffer. Either is cut into transfers:
 *
 *              chunk    zeros      no key at the source: installed at once
 *                       unreadable the source has said so before: POISONED at once. What lies
 *                                  before and behind has keys of its own, and is read apart
 *                       buffer     one a chunk. Each stretch of it that is missing, with what
 *                                  lies between two that are close,
 *                                  pull: is one READ into its place in the buffer
 *                                  push: a grant of that place to the source, which WRITEs it
 *                                        there and notifies; only granted memory is
 *                                        remote-write, and no guest ever sees it. What the
 *                                        source cannot read it tells, and it is pulled
 *                                  when the bytes are here: claim a run, install, next run
 *                       in place   pull: claim a run of at most SEGMENT bytes, READ it into
 *                                        the alias, then map it
 *
 *              A visit's budget: once so many bytes were asked for, nothing is cut any more, and what is
 *              under way is the last. What comes as zeros is given back to it. Another link has what is
 *              left of it.
 *
 * Limits       window chunks in buffers, PLACES segments in place: a fault on a page in place
 *              waits for what is ahead of it, at most PLACES * SEGMENT bytes, 2 MiB (or
 *              huge pages). BATCH pages of a buffer are claimed and installed at a time: a
 *              fault on one of them waits for that ioctl, about 60 us, not for the chunk.
 * Failure      no memory for a page: it is tried again every RETRY_MS, nothing else is installed or
 *              asked for, and what is under way is taken in: unread bytes would break the link.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "cleanup.h"
#include "failpoint.h"
#include "feed.h"
#include "group.h"
#include "mr.h"
#include "prefill_private.h"
#include "thread.h"
#include "verify.h"

#define SEGMENT (256u << 10)
#define ZERO_RUN 16384u /* pages of zeros between two looks at the link */
#define CPU_TURNS 8u
#define HEAD_START_NS 5000000u
#define PART (16u << 10) /* of a chunk that an earlier image has otherwise, but for huge pages */

/* --- starting transfers --- */

static struct transfer *free_transfer(struct ff_prefill_engine *e, bool in_place)
{
    unsigned from = in_place ? BUFFERS_MAX : 0, to = in_place ? BUFFERS_MAX + PLACES : BUFFERS_MAX;

    for (unsigned i = from; i < to; i++)
        if (!e->transfer[i].busy)
            return &e->transfer[i];
    return NULL;
}

static int free_buffer(const struct ff_prefill_engine *e)
{
    for (unsigned i = 0; i < e->window; i++)
        if (!e->users[i])
            return (int)i;
    return -1;
}

/* Nothing of the cut is left */
static void end_cut(struct ff_prefill_engine *e)
{
    if (!e->cut_is_first)
        ff_prefill_leave_buffer(e);
    e->cut = NULL;
}

static void under_way(struct ff_prefill_engine *e, struct transfer *t)
{
    if (!e->n_busy++)
        e->last_progress_ns = ff_now_ns();
    t->busy = true;
}

static bool is_spent(const struct ff_pager *p)
{
    return p->opts->budget_bytes && p->prefill->asked_bytes >= p->opts->budget_bytes;
}

/* That cost the link nothing */
static void give_back_zeros(struct ff_prefill_engine *e, const struct transfer *t)
{
    for (uint64_t i = 0; i < t->n; i++)
        if (t->zero[i / 8] & 1u << i % 8)
            e->asked_bytes -= t->r->range.psize;
}

/* Read @t: 1, 0 when the queue is full (it is posted later), or the link is broken */
static int post_read(struct ff_pager *p, struct transfer *t, struct ff_error *err)
{
    struct ff_prefill_engine *e = p->prefill;
    bool fed = e->feed && !t->unfed;
    uint64_t base = fed ? ff_feed_of(p, t->r)->addr : t->r->remote;
    uint32_t psize = t->r->range.psize;
    struct ff_wr wr = {.id = (uint64_t)(t - e->transfer),
                       .op = FF_OP_READ,
                       .local = t->local,
                       .in_file = t->in_place && !ff_pager_is_ready(t->r, t->first, t->n),
                       .lkey = t->unfed ? e->mr.lkey : t->lkey,
                       .remote = base + t->first * psize,
                       .rkey = fed ? ff_feed_of(p, t->r)->rkey : ff_pager_rkey(t->r, t->first),
                       .len_bytes = (uint32_t)(t->n * psize),
                       .granule_bytes = psize,
                       .zero = t->zero,
                       .poison = t->poison};
    int rc = ff_prefill_post(p, t->r, fed, &wr, err);
    e->n_due -= t->due;
    t->due = rc; /* also when the link is broken: the next one has it first */
    e->n_due += t->due;
    t->busy = t->pulled = true;
    if (rc)
        return rc == -EAGAIN ? 0 : rc;
    under_way(e, t);
    return 1;
}

/* The cut holds zeros up to page @end: 1, or -errno as reported by ff_pager_install() */
static int install_zeros(struct ff_pager *p, uint64_t end)
{
    struct ff_prefill_engine *e = p->prefill;
    struct transfer t = {.r = e->cut, .first = e->cut_first, .n = end - e->cut_first};
    /* a file takes memory for its zeros, one page after the other, unless they are left out */
    uint64_t max = t.r->range.memory == FF_UFFD_ANON || t.r->holes ? t.n : BATCH;

    for (uint64_t i = 0; i < t.n;) {
        uint64_t run = ff_prefill_claim_run(&t, i, max);
        int rc = run ? ff_prefill_put_zeros(p, t.r, t.first + i, run) : 0;
        if (rc)
            return rc;
        ff_pager_installed(p);
        i += run ? run : 1;
    }
    e->cut_first = end;
    if (end == e->cut_end)
        end_cut(e);
    return 1;
}

/* The source cannot read the cut up to page @end: 1, or -errno as reported by ff_pager_poison() */
static int poison_part(struct ff_pager *p, uint64_t end)
{
    struct ff_prefill_engine *e = p->prefill;
    struct transfer t = {.r = e->cut, .first = e->cut_first, .n = end - e->cut_first};
    uint64_t run = ff_prefill_claim_run(&t, 0, t.n);
    int rc = run ? ff_prefill_install(p, t.r, t.first, run, NULL, POISON) : 0;

    ff_pager_installed(p);
    e->cut_first += run ? run : 1;
    if (e->cut_first == e->cut_end)
        end_cut(e);
    return rc ? rc : 1;
}

/* The next stretch of the cut, before page @end, goes through a buffer: 1, 0 when there is none
 * now, -errno */
static int start_buffer(struct ff_pager *p, struct transfer *t, uint64_t end, struct ff_error *err)
{
    struct ff_prefill_engine *e = p->prefill;
    unsigned i = (unsigned)(t - e->transfer);
    uint64_t n = ff_prefill_stretch(e->cut, &e->cut_first, end);

    if (!n) {
        if (end == e->cut_end)
            end_cut(e);
        return 1;
    }
    if (e->cut_buffer < 0) {
        e->cut_buffer = free_buffer(e);
        if (e->cut_buffer < 0)
            return 0;
        e->users[e->cut_buffer]++;
    }
    *t = (struct transfer){.r = e->cut,
                           .first = e->cut_first,
                           .n = n,
                           .local = e->memory + (size_t)e->cut_buffer * e->buffer_bytes +
                                    (e->cut_first - e->cut_from) * e->cut->range.psize,
                           .lkey = e->feed ? e->feed->buffers.lkey : e->mr.lkey,
                           .buffer = (unsigned)e->cut_buffer};
    if (p->mode == FF_PREFILL_PULL && ff_pager_in_pool(t->r, t->first, n)) {
        t->pool = true;
        t->local = t->r->pool + t->first * t->r->range.psize;
    }
    e->users[t->buffer]++;
    e->asked_bytes += n * t->r->range.psize;
    e->cut_first += n;
    e->used_bytes = (uint32_t)((e->cut_first - e->cut_from) * e->cut->range.psize);
    if (e->cut_first == e->cut_end)
        end_cut(e);
    if (p->mode == FF_PREFILL_PUSH && !e->feed) {
        uint32_t psize = t->r->range.psize;
        e->grant[e->n_grants++] = (struct ff_grant){.region = t->r->peer_number,
                                                    .id = i,
                                                    .offset = t->first * psize,
                                                    .len_bytes = (uint32_t)(t->n * psize),
                                                    .addr = (uintptr_t)t->local,
                                                    .rkey = e->mr.rkey};
        under_way(e, t);
        return 1;
    }
    return post_read(p, t, err);
}

/* The next run of the cut, before page @end, is read in place */
static int start_in_place(struct ff_pager *p, struct transfer *t, uint64_t end,
                          struct ff_error *err)
{
    struct ff_prefill_engine *e = p->prefill;
    uint64_t max = FF_MAX(SEGMENT / e->cut->range.psize, 1u);
    uint64_t ready = e->cut->range.ready_bytes / e->cut->range.psize;

    end = ready ? FF_MIN(end, ready) : end; /* what is not ready goes through a buffer */

    *t = (struct transfer){.r = e->cut, .first = e->cut_first, .n = end - e->cut_first};
    uint64_t run = ff_prefill_claim_run(t, 0, max);
    e->cut_first += run ? run : 1;
    if (e->cut_first == e->cut_end)
        end_cut(e);
    if (!run)
        return 1; /* a fault has it */
    t->n = run;
    e->asked_bytes += run * t->r->range.psize;
    t->in_place = true;
    t->local = ff_pager_in_place(t->r, t->first, &t->lkey);
    /* a failure leaves the claims taken: the link is broken, and the next one fetches them */
    return post_read(p, t, err);
}

/* @t is due. What it has claimed in place may lie in several parts of this link, which it did not
 * over the last one; a buffer's is of this link, and claimed by nobody: 1, 0 when the queue is full,
 * -errno */
static int start_due(struct ff_pager *p, struct transfer *t, struct ff_error *err)
{
    struct ff_prefill_engine *e = p->prefill;

    if (!t->in_place)
        return post_read(p, t, err);
    uint64_t n = ff_pager_part_end(t->r, t->first, t->first + t->n) - t->first;

    if (!ff_pager_is_unreadable(t->r, t->first)) {
        t->rest += t->n - n;
        t->n = n;
        return post_read(p, t, err);
    }
    int rc = ff_prefill_install(p, t->r, t->first, n, NULL, POISON);
    ff_pager_installed(p);
    t->local += n * t->r->range.psize;
    t->first += n, t->n -= n;
    if (!t->n) {
        t->busy = t->due = false;
        e->n_due--;
    }
    return rc ? rc : 1;
}

/* Likewise; the relay has all of the cut */
static int start_fed(struct ff_pager *p, struct ff_error *err)
{
    struct transfer *t = free_transfer(p->prefill, false);

    return t ? start_buffer(p, t, p->prefill->cut_end, err) : 0;
}

/* --- parts of a chunk that an earlier image has otherwise --- */

/* Of what is left of @t one part comes first */
static void cut_part(struct transfer *t)
{
    uint64_t part = FF_MAX(PART / t->r->range.psize, 1u), all = t->n + t->rest;

    t->n = FF_MIN(part, all);
    t->rest = all - t->n;
    t->unfed = false;
}

/* One with parts that nobody has asked for; NULL: there is none, or no room for another transfer */
static struct transfer *in_parts(struct ff_prefill_engine *e)
{
    if (!e->feed || !e->feed->older || !free_transfer(e, false))
        return NULL;
    for (struct transfer *t = e->transfer; t < e->transfer + BUFFERS_MAX; t++)
        if (t->busy && t->rest)
            return t;
    return NULL;
}

/* The last part of @t, beside it: as post_read() */
static int start_part(struct ff_pager *p, struct transfer *t, struct ff_error *err)
{
    struct ff_prefill_engine *e = p->prefill;
    struct transfer *u = free_transfer(e, false);
    uint64_t n = FF_MIN(FF_MAX(PART / t->r->range.psize, 1u), t->rest), at = t->n + t->rest - n;

    *u = (struct transfer){.r = t->r,
                           .first = t->first + at,
                           .n = n,
                           .local = t->local + at * t->r->range.psize,
                           .lkey = t->lkey,
                           .pool = t->pool,
                           .buffer = t->buffer};
    t->rest -= n;
    e->users[u->buffer]++;
    return post_read(p, u, err);
}

/* Something to fetch next: 1, also to be asked again; 0 when there is nothing now, -errno */
static int next_cut(struct ff_pager *p, struct ff_error *err)
{
    struct ff_prefill_engine *e = p->prefill;
    uint64_t chunk, n;

    if ((e->cut_buffer < 0 && free_buffer(e) < 0) || atomic_load(&p->next_feed) || is_spent(p))
        return 0;
    e->cut_is_first = ff_prefill_first(p);
    if (e->cut_is_first)
        return 1;
    ff_prefill_leave_buffer(e);
    if (free_buffer(e) < 0)
        return 0;
    ff_prefill_first_chunk(p);
    if (!ff_chunks_next(&e->chunks, p, e->feed ? e->feed->has : NULL, &chunk))
        return e->feed && ff_chunks_left(&e->chunks) ? ff_feed_next(p, err) : 0;
    if (e->feed)
        e->feed->news_ns = ff_now_ns();
    e->cut = ff_chunk_pages(p, chunk, &e->cut_from, &n);
    e->cut_first = e->cut_from;
    e->cut_end = e->cut_from + n;
    return 1;
}

/* 1: go on, 0: nothing more to start now, -errno */
static int start_next(struct ff_pager *p, struct ff_error *err)
{
    struct ff_prefill_engine *e = p->prefill;
    uint32_t lkey;

    for (struct transfer *t = e->transfer; e->n_due; t++)
        if (t->due)
            return start_due(p, t, err);
    struct transfer *parted = in_parts(e);
    if (parted)
        return start_part(p, parted, err);
    if (!e->cut) {
        int rc = next_cut(p, err);
        if (rc <= 0 || !e->cut)
            return rc;
    }
    if (e->feed && !p->verify) /* the source's keys are not its relay's, and may change meanwhile */
        return start_fed(p, err);
    bool bad = ff_pager_is_unreadable(e->cut, e->cut_first);
    uint64_t end = ff_pager_part_end(e->cut, e->cut_first, e->cut_end);
    if (bad || !ff_pager_rkey(e->cut, e->cut_first)) {
        if (!p->in_precopy)
            return bad ? poison_part(p, end) : install_zeros(p, end);
        end_cut(e); /* it may get a key yet, and nothing is POISONED before the image is frozen */
        return 1;
    }
    bool in_place = p->mode == FF_PREFILL_PULL && ff_pager_in_place(e->cut, e->cut_first, &lkey);
    struct transfer *t = free_transfer(e, in_place);
    if (!t)
        return 0;
    return in_place ? start_in_place(p, t, end, err) : start_buffer(p, t, end, err);
}

static int fill_window(struct ff_pager *p, struct ff_error *err)
{
    struct ff_prefill_engine *e = p->prefill;
    uint64_t zeros = p->count.bytes_zero;
    int rc = 1;

    while (rc > 0 && p->count.bytes_zero - zeros < ZERO_RUN * 4096ull && !p->stop)
        rc = start_next(p, err);
    if (rc >= 0 && e->n_grants) {
        int len = ff_wire_put_grants(e->msg, e->grant, e->n_grants);
        e->n_grants = 0;
        rc = p->link->ops->send(p->link, e->msg, (uint32_t)len, err);
    }
    return rc < 0 ? rc : 0;
}

/* --- what has come --- */

/* What @t brought of an earlier image is not the image's: in parts, or from the source */
static int read_changed(struct ff_pager *p, struct transfer *t, struct ff_error *why)
{
    struct ff_prefill_engine *e = p->prefill;
    uint32_t psize = t->r->range.psize;
    int rc = 0;

    if (t->n > FF_MAX(PART / psize, 1u)) {
        cut_part(t);
    } else {
        rc = ff_feed_same(e->feed, t->n * psize, false, why);
        t->unfed = true;
    }
    if (rc)
        return rc;
    memset(t->zero, 0, sizeof(t->zero));
    memset(t->poison, 0, sizeof(t->poison));
    e->n_busy--; /* until it is asked for again */
    rc = post_read(p, t, why);
    return rc < 0 ? rc : 0;
}

/* A READ that is complete, or a WRITE of the source. 0, -EPROTO, or reported by an install */
static int chunk_arrived(struct ff_pager *p, const struct ff_wc *wc, struct ff_error *why)
{
    struct ff_prefill_engine *e = p->prefill;
    bool pushed = wc->op == FF_WC_RECV_IMM;
    uint64_t id = pushed ? wc->imm & ~(FF_IMM_ZEROS | FF_IMM_UNREADABLE) : wc->id;
    struct transfer *t = id < FF_ARRAY_LEN(e->transfer) ? &e->transfer[id] : NULL;
    int rc = 0;

    if (!t || !t->busy || t->due || pushed == t->pulled)
        return ff_error_set(why, EPROTO, "pager: prefill: 0x%llx arrived unasked",
                            (unsigned long long)id);
    if (pushed && wc->imm & FF_IMM_UNREADABLE) {
        e->n_busy--; /* until it is asked for again: a READ tells which pages there are */
        rc = post_read(p, t, why);
        return rc < 0 ? rc : 0;
    }
    if (pushed && wc->imm & FF_IMM_ZEROS)
        memset(t->zero, 0xff, sizeof(t->zero));
    else if (pushed && wc->len_bytes != t->n * t->r->range.psize)
        return ff_error_set(why, EPROTO, "pager: prefill: %u bytes pushed (want %llu)",
                            wc->len_bytes, (unsigned long long)(t->n * t->r->range.psize));
    bool fed = e->feed && !t->unfed, older = fed && e->feed->offer.is_older;
    bool bad = fed && ff_feed_is_bad(t->poison, sizeof(t->poison));
    if (older && (wc->torn || bad))
        return read_changed(p, t, why);
    if (fed && wc->torn)
        return ff_feed_wrong(t->r, t->first, t->n, why);
    if (bad)
        return ff_error_set(why, EIO, "it cannot read what it has got");
    if (older && (rc = ff_feed_same(e->feed, t->n * t->r->range.psize, true, why)))
        return rc;
    if (!wc->torn)
        give_back_zeros(e, t);
    if (!wc->torn)
        rc = t->in_place ? ff_prefill_install_in_place(p, t) : ff_prefill_install_buffer(p, t);
    else if (t->in_place) /* what was read into a buffer is nobody's yet */
        ff_prefill_leave(p, t, 0, t->n);
    ff_pager_installed(p);
    e->n_busy--;
    t->busy = t->due = t->rest;
    if (t->rest) { /* what was read has its own key; the others, another */
        e->n_due++;
        t->local += t->n * t->r->range.psize;
        t->first += t->n;
        t->n = t->rest, t->rest = 0;
        if (!t->in_place)
            cut_part(t);
        memset(t->zero, 0, sizeof(t->zero));
        memset(t->poison, 0, sizeof(t->poison));
    }
    if (!t->in_place && !t->busy)
        e->users[t->buffer]--;
    return rc;
}

/* One turn: 1 go on, 0 all chunks are done, -errno the link is of no use */
static int prefill_turn(struct ff_pager *p, struct ff_error *why)
{
    struct ff_prefill_engine *e = p->prefill;
    struct ff_wc wc[8];

    int rc = fill_window(p, why);
    if (rc)
        return ff_pager_check(p, FF_PAGER_FAILED, NULL) ? 0 : rc; /* an install has said why */
    if (!e->n_busy && atomic_load(&p->next_feed))
        ff_feed_take(p);
    bool left = e->cut || (ff_chunks_left(&e->chunks) && !is_spent(p));
    bool idle = !e->n_busy && !e->n_due; /* due: tags of a feed that was left may have the room */
    if (idle && !left && ff_feed_may_need(p))
        return ff_feed_rest(p, why);
    if (idle && (!left || !e->feed))
        return left;
    int n = (int)FF_MIN(e->n_kept, (unsigned)FF_ARRAY_LEN(wc));
    memcpy(wc, e->kept, (unsigned)n * sizeof(*wc));
    e->n_kept -= (unsigned)n;
    memmove(e->kept, e->kept + n, e->n_kept * sizeof(*wc));
    if (!n)
        n = ff_prefill_poll(p, wc, FF_ARRAY_LEN(wc), 200, why);
    if (n < 0)
        return n;
    uint64_t now = ff_now_ns();
    if (n)
        e->last_progress_ns = now;
    else if (e->n_busy && now - e->last_progress_ns > (uint64_t)p->silence_ms * 1000000u)
        return ff_error_set(why, ETIMEDOUT, "pager: %u transfers of prefill unanswered for %d s%s",
                            e->n_busy, p->silence_ms / 1000, ff_verify_lacks(p, FF_QUEUE_PREFILL));
    else if ((rc = ff_feed_check(p, now, why)))
        return rc;
    for (int i = 0; i < n; i++) {
        rc = ff_failpoint("dest.prefill");
        if (rc)
            return ff_error_set(why, -rc, "pager: prefill: injected");
        rc = chunk_arrived(p, &wc[i], why);
        if (rc)
            return ff_pager_check(p, FF_PAGER_FAILED, NULL) ? 0 : rc;
    }
    return 1;
}

/* A guest that has just been started needs some pages, one after the other, before it gets
 * anywhere: until then the CPUs and the link are its own */
static void let_guest_start(struct ff_pager *p)
{
    const struct timespec nap = {.tv_nsec = 500000};
    uint64_t end = ff_now_ns() + HEAD_START_NS;

    while (atomic_load(&p->guest_runs) && !atomic_load(&p->stop) && ff_now_ns() < end)
        nanosleep(&nap, NULL);
}

void *ff_prefill_main(void *opaque)
{
    struct ff_pager *p = opaque;
    struct ff_error why = {.code = EIO};
    uint64_t cpu_ns = atomic_load(&p->count.prefill_cpu_ns); /* of the pass, if there was one */
    unsigned turns = 0;

    let_guest_start(p);
    ff_hearing_await(p);
    ff_feed_await(p);
    int rc = ff_feed_begin(p, &why);
    while (!atomic_load(&p->stop) && rc > 0) {
        rc = prefill_turn(p, &why);
        if (rc < 0 && !p->in_precopy)
            rc = ff_feed_leave(p, rc, &why);
        if (!(++turns % CPU_TURNS))
            atomic_store(&p->count.prefill_cpu_ns, cpu_ns + ff_thread_cpu_ns());
    }
    if (rc < 0)
        ff_pager_break(p, &why);
    ff_feed_end(p, rc);
    if (p->pool && (rc < 0 || !p->in_precopy))
        ff_page_pool_empty(p->pool); /* what a pass leaves is read into after it */
    atomic_store(&p->count.prefill_cpu_ns, cpu_ns + ff_thread_cpu_ns());
    pthread_mutex_lock(&p->lock);
    p->prefill_ended = true;
    p->prefill_is_fed = false;
    pthread_cond_broadcast(&p->changed);
    pthread_mutex_unlock(&p->lock);
    return NULL;
}
