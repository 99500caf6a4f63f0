/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * stream_ram.c - a unit of the RAM section: the list of blocks, a page, the section's end
 */
#include <errno.h>

#include "stream_state.h"

#define PSIZE_MAX (1ull << 30)     /* x86's greatest page */
#define BLOCK_LEN_MAX (1ull << 46) /* what x86-64 addresses with a shadow of it */
#define EXTENSION_HEAD 0 /* first byte of a number below 2^56; no name is of this length */

const struct stream_block *stream_blocks(const struct stream *s, unsigned *n)
{
    *n = s->n_blocks;
    return s->blocks;
}

const struct stream_block *stream_find_block(const struct stream *s, const char *name, size_t len)
{
    for (unsigned i = 0; i < s->n_blocks; i++)
        if (strlen(s->blocks[i].name) == len && !memcmp(s->blocks[i].name, name, len))
            return &s->blocks[i];
    return NULL;
}

/* A number that may follow a block's length: a name never begins with 0, and a RAM header never
 * has no flag */
static bool take_extension(struct stream_reader *r, bool last, uint64_t *value)
{
    struct stream_reader ahead = *r;
    uint64_t first = stream_get(&ahead, 1), rest;

    if (!ahead.more && first != EXTENSION_HEAD)
        return false;
    rest = stream_get(&ahead, 7);
    if (ahead.more)
        r->more = true;
    if (ahead.more || (last && rest % STREAM_PAGE_LEN))
        return false;
    *value = rest;
    *r = ahead;
    return true;
}

static int parse_block(struct stream *s, struct stream_reader *r, uint64_t left,
                       struct stream_block *b, struct ff_error *err)
{
    uint64_t more[2];
    unsigned n = 0, want = s->ignore_shared ? 2 : 1;
    size_t at = r->pos;
    const char *name;
    size_t len = stream_take_name(r, &name);

    b->len_bytes = stream_get(r, 8);
    if (r->more)
        return 0;
    if (!len || memchr(name, 0, len) || stream_find_block(s, name, len))
        return STREAM_REFUSE(s, at, EPROTO,
                             "read block: name '%.*s' (permitted 1..%u bytes, each "
                             "name once)",
                             (int)len, name, STREAM_NAME_MAX);
    memcpy(b->name, name, len);
    b->name[len] = 0;
    if (!b->len_bytes || b->len_bytes % STREAM_PAGE_LEN || b->len_bytes > left)
        return STREAM_REFUSE(s, r->pos - 8, EPROTO,
                             "read block: '%s' of %llu bytes (permitted whole "
                             "pages, %u..%llu)",
                             b->name, (unsigned long long)b->len_bytes, STREAM_PAGE_LEN,
                             (unsigned long long)left);
    at = r->pos;
    while (n < want && take_extension(r, b->len_bytes == left, &more[n]))
        n++;
    if (r->more)
        return 0;
    if (s->ignore_shared && !n)
        return STREAM_REFUSE(s, at, EPROTO,
                             "read block: '%s' without an address (permitted with, for "
                             "x-ignore-shared)",
                             b->name);
    b->address = s->ignore_shared ? more[n - 1] : 0;
    b->psize = n == want ? more[0] : STREAM_PAGE_LEN;
    if (b->psize < STREAM_PAGE_LEN || b->psize & (b->psize - 1) || b->psize > PSIZE_MAX ||
        b->len_bytes % b->psize)
        return STREAM_REFUSE(s, at, EPROTO,
                             "read block: '%s' in pages of %llu bytes (permitted a power "
                             "of two, %u..%llu, that divides %llu)",
                             b->name, (unsigned long long)b->psize, STREAM_PAGE_LEN, PSIZE_MAX,
                             (unsigned long long)b->len_bytes);
    return 0;
}

static int parse_blocks(struct stream *s, struct stream_reader *r, uint64_t total,
                        struct stream_unit *u, struct ff_error *err)
{
    if (s->has_ram && s->last)
        return STREAM_REFUSE(s, 0, EPROTO, "read blocks: after pages (permitted before)");
    if (!total || total > BLOCK_LEN_MAX)
        return STREAM_REFUSE(s, 0, EPROTO, "read blocks: %llu bytes in all (permitted %u..%llu)",
                             (unsigned long long)total, STREAM_PAGE_LEN, BLOCK_LEN_MAX);
    s->n_blocks = 0;
    for (uint64_t left = total; left;) {
        int rc;

        if (s->n_blocks == STREAM_BLOCKS_MAX)
            return STREAM_REFUSE(s, r->pos, ENOTSUP, "read blocks: more than %u (permitted 1..%u)",
                                 STREAM_BLOCKS_MAX, STREAM_BLOCKS_MAX);
        rc = parse_block(s, r, left, &s->blocks[s->n_blocks], err);
        if (rc || r->more) {
            s->n_blocks = 0;
            return rc;
        }
        left -= s->blocks[s->n_blocks++].len_bytes;
    }
    u->e.kind = STREAM_BLOCKS;
    u->e.value = total;
    u->next = STREAM_ST_RAM;
    return 0;
}

static int parse_page(struct stream *s, struct stream_reader *r, uint64_t addr, unsigned flags,
                      struct stream_unit *u, struct ff_error *err)
{
    const struct stream_block *b = s->last;

    if (!(flags & STREAM_RAM_CONTINUE)) {
        const char *name;
        size_t len = stream_take_name(r, &name);

        if (r->more)
            return 0;
        b = stream_find_block(s, name, len);
        if (!b)
            return STREAM_REFUSE(s, 8, EPROTO, "read page: block '%.*s' (permitted: those listed)",
                                 (int)len, name);
    } else if (!b) {
        return STREAM_REFUSE(s, 0, EPROTO,
                             "read page: flag CONTINUE on the first (permitted after "
                             "one that names its block)");
    }
    if (addr >= b->len_bytes)
        return STREAM_REFUSE(s, 0, EPROTO, "read page: '%s' at 0x%llx (permitted below 0x%llx)",
                             b->name, (unsigned long long)addr, (unsigned long long)b->len_bytes);
    if (flags & STREAM_RAM_ZERO) {
        uint8_t fill = (uint8_t)stream_get(r, 1);

        if (fill)
            return STREAM_REFUSE(s, r->pos - 1, EPROTO,
                                 "read page of zeros: filled with %u "
                                 "(permitted 0)",
                                 fill);
    } else {
        u->e.data = stream_take(r, STREAM_PAGE_LEN);
        u->e.data_len = STREAM_PAGE_LEN;
    }
    u->e.kind = STREAM_PAGE;
    u->e.block = b;
    u->e.addr = addr;
    u->continues = flags & STREAM_RAM_CONTINUE;
    u->next = STREAM_ST_RAM;
    return 0;
}

int stream_parse_ram(struct stream *s, struct stream_reader *r, struct stream_unit *u,
                     struct ff_error *err)
{
    static const struct {
        unsigned flag;
        const char *name, *remedy;
    } refused[] = {
        {STREAM_RAM_XBZRLE, "XBZRLE", "capability xbzrle off"},
        {STREAM_RAM_HOOK, "HOOK", "a socket, not QEMU's RDMA"},
        {STREAM_RAM_COMPRESSED, "COMPRESS_PAGE", "capability compress off"},
        {STREAM_RAM_MULTIFD_FLUSH, "MULTIFD_FLUSH", "capability multifd off"},
    };
    uint64_t v = stream_get(r, 8), addr = v & ~(uint64_t)(STREAM_PAGE_LEN - 1);
    unsigned flags = (unsigned)(v % STREAM_PAGE_LEN);

    if (r->more)
        return 0;
    for (size_t i = 0; i < sizeof(refused) / sizeof(refused[0]); i++)
        if (flags & refused[i].flag)
            return STREAM_REFUSE(s, 0, ENOTSUP, "read RAM: flag %s in 0x%03x (permitted: %s)",
                                 refused[i].name, flags, refused[i].remedy);
    switch (flags) {
    case STREAM_RAM_MEM_SIZE:
        return parse_blocks(s, r, addr, u, err);
    case STREAM_RAM_ZERO:
    case STREAM_RAM_ZERO | STREAM_RAM_CONTINUE:
    case STREAM_RAM_PAGE:
    case STREAM_RAM_PAGE | STREAM_RAM_CONTINUE:
        return parse_page(s, r, addr, flags, u, err);
    case STREAM_RAM_EOS:
        if (!s->n_blocks || addr)
            return STREAM_REFUSE(s, 0, EPROTO,
                                 "read RAM: end at 0x%llx, %u blocks (permitted at 0, "
                                 "after the list)",
                                 (unsigned long long)addr, s->n_blocks);
        u->e.kind = STREAM_EOS;
        u->next = STREAM_ST_FOOTER;
        return 0;
    default:
        return STREAM_REFUSE(s, 0, EPROTO,
                             "read RAM: flags 0x%03x (permitted 0x002, 0x004, 0x008, "
                             "0x010, 0x022, 0x028)",
                             flags);
    }
}
