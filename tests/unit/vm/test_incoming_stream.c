/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * test_incoming_stream.c - every byte of the stream for a QEMU with -incoming; what is refused
 */
#include "incoming_stream.h"
#include "unit.h"

#define PAGE 4096u
#define BYTES(text) text, sizeof(text) - 1

static struct ff_error err;

/* A state of one section, as QEMU writes it */
#define STATE                                                                                      \
    "QEVM\0\0\0\3"                                                                                 \
    "\4\0\0\0\1"                                                                                   \
    "\5timer\0\0\0\0\0\0\0\2"                                                                      \
    "12345678"                                                                                     \
    "\x7e\0\0\0\1"                                                                                 \
    "\0"
#define STATE_LEN (sizeof(STATE) - 1)
static const uint8_t *const state = (const uint8_t *)STATE;

static const char *want(const struct incoming_stream *s, size_t *at, const void *bytes, size_t n)
{
    static char why[80];

    snprintf(why, sizeof(why), "%zu bytes from %zu on, of %zu", n, *at, s->len);
    if (*at + n > s->len || memcmp(s->data + *at, bytes, n))
        return why;
    *at += n;
    return NULL;
}

#define assert_next(...)                                                                           \
    do {                                                                                           \
        const char *why_ = want(&s, &at, __VA_ARGS__);                                             \
        if (why_)                                                                                  \
            fail_msg("not what was wanted: %s", why_);                                             \
    } while (0)

static void test_begin(void **unused)
{
    const struct incoming_block b[] = {{"pc.ram", 256u << 20, NULL},
                                       {"0000:00:02.0/vga.vram", PAGE, NULL}};
    struct incoming_stream s = {0};
    size_t at = 0;

    (void)unused;
    assert_ok(incoming_stream_begin(&s, "pc-q35-7.2", 12, b, 2, &err), err);
    assert_next(BYTES("QEVM\0\0\0\3"));
    assert_next(BYTES("\7\0\0\0\x0apc-q35-7.2"));
    assert_next(BYTES("\5\x1e"
                      "configuration/target-page-bits\0\0\0\1\0\0\0\x0c"));
    assert_next(BYTES("\1\x7f\xff\0\0\3ram\0\0\0\0\0\0\0\4"));
    assert_next(BYTES("\0\0\0\0\x10\0\x10\4"));
    assert_next(BYTES("\6pc.ram\0\0\0\0\x10\0\0\0"));
    assert_next(BYTES("\x15"
                      "0000:00:02.0/vga.vram\0\0\0\0\0\0\x10\0"));
    assert_next(BYTES("\0\0\0\0\0\0\0\x10"));
    assert_next(BYTES("\x7e\x7f\xff\0\0"));
    assert_int_equal(at, s.len);
    free(s.data);
}

static void test_end(void **unused)
{
    static uint8_t bios[3 * PAGE], rom[PAGE];
    const struct incoming_block b[] = {
        {"pc.bios", sizeof(bios), bios}, {"pc.ram", PAGE, NULL}, {"pc.rom", sizeof(rom), rom}};
    struct incoming_stream s = {0};
    size_t at = 0;

    (void)unused;
    memset(bios, 'b', PAGE);
    bios[3 * PAGE - 1] = 1; /* the last byte of a page makes it one that is not of zeros */
    assert_ok(incoming_stream_end(&s, 12, b, 3, state, STATE_LEN, &err), err);
    assert_next(BYTES("\3\x7f\xff\0\0"));
    assert_next(BYTES("\0\0\0\0\0\0\0\x08\7pc.bios"));
    assert_next(bios, PAGE);
    assert_next(BYTES("\0\0\0\0\0\0\x10\x22\0"));
    assert_next(BYTES("\0\0\0\0\0\0\x20\x28"));
    assert_next(bios + 2 * PAGE, PAGE);
    assert_next(BYTES("\0\0\0\0\0\0\0\x02\6pc.rom\0"));
    assert_next(BYTES("\0\0\0\0\0\0\0\x10"));
    assert_next(BYTES("\x7e\x7f\xff\0\0"));
    assert_next(state + 8, STATE_LEN - 8);
    assert_next(BYTES("\6\0\0\0\2{}"));
    assert_int_equal(at, s.len);
    free(s.data);
}

/* A guest of another processor: SPARC's pages have 13 bits */
static void test_page_bits(void **unused)
{
    static uint8_t memory[2 * PAGE] = {1};
    const struct incoming_block b = {"ram", sizeof(memory), memory};
    struct incoming_stream s = {0};
    size_t at = 0;

    (void)unused;
    assert_ok(incoming_stream_end(&s, 13, &b, 1, state, STATE_LEN, &err), err);
    assert_next(BYTES("\3\x7f\xff\0\0\0\0\0\0\0\0\0\x08\3ram"));
    assert_next(memory, sizeof(memory));
    assert_next(BYTES("\0\0\0\0\0\0\0\x10"));
    free(s.data);
}

static void test_refused(void **unused)
{
    static char long_name[257];
    struct incoming_block many[INCOMING_BLOCKS_MAX + 1] = {{0}};
    const struct {
        const char *machine;
        unsigned page_bits, n;
        struct incoming_block b[2];
        const char *why;
    } bad[] = {
        {"", 12, 1, {{"a", PAGE, NULL}}, "machine: 0 bytes"},
        {long_name, 12, 1, {{"a", PAGE, NULL}}, "machine: 256 bytes"},
        {"pc", 9, 1, {{"a", PAGE, NULL}}, "9 bits"},
        {"pc", 17, 1, {{"a", 1 << 17, NULL}}, "17 bits"},
        {"pc", 12, 0, {{"a", PAGE, NULL}}, "blocks: 0"},
        {"pc", 12, 1, {{"", PAGE, NULL}}, "name of 0 bytes"},
        {"pc", 12, 1, {{long_name, PAGE, NULL}}, "name of 256 bytes"},
        {"pc", 12, 2, {{"a", PAGE, NULL}, {"a", PAGE, NULL}}, "two are named 'a'"},
        {"pc", 12, 1, {{"a", 0, NULL}}, "'a' of 0 bytes"},
        {"pc", 12, 1, {{"a", PAGE + 1, NULL}}, "'a' of 4097 bytes"},
        {"pc", 13, 1, {{"a", PAGE, NULL}}, "'a' of 4096 bytes"},
        {"pc", 12, 2, {{"a", 1ull << 46, NULL}, {"b", PAGE, NULL}}, "'b' of 4096 bytes"},
        {"pc", 12, 1, {{"a", -(uint64_t)PAGE, NULL}}, "'a' of"},
    };
    struct incoming_stream s = {0};

    (void)unused;
    memset(long_name, 'x', 256);
    for (size_t i = 0; i < FF_ARRAY_LEN(bad); i++) {
        assert_fails(
            incoming_stream_begin(&s, bad[i].machine, bad[i].page_bits, bad[i].b, bad[i].n, &err),
            EINVAL);
        if (!strstr(err.text, bad[i].why))
            fail_msg("\"%s\" is not in: %s", bad[i].why, err.text);
        if (!strstr(bad[i].why, "machine"))
            assert_fails(incoming_stream_end(&s, bad[i].page_bits, bad[i].b, bad[i].n, state,
                                             STATE_LEN, &err),
                         EINVAL);
    }
    for (unsigned i = 0; i < FF_ARRAY_LEN(many); i++)
        many[i] = (struct incoming_block){"a", PAGE, NULL};
    assert_fails(incoming_stream_begin(&s, "pc", 12, many, FF_ARRAY_LEN(many), &err), EINVAL);
    assert_error(err, EINVAL, "blocks: 513");
    assert_int_equal(s.len, 0);
    assert_null(s.data);
}

/* The state with one byte changed, and cut after each */
static void test_state(void **unused)
{
    const struct incoming_block b = {"pc.ram", PAGE, NULL};
    const struct {
        size_t at;
        uint8_t value;
        int code;
        const char *why;
    } bad[] = {
        {0, 'q', ENOTSUP, "begins 7145564d"},        {7, 4, ENOTSUP, "begins 5145564d 00000004"},
        {8, 7, ENOTSUP, "type 7 comes first"},       {9, 0x7f, 0, ""},
        {STATE_LEN - 1, 4, EPROTO, "ends with 4"},   {STATE_LEN - 6, 0, ENOTSUP, "no footer"},
        {STATE_LEN - 5, 0x80, ENOTSUP, "no footer"},
    };
    struct incoming_stream s = {0};
    uint8_t copy[STATE_LEN];

    (void)unused;
    for (size_t i = 0; i < FF_ARRAY_LEN(bad); i++) {
        memcpy(copy, state, STATE_LEN);
        copy[bad[i].at] = bad[i].value;
        assert_fails(incoming_stream_end(&s, 12, &b, 1, copy, STATE_LEN, &err), bad[i].code);
        if (bad[i].code && !strstr(err.text, bad[i].why))
            fail_msg("\"%s\" is not in: %s", bad[i].why, err.text);
        if (bad[i].code)
            assert_int_equal(s.len, 0);
        s.len = 0;
    }
    for (size_t len = 0; len < STATE_LEN; len++)
        assert_true(incoming_stream_end(&s, 12, &b, 1, state, len, &err) < 0);
    free(s.data);
}

UNIT_MAIN(cmocka_unit_test(test_begin), cmocka_unit_test(test_end),
          cmocka_unit_test(test_page_bits), cmocka_unit_test(test_refused),
          cmocka_unit_test(test_state))
