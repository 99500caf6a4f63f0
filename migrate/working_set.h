/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * working_set.h - which pages somebody has waited for, in that order, and as text
 */
/**
 * DOC: Theory of Operation
 *
 * Purpose      children of one image touch much the same pages after their start. What one host's
 *              children have waited for, prefill of other hosts, and of the next fork, brings first:
 *              before it is touched. So does the next visit of a guest, of what it has waited for on the last.
 * Text         REGION=SPAN,SPAN...;REGION=SPAN... in order; a region may come again. A SPAN is FIRST
 *              or FIRST+N, hexadecimal, in units of 4 KiB; FIRST+N has N units. It names no contents.
 * Invariants   a hint, never more: what it names is claimed, read and installed as ever. What is not
 *              there, or was not there in another guest, is left out.
 * Limits       FF_WORKING_SET_MAX spans; what comes later is not kept.
 * Threads      any, but for ff_working_set_text()'s @given, which nobody may change any more.
 */
#ifndef FF_MIGRATE_WORKING_SET_H
#define FF_MIGRATE_WORKING_SET_H

#include <pthread.h>
#include <stdint.h>

#include "regions.h"

#define FF_WORKING_SET_MAX 65536u
#define FF_WORKING_SET_UNIT 4096u

struct ff_span {
    uint32_t region;
    uint64_t first, n; /* in units */
};

struct ff_working_set {
    pthread_mutex_t lock;
    unsigned n;
    struct ff_span span[FF_WORKING_SET_MAX];
};

struct ff_working_set *ff_working_set_new(void); /* NULL: no memory */
void ff_working_set_free(struct ff_working_set *s);
void ff_working_set_add(struct ff_working_set *s, struct ff_span span);

/* @text's spans, as far as @t has such regions: 0, or -EINVAL: it is none, or all of it together is more
 * than @t; what stood before that was added */
int ff_working_set_read(struct ff_working_set *s, const struct ff_regions *t, const char *text,
                        struct ff_error *err);

/* What @given has, then what @touched has besides; either may be NULL. To be freed; NULL: nothing, or no
 * memory */
char *ff_working_set_text(const struct ff_working_set *given, struct ff_working_set *touched,
                          const struct ff_regions *t);

#endif
