/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * mr.h - memory keys for links without an adapter that checks them
 */
#ifndef FF_RDMA_MR_H
#define FF_RDMA_MR_H

#include <pthread.h>

#include "link.h"

#define FF_MR_MAX 1024

/* Registered memory by key. Keys are random, so that one cannot be guessed from another.
 * lock guards everything. */
struct ff_mr_table {
    pthread_mutex_t lock;
    struct ff_mr mr[FF_MR_MAX]; /* rkey 0: free */
    struct ff_backing file[FF_MR_MAX];
    unsigned used;
};

void ff_mr_init(struct ff_mr_table *t);
void ff_mr_destroy(struct ff_mr_table *t);
int ff_mr_add(struct ff_mr_table *t, void *addr, uint64_t len, unsigned access, struct ff_mr *mr,
              struct ff_error *err);
void ff_mr_remove(struct ff_mr_table *t, uint32_t rkey);

/* The memory of @rkey is a mapping of @file */
void ff_mr_backed(struct ff_mr_table *t, uint32_t rkey, const struct ff_backing *file);

/* 0, -ENOENT (no such key), -EACCES (not for @access), -ERANGE (out of bounds) */
int ff_mr_check(struct ff_mr_table *t, uint32_t rkey, uint64_t addr, uint64_t len,
                unsigned access);

/* How many bytes from @addr on can be read: @len, or as many as precede a page that cannot */
uint32_t ff_readable(const void *addr, uint32_t len);

/* Mark those of the granules [@from, @to) of @addr in @poison that cannot be read; returns how many
 * there are */
uint32_t ff_poison_scan(const void *addr, uint32_t from, uint32_t to, uint32_t granule,
                        uint8_t *poison);

/* Mark granules of zeros in @zero; returns how many there are. Those that are marked already are
 * not touched */
uint32_t ff_zero_scan(const void *addr, uint32_t len, uint32_t granule, uint8_t *zero);

/* Mark in @zero what need not be sent, and return how many granules that are: granules of zeros,
 * and those that cannot be read, which are marked in @poison as well. @addr is a mapping of @file:
 * to look at a hole through its mapping would fill it */
uint32_t ff_zero_scan_file(const struct ff_backing *file, const void *addr, uint32_t len,
                           uint32_t granule, uint8_t *zero, uint8_t *poison);

/* Likewise, for memory that ff_mr_check() has found to be that of @rkey */
uint32_t ff_mr_zero_scan(struct ff_mr_table *t, uint32_t rkey, const void *addr, uint32_t len,
                         uint32_t granule, uint8_t *zero, uint8_t *poison);

/* Is @addr, that ff_mr_check() has found to be of @rkey, memory of another process? *@file: where */
bool ff_mr_elsewhere(struct ff_mr_table *t, uint32_t rkey, const void *addr,
                     struct ff_backing *file);

/**
 * ff_fetch() - bring granules of another process's memory to @into, but for those that need not be
 * @file: of them; the caller clears @zero and @poison
 *
 * Return: how many are marked in @zero: of zeros, and those that cannot be read, which are marked in
 *         @poison as well; bytes of @into that belong to them mean nothing. As ff_foreign_read()
 */
int ff_fetch(const struct ff_backing *file, const void *addr, uint32_t len, uint32_t granule,
             uint8_t *zero, uint8_t *poison, void *into, struct ff_error *err);

/* Every byte: 0; -EHWPOISON: some cannot be read; as ff_foreign_read() */
int ff_fetch_all(const struct ff_backing *file, const void *addr, uint32_t len, void *into,
                 struct ff_error *err);

#endif
