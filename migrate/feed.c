/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * feed.c - prefill reads from an agent that has the image too; see feed.h
 */
#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#include "bitmap.h"
#include "cleanup.h"
#include "failpoint.h"
#include "feed.h"
#include "feed_pushed.h"
#include "log.h"

#define LOOK (64u << 10) /* pages, and bytes, at most; at least: */
#define LOOK_FIRST 4096u
#define REST_MS 2
#define BACK_NS 1000000000u
#define PATIENCE 4u /* it may be fed itself, slowly */
#define OTHER_BYTES (16u << 20) /* an earlier image has to show by then */
#define OTHER_SHARE 3u          /* that not more than so many times of what is the same differs */

void ff_feed_free(struct ff_feed *f)
{
    if (!f)
        return;
    if (f->older)
        atomic_fetch_sub(f->older, 1u);
    f->link->ops->free(f->link);
    if (f->seen)
        munmap(f->seen, LOOK);
    free(f->has);
    free(f);
}

/* What came is not needed, or not any more: @why NULL: since all is here. @buf: FF_MSG_MAX bytes */
static void dismiss(struct ff_feed *f, enum ff_refusal code, const char *why, uint8_t *buf)
{
    const struct ff_stats st = {.bytes_total = 0};

    if (!f)
        return;
    int len = why ? ff_wire_put_refuse(buf, code, why) : ff_wire_put_stats(buf, FF_MSG_DONE, &st);
    f->link->ops->send(f->link, buf, (uint32_t)len, NULL);
    ff_feed_free(f);
}

int ff_feed_new(struct ff_pager *p, struct ff_link *link, const struct ff_offer *offer,
                struct ff_feed **out, uint8_t *buf, struct ff_error *err)
{
    const struct ff_prefill_engine *e = p->prefill;
    struct ff_feed *f = calloc(1, sizeof(*f));

    if (!f) {
        link->ops->free(link);
        return ff_error_set(err, ENOMEM, "feed: out of memory");
    }
    f->link = link;
    if (ff_pushed_is(link) && (link = ff_pushed_new(link, e->buffer_bytes, err)))
        f->link = link;
    f->offer = *offer;
    f->has = ff_bitmap_new(p->n_chunks);
    void *m = mmap(NULL, LOOK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    f->seen = m == MAP_FAILED ? NULL : m;
    int rc = !link ? -err->code : f->has && f->seen ? 0 : ff_error_set(err, ENOMEM, "feed: out of memory");
    if (!rc && ff_failpoint("dest.feed.new"))
        rc = ff_error_set(err, ENOMEM, "feed: injected");
    if (!rc) {
        madvise(m, LOOK, MADV_DONTFORK); /* not a child's */
        rc = link->ops->reg(link, m, LOOK, 0, &f->looks, err);
    }
    if (!rc)
        rc = link->ops->reg(link, e->memory, (size_t)e->window * e->buffer_bytes, 0, &f->buffers,
                            err);
    if (rc)
        dismiss(f, FF_REFUSAL_FINAL, err->text, buf);
    if (rc)
        return rc;
    if (offer->is_older) {
        f->older = &p->n_older;
        atomic_fetch_add(f->older, 1u);
    }
    *out = f;
    return 0;
}

/* Another one has come. An earlier image may be through soon, and others are to come again then */
static void dismiss_for(struct ff_feed *old, bool older, uint8_t *buf)
{
    bool again = old && !old->older && older;

    dismiss(old, again ? FF_REFUSAL_NOT_YET : FF_REFUSAL_FINAL,
            again ? FF_FEED_EARLIER_FIRST : "another agent feeds this one", buf);
}

static void rest_a_moment(void)
{
    nanosleep(&(struct timespec){.tv_nsec = REST_MS * 1000000}, NULL);
}

void ff_feed_offer(struct ff_pager *p, struct ff_feed *f, uint8_t *buf)
{
    bool older = f->older;
    struct ff_feed *old = atomic_exchange(&p->next_feed, f);

    dismiss_for(old, older, buf);
    if (atomic_load(&p->feed_over))
        dismiss(atomic_exchange(&p->next_feed, NULL), FF_REFUSAL_FINAL, NULL, buf);
}

void ff_feed_await(struct ff_pager *p)
{
    bool waits = atomic_load(&p->feed_until_ns);

    while (!atomic_load(&p->next_feed) && ff_now_ns() < atomic_load(&p->feed_until_ns) &&
           !atomic_load(&p->feed_off) && !atomic_load(&p->stop) &&
           !ff_pager_check(p, FF_PAGER_BROKEN, NULL))
        rest_a_moment();
    if (waits && !atomic_load(&p->next_feed) && !atomic_load(&p->stop))
        ff_log(FF_LOG_INFO, "prefill: no agent feeds this one: it reads from the source");
    atomic_store(&p->feed_until_ns, 0);
}

/* Which link the thread uses from here on: false: it may not use the pager's, which is away */
static bool is_fed(struct ff_pager *p, bool is)
{
    pthread_mutex_lock(&p->lock);
    bool may = is || p->state == FF_PAGER_UP;
    if (may)
        p->prefill_is_fed = is;
    pthread_cond_broadcast(&p->changed);
    pthread_mutex_unlock(&p->lock);
    return may;
}

void ff_feed_take(struct ff_pager *p)
{
    struct ff_prefill_engine *e = p->prefill;
    struct ff_feed *old = e->feed;

    e->feed = atomic_exchange(&p->next_feed, NULL);
    is_fed(p, p->may_be_fed);
    dismiss_for(old, e->feed->older, e->msg);
    ff_prefill_engine_restart(p);
    e->feed->news_ns = ff_now_ns();
    e->feed->look_pages = LOOK_FIRST;
    e->feed->while_away = ff_pager_check(p, FF_PAGER_BROKEN, NULL);
    ff_log(FF_LOG_INFO, "prefill: another agent feeds this one: %s", e->feed->link->about);
}

/* There is neither the pager's link nor a feed: until there is one of them: 1; 0: the pager stops */
static int await_any(struct ff_pager *p)
{
    if (!p->may_be_fed) { /* prefill ends with the pager's link, as it will see */
        ff_prefill_engine_restart(p);
        return 1;
    }
    while (!atomic_load(&p->stop) && !ff_pager_check(p, FF_PAGER_FAILED, NULL)) {
        if (atomic_load(&p->next_feed) || is_fed(p, false)) {
            ff_prefill_engine_restart(p);
            return 1;
        }
        rest_a_moment();
    }
    return 0;
}

int ff_feed_begin(struct ff_pager *p, struct ff_error *why)
{
    if (p->in_precopy || is_fed(p, false))
        return 1;
    if (!p->may_be_fed)
        return ff_pager_check(p, FF_PAGER_BROKEN, why);
    is_fed(p, true);
    return await_any(p);
}

int ff_feed_leave(struct ff_pager *p, int rc, struct ff_error *why)
{
    struct ff_prefill_engine *e = p->prefill;

    bool source = !e->feed || ff_verify_is_broken(p, FF_QUEUE_PREFILL) ||
                  (!p->may_be_fed && ff_pager_check(p, FF_PAGER_BROKEN, NULL)) ||
                  (rc == -ETIMEDOUT && *ff_verify_lacks(p, FF_QUEUE_PREFILL));
    if (atomic_load(&p->stop) || ff_pager_check(p, FF_PAGER_FAILED, NULL) ||
        (source && !p->may_be_fed))
        return rc;
    if (e->feed && e->feed->offer.is_older) { /* what the source was asked for is on its way into our buffers */
        int settled = ff_verify_settle(p, FF_QUEUE_PREFILL, why);

        if (settled)
            return settled;
    }
    if (e->feed) {
        ff_log(e->feed->offer.is_older ? FF_LOG_INFO : FF_LOG_WARN,
               "prefill: the agent that feeds this one: %s; it goes on from the source", why->text);
        if (rc == -EBADMSG && p->on_misfed)
            p->on_misfed(p->on_misfed_opaque, why->text);
        dismiss(e->feed, FF_REFUSAL_FINAL, why->text, e->msg); /* a link that broke carries nothing, and may come again */
        e->feed = NULL;
        ff_verify_drop(p, FF_QUEUE_PREFILL);
    } else { /* an agent's source is away: others may come */
        ff_pager_break(p, why);
        is_fed(p, true); /* from here on the link may be freed */
    }
    return await_any(p);
}

int ff_feed_same(struct ff_feed *f, uint64_t len, bool same, struct ff_error *why)
{
    *(same ? &f->same_bytes : &f->other_bytes) += len;
    return f->other_bytes < OTHER_BYTES || f->other_bytes < OTHER_SHARE * f->same_bytes
               ? 0 : ff_error_set(why, ESTALE, "most of its earlier image differs: %llu of %llu MiB",
                                  (unsigned long long)f->other_bytes >> 20,
                                  (unsigned long long)(f->other_bytes + f->same_bytes) >> 20);
}

int ff_feed_wrong(const struct ff_pager_region *r, uint64_t first, uint64_t n, struct ff_error *why)
{
    uint32_t psize = r->range.psize;

    return ff_error_set(why, EBADMSG,
                        "region %s: what it gave for 0x%llx bytes at 0x%llx is not what the source has: none "
                        "of it is installed (verify=on)",
                        r->name, (unsigned long long)(n * psize), (unsigned long long)(first * psize));
}

bool ff_feed_may_need(struct ff_pager *p)
{
    return p->may_be_fed && !p->in_precopy && !ff_pager_was_complete(p);
}

int ff_feed_rest(struct ff_pager *p, struct ff_error *why)
{
    if (atomic_exchange(&p->rewind, false)) {
        ff_prefill_engine_rewind(p);
        return 1;
    }
    int rc = p->prefill->feed ? 0 : ff_pager_check(p, FF_PAGER_BROKEN, why);
    if (!rc)
        rest_a_moment();
    return rc ? rc : 1;
}

void ff_feed_end(struct ff_pager *p, int rc)
{
    struct ff_prefill_engine *e = p->prefill;
    bool all = !e->n_busy && !e->cut && !ff_chunks_left(&e->chunks);
    bool over = (!rc && all && !ff_pager_check(p, FF_PAGER_FAILED, NULL)) ||
                ff_pager_was_complete(p);

    if (over) {
        atomic_store(&p->feed_over, true);
        dismiss(e->feed, FF_REFUSAL_FINAL, NULL, e->msg);
        dismiss(atomic_exchange(&p->next_feed, NULL), FF_REFUSAL_FINAL, NULL, e->msg);
    } else {
        ff_feed_free(e->feed);
    }
    e->feed = NULL;
}

/* --- what the relay has --- */

/* Chunks from @from on whose claims fit into one look: their number; *@first: of the pages */
static uint64_t stretch_of(struct ff_pager *p, uint64_t from, struct ff_pager_region **r,
                           uint64_t *first, uint64_t *pages)
{
    uint64_t n, at, chunks = 0;

    *r = ff_chunk_pages(p, from, first, pages);
    for (*pages = 0; from + chunks < p->n_chunks && ff_chunk_pages(p, from + chunks, &at, &n) == *r;
         chunks++) {
        if (chunks && *pages + n > p->prefill->feed->look_pages)
            break;
        *pages += n;
    }
    return chunks;
}

/* The next chunk from look_from on, around the end, that the relay is not known to have */
static uint64_t next_unknown(const struct ff_pager *p)
{
    struct ff_feed *f = p->prefill->feed;

    return ff_bitmap_next_clear(f->has, p->n_chunks, f->look_from);
}

int ff_feed_check(struct ff_pager *p, uint64_t now_ns, struct ff_error *why)
{
    const struct ff_prefill_engine *e = p->prefill;
    uint64_t last_ns = FF_MAX(e->last_progress_ns, e->feed ? e->feed->news_ns : 0);

    if (!e->feed || now_ns < last_ns || now_ns - last_ns <= (uint64_t)p->silence_ms * PATIENCE * 1000000u)
        return 0;
    return ff_error_set(why, ETIMEDOUT, "it has brought nothing for %d s (%u under way, %u to be sent, %u buffers)",
                        p->silence_ms / 1000 * (int)PATIENCE, e->n_busy, e->n_due, e->window);
}

/* 0, or why it is of no use any more. @away: the source is */
static int check_news(struct ff_pager *p, bool away, struct ff_error *err)
{
    struct ff_feed *f = p->prefill->feed;
    uint64_t now = ff_now_ns(), silence_ns = (uint64_t)p->silence_ms * 1000000u;
    unsigned patience = away ? 1 : PATIENCE; /* others may have what is missing */

    if (f->offer.is_older && f->no_news >= p->n_chunks && !p->prefill->n_busy)
        return ff_error_set(err, ENODATA, "it has no more of its earlier image");
    if (away && !f->was_away)
        f->news_ns = now;
    f->was_away = away;
    if (f->looks_now && now - f->looked_ns > silence_ns)
        return ff_error_set(err, ETIMEDOUT, "it has not answered for %d s", p->silence_ms / 1000);
    if (now - f->news_ns > silence_ns * patience)
        return ff_error_set(err, ETIMEDOUT, "it has got nothing for %d s",
                            p->silence_ms / 1000 * (int)patience);
    if (f->while_away && now - f->news_ns > BACK_NS && !away)
        return ff_error_set(err, ETIMEDOUT, "it has nothing new, and the source is back");
    return 0;
}

static int look(struct ff_pager *p, bool away, struct ff_error *err)
{
    struct ff_prefill_engine *e = p->prefill;
    struct ff_feed *f = e->feed;
    struct ff_pager_region *r;
    uint64_t first, pages, now = ff_now_ns(), from = next_unknown(p);

    int rc = check_news(p, away, err);
    /* away: what is under way is missing until it is here, and would be taken for a part */
    if (rc || f->looks_now || from == p->n_chunks || (away && e->n_busy) ||
        now - f->looked_ns < REST_MS * 1000000u)
        return rc;
    rc = ff_failpoint("dest.feed.look");
    if (rc)
        return ff_error_set(err, -rc, "injected");
    f->look_from = from;
    f->look_n = stretch_of(p, from, &r, &first, &pages);
    struct ff_wr wr = {.op = FF_OP_READ,
                       .local = f->seen,
                       .lkey = f->looks.lkey,
                       .remote = ff_feed_of(p, r)->claims_addr + first,
                       .rkey = ff_feed_of(p, r)->claims_rkey,
                       .len_bytes = (uint32_t)pages};
    f->looked_ns = now;
    f->looks_now = true;
    return f->link->ops->post(f->link, FF_QUEUE_FAULT, &wr, err);
}

int ff_feed_next(struct ff_pager *p, struct ff_error *err)
{
    struct ff_prefill_engine *e = p->prefill;
    struct ff_feed *f = e->feed;

    if (f->part) {
        e->cut = f->part;
        e->cut_from = e->cut_first = f->part_first;
        e->cut_end = f->part_end;
        f->part = NULL;
        f->looked_ns = 0; /* there may be another one: look at once */
        f->news_ns = ff_now_ns();
        return 1;
    }
    if (!e->n_busy && atomic_exchange(&p->rewind, false)) {
        ff_prefill_engine_rewind(p);
        return 1;
    }
    return look(p, ff_pager_check(p, FF_PAGER_BROKEN, NULL), err);
}

static bool has(uint8_t claim)
{
    return claim == FF_CLAIM_PRESENT || claim == FF_CLAIM_HOLE;
}

static uint64_t has_until(const uint8_t *claims, uint64_t i, uint64_t n)
{
    if (ff_failpoint("dest.feed.has")) /* injected: it asks for what nobody has announced */
        return n;
    while (i < n && has(claims[i]))
        i++;
    return i;
}

/* The first run of @n pages from @first on that the relay has, from one on that is missing here */
static bool find_part(struct ff_feed *f, struct ff_pager_region *r, uint64_t first, uint64_t n,
                      const uint8_t *claims)
{
    uint64_t i = 0;

    while (i < n && (!has(claims[i]) || ff_claim_get(&r->claims, first + i) != FF_CLAIM_MISSING))
        i++;
    if (i == n)
        return false;
    f->part = r;
    f->part_first = first + i;
    f->part_end = first + has_until(claims, i, n);
    return true;
}

static void looked(struct ff_pager *p)
{
    struct ff_feed *f = p->prefill->feed;
    const uint8_t *claims = f->seen;
    uint64_t first, n, end = f->look_from + f->look_n;
    bool news = false, away = ff_pager_check(p, FF_PAGER_BROKEN, NULL);

    for (uint64_t i = f->look_from; i < end; i++, claims += n) {
        struct ff_pager_region *r = ff_chunk_pages(p, i, &first, &n);
        if (ff_bitmap_get(f->has, i))
            continue;
        if (has_until(claims, 0, n) < n) {
            news |= away && !p->prefill->n_busy && !f->part && find_part(f, r, first, n, claims);
            continue;
        }
        ff_bitmap_set(f->has, i);
        news = true;
    }
    f->looks_now = false;
    f->no_news = news ? 0 : f->no_news + f->look_n;
    if (news)
        f->news_ns = ff_now_ns();
    else
        f->look_from = end == p->n_chunks ? 0 : end; /* it may be at work elsewhere */
    f->look_pages = news ? LOOK_FIRST : FF_MIN(2 * f->look_pages, LOOK);
}

/* What came over the relay's link, with verify=on once its tag is here too */
static int poll_bytes(struct ff_pager *p, struct ff_link *l, struct ff_wc *wc, unsigned n,
                      struct ff_error *err)
{
    struct ff_wc in[8];

    if (!p->verify)
        return l->ops->poll(l, FF_QUEUE_PREFILL, wc, n, 0, err);
    int got = l->ops->poll(l, FF_QUEUE_PREFILL, in, FF_MIN(n, (unsigned)FF_ARRAY_LEN(in)), 0, err);
    return got < 0 ? got : ff_verify_poll_fed(p, l, in, (unsigned)got, wc, n, err);
}

int ff_feed_poll(struct ff_pager *p, struct ff_wc *wc, unsigned n, int timeout_ms,
                 struct ff_error *err)
{
    struct ff_feed *f = p->prefill->feed;
    struct ff_link *l = f->link;
    uint64_t end = ff_now_ns() + (uint64_t)(f->looks_now ? timeout_ms : REST_MS) * 1000000u;
    struct pollfd ready[FF_QUEUES + 1];
    struct ff_link *tags = p->verify ? p->link : NULL;
    struct ff_wc look;

    for (;;) {
        int rc = p->may_be_fed ? 0 : ff_pager_check(p, FF_PAGER_BROKEN, err);
        if (!rc)
            rc = poll_bytes(p, l, wc, n, err);
        if (rc)
            return rc;
        rc = l->ops->poll(l, FF_QUEUE_FAULT, &look, 1, 0, err);
        if (rc > 0)
            looked(p);
        if (rc || ff_now_ns() >= end)
            return FF_MIN(rc, 0);
        for (int q = 0; q < FF_QUEUES; q++)
            ready[q].fd = l->ops->fd(l, (enum ff_queue)q, &ready[q].events);
        if (tags)
            ready[FF_QUEUES].fd = tags->ops->fd(tags, FF_QUEUE_PREFILL, &ready[FF_QUEUES].events);
        poll(ready, FF_QUEUES + (tags != NULL), (int)((end - FF_MIN(ff_now_ns(), end) + 999999) / 1000000));
    }
}
