/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * test_touched.c - what a guest touches between PUBLISH and its pause is registered while it runs
 */
#include "unit.h"

#include <pthread.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "farfork.h"
#include "source_private.h"

#define SEGMENT (64ull << 20)
#define SEGMENTS 8u

static uint8_t *memory;
static unsigned registered, touches, touch_more;
static uint64_t registered_bytes;

/* A guest that runs */
static void touch(unsigned segment)
{
    memory[segment * SEGMENT + SEGMENT / 2] = 1;
    touches++;
}

static pthread_mutex_t registers = PTHREAD_MUTEX_INITIALIZER;

/* By several threads at once */
static int fake_reg(struct ff_link *l, void *addr, uint64_t len, unsigned access, struct ff_mr *mr,
                    struct ff_error *err)
{
    (void)l;
    (void)err;
    assert_int_equal(access, FF_ACCESS_REMOTE_READ);
    pthread_mutex_lock(&registers);
    registered_bytes += len;
    *mr = (struct ff_mr){.addr = addr, .len_bytes = len, .access = access, .rkey = ++registered};
    if (touch_more && touch_more--)
        touch(touches); /* meanwhile */
    pthread_mutex_unlock(&registers);
    return 0;
}

static void fake_dereg(struct ff_link *l, struct ff_mr *mr)
{
    (void)l;
    (void)mr;
}

static bool grants;

/* The destination is ready to watch; until then the guest has touched more */
static int fake_recv(struct ff_link *l, void *buf, int timeout_ms, struct ff_error *err)
{
    (void)l;
    (void)timeout_ms;
    (void)err;
    if (grants)
        return ff_wire_put_grants(buf, &(struct ff_grant){.len_bytes = 4096}, 1);
    touch(touches);
    return ff_wire_put_empty(buf, FF_MSG_WATCHING);
}

/* What is said of parts */
static struct ff_wire_part parts[8];
static unsigned n_parts;
static const struct ff_wire_region table = {.name = "ram", .len_bytes = SEGMENTS * SEGMENT, .psize = 4096};

/* A destination that asks for memory too soon: nothing is pushed out of a list of segments that may move */
static void must_refuse_grants(struct ff_source *s)
{
    struct ff_error err;

    grants = true;
    s->wants_precopy = true;
    assert_fails(ff_source_wait_watched(s, &err), EPROTO);
    assert_error(err, EPROTO, "GRANT (want WATCHING)");
    s->watched = true;
    assert_fails(ff_source_precopy(s, &err), EPROTO);
    assert_error(err, EPROTO, "GRANT (want PASSED)");
    assert_fails(ff_source_wait_ready(s, &err), EPROTO);
    assert_error(err, EPROTO, "GRANT (want READY)");
    s->stage = SENT;
    assert_fails(ff_source_go(s, &err), ETIME);
    assert_error(err, ETIME, "GRANT (want WITHDRAWN)");
    assert_int_equal(s->stage, SENT);
    assert_fails(ff_source_wait_done(s, &err), EINVAL);
    assert_int_equal(s->responder.n, 0);
    grants = s->watched = s->wants_precopy = s->precopied = false;
    s->stage = NEW;
    s->paused_ns = 0;
}

static int fake_send(struct ff_link *l, const void *buf, uint32_t len, struct ff_error *err)
{
    (void)l;
    return ff_wire_type(buf, len, err) == FF_MSG_PARTS
               ? ff_wire_get_parts(buf, len, parts, FF_ARRAY_LEN(parts), &table, 1, &n_parts, err) : 0;
}

static void fake_free(struct ff_link *l)
{
    (void)l;
}

static const struct ff_link_ops ops = {
    .name = "fake", .reg = fake_reg, .dereg = fake_dereg, .recv = fake_recv, .send = fake_send,
                                       .free = fake_free};

static bool no_memory;

int __real_ff_segments_cut(struct ff_segments *p, const struct ff_regions *t, struct ff_error *err);
int __wrap_ff_segments_cut(struct ff_segments *p, const struct ff_regions *t, struct ff_error *err);
int __wrap_ff_segments_cut(struct ff_segments *p, const struct ff_regions *t, struct ff_error *err)
{
    return no_memory ? ff_error_set(err, ENOMEM, "no memory") : __real_ff_segments_cut(p, t, err);
}

/* What is touched after the last round: what holds it is registered in the pause, and the rest is said to be zeros */
static void must_cut_last(struct ff_source *s)
{
    uint64_t before = registered_bytes, last = SEGMENTS - 1;
    struct ff_error err;

    n_parts = 0;
    touch(SEGMENTS - 1);
    touch_more = 0;
    assert_ok(ff_source_send_state(s, "state", 5, NULL, 0, &err), err);
    if (!s->link->pins) {
        assert_int_equal(n_parts, 0);
        return;
    }
    assert_int_equal(registered_bytes - before, no_memory ? SEGMENT : 1 << 20);
    assert_int_equal(n_parts, no_memory ? 0 : 3);
    if (no_memory)
        return;
    static const uint64_t ends[] = {SEGMENT / 2, SEGMENT / 2 + (1 << 20), SEGMENT};
    for (unsigned i = 0, at = 0; i < n_parts; at = (unsigned)ends[i++]) {
        assert_true(parts[i].offset == last * SEGMENT + at && parts[i].len_bytes == ends[i] - at);
        assert_int_equal(parts[i].rkey == FF_WIRE_PART_ZEROS, i != 1);
        assert_int_not_equal(parts[i].rkey, 0);
    }
}

/* What the source knows of when its guest is to stop, as it had done @more in the rounds: how many segments are
 * left for the pause */
static unsigned left_for_pause(bool pins, unsigned more)
{
    struct ff_link link = {.ops = &ops, .max_mr_bytes = UINT64_MAX, .pins = pins};
    struct ff_region r = {.name = "ram", .len_bytes = SEGMENTS * SEGMENT, .psize = 4096, .fd = -1,
                          .zero_fill = true, .private_fd = -1};
    struct ff_address *a;
    struct ff_source *s;
    struct ff_error err;

    memory = mmap(NULL, r.len_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
                  -1, 0);
    assert_true(memory != MAP_FAILED);
    assert_int_equal(madvise(memory, r.len_bytes, MADV_NOHUGEPAGE), 0);
    r.host = memory;
    registered = touches = 0;
    registered_bytes = 0;
    touch_more = more;
    assert_ok(ff_address_parse("127.0.0.1:1", &a, &err), err);
    assert_ok(ff_source_new(a, &s, &err), err);
    assert_ok(ff_regions_add(&s->regions, &r, &err), err);
    ff_source_use_link(s, &link);
    assert_ok(ff_segments_init(&s->segments, &s->regions, SEGMENT, &err), err);
    touch(0);
    must_refuse_grants(s);
    assert_ok(ff_source_wait_watched(s, &err), err);
    assert_int_equal(registered_bytes, registered * SEGMENT);
    unsigned left = ff_segments_want_populated(&s->segments, &s->regions);
    for (unsigned i = 0; i < s->segments.n; i++) /* they are told of with STATE */
        assert_false(s->segments.segment[i].told);
    unsigned in_rounds = registered;
    must_cut_last(s);
    registered = in_rounds;
    s->link = NULL;
    ff_source_free(s);
    ff_address_free(a);
    munmap(memory, r.len_bytes);
    return left;
}

static void test_registered_while_it_runs(void **state)
{
    (void)state;
    assert_int_equal(left_for_pause(true, 0), 0);
    assert_int_equal(registered, 2);
    assert_int_equal(left_for_pause(true, 4), 0); /* in rounds: each finds what was touched in the last */
    assert_int_equal(registered, 6);
    no_memory = true;
    assert_int_equal(left_for_pause(true, 0), 0); /* what cannot be cut is registered whole */
    no_memory = false;
    assert_int_equal(left_for_pause(false, 0), 2); /* where it costs nothing it waits for STATE */
    assert_int_equal(registered, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_registered_while_it_runs),
    };
    return cmocka_run_group_tests_name("touched", tests, NULL, NULL);
}
