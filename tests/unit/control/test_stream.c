/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * test_stream.c - QEMU's migration stream: understood in any pieces, forwarded as it came
 */
#include "stream_taken.h"

static void test_postcopy(void **state)
{
    unsigned n;

    (void)state;
    sample_postcopy(&in);
    assert_int_equal(feed(SIZE_MAX), in.len);
    assert_whole();
    assert_int_equal(got.kinds[STREAM_CONFIG], 2);
    assert_int_equal(got.kinds[STREAM_PAGE], 7);
    assert_int_equal(got.zeros, 3);
    assert_int_equal(got.kinds[STREAM_SECTION], 4);
    assert_int_equal(got.kinds[STREAM_FOOTER], 4);
    assert_int_equal(got.kinds[STREAM_DISCARD], 1);
    assert_int_equal(got.ranges, 2);
    assert_int_equal(got.value[STREAM_PACKAGE], 10 + SAMPLE_DEVICES);
    assert_int_equal(got.kinds[STREAM_PACKAGED], 1);
    assert_int_equal(got.kinds[STREAM_EOF], 1);
    assert_string_equal(stream_blocks(stream, &n)[1].name, "pc.ram");
    assert_int_equal(n, 2);
    assert_int_equal(stream_ram_section(stream), SAMPLE_RAM);
}

static void test_any_pieces(void **state)
{
    static const size_t steps[] = {1, 2, 3, 5, 7, 13, 97, 509, 4095, 4096, 4097};

    for (unsigned i = 0; i < FF_ARRAY_LEN(steps); i++) {
        if (i) {
            end(state);
            begin(state);
        }
        sample_postcopy(&in);
        assert_int_equal(feed(steps[i]), in.len);
        assert_whole();
    }
}

/* Nothing is kept that could go on: after each byte only the unit that has not come is missing */
static void test_holds_back_a_unit_at_most(void **state)
{
    (void)state;
    sample_postcopy(&in);
    for (size_t i = 0; i < in.len; i++) {
        assert_int_equal(stream_feed(stream, in.data + i, 1, &err), 1);
        assert_true(i + 1 - got.out.len <= STREAM_WRITE_PAGE_MAX);
    }
    assert_whole();
}

static void test_cut_short(void **state)
{
    (void)state;
    sample_postcopy(&in);
    for (size_t i = 0; i + 1 < in.len; i++) {
        assert_int_equal(stream_feed(stream, in.data + i, 1, &err), 1);
        assert_int_equal(stream_end(stream, &err), -EPROTO);
    }
}

static void test_hold(void **state)
{
    static const enum stream_kind kinds[] = {STREAM_HEADER, STREAM_BLOCKS,  STREAM_PAGE,
                                             STREAM_EOS,    STREAM_PACKAGE, STREAM_PACKAGED};

    for (unsigned i = 0; i < 2 * FF_ARRAY_LEN(kinds); i++) {
        end(state);
        begin(state);
        sample_postcopy(&in);
        got.hold = kinds[i / 2];
        got.hold_times = 3;
        assert_int_equal(feed(i % 2 ? 11 : SIZE_MAX), in.len);
        assert_int_equal(got.held, 3);
        assert_whole();
    }
}

static void test_held_go(void **state)
{
    static const uint8_t run[] = {8, 0, STREAM_CMD_POSTCOPY_RUN, 0, 0};
    ssize_t n;

    (void)state;
    sample_postcopy(&in);
    got.hold = STREAM_PACKAGED;
    got.hold_times = 1;
    n = stream_feed(stream, in.data, in.len, &err);
    assert_true(n > 0 && stream_holds(stream));
    assert_int_equal(n, got.out.len);
    assert_memory_equal(in.data + n, run, sizeof(run));
}

static void test_drop_names_the_next(void **state)
{
    struct sample want;

    (void)state;
    sample_head(&in, "postcopy-ram");
    sample_setup(&in, STREAM_PAGE_LEN);
    sample_section(&in, STREAM_SECTION_PART);
    want = in;
    sample_page(&in, "vga", 0, 1);
    sample_page(&want, "vga", 0, 1);
    sample_page(&in, "pc.ram", 0, 1);
    sample_page(&in, NULL, STREAM_PAGE_LEN, 0);
    sample_page(&in, "vga", STREAM_PAGE_LEN, 2);
    sample_page(&want, "vga", STREAM_PAGE_LEN, 2);
    strcpy(got.drop, "pc.ram");
    assert_int_equal(feed(17), in.len);
    assert_int_equal(got.out.len, want.len);
    assert_memory_equal(got.out.data, want.data, want.len);
}

static void test_own_page_names_the_next(void **state)
{
    struct sample want;

    (void)state;
    sample_head(&in, "postcopy-ram");
    sample_setup(&in, STREAM_PAGE_LEN);
    sample_section(&in, STREAM_SECTION_PART);
    sample_page(&in, "pc.ram", 0, 1);
    want = in;
    assert_int_equal(feed(SIZE_MAX), in.len);
    assert_int_equal(stream_place(stream), STREAM_IN_RAM);
    stream_wrote_page(stream);
    in.len = 0;
    sample_page(&in, NULL, STREAM_PAGE_LEN, 4);
    sample_page(&in, NULL, 2 * STREAM_PAGE_LEN, 0);
    sample_page(&want, "pc.ram", STREAM_PAGE_LEN, 4);
    sample_page(&want, NULL, 2 * STREAM_PAGE_LEN, 0);
    assert_int_equal(feed(100), in.len);
    assert_int_equal(got.out.len, want.len);
    assert_memory_equal(got.out.data, want.data, want.len);
}

static void test_places(void **state)
{
    (void)state;
    assert_int_equal(stream_place(stream), STREAM_INSIDE);
    sample_head(&in, "postcopy-ram");
    sample_setup(&in, STREAM_PAGE_LEN);
    feed(SIZE_MAX);
    assert_int_equal(stream_place(stream), STREAM_AT_SECTION);
    in.len = 0;
    sample_section(&in, STREAM_SECTION_PART);
    sample_put(&in, STREAM_RAM_EOS, 8);
    feed(SIZE_MAX);
    assert_int_equal(stream_place(stream), STREAM_INSIDE);
    in.len = 0;
    sample_put(&in, STREAM_SECTION_FOOTER, 1);
    sample_put(&in, SAMPLE_RAM, 4);
    sample_package(&in);
    in.len -= 6;
    feed(SIZE_MAX);
    assert_int_equal(stream_place(stream), STREAM_INSIDE);
}

static void test_huge_page_is_one(void **state)
{
    unsigned n;

    (void)state;
    sample_head(&in, "postcopy-ram");
    sample_setup(&in, 2 << 20);
    sample_package(&in);
    sample_section(&in, STREAM_SECTION_PART);
    sample_page(&in, "pc.ram", 0, 0);
    assert_int_equal(feed(3), in.len);
    assert_int_equal(stream_blocks(stream, &n)[1].psize, 2 << 20);
    assert_int_equal(stream_place(stream), STREAM_INSIDE);
    in.len = 0;
    for (uint64_t at = STREAM_PAGE_LEN; at < 2 << 20; at += STREAM_PAGE_LEN)
        sample_page(&in, NULL, at, 0);
    assert_int_equal(feed(SIZE_MAX), in.len);
    assert_int_equal(stream_place(stream), STREAM_IN_RAM);
}

static void test_ignore_shared(void **state)
{
    unsigned n;

    (void)state;
    sample_head(&in, "x-ignore-shared");
    sample_start(&in, "ram");
    sample_put(&in, (4 << 20) | 0x1000 | STREAM_RAM_MEM_SIZE, 8);
    sample_name(&in, "a");
    sample_put(&in, 0x1000, 8);
    sample_put(&in, 0xfffc0000, 8);
    sample_name(&in, "b");
    sample_put(&in, 4 << 20, 8);
    sample_put(&in, 2 << 20, 8);
    sample_put(&in, 0, 8);
    sample_section_end(&in);
    assert_int_equal(feed(1), in.len);
    assert_int_equal(stream_blocks(stream, &n)[0].address, 0xfffc0000);
    assert_int_equal(stream_blocks(stream, &n)[0].psize, 4096);
    assert_int_equal(stream_blocks(stream, &n)[1].address, 0);
    assert_int_equal(stream_blocks(stream, &n)[1].psize, 2 << 20);
}

static void test_precopy(void **state)
{
    (void)state;
    sample_head(&in, "postcopy-ram");
    sample_setup(&in, STREAM_PAGE_LEN);
    sample_section(&in, STREAM_SECTION_END);
    sample_section_end(&in);
    sample_put(&in, STREAM_SECTION_FULL, 1);
    sample_add(&in, "device state and a description", 30);
    assert_int_equal(feed(3), in.len);
    assert_int_equal(got.kinds[STREAM_DEVICES], 1);
    assert_whole();
}

static void test_description(void **state)
{
    (void)state;
    sample_postcopy(&in);
    sample_put(&in, STREAM_SECTION_VMDESC, 1);
    sample_put(&in, 5, 4);
    sample_add(&in, "{\"a\":", 5);
    assert_int_equal(feed(3), in.len);
    assert_int_equal(got.value[STREAM_VMDESC], 5);
    assert_whole();
    in.len = 0;
    sample_put(&in, 0, 1);
    refused(EPROTO, "after the end");
}

static void test_resume(void **state)
{
    (void)state;
    sample_postcopy(&in);
    in.len -= 40;
    assert_int_equal(feed(SIZE_MAX), in.len);
    stream_resume(stream);
    in.len = got.out.len = 0;
    sample_command(&in, STREAM_CMD_RECV_BITMAP, "\6pc.ram", 7);
    sample_command(&in, STREAM_CMD_POSTCOPY_RESUME, NULL, 0);
    sample_section(&in, STREAM_SECTION_PART);
    sample_page(&in, "pc.ram", 0, 1);
    assert_int_equal(feed(2), in.len);
    assert_memory_equal(got.out.data, in.data, in.len);
}

static void test_sink_fails(void **state)
{
    (void)state;
    sample_postcopy(&in);
    got.verdict = -ECANCELED;
    assert_int_equal(feed(SIZE_MAX), -ECANCELED);
    assert_error(err, ECANCELED, "the sink's");
}

static void test_what_may_be_dropped(void **state)
{
    (void)state;
    sample_postcopy(&in);
    got.verdict = STREAM_DROP;
    assert_int_equal(feed(SIZE_MAX), -EINVAL);
    assert_error(err, EINVAL, "drop header", "permitted");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        T(test_postcopy),
        T(test_any_pieces),
        T(test_holds_back_a_unit_at_most),
        T(test_cut_short),
        T(test_hold),
        T(test_held_go),
        T(test_drop_names_the_next),
        T(test_own_page_names_the_next),
        T(test_places),
        T(test_huge_page_is_one),
        T(test_ignore_shared),
        T(test_precopy),
        T(test_description),
        T(test_resume),
        T(test_sink_fails),
        T(test_what_may_be_dropped),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
