/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * test_wire.c - control messages: what is encoded is decoded, and everything else is refused
 *
 * Linked with --wrap=malloc and so on: a refused message must not have allocated anything.
 */
#include "unit.h"
#include "wire.h"
#include "wirebuf.h"

static unsigned long allocations;

void *__real_malloc(size_t n);
void *__real_calloc(size_t n, size_t size);
void *__real_realloc(void *p, size_t n);
char *__real_strdup(const char *s);
void *__wrap_malloc(size_t n);
void *__wrap_calloc(size_t n, size_t size);
void *__wrap_realloc(void *p, size_t n);
char *__wrap_strdup(const char *s);

void *__wrap_malloc(size_t n)
{
    allocations++;
    return __real_malloc(n);
}

void *__wrap_calloc(size_t n, size_t size)
{
    allocations++;
    return __real_calloc(n, size);
}

void *__wrap_realloc(void *p, size_t n)
{
    allocations++;
    return __real_realloc(p, n);
}

char *__wrap_strdup(const char *s)
{
    allocations++;
    return __real_strdup(s);
}

/* --- a message in memory that ends where the message ends --- */

static uint8_t buf[FF_MSG_MAX];

static const struct ff_wire_region table[] = {
    {.name = "pc.ram", .len_bytes = 0x40000000, .psize = 4096},
    {.name = "huge", .len_bytes = 4 << 20, .psize = 2 << 20},
    {.name = "0000:00:02.0/vga.vram", .len_bytes = 0x1000000, .psize = 4096},
};
#define N_TABLE ((unsigned)FF_ARRAY_LEN(table))
#define PIECE (64ull << 20)

union decoded {
    struct ff_hello hello;
    struct ff_welcome welcome;
    struct {
        enum ff_refusal refusal;
        char text[FF_WIRE_TEXT_MAX + 1];
    };
    struct ff_publish publish;
    struct ff_wire_key keys[8];
    struct ff_grant grants[FF_WIRE_GRANTS_MAX];
    struct ff_state_head state;
    struct ff_page_ref pages[8];
    struct {
        const uint8_t *p;
        uint32_t n;
    } data;
    struct ff_stats stats;
};

/* As control.c does it: the type first, then the decoder of that type */
static int decode(const uint8_t *msg, size_t len, union decoded *d, struct ff_error *err)
{
    int type = ff_wire_type(msg, len, err);
    unsigned n;

    switch (type) {
    case FF_MSG_HELLO:
        return ff_wire_get_hello(msg, len, &d->hello, err);
    case FF_MSG_WELCOME:
        return ff_wire_get_welcome(msg, len, &d->welcome, err);
    case FF_MSG_REFUSE:
        return ff_wire_get_refuse(msg, len, &d->refusal, d->text, err);
    case FF_MSG_PUBLISH:
        return ff_wire_get_publish(msg, len, &d->publish, N_TABLE, table, err);
    case FF_MSG_KEYS:
        return ff_wire_get_keys(msg, len, d->keys, 8, PIECE, table, N_TABLE, &n, err);
    case FF_MSG_GRANT:
        return ff_wire_get_grants(msg, len, d->grants, 4 << 20, table, N_TABLE, &n, err);
    case FF_MSG_STATE:
        return ff_wire_get_state(msg, len, &d->state, err);
    case FF_MSG_FIRST:
        return ff_wire_get_first(msg, len, d->pages, 8, table, N_TABLE, &n, err);
    case FF_MSG_DATA:
        return ff_wire_get_data(msg, len, 1000, &d->data.p, &d->data.n, err);
    case FF_MSG_READY:
    case FF_MSG_RUNNING:
    case FF_MSG_PROGRESS:
    case FF_MSG_DONE:
        return ff_wire_get_stats(msg, len, &d->stats, err);
    case FF_MSG_LEASE:
        return ff_wire_get_lease(msg, len, &n, err);
    case FF_MSG_GO:
    case FF_MSG_WITHDRAWN:
    case FF_MSG_WATCHING:
        return ff_wire_get_empty(msg, len, err);
    default:
        return type;
    }
}

/* Decode a copy that ends at the end of its allocation, so that ASAN sees a step too far */
static int decode_exact(const uint8_t *msg, size_t len, union decoded *d, struct ff_error *err)
{
    uint8_t *copy = __real_malloc(len ? len : 1);
    assert_non_null(copy);
    memcpy(copy, msg, len);
    int rc = decode(copy, len, d, err);
    if (!rc && copy[0] == FF_MSG_DATA)
        d->data.p = msg + 4; /* it pointed into the copy */
    free(copy);
    return rc;
}

static void must_refuse(const uint8_t *msg, size_t len, int code, const char *says)
{
    union decoded d;
    struct ff_error err = {.code = 0};

    unsigned long before = allocations;
    int rc = decode_exact(msg, len, &d, &err);
    unsigned long after = allocations;
    if (rc != -code || err.code != code)
        fail_msg("%zu bytes of %s: %d, want %d (%s)", len, ff_msg_name(msg[0]), rc, -code, says);
    if (!strstr(err.text, says))
        fail_msg("\"%s\" is not in: %s", says, err.text);
    assert_int_equal(after, before);
    /* the same without an error to fill */
    assert_fails(decode_exact(msg, len, &d, NULL), code);
    assert_int_equal(allocations, before);
}

/* Every message of the right form that is cut short or has a byte too many is refused */
static void must_have_this_length(const uint8_t *msg, int len)
{
    static uint8_t longer[FF_MSG_MAX + 1];

    assert_true(len > 0);
    for (int n = 0; n < len; n++)
        must_refuse(msg, (size_t)n, EPROTO, "wire: read ");
    memcpy(longer, msg, (size_t)len);
    for (int more = 0; more < 256; more += 51) {
        longer[len] = (uint8_t)more;
        must_refuse(longer, (size_t)len + 1, EPROTO, "wire: read ");
    }
}

/* --- what is encoded is decoded --- */

static struct ff_hello example_hello(void)
{
    struct ff_hello h = {.version = FF_WIRE_VERSION,
                         .oldest = FF_WIRE_VERSION,
                         .features = 0x89abcdcf,
                         .auth = FF_WIRE_AUTH_KEY,
                         .n_regions = N_TABLE,
                         .config = "machine=pc-q35-10.0",
                         .regions = (struct ff_wire_region *)table};
    return h;
}

static void test_hello(void **state)
{
    struct ff_hello h = example_hello();
    union decoded d;
    struct ff_error err;
    (void)state;

    int len = ff_wire_put_hello(buf, &h, &err);
    assert_true(len > 0);
    assert_memory_equal(buf + 4, "FARFORK1", 8);
    assert_ok(decode_exact(buf, (size_t)len, &d, &err), err);
    assert_int_equal(d.hello.version, h.version);
    assert_int_equal(d.hello.oldest, h.oldest);
    assert_int_equal(d.hello.features, h.features);
    assert_int_equal(d.hello.auth, h.auth);
    assert_int_equal(d.hello.n_regions, N_TABLE);
    assert_string_equal(d.hello.config, h.config);
    for (unsigned i = 0; i < N_TABLE; i++) {
        assert_string_equal(d.hello.regions[i].name, table[i].name);
        assert_int_equal(d.hello.regions[i].len_bytes, table[i].len_bytes);
        assert_int_equal(d.hello.regions[i].psize, table[i].psize);
    }
    ff_hello_free(&d.hello);
    must_have_this_length(buf, len);

    /* a newer source that still speaks our version is welcome */
    h.version = FF_WIRE_VERSION + 1;
    len = ff_wire_put_hello(buf, &h, &err);
    assert_ok(decode_exact(buf, (size_t)len, &d, &err), err);
    ff_hello_free(&d.hello);
}

static void test_hello_largest(void **state)
{
    struct ff_wire_region *many = calloc(FF_WIRE_REGIONS_MAX + 1, sizeof(*many));
    struct ff_hello h = {.version = FF_WIRE_VERSION, .oldest = FF_WIRE_VERSION, .regions = many};
    union decoded d;
    struct ff_error err;
    (void)state;

    assert_non_null(many);
    memset(h.config, 'c', FF_WIRE_CONFIG_MAX);
    for (unsigned i = 0; i <= FF_WIRE_REGIONS_MAX; i++) {
        many[i] = (struct ff_wire_region){.len_bytes = FF_WIRE_REGION_LEN_MAX, .psize = 1 << 30};
        memset(many[i].name, 'n', 100);
        snprintf(many[i].name + 100, 10, "%u", i);
    }
    h.n_regions = FF_WIRE_REGIONS_MAX;
    int len = ff_wire_put_hello(buf, &h, &err);
    assert_true(len > 0);
    assert_ok(decode_exact(buf, (size_t)len, &d, &err), err);
    assert_string_equal(d.hello.regions[511].name, many[511].name);
    ff_hello_free(&d.hello);

    h.n_regions++; /* one more than is permitted */
    len = ff_wire_put_hello(buf, &h, &err);
    must_refuse(buf, (size_t)len, EPROTO, "513 regions");

    for (unsigned i = 0; i <= FF_WIRE_REGIONS_MAX; i++)
        memset(many[i].name, 'n', FF_WIRE_NAME_MAX);
    assert_fails(ff_wire_put_hello(buf, &h, &err), E2BIG);
    assert_error(err, E2BIG, "65536");
    free(many);
}

static void test_small_messages(void **state)
{
    const struct ff_welcome w = {
        .version = FF_WIRE_VERSION, .answer = FF_ANSWER_LAST, .features = FF_WIRE_PRECOPY,
        .session = "0123456789abcde", .epoch = UINT32_MAX};
    const struct ff_publish pub = {.segment_bytes = PIECE, .n_keys = 3, .load_permille = 1500,
                                   .push_bytes = 4 << 20, .asks_addr = UINT64_MAX - 77,
                                   .asks_rkey = 0x87654,
                                   .group = {.at = {.addr = {0xff, 0x15, [15] = 1}, .port = 4242},
                                             .salt = {1, [15] = 9}},
                                   .addr = {1, UINT64_MAX - (4 << 20), 0}};
    const struct ff_wire_key keys[] = {{0, 0, 2}, {1, 0, UINT32_MAX}, {2, 0, 1}};
    const struct ff_grant grants[] = {
        {.region = 0, .id = 0, .offset = 4096, .len_bytes = 8192, .rkey = 7, .addr = 1},
        {.region = 1, .id = FF_WIRE_GRANTS_MAX - 1, .offset = 2 << 20, .len_bytes = 2 << 20,
         .rkey = UINT32_MAX, .addr = UINT64_MAX - (2 << 20)}};
    const struct ff_state_head s = {.total_bytes = FF_WIRE_STATE_MAX,
                                    .n_first = FF_WIRE_FIRST_MAX,
                                    .n_keys = FF_WIRE_KEYS_MAX};
    union decoded d;
    struct ff_error err;
    (void)state;

    int len = ff_wire_put_welcome(buf, &w);
    assert_ok(decode_exact(buf, (size_t)len, &d, &err), err);
    assert_int_equal(d.welcome.version, w.version);
    assert_int_equal(d.welcome.features, w.features);
    assert_memory_equal(d.welcome.session, w.session, FF_SESSION_LEN);
    must_have_this_length(buf, len);

    len = ff_wire_put_publish(buf, &pub, N_TABLE);
    assert_ok(decode_exact(buf, (size_t)len, &d, &err), err);
    assert_true(d.publish.segment_bytes == pub.segment_bytes);
    assert_true(d.publish.n_keys == pub.n_keys && d.publish.load_permille == pub.load_permille);
    assert_true(d.publish.push_bytes == pub.push_bytes && d.publish.asks_addr == pub.asks_addr &&
                d.publish.asks_rkey == pub.asks_rkey);
    assert_memory_equal(&d.publish.group.at, &pub.group.at, sizeof(pub.group.at));
    assert_memory_equal(d.publish.group.salt, pub.group.salt, sizeof(pub.group.salt));
    assert_int_equal(d.publish.group.why_not, 0);
    assert_memory_equal(d.publish.addr, pub.addr, N_TABLE * sizeof(pub.addr[0]));
    must_have_this_length(buf, len);

    len = ff_wire_put_keys(buf, keys, FF_ARRAY_LEN(keys));
    assert_ok(decode_exact(buf, (size_t)len, &d, &err), err);
    assert_memory_equal(d.keys, keys, sizeof(keys));
    must_refuse(buf, (size_t)len - 1, EPROTO, "35 bytes (permitted 1..8 keys of 12)");

    len = ff_wire_put_grants(buf, grants, FF_ARRAY_LEN(grants));
    assert_ok(decode_exact(buf, (size_t)len, &d, &err), err);
    assert_memory_equal(d.grants, grants, sizeof(grants));
    must_refuse(buf, (size_t)len + 1, EPROTO, "65 bytes (permitted 1..64 grants of 32)");

    len = ff_wire_put_state(buf, &s);
    assert_ok(decode_exact(buf, (size_t)len, &d, &err), err);
    assert_int_equal(d.state.total_bytes, s.total_bytes);
    assert_int_equal(d.state.n_first, s.n_first);
    assert_int_equal(d.state.n_keys, s.n_keys);
    must_have_this_length(buf, len);

    static const enum ff_msg empty[] = {FF_MSG_GO, FF_MSG_WITHDRAWN, FF_MSG_WATCHING};
    for (size_t i = 0; i < FF_ARRAY_LEN(empty); i++) {
        len = ff_wire_put_empty(buf, empty[i]);
        assert_int_equal(len, 4);
        assert_int_equal(ff_wire_type(buf, 4, &err), empty[i]);
        assert_ok(decode_exact(buf, 4, &d, &err), err);
        must_have_this_length(buf, len);
    }
}

static void test_stats(void **state)
{
    static const enum ff_msg types[] = {FF_MSG_READY, FF_MSG_RUNNING, FF_MSG_PROGRESS, FF_MSG_DONE};
    uint64_t v[sizeof(struct ff_stats) / 8];
    struct ff_stats st;
    union decoded d;
    struct ff_error err;
    (void)state;

    for (size_t i = 0; i < FF_ARRAY_LEN(v); i++)
        v[i] = 0x0123456789abcdefull * (i + 1);
    memcpy(&st, v, sizeof(st));
    for (size_t i = 0; i < FF_ARRAY_LEN(types); i++) {
        int len = ff_wire_put_stats(buf, types[i], &st);
        assert_int_equal(ff_wire_type(buf, (size_t)len, &err), types[i]);
        assert_ok(decode_exact(buf, (size_t)len, &d, &err), err);
        assert_memory_equal(&d.stats, &st, sizeof(st));
        must_have_this_length(buf, len);
    }
}

static void test_text(void **state)
{
    char text[FF_WIRE_TEXT_MAX + 100];
    union decoded d;
    struct ff_error err;
    (void)state;

    int len = ff_wire_put_refuse(buf, FF_REFUSAL_FINAL, "region pc.ram: length differs");
    assert_ok(decode_exact(buf, (size_t)len, &d, &err), err);
    assert_string_equal(d.text, "region pc.ram: length differs");
    assert_int_equal(d.refusal, FF_REFUSAL_FINAL);
    assert_memory_equal(buf, "\3\0\0\0region", 10); /* as versions before 9 read it */
    len = ff_wire_put_refuse(buf, FF_REFUSAL_NOT_YET, "later");
    assert_ok(decode_exact(buf, (size_t)len, &d, &err), err);
    assert_string_equal(d.text, "later");
    assert_int_equal(d.refusal, FF_REFUSAL_NOT_YET);
    buf[2] = FF_REFUSAL_LAST + 1;
    must_refuse(buf, (size_t)len, EPROTO, "code 2 (permitted 1..23, 0..1)");
    buf[2] = 0;
    buf[3] = 1;
    must_refuse(buf, (size_t)len, EPROTO, "code 256");
    len = ff_wire_put_refuse(buf, FF_REFUSAL_FINAL, "");
    assert_ok(decode_exact(buf, (size_t)len, &d, &err), err);
    assert_string_equal(d.text, "");
    /* what a terminal could take for a command is not sent */
    len = ff_wire_put_refuse(buf, FF_REFUSAL_FINAL, "a\033[2Jb\n\xff");
    assert_ok(decode_exact(buf, (size_t)len, &d, &err), err);
    assert_string_equal(d.text, "a?[2Jb??");
    memset(text, 't', sizeof(text));
    text[sizeof(text) - 1] = '\0';
    len = ff_wire_put_refuse(buf, FF_REFUSAL_FINAL, text);
    assert_ok(decode_exact(buf, (size_t)len, &d, &err), err);
    assert_int_equal(strlen(d.text), FF_WIRE_TEXT_MAX);

    buf[len] = 'x';
    must_refuse(buf, (size_t)len + 1, EPROTO, "501");
    for (int c = 0; c < 256; c++) {
        if (c >= 0x20 && c < 0x7f)
            continue;
        buf[10] = (uint8_t)c;
        must_refuse(buf, (size_t)len, EPROTO, "not printable");
    }
}

static void test_first_and_data(void **state)
{
    static const struct ff_page_ref pages[] = {
        {0, 0}, {1, (4 << 20) - 1}, {2, 0x1000}, {0, 0x3ffff000}};
    struct ff_page_ref out[8];
    uint8_t *content = calloc(1, FF_WIRE_DATA_MAX);
    const uint8_t *data;
    uint32_t n_data;
    unsigned n;
    struct ff_error err;
    (void)state;

    for (unsigned k = 1; k <= FF_ARRAY_LEN(pages); k++) {
        int len = ff_wire_put_first(buf, pages, k);
        assert_ok(ff_wire_get_first(buf, (size_t)len, out, k, table, N_TABLE, &n, &err), err);
        assert_int_equal(n, k);
        for (unsigned i = 0; i < k; i++)
            assert_true(out[i].region == pages[i].region && out[i].offset == pages[i].offset);
        if (k > 1)
            assert_fails(ff_wire_get_first(buf, (size_t)len, out, k - 1, table, N_TABLE, &n, &err),
                         EPROTO);
        for (int cut = 4; cut < len; cut++)
            if ((cut - 4) % 12 || cut == 4)
                must_refuse(buf, (size_t)cut, EPROTO, "FIRST");
    }
    assert_non_null(content);
    for (uint32_t len = 1; len <= FF_WIRE_DATA_MAX; len = len * 3 + 1) {
        memset(content, (int)len, len);
        int total = ff_wire_put_data(buf, content, len);
        assert_ok(ff_wire_get_data(buf, (size_t)total, len, &data, &n_data, &err), err);
        assert_int_equal(n_data, len);
        assert_memory_equal(data, content, len);
        assert_fails(ff_wire_get_data(buf, (size_t)total, len - 1, &data, &n_data, &err), EPROTO);
    }
    int total = ff_wire_put_data(buf, content, FF_WIRE_DATA_MAX);
    assert_int_equal(total, FF_MSG_MAX);
    must_refuse(buf, 4, EPROTO, "DATA");
    must_refuse(buf, 4 + 1001, EPROTO, "1001");
    free(content);
}

/* --- everything else is refused, with what was received and what is permitted --- */

static void test_types(void **state)
{
    struct ff_error err;
    (void)state;

    for (unsigned type = 0; type < 300; type++) {
        uint8_t m[4] = {(uint8_t)type, (uint8_t)(type >> 8), 0, 0};
        bool known = type >= 1 && type <= FF_MSG_LAST;
        assert_int_equal(ff_wire_type(m, 4, &err), known ? (int)type : -EPROTO);
        assert_true(known == (strcmp(ff_msg_name(type), "unknown message") != 0));
        for (int i = 2; i < 4; i++) {
            m[i] = 1; /* a code, which REFUSE alone has */
            bool code = type == FF_MSG_REFUSE && i == 2;
            assert_int_equal(ff_wire_type(m, 4, &err), code ? (int)type : -EPROTO);
            m[i] = 0;
        }
        for (size_t len = 0; len < 4; len++)
            assert_fails(ff_wire_type(m, len, &err), EPROTO);
    }
}

/* Where the fields of example_hello() are in the message */
enum {
    AT_MAGIC = 4,
    AT_VERSION = 12,
    AT_OLDEST = 14,
    AT_AUTH = 20,
    AT_REGIONS = 22,
    AT_CONFIG_LEN = 24,
    AT_CONFIG = 26,
    AT_TABLE = 26 + 19
};

static void put(size_t at, uint64_t v, size_t bytes)
{
    struct ff_wirebuf b = {.data = buf, .len = sizeof(buf), .pos = at};
    ff_wb_put(&b, v, bytes);
}

/* The example with one field changed */
static void refuse_hello_with(size_t at, uint64_t v, size_t bytes, int code, const char *says)
{
    struct ff_hello h = example_hello();
    int len = ff_wire_put_hello(buf, &h, NULL);
    put(at, v, bytes);
    must_refuse(buf, (size_t)len, code, says);
}

static void test_hello_refused(void **state)
{
    static const size_t psize = AT_TABLE + 8, name_len = AT_TABLE + 12, name = AT_TABLE + 14;
    (void)state;

    for (size_t i = 0; i < 8; i++)
        refuse_hello_with(AT_MAGIC + i, 'x', 1, EPROTO, "magic");
    refuse_hello_with(AT_VERSION, 0, 2, EPROTONOSUPPORT, "version 11..0");
    refuse_hello_with(AT_OLDEST, 12, 2, EPROTONOSUPPORT, "version 12..11");
    refuse_hello_with(AT_OLDEST, 0xffff, 2, EPROTONOSUPPORT, "same Farfork release");
    refuse_hello_with(AT_AUTH, 2, 2, EPROTO, "authentication kind 2 (permitted 0..1)");
    refuse_hello_with(AT_REGIONS, 0, 2, EPROTO, "0 regions");
    refuse_hello_with(AT_REGIONS, 2, 2, EPROTO, "too many");
    refuse_hello_with(AT_REGIONS, 4, 2, EPROTO, "cut short");
    refuse_hello_with(AT_REGIONS, 513, 2, EPROTO, "permitted 1..512");
    refuse_hello_with(AT_REGIONS, 0xffff, 2, EPROTO, "65535 regions");
    refuse_hello_with(AT_CONFIG_LEN, 256, 2, EPROTO, "config of 256 bytes (permitted 0..255)");
    refuse_hello_with(AT_CONFIG_LEN, 255, 2, EPROTO, "cut short");
    refuse_hello_with(AT_CONFIG, '\n', 1, EPROTO, "0x0a is not printable");
    refuse_hello_with(AT_CONFIG + 3, 0, 1, EPROTO, "0x00 is not printable");
    refuse_hello_with(name_len, 0, 2, EPROTO, "name of 0 bytes (permitted 1..255)");
    refuse_hello_with(name_len, 256, 2, EPROTO, "name of 256 bytes");
    refuse_hello_with(name_len, 0xffff, 2, EPROTO, "65535");
    refuse_hello_with(name_len, 255, 2, EPROTO, "cut short");
    refuse_hello_with(name, 0x1b, 1, EPROTO, "0x1b is not printable");
    refuse_hello_with(name + 5, 0, 1, EPROTO, "not printable");
    refuse_hello_with(name + 5, 0x80, 1, EPROTO, "not printable");

    static const uint32_t bad_psize[] = {0,     1,        2048,     4095,      4097,
                                         12288, 3u << 20, 1u << 31, UINT32_MAX};
    for (size_t i = 0; i < FF_ARRAY_LEN(bad_psize); i++)
        refuse_hello_with(psize, bad_psize[i], 4, EPROTO, "page size");
    refuse_hello_with(AT_TABLE, 0, 8, EPROTO, "length 0x0");
    refuse_hello_with(AT_TABLE, 4095, 8, EPROTO, "multiples of page size 4096");
    refuse_hello_with(AT_TABLE, 0x40000001, 8, EPROTO, "length 0x40000001");
    refuse_hello_with(AT_TABLE, FF_WIRE_REGION_LEN_MAX + 4096, 8, EPROTO, "up to 0x400000000000");
    refuse_hello_with(AT_TABLE + 14 + 6 + 8, 8 << 20, 4, EPROTO, "region huge: length 0x400000");
    refuse_hello_with(AT_TABLE, UINT64_MAX - 4095, 8, EPROTO, "length 0xfffffffffffff000");
}

static void test_twice(void **state)
{
    struct ff_wire_region twice[] = {table[0], table[1], table[0]};
    struct ff_hello h = example_hello();
    union decoded d;
    struct ff_error err;
    (void)state;

    h.regions = twice;
    int len = ff_wire_put_hello(buf, &h, NULL);
    assert_fails(decode_exact(buf, (size_t)len, &d, &err), EPROTO);
    assert_error(err, EPROTO, "pc.ram twice");
    assert_null(d.hello.regions); /* nothing is left to be freed; ASAN looks for the rest */
}

static void test_publish_refused(void **state)
{
    const struct ff_publish good = {.segment_bytes = PIECE, .n_keys = 1};
    struct ff_publish p = good;
    (void)state;

    must_refuse(buf, (size_t)ff_wire_put_publish(buf, &p, N_TABLE - 1), EPROTO,
                "90 bytes for 3 regions (want 98)");
    p.addr[1] = UINT64_MAX - (4 << 20) + 1;
    must_refuse(buf, (size_t)ff_wire_put_publish(buf, &p, N_TABLE), EPROTO,
                "region huge: address 0xffffffffffc00000 wraps");
    p = good;
    p.n_keys = UINT32_MAX;
    must_refuse(buf, (size_t)ff_wire_put_publish(buf, &p, N_TABLE), EPROTO, "4294967295 keys for");
    p = good;
    p.group.at = (struct ff_group_at){.addr = {[10] = 0xff, [11] = 0xff, [12] = 10}, .port = 1};
    must_refuse(buf, (size_t)ff_wire_put_publish(buf, &p, N_TABLE), EPROTO, "of no group");
    static const uint64_t sizes[] = {0, 4096, (4 << 20) - 1, (4 << 20) + 4096, 3ull << 26,
                                     2 * FF_WIRE_REGION_LEN_MAX, UINT64_MAX};
    for (size_t i = 0; i < FF_ARRAY_LEN(sizes); i++) {
        p = good;
        p.segment_bytes = sizes[i];
        must_refuse(buf, (size_t)ff_wire_put_publish(buf, &p, N_TABLE), EPROTO,
                    "(permitted: powers of two, 0x400000..0x400000000000)");
    }
}

static void test_keys_refused(void **state)
{
    static const struct ff_wire_key bad[] = {
        {N_TABLE, 0, 1}, {UINT32_MAX, 0, 1}, {1, 1, 1}, {1, UINT32_MAX, 1}, {0, 0, 0}};
    struct ff_wire_key many[9];
    (void)state;

    for (size_t i = 0; i < FF_ARRAY_LEN(bad); i++)
        must_refuse(buf, (size_t)ff_wire_put_keys(buf, &bad[i], 1), EPROTO,
                    "there is no such segment, or no key");
    for (size_t i = 0; i < FF_ARRAY_LEN(many); i++)
        many[i] = (struct ff_wire_key){0, 0, 1};
    must_refuse(buf, (size_t)ff_wire_put_keys(buf, many, 9), EPROTO, "permitted 1..8 keys");
    must_refuse(buf, (size_t)ff_wire_put_keys(buf, many, 0), EPROTO, "0 bytes");
}

static void test_grants_refused(void **state)
{
    const struct ff_grant good = {
        .region = 1, .offset = 2 << 20, .len_bytes = 2 << 20, .rkey = 1, .addr = 4096};
    struct ff_grant bad[10];
    (void)state;

    for (size_t i = 0; i < FF_ARRAY_LEN(bad); i++)
        bad[i] = good;
    bad[0].region = N_TABLE;
    bad[1].region = UINT32_MAX;
    bad[2].id = FF_WIRE_GRANTS_MAX;
    bad[3].len_bytes = 0;
    bad[4].len_bytes = 4096; /* not a whole page of that region */
    bad[5].len_bytes = 6 << 20;
    bad[6].offset = 4096;
    bad[7].offset = table[1].len_bytes; /* its end */
    bad[8].offset = 0ull - (2 << 20);
    bad[9].addr = UINT64_MAX - 4096;
    for (size_t i = 0; i < FF_ARRAY_LEN(bad); i++)
        must_refuse(buf, (size_t)ff_wire_put_grants(buf, &bad[i], 1), EPROTO, "whole pages inside");
    must_refuse(buf, (size_t)ff_wire_put_grants(buf, &good, 0), EPROTO, "0 bytes");
}

static void test_others_refused(void **state)
{
    struct ff_state_head s = {.total_bytes = 0};
    (void)state;

    must_refuse(buf, (size_t)ff_wire_put_state(buf, &s), EPROTO,
                "0 bytes (permitted 1..268435456)");
    s.total_bytes = FF_WIRE_STATE_MAX + 1;
    must_refuse(buf, (size_t)ff_wire_put_state(buf, &s), EPROTO, "268435457");
    s.total_bytes = UINT64_MAX;
    must_refuse(buf, (size_t)ff_wire_put_state(buf, &s), EPROTO, "18446744073709551615");
    s = (struct ff_state_head){.total_bytes = 1, .n_first = FF_WIRE_FIRST_MAX + 1};
    must_refuse(buf, (size_t)ff_wire_put_state(buf, &s), EPROTO,
                "4097 first-touch pages (permitted 0..4096)");
    s = (struct ff_state_head){.total_bytes = 1, .n_keys = FF_WIRE_KEYS_MAX + 1};
    must_refuse(buf, (size_t)ff_wire_put_state(buf, &s), EPROTO, "4097 keys (permitted 0..4096)");

    struct ff_page_ref p = {.region = N_TABLE};
    must_refuse(buf, (size_t)ff_wire_put_first(buf, &p, 1), EPROTO, "region 3 (permitted 0..2)");
    p.region = UINT32_MAX;
    must_refuse(buf, (size_t)ff_wire_put_first(buf, &p, 1), EPROTO, "region 4294967295");
    p = (struct ff_page_ref){.region = 1, .offset = 4 << 20};
    must_refuse(buf, (size_t)ff_wire_put_first(buf, &p, 1), EPROTO,
                "offset 0x400000 beyond region huge (limit 0x400000)");
    p.offset = UINT64_MAX;
    must_refuse(buf, (size_t)ff_wire_put_first(buf, &p, 1), EPROTO, "0xffffffffffffffff");
}

UNIT_MAIN(cmocka_unit_test(test_hello), cmocka_unit_test(test_hello_largest),
          cmocka_unit_test(test_small_messages), cmocka_unit_test(test_stats),
          cmocka_unit_test(test_text), cmocka_unit_test(test_first_and_data),
          cmocka_unit_test(test_types), cmocka_unit_test(test_hello_refused),
          cmocka_unit_test(test_twice), cmocka_unit_test(test_publish_refused),
          cmocka_unit_test(test_keys_refused), cmocka_unit_test(test_grants_refused),
          cmocka_unit_test(test_others_refused))
