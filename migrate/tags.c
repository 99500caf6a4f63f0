/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * tags.c - verify=on: what both sides share
 */
#include <errno.h>
#include <string.h>
#include <sys/mman.h>

#include "error.h"
#include "secret.h"
#include "tags.h"
#include "wirebuf.h"

#define PART 4096u

_Static_assert(FF_ASKED_LEN <= PART && FF_TAGS_LEN <= PART, "each fits its page");

void ff_ask_encode(uint8_t out[FF_ASK_LEN], const struct ff_ask *a)
{
    struct ff_wirebuf b = {.data = out, .len = FF_ASK_LEN};

    ff_wb_put(&b, a->number, 8);
    ff_wb_put(&b, a->offset, 8);
    ff_wb_put(&b, a->region, 4);
    ff_wb_put(&b, a->len_bytes, 4);
    ff_wb_put(&b, a->addr, 8);
    ff_wb_put(&b, a->rkey, 4);
    ff_wb_put(&b, 0, 4);
}

void ff_tag_head(uint8_t out[FF_TAG_HEAD], const uint8_t ask[FF_ASK_LEN], enum ff_tags_of of)
{
    memcpy(out, ask, FF_ASK_HEAD);
    out[FF_ASK_HEAD] = (uint8_t)of;
}

struct ff_ask ff_ask_decode(const uint8_t in[FF_ASK_LEN])
{
    struct ff_wirebuf b = ff_wb_reader(in, FF_ASK_LEN);
    struct ff_ask a;

    a.number = ff_wb_get(&b, 8);
    a.offset = ff_wb_get(&b, 8);
    a.region = (uint32_t)ff_wb_get(&b, 4);
    a.len_bytes = (uint32_t)ff_wb_get(&b, 4);
    a.addr = ff_wb_get(&b, 8);
    a.rkey = (uint32_t)ff_wb_get(&b, 4);
    return a;
}

static int make_memory(struct ff_tag_memory *m, struct ff_link *link, bool remote_asks,
                       struct ff_error *err)
{
    void *p = mmap(NULL, 2 * PART, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    m->asks = p == MAP_FAILED ? NULL : p;
    m->key = ff_secret_new(FF_QUEUES * sizeof(*m->key));
    if (!m->asks || !m->key)
        return ff_error_set(err, ENOMEM, "verify: out of memory");
    m->tags = m->asks + PART;
    madvise(m->asks, 2 * PART, MADV_DONTFORK); /* not a child's */
    for (enum ff_queue q = 0; q < FF_QUEUES; q++)
        if (link->ops->secret(link, q, FF_TAG_LABEL, m->key[q]))
            return ff_error_set(err, EIO, "verify: no key: GnuTLS refused");
    int rc = link->ops->reg(link, m->asks, FF_ASKED_LEN, remote_asks ? FF_ACCESS_REMOTE_WRITE : 0,
                            &m->asks_mr, err);
    return rc ? rc
              : link->ops->reg(link, m->tags, FF_TAGS_LEN,
                               remote_asks ? 0 : FF_ACCESS_REMOTE_WRITE, &m->tags_mr, err);
}

int ff_tag_memory_new(struct ff_tag_memory *m, struct ff_link *link, bool remote_asks,
                      struct ff_error *err)
{
    memset(m, 0, sizeof(*m));
    int rc = make_memory(m, link, remote_asks, err);
    if (rc)
        ff_tag_memory_free(m);
    return rc;
}

void ff_tag_memory_free(struct ff_tag_memory *m)
{
    if (m->asks)
        munmap(m->asks, 2 * PART);
    ff_secret_free(m->key, FF_QUEUES * sizeof(*m->key));
    memset(m, 0, sizeof(*m));
}
