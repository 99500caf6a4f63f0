/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * test_segments.c - registration in segments: what is left alone, what is refused, what fails half
 * way
 */
#include "unit.h"

#include <stdatomic.h>
#include <sys/mman.h>

#include "cleanup.h"
#include "mr.h"
#include "segments.h"

#define MIB (1ull << 20)

/* A link that counts what is registered, may not pin more than pin_limit, and fails a
 * registration by its number */
static struct {
    _Atomic uint64_t bytes, on_demand_bytes;
    _Atomic unsigned calls, live;
    unsigned fail_at; /* 0: never */
    uint64_t pin_limit;
    bool gives_key_0;
    bool refuses_unreadable; /* as an adapter that pins */
} fake;

static void spoil(void *page)
{
    FF_AUTO_CLOSE int fd = memfd_create("too short", MFD_CLOEXEC);

    assert_true(mmap(page, 4096, PROT_READ, MAP_SHARED | MAP_FIXED, fd, 0) != MAP_FAILED);
}

/* --- memory that fails while it is looked at --- */

static struct {
    _Atomic unsigned calls; /* of several threads */
    unsigned fail_at;       /* 0: never */
    void *page;
} look;

uint32_t __real_ff_readable(const void *addr, uint32_t len);
uint32_t __wrap_ff_readable(const void *addr, uint32_t len);

uint32_t __wrap_ff_readable(const void *addr, uint32_t len)
{
    if (++look.calls == look.fail_at)
        spoil(look.page);
    return __real_ff_readable(addr, len);
}

static int fake_reg(struct ff_link *l, void *addr, uint64_t len, unsigned access, struct ff_mr *mr,
                    struct ff_error *err)
{
    unsigned n = ++fake.calls;

    if (len > l->max_mr_bytes)
        return ff_error_set(err, EINVAL, "fake: too large");
    for (uint64_t at = 0; fake.refuses_unreadable && at < len; at += 1u << 30)
        if (ff_readable((uint8_t *)addr + at, (uint32_t)FF_MIN(len - at, 1ull << 30)) <
            FF_MIN(len - at, 1ull << 30))
            return ff_error_set(err, EFAULT, "fake: bad address");
    if (n == fake.fail_at)
        return ff_error_set(err, EIO, "fake: number %u fails", n);
    if (access & FF_ACCESS_ON_DEMAND)
        fake.on_demand_bytes += len;
    fake.bytes += len;
    fake.live++;
    *mr = (struct ff_mr){
        .addr = addr, .len_bytes = len, .access = access, .rkey = fake.gives_key_0 ? 0 : n};
    return 0;
}

static void fake_dereg(struct ff_link *l, struct ff_mr *mr)
{
    (void)l;
    fake.live--;
    fake.bytes -= mr->len_bytes;
}

static int fake_may_pin(struct ff_link *l, uint64_t bytes, struct ff_error *err)
{
    (void)l;
    return bytes <= fake.pin_limit ? 0
                                   : ff_error_set(err, ENOMEM, "fake: pin %llu bytes: too many",
                                                  (unsigned long long)bytes);
}

static const struct ff_link_ops fake_ops = {
    .name = "fake", .reg = fake_reg, .dereg = fake_dereg, .may_pin = fake_may_pin};

static struct ff_link new_link(void)
{
    memset(&fake, 0, sizeof(fake));
    fake.pin_limit = UINT64_MAX;
    return (struct ff_link){.ops = &fake_ops, .max_mr_bytes = UINT64_MAX, .pins = true};
}

static struct ff_region anon(uint64_t len)
{
    void *p = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
                   -1, 0);
    assert_ptr_not_equal(p, MAP_FAILED);
    madvise(p, len, MADV_NOHUGEPAGE);
    return (struct ff_region){
        .name = "anon", .host = p, .len_bytes = len, .psize = 4096, .fd = -1, .zero_fill = true};
}

static struct ff_region memfd(uint64_t len)
{
    int fd = memfd_create("segments", MFD_CLOEXEC);
    assert_true(fd >= 0 && !ftruncate(fd, (off_t)(len + MIB)));
    void *p = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_SHARED, fd, (off_t)MIB);
    assert_ptr_not_equal(p, MAP_FAILED);
    return (struct ff_region){.name = "memfd", .host = p, .len_bytes = len, .psize = 4096,
                              .fd = fd, .fd_offset = MIB, .zero_fill = true};
}

static uint64_t resident_pages(const struct ff_region *r)
{
    static unsigned char map[1 << 20];
    uint64_t n = 0, pages = r->len_bytes / 4096;

    assert_true(pages <= sizeof(map) && !mincore(r->host, r->len_bytes, map));
    for (uint64_t i = 0; i < pages; i++)
        n += map[i] & 1;
    return n;
}

static void end(struct ff_segments *p, struct ff_regions *t)
{
    for (unsigned i = 0; i < t->n; i++) {
        munmap(t->r[i].host, t->r[i].len_bytes);
        if (t->r[i].fd >= 0)
            close(t->r[i].fd);
    }
    ff_segments_free(p);
}

static void test_sizes(void **state)
{
    struct ff_regions *t = calloc(1, sizeof(*t));
    struct ff_link l = new_link();
    (void)state;

    t->n = 2;
    t->r[0].len_bytes = 4096;
    t->r[1].len_bytes = 300 * MIB;
    assert_int_equal(ff_segments_size(t, &l), 64 * MIB);
    t->r[1].len_bytes = 64ull << 30;
    assert_int_equal(ff_segments_size(t, &(struct ff_link){.max_mr_bytes = UINT64_MAX}), 256 * MIB);
    assert_int_equal(ff_segments_size(t, &l), 64 * MIB);
    t->r[1].len_bytes = 1ull << 40;
    assert_int_equal(ff_segments_size(t, &l), 1024 * MIB);
    t->r[1].len_bytes = 64ull << 30;
    l.max_mr_bytes = 100 * MIB;
    assert_int_equal(ff_segments_size(t, &l), 64 * MIB);
    l.max_mr_bytes = 4 * MIB;
    assert_int_equal(ff_segments_size(t, &l), 4 * MIB);
    l.max_mr_bytes = 4 * MIB - 1;
    assert_int_equal(ff_segments_size(t, &l), 0);
    assert_int_equal(ff_segments_of(1, 4 * MIB), 1);
    assert_int_equal(ff_segments_of(4 * MIB, 4 * MIB), 1);
    assert_int_equal(ff_segments_of(4 * MIB + 1, 4 * MIB), 2);

    struct ff_segments p = {.n = 0};
    struct ff_error err;
    t->r[1].len_bytes = 64ull << 30;
    assert_fails(ff_segments_init(&p, t, 4 * MIB, &err), E2BIG);
    assert_error(err, E2BIG, "16385", "4 MiB", "4096");
    free(t);
}

/* Touched segments alone are wanted, and finding out populates nothing */
static void one_memory(struct ff_region r)
{
    struct ff_regions *t = calloc(1, sizeof(*t));
    struct ff_segments p = {.n = 0};
    struct ff_link l = new_link();
    struct ff_error err;

    t->n = 1;
    t->r[0] = r;
    assert_ok(ff_segments_init(&p, t, 64 * MIB, &err), err);
    assert_int_equal(p.n, 5); /* the last one is of 4 MiB */
    assert_int_equal(p.segment[4].len_bytes, 4 * MIB);
    assert_int_equal(ff_segments_want_populated(&p, t), 0);
    assert_ok(ff_segments_register(&p, &l, FF_ACCESS_REMOTE_READ, FF_ODP_AUTO, &err), err);
    assert_int_equal(fake.calls, 0);

    uint8_t *at = r.host;
    at[64 * MIB - 1] = 1;      /* the end of segment 0 */
    at[3 * 64 * MIB] = 0;      /* the start of segment 3, touched, though zero */
    at[4 * 64 * MIB + 5] = 1;  /* the last one */
    assert_int_equal(ff_segments_want_populated(&p, t), 3);
    assert_true(p.segment[0].wanted && p.segment[3].wanted && p.segment[4].wanted);
    assert_ok(ff_segments_register(&p, &l, FF_ACCESS_REMOTE_READ, FF_ODP_AUTO, &err), err);
    assert_int_equal(fake.calls, 3);
    assert_int_equal(fake.bytes, 132 * MIB);
    assert_ptr_equal(p.segment[3].mr.addr, at + 3 * 64 * MIB);

    at[2 * 64 * MIB - 4096] = 1; /* in between: segment 1 */
    assert_int_equal(ff_segments_want_populated(&p, t), 1);
    assert_ok(ff_segments_register(&p, &l, FF_ACCESS_REMOTE_READ, FF_ODP_AUTO, &err), err);
    assert_int_equal(fake.calls, 4);
    assert_false(p.segment[2].wanted || p.segment[2].mr.len_bytes);
    assert_int_equal(resident_pages(&t->r[0]), 4);

    ff_segments_dereg(&p, &l);
    assert_int_equal(fake.live, 0);
    ff_segments_dereg(&p, &l); /* nothing is given back twice */
    end(&p, t);
    free(t);
}

static void test_anon(void **state)
{
    (void)state;
    one_memory(anon(260 * MIB));
}

static void test_memfd(void **state)
{
    (void)state;
    one_memory(memfd(260 * MIB));
}

/* A private mapping of a file reads as the file where nobody has touched it */
static void test_not_zero_fill(void **state)
{
    struct ff_regions *t = calloc(1, sizeof(*t));
    struct ff_segments p = {.n = 0};
    struct ff_error err;
    (void)state;

    t->n = 1;
    t->r[0] = anon(128 * MIB);
    t->r[0].zero_fill = false;
    assert_ok(ff_segments_init(&p, t, 64 * MIB, &err), err);
    assert_int_equal(ff_segments_want_populated(&p, t), 2);
    end(&p, t);
    free(t);
}

static struct ff_segments forty(struct ff_regions *t)
{
    struct ff_segments p = {.n = 0};
    struct ff_error err;

    t->n = 1;
    t->r[0] = anon(160 * MIB);
    t->r[0].zero_fill = false;
    assert_ok(ff_segments_init(&p, t, 4 * MIB, &err), err);
    ff_segments_want_populated(&p, t);
    return p;
}

static void test_failures(void **state)
{
    struct ff_regions *t = calloc(1, sizeof(*t));
    struct ff_segments p = forty(t);
    struct ff_link l = new_link();
    struct ff_error err;
    (void)state;

    /* one fails: the reason is told, the others can be given back */
    fake.fail_at = 17;
    assert_fails(ff_segments_register(&p, &l, 0, FF_ODP_AUTO, &err), EIO);
    assert_error(err, EIO, "number 17 fails");
    ff_segments_dereg(&p, &l);
    assert_int_equal(fake.live, 0);

    static const unsigned remote[] = {FF_ACCESS_REMOTE_READ, FF_ACCESS_REMOTE_WRITE};
    for (unsigned i = 0; i < 2; i++) {
        l = new_link();
        fake.gives_key_0 = true;
        assert_fails(ff_segments_register(&p, &l, remote[i], FF_ODP_AUTO, &err), EIO);
        assert_error(err, EIO, "key 0");
        ff_segments_dereg(&p, &l);
        assert_int_equal(fake.live, 0);
    }

    /* memory that no peer may access needs no key */
    l = new_link();
    fake.gives_key_0 = true;
    assert_ok(ff_segments_register(&p, &l, 0, FF_ODP_AUTO, &err), err);
    assert_true(fake.live);
    ff_segments_dereg(&p, &l);
    assert_int_equal(fake.live, 0);
    end(&p, t);
    free(t);
}

static void test_memlock_and_odp(void **state)
{
    struct ff_regions *t = calloc(1, sizeof(*t));
    struct ff_segments p = forty(t);
    struct ff_link l = new_link();
    struct ff_error err;
    (void)state;

    /* refused before anything is registered */
    fake.pin_limit = 160 * MIB - 1;
    assert_fails(ff_segments_register(&p, &l, 0, FF_ODP_AUTO, &err), ENOMEM);
    assert_error(err, ENOMEM, "167772160");
    assert_fails(ff_segments_register(&p, &l, 0, FF_ODP_OFF, &err), ENOMEM);
    assert_fails(ff_segments_register(&p, &l, 0, FF_ODP_ON, &err), ENOTSUP);
    assert_error(err, ENOTSUP, "odp=on", "odp=auto");
    assert_int_equal(fake.calls, 0);

    /* a device that need not pin: auto uses that only when the limit asks for it */
    l.on_demand = true;
    assert_fails(ff_segments_register(&p, &l, 0, FF_ODP_OFF, &err), ENOMEM);
    assert_ok(ff_segments_register(&p, &l, 0, FF_ODP_AUTO, &err), err);
    assert_int_equal(fake.on_demand_bytes, 160 * MIB);
    assert_true(p.on_demand);
    ff_segments_dereg(&p, &l);

    l = new_link();
    l.on_demand = true;
    assert_ok(ff_segments_register(&p, &l, 0, FF_ODP_AUTO, &err), err);
    assert_int_equal(fake.on_demand_bytes, 0);
    ff_segments_dereg(&p, &l);
    assert_ok(ff_segments_register(&p, &l, 0, FF_ODP_ON, &err), err);
    assert_int_equal(fake.on_demand_bytes, 160 * MIB);
    ff_segments_dereg(&p, &l);

    /* what may be wanted later counts now; and once on demand, always on demand */
    l = new_link();
    l.on_demand = true;
    fake.pin_limit = 100 * MIB;
    for (unsigned i = 20; i < p.n; i++)
        p.segment[i].wanted = false; /* 80 MiB would do */
    assert_ok(ff_segments_register(&p, &l, 0, FF_ODP_OFF, &err), err);
    ff_segments_dereg(&p, &l);
    p.grows = true;
    assert_fails(ff_segments_register(&p, &l, 0, FF_ODP_OFF, &err), ENOMEM);
    assert_error(err, ENOMEM, "167772160");
    assert_ok(ff_segments_register(&p, &l, 0, FF_ODP_AUTO, &err), err);
    assert_int_equal(fake.on_demand_bytes, 80 * MIB);
    ff_segments_want_populated(&p, t);
    assert_ok(ff_segments_register(&p, &l, 0, FF_ODP_AUTO, &err), err);
    assert_int_equal(fake.on_demand_bytes, 160 * MIB);
    ff_segments_dereg(&p, &l);

    /* a link that never pins is not asked */
    l = new_link();
    l.pins = false;
    fake.pin_limit = 0;
    assert_ok(ff_segments_register(&p, &l, 0, FF_ODP_ON, &err), err);
    assert_int_equal(fake.on_demand_bytes, 0);
    end(&p, t);
    free(t);
}

struct expected {
    uint32_t number;
    uint64_t page, n;
    bool unreadable;
};

static void must_be(const struct ff_segments *p, const struct ff_region *r,
                    const struct expected *want, unsigned n)
{
    assert_int_equal(p->n, n);
    for (unsigned i = 0; i < n; i++) {
        const struct ff_segment *s = &p->segment[i];
        assert_int_equal(s->number, want[i].number);
        assert_true(s->addr == (uint8_t *)r->host + want[i].page * 4096);
        assert_true(s->len_bytes == want[i].n * 4096);
        assert_int_equal(s->unreadable, want[i].unreadable);
        assert_int_equal(s->mr.len_bytes, want[i].unreadable ? 0 : want[i].n * 4096);
    }
}

/* What an adapter refuses to register is split at the pages that cannot be read; again, when the
 * next link's does */
static void test_unreadable(void **state)
{
    struct ff_regions t = {.n = 1, .r[0] = anon(12 * MIB)};
    struct ff_link l = new_link();
    struct ff_segments p = {.n = 0};
    struct ff_error err;
    (void)state;

    memset(t.r[0].host, 1, t.r[0].len_bytes);
    assert_ok(ff_segments_init(&p, &t, 4 * MIB, &err), err);
    assert_int_equal(ff_segments_want_populated(&p, &t), 3);
    fake.refuses_unreadable = true;
    spoil((uint8_t *)t.r[0].host + 1024 * 4096); /* the first of segment 1 */
    spoil((uint8_t *)t.r[0].host + 1100 * 4096);
    spoil((uint8_t *)t.r[0].host + 1101 * 4096);
    spoil((uint8_t *)t.r[0].host + 3071 * 4096); /* the last of segment 2 */
    assert_ok(ff_segments_register(&p, &l, FF_ACCESS_REMOTE_READ, FF_ODP_AUTO, &err), err);
    static const struct expected parts[] = {
        {0, 0, 1024, false},   {1, 1024, 1, true},    {1, 1025, 75, false}, {1, 1100, 2, true},
        {1, 1102, 946, false}, {2, 2048, 1023, false}, {2, 3071, 1, true}};
    must_be(&p, &t.r[0], parts, FF_ARRAY_LEN(parts));
    for (unsigned i = 0; i < p.n; i++)
        assert_int_equal(p.segment[i].is_part, i > 0);
    ff_segments_dereg(&p, &l);
    assert_int_equal(fake.live, 0);

    spoil((uint8_t *)t.r[0].host + 1030 * 4096);
    for (uint64_t page = 0; page < 1024; page++)
        spoil((uint8_t *)t.r[0].host + page * 4096); /* all of segment 0 */
    assert_ok(ff_segments_register(&p, &l, FF_ACCESS_REMOTE_READ, FF_ODP_AUTO, &err), err);
    static const struct expected again[] = {
        {0, 0, 1024, true},  {1, 1024, 1, true},    {1, 1025, 5, false},    {1, 1030, 1, true},
        {1, 1031, 69, false}, {1, 1100, 2, true},   {1, 1102, 946, false},  {2, 2048, 1023, false},
        {2, 3071, 1, true}};
    must_be(&p, &t.r[0], again, FF_ARRAY_LEN(again));
    ff_segments_dereg(&p, &l);
    end(&p, &t);
}

/* --- cut for the pause --- */

/* Of segments of 64 MiB, in granules of 1 MiB: what is registered is what is populated, and not more */
static void cut_memory(struct ff_region r)
{
    struct ff_regions *t = calloc(1, sizeof(*t));
    struct ff_segments p = {.n = 0};
    struct ff_link l = new_link();
    struct ff_error err;
    uint8_t *at = r.host;

    t->n = 1;
    t->r[0] = r;
    assert_ok(ff_segments_init(&p, t, 64 * MIB, &err), err);
    at[0] = 1;
    assert_int_equal(ff_segments_want_populated(&p, t), 1);
    assert_ok(ff_segments_register(&p, &l, FF_ACCESS_REMOTE_READ, FF_ODP_AUTO, &err), err); /* the guest runs */
    assert_ok(ff_segments_cut(&p, t, &err), err);
    assert_int_equal(p.n, 5);
    at[64 * MIB + 5 * MIB - 1] = 1;
    at[64 * MIB + 5 * MIB] = 1; /* two granules side by side */
    at[128 * MIB - 1] = 1;
    at[4 * 64 * MIB] = 0; /* touched, though zero: the last segment, of 4 MiB */
    assert_int_equal(ff_segments_want_populated(&p, t), 2);
    assert_ok(ff_segments_cut(&p, t, &err), err);
    for (unsigned links = 0; links < 2; links++) { /* over the next one they are the same */
        assert_ok(ff_segments_register(&p, &l, FF_ACCESS_REMOTE_READ, FF_ODP_AUTO, &err), err);
        static const struct {
            unsigned number, mib;
            bool zeros, is_part;
        } want[] = {{0, 64, false, false}, {1, 4, true, true}, {1, 2, false, true}, {1, 57, true, true},
                    {1, 1, false, true},   {2, 64, false, false}, {3, 64, false, false}, {4, 1, false, true},
                    {4, 3, true, true}};
        uint64_t mib = 0;
        assert_int_equal(p.n, FF_ARRAY_LEN(want));
        for (unsigned i = 0; i < p.n; i++) {
            const struct ff_segment *s = &p.segment[i];
            bool none = s->number == 2 || s->number == 3;
            assert_int_equal(s->number, want[i].number);
            assert_true(s->addr == at + mib * MIB && s->len_bytes == want[i].mib * MIB);
            assert_int_equal(s->zeros, want[i].zeros);
            assert_int_equal(s->is_part, want[i].is_part);
            assert_int_equal(s->mr.len_bytes, s->zeros || none ? 0 : s->len_bytes);
            mib += want[i].mib;
        }
        assert_int_equal(ff_segments_want_populated(&p, t), 0);
        assert_ok(ff_segments_cut(&p, t, &err), err);
        assert_int_equal(resident_pages(&t->r[0]), 5);
        ff_segments_dereg(&p, &l);
    }
    assert_int_equal(fake.live, 0);
    end(&p, t);
    free(t);
}

static void test_cut(void **state)
{
    (void)state;
    cut_memory(anon(260 * MIB));
    cut_memory(memfd(260 * MIB));
}

/* What is populated cannot be told by the page; or there would be more parts than a peer takes */
static void test_not_cut(void **state)
{
    struct ff_regions *t = calloc(1, sizeof(*t));
    struct ff_segments p = forty(t);
    struct ff_error err;
    (void)state;

    assert_ok(ff_segments_cut(&p, t, &err), err);
    assert_int_equal(p.n, 40);
    end(&p, t);

    t->r[0] = anon(4096 * MIB);
    assert_ok(ff_segments_init(&p, t, 4 * MIB, &err), err);
    for (uint64_t at = 0; at < t->r[0].len_bytes; at += 128 << 10) /* every other granule of 64 KiB */
        ((uint8_t *)t->r[0].host)[at] = 1;
    assert_int_equal(ff_segments_want_populated(&p, t), 1024);
    assert_ok(ff_segments_cut(&p, t, &err), err);
    assert_in_range(p.n, 2048, 3072);
    uint64_t bytes = 0;
    for (unsigned i = 0; i < p.n; i++) {
        assert_true(p.segment[i].addr == (uint8_t *)t->r[0].host + bytes);
        assert_int_equal(p.segment[i].wanted, !p.segment[i].zeros);
        bytes += p.segment[i].len_bytes;
    }
    assert_true(bytes == t->r[0].len_bytes);
    end(&p, t);
    free(t);
}

/* Whenever a page fails: what is registered, or left out, is all of it, in whole pages */
static void test_fails_meanwhile(void **state)
{
    struct ff_link l = new_link();
    struct ff_error err;
    bool asked = true;
    (void)state;

    for (unsigned at = 1; asked; at++) {
        struct ff_regions t = {.n = 1, .r[0] = anon(4 * MIB)};
        struct ff_segments p = {.n = 0};
        uint8_t *m = t.r[0].host;
        memset(m, 1, t.r[0].len_bytes);
        assert_ok(ff_segments_init(&p, &t, 4 * MIB, &err), err);
        assert_int_equal(ff_segments_want_populated(&p, &t), 1);
        fake.refuses_unreadable = true;
        spoil(m + 500 * 4096);
        look.page = m + 501 * 4096;
        look.calls = 0;
        look.fail_at = at;
        assert_ok(ff_segments_register(&p, &l, FF_ACCESS_REMOTE_READ, FF_ODP_AUTO, &err), err);
        asked = look.calls >= at;
        look.fail_at = 0;
        uint64_t end = 0;
        for (unsigned i = 0; i < p.n; i++) {
            assert_true(p.segment[i].addr == m + end && p.segment[i].len_bytes);
            assert_int_equal(p.segment[i].mr.len_bytes,
                             p.segment[i].unreadable ? 0 : p.segment[i].len_bytes);
            end += p.segment[i].len_bytes;
        }
        assert_true(end == 4 * MIB);
        ff_segments_dereg(&p, &l);
        assert_int_equal(fake.live, 0);
        ff_segments_free(&p);
        munmap(m, 4 * MIB);
    }
}

/* EFAULT for another reason, or for memory that nobody is to read, stays what it is */
static void test_refused_otherwise(void **state)
{
    struct ff_regions t = {.n = 1, .r[0] = anon(8 * MIB)};
    struct ff_link l = new_link();
    struct ff_segments p = {.n = 0};
    struct ff_error err;
    (void)state;

    memset(t.r[0].host, 1, t.r[0].len_bytes);
    assert_ok(ff_segments_init(&p, &t, 4 * MIB, &err), err);
    assert_int_equal(ff_segments_want_populated(&p, &t), 2);
    fake.refuses_unreadable = true;
    spoil((uint8_t *)t.r[0].host + 5 * 4096);
    assert_fails(ff_segments_register(&p, &l, 0, FF_ODP_AUTO, &err), EFAULT);
    assert_error(err, EFAULT, "bad address");
    assert_int_equal(p.n, 2);
    ff_segments_dereg(&p, &l);
    end(&p, &t);
}

UNIT_MAIN(cmocka_unit_test(test_sizes), cmocka_unit_test(test_anon), cmocka_unit_test(test_memfd),
          cmocka_unit_test(test_not_zero_fill), cmocka_unit_test(test_failures),
          cmocka_unit_test(test_memlock_and_odp),
          cmocka_unit_test(test_cut), cmocka_unit_test(test_not_cut),
          cmocka_unit_test(test_unreadable), cmocka_unit_test(test_fails_meanwhile),
          cmocka_unit_test(test_refused_otherwise))
