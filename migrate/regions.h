/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * regions.h - one side's table of regions, and how it is compared with the peer's
 */
#ifndef FF_MIGRATE_REGIONS_H
#define FF_MIGRATE_REGIONS_H

#include "wire.h"

struct ff_foreign;

struct ff_regions {
    struct ff_region r[FF_WIRE_REGIONS_MAX]; /* names are owned */
    struct ff_foreign *of[FF_WIRE_REGIONS_MAX]; /* the process whose memory it is; NULL: this one */
    unsigned n;
    bool elsewhere; /* a destination: in another process, which watches them: dest_elsewhere.c */
};

int ff_regions_add(struct ff_regions *t, const struct ff_region *r, struct ff_error *err);

/* Likewise, of process @pid: a source's. Also -EPERM, -ESRCH, and -EFAULT: it has no such memory */
int ff_regions_add_of(struct ff_regions *t, const struct ff_region *r, pid_t pid,
                      struct ff_error *err);

/* Is any of them another process's? */
bool ff_regions_elsewhere(const struct ff_regions *t);

/* Can all that is another process's still be read? 0, or why it never can be again */
int ff_regions_check(const struct ff_regions *t, struct ff_error *err);
void ff_regions_free(struct ff_regions *t);

/* The file behind region @i, from byte @at of it on, if its holes are zeros; or whose it is */
struct ff_backing ff_region_backing(const struct ff_regions *t, unsigned i, uint64_t at);

/* Is next to nothing of it populated? */
bool ff_region_is_empty(const struct ff_region *r);

/* A hello with this table; to be freed with ff_hello_free() */
int ff_regions_hello(const struct ff_regions *t, const char *config, struct ff_hello *h,
                     struct ff_error *err);

/**
 * ff_regions_match() - compare the peer's table and config with ours
 * @map: map[i] becomes our number of the peer's region i; room for peer->n_regions
 *
 * Return: 0, or -EINVAL naming the first region or config that differs, with both values
 */
int ff_regions_match(const struct ff_regions *mine, const char *config,
                     const struct ff_hello *peer, uint32_t *map, struct ff_error *err);

#endif
