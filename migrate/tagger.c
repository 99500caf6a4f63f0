/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * tagger.c - source: say what bytes are to be; see tags.h
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "error.h"
#include "mr.h"
#include "tagger.h"
#include "wirebuf.h"

int ff_tagger_attach(struct ff_tagger *t, struct ff_link *link, const struct ff_regions *regions,
                     struct ff_error *err)
{
    ff_tagger_detach(t);
    int rc = ff_tag_memory_new(&t->m, link, true, err);
    if (rc)
        return rc;
    t->link = link;
    t->regions = regions;
    for (int q = 0; q < FF_QUEUES && ff_regions_elsewhere(regions); q++) {
        t->lane[q].room = malloc(link->max_len_bytes);
        if (!t->lane[q].room)
            return ff_error_set(err, ENOMEM, "source: verify: out of memory");
    }
    return 0;
}

void ff_tagger_detach(struct ff_tagger *t)
{
    ff_tag_memory_free(&t->m);
    for (int q = 0; q < FF_QUEUES; q++)
        free(t->lane[q].room);
    memset(t, 0, sizeof(*t));
}

/* Whole pages of a region, as many as one READ may bring. What they are is told to nobody: only who
 * has the key can compare */
static bool may_ask(const struct ff_tagger *t, const struct ff_ask *a)
{
    const struct ff_region *r = a->region < t->regions->n ? &t->regions->r[a->region] : NULL;

    return r && a->len_bytes && a->len_bytes <= t->link->max_len_bytes &&
           a->len_bytes % r->psize == 0 && a->offset % r->psize == 0 &&
           a->len_bytes / r->psize <= FF_GRANULES_MAX && a->offset < r->len_bytes &&
           a->len_bytes <= r->len_bytes - a->offset;
}

/* The tag of what slot @i asks for, into its place */
static int make_tag(struct ff_tagger *t, enum ff_queue q, uint32_t i, struct ff_ask *a,
                    struct ff_error *err)
{
    uint8_t ask[FF_ASK_LEN], head[FF_TAG_HEAD], *tag = t->m.tags + ff_tag_at(q, i);
    uint8_t zero[FF_GRANULES_MAX / 8] = {0}, poison[FF_GRANULES_MAX / 8] = {0};
    struct ff_tagger_lane *l = &t->lane[q];
    struct ff_wirebuf b = {.data = tag, .len = FF_TAG_LEN};
    unsigned of = atomic_load(&t->of); /* before the bytes are looked at */

    memcpy(ask, t->m.asks + ff_ask_at(q, i), sizeof(ask)); /* once: the peer may write there */
    *a = ff_ask_decode(ask);
    if (of == FF_TAGS_OF_NONE)
        return ff_error_set(err, EPROTO, "source: verify: asked before there is anything to read");
    if (!may_ask(t, a))
        return ff_error_set(err, EPROTO,
                            "source: verify: asked for 0x%x bytes at 0x%llx of region %u: want "
                            "whole pages inside a region",
                            a->len_bytes, (unsigned long long)a->offset, a->region);
    const struct ff_region *r = &t->regions->r[a->region];
    struct ff_tagged d = {.data = (uint8_t *)r->host + a->offset,
                          .len_bytes = a->len_bytes,
                          .granule_bytes = r->psize,
                          .zero = zero,
                          .poison = poison};
    struct ff_backing file = ff_region_backing(t->regions, a->region, a->offset);
    if (file.of) {
        int rc = ff_fetch(&file, d.data, d.len_bytes, d.granule_bytes, zero, poison, l->room, err);
        if (rc < 0)
            return rc;
        d.data = l->room;
    } else {
        ff_zero_scan_file(&file, d.data, d.len_bytes, d.granule_bytes, zero, poison);
    }
    ff_wb_put(&b, ++l->n_tags, 8);
    ff_tag_head(head, ask, of);
    if (ff_page_tag(t->m.key[q], l->n_tags, head, sizeof(head), &d, tag + 8))
        return ff_error_set(err, EIO, "source: verify: no tag: GnuTLS refused");
    return 0;
}

/* 0; -EAGAIN: something must complete before */
static int answer_slot(struct ff_tagger *t, enum ff_queue q, uint32_t i, struct ff_error *err)
{
    struct ff_ask a;

    if (t->lane[q].sent[i])
        return -EAGAIN;
    int rc = make_tag(t, q, i, &a, err);
    if (rc)
        return rc;
    struct ff_wr wr = {.id = FF_TAGGER_ID + i,
                       .op = FF_OP_WRITE,
                       .local = t->m.tags + ff_tag_at(q, i),
                       .lkey = t->m.tags_mr.lkey,
                       .remote = a.addr,
                       .rkey = a.rkey,
                       .len_bytes = FF_TAG_LEN,
                       .imm = i};
    rc = t->link->ops->post(t->link, q, &wr, err);
    t->lane[q].sent[i] = !rc;
    return rc;
}

static int answer_all(struct ff_tagger *t, enum ff_queue q, struct ff_error *err)
{
    struct ff_tagger_lane *l = &t->lane[q];

    while (l->n) {
        uint8_t i = l->asked[l->first];
        int rc = answer_slot(t, q, i, err);
        if (rc)
            return rc == -EAGAIN ? 0 : rc;
        l->waits[i] = false;
        l->first = (l->first + 1) % FF_ASKS;
        l->n--;
    }
    return 0;
}

int ff_tagger_take(struct ff_tagger *t, enum ff_queue q, const struct ff_wc *wc,
                   struct ff_error *err)
{
    struct ff_tagger_lane *l = &t->lane[q];
    bool ask = wc->op == FF_WC_RECV_IMM;
    uint64_t i = ask ? wc->imm : wc->id - FF_TAGGER_ID;

    if (i >= FF_ASKS || (ask && (l->waits[i] || wc->len_bytes != FF_ASK_LEN)))
        return ff_error_set(err, EPROTO, "source: verify: asked by slot %llu, which it may not",
                            (unsigned long long)i);
    if (ask) {
        l->asked[(l->first + l->n++) % FF_ASKS] = (uint8_t)i;
        l->waits[i] = true;
    } else {
        l->sent[i] = false;
    }
    return answer_all(t, q, err);
}
