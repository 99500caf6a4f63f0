/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * test_identity.c - no two children share anything, and only what must change changes
 */
#include "unit.h"

#include "identity.h"
#include "autojson.h"
#include "qemu_opts.h"

static struct ff_error why;

static json_t *words(const char *const *w)
{
    json_t *a = json_array();

    for (; *w; w++)
        json_array_append_new(a, json_string(*w));
    return a;
}

static const char *const parent_argv[] = {
    "qemu", "-name", "guest=web,debug-threads=on", "-uuid", "00000000-0000-0000-0000-000000000001",
    "-smbios", "type=1,manufacturer=A,, B,uuid=00000000-0000-0000-0000-000000000001",
    "-device", "vmgenid,guid=auto,id=vg", "-netdev", "user,id=n0", "-device",
    "virtio-net-pci,netdev=n0,mac=52:54:00:AA:00:01,id=net0", "-netdev", "user,id=n1", "-device",
    "{\"driver\":\"e1000\",\"netdev\":\"n1\"}", "-nic", "user,model=virtio-net-pci", "-chardev",
    "socket,id=ch0,path=/run/x", "-device", "virtio-serial-pci", "-device",
    "virtserialport,chardev=ch0,name=org.farfork.0", "-fw_cfg",
    "name=opt/org.farfork/clone,string=placeholder", "-device", "virtio-blk-pci,drive=d0", NULL};

static struct identity *plan(const struct identity_input *in)
{
    struct identity *id = NULL;

    why.text[0] = '\0';
    if (identity_plan(in, &id, &why) < 0)
        return NULL;
    return id;
}

static const char *at(const json_t *argv, size_t i)
{
    return json_string_value(json_array_get(argv, i));
}

/* Whose serial number is their MAC: they begin with their parent's */
static void test_serial(void **state)
{
    static const char *const parent[] = {"qemu", "-device", "vmxnet3,netdev=a,mac=52:54:00:AA:00:01", "-device",
                                         "e1000e,netdev=b", "-nic", "user,model=igb", "-device", "e1000,netdev=c", NULL};
    FF_AUTO_JSON json_t *argv = words(parent);
    const struct identity_input in = {.fork_id = "f", .count = 1, .argv = argv};
    struct identity *id = plan(&in);
    (void)state;

    assert_non_null(id);
    FF_AUTO_JSON json_t *child = json_deep_copy(argv), *sum = identity_summary(id, 1);
    identity_child_argv(id, 1, "/r", child);
    assert_string_equal(at(child, 2), "vmxnet3,netdev=a,mac=52:54:00:aa:00:01");
    assert_string_equal(at(child, 4), "e1000e,netdev=b,mac=52:54:00:12:34:57");
    assert_string_equal(at(child, 6), "user,model=igb,mac=52:54:00:12:34:56");
    FF_AUTO_FREE char *other = xprintf("e1000,netdev=c,mac=%s", at(json_object_get(sum, "macs"), 3));
    assert_string_equal(at(child, 8), other);
    identity_free(id);
}

static void test_argv(void **state)
{
    FF_AUTO_JSON json_t *argv = words(parent_argv);
    const struct identity_input in = {.fork_id = "f", .count = 50, .argv = argv};
    struct identity *id = plan(&in);
    (void)state;

    assert_non_null(id);
    assert_string_equal(identity_channel(id), "ch0");
    FF_AUTO_JSON json_t *child = json_deep_copy(argv), *sum = identity_summary(id, 50);
    identity_child_argv(id, 50, "/r", child);
    assert_int_equal(json_array_size(child), json_array_size(argv));
    const json_t *macs = json_object_get(sum, "macs");
    assert_int_equal(json_array_size(macs), 3);
    const char *uuid = json_string_value(json_object_get(sum, "uuid"));
    char want[256];

    assert_string_equal(at(child, 2), "guest=web-50,debug-threads=on");
    assert_string_equal(at(child, 4), uuid);
    snprintf(want, sizeof(want), "type=1,manufacturer=A,, B,uuid=%s", uuid);
    assert_string_equal(at(child, 6), want);
    assert_string_equal(at(child, 8), "vmgenid,id=vg");
    /* the order of NICs: -nic, then -device */
    snprintf(want, sizeof(want), "virtio-net-pci,netdev=n0,mac=%s,id=net0", at(macs, 1));
    assert_string_equal(at(child, 12), want);
    snprintf(want, sizeof(want), "{\"driver\":\"e1000\",\"netdev\":\"n1\",\"mac\":\"%s\"}",
             at(macs, 2));
    assert_string_equal(at(child, 16), want);
    snprintf(want, sizeof(want), "user,model=virtio-net-pci,mac=%s", at(macs, 0));
    assert_string_equal(at(child, 18), want);
    for (size_t i = 0; i < json_array_size(argv); i++)
        if (i == 10 || i == 14 || i == 20 || i == 22 || i == 24 || i == 28)
            assert_string_equal(at(child, i), at(argv, i));

    assert_string_equal(at(child, 26), "name=" CLONE_FW_CFG ",file=/r/50.message");

    FF_AUTO_JSON json_t *missing = identity_missing(id);
    assert_int_equal(json_array_size(missing), 1);
    assert_non_null(strstr(at(missing, 0), "11 bytes (want 4096)"));
    identity_free(id);
}

static json_t *message_of(const struct identity *id, unsigned number, long long time_ms)
{
    FF_AUTO_FREE char *text = identity_message(id, number, time_ms);
    json_error_t e;
    json_t *j = json_loads(text, JSON_REJECT_DUPLICATES, &e);

    if (!j)
        fail_msg("not JSON: %s: line %d of\n%s", e.text, e.line, text);
    assert_memory_equal(text, "{\n", 2);
    assert_string_equal(text + strlen(text) - 3, "\n}\n");
    return j;
}

static void test_message(void **state)
{
    FF_AUTO_JSON json_t *argv = words(parent_argv);
    FF_AUTO_JSON json_t *filters =
        json_pack("[{s:s,s:s}]", "name", "net0", "main-mac", "52:54:00:aa:00:77");
    const char *const ip[] = {"dhcp", "10.0.0.{n+10}/24,10.0.0.1", NULL};
    const struct identity_input in = {
        .fork_id = "f-1", .count = 3, .argv = argv, .rx_filters = filters, .ip = ip, .ips = 3,
        .hostname = "{name}_{id}.{n}", .user = "a,\"b\" \\ \xc3\xa9 }"};
    struct identity *id = plan(&in);
    (void)state;

    assert_non_null(id);
    FF_AUTO_JSON json_t *m = message_of(id, 2, 1500000000123);
    assert_string_equal(json_string_value(json_object_get(m, "fork")), "f-1");
    assert_int_equal(json_integer_value(json_object_get(m, "number")), 2);
    assert_int_equal(json_integer_value(json_object_get(m, "count")), 3);
    assert_string_equal(json_string_value(json_object_get(m, "hostname")), "web-f-1.2");
    assert_string_equal(json_string_value(json_object_get(m, "user")), in.user);
    const json_t *nics = json_object_get(m, "nics");
    static const struct {
        const char *mac, *ip, *gw;
    } want[] = {{"52:54:00:12:34:56", "dhcp", ""},
                {"52:54:00:aa:00:77", "10.0.0.12/24", "10.0.0.1"},
                {"52:54:00:12:34:57", "", ""}};
    assert_int_equal(json_array_size(nics), 3);
    for (size_t i = 0; i < 3; i++) {
        const json_t *n = json_array_get(nics, i);
        assert_string_equal(json_string_value(json_object_get(n, "mac_old")), want[i].mac);
        assert_string_equal(json_string_value(json_object_get(n, "ip")), want[i].ip);
        assert_string_equal(json_string_value(json_object_get(n, "gw")), want[i].gw);
    }
    FF_AUTO_JSON json_t *p = message_of(id, 0, 1);
    assert_int_equal(json_integer_value(json_object_get(p, "number")), 0);
    assert_int_equal(json_array_size(json_object_get(p, "nics")), 0);
    identity_free(id);
}

/* Children that were started ahead, of a fork that has fewer */
static void test_again(void **state)
{
    FF_AUTO_JSON json_t *argv = words(parent_argv), *bare = words(parent_argv);
    FF_AUTO_JSON json_t *filters =
        json_pack("[{s:s,s:s}]", "name", "net0", "main-mac", "52:54:00:aa:00:77");
    struct identity_input in = {.fork_id = "f", .count = 3, .argv = argv};
    struct identity *id = plan(&in);
    (void)state;

    assert_non_null(id);
    assert_int_equal(identity_again(id, &in, &why), 0);
    in.count = 2; /* its fw_cfg says 3 */
    assert_int_equal(identity_again(id, &in, &why), -EBUSY);
    in.count = 3;
    in.user = "x";
    assert_int_equal(identity_again(id, &in, &why), -EBUSY);
    identity_free(id);

    json_array_remove(bare, 25);
    json_array_remove(bare, 25);
    in = (struct identity_input){.fork_id = "f", .count = 3, .argv = bare, .user = "before"};
    id = plan(&in);
    assert_non_null(id);
    FF_AUTO_JSON json_t *before = message_of(id, 2, 0);
    in.count = 2;
    in.user = "x";
    assert_int_equal(identity_again(id, &in, &why), 0);
    FF_AUTO_JSON json_t *m = message_of(id, 2, 0);
    assert_int_equal(json_integer_value(json_object_get(m, "count")), 2);
    assert_string_equal(json_string_value(json_object_get(m, "user")), "x");
    json_object_set(before, "count", json_object_get(m, "count")); /* all else is as it was */
    json_object_set(before, "user", json_object_get(m, "user"));
    assert_true(json_equal(before, m));
    in.user = "a\nb";
    assert_int_equal(identity_again(id, &in, &why), -EINVAL);
    in.user = NULL;
    in.rx_filters = filters;
    assert_int_equal(identity_again(id, &in, &why), -ESTALE);
    identity_free(id);
}

static void add_unique(json_t *seen, const char *value)
{
    if (json_object_get(seen, value))
        fail_msg("twice: %s", value);
    json_object_set_new(seen, value, json_true());
}

static const char *text_at(const json_t *files, size_t i, const char *key)
{
    const char *s = json_string_value(json_object_get(json_array_get(files, i), key));

    return s ? s : "";
}

/* Its secrets are in files, and in none of them once QEMU has read it */
static void test_files(void **state)
{
    FF_AUTO_JSON json_t *argv = words(parent_argv);
    const struct identity_input in = {.fork_id = "f", .count = 2, .argv = argv};
    struct identity *id = plan(&in);
    FF_AUTO_JSON json_t *files = identity_files(id, 2, "/r"), *sum = identity_summary(id, 2),
                     *message = message_of(id, 2, 0);
    FF_AUTO_FREE char *config = identity_config(id, 2, "/r"), *text = identity_message(id, 2, 0);
    const char *seed = json_string_value(json_object_get(message, "seed")),
               *boot_id = json_string_value(json_object_get(message, "boot_id"));
    (void)state;

    assert_int_equal(json_array_size(files), 2);
    assert_string_equal(text_at(files, 0, "path"), config);
    assert_true(identity_is_config(config));
    assert_false(identity_is_config("/etc/x.genid"));
    assert_false(identity_is_config("/r/.genid"));
    assert_non_null(strstr(text_at(files, 0, "text"),
                           json_string_value(json_object_get(sum, "genid"))));
    assert_string_equal(text_at(files, 0, "after"), "");
    assert_string_equal(text_at(files, 1, "path"), "/r/2.message");
    const char *now = text_at(files, 1, "text"), *after = text_at(files, 1, "after");
    assert_int_equal(strlen(now), CLONE_FW_CFG_BYTES);
    assert_int_equal(strlen(after), CLONE_FW_CFG_BYTES);
    assert_memory_equal(now, text, strlen(text));
    assert_non_null(strstr(now, seed));
    assert_non_null(strstr(now, boot_id));
    assert_null(strstr(after, seed));
    assert_null(strstr(after, boot_id));
    assert_non_null(strstr(after, "\"number\": 2,"));
    identity_free(id);
}

static void test_unique(void **state)
{
    static const char *const keys[] = {"hostname", "machine_id", "boot_id", "seed"};
    FF_AUTO_JSON json_t *argv = words(parent_argv), *seen = json_object();
    const struct identity_input in = {.fork_id = "f", .count = 200, .argv = argv};
    struct identity *id = plan(&in);
    (void)state;

    for (unsigned k = 1; k <= in.count; k++) {
        FF_AUTO_JSON json_t *m = message_of(id, k, 0), *sum = identity_summary(id, k);
        for (size_t i = 0; i < FF_ARRAY_LEN(keys); i++)
            add_unique(seen, json_string_value(json_object_get(m, keys[i])));
        add_unique(seen, json_string_value(json_object_get(sum, "uuid")));
        add_unique(seen, json_string_value(json_object_get(sum, "genid")));
        for (size_t i = 0; i < 3; i++)
            add_unique(seen, at(json_object_get(sum, "macs"), i));
    }
    identity_free(id);
}

static void test_refused(void **state)
{
    char large[4096];
    const char *const two[] = {"dhcp", "dhcp", "dhcp", "dhcp"};
    const struct {
        const char *hostname, *user, *ip, *says;
    } bad[] = {
        {"{x}", NULL, NULL, "{n+NUMBER}"},
        {"{n+}", NULL, NULL, "{n+}"},
        {"-{n}", NULL, NULL, "--hostname"},
        {"0123456789012345678901234567890123456789012345678901234567890123{n}", NULL, NULL,
         "1..64"},
        {NULL, "a\nb", NULL, "base64"},
        {NULL, "\xff", NULL, "UTF-8"},
        {NULL, large, NULL, "4096"},
        {NULL, NULL, "10.0.0.{n+253}/24", "10.0.0.256/24"},
        {NULL, NULL, "10.0.0.1", "--ip"},
        {NULL, NULL, "10.0.0.1/33", "--ip"},
        {NULL, NULL, "10.0.0.1/2x", "--ip"},
        {NULL, NULL, "10.0.0.1/24,gate", "gate"},
        {NULL, NULL, "10.0.0.1/24;reboot", "reboot"},
        {NULL, NULL, "fd00::{n}/129", "--ip"},
    };
    FF_AUTO_JSON json_t *argv = words(parent_argv);
    (void)state;

    memset(large, 'u', sizeof(large) - 1);
    large[sizeof(large) - 1] = '\0';
    for (size_t i = 0; i < FF_ARRAY_LEN(bad); i++) {
        const struct identity_input in = {
            .fork_id = "f", .count = 3, .argv = argv, .hostname = bad[i].hostname,
            .user = bad[i].user, .ip = &bad[i].ip, .ips = 1};
        if (plan(&in))
            fail_msg("not refused: %zu", i);
        if (!strstr(why.text, bad[i].says))
            fail_msg("\"%s\" is not in: %s", bad[i].says, why.text);
    }
    const struct identity_input many = {
        .fork_id = "f", .count = 1, .argv = argv, .ip = two, .ips = 4};
    assert_null(plan(&many));
    assert_non_null(strstr(why.text, "4 NICs, the parent has 3"));
}

static void test_missing(void **state)
{
    const char *const none[] = {"qemu", "-nic", "none", NULL};
    FF_AUTO_JSON json_t *argv = words(none);
    const struct identity_input in = {.fork_id = "f", .count = 1, .argv = argv};
    struct identity *id = plan(&in);
    FF_AUTO_JSON json_t *missing = identity_missing(id), *child = json_deep_copy(argv);
    (void)state;

    assert_int_equal(json_array_size(missing), 2);
    identity_child_argv(id, 1, "/r", child);
    assert_true(json_equal(child, argv));
    identity_free(id);
}

UNIT_MAIN(cmocka_unit_test(test_argv), cmocka_unit_test(test_serial), cmocka_unit_test(test_message),
          cmocka_unit_test(test_again),
          cmocka_unit_test(test_files),
          cmocka_unit_test(test_unique), cmocka_unit_test(test_refused),
          cmocka_unit_test(test_missing))
