/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * group_recv.c - agent: what its source sends to a group, put together and installed; see group.h
 */
/**
 * DOC: Theory of Operation
 *
 * Picture      packet -- opens? --> part of a page --> slot (page modulo slots) -- all parts --> claim,
 *                                   another page in that slot is given up         install
 *              A page that somebody has claimed by then is not put together.
 * Limits       SLOTS_BYTES of slots, SLOTS_MAX at most: packets that come later than that many pages are
 *              of no use. FIRST_MS: the source begins when its first agent runs, and says each 50 ms that
 *              it is there. IDLE_MS: a source whose host is busy for longer has begun again by then.
 *              QUIET_MS: it waits for its other agents, but not for ever; or of each page a part is lost.
 *              AFTER_MS of silence end the thread.
 */
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#include "cleanup.h"
#include "datagram.h"
#include "failpoint.h"
#include "group.h"
#include "log.h"
#include "packet.h"
#include "prefill_private.h"
#include "thread.h"

#define SLOTS_BYTES (8u << 20)
#define SLOTS_MAX 512u
#define PARTS_MAX 16384u
#define ZEROS_MAX (1u << 20)
#define FIRST_MS 1500
#define IDLE_MS 1000
#define QUIET_MS 5000
#define AFTER_MS 10000
#define LOOK_MS 20
#define RETRY_MS 20
#define MS 1000000ull

struct slot {
    struct ff_pager_region *r; /* NULL: it is free */
    uint64_t page;
    uint32_t part_bytes, n_here;
    uint64_t here[PARTS_MAX / 64];
};

enum why_not { ALL_WELL, NOT_HEARD, STOPPED, LOST_MUCH, QUIET };

struct ff_hearing {
    struct ff_pager *p;
    struct ff_pager_region *region[FF_WIRE_REGIONS_MAX]; /* by the source's number */
    struct ff_packets *packets;
    struct ff_datagrams *from;
    pthread_t thread;
    bool thread_up;
    struct slot *slot;
    uint8_t *memory; /* of the slots */
    uint32_t slot_bytes;
    unsigned n_slots;
    uint8_t datagram[FF_DATAGRAMS * FF_PACKET_MAX], room[FF_PACKET_MAX];

    _Atomic bool stop, over;
    _Atomic uint64_t began_ns, heard_ns, page_ns; /* heard_ns 0: nothing was */
    _Atomic uint64_t n_came, n_lost;
    _Atomic unsigned why; /* enum why_not */
};

const char *ff_hearing_why_not(const struct ff_hearing *h)
{
    static const char *const words[] = {
        [ALL_WELL] = "",
        [NOT_HEARD] = "nothing comes from the group: a switch or a firewall filters it",
        [STOPPED] = "nothing more came from the group",
        [LOST_MUCH] = "most of what the group was sent is lost on its way",
        [QUIET] = "no page comes whole from the group",
    };
    return words[atomic_load(&h->why)];
}

void ff_hearing_count(struct ff_hearing *h, uint64_t *packets, uint64_t *lost)
{
    *packets = atomic_load(&h->n_came);
    *lost = atomic_load(&h->n_lost);
}

/* --- what has come --- */

static void got_pages(struct ff_hearing *h)
{
    atomic_store(&h->page_ns, ff_now_ns());
    atomic_store(&h->why, ALL_WELL);
    ff_pager_installed(h->p);
}

/* @n pages of ours, however long that takes: 0, or the image is of no use, or the pager is to stop */
static int install(struct ff_hearing *h, struct ff_pager_region *r, uint64_t page, uint64_t n,
                   const uint8_t *src)
{
    struct ff_pager *p = h->p;
    uint64_t done;
    int rc;

    while ((rc = ff_pager_install(p, r, page, n, src, true, &done)) == -EAGAIN) {
        page += done, n -= done;
        if (done)
            ff_pager_installed(p);
        src = src ? src + done * r->range.psize : NULL;
        rc = ff_pager_short(p, FF_BY_GROUP);
        if (rc || atomic_load(&h->stop) || atomic_load(&p->stop))
            return rc ? rc : -ECANCELED;
        nanosleep(&(struct timespec){.tv_nsec = RETRY_MS * MS}, NULL);
    }
    ff_pager_enough(p, FF_BY_GROUP);
    return rc;
}

static int take_page(struct ff_hearing *h, struct slot *s, const uint8_t *bytes)
{
    struct ff_pager_region *r = s->r;
    uint64_t psize = r->range.psize;

    s->r = NULL;
    if (!ff_claim_take(&r->claims, s->page)) {
        atomic_fetch_add(&h->p->count.bytes_duplicated, psize);
        return 0;
    }
    int rc = install(h, r, s->page, 1, bytes);
    if (rc)
        return rc;
    atomic_fetch_add(&h->p->count.bytes_prefill, psize);
    atomic_fetch_add(&h->p->count.bytes_group, psize);
    got_pages(h);
    return 0;
}

static int take_part(struct ff_hearing *h, struct ff_pager_region *r, const struct ff_packet *k)
{
    uint32_t psize = r->range.psize, n = k->len ? (psize + k->len - 1) / k->len : 0;
    struct slot *s = &h->slot[k->page % h->n_slots];
    uint8_t *bytes = h->memory + (size_t)(s - h->slot) * h->slot_bytes;
    uint64_t at = (uint64_t)k->part * k->len;

    if (!n || n > PARTS_MAX || k->part >= n || at >= psize)
        return 0;
    if (s->r != r || s->page != k->page || s->part_bytes != k->len) {
        if (ff_claim_get(&r->claims, k->page) != FF_CLAIM_MISSING)
            return 0;
        s->r = r;
        s->page = k->page;
        s->part_bytes = k->len;
        s->n_here = 0;
        memset(s->here, 0, (n + 63) / 64 * 8);
    }
    if (s->here[k->part / 64] & 1ull << k->part % 64)
        return 0;
    s->here[k->part / 64] |= 1ull << k->part % 64;
    memcpy(bytes + at, k->data, FF_MIN(k->len, psize - at));
    return ++s->n_here == n ? take_page(h, s, bytes) : 0;
}

static int take_zeros(struct ff_hearing *h, struct ff_pager_region *r, uint64_t page, uint64_t n)
{
    int rc = 0;

    for (uint64_t end = page + n, run; page < end && !rc; page += run ? run : 1) {
        for (run = 0; page + run < end && run < BATCH; run++)
            if (!ff_claim_take(&r->claims, page + run))
                break;
        if (run && r->holes)
            ff_pager_leave_holes(h->p, r, page, run);
        else if (run)
            rc = install(h, r, page, run, NULL);
        if (run && !rc)
            got_pages(h);
    }
    return rc;
}

/* Of the source: it is not doubted, but that it fits */
static int take_packet(struct ff_hearing *h, const struct ff_packet *k)
{
    struct ff_pager_region *r = k->region < FF_WIRE_REGIONS_MAX ? h->region[k->region] : NULL;
    uint64_t pages = r ? r->claims.n_pages : 0, n = k->kind == FF_PACKET_ZEROS ? k->part : 1;

    if (k->kind == FF_PACKET_END) {
        atomic_store(&h->why, k->part == FF_GROUP_LOST ? LOST_MUCH : ALL_WELL);
        atomic_store(&h->over, true);
    }
    if ((k->kind != FF_PACKET_PAGE && k->kind != FF_PACKET_ZEROS) || k->page >= pages ||
        n > pages - k->page || n > ZEROS_MAX)
        return 0;
    return k->kind == FF_PACKET_ZEROS ? take_zeros(h, r, k->page, n) : take_part(h, r, k);
}

static int take_datagrams(struct ff_hearing *h, const uint32_t *len, int n)
{
    struct ff_packet k;
    uint64_t came, lost;
    int rc = 0;

    for (int i = 0; i < n && !rc && !atomic_load(&h->stop); i++) {
        if (ff_failpoint("dest.group.packet") ||
            ff_packet_open(h->packets, h->datagram + (size_t)i * FF_PACKET_MAX, len[i], h->room, &k))
            continue;
        atomic_store(&h->heard_ns, ff_now_ns());
        if (atomic_load(&h->why) != QUIET)
            atomic_store(&h->why, ALL_WELL); /* late is not never */
        rc = take_packet(h, &k);
    }
    ff_packets_count(h->packets, &came, &lost);
    atomic_store(&h->n_came, came);
    atomic_store(&h->n_lost, lost);
    return rc;
}

static bool hears_nothing(const struct ff_hearing *h)
{
    uint64_t since = FF_MAX(atomic_load(&h->began_ns), atomic_load(&h->heard_ns));

    return ff_now_ns() - since > AFTER_MS * MS;
}

static void *hearing_main(void *hearing)
{
    struct ff_hearing *h = hearing;
    uint32_t len[FF_DATAGRAMS];
    int rc = 0;

    while (!rc && !atomic_load(&h->stop) && !atomic_load(&h->over) && !hears_nothing(h)) {
        int n = h->from->recv(h->from, h->datagram, FF_PACKET_MAX, len, LOOK_MS);
        rc = n < 0 ? n : take_datagrams(h, len, n);
        if (n < 0)
            atomic_store(&h->why, STOPPED);
    }
    atomic_store(&h->over, true);
    return NULL;
}

/* --- for the prefill thread --- */

/* Why it is prefill's turn; -1: it is not yet */
static int is_due(const struct ff_hearing *h)
{
    uint64_t now = ff_now_ns(), began = atomic_load(&h->began_ns), heard = atomic_load(&h->heard_ns);

    if (atomic_load(&h->over))
        return (int)atomic_load(&h->why);
    if (!heard)
        return now - began > FIRST_MS * MS ? NOT_HEARD : -1;
    if (now > heard && now - heard > IDLE_MS * MS)
        return STOPPED;
    uint64_t page = FF_MAX(atomic_load(&h->page_ns), began);
    return now > page && now - page > QUIET_MS * MS ? QUIET : -1;
}

void ff_hearing_await(struct ff_pager *p)
{
    struct ff_hearing *h = p->hearing;
    int why = h ? -1 : ALL_WELL;

    while (why < 0 && !atomic_load(&p->stop) && !ff_pager_check(p, FF_PAGER_BROKEN, NULL) &&
           !ff_pager_was_complete(p)) {
        nanosleep(&(struct timespec){.tv_nsec = 2 * MS}, NULL);
        why = is_due(h);
    }
    if (!h || why < 0)
        return;
    if (why != ALL_WELL)
        atomic_store(&h->why, (unsigned)why);
    ff_log(why == ALL_WELL ? FF_LOG_INFO : FF_LOG_WARN,
           "prefill: by the group %llu KiB came, %llu packets of it did not%s%s",
           (unsigned long long)atomic_load(&p->count.bytes_group) >> 10,
           (unsigned long long)atomic_load(&h->n_lost), why == ALL_WELL ? "" : ": ",
           ff_hearing_why_not(h));
}

/* --- beginning and end --- */

static int new_slots(struct ff_hearing *h, struct ff_error *err)
{
    for (unsigned i = 0; i < h->p->n_regions; i++)
        h->slot_bytes = FF_MAX(h->slot_bytes, h->p->region[i].range.psize);
    h->n_slots = FF_MAX(FF_MIN(SLOTS_BYTES / h->slot_bytes, SLOTS_MAX), 2u);
    h->slot = calloc(h->n_slots, sizeof(*h->slot));
    void *m = mmap(NULL, (size_t)h->n_slots * h->slot_bytes, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    h->memory = m == MAP_FAILED ? NULL : m;
    if (!h->slot || !h->memory)
        return ff_error_set(err, ENOMEM, "multicast: out of memory");
    madvise(m, (size_t)h->n_slots * h->slot_bytes, MADV_DONTFORK); /* not a child's */
    return 0;
}

int ff_hearing_start(struct ff_pager *p, const struct ff_announce *a, const struct ff_key *key,
                     struct ff_error *err)
{
    const struct ff_link_ops *ops = p->link->ops;
    struct ff_hearing *h = calloc(1, sizeof(*h));

    if (!h)
        return ff_error_set(err, ENOMEM, "multicast: out of memory");
    h->p = p;
    for (unsigned i = 0; i < p->n_regions; i++)
        if (!p->region[i].lent)
            h->region[p->region[i].peer_number] = &p->region[i];
    int rc = new_slots(h, err);
    if (!rc)
        rc = ff_packets_new(key, a->salt, &h->packets, err);
    if (!rc)
        rc = ops->join ? ops->join(p->link, &a->at, false, &h->from, err)
                       : ff_error_set(err, EAFNOSUPPORT, "multicast: no network is under the link");
    if (!rc) {
        h->began_ns = ff_now_ns();
        rc = ff_thread_start(&h->thread, hearing_main, h, "farfork-group", err);
        h->thread_up = !rc;
    }
    if (rc)
        ff_hearing_free(h);
    else
        atomic_store(&p->hearing, h);
    return rc;
}

static void leave(struct ff_hearing *h)
{
    if (h->from)
        h->from->free(h->from);
    h->from = NULL;
}

void ff_hearing_stop(struct ff_hearing *h)
{
    if (!h || !h->thread_up)
        return;
    atomic_store(&h->stop, true);
    pthread_join(h->thread, NULL);
    h->thread_up = false;
    leave(h);
}

void ff_hearing_free(struct ff_hearing *h)
{
    if (!h)
        return;
    ff_hearing_stop(h);
    leave(h);
    ff_packets_free(h->packets);
    if (h->memory)
        munmap(h->memory, (size_t)h->n_slots * h->slot_bytes);
    free(h->slot);
    free(h);
}
