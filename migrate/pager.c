/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * pager.c - set up, start and end of a pager; see pager.h
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <unistd.h>

#include "children.h"
#include "cleanup.h"
#include "feed.h"
#include "group.h"
#include "failpoint.h"
#include "log.h"
#include "load.h"
#include "pager.h"
#include "pager_elsewhere.h"
#include "policy.h"
#include "thread.h"
#include "undo.h"
#include "verify.h"
#include "working_set.h"

static uint32_t page_size(void)
{
    return (uint32_t)sysconf(_SC_PAGESIZE);
}

static enum ff_uffd_landing choose_landing(const struct ff_pager *p, const struct ff_region *r)
{
    bool shared = r->fd >= 0, huge = r->psize > page_size();

    if (!shared || p->opts->landing == FF_LANDING_COPY)
        return FF_UFFD_COPY;
    /* measured: a copy is quicker than the alias's own page faults, and a fault on a huge page
     * that is under way need not wait for it */
    if (p->opts->landing == FF_LANDING_AUTO && !p->pins && !(huge && p->opts->precopy))
        return FF_UFFD_COPY;
    return FF_UFFD_CONTINUE;
}

static int init_region(struct ff_pager *p, const struct ff_region *r, uint64_t segment_bytes,
                       struct ff_error *err)
{
    struct ff_pager_region *pr = &p->region[p->n_regions];
    bool shared = r->fd >= 0, elsewhere = p->elsewhere, huge = r->psize > page_size();

    *pr = (struct ff_pager_region){
        .name = r->name,
        .chunk_bytes = p->opts->chunk_bytes,
        .first_chunk = p->n_chunks,
        .segment_bytes = segment_bytes,
        /* Memory that was populated before we came is populated when we have gone */
        .holes = elsewhere ? !huge : shared && ff_region_is_empty(r),
        .can_move = !elsewhere && !ff_policy_is_set(r), /* and more: ff_pager_start() */
        .range = {.host = r->host,
                  .len_bytes = r->len_bytes,
                  .psize = r->psize,
                  .memory = huge     ? FF_UFFD_HUGETLB
                            : shared ? FF_UFFD_SHMEM
                                     : FF_UFFD_ANON,
                  .landing = choose_landing(p, r),
                  .shared = shared || (elsewhere && huge),
                  .elsewhere = elsewhere},
    };
    if (elsewhere && huge && p->opts->precopy)
        return ff_error_set(err, ENOTSUP,
                            "pager: region %s: precopy=1: not with huge pages of another process: what is discarded goes "
                            "back to the pool, where others may take it (use precopy=0)", r->name);
    if (pr->range.memory == FF_UFFD_HUGETLB && p->opts->precopy &&
        pr->range.landing == FF_UFFD_COPY)
        return ff_error_set(
            err, ENOTSUP,
            "pager: region %s: %s with precopy=1: discarded huge pages go back to the pool, where "
            "other processes may take them: %s",
            r->name, shared ? "landing=copy" : "private huge pages",
            shared ? "use landing=continue" : "use shared ones (share=on)");
    while (pr->chunk_bytes > p->link->max_len_bytes)
        pr->chunk_bytes /= 2;
    pr->chunk_bytes = FF_MAX(pr->chunk_bytes, r->psize);
    if (r->psize > p->link->max_len_bytes)
        return ff_error_set(err, ENOTSUP,
                            "pager: region %s: the device carries messages of %u bytes "
                            "(need a page, %u)",
                            r->name, p->link->max_len_bytes, r->psize);
    if (ff_claims_init(&pr->claims, r->len_bytes / r->psize))
        return ff_error_set(err, ENOMEM, "pager: claims of region %s: out of memory", r->name);
    p->n_regions++;
    pr->rkey = calloc(ff_segments_of(r->len_bytes, segment_bytes), sizeof(*pr->rkey));
    if (!pr->rkey)
        return ff_error_set(err, ENOMEM, "pager: keys of region %s: out of memory", r->name);
    if (pr->range.landing == FF_UFFD_CONTINUE) {
        void *alias = mmap(NULL, r->len_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, r->fd,
                           (off_t)r->fd_offset);
        if (alias == MAP_FAILED)
            return ff_error_set(err, errno, "pager: map region %s a second time: %s", r->name,
                                strerror(errno));
        pr->range.alias = alias;
        pr->in_place = true;
        /* what precopy=1 discards there stays in the file */
        pr->holes &= !p->opts->precopy;
        int rc = ff_policy_copy(r, alias, err);
        if (rc)
            return rc;
    }
    p->bytes_total += r->len_bytes;
    p->n_chunks += (r->len_bytes + pr->chunk_bytes - 1) / pr->chunk_bytes;
    return 0;
}

int ff_pager_init(struct ff_pager *p, struct ff_link *link, const struct ff_address *opts,
                  const struct ff_regions *regions, uint64_t segment_bytes, struct ff_error *err)
{
    memset(p, 0, sizeof(*p));
    p->link = link;
    p->pins = link->pins;
    p->opts = opts;
    p->silence_ms = opts->timeout_ms;
    p->mode = opts->prefill;
    p->uffd.fd = p->uffd.keep_fd = -1;
    pthread_mutex_init(&p->lock, NULL);
    pthread_mutex_init(&p->keep_lock, NULL);
    ff_cond_init(&p->changed);
    p->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (p->wake_fd < 0)
        return ff_error_set(err, errno, "pager: eventfd: %s", strerror(errno));
    int rc = regions->elsewhere ? ff_elsewhere_new(p, err) : 0;
    if (rc)
        return rc;
    for (unsigned i = 0; i < regions->n; i++) {
        rc = init_region(p, &regions->r[i], segment_bytes, err);
        if (rc)
            return rc;
    }
    p->wants = calloc(1, sizeof(*p->wants));
    if (!p->wants)
        return ff_error_set(err, ENOMEM, "pager: out of memory");
    rc = ff_fault_engine_new(p, err);
    return rc ? rc : ff_prefill_engine_new(p, err);
}

int ff_pager_set_asks(struct ff_pager *p, uint64_t addr, uint32_t rkey, struct ff_error *err)
{
    if (p->opts->verify != (rkey != 0) || addr + FF_ASKED_LEN < addr)
        return ff_error_set(err, EPROTO,
                            "pager: PUBLISH: asks at 0x%llx, key 0x%x, with verify=%s",
                            (unsigned long long)addr, rkey, p->opts->verify ? "on" : "off");
    p->asks_addr = addr;
    p->asks_rkey = rkey;
    return 0;
}

void ff_pager_lent(struct ff_pager *p, unsigned i)
{
    struct ff_pager_region *r = &p->region[i];

    r->lent = true;
    ff_claims_present(&r->claims);
    atomic_fetch_add(&p->count.bytes_present, r->range.len_bytes);
}

int ff_pager_check_push(struct ff_pager *p, uint32_t push_bytes, struct ff_error *err)
{
    uint32_t chunk = 0;

    for (unsigned i = 0; i < p->n_regions; i++)
        chunk = FF_MAX(chunk, p->region[i].chunk_bytes);
    p->can_push = chunk <= push_bytes;
    if (p->can_push || p->opts->prefill != FF_PREFILL_PUSH)
        return 0;
    return ff_error_set(err, ENOTSUP,
                        "pager: prefill=push: the source's link writes at most %u bytes "
                        "at once (need a chunk, %u): use prefill=pull",
                        push_bytes, chunk);
}

/* Will every hole of @r have its page when it is touched, after the move? A hugetlb file reserves
 * pages when it is mapped. Emptying it has lost those of the pages that it held: reserve again. */
static bool keeps_reserved(const struct ff_region *r)
{
    if (r->psize == page_size())
        return true;
    void *again = mmap(NULL, r->len_bytes, PROT_READ, MAP_SHARED, r->fd, (off_t)r->fd_offset);
    if (again == MAP_FAILED)
        return false;
    munmap(again, r->len_bytes); /* the reservation is the file's, and stays */
    return true;
}

/* Pieces that will read as zeros are left alone; what becomes known only with the state lands
 * in a buffer. */
int ff_pager_register_landing(struct ff_pager *p, const struct ff_regions *regions,
                              struct ff_error *err)
{
    bool any = false;

    for (unsigned i = 0; i < p->n_regions; i++) {
        struct ff_pager_region *r = &p->region[i];
        any |= r->in_place;
        r->holes = r->holes && keeps_reserved(&regions->r[i]);
    }
    if (!p->pins || !any)
        return 0;
    int rc = ff_segments_init(&p->land, regions, p->region[0].segment_bytes, err);
    for (unsigned i = 0; i < p->land.n && !rc; i++) {
        struct ff_segment *e = &p->land.segment[i];
        struct ff_pager_region *r = &p->region[e->region];
        if (!e->number)
            r->land = e;
        if (!r->in_place)
            continue;
        e->addr = r->range.alias + e->number * r->segment_bytes;
        e->wanted = r->rkey[e->number];
    }
    if (!rc)
        rc = ff_segments_register(&p->land, p->link, 0, p->opts->odp, err);
    return rc ? ff_error_pass(err, rc, "register landing memory") : 0;
}

/* Watch region @i, with what is ready for it */
static int watch_region(struct ff_pager *p, unsigned i, struct ff_error *err)
{
    struct ff_pager_region *r = &p->region[i];
    bool may_move = r->range.memory == FF_UFFD_ANON && ff_uffd_can_move(&p->uffd);

    r->can_move &= p->can_move && may_move;
    if (p->pool && may_move)
        r->pool = ff_page_pool_of(p->pool, i, &r->pool_bytes);
    uint8_t *alias = p->pool && r->range.landing == FF_UFFD_COPY
                         ? ff_page_pool_take(p->pool, i, &r->range.ready_bytes)
                         : NULL;
    if (alias)
        r->range.alias = alias;
    int rc = ff_uffd_register(&p->uffd, &r->range, r->name, err);
    r->watched = !rc;
    if (rc || !alias)
        return rc;
    r->holes = true; /* it was empty before */
    rc = ff_uffd_empty_ready(&r->range, err);
    return rc ? ff_error_pass(err, rc, "pager: region %s", r->name) : 0;
}

int ff_pager_start(struct ff_pager *p, struct ff_error *err)
{
    bool any = false;

    for (unsigned i = 0; i < p->n_regions; i++)
        any |= !p->region[i].lent;
    any &= !p->elsewhere; /* else ff_elsewhere_adopt() has it */
    int rc = any ? ff_uffd_open(&p->uffd, err) : 0;
    for (unsigned i = 0; i < p->n_regions && !rc; i++) {
        struct ff_pager_region *r = &p->region[i];
        r->watched = p->elsewhere;
        if (r->lent || p->elsewhere)
            continue;
        rc = watch_region(p, i, err);
    }
    if (!rc && p->undo)
        rc = ff_undo_protect(p, err);
    if (!rc)
        rc = ff_thread_start(&p->fault_thread, ff_fault_main, p, "farfork-fault", err);
    p->fault_up = !rc;
    return rc;
}

void ff_pager_image_frozen(struct ff_pager *p)
{
    for (unsigned i = 0; i < p->n_regions; i++)
        ff_claims_seal(&p->region[i].claims);
    atomic_store(&p->image_frozen, true);
    ff_pager_was_complete(p); /* it remembers that */
    eventfd_write(p->wake_fd, 1);
}

int ff_pager_first_touch(struct ff_pager *p, const struct ff_page_ref *pages, unsigned n,
                         struct ff_error *err)
{
    return n ? ff_fault_engine_want(p, pages, n, err) : 0;
}

/* prefill=auto: let the side work whose CPUs have more to spare. A pull costs the destination
 * more than a push, over verbs it costs the source nothing at all: so a push only pays when
 * this side is clearly the busier one. */
#define PUSH_MARGIN_PERMILLE 250

static enum ff_prefill_mode choose_prefill(const struct ff_pager *p, uint32_t source_load)
{
    uint32_t load = ff_load_permille();

    if (!p->can_push)
        return FF_PREFILL_PULL;
    enum ff_prefill_mode mode = load > source_load + PUSH_MARGIN_PERMILLE ? FF_PREFILL_PUSH
                                                                           : FF_PREFILL_PULL;
    ff_log(FF_LOG_INFO, "prefill by %s: CPU load %u %% here, %u %% at the source",
           mode == FF_PREFILL_PUSH ? "push" : "pull", load / 10, source_load / 10);
    return mode;
}

int ff_pager_start_prefill(struct ff_pager *p, uint32_t source_load_permille,
                           struct ff_error *err)
{
    if (p->mode == FF_PREFILL_AUTO) /* what was chosen holds for every link */
        p->mode = choose_prefill(p, source_load_permille);
    if (p->mode != FF_PREFILL_PULL && p->pool)
        ff_page_pool_empty(p->pool); /* nobody will read into it */
    if (p->prefill_up) /* fed, it went on without the link */
        return 0;
    atomic_store(&p->feed_over, p->mode == FF_PREFILL_OFF);
    if (p->mode == FF_PREFILL_OFF)
        return 0;
    pthread_mutex_lock(&p->lock);
    p->prefill_is_fed = p->may_be_fed && p->state != FF_PAGER_UP; /* or is to be */
    pthread_mutex_unlock(&p->lock);
    int rc = ff_failpoint("dest.prefill.start");
    rc = rc ? ff_error_set(err, -rc, "prefill: injected")
            : ff_thread_start(&p->prefill_thread, ff_prefill_main, p, "farfork-prefill", err);
    p->prefill_up = !rc;
    return rc;
}

/* All is here, and that ends the move: a guest that is to return may touch all of its memory before */
static bool is_over(const struct ff_pager *p)
{
    return !p->opts->visit && atomic_load(&p->count.bytes_present) == p->bytes_total;
}

int ff_pager_wait(struct ff_pager *p, int timeout_ms, struct ff_error *err)
{
    uint64_t end = ff_now_ns() + (uint64_t)timeout_ms * 1000000u;
    int rc = 0;

    pthread_mutex_lock(&p->lock);
    while (!is_over(p) && p->state == FF_PAGER_UP && !rc)
        rc = ff_cond_wait_until(&p->changed, &p->lock, end);
    if (is_over(p)) {
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

void ff_pager_give_up(struct ff_pager *p)
{
    if (!p->undo || !p->fault_up) {
        ff_pager_finish(p);
        return;
    }
    atomic_store(&p->stop, true);
    eventfd_write(p->wake_fd, 1);
}

void ff_pager_finish(struct ff_pager *p)
{
    atomic_store(&p->stop, true);
    ff_undo_end(p);
    if (p->wake_fd >= 0)
        eventfd_write(p->wake_fd, 1);
    ff_hearing_stop(p->hearing);
    if (p->prefill_up)
        pthread_join(p->prefill_thread, NULL);
    if (p->fault_up)
        pthread_join(p->fault_thread, NULL);
    p->prefill_up = p->fault_up = false;
    if (p->elsewhere) /* its owner watches it, and goes on doing so */
        return;
    for (unsigned i = 0; i < p->n_regions; i++) {
        struct ff_pager_region *r = &p->region[i];
        if (r->watched)
            ff_uffd_unregister(&p->uffd, &r->range, NULL);
        r->watched = false;
    }
}

static void unmap_aliases(struct ff_pager *p)
{
    for (unsigned i = 0; i < p->n_regions; i++) {
        struct ff_uffd_range *range = &p->region[i].range;
        if (!range->alias)
            continue; /* memory elsewhere: who installs a page reads the range still */
        if (!range->ready_bytes) /* else it is the pool's */
            munmap(range->alias, range->len_bytes);
        range->alias = NULL;
        range->ready_bytes = 0;
    }
}

void ff_pager_drop_landing(struct ff_pager *p)
{
    ff_segments_dereg(&p->land, p->link);
    unmap_aliases(p);
    if (p->pool)
        ff_page_pool_free(p->pool);
}

void ff_pager_free(struct ff_pager *p)
{
    ff_pager_finish(p);
    ff_uffd_close(&p->uffd);
    unmap_aliases(p);
    for (unsigned i = 0; i < p->n_regions; i++) {
        ff_claims_free(&p->region[i].claims);
        free(p->region[i].rkey);
        ff_parts_free(&p->region[i].parts);
    }
    ff_segments_free(&p->land);
    ff_feed_free(atomic_exchange(&p->next_feed, NULL));
    ff_hearing_free(p->hearing);
    ff_fault_engine_free(p->fault);
    free(p->wants);
    ff_working_set_free(p->first);
    ff_working_set_free(p->touched);
    ff_prefill_engine_free(p->prefill);
    ff_verify_free(p->verify);
    ff_undo_free(p);
    ff_children_free(p);
    ff_elsewhere_free(p);
    ff_close_fd(&p->wake_fd);
    pthread_mutex_destroy(&p->lock);
    pthread_mutex_destroy(&p->keep_lock);
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
    st->bytes_copied = atomic_load(&c->bytes_copied);
    st->bytes_continued = atomic_load(&c->bytes_continued);
    st->bytes_moved = atomic_load(&c->bytes_moved);
    st->prefill = p->mode;
    st->bytes_precopied = atomic_load(&c->bytes_precopied);
    st->bytes_discarded = atomic_load(&c->bytes_discarded);
    st->precopy_ns = atomic_load(&c->precopy_ns);
    st->breaks = atomic_load(&c->breaks);
    st->bytes_again = atomic_load(&c->bytes_again);
    st->paused_ns = atomic_load(&c->paused_ns);
    st->bytes_poisoned = atomic_load(&c->bytes_poisoned);
    struct ff_hearing *h = atomic_load(&p->hearing);
    if (h)
        ff_hearing_count(h, &st->group_packets, &st->group_lost);
    uint64_t broken_ns = atomic_load(&c->broken_ns);
    if (broken_ns && st->bytes_present < st->bytes_total) /* complete, it waits for nobody */
        st->paused_ns += ff_now_ns() - broken_ns;
    st->dest_cpu_ns = atomic_load(&c->fault_cpu_ns) + atomic_load(&c->prefill_cpu_ns);
    st->fault_p50_ns = ff_hist_at(&p->fault_ns, 500);
    st->fault_p90_ns = ff_hist_at(&p->fault_ns, 900);
    st->fault_p99_ns = ff_hist_at(&p->fault_ns, 990);
    st->fault_p999_ns = ff_hist_at(&p->fault_ns, 999);
    st->fault_max_ns = ff_hist_at(&p->fault_ns, 1000);
}

void ff_pager_stages(struct ff_pager *p, struct ff_stage_time out[FF_STAGES])
{
    static const char *const names[FF_STAGES] = {"read", "claim",   "post",
                                                 "wire", "install", "wake"};

    for (unsigned i = 0; i < FF_STAGES; i++) {
        out[i].name = names[i];
        out[i].p50_ns = ff_hist_at(&p->stage_ns[i], 500);
        out[i].p99_ns = ff_hist_at(&p->stage_ns[i], 990);
    }
}
