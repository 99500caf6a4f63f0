/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * segments.h - register regions in pieces: in parallel, and only what holds something
 */
/**
 * DOC: Theory of Operation
 *
 * Purpose      a registration that pins also populates: every page of it takes memory from
 *              then on, also those that no guest ever touched. So a region is cut into
 *              pieces, and a piece without a single populated page is left alone. Pieces
 *              are registered by several threads, within the device's largest
 *              registration, while the guest still runs.
 *
 * Picture      region  |##  ## |       |  #    |       |   #: populated pages
 *              pieces  |key    | none  |key    | none  |   none: reads as zeros
 *              The source asks once more when its guest is paused: what the guest has
 *              touched in between is registered then, and its keys travel with the state.
 *              Populating costs downtime only there, and at most for those pieces.
 *
 * Limits       PIECES_MAX pieces aimed at, plus one a region; PIECE_BYTES at least.
 */
#ifndef FF_MIGRATE_PIECES_H
#define FF_MIGRATE_PIECES_H

#include "address.h"
#include "regions.h"

struct ff_piece {
    uint32_t region, number; /* piece @number of its region */
    uint8_t *addr;
    uint64_t len_bytes;
    bool wanted;
    bool lent; /* the peer has the file: never registered */
    struct ff_mr mr; /* len_bytes 0: not registered */
};

struct ff_pieces {
    struct ff_piece *piece; /* region after region */
    unsigned n;
    uint64_t piece_bytes;
    bool grows;     /* more may be wanted later, when it is too late to find out that the
                     * memlock limit does not permit it: ask for all of it at once */
    bool on_demand; /* registered without pinning */
};

/* A good size of a piece for these regions: a power of two; 0: @l cannot register as much */
uint64_t ff_pieces_size(const struct ff_regions *t, const struct ff_link *l);
uint64_t ff_pieces_of(uint64_t len_bytes, uint64_t piece_bytes);

/* Pieces of every region, none wanted */
int ff_pieces_init(struct ff_pieces *p, const struct ff_regions *t, uint64_t piece_bytes,
                   struct ff_error *err);
void ff_pieces_free(struct ff_pieces *p); /* registrations go with the link, or before */

/* Never want those of regions with a file: to register private memory copies it */
void ff_pieces_lent(struct ff_pieces *p, const struct ff_regions *t);

/* Whether @r holds a populated page from byte @at on; what cannot be found out counts as one.
 * @pagemap: of ff_open_pagemap(), or -1 */
int ff_open_pagemap(void);
bool ff_populated(int pagemap, const struct ff_region *r, uint64_t at, uint64_t len_bytes);

/* Want the pieces that hold a populated page: how many became wanted */
unsigned ff_pieces_want_populated(struct ff_pieces *p, const struct ff_regions *t);

/**
 * ff_pieces_register() - register what is wanted and is not yet
 * @access: of enum ff_access
 *
 * Return: 0; -ENOMEM: the memlock limit, with the number needed; -ENOTSUP: odp=on, but the
 *         device has none; whatever the link says. Pieces registered by then stay so.
 */
int ff_pieces_register(struct ff_pieces *p, struct ff_link *l, unsigned access,
                       enum ff_odp_choice odp, struct ff_error *err);
void ff_pieces_dereg(struct ff_pieces *p, struct ff_link *l);

#endif
