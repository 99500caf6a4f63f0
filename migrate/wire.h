/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * wire.h - the control messages of a move, encoded and validated in one place
 */
/**
 * DOC: Theory of Operation
 *
 * Purpose      docs/wire.md in code. Whoever gets a decoded message trusts its fields.
 *
 * Picture      every message: | type 2 | 0 2 | body ... |, integers little-endian; in the place of the 0
 *              REFUSE has a code (enum ff_refusal). 0 there is REFUSE as every version reads it
 *
 *   HELLO    s->d  magic FARFORK1 8, version 2, oldest version 2, features 4, auth 2,
 *                  regions 2, config length 2, config ..., session 16 if it returns,
 *                  then each region: length 8, page size 4, name length 2, name ...
 *   WELCOME  d->s  version 2, answer 2, features 4, session 16, epoch 4
 *   RESUME   s->d  magic FARFORK1 8, version 2, oldest version 2, session 16, epoch 4, digest 8,
 *                  why 2: the HELLO of every link after the first
 *   REFUSE   both  code 2; text ...      instead of any other message: why it ends here
 *   PUBLISH  s->d  segment 8, keys 4, load 4, push 4, lease 4, asks: address 8, rkey 4,
 *                  each region: address 8; then KEYS
 *   KEYS     s->d  each: region 4, segment 4, rkey 4; a segment without a key reads as zeros
 *   PARTS    s->d  each: region 4, rkey 4, offset 8, length 8: before KEYS, of segments that have
 *                  unreadable pages, or were touched last: each part has a key of its own, or none: it
 *                  cannot be read, or FF_WIRE_PART_ZEROS
 *   WATCHING d->s                        memory is empty and watched: the guest may stop
 *   LOGGING  s->d  precopy=1: every write to memory is logged from here on
 *   PASSED   d->s  statistics; answers LOGGING: every page with a key was read once (the first
 *                  LOGGING alone does that), and what DIRTY named before it is discarded
 *   DIRTY    s->d  region 4, pages 4, first page 8, one bit a page: written while it was logged
 *   STATE    s->d  total 8, first-touch pages 4, keys 4; then KEYS, FIRST and DATA until
 *                  all are there
 *   FIRST    s->d  each page: region 4, offset 8
 *   DATA     s->d  device state ...
 *   READY    d->s  statistics
 *   GO       s->d
 *   RUNNING  d->s  statistics
 *   GRANT    d->s  each: region 4, id 4, offset 8, length 4, rkey 4, address 8: the source may
 *                  write this part of the image there (prefill=push), once
 *   PROGRESS d->s  statistics, every 200 ms from READY on, and between LOGGING and PASSED
 *   DONE     d->s  statistics
 *   WITHDRAWN s->d  with a lease the destination says it back
 *   LEASE    both   number 4. fallback=go: the destination asks, the source gives
 *   FEED     s->d  magic FARFORK1 8, version 2, oldest version 2, digest 8, then each region:
 *                  address 8, claims 8, rkey of both 4 4: instead of HELLO, by an agent that has the
 *                  same image, or gets it (relay.h). WELCOME answers it; DONE ends it. Over verbs
 *                  GRANTs ask for pages (feed_pushed.h)
 *
 * Invariants   1. Nothing is allocated from a message before its decoder accepted it.
 *              2. Counts and lengths are bounded by the constants below, and by the
 *                 message's own length.
 *              3. Encoder and decoder of a message stand side by side and share its fields.
 */
#ifndef FF_MIGRATE_WIRE_H
#define FF_MIGRATE_WIRE_H

#include "farfork.h"
#include "datagram.h"
#include "link.h"
#include "packet.h"

struct ff_error;

#define FF_WIRE_VERSION 11
#define FF_WIRE_AUTH_NONE 0u /* authentication in HELLO: what the link has proved */
#define FF_WIRE_AUTH_KEY 1u  /* both ends have the key, and the link seals each message */
#define FF_WIRE_PRECOPY 1u /* feature in WELCOME: the destination makes a pass (precopy=1) */
#define FF_WIRE_RESUMES 2u /* feature in HELLO and WELCOME: this side goes on over another link */
#define FF_WIRE_VERIFY 4u /* feature in HELLO: the source wants it; in WELCOME: pages are verified */
#define FF_WIRE_HOLDS 8u  /* feature in HELLO: output=hold; in WELCOME: this side does, or refuses */
#define FF_WIRE_RETURNS 32u /* feature in HELLO: what was not written since the GO of a session is there still; in
                             * WELCOME: it is */
#define FF_WIRE_VISITS 64u /* feature in WELCOME: the guest is to return (visit=on) */
#define FF_WIRE_WELCOME_FEATURES                                                                   \
    (FF_WIRE_PRECOPY | FF_WIRE_RESUMES | FF_WIRE_VERIFY | FF_WIRE_HOLDS | FF_WIRE_RETURNS |        \
     FF_WIRE_VISITS)
#define FF_WIRE_NAME_MAX 255
#define FF_WIRE_CONFIG_MAX 255
#define FF_WIRE_REGIONS_MAX 512
#define FF_WIRE_REGION_LEN_MAX (1ull << 46)
#define FF_WIRE_STATE_MAX (256ull << 20)
#define FF_WIRE_FIRST_MAX 4096
#define FF_WIRE_DATA_MAX (FF_MSG_MAX - 4)
#define FF_WIRE_TEXT_MAX 500
#define FF_WIRE_SEGMENT_MIN (4ull << 20) /* so that no chunk lies in two */
#define FF_WIRE_KEYS_MAX 4096          /* of all regions together */
#define FF_WIRE_PARTS_MAX 4096         /* of all regions together */
#define FF_WIRE_PART_ZEROS UINT32_MAX  /* instead of a part's key: it reads as zeros */
#define FF_WIRE_GRANTS_MAX 64
#define FF_WIRE_LEASE_MIN_MS 1000
#define FF_WIRE_LEASE_MAX_MS 3600000
#define FF_WIRE_DIRTY_MAX (60u << 13) /* pages in one DIRTY: 60 KiB of bits */
#define FF_IMM_ZEROS 0x80000000u /* in the imm of a pushed WRITE: all zeros, nothing written */
#define FF_IMM_UNREADABLE 0x40000000u /* likewise: the source cannot read all of it; to be pulled */

enum ff_msg {
    FF_MSG_HELLO = 1,
    FF_MSG_WELCOME,
    FF_MSG_REFUSE,
    FF_MSG_PUBLISH,
    FF_MSG_STATE,
    FF_MSG_FIRST,
    FF_MSG_DATA,
    FF_MSG_READY,
    FF_MSG_GO,
    FF_MSG_RUNNING,
    FF_MSG_PROGRESS,
    FF_MSG_DONE,
    FF_MSG_WITHDRAWN,
    FF_MSG_WATCHING,
    FF_MSG_KEYS,
    FF_MSG_GRANT,
    FF_MSG_LOGGING,
    FF_MSG_PASSED,
    FF_MSG_DIRTY,
    FF_MSG_RESUME,
    FF_MSG_LEASE,
    FF_MSG_PARTS,
    FF_MSG_FEED,
    FF_MSG_LAST = FF_MSG_FEED,
};

/* What a REFUSE means, whatever its text says. Anything but 0 goes to a peer whose version was read before */
enum ff_refusal {
    FF_REFUSAL_FINAL = 0,
    FF_REFUSAL_NOT_YET = 1, /* to FEED: it has no image yet, or takes an earlier one first: come again */
    FF_REFUSAL_LAST = FF_REFUSAL_NOT_YET,
};

struct ff_wire_region {
    char name[FF_WIRE_NAME_MAX + 1];
    uint64_t len_bytes;
    uint32_t psize;
};

struct ff_hello {
    uint16_t version, oldest;
    uint32_t features;
    uint16_t auth;
    uint16_t n_regions;
    char config[FF_WIRE_CONFIG_MAX + 1];
    uint8_t returns_from[FF_SESSION_LEN]; /* with FF_WIRE_RETURNS */
    struct ff_wire_region *regions; /* n_regions of them */
};

/* What WELCOME says: to HELLO always NEW, to RESUME one of the others */
enum ff_answer {
    FF_ANSWER_NEW,
    FF_ANSWER_NOT_STARTED, /* no GO was read here, and none will be: the source may run its guest */
    FF_ANSWER_RUNNING,     /* GO was read: serve on, over this link */
    FF_ANSWER_COMPLETE,    /* every page is here; DONE follows */
    FF_ANSWER_TAKEN_BACK,  /* the source said so: nothing runs here, nor will */
    FF_ANSWER_LAST = FF_ANSWER_TAKEN_BACK,
};

/* @session names the queues of this link; that of NEW names the move as well */
struct ff_welcome {
    uint16_t version;
    enum ff_answer answer;
    uint32_t features;
    uint8_t session[FF_SESSION_LEN];
    uint32_t epoch; /* of this link; NEW: 1 */
};

/* @epoch: the newest that the source knows; @digest: ff_hello_digest() of the move's HELLO;
 * @taken_back: the source comes to say that it has taken the guest back, not to serve */
struct ff_resume {
    uint16_t version, oldest;
    uint8_t session[FF_SESSION_LEN];
    uint32_t epoch;
    uint64_t digest;
    bool taken_back;
};

/* The source sends its image to a group (group.h), in packets that @salt gives the key of; @at.port 0: it
 * does not. @why_not: a positive errno: it was to, and cannot */
struct ff_announce {
    struct ff_group_at at;
    uint8_t salt[FF_PACKET_SALT_LEN];
    uint32_t why_not;
};

/* @addr: the source's address of each region; a region is registered in segments of
 * @segment_bytes, counted from its start */
struct ff_publish {
    uint64_t segment_bytes;
    uint32_t n_keys;        /* that follow */
    uint32_t load_permille; /* of the source's CPUs */
    uint32_t push_bytes;    /* the largest grant that the source can write; 0: it cannot push */
    uint32_t lease_ms;      /* what each LEASE is worth; 0: the guest is let go for good */
    uint64_t asks_addr;     /* verify=on: where the destination asks for tags (tags.h), */
    uint32_t asks_rkey;     /* and its key; 0: none are made */
    struct ff_announce group;
    uint64_t addr[FF_WIRE_REGIONS_MAX];
};

struct ff_wire_key {
    uint32_t region, segment, rkey;
};

/* Whole pages; @rkey 0: the source cannot read them */
struct ff_wire_part {
    uint32_t region, rkey;
    uint64_t offset, len_bytes;
};

struct ff_state_head {
    uint64_t total_bytes;
    uint32_t n_first, n_keys;
};

/* One part of the image, and where it is wanted. @id: in the imm of the WRITE, below
 * FF_WIRE_GRANTS_MAX */
struct ff_grant {
    uint32_t region, id, len_bytes, rkey;
    uint64_t offset, addr;
};

/* Pages [first, first + n) of a region; bit i % 8 of bits[i / 8] is page first + i */
struct ff_dirty {
    uint32_t region, n;
    uint64_t first;
    const uint8_t *bits;
};

/* Where a relay has a region's bytes, and the claims of its pages (claims.h), a byte each */
struct ff_fed_region {
    uint64_t addr, claims_addr;
    uint32_t rkey, claims_rkey;
};

/* @digest: ff_hello_digest() of the image's HELLO, which names the regions. @is_older: of an earlier image of the
 * same machine: some of it differs */
struct ff_offer {
    uint16_t version, oldest;
    uint64_t digest;
    bool is_older;
    unsigned n;
    struct ff_fed_region r[FF_WIRE_REGIONS_MAX];
};

#define FF_MSG_BIT(type) (1u << (type))

/* In hexadecimal; "": NULL */
void ff_session_text(const uint8_t *session, char out[FF_SESSION_TEXT]);

const char *ff_msg_name(unsigned type);

/* Type of a message of @len bytes, or -EPROTO */
int ff_wire_type(const uint8_t *msg, size_t len, struct ff_error *err);

/* Encoders fill @buf of FF_MSG_MAX bytes and return the length, or -E2BIG. */
int ff_wire_put_hello(uint8_t *buf, const struct ff_hello *h, struct ff_error *err);
int ff_wire_put_welcome(uint8_t *buf, const struct ff_welcome *w);
int ff_wire_put_resume(uint8_t *buf, const struct ff_resume *r);
int ff_wire_put_refuse(uint8_t *buf, enum ff_refusal code, const char *text);
int ff_wire_put_publish(uint8_t *buf, const struct ff_publish *p, unsigned n_regions);
int ff_wire_put_keys(uint8_t *buf, const struct ff_wire_key *keys, unsigned n);
int ff_wire_put_parts(uint8_t *buf, const struct ff_wire_part *parts, unsigned n);
int ff_wire_put_grants(uint8_t *buf, const struct ff_grant *g, unsigned n);
int ff_wire_put_dirty(uint8_t *buf, const struct ff_dirty *d);
int ff_wire_put_state(uint8_t *buf, const struct ff_state_head *h);
int ff_wire_put_first(uint8_t *buf, const struct ff_page_ref *pages, unsigned n);
int ff_wire_put_data(uint8_t *buf, const void *data, uint32_t len);
int ff_wire_put_stats(uint8_t *buf, enum ff_msg type, const struct ff_stats *st);
int ff_wire_put_lease(uint8_t *buf, uint32_t number);
int ff_wire_put_empty(uint8_t *buf, enum ff_msg type);
int ff_wire_put_feed(uint8_t *buf, const struct ff_offer *o);

/* Decoders take a whole message that ff_wire_type() has accepted. 0 or -EPROTO (-EPROTONOSUPPORT:
 * version) with received and permitted value; then nothing was allocated. */
int ff_wire_get_hello(const uint8_t *msg, size_t len, struct ff_hello *h, struct ff_error *err);
void ff_hello_free(struct ff_hello *h);

/* Of config and region table: two sides that name the same one mean the same memory. Against
 * mistakes; it proves nothing about who asks */
uint64_t ff_hello_digest(const struct ff_hello *h);

/* What the file of until-go says, with a newline: a digest of the session, and of the number of the link that GO
 * goes by */
#define FF_MARK_TEXT 17
void ff_mark_text(const uint8_t session[FF_SESSION_LEN], uint32_t epoch, char out[FF_MARK_TEXT]);
int ff_wire_get_welcome(const uint8_t *msg, size_t len, struct ff_welcome *w, struct ff_error *err);
int ff_wire_get_resume(const uint8_t *msg, size_t len, struct ff_resume *r, struct ff_error *err);
int ff_wire_get_refuse(const uint8_t *msg, size_t len, enum ff_refusal *code,
                       char text[FF_WIRE_TEXT_MAX + 1], struct ff_error *err);
int ff_wire_get_publish(const uint8_t *msg, size_t len, struct ff_publish *p, unsigned n,
                        const struct ff_wire_region *regions, struct ff_error *err);

/* At most @max keys, each of a segment of its region */
int ff_wire_get_keys(const uint8_t *msg, size_t len, struct ff_wire_key *keys, unsigned max,
                     uint64_t segment_bytes, const struct ff_wire_region *regions,
                     unsigned n_regions, unsigned *n, struct ff_error *err);

/* At most @max parts, whole pages inside their region */
int ff_wire_get_parts(const uint8_t *msg, size_t len, struct ff_wire_part *parts, unsigned max,
                      const struct ff_wire_region *regions, unsigned n_regions, unsigned *n,
                      struct ff_error *err);

/* Room for FF_WIRE_GRANTS_MAX; whole pages inside their region, at most @max_len bytes each */
int ff_wire_get_grants(const uint8_t *msg, size_t len, struct ff_grant *g, uint32_t max_len,
                       const struct ff_wire_region *regions, unsigned n_regions, unsigned *n,
                       struct ff_error *err);

/* Pages inside their region of @regions; bits point into @msg */
int ff_wire_get_dirty(const uint8_t *msg, size_t len, struct ff_dirty *d,
                      const struct ff_wire_region *regions, unsigned n_regions,
                      struct ff_error *err);
int ff_wire_get_state(const uint8_t *msg, size_t len, struct ff_state_head *h,
                      struct ff_error *err);

/* At most @max pages; each inside its region of @regions */
int ff_wire_get_first(const uint8_t *msg, size_t len, struct ff_page_ref *pages, unsigned max,
                      const struct ff_wire_region *regions, unsigned n_regions, unsigned *n,
                      struct ff_error *err);

/* At most @max bytes; @data points into @msg */
int ff_wire_get_data(const uint8_t *msg, size_t len, uint64_t max, const uint8_t **data,
                     uint32_t *n, struct ff_error *err);
int ff_wire_get_stats(const uint8_t *msg, size_t len, struct ff_stats *st, struct ff_error *err);
int ff_wire_get_lease(const uint8_t *msg, size_t len, uint32_t *number, struct ff_error *err);
int ff_wire_get_empty(const uint8_t *msg, size_t len, struct ff_error *err);

/* @p->data points into @msg */

/* Of an image of @n regions */
int ff_wire_get_feed(const uint8_t *msg, size_t len, unsigned n, struct ff_offer *o,
                     struct ff_error *err);

#endif
