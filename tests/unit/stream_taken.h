/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * stream_taken.h - a stream that is fed a sample, and what its sink took
 */
#ifndef FF_TESTS_STREAM_TAKEN_H
#define FF_TESTS_STREAM_TAKEN_H

#include "unit.h"

#include "stream.h"
#include "stream_sample.h"

struct taken {
    unsigned kinds[STREAM_KINDS], zeros, ranges, held;
    uint64_t value[STREAM_KINDS];
    char drop[16];         /* pages of this block */
    enum stream_kind hold; /* @hold_times */
    unsigned hold_times;
    int verdict; /* of each unit, where not 0 */
    struct sample out;
};

static struct sample in;
static struct taken got;
static struct stream *stream;
static struct ff_error err;

static inline int see(void *opaque, const struct stream_event *e, struct ff_error *why)
{
    (void)opaque;
    if (got.verdict < 0)
        return ff_error_set(why, -got.verdict, "the sink's");
    if (got.verdict)
        return got.verdict;
    if (got.hold_times && e->kind == got.hold) {
        got.hold_times--;
        got.held++;
        return STREAM_HOLD;
    }
    got.kinds[e->kind]++;
    got.value[e->kind] = e->value;
    got.zeros += e->kind == STREAM_PAGE && !e->data;
    got.ranges += e->n_ranges;
    if (e->kind == STREAM_PAGE)
        assert_true(e->addr < e->block->len_bytes);
    return e->kind == STREAM_PAGE && !strcmp(e->block->name, got.drop) ? STREAM_DROP
                                                                       : STREAM_FORWARD;
}

static inline int keep(void *opaque, const void *data, size_t len, struct ff_error *why)
{
    (void)opaque;
    (void)why;
    assert_true(len && got.out.len + len <= sizeof(got.out.data));
    sample_add(&got.out, data, len);
    return 0;
}

static inline int begin(void **state)
{
    (void)state;
    memset(&got, 0, sizeof(got));
    memset(&err, 0, sizeof(err));
    in.len = 0;
    stream = stream_new(&(struct stream_sink){.event = see, .bytes = keep});
    assert_non_null(stream);
    return 0;
}

static inline int end(void **state)
{
    (void)state;
    stream_free(stream);
    return 0;
}

/* Feed in pieces of @step; what is held is fed again */
static inline ssize_t feed(size_t step)
{
    size_t used = 0;

    while (used < in.len || stream_holds(stream)) {
        ssize_t n = stream_feed(stream, in.data + used, FF_MIN(step, in.len - used), &err);

        if (n < 0)
            return n;
        used += (size_t)n;
    }
    return (ssize_t)used;
}

static inline void assert_whole(void)
{
    assert_int_equal(stream_end(stream, &err), 0);
    assert_int_equal(stream_offset(stream), in.len);
    assert_int_equal(got.out.len, in.len);
    assert_memory_equal(got.out.data, in.data, in.len);
}

/* What was fed fails, and goes on failing; the message has this text */
static inline void refused(int code, const char *text)
{
    assert_int_equal(feed(SIZE_MAX), -code);
    assert_error(err, code, "offset", "permitted");
    if (!strstr(err.text, text))
        fail_msg("\"%s\" is not in: %s", text, err.text);
    assert_int_equal(stream_feed(stream, "", 1, NULL), -code);
}

#define T(f) cmocka_unit_test_setup_teardown(f, begin, end)

#endif
