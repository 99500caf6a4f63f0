/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * tagger.h - source: say what bytes are to be; see tags.h
 */
#ifndef FF_MIGRATE_TAGGER_H
#define FF_MIGRATE_TAGGER_H

#include <stdatomic.h>

#include "regions.h"
#include "tags.h"

#define FF_TAGGER_ID 0x100u /* work requests from here on are a tagger's */

struct ff_tagger_lane {
    uint8_t asked[FF_ASKS]; /* slots, oldest first */
    unsigned first, n;
    bool waits[FF_ASKS]; /* it is among asked */
    bool sent[FF_ASKS];  /* its last tag has not left yet */
    uint64_t n_tags;
    uint8_t *room; /* for memory of another process; NULL: there is none */
};

/* Each lane is its queue's thread's alone */
struct ff_tagger {
    struct ff_link *link; /* NULL: nobody is answered */
    const struct ff_regions *regions;
    _Atomic unsigned of; /* enum ff_tags_of; an ask before the pass is wrong */
    struct ff_tag_memory m;
    struct ff_tagger_lane lane[FF_QUEUES];
};

/* No thread serves: answer over @link, whose session is new */
int ff_tagger_attach(struct ff_tagger *t, struct ff_link *link, const struct ff_regions *regions,
                     struct ff_error *err);
void ff_tagger_detach(struct ff_tagger *t); /* nor does one again; the link may be freed by then */

/* @wc came on @q; whatever was asked is answered as far as there is room: 0, or -errno */
int ff_tagger_take(struct ff_tagger *t, enum ff_queue q, const struct ff_wc *wc,
                   struct ff_error *err);

#endif
