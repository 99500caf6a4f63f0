/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * tags.h - verify=on: what the destination asks for, and what the source answers
 */
/**
 * DOC: Theory of Operation
 *
 * Purpose      pages that travel in the clear are checked before they are installed: with each READ
 *              the destination asks the source what its bytes are to be.
 *
 * Picture      destination (verify.c)                       source (tagger.c)
 *              READ ------------------------------------->  (an adapter, or the link) bytes
 *              ask: WRITE, imm = slot ------------------->  its thread looks at the same bytes
 *              <------------------- WRITE, imm = slot: tag  of the ask and of the bytes
 *              tag right: the READ is complete
 *              wrong: the link breaks; nothing of it is installed, and the next link reads it again
 *
 *              A tag is asked for when the image is frozen, like the bytes: so there is no table of
 *              tags to make, to keep and to wait for, and nothing is hashed that nobody reads.
 *              Both travel at once: a read takes one look at its bytes longer, and a wake-up.
 *
 * Invariants   1. The ask is part of what is hashed, and its number is used once: a tag is good for
 *                 one READ, so neither old bytes nor those of another page pass with their tags.
 *                 Somebody else may ask as well, while the guest still runs, and keep the tag: so
 *                 what the bytes are of is hashed, too, and nobody is answered before the pass,
 *                 whose log has whatever is written later.
 *              2. The source numbers its tags itself (page_tag.h), whatever the asks say.
 *              3. An ask proves nothing: the source checks it as it checks a GRANT.
 *              4. Bytes that were checked lie where no peer may write, so they stay what they were:
 *                 no prefill=push.
 * Limits       ASKS asks in flight a queue, which is ASKS READs.
 */
#ifndef FF_MIGRATE_TAGS_H
#define FF_MIGRATE_TAGS_H

#include "page_tag.h"

#define FF_ASKS (FF_QUEUE_DEPTH / 2) /* each is a READ and a WRITE */
#define FF_ASK_LEN 40u
#define FF_ASK_HEAD 24u /* of it, is hashed */
#define FF_ASKED_LEN (FF_QUEUES * FF_ASKS * FF_ASK_LEN)
#define FF_TAG_LEN (8u + FF_PAGE_TAG_LEN)
#define FF_TAGS_LEN (FF_QUEUES * FF_ASKS * FF_TAG_LEN)
#define FF_TAG_LABEL "page tags"

/* What the bytes are of that a tag is made for */
enum ff_tags_of { FF_TAGS_OF_NONE, FF_TAGS_OF_PASS, FF_TAGS_OF_IMAGE };

struct ff_ask {
    uint64_t number, offset;
    uint32_t region, len_bytes; /* the source's number of the region */
    uint64_t addr;              /* where its tag is wanted */
    uint32_t rkey;
};

/* Where slot @i of @q is */
static inline uint64_t ff_ask_at(enum ff_queue q, uint32_t i)
{
    return ((uint64_t)q * FF_ASKS + i) * FF_ASK_LEN;
}

static inline uint64_t ff_tag_at(enum ff_queue q, uint32_t i)
{
    return ((uint64_t)q * FF_ASKS + i) * FF_TAG_LEN;
}

void ff_ask_encode(uint8_t out[FF_ASK_LEN], const struct ff_ask *a);
struct ff_ask ff_ask_decode(const uint8_t in[FF_ASK_LEN]);

#define FF_TAG_HEAD (FF_ASK_HEAD + 1)
void ff_tag_head(uint8_t out[FF_TAG_HEAD], const uint8_t ask[FF_ASK_LEN], enum ff_tags_of of);

/* What both sides keep while they have a link: a page for asks, one for tags, and the keys */
struct ff_tag_memory {
    uint8_t *asks, *tags;
    struct ff_mr asks_mr, tags_mr; /* go with the link */
    uint8_t (*key)[FF_LINK_SECRET_LEN]; /* of each queue */
};

/* @remote_asks: the peer writes asks here, else tags */
int ff_tag_memory_new(struct ff_tag_memory *m, struct ff_link *link, bool remote_asks,
                      struct ff_error *err);
void ff_tag_memory_free(struct ff_tag_memory *m); /* any number of times; zeros: there is none */

#endif
