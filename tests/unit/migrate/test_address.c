/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * test_address.c - HOST:PORT,option=value: what is accepted, and what each refusal says
 */
#include "unit.h"

#include <sys/stat.h>

#include "address.h"
#include "farfork-return.h"
#include "key.h"

static struct ff_address *parse(const char *text)
{
    struct ff_address *a = NULL;
    struct ff_error err = {.code = 0};

    if (ff_address_parse(text, &a, &err))
        fail_msg("\"%s\": %s", text, err.text);
    return a;
}

static void test_host_and_port(void **state)
{
    static const struct {
        const char *text, *host, *port;
    } good[] = {
        {"192.0.2.1:4444", "192.0.2.1", "4444"}, {"host.example:0", "host.example", "0"},
        {":65535", "", "65535"},                 {"[::1]:1", "::1", "1"},
        {"[fe80::1%eth0]:22", "fe80::1%eth0", "22"}, {"h:0022", "h", "22"},
    };
    (void)state;

    for (size_t i = 0; i < FF_ARRAY_LEN(good); i++) {
        struct ff_address *a = parse(good[i].text);
        assert_string_equal(a->host, good[i].host);
        assert_string_equal(a->port, good[i].port);
        ff_address_free(a);
    }
}

static void test_passed(void **state)
{
    struct ff_address *a = parse("unix"), *b = parse("unix,timeout=7"), *c = parse("unix:1");
    (void)state;

    assert_true(a->passed && b->passed && !c->passed);
    assert_int_equal(b->timeout_ms, 7000);
    assert_string_equal(c->host, "unix");
    ff_address_free(a);
    ff_address_free(b);
    ff_address_free(c);
}

static void test_defaults(void **state)
{
    struct ff_address *a = parse("h:1");
    (void)state;
    assert_int_equal(a->timeout_ms, 15000);
    assert_int_equal(ff_address_reconnect_ms(a), 300000);
    assert_int_equal(a->chunk_bytes, 2 << 20);
    assert_int_equal(a->window, 0);
    assert_int_equal(a->landing, FF_LANDING_AUTO);
    assert_int_equal(a->prefill, FF_PREFILL_AUTO);
    assert_int_equal(a->qps, 1);
    assert_string_equal(a->device, "");
    assert_string_equal(a->until_go, "");
    ff_address_free(a);
}

static void test_until_go(void **state)
{
    char text[400] = "h:1,until-go=/";
    struct ff_address *a = parse("h:1,until-go=/run/x/1.until-go,timeout=7"), *none = NULL;
    struct ff_error err = {.code = 0};
    (void)state;

    assert_string_equal(a->until_go, "/run/x/1.until-go");
    assert_int_equal(a->timeout_ms, 7000);
    ff_address_free(a);
    assert_int_equal(ff_address_parse("h:1,until-go=", &none, &err), -EINVAL);
    memset(text + strlen(text), 'x', 255);
    assert_int_equal(ff_address_parse(text, &none, &err), -EINVAL);
    assert_non_null(strstr(err.text, "255"));
    text[strlen(text) - 1] = '\0';
    a = parse(text);
    ff_address_free(a);
}

static void test_options(void **state)
{
    struct ff_address *a = parse("h:1,link=tcp,timeout=3600,chunk=4096,window=32,landing=continue,"
                                 "prefill=off");
    (void)state;
    assert_int_equal(a->timeout_ms, 3600000);
    assert_int_equal(a->chunk_bytes, 4096);
    assert_int_equal(a->window, 32);
    assert_int_equal(a->landing, FF_LANDING_CONTINUE);
    assert_int_equal(a->prefill, FF_PREFILL_OFF);
    ff_address_free(a);

    a = parse("h:1,tos=104");
    assert_true(a->tos.set && a->tos.of[FF_QUEUE_FAULT] == 104 && a->tos.of[FF_QUEUE_PREFILL] == 104);
    ff_address_free(a);
    a = parse("h:1,tos=104:32");
    assert_true(a->tos.set && a->tos.of[FF_QUEUE_FAULT] == 104 && a->tos.of[FF_QUEUE_PREFILL] == 32);
    ff_address_free(a);
    a = parse("h:1,link=verbs,device=mlx5_0,qps=8");
    assert_string_equal(a->device, "mlx5_0");
    assert_int_equal(a->qps, 8);
    assert_false(a->tos.set);
    ff_address_free(a);
    a = parse("h:1,device=rocep1s0f0v2:2");
    assert_string_equal(a->device, "rocep1s0f0v2:2");
    ff_address_free(a);
    a = parse("h:1,link=auto,timeout=1,chunk=4M,window=1,landing=copy,prefill=pull");
    assert_int_equal(a->timeout_ms, 1000);
    assert_int_equal(a->chunk_bytes, 4 << 20);
    assert_int_equal(a->window, 1);
    assert_int_equal(a->landing, FF_LANDING_COPY);
    assert_int_equal(a->prefill, FF_PREFILL_PULL);
    ff_address_free(a);

    a = parse("h:1,prefill=push,landing=move,odp=on");
    assert_int_equal(a->prefill, FF_PREFILL_PUSH);
    assert_int_equal(a->landing, FF_LANDING_MOVE);
    assert_int_equal(a->odp, FF_ODP_ON);
    ff_address_free(a);

    a = parse("h:1,reconnect=86400");
    assert_int_equal(ff_address_reconnect_ms(a), 86400000);
    ff_address_free(a);
    a = parse("h:1,reconnect=0");
    assert_int_equal(ff_address_reconnect_ms(a), 0);
    ff_address_free(a);

    a = parse("h:1,insecure=on");
    assert_true(a->insecure);
    ff_address_free(a);
    a = parse("h:1,insecure=off");
    assert_false(a->insecure || a->verify);
    ff_address_free(a);
    a = parse("h:1,verify=on");
    assert_true(a->verify);
    ff_address_free(a);

    a = parse("h:1,fence=/f,lease=7,record=/r,fallback=go");
    assert_true(ff_address_fallback(a) && a->lease_ms == 7000);
    assert_string_equal(a->fence, "/f");
    assert_false(a->holds_output);
    assert_string_equal(a->record, "/r");
    ff_address_free(a);
    a = parse("h:1,output=hold,fence=/f,record=/r,fallback=go");
    assert_true(a->holds_output);
    ff_address_free(a);
    a = parse("h:1,output=pass");
    assert_false(a->holds_output);
    ff_address_free(a);
    a = parse("h:1,fallback=off,lease=3600");
    assert_true(!ff_address_fallback(a) && a->lease_ms == 3600000);
    ff_address_free(a);

    a = parse("h:1,precopy=1");
    assert_true(a->precopy);
    ff_address_free(a);
    a = parse("h:1,precopy=0");
    assert_false(a->precopy);
    ff_address_free(a);

    a = parse("h:1,visit=on");
    assert_true(ff_address_visit(a) && a->prefill == FF_PREFILL_OFF);
    ff_address_free(a);
    a = parse("h:1,prefill=off,visit=on,precopy=0");
    assert_true(a->visit && a->prefill == FF_PREFILL_OFF);
    ff_address_free(a);
    a = parse("h:1,visit=on,budget=64M");
    assert_true(a->visit && a->prefill == FF_PREFILL_AUTO);
    assert_int_equal(a->budget_bytes, 64 << 20);
    ff_address_free(a);
    a = parse("h:1,budget=16777216M,prefill=pull,visit=on");
    assert_true(a->prefill == FF_PREFILL_PULL && a->budget_bytes == 1ull << 44);
    ff_address_free(a);
    a = parse("h:1,visit=off,prefill=push,precopy=1");
    assert_true(!ff_address_visit(a) && a->prefill == FF_PREFILL_PUSH);
    ff_address_free(a);

    a = parse("h:1,chunk=64K,landing=auto");
    assert_int_equal(a->chunk_bytes, 64 << 10);
    assert_int_equal(a->landing, FF_LANDING_AUTO);
    ff_address_free(a);
}

#define KEY_TEXT "5f3c0e9d6b2a48f1c7e6d5b4a39281706f5e4d3c2b1a09f8e7d6c5b4a3928170"

/* A key comes from a file that others may not read, or from memory; copies share it */
static void test_key(void **state)
{
    char path[] = "/tmp/farfork-address-XXXXXX", text[80];
    struct ff_address *a = NULL;
    struct ff_error err;
    (void)state;

    int fd = mkstemp(path);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, KEY_TEXT "\n", 65), 65);
    snprintf(text, sizeof(text), "h:1,key-file=%s,timeout=7", path);
    a = parse(text);
    assert_int_equal(a->timeout_ms, 7000);
    assert_int_equal(ff_key_bytes(a->key)[0], 0x5f);
    struct ff_address copy = ff_address_copy(a);
    ff_address_free(a);
    assert_int_equal(ff_key_bytes(copy.key)[31], 0x70); /* it outlives the first */
    ff_address_drop(&copy);
    assert_null(copy.key);

    a = NULL;
    assert_int_equal(fchmod(fd, 0644), 0);
    assert_fails(ff_address_parse(text, &a, &err), EPERM);
    assert_error(err, EPERM, "644", "chmod 600", "farfork-address-");
    assert_null(a);
    close(fd);
    unlink(path);
    assert_fails(ff_address_parse(text, &a, &err), ENOENT);
    assert_fails(ff_address_parse("unix,key-file=/etc/hostname", &a, &err), EINVAL);
    assert_error(err, EINVAL, "socket");

    a = parse("h:1");
    assert_null(a->key);
    assert_fails(ff_address_set_key(a, KEY_TEXT, 63, &err), EINVAL);
    assert_null(a->key);
    assert_ok(ff_address_set_key(a, KEY_TEXT, 64, &err), err);
    assert_ok(ff_address_set_key(a, KEY_TEXT, 64, &err), err); /* instead of the first */
    assert_int_equal(ff_key_bytes(a->key)[1], 0x3c);
    ff_address_free(a);
    ff_address_free(NULL);
}

static void test_refused(void **state)
{
    static const struct {
        const char *text, *says;
        int code;
    } bad[] = {
        {"", "HOST:PORT", EINVAL},
        {"host", "HOST:PORT", EINVAL},
        {"host:", "PORT", EINVAL},
        {"host:x", "PORT=x", EINVAL},
        {"host:65536", "65535", EINVAL},
        {"host:-1", "PORT=-1", EINVAL},
        {"host:+1", "PORT=+1", EINVAL},
        {"host: 1", "PORT= 1", EINVAL},
        {"host:1 ", "PORT=1 ", EINVAL},
        {"host:0x10", "PORT=0x10", EINVAL},
        {"host:1K", "PORT=1K", EINVAL},
        {"host:99999999999999999999", "PORT", EINVAL},
        {"::1:4444", "brackets", EINVAL},
        {"[::1:4444", "brackets", EINVAL},
        {"::1]:4444", "brackets", EINVAL},
        {"[]:4444", "brackets", EINVAL},
        {"h:1,timeout", "timeout", EINVAL},
        {"h:1,timeout=", "timeout=", EINVAL},
        {"h:1,timeout=0", "1..3600", EINVAL},
        {"h:1,timeout=3601", "1..3600", EINVAL},
        {"h:1,timeout=1M", "timeout=1M", EINVAL},
        {"h:1,reconnect=86401", "0..86400", EINVAL},
        {"h:1,reconnect=-1", "reconnect=-1", EINVAL},
        {"h:1,reconnect=", "reconnect=", EINVAL},
        {"h:1,chunk=0", "4096", EINVAL},
        {"h:1,chunk=4095", "4096", EINVAL},
        {"h:1,chunk=4097", "power of two", EINVAL},
        {"h:1,chunk=3M", "power of two", EINVAL},
        {"h:1,chunk=8M", "4194304", EINVAL},
        {"h:1,chunk=1G", "chunk=1G", EINVAL},
        {"h:1,chunk=2MM", "chunk=2MM", EINVAL},
        {"h:1,chunk=18014398509481988K", "chunk=", EINVAL}, /* would wrap to 4096 */
        {"h:1,window=0", "1..32", EINVAL},
        {"h:1,window=33", "1..32", EINVAL},
        {"h:1,landing=there", "auto, copy, continue or move", EINVAL},
        {"h:1,prefill=on", "off, pull, push or auto", EINVAL},
        {"h:1,precopy=2", "precopy=2: want a number, 0..1", EINVAL},
        {"h:1,precopy=on", "precopy=on", EINVAL},
        {"h:1,visit=1", "want off or on", EINVAL},
        {"h:1,visit=on,prefill=auto", "want budget=SIZE, or prefill=off", EINVAL},
        {"h:1,prefill=pull,visit=on", "want budget=SIZE, or prefill=off", EINVAL},
        {"h:1,budget=1M", "budget= is for visit=on", EINVAL},
        {"h:1,budget=1M,visit=on,prefill=off", "budget= is for visit=on, with prefill", EINVAL},
        {"h:1,visit=on,budget=0", "want a number, 4096..17592186044416 bytes", EINVAL},
        {"h:1,visit=on,budget=16777217M", "want a number, 4096..", EINVAL},
        {"h:1,visit=on,budget=lots", "want a number", EINVAL},
        {"h:1,visit=on,budget=1M,precopy=1", "visit=on with precopy=1", EINVAL},
        {"h:1,precopy=1,visit=on", "visit=on with precopy=1", EINVAL},
        {"h:1,odp=yes", "auto, on or off", EINVAL},
        {"h:1,link=ib", "auto, tcp or verbs", EINVAL},
        {"h:1,qps=0", "1..8", EINVAL},
        {"h:1,qps=9", "1..8", EINVAL},
        {"h:1,tos=256", "0..255", EINVAL},
        {"h:1,tos=1:256", "0..255", EINVAL},
        {"h:1,tos=:1", "tos", EINVAL},
        {"h:1,tos=1:", "tos", EINVAL},
        {"h:1,tos=1:2:3", "tos", EINVAL},
        {"h:1,device=", "NAME or NAME:PORT", EINVAL},
        {"h:1,device=:1", "NAME or NAME:PORT", EINVAL},
        {"h:1,device=a b", "device=a b", EINVAL},
        {"h:1,device=a:0", "1..255", EINVAL},
        {"h:1,device=a:1:1", "1..255", EINVAL},
        {"h:1,device=a:x", "1..255", EINVAL},
        {"h:1,device=0123456789012345678901234567890123456789012345678901234567890123",
         "NAME or NAME:PORT", EINVAL},
        {"h:1,colour=blue", "colour", EINVAL},
        {"h:1,window=4,colour=blue", "colour", EINVAL},
        {"h:1,=4", "no such option", EINVAL},
        {"h:1,fallback=yes", "want off or go", EINVAL},
        {"h:1,fallback=go", "want fence=PROGRAM", EINVAL},
        {"h:1,fallback=go,fence=/f", "record=FILE", EINVAL},
        {"h:1,fallback=go,record=/r", "fence=PROGRAM", EINVAL},
        {"h:1,fence=/f", "are for fallback=go", EINVAL},
        {"h:1,record=/r,fallback=off", "are for fallback=go", EINVAL},
        {"h:1,output=hold", "is for fallback=go", EINVAL},
        {"h:1,output=keep,fallback=go,fence=/f,record=/r", "want pass or hold", EINVAL},
        {"h:1,fence=f", "want an absolute path", EINVAL},
        {"h:1,lease=0", "1..3600", EINVAL},
        {"h:1,lease=3601", "1..3600", EINVAL},
    };
    char large[400];
    (void)state;

    for (size_t i = 0; i < FF_ARRAY_LEN(bad); i++) {
        struct ff_address *a = (void *)1;
        struct ff_error err = {.code = 0};
        if (ff_address_parse(bad[i].text, &a, &err) != -bad[i].code)
            fail_msg("\"%s\": not refused with %d", bad[i].text, bad[i].code);
        if (!strstr(err.text, bad[i].says))
            fail_msg("\"%s\": \"%s\" is not in: %s", bad[i].text, bad[i].says, err.text);
        assert_ptr_equal(a, (void *)1);
        assert_fails(ff_address_parse(bad[i].text, &a, NULL), bad[i].code);
    }
    memset(large, 'h', sizeof(large));
    strcpy(large + 255, ":1");
    ff_address_free(parse(large));
    memset(large, 'h', sizeof(large));
    strcpy(large + 256, ":1");
    struct ff_address *a;
    struct ff_error err;
    assert_fails(ff_address_parse(large, &a, &err), EINVAL);
    assert_error(err, EINVAL, "256", "255");
}

/* What was looked up is where a source connects to; nobody is asked again */
static void test_resolve(void **state)
{
    struct ff_address *a = parse("localhost:1,link=tcp"); /* tcpmux: nobody listens there */
    static _Alignas(4096) uint8_t page[4096];
    struct ff_region r = {
        .name = "ram", .host = page, .len_bytes = sizeof(page), .psize = sizeof(page), .fd = -1};
    struct ff_source *s = NULL;
    struct ff_error err = {.code = 0};
    (void)state;

    assert_ok(ff_address_resolve(a, &err), err);
    assert_in_range(a->peers.n, 1, FF_PEERS_MAX);
    snprintf(a->host, sizeof(a->host), "no-such-host.invalid");
    assert_ok(ff_source_new(a, &s, &err), err);
    assert_ok(ff_source_add_region(s, &r, &err), err);
    assert_fails(ff_source_connect(s, "", &err), ECONNREFUSED);
    ff_source_free(s);
    assert_true(ff_address_resolve(a, &err) < 0);
    assert_non_null(strstr(err.text, "no-such-host.invalid"));
    assert_int_equal(a->peers.n, 0);
    ff_address_free(a);
    a = parse("unix"); /* there is nobody to look up */
    assert_ok(ff_address_resolve(a, &err), err);
    assert_int_equal(a->peers.n, 0);
    ff_address_free(a);
}

UNIT_MAIN(cmocka_unit_test(test_host_and_port), cmocka_unit_test(test_passed),
          cmocka_unit_test(test_defaults), cmocka_unit_test(test_until_go),
          cmocka_unit_test(test_options), cmocka_unit_test(test_key),
          cmocka_unit_test(test_refused), cmocka_unit_test(test_resolve))
