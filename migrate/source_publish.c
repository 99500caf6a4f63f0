/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * source_publish.c - register an image at the source and tell the destination the keys; see segments.h
 */
/**
 * DOC: Theory of Operation
 *
 * Picture      PUBLISH           register populated pages, send KEYS; the guest runs
 *              until WATCHING    } register what was touched since, in rounds; the guest runs. Their
 *              each PASSED       } keys travel with STATE
 *              STATE             register what was touched since the last round, in parts; the guest is paused
 * Limits       TOUCHED_ROUNDS: each registers what the guest has touched during the one before. If
 *              the guest touches memory faster, STATE registers the rest while it is paused.
 */
#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "cleanup.h"
#include "error.h"
#include "failpoint.h"
#include "group.h"
#include "load.h"
#include "source_private.h"

#define TOUCHED_ROUNDS 16u

/* A segment of parts has a key, too: it is not one of zeros */
static uint32_t key_of_segment(const struct ff_segments *p, unsigned i)
{
    for (unsigned k = i; k < p->n && p->segment[k].region == p->segment[i].region &&
                         p->segment[k].number == p->segment[i].number; k++)
        if (p->segment[k].mr.rkey)
            return p->segment[k].mr.rkey;
    return UINT32_MAX;
}


int ff_source_register(struct ff_source *s, struct ff_wire_key **keys, unsigned *n,
                           struct ff_error *err)
{
    *n = 0;
    *keys = NULL;
    int rc = ff_segments_register(&s->segments, s->link, FF_ACCESS_REMOTE_READ, s->addr.odp, err);
    if (rc)
        return ff_error_pass(err, rc, "publish");
    FF_AUTO_FREE struct ff_wire_key *k = calloc(s->segments.n + 1, sizeof(*k));
    if (!k)
        return ff_error_set(err, ENOMEM, "publish: out of memory");
    for (unsigned i = 0; i < s->segments.n; i++) {
        struct ff_segment *p = &s->segments.segment[i];
        const uint8_t *host = s->regions.r[p->region].host;
        if ((!p->mr.len_bytes && !p->unreadable && !p->zeros) || p->told)
            continue;
        struct ff_backing file = ff_region_backing(&s->regions, p->region,
                                                   (uint64_t)(p->addr - host));
        if (p->mr.len_bytes && (file.fd >= 0 || file.of) && s->link->ops->backed)
            s->link->ops->backed(s->link, &p->mr, &file);
        if (*n && k[*n - 1].region == p->region && k[*n - 1].segment == p->number)
            continue; /* another part of it */
        k[(*n)++] = (struct ff_wire_key){.region = p->region,
                                         .segment = p->number,
                                         .rkey = key_of_segment(&s->segments, i)};
    }
    *keys = k;
    k = NULL;
    return 0;
}

int ff_source_touched(struct ff_source *s, struct ff_error *err)
{
    int rc = 0;

    if (!s->link->pins) /* to register costs nothing there */
        return 0;
    for (unsigned i = 0; i < TOUCHED_ROUNDS && !rc; i++) {
        if (!ff_segments_want_populated(&s->segments, &s->regions))
            break;
        rc = ff_segments_register(&s->segments, s->link, FF_ACCESS_REMOTE_READ, s->addr.odp, err);
    }
    return rc ? ff_error_pass(err, rc, "publish") : 0;
}

/* Of each segment that is registered in parts. From here on the peer knows of all keys */
static int send_parts(struct ff_source *s, struct ff_error *err)
{
    enum { PER_MESSAGE = 1024 };
    FF_AUTO_FREE struct ff_wire_part *parts = calloc(PER_MESSAGE, sizeof(*parts));
    unsigned n = 0;
    int rc = parts ? 0 : ff_error_set(err, ENOMEM, "publish: out of memory");

    for (unsigned i = 0; i < s->segments.n && !rc; i++) {
        struct ff_segment *p = &s->segments.segment[i];
        bool known = p->mr.len_bytes || p->unreadable || p->zeros;
        if (p->is_part && !p->told && known)
            parts[n++] = (struct ff_wire_part){
                .region = p->region,
                .rkey = p->zeros ? FF_WIRE_PART_ZEROS : p->mr.rkey,
                .offset = (uint64_t)(p->addr - (uint8_t *)s->regions.r[p->region].host),
                .len_bytes = p->len_bytes};
        p->told |= known;
        if (n && (n == PER_MESSAGE || i + 1 == s->segments.n)) {
            rc = ff_source_send_msg(s, ff_wire_put_parts(s->ctl.buf, parts, n), err);
            n = 0;
        }
    }
    return rc;
}

int ff_source_send_keys(struct ff_source *s, const struct ff_wire_key *keys, unsigned n,
                     struct ff_error *err)
{
    int rc = n ? send_parts(s, err) : 0;

    return n && !rc ? ff_source_send_msg(s, ff_wire_put_keys(s->ctl.buf, keys, n), err) : rc;
}

int ff_source_offer(struct ff_source *s, struct ff_error *err)
{
    FF_AUTO_FREE struct ff_wire_key *keys = NULL;
    FF_AUTO_FREE struct ff_publish *pub = calloc(1, sizeof(*pub));

    if (!pub)
        return ff_error_set(err, ENOMEM, "source: publish: out of memory");
    struct ff_tagger *tagger = &s->responder.tagger;
    int rc = ff_source_register(s, &keys, &pub->n_keys, err);
    if (!rc && s->addr.verify)
        rc = ff_tagger_attach(tagger, s->link, &s->regions, err);
    atomic_store(&tagger->of, s->stage == GONE ? FF_TAGS_OF_IMAGE : FF_TAGS_OF_NONE);
    if (!rc)
        rc = ff_responder_start(&s->responder, s->link, err);
    if (rc)
        return rc;
    pub->segment_bytes = s->segments.segment_bytes;
    pub->load_permille = ff_load_permille();
    pub->lease_ms = s->addr.fallback ? (uint32_t)s->addr.lease_ms : 0;
    pub->push_bytes = s->link->pushes && !s->addr.verify ? s->link->max_len_bytes : 0;
    pub->asks_addr = (uintptr_t)tagger->m.asks;
    pub->asks_rkey = tagger->m.asks_mr.rkey;
    if (s->group)
        ff_group_offer(s->group, s->member, s->link, &s->regions, s->addr.verify, &pub->group);
    for (unsigned i = 0; i < s->regions.n; i++)
        pub->addr[i] = (uintptr_t)s->regions.r[i].host;
    rc = ff_control_send(&s->ctl, ff_wire_put_publish(s->ctl.buf, pub, s->regions.n), err);
    return rc ? rc : ff_source_send_keys(s, keys, pub->n_keys, err);
}

int ff_source_publish(struct ff_source *s, struct ff_error *err)
{
    int rc = ff_failpoint("source.publish");

    if (rc)
        return ff_error_set(err, -rc, "source: publish: injected");
    uint64_t bytes = ff_segments_size(&s->regions, s->link);
    if (!bytes)
        return ff_error_set(err, ENOTSUP,
                            "source: publish: the device registers at most %llu bytes at "
                            "once (need %llu)",
                            (unsigned long long)s->link->max_mr_bytes, FF_WIRE_SEGMENT_MIN);
    rc = ff_segments_init(&s->segments, &s->regions, bytes, err);
    s->segments.grows = true;
    if (!rc && s->kept_fd >= 0)
        ff_segments_lent(&s->segments, &s->regions);
    if (!rc) {
        ff_segments_want_populated(&s->segments, &s->regions);
        rc = ff_source_offer(s, err);
    }
    if (!rc)
        s->stage = PUBLISHED;
    return rc;
}
