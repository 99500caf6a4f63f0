/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * test_tagger.c - what a source tells of its memory to who asks, and what it tells nobody
 */
#include "unit.h"

#include <sys/mman.h>

#include "tagger.h"

#define MIB (1u << 20)
#define HALF (4u * MIB)

static struct ff_link *src, *dst;
static struct ff_link_ops ops[2];
static struct ff_regions *regions;
static struct ff_tagger tagger;
static struct ff_mr tags;
static uint8_t landed[FF_TAG_LEN], ask[FF_ASK_LEN];
static struct ff_mr own;

static int secret(struct ff_link *l, enum ff_queue q, const char *label,
                  uint8_t out[FF_LINK_SECRET_LEN])
{
    (void)l;
    assert_string_equal(label, "page tags");
    memset(out, 0x70 + q, FF_LINK_SECRET_LEN);
    return 0;
}

/* 8 MiB and a page, of which the second half was never touched */
static int start(void **state)
{
    struct ff_error err;
    (void)state;

    assert_ok(ff_loop_pair(&src, &dst, &err), err);
    ops[0] = ops[1] = *src->ops;
    ops[0].secret = ops[1].secret = secret;
    src->ops = &ops[0];
    dst->ops = &ops[1];
    uint64_t len = 2 * HALF + 4096;
    uint8_t *m = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_ptr_not_equal(m, MAP_FAILED);
    madvise(m, len, MADV_NOHUGEPAGE);
    memset(m, 0x33, HALF);
    memset(m + 4096, 0, 4096);
    m[2 * HALF] = 1;
    regions = calloc(1, sizeof(*regions));
    regions->n = 1;
    regions->r[0] = (struct ff_region){
        .name = "ram", .host = m, .len_bytes = len, .psize = 4096, .fd = -1, .zero_fill = true};
    assert_ok(ff_tagger_attach(&tagger, src, regions, &err), err);
    tagger.of = FF_TAGS_OF_IMAGE;
    assert_ok(dst->ops->reg(dst, landed, sizeof(landed), FF_ACCESS_REMOTE_WRITE, &tags, &err), err);
    assert_ok(dst->ops->reg(dst, ask, sizeof(ask), 0, &own, &err), err);
    return 0;
}

static int end(void **state)
{
    (void)state;
    src->ops->free(src);
    dst->ops->free(dst);
    ff_tagger_detach(&tagger);
    ff_tagger_detach(&tagger);
    munmap(regions->r[0].host, regions->r[0].len_bytes);
    free(regions);
    return 0;
}

/* By slot @i of FAULT: what the source's thread makes of it */
static int say(unsigned i, uint32_t region, uint64_t offset, uint32_t len, struct ff_error *err)
{
    struct ff_ask a = {.number = 9, .offset = offset, .region = region, .len_bytes = len,
                       .addr = (uintptr_t)landed, .rkey = tags.rkey};
    struct ff_wr wr = {.op = FF_OP_WRITE, .local = ask, .lkey = own.lkey,
                       .remote = (uintptr_t)tagger.m.asks + ff_ask_at(FF_QUEUE_FAULT, i % FF_ASKS),
                       .rkey = tagger.m.asks_mr.rkey, .len_bytes = FF_ASK_LEN, .imm = i};
    struct ff_wc wc[4];

    ff_ask_encode(ask, &a);
    memset(landed, 0, sizeof(landed));
    assert_ok(dst->ops->post(dst, FF_QUEUE_FAULT, &wr, err), *err);
    int n = src->ops->poll(src, FF_QUEUE_FAULT, wc, FF_ARRAY_LEN(wc), 0, err), rc = 0;
    assert_true(n > 0);
    for (int k = 0; k < n && !rc; k++)
        rc = ff_tagger_take(&tagger, FF_QUEUE_FAULT, &wc[k], err);
    return rc;
}

/* The tag that came is that of these pages, and no other's number was used */
static void must_be_tag(uint64_t number, uint64_t offset, uint32_t len)
{
    static uint8_t zero[FF_GRANULES_MAX / 8], none[FF_GRANULES_MAX / 8];
    struct ff_tagged d = {.data = (uint8_t *)regions->r[0].host + offset, .len_bytes = len,
                          .granule_bytes = 4096, .zero = zero, .poison = none};
    uint8_t key[FF_LINK_SECRET_LEN], want[FF_PAGE_TAG_LEN];

    memset(key, 0x70 + FF_QUEUE_FAULT, sizeof(key));
    memset(zero, 0, sizeof(zero));
    if (offset <= 4096 && offset + len > 4096) /* the page of zeros */
        zero[0] = (uint8_t)(1u << (1 - offset / 4096));
    assert_int_equal(landed[0], number);
    uint8_t head[FF_TAG_HEAD];
    ff_tag_head(head, ask, tagger.of);
    assert_int_equal(head[FF_TAG_HEAD - 1], tagger.of);
    assert_int_equal(ff_page_tag(key, number, head, sizeof(head), &d, want), 0);
    assert_memory_equal(landed + 8, want, sizeof(want));
}

static void test_answers(void **state)
{
    struct ff_error err;
    (void)state;

    assert_ok(say(0, 0, 0, 4096, &err), err);
    must_be_tag(1, 0, 4096);
    assert_ok(say(31, 0, 4096, 4096, &err), err);
    must_be_tag(2, 4096, 4096);
    assert_ok(say(1, 0, 0, HALF, &err), err);
    must_be_tag(3, 0, HALF);
    assert_ok(say(2, 0, 2 * HALF, 4096, &err), err);
    must_be_tag(4, 2 * HALF, 4096);
    /* the same again: its bytes, and never its number */
    assert_ok(say(0, 0, 0, 4096, &err), err);
    must_be_tag(5, 0, 4096);
}

static void test_refuses(void **state)
{
    static const struct {
        unsigned slot;
        uint32_t region;
        uint64_t offset;
        uint32_t len;
    } wrong[] = {
        {0, 1, 0, 4096},
        {0, UINT32_MAX, 0, 4096},
        {0, 0, 0, 0},
        {0, 0, 0, 4095},
        {0, 0, 1, 4096},
        {0, 0, 2 * HALF + 4096, 4096},
        {0, 0, 2 * HALF, 8192},
        {0, 0, UINT64_MAX - 4095, 4096},
        {0, 0, 0, HALF + 4096},
        {0, 0, 0, UINT32_MAX & ~4095u},
        {FF_ASKS, 0, 0, 4096},
        {UINT32_MAX, 0, 0, 4096},
    };
    struct ff_error err;
    (void)state;

    for (unsigned i = 0; i < FF_ARRAY_LEN(wrong); i++) {
        assert_fails(say(wrong[i].slot, wrong[i].region, wrong[i].offset, wrong[i].len, &err),
                     EPROTO);
        assert_error(err, EPROTO, "source: verify: asked");
        assert_int_equal(landed[0], 0);
        ff_tagger_detach(&tagger); /* its link would be broken */
        assert_ok(ff_tagger_attach(&tagger, src, regions, &err), err);
        tagger.of = FF_TAGS_OF_PASS;
    }
}

/* Who asks while the guest runs gets nothing that passes once it is paused */
static void test_of(void **state)
{
    uint8_t of_pass[FF_TAG_LEN];
    struct ff_error err;
    (void)state;

    tagger.of = FF_TAGS_OF_NONE;
    assert_fails(say(0, 0, 0, 4096, &err), EPROTO);
    assert_error(err, EPROTO, "source: verify: asked before");
    ff_tagger_detach(&tagger);
    assert_ok(ff_tagger_attach(&tagger, src, regions, &err), err);
    tagger.of = FF_TAGS_OF_PASS;
    assert_ok(say(0, 0, 0, 4096, &err), err);
    must_be_tag(1, 0, 4096);
    memcpy(of_pass, landed, sizeof(of_pass));
    ff_tagger_detach(&tagger);
    assert_ok(ff_tagger_attach(&tagger, src, regions, &err), err);
    tagger.of = FF_TAGS_OF_IMAGE;
    assert_ok(say(0, 0, 0, 4096, &err), err); /* one ask, one number, one key */
    must_be_tag(1, 0, 4096);
    assert_memory_not_equal(landed, of_pass, sizeof(of_pass));
}

/* A slot that waits for its answer asks once */
static void test_twice(void **state)
{
    struct ff_wc wc = {.op = FF_WC_RECV_IMM, .len_bytes = FF_ASK_LEN, .imm = 3};
    struct ff_error err;
    (void)state;

    assert_ok(say(3, 0, 0, 4096, &err), err);
    /* its tag has left, and nobody has said so here */
    assert_ok(ff_tagger_take(&tagger, FF_QUEUE_FAULT, &wc, &err), err);
    assert_fails(ff_tagger_take(&tagger, FF_QUEUE_FAULT, &wc, &err), EPROTO);
    wc = (struct ff_wc){.op = FF_WC_RECV_IMM, .len_bytes = FF_ASK_LEN - 1, .imm = 4};
    assert_fails(ff_tagger_take(&tagger, FF_QUEUE_FAULT, &wc, &err), EPROTO);
}

#define WITH(test) cmocka_unit_test_setup_teardown(test, start, end)

UNIT_MAIN(WITH(test_answers), WITH(test_refuses), WITH(test_of), WITH(test_twice))
