/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * test_child_qemu.c - what is asked of a child's QEMU that knows nothing of Farfork: its machine, its links, its balloon
 */
#include <jansson.h>

#include "device_state.h"
#include "discards.h"
#include "links.h"
#include "machine.h"
#include "unit.h"

static struct ff_error err;
static const char *type, *network, *balloon; /* what the QEMU says */
static char downed[200];

static json_t *answer_to(const char *name, const json_t *arguments)
{
    const char *path = json_string_value(json_object_get(arguments, "path"));

    if (!strcmp(name, "query-target"))
        return json_pack("{ss}", "arch", "x86_64");
    if (!strcmp(name, "human-monitor-command"))
        return json_string(network);
    if (!strcmp(name, "qom-list"))
        return json_pack("[{ss ss},{ss ss}]", "name", "type", "type", "string", "name", "b", "type",
                         strstr(path, "-anon") ? "child<virtio-balloon-pci>" : "child<virtio-net-pci>");
    if (!strcmp(name, "qom-get") && !strcmp(path, "/machine"))
        return json_string(type);
    if (!strcmp(name, "qom-get")) {
        assert_string_equal(path, "/machine/peripheral-anon/b");
        return json_loads(balloon, JSON_DECODE_ANY, NULL);
    }
    assert_string_equal(name, "set_link");
    assert_true(json_is_false(json_object_get(arguments, "up")));
    strcat(strcat(downed, json_string_value(json_object_get(arguments, "name"))), " ");
    return json_object();
}

static int carry(void *opaque, const char *line, int fd, char **answer, struct ff_error *why)
{
    json_t *m = json_loads(line, 0, NULL);
    json_t *a = json_pack("{so}", "return", answer_to(json_string_value(json_object_get(m, "execute")),
                                                      json_object_get(m, "arguments")));

    (void)opaque;
    (void)why;
    assert_int_equal(fd, -1);
    *answer = json_dumps(a, 0);
    json_decref(a);
    json_decref(m);
    return 0;
}

static void test_machine(void **state)
{
    struct qmp *q = qmp_by(carry, NULL, getpid());
    FF_AUTO_FREE char *name = NULL, *config = NULL, *none = NULL;
    (void)state;

    type = "pc-i440fx-7.2-machine";
    assert_ok(machine_name(q, &name, &err), err);
    assert_string_equal(name, "pc-i440fx-7.2");
    assert_ok(machine_config(q, name, 12, &config, &err), err);
    assert_string_equal(config, "pc-i440fx-7.2, x86_64, page size 4096");
    type = "-machine";
    assert_fails(machine_name(q, &none, &err), EPROTO);
    qmp_free(q);
}

static void test_links(void **state)
{
    struct qmp *q = qmp_by(carry, NULL, getpid());
    (void)state;

    network = "net1: index=0,type=nic,model=virtio-net-pci,macaddr=52:54:00:12:34:57\r\n"
              " \\ n1: index=0,type=user,net=10.0.2.0,restrict=off\r\n"
              "e1000.0: index=0,type=nic,model=e1000,macaddr=52:54:00:12:34:56\r\n"
              "h: index=0,type=tap,ifname=a\r\nhub 0\r\n"
              " \\ hub0port1: n: net2.0: index=0,type=nic,model=virtio-net-pci,macaddr=52:54:00:12:34:58\r\n";
    assert_ok(links_all_down(q, &err), err);
    assert_string_equal(downed, "net1 e1000.0 net2.0 ");
    network = "  net1 index=0,type=nic,model=e1000\r\n";
    assert_fails(links_all_down(q, &err), EPROTO);
    network = "";
    assert_ok(links_all_down(q, &err), err);
    qmp_free(q);
}

static void test_balloon(void **state)
{
    struct qmp *q = qmp_by(carry, NULL, getpid());
    (void)state;

    balloon = "false";
    assert_ok(discards_check(q, &err), err);
    balloon = "true";
    assert_fails(discards_check(q, &err), ENOTSUP);
    assert_non_null(strstr(err.text, "/machine/peripheral-anon/b"));
    balloon = "null"; /* what cannot be read is not permitted */
    assert_fails(discards_check(q, &err), ENOTSUP);
    qmp_free(q);
}

static bool runs(const char *text, size_t cut)
{
    uint8_t s[200] = {0};
    static const char head[] = "QEVM....\x04\0\0\0\x02\x0bglobalstate\0\0\0\0\0\0\0\x01\0\0\0\x08";

    memcpy(s, head, sizeof(head) - 1);
    memcpy(s + sizeof(head) - 1, text, strlen(text));
    return device_state_runs(s, cut ? cut : sizeof(s));
}

static void test_runs(void **state)
{
    (void)state;
    assert_true(runs("running", 0));
    assert_true(runs("suspended", 0));
    assert_false(runs("paused", 0));
    assert_false(runs("runnings", 0));
    assert_true(runs("paused", 10)); /* of a QEMU that writes none */
}

static bool is_nested(char flags, size_t cut)
{
    uint8_t s[64] = "some\x05\x10" "cpu/nested_state\0\0\0\x01";

    s[27] = (uint8_t)flags;
    return device_state_is_nested(s, cut ? cut : sizeof(s));
}

static void test_is_nested(void **state)
{
    (void)state;
    assert_false(is_nested(0, 0));
    assert_true(is_nested(1, 0)); /* a guest's guest */
    assert_true(is_nested(4, 0)); /* eVMCS */
    assert_false(is_nested(8, 0));
    assert_true(is_nested(0, 27)); /* what cannot be read is not permitted */
    assert_false(is_nested(1, 12));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_machine),
        cmocka_unit_test(test_links),
        cmocka_unit_test(test_balloon),
        cmocka_unit_test(test_runs), cmocka_unit_test(test_is_nested),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
