/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * segments.h - register regions in segments: in parallel, and only what holds something
 */
/**
 * DOC: Theory of Operation
 *
 * Purpose      a registration that pins also populates: every page of it takes memory from
 *              then on, also those that no guest ever touched. So a region is cut into
 *              segments, and a segment without a single populated page is left alone. Several
 *              threads register segments, within the device's largest registration, while
 *              the guest still runs. A page counts as populated by pagemap, by the file's data,
 *              and, for a hugetlb file, whose holes the kernel does not tell, unless our page
 *              tables have all of it. A segment without a key costs no transfer on any link.
 *
 * Picture      region  |##  ## |       |  #    |       |   #: populated pages
 *              segments  |key    | none  |key    | none  |   none: reads as zeros
 *              The source asks again while its guest runs, in rounds (source_publish.c), and once
 *              more when it is paused: what the guest has touched since the last round is
 *              registered then. Keys of later ones travel with the state. Populating costs downtime
 *              only there: so such a segment is cut into parts, and the parts without a populated page
 *              stay unregistered. The peer is told that they are zeros.
 *              The memlock limit is compared with all of memory before the pause: what is
 *              touched later must not find it too small. On-demand paging spares the pinning,
 *              where the device has it and the caller asks for it, or the limit leaves no other
 *              way.
 *
 * Unreadable   a page whose memory has failed cannot be registered, and EFAULT is all that is said
 *              of it. Only then the segment's pages are looked at, and it is split: the parts
 *              between such pages are registered, each by itself, and stay parts. What is paged
 *              on demand says nothing: it is looked at when a link has broken.
 * Limits       SEGMENTS_MAX segments aimed at, or SEGMENTS_MAX_PINNED, plus one a region; SEGMENT_BYTES_MIN at least.
 */
#ifndef FF_MIGRATE_SEGMENTS_H
#define FF_MIGRATE_SEGMENTS_H

#include "address.h"
#include "regions.h"

struct ff_segment {
    uint32_t region, number; /* segment @number of its region, or a part of it */
    uint32_t psize;
    uint8_t *addr;
    uint64_t len_bytes;
    bool wanted;
    bool failed;     /* it cannot be registered: it is to be split */
    bool is_part;    /* there are pages in its segment that cannot be read, or are not to be registered */
    bool unreadable; /* these cannot */
    bool zeros;      /* these are not to be: none of them is populated, as the image is frozen */
    bool told;       /* the peer knows its key */
    bool lent; /* the peer has the file: never registered */
    struct ff_mr mr; /* len_bytes 0: not registered */
};

struct ff_segments {
    struct ff_segment *segment; /* in the order of regions and addresses */
    unsigned n;
    uint64_t segment_bytes;
    bool grows;     /* more may be wanted later, when it is too late to find out that the
                     * memlock limit does not permit it: ask for all of it at once */
    bool on_demand; /* registered without pinning */
};

/* A good size of a segment for these regions: a power of two; 0: @l cannot register as much */
uint64_t ff_segments_size(const struct ff_regions *t, const struct ff_link *l);
uint64_t ff_segments_of(uint64_t len_bytes, uint64_t segment_bytes);

/* Pieces of every region, none wanted */
int ff_segments_init(struct ff_segments *p, const struct ff_regions *t, uint64_t segment_bytes,
                   struct ff_error *err);
void ff_segments_free(struct ff_segments *p); /* registrations go with the link, or before */

/* Never want those of regions with a file: to register private memory copies it */
void ff_segments_lent(struct ff_segments *p, const struct ff_regions *t);

/* Whether @r holds a populated page from byte @at on; what cannot be found out counts as one.
 * @pagemap: of ff_pagemap_open(), or -1 */
bool ff_pagemap_populated(int pagemap, const struct ff_region *r, uint64_t at, uint64_t len_bytes);

/* Want the segments that hold a populated page: how many became wanted */
unsigned ff_segments_want_populated(struct ff_segments *p, const struct ff_regions *t);

/* The image is frozen: cut what is wanted and is not registered into parts, of which those are wanted that hold a
 * populated page, and the others are zeros. Where there would be too many, or what is populated is not known by the
 * page, a segment stays whole. -ENOMEM: nothing has changed */
int ff_segments_cut(struct ff_segments *p, const struct ff_regions *t, struct ff_error *err);

/**
 * ff_segments_register() - register what is wanted and is not yet
 * @access: of enum ff_access
 *
 * Return: 0; -ENOMEM: the memlock limit, with the number needed; -ENOTSUP: odp=on, but the
 *         device has none; whatever the link says. Pieces registered by then stay so.
 *         What a peer is to read may be split: @p->segment moves.
 */
int ff_segments_register(struct ff_segments *p, struct ff_link *l, unsigned access,
                       enum ff_odp_choice odp, struct ff_error *err);
void ff_segments_dereg(struct ff_segments *p, struct ff_link *l);

#endif
