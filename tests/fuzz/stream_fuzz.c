/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * stream_fuzz.c - libFuzzer: QEMU's migration stream and its return path
 *
 * Input: one byte that says how it is fed, then the stream. Fed whole and in pieces it has the
 * same fate; what is forwarded is what came; with pages dropped and units held it stays a stream.
 */
#include "error.c"
#include "printable.c"
#include "input.h"
#include "stream.c"
#include "stream_parse.c"
#include "stream_ram.c"
#include "stream_return.c"
#include "stream_write.c"

struct fate {
    uint8_t out[1 << 16];
    size_t len;
    uint64_t units, taken;
    unsigned drop, hold;
    int rc;
};

static int see_unit(void *opaque, const struct stream_event *e, struct ff_error *err)
{
    struct fate *f = opaque;

    (void)err;
    must((unsigned)e->kind < STREAM_KINDS && stream_kind_name(e->kind)[0]);
    if (e->kind == STREAM_PAGE)
        must(e->block && e->addr < e->block->len_bytes && e->addr % STREAM_PAGE_LEN == 0);
    for (unsigned i = 0; i < e->n_ranges; i++)
        must(e->ranges[i].start + e->ranges[i].len_bytes <= e->block->len_bytes);
    if (f->hold && f->units % 3 == 0 && --f->hold)
        return STREAM_HOLD;
    f->units++;
    return f->drop && e->kind == STREAM_PAGE && e->addr >> 12 & 1 ? STREAM_DROP : STREAM_FORWARD;
}

static int see_message(void *opaque, const struct stream_return *m, struct ff_error *err)
{
    struct fate *f = opaque;
    bool request = m->type == STREAM_RETURN_REQ_PAGES || m->type == STREAM_RETURN_REQ_PAGES_ID;

    (void)err;
    f->units++;
    must(!request || (m->name[0] && m->len_bytes && m->addr % STREAM_PAGE_LEN == 0));
    return f->drop && request && m->addr >> 12 & 1 ? STREAM_DROP : STREAM_FORWARD;
}

static int keep_bytes(void *opaque, const void *data, size_t len, struct ff_error *err)
{
    struct fate *f = opaque;

    (void)err;
    must(len <= sizeof(f->out) - f->len);
    memcpy(f->out + f->len, data, len);
    f->len += len;
    return 0;
}

static void feed_all(struct fate *f, const uint8_t *data, size_t len, size_t step)
{
    struct stream_sink sink = {.event = see_unit, .bytes = keep_bytes, .opaque = f};
    struct stream *s = stream_new(&sink);
    struct ff_error err = {0};

    must(s);
    while (f->rc >= 0 && (f->taken < len || stream_holds(s))) {
        ssize_t n = stream_feed(s, data + f->taken, FF_MIN(step, len - f->taken), &err);

        f->rc = n < 0 ? (int)n : 0;
        f->taken += n > 0 ? (uint64_t)n : 0;
        must(n >= 0 || (err.code == -n && err.text[0]));
    }
    stream_free(s);
}

static void feed_back(struct fate *f, const uint8_t *data, size_t len, size_t step)
{
    struct stream_return_reader r = {
        .sink = {.event = see_message, .bytes = keep_bytes, .opaque = f}};
    struct ff_error err = {0};

    while (!f->rc && f->taken < len) {
        size_t n = FF_MIN(step, len - f->taken);

        f->rc = stream_return_feed(&r, data + f->taken, n, &err);
        f->taken += n;
        must(!f->rc || (err.code == -f->rc && err.text[0]));
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len)
{
    static struct fate whole, pieces, other;
    void (*feed)(struct fate *, const uint8_t *, size_t, size_t);
    size_t step;

    if (!len || len > 1 << 15)
        return 0;
    feed = data[0] & 1 ? feed_back : feed_all;
    step = 1 + (size_t)(data[0] >> 1) * 5;
    data++;
    len--;
    whole.len = pieces.len = other.len = 0;
    whole.units = pieces.units = other.units = 0;
    whole.taken = pieces.taken = other.taken = 0;
    whole.rc = pieces.rc = other.rc = 0;
    feed(&whole, data, len, len + 1);
    feed(&pieces, data, len, step);
    must(whole.rc == pieces.rc && whole.units == pieces.units && whole.len == pieces.len);
    must(whole.len <= len && !memcmp(whole.out, data, whole.len));
    must(!memcmp(pieces.out, data, pieces.len));
    if (len > 1 << 11) /* a name in place of CONTINUE may make it longer */
        return 0;
    other.drop = 1;
    other.hold = 7;
    feed(&other, data, len, step);
    must(other.rc == whole.rc && other.units == whole.units);
    return 0;
}
