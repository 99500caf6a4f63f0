/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * test_stream_return.c - the return path: each message's bytes, what may be dropped, what is refused
 */
#include "unit.h"

#include "stream_return.h"

/* As QEMU writes them: PONG 1 of the stream's begin, a request by name, one more, PONG 0x42 of the
 * package, a message of a device that acknowledges the switch, the end */
#define PONG_1 0, 2, 0, 4, 0, 0, 0, 1
#define REQUEST_BY_NAME                                                                            \
    0, 3, 0, 19, 0, 0, 0, 0, 0, 0, 0x20, 0, 0, 0, 0x10, 0, 6, 'p', 'c', '.', 'r', 'a', 'm'
#define REQUEST 0, 4, 0, 12, 0, 0, 0, 0, 0, 0x40, 0, 0, 0, 0x20, 0, 0
#define PONG_LOADED 0, 2, 0, 4, 0, 0, 0, 0x42
#define ACK 0, 7, 0, 0
#define SHUT 0, 1, 0, 4, 0, 0, 0, 0

static const uint8_t sample[] = {PONG_1, REQUEST_BY_NAME, REQUEST, PONG_LOADED, ACK, SHUT};

static struct {
    struct stream_return m[16];
    unsigned n;
    int drop;       /* messages of this type; 0: none */
    uint32_t value; /* that have this value */
    uint8_t out[256];
    size_t len;
} got;

static struct stream_return_reader reader;
static struct ff_error err;

static int see_message(void *opaque, const struct stream_return *m, struct ff_error *why)
{
    (void)opaque;
    (void)why;
    assert_true(got.n < FF_ARRAY_LEN(got.m));
    got.m[got.n++] = *m;
    return (int)m->type == got.drop && m->value == got.value ? STREAM_DROP : STREAM_FORWARD;
}

static int keep_bytes(void *opaque, const void *data, size_t len, struct ff_error *why)
{
    (void)opaque;
    (void)why;
    assert_true(got.len + len <= sizeof(got.out));
    memcpy(got.out + got.len, data, len);
    got.len += len;
    return 0;
}

static int fresh(void **state)
{
    (void)state;
    memset(&got, 0, sizeof(got));
    memset(&err, 0, sizeof(err));
    reader = (struct stream_return_reader){.sink = {.event = see_message, .bytes = keep_bytes}};
    return 0;
}

static void feed_pieces(size_t step)
{
    for (size_t at = 0; at < sizeof(sample); at += step)
        assert_ok(stream_return_feed(&reader, sample + at, FF_MIN(step, sizeof(sample) - at), &err),
                  err);
}

static void assert_out(const uint8_t *want, size_t len)
{
    assert_int_equal(got.len, len);
    assert_memory_equal(got.out, want, len);
}

static void test_any_pieces(void **state)
{
    for (size_t step = 1; step <= sizeof(sample); step++) {
        fresh(state);
        feed_pieces(step);
        assert_out(sample, sizeof(sample));
        assert_int_equal(got.n, 6);
        assert_int_equal(got.m[0].value, 1);
        assert_string_equal(got.m[1].name, "pc.ram");
        assert_int_equal(got.m[1].addr, 0x2000);
        assert_int_equal(got.m[1].len_bytes, 0x1000);
        assert_string_equal(got.m[2].name, "pc.ram");
        assert_int_equal(got.m[2].addr, 0x400000);
        assert_int_equal(got.m[2].len_bytes, 0x200000);
        assert_int_equal(got.m[3].value, STREAM_PING_LOADED);
        assert_int_equal(got.m[4].type, STREAM_RETURN_SWITCHOVER_ACK);
        assert_int_equal(got.m[5].type, STREAM_RETURN_SHUT);
    }
}

/* What keeps a source of QEMU 10.2 and newer in postcopy-device */
static void test_drop_the_pong_of_the_package(void **state)
{
    static const uint8_t want[] = {PONG_1, REQUEST_BY_NAME, REQUEST, ACK, SHUT};

    (void)state;
    got.drop = STREAM_RETURN_PONG;
    got.value = STREAM_PING_LOADED;
    feed_pieces(5);
    assert_out(want, sizeof(want));
}

static void test_drop_names_the_next(void **state)
{
    static const uint8_t want[] = {PONG_1, 0,    3,   0,   19,  0,    0,           0,   0,
                                   0,      0x40, 0,   0,   0,   0x20, 0,           0,   6,
                                   'p',    'c',  '.', 'r', 'a', 'm',  PONG_LOADED, ACK, SHUT};

    (void)state;
    got.drop = STREAM_RETURN_REQ_PAGES_ID;
    feed_pieces(3);
    assert_out(want, sizeof(want));
}

static void test_not_to_be_dropped(void **state)
{
    static const int types[] = {STREAM_RETURN_SWITCHOVER_ACK};

    for (unsigned i = 0; i < FF_ARRAY_LEN(types); i++) {
        fresh(state);
        got.drop = types[i];
        assert_fails(stream_return_feed(&reader, sample, sizeof(sample), &err), EINVAL);
        assert_error(err, EINVAL, "verdict", "permitted");
        assert_non_null(strstr(err.text, stream_return_name((unsigned)types[i])));
    }
}

static void test_written_as_read(void **state)
{
    size_t at = 0;

    (void)state;
    feed_pieces(sizeof(sample));
    for (unsigned i = 0; i < got.n; i++) {
        uint8_t out[STREAM_RETURN_MAX];
        size_t len = stream_return_write(out, &got.m[i]);

        assert_true(at + len <= sizeof(sample));
        assert_memory_equal(out, sample + at, len);
        at += len;
    }
    assert_int_equal(at, sizeof(sample));
}

static void test_refused(void **state)
{
    static const struct {
        uint8_t data[24], len;
        const char *word;
    } bad[] = {
        {{0, 0, 0, 0}, 4, "type: 0"},
        {{0, 8, 0, 0}, 4, "type: 8"},
        {{0, 2, 0, 3, 0, 0, 0}, 7, "PONG: 3 bytes"},
        {{0, 7, 0, 1, 0}, 5, "SWITCHOVER_ACK: 1 bytes"},
        {{REQUEST}, 16, "no block was named"},
        {{0, 3, 0, 14, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0x10, 0, 1, 'a'}, 18, "whole pages"},
        {{0, 3, 0, 14, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x10, 0, 2, 'a'}, 18, "name"},
        {{0, 6, 0, 2, 1, 0}, 6, "RESUME_ACK: 2 bytes"},
    };

    for (unsigned i = 0; i < FF_ARRAY_LEN(bad); i++) {
        fresh(state);
        assert_fails(stream_return_feed(&reader, bad[i].data, bad[i].len, &err), EPROTO);
        assert_error(err, EPROTO, "return path: offset ", "permitted");
        if (!strstr(err.text, bad[i].word))
            fail_msg("\"%s\" is not in: %s", bad[i].word, err.text);
        assert_int_equal(got.len, 0);
        assert_fails(stream_return_feed(&reader, sample, 8, &err), EPROTO); /* it stays */
    }
}

int main(void)
{
#define T(name) cmocka_unit_test_setup(name, fresh)
    const struct CMUnitTest tests[] = {
        T(test_any_pieces),          T(test_drop_the_pong_of_the_package),
        T(test_drop_names_the_next), T(test_not_to_be_dropped),
        T(test_written_as_read),     T(test_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
