/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * test_parts.c - segments in parts: the list at the destination, and how PARTS is decoded
 */
#include "unit.h"

#include "dest_private.h"
#include "wire.h"

static void must_add(struct ff_parts *p, uint64_t first, uint64_t end, uint32_t rkey)
{
    struct ff_error err;

    assert_ok(ff_parts_add(p, &(struct ff_part){.first = first, .end = end, .rkey = rkey}, &err),
              err);
}

static void must_not_add(struct ff_parts *p, uint64_t first, uint64_t end)
{
    struct ff_error err;

    assert_fails(ff_parts_add(p, &(struct ff_part){.first = first, .end = end}, &err), EPROTO);
    assert_error(err, EPROTO, "overlap");
}

static void test_list(void **state)
{
    uint32_t keys[] = {50, 51};
    struct ff_pager_region r = {.rkey = keys, .segment_bytes = 100 * 4096, .range.psize = 4096};
    struct ff_parts *p = &r.parts;
    (void)state;

    assert_null(ff_parts_find(p, 0));
    assert_true(ff_pager_part_end(&r, 3, 64) == 64);
    must_add(p, 120, 130, 7);
    must_add(p, 130, 131, 0);
    must_add(p, 131, 200, 8);
    must_add(p, 10, 12, 0); /* a segment that was registered later, before the others */
    must_not_add(p, 11, 12);
    must_not_add(p, 9, 11);
    must_not_add(p, 0, 300);
    must_not_add(p, 125, 126);
    must_not_add(p, 199, 201);
    assert_int_equal(p->n, 4);
    for (uint64_t page = 0; page < 200; page++) {
        bool bad = page == 10 || page == 11 || page == 130;
        assert_int_equal(ff_pager_is_unreadable(&r, page), bad);
        /* never 0: that is what reads as zeros */
        assert_int_equal(ff_pager_rkey(&r, page), page < 100                ? 50
                                                  : page < 120 || bad       ? 51
                                                  : page < 130              ? 7
                                                                            : 8);
    }
    static const uint64_t ends[][2] = {{0, 10},    {9, 10},    {10, 12},   {11, 12},  {12, 120},
                                       {119, 120}, {120, 130}, {130, 131}, {131, 200}};
    for (size_t i = 0; i < FF_ARRAY_LEN(ends); i++)
        assert_true(ff_pager_part_end(&r, ends[i][0], 300) == ends[i][1]);
    assert_true(ff_pager_part_end(&r, 200, 300) == 300);
    assert_true(ff_pager_part_end(&r, 12, 64) == 64);
    must_add(p, 20, 30, FF_WIRE_PART_ZEROS); /* in a segment that has a key */
    assert_int_equal(ff_pager_rkey(&r, 19), 50);
    assert_int_equal(ff_pager_rkey(&r, 20), 0);
    assert_int_equal(ff_pager_rkey(&r, 29), 0);
    assert_int_equal(ff_pager_rkey(&r, 30), 50);
    assert_false(ff_pager_is_unreadable(&r, 25));
    assert_true(ff_pager_part_end(&r, 12, 64) == 20);
    assert_true(ff_pager_part_end(&r, 20, 64) == 30);
    ff_parts_free(p);
    assert_null(ff_parts_find(p, 130));
}

/* --- PARTS --- */

static const struct ff_wire_region table[] = {{.name = "small", .len_bytes = 64 << 12, .psize = 4096},
                                              {.name = "huge", .len_bytes = 8 << 20,
                                               .psize = 2 << 20}};
static uint8_t msg[FF_MSG_MAX];

static int get(size_t len, struct ff_wire_part *out, unsigned *n, struct ff_error *err)
{
    return ff_wire_get_parts(msg, len, out, 4, table, FF_ARRAY_LEN(table), n, err);
}

static void test_decode(void **state)
{
    static const struct ff_wire_part good[] = {{0, 5, 0, 4096},
                                               {0, 0, 4096, 63 << 12},
                                               {1, UINT32_MAX, 6 << 20, 2 << 20}};
    static const struct ff_wire_part bad[] = {
        {2, 5, 0, 4096},          {UINT32_MAX, 5, 0, 4096},  {0, 5, 0, 0},
        {0, 5, 0, 65 << 12},      {0, 5, 64 << 12, 4096},    {0, 5, 63 << 12, 2 << 12},
        {0, 5, 512, 4096},        {0, 5, 0, 4095},           {0, 5, 4096, UINT64_MAX - 4095},
        {0, 5, UINT64_MAX - 4095, 4096}, {1, 5, 4096, 2 << 20}, {1, 5, 0, 4096}};
    struct ff_wire_part got[4];
    struct ff_error err;
    unsigned n;
    (void)state;

    size_t len = (size_t)ff_wire_put_parts(msg, good, FF_ARRAY_LEN(good));
    assert_int_equal(ff_wire_type(msg, len, &err), FF_MSG_PARTS);
    assert_ok(get(len, got, &n, &err), err);
    assert_int_equal(n, FF_ARRAY_LEN(good));
    assert_memory_equal(got, good, sizeof(good));
    for (size_t cut = 4; cut < len; cut++)
        if ((cut - 4) % 24 || cut == 4)
            assert_fails(get(cut, got, &n, &err), EPROTO);
    assert_fails(ff_wire_get_parts(msg, len, got, 2, table, 2, &n, &err), EPROTO);
    assert_error(err, EPROTO, "72 bytes", "1..2 parts");
    for (size_t i = 0; i < FF_ARRAY_LEN(bad); i++) {
        len = (size_t)ff_wire_put_parts(msg, &bad[i], 1);
        assert_fails(get(len, got, &n, &err), EPROTO);
        assert_error(err, EPROTO, "whole pages inside a region");
    }
}

/* --- zeros: with STATE alone, and over later links as they were --- */

static int take(struct ff_dest *d, struct ff_wire_part part, struct ff_error *err)
{
    d->ctl.len = ff_wire_put_parts(d->ctl.buf, &part, 1);
    return dest_take_parts(d, err);
}

static void test_zeros(void **state)
{
    static struct ff_wire_region peer = {.name = "ram", .len_bytes = 64 << 12, .psize = 4096};
    static struct ff_dest d = {.peer = {.regions = &peer, .n_regions = 1}, .pager.n_regions = 1};
    const struct ff_wire_part zeros = {0, FF_WIRE_PART_ZEROS, 0, 2 << 12}, keyed = {0, 7, 2 << 12, 1 << 12},
                              other = {0, FF_WIRE_PART_ZEROS, 0, 3 << 12},
                              more = {0, FF_WIRE_PART_ZEROS, 8 << 12, 1 << 12};
    struct ff_pager_region *r = &d.pager.region[0];
    uint32_t key = 9;
    struct ff_error err;
    (void)state;

    r->rkey = &key;
    r->segment_bytes = peer.len_bytes;
    r->range.psize = peer.psize;
    assert_fails(take(&d, zeros, &err), EPROTO);
    assert_error(err, EPROTO, "0x2000 bytes at 0x0 of region 0", "while the guest runs");
    assert_int_equal(ff_pager_rkey(r, 0), 9);
    d.state_ns = 1;
    assert_ok(take(&d, zeros, &err), err);
    assert_ok(take(&d, keyed, &err), err);
    for (unsigned i = 0; i < 2; i++) {
        d.recovers = true;
        dest_drop_parts(&d);
        assert_int_equal(ff_pager_rkey(r, 0), 0);
        assert_int_equal(ff_pager_rkey(r, 2), 9);
        assert_fails(take(&d, more, &err), EPROTO);
        assert_error(err, EPROTO, "0x1000 bytes at 0x8000 of region 0", "over another link");
        assert_fails(take(&d, other, &err), EPROTO);
        assert_int_equal(ff_pager_rkey(r, 8), 9);
        d.n_parts = FF_WIRE_PARTS_MAX - 2; /* what is kept takes no room */
        assert_ok(take(&d, zeros, &err), err);
        assert_ok(take(&d, keyed, &err), err);
        assert_fails(take(&d, zeros, &err), EPROTO); /* too many */
        assert_int_equal(ff_pager_rkey(r, 2), 7);
    }
    ff_parts_free(&r->parts);
}

UNIT_MAIN(cmocka_unit_test(test_list), cmocka_unit_test(test_decode), cmocka_unit_test(test_zeros))
