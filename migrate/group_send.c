/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * group_send.c - source: one image to many agents at once; see group.h
 */
/**
 * DOC: Theory of Operation
 *
 * States       members wait for RUNNING -> RUNS -> GONE. The first that runs starts the thread.
 * Picture      HERE each BEACON_MS, until all members run, or START_MS after the first;
 *              memory in pieces of PIECE: what is zeros, what cannot be read, what is to be sent;
 *              packets in bursts of at most BURST_MS, each when the rate permits it
 * Limits       TURN_MS: agents report each 200 ms. DEAF_MS: when none has got a packet by then, the network
 *              lets none pass. USELESS turns.
 */
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>
#include <unistd.h>

#include "address.h"
#include "bitmap.h"
#include "cleanup.h"
#include "datagram.h"
#include "failpoint.h"
#include "foreign.h"
#include "group.h"
#include "key.h"
#include "log.h"
#include "mr.h"
#include "packet.h"
#include "pagemap.h"
#include "segments.h"
#include "thread.h"

#define BEACON_MS 50
#define START_MS 3000
#define TURN_MS 200
#define DEAF_MS 1200
#define USELESS 10
#define BURST_MS 2
#define BEHIND_MS 20 /* so much may be sent at once after a pause */
#define PIECE (256u << 10) /* between two looks at what is wanted first */
#define HOLE (2u << 20)    /* of memory that nobody touched, at once */
#define END_TIMES 6 /* each BEACON_MS: what filled an agent's buffer has been taken by then */

enum member_state { WAITS, RUNS, LEFT };

struct member {
    enum member_state state;
    bool is_offered;
    struct ff_group_got got, before; /* in all; at the last turn */
};

struct ff_group {
    struct ff_address addr;
    struct ff_announce announce;
    struct ff_regions regions;
    struct ff_packets *packets;
    const struct ff_link_ops *kind; /* of the first source's link: others cannot hear it. NULL: not open */
    struct ff_datagrams *to;
    uint32_t part_bytes; /* of a page, in one packet */

    pthread_mutex_t lock;
    struct member *member;
    unsigned n, max;
    bool thread_up;
    pthread_t thread;
    struct ff_page_ref *first; /* what is wanted first, in this order; set once, under lock */
    unsigned n_first;
    _Atomic bool stop;

    /* the thread's */
    uint64_t *sent[FF_WIRE_REGIONS_MAX]; /* pages that came first. NULL: none has */
    unsigned first_at;
    struct ff_group_rate rate;
    uint8_t *fetched; /* of another process; a piece. NULL: nothing has been */
    uint8_t burst[FF_DATAGRAMS * FF_PACKET_MAX];
    uint32_t burst_len; /* of each packet in it */
    unsigned n_burst;
    bool was_full;
    uint64_t due_ns, turn_ns, began_ns, bytes;
    struct ff_error why;
    struct ff_group_got *turn;
};

int ff_group_new(const struct ff_address *a, unsigned sources, struct ff_group **out,
                 struct ff_error *err)
{
    if (!a->group.port)
        return ff_error_set(err, ENOENT, "group: the address has no multicast=");
    struct ff_group *g = calloc(1, sizeof(*g));
    if (!g)
        return ff_error_set(err, ENOMEM, "group: out of memory");
    g->addr = ff_address_copy(a);
    g->rate.bytes_s = FF_GROUP_RATE_FIRST;
    g->max = sources;
    g->member = calloc(sources + 1, sizeof(*g->member));
    g->turn = calloc(sources + 1, sizeof(*g->turn));
    pthread_mutex_init(&g->lock, NULL);
    if (!g->member || !g->turn) {
        ff_group_free(g);
        return ff_error_set(err, ENOMEM, "group: out of memory");
    }
    *out = g;
    return 0;
}

static void close_group(struct ff_group *g)
{
    if (g->to)
        g->to->free(g->to);
    g->to = NULL;
}

void ff_group_free(struct ff_group *g)
{
    if (!g)
        return;
    atomic_store(&g->stop, true);
    if (g->thread_up)
        pthread_join(g->thread, NULL);
    ff_packets_free(g->packets);
    ff_regions_free(&g->regions);
    close_group(g);
    ff_address_drop(&g->addr);
    pthread_mutex_destroy(&g->lock);
    for (unsigned i = 0; i < FF_WIRE_REGIONS_MAX; i++)
        free(g->sent[i]);
    free(g->fetched);
    free(g->first);
    free(g->member);
    free(g->turn);
    free(g);
}

/* --- members: the sources' threads --- */

unsigned ff_group_member(struct ff_group *g)
{
    pthread_mutex_lock(&g->lock);
    unsigned i = g->n < g->max ? g->n++ : g->max; /* one too many counts as nobody */
    pthread_mutex_unlock(&g->lock);
    return i;
}

static int open_group(struct ff_group *g, struct ff_link *l, const struct ff_regions *regions,
                      struct ff_error *err)
{
    int rc = l->ops->join ? l->ops->join(l, &g->addr.group, true, &g->to, err)
                          : ff_error_set(err, EAFNOSUPPORT, "group: no network is under the link");
    if (rc)
        return rc;
    if (g->to->max_bytes < 2 * FF_PACKET_OVER)
        return ff_error_set(err, EMSGSIZE, "group: datagrams of %u bytes are too small",
                            g->to->max_bytes);
    g->part_bytes = FF_MIN(g->to->max_bytes, FF_PACKET_MAX) - FF_PACKET_OVER;
    if (getrandom(g->announce.salt, sizeof(g->announce.salt), 0) != sizeof(g->announce.salt))
        return ff_error_set(err, EIO, "group: no random numbers");
    for (unsigned i = 0; i < regions->n && !rc; i++)
        rc = regions->of[i] ? ff_regions_add_of(&g->regions, &regions->r[i], regions->of[i]->pid, err)
                            : ff_regions_add(&g->regions, &regions->r[i], err);
    if (!rc)
        rc = ff_packets_new(g->addr.key, g->announce.salt, &g->packets, err);
    g->announce.at = g->addr.group;
    return rc;
}

void ff_group_offer(struct ff_group *g, unsigned member, struct ff_link *l,
                    const struct ff_regions *regions, bool verify, struct ff_announce *out)
{
    struct ff_error why;

    if (verify || !l->sealed || !g->addr.key || ff_key_certs(g->addr.key))
        return;
    pthread_mutex_lock(&g->lock);
    int rc = g->kind ? 0 : open_group(g, l, regions, &why);
    if (rc) {
        ff_log(FF_LOG_WARN, "group: the image goes by links alone: %s", why.text);
        g->announce = (struct ff_announce){.why_not = (uint32_t)-rc};
        close_group(g);
    }
    g->kind = g->kind ? g->kind : l->ops;
    *out = g->kind == l->ops ? g->announce : (struct ff_announce){.why_not = EPROTONOSUPPORT};
    g->member[member].is_offered = out->at.port;
    pthread_mutex_unlock(&g->lock);
}

static void *group_main(void *group);

void ff_group_runs(struct ff_group *g, unsigned member)
{
    struct ff_error why;

    pthread_mutex_lock(&g->lock);
    struct member *m = &g->member[member];
    if (m->is_offered && m->state == WAITS) {
        m->state = RUNS;
        if (!g->thread_up)
            g->thread_up = !ff_thread_start(&g->thread, group_main, g, "farfork-group", &why);
    }
    pthread_mutex_unlock(&g->lock);
}

void ff_group_heard(struct ff_group *g, unsigned member, const struct ff_stats *st)
{
    pthread_mutex_lock(&g->lock);
    g->member[member].got =
        (struct ff_group_got){.packets = st->group_packets, .lost = st->group_lost};
    pthread_mutex_unlock(&g->lock);
}

void ff_group_first(struct ff_group *g, unsigned member, const struct ff_page_ref *pages, unsigned n)
{
    struct ff_page_ref *copy = calloc(n + 1, sizeof(*copy)); /* no memory: they come in their turn */

    if (copy)
        memcpy(copy, pages, n * sizeof(*copy));
    pthread_mutex_lock(&g->lock);
    if (copy && !g->first && g->member[member].is_offered) {
        g->first = copy;
        g->n_first = n;
        copy = NULL;
    }
    pthread_mutex_unlock(&g->lock);
    free(copy);
}

void ff_group_left(struct ff_group *g, unsigned member)
{
    pthread_mutex_lock(&g->lock);
    g->member[member].state = LEFT;
    pthread_mutex_unlock(&g->lock);
}

/* --- the thread --- */

/* Of @state; those that are not there yet wait */
static unsigned members_in(struct ff_group *g, enum member_state state)
{
    pthread_mutex_lock(&g->lock);
    unsigned n = state == WAITS ? g->max - g->n : 0;
    for (unsigned i = 0; i < g->n; i++)
        n += g->member[i].state == state;
    pthread_mutex_unlock(&g->lock);
    return n;
}

/* None of those that hear has got anything by now */
static bool is_deaf(struct ff_group *g)
{
    bool any = false;

    if (ff_now_ns() - g->began_ns < DEAF_MS * 1000000ull)
        return false;
    pthread_mutex_lock(&g->lock);
    for (unsigned i = 0; i < g->n; i++)
        any |= g->member[i].got.packets;
    pthread_mutex_unlock(&g->lock);
    return !any;
}

static void take_turn(struct ff_group *g)
{
    unsigned n = 0;

    g->turn_ns = ff_now_ns();
    pthread_mutex_lock(&g->lock);
    for (unsigned i = 0; i < g->n; i++) {
        struct member *m = &g->member[i];
        struct ff_group_got got = {.packets = m->got.packets - m->before.packets,
                                   /* what was late has come */
                                   .lost = m->got.lost - FF_MIN(m->before.lost, m->got.lost)};
        if (m->state != RUNS || !got.packets)
            continue;
        m->before = m->got;
        g->turn[n++] = got;
    }
    pthread_mutex_unlock(&g->lock);
    ff_group_rate_turn(&g->rate, g->turn, n, g->was_full);
    g->was_full = false;
}

static void sleep_until(struct ff_group *g, uint64_t end_ns)
{
    while (!atomic_load(&g->stop) && ff_now_ns() < end_ns) {
        uint64_t left = FF_MIN(end_ns - FF_MIN(end_ns, ff_now_ns()), 10000000u);
        nanosleep(&(struct timespec){.tv_nsec = (long)left}, NULL);
    }
}

/* 0, or why it ends */
static int flush(struct ff_group *g)
{
    uint64_t now = ff_now_ns(), len = (uint64_t)g->n_burst * g->burst_len;

    if (!g->n_burst)
        return 0;
    g->was_full |= g->due_ns > now;
    if (g->due_ns > now)
        sleep_until(g, g->due_ns);
    else
        g->due_ns = FF_MAX(g->due_ns, now - BEHIND_MS * 1000000ull);
    g->due_ns += len * 1000000000u / g->rate.bytes_s;
    int rc = ff_failpoint("source.group.send");
    rc = rc ? ff_error_set(&g->why, -rc, "injected")
            : g->to->send(g->to, g->burst, g->burst_len, g->n_burst, &g->why);
    g->bytes += len;
    g->n_burst = 0;
    if (!rc && ff_now_ns() - g->turn_ns >= TURN_MS * 1000000ull)
        take_turn(g);
    if (!rc && atomic_load(&g->stop))
        rc = ff_error_set(&g->why, ECANCELED, "it was told to end");
    return rc;
}

static int send_packet(struct ff_group *g, const struct ff_packet *p)
{
    uint32_t len = FF_PACKET_OVER + p->len;
    uint64_t most = g->rate.bytes_s * BURST_MS / 1000 / len;
    int rc = 0;

    if (g->n_burst == FF_DATAGRAMS || len != g->burst_len || g->n_burst >= most)
        rc = flush(g);
    g->burst_len = len;
    if (!rc && ff_packet_close(g->packets, p, g->burst + (size_t)g->n_burst * len))
        rc = ff_error_set(&g->why, EIO, "GnuTLS refuses to seal");
    g->n_burst += !rc;
    return rc;
}

static int send_alone(struct ff_group *g, enum ff_packet_kind kind, uint32_t part)
{
    const struct ff_packet p = {.kind = kind, .part = part};
    int rc = send_packet(g, &p);

    return rc ? rc : flush(g);
}

/* Parts of one length; the last one is filled up. @from: its bytes */
static int send_page(struct ff_group *g, unsigned region, uint64_t page, const uint8_t *from)
{
    const struct ff_region *r = &g->regions.r[region];
    uint32_t n = (r->psize + g->part_bytes - 1) / g->part_bytes, each = (r->psize + n - 1) / n;
    uint8_t data[FF_PACKET_MAX];
    int rc = 0;

    for (uint32_t i = 0; i < n && !rc; i++) {
        uint32_t len = FF_MIN(each, r->psize - i * each);
        memcpy(data, from + (size_t)i * each, len);
        memset(data + len, 0, each - len);
        rc = send_packet(g, &(struct ff_packet){.kind = FF_PACKET_PAGE, .region = (uint16_t)region,
                                                .part = i, .page = page, .data = data, .len = each});
    }
    return rc;
}

static int send_zeros(struct ff_group *g, unsigned region, uint64_t page, uint64_t n)
{
    return send_packet(g, &(struct ff_packet){.kind = FF_PACKET_ZEROS, .region = (uint16_t)region,
                                              .part = (uint32_t)n, .page = page});
}

/* Of another process: *@at is where it is here */
static int fetch_piece(struct ff_group *g, const struct ff_backing *file, const uint8_t **at, uint32_t len, uint8_t *zero,
                       uint8_t *poison)
{
    if (len > PIECE) /* a huge page of a process's own: none is forked with such memory */
        return ff_error_set(&g->why, ENOTSUP, "pages of %u bytes of another process", len);
    if (!g->fetched && !(g->fetched = malloc(PIECE)))
        return ff_error_set(&g->why, ENOMEM, "no room for a piece of another process's memory");
    int rc = ff_fetch(file, *at, len, file->psize, zero, poison, g->fetched, &g->why);
    *at = g->fetched;
    return rc < 0 ? rc : 0;
}

/* [@page, @page + @n) of a region, at most PIECE bytes or one page */
static int send_piece(struct ff_group *g, int pagemap, unsigned region, uint64_t page, uint64_t n)
{
    const struct ff_region *r = &g->regions.r[region];
    uint64_t at = page * r->psize;
    struct ff_backing file = ff_region_backing(&g->regions, region, at);
    const uint8_t *from = (uint8_t *)r->host + at;
    uint8_t zero[PIECE / 4096 / 8] = {0}, poison[PIECE / 4096 / 8] = {0};
    int rc = 0;

    if (file.of)
        rc = fetch_piece(g, &file, &from, (uint32_t)(n * r->psize), zero, poison);
    else if (!ff_pagemap_populated(pagemap, r, at, n * r->psize))
        return send_zeros(g, region, page, n);
    else
        ff_zero_scan_file(&file, from, (uint32_t)(n * r->psize), r->psize, zero, poison);
    for (uint64_t i = 0, run; i < n && !rc; i += run) {
        bool is_zero = zero[i / 8] & 1u << i % 8, is_poison = poison[i / 8] & 1u << i % 8;
        for (run = 1; is_zero && !is_poison && i + run < n; run++)
            if (!(zero[(i + run) / 8] & ~poison[(i + run) / 8] & 1u << (i + run) % 8))
                break;
        if (!is_poison)
            rc = is_zero ? send_zeros(g, region, page + i, run) : send_page(g, region, page + i, from + i * r->psize);
    }
    return rc;
}

/* The next pages that an agent wants first, at most PIECE bytes or one page; from @page of @region on all is
 * still to be sent. @all: there are no more */
static int send_wanted(struct ff_group *g, int pagemap, unsigned region, uint64_t page, bool *all)
{
    uint64_t bytes = 0;
    int rc = 0;

    pthread_mutex_lock(&g->lock);
    const struct ff_page_ref *first = g->first;
    unsigned n = g->n_first;
    pthread_mutex_unlock(&g->lock);
    for (; g->first_at < n && bytes < PIECE && !rc; g->first_at++) {
        unsigned i = first[g->first_at].region;
        if (i >= g->regions.n || first[g->first_at].offset >= g->regions.r[i].len_bytes)
            continue; /* the sources' tables are one; nothing rests on it */
        const struct ff_region *r = &g->regions.r[i];
        uint64_t at = first[g->first_at].offset / r->psize;
        if (i < region || (i == region && at < page))
            continue;
        if (!g->sent[i] && !(g->sent[i] = ff_bitmap_new(r->len_bytes / r->psize)))
            continue; /* no memory: it comes in its turn */
        if (ff_bitmap_get(g->sent[i], at))
            continue;
        ff_bitmap_set(g->sent[i], at);
        bytes += r->psize;
        rc = send_piece(g, pagemap, i, at, 1);
    }
    *all = g->first_at == n;
    return rc;
}

/* What of [@page, @page + @n) has not come first */
static int send_rest(struct ff_group *g, int pagemap, unsigned region, uint64_t page, uint64_t n)
{
    const uint64_t *sent = g->sent[region], end = page + n;
    int rc = 0;

    for (uint64_t run; page < end && !rc; page += run ? run : 1) {
        for (run = 0; page + run < end && !(sent && ff_bitmap_get(sent, page + run));)
            run++;
        if (run)
            rc = send_piece(g, pagemap, region, page, run);
    }
    return rc;
}

/* The next pages of region @i, from *@page on */
static int send_onward(struct ff_group *g, int pagemap, unsigned i, uint64_t *page)
{
    const struct ff_region *r = &g->regions.r[i];
    uint64_t from = *page, left = r->len_bytes / r->psize - from;
    uint64_t n = FF_MIN(FF_MAX(PIECE / r->psize, 1u), left), hole = FF_MIN(HOLE / r->psize, left);

    if (hole > n && !g->regions.of[i] && !ff_pagemap_populated(pagemap, r, from * r->psize, hole * r->psize)) {
        *page += hole;
        return send_zeros(g, i, from, hole); /* some were said before, perhaps */
    }
    *page += n;
    return send_rest(g, pagemap, i, from, n);
}

static int send_memory(struct ff_group *g)
{
    FF_AUTO_CLOSE int pagemap = ff_pagemap_open();
    int rc = 0;

    for (unsigned i = 0; i < g->regions.n && !rc; i++) {
        uint64_t pages = g->regions.r[i].len_bytes / g->regions.r[i].psize;
        for (uint64_t page = 0; page < pages && !rc;) {
            bool all;
            rc = send_wanted(g, pagemap, i, page, &all);
            if (!rc && all)
                rc = send_onward(g, pagemap, i, &page);
            if (!rc && !members_in(g, RUNS))
                rc = ff_error_set(&g->why, ECANCELED, "all agents have what they need, or have gone");
            if (!rc && is_deaf(g))
                rc = ff_error_set(&g->why, ETIMEDOUT, "no agent gets anything");
            if (!rc && g->rate.useless > USELESS)
                rc = ff_error_set(&g->why, EREMOTEIO, "most of it is lost on its way");
        }
    }
    return rc ? rc : flush(g);
}

static int await_members(struct ff_group *g)
{
    uint64_t end = ff_now_ns() + START_MS * 1000000ull;
    int rc = send_alone(g, FF_PACKET_HERE, 0);

    while (!rc && members_in(g, WAITS) && ff_now_ns() < end) {
        sleep_until(g, ff_now_ns() + BEACON_MS * 1000000ull);
        rc = send_alone(g, FF_PACKET_HERE, 0);
    }
    return rc;
}

static void *group_main(void *group)
{
    struct ff_group *g = group;

    g->began_ns = g->turn_ns = g->due_ns = ff_now_ns();
    int rc = await_members(g);
    g->began_ns = FF_MAX(g->began_ns, ff_now_ns() - DEAF_MS * 1000000ull / 2);
    if (!rc)
        rc = send_memory(g);
    g->n_burst = 0;
    for (unsigned i = 0; i < END_TIMES && !atomic_load(&g->stop); i++) {
        send_alone(g, FF_PACKET_END, rc == -EREMOTEIO ? FF_GROUP_LOST : FF_GROUP_ALL_SENT);
        sleep_until(g, ff_now_ns() + BEACON_MS * 1000000ull);
    }
    ff_log(rc && rc != -ECANCELED ? FF_LOG_WARN : FF_LOG_INFO,
           "group: %llu KiB sent to it, in %llu ms, at last %llu Mbit/s%s%s",
           (unsigned long long)g->bytes >> 10,
           (unsigned long long)(ff_now_ns() - g->began_ns) / 1000000,
           (unsigned long long)g->rate.bytes_s / 125000, rc ? ": " : "", rc ? g->why.text : "");
    return NULL;
}
