/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * test_unannounced.c - which bits of a device state say that a guest announces itself
 */
#include <stdlib.h>
#include <string.h>

#include "unannounced.h"
#include "unit.h"

#define WITH_IT 0x230020u /* MAC, STATUS, CTRL_VQ, GUEST_ANNOUNCE */
#define QUIET 0x030020u

static uint8_t state[4096];
static size_t len;

static void put(const void *p, size_t n)
{
    memcpy(state + len, p, n);
    len += n;
}

static void put_n(uint64_t v, unsigned bytes)
{
    while (bytes--)
        state[len++] = (uint8_t)(v >> (8 * bytes));
}

static void put_name(const char *name)
{
    put_n(strlen(name), 1);
    put(name, strlen(name));
}

/* A section as QEMU has it; @wide: it has 64 bits of features, too */
static void card(uint32_t id, const char *name, uint32_t features, bool wide)
{
    put_n(4, 1);
    put_n(id, 4);
    put_name(name);
    put_n(0, 4);
    put_n(11, 4);
    put_n(0xfee0100cfee01000ull, 8); /* what the bus saves */
    put_n(0x7e, 1);
    put_n(id, 4);                    /* no footer: nothing that may follow one does */
    put_n(9, 1);
    put_n(0x0f, 1);
    put_n(1, 1);
    put_n(2, 2);
    put_n(features, 4);
    put_n(12, 4);
    put("\x52\x54\0\1\2\3\1\0\1\0\0\0", 12);
    put_n(3, 4);
    if (wide) {
        put_n(5, 1);
        put_name("virtio/64bit_features");
        put_n(1, 4);
        put_n(0x100000000ull | features, 8);
    }
    put_n(0x7e, 1);
    put_n(id, 4);
}

static void assert_state(void (*is)(void))
{
    uint8_t changed[sizeof(state)];
    const size_t n = len;

    memcpy(changed, state, n);
    len = 0;
    is();
    assert_int_equal(len, n);
    assert_memory_equal(changed, state, n);
}

static void both(uint32_t features)
{
    len = 0;
    card(7, "0000:00:03.0/virtio-blk", 0x230020, true);
    card(8, "0000:00:04.0/virtio-net", features, true);
    card(9, "virtio-net", features, false);
    card(10, "0000:00:06.0/other-virtio-net", 0x230020, true);
    put_n(0, 1);
}

static void both_quiet(void)
{
    both(QUIET);
}

static void test_cards(void **unused)
{
    (void)unused;
    both(WITH_IT);
    assert_int_equal(unannounced_from_load(state, len), 2);
    assert_state(both_quiet);
    assert_int_equal(unannounced_from_load(state, len), 0);
    assert_state(both_quiet);
}

/* Wherever it ends, nothing behind that is read or changed */
static void test_cut(void **unused)
{
    (void)unused;
    both(WITH_IT);
    for (size_t n = 0; n < len; n++) {
        FF_AUTO_FREE uint8_t *part = malloc(n + 1);
        memcpy(part, state, n);
        assert_true(unannounced_from_load(part, n) <= 2);
    }
}

int main(void)
{
    static const struct CMUnitTest tests[] = {cmocka_unit_test(test_cards), cmocka_unit_test(test_cut)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
