/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * test_dead_ends.c - what a child's NIC is on where it cannot have its parent's tap
 */
#include "command_line.h"
#include "unit.h"

static void assert_dead_end(const char *hub, const char *tap)
{
    FF_AUTO_FREE char *there = net_dead_end_tap(hub, 7), *back = net_dead_end_hub(tap, 1);

    assert_string_equal(there, tap);
    assert_string_equal(back, hub);
}

/* A hub that leads nowhere is a tap that does, where QEMU has no such hub */
static void test_dead_ends(void **state)
{
    (void)state;
    assert_dead_end("hubport,id=a,hubid=1178992641", "tap,id=a,fd=7");
    assert_dead_end("{\"type\":\"hubport\",\"id\":\"a\",\"hubid\":1178992641}",
                    "{\"type\":\"tap\",\"id\":\"a\",\"fd\":\"7\"}");
    assert_null(net_dead_end_tap("hubport,id=a,hubid=3", 7));
    assert_null(net_dead_end_tap("user,id=a", 7));
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_dead_ends)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
