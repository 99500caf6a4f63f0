/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * keyed.c - whole moves, over one link and more, and a fork with a key; sources with another one,
 *           or none, get nothing
 */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "by_hand.h"
#include "cleanup.h"
#include "family.h"
#include "key.h"

#define KEY LOOP_KEY
#define OTHER "5f3c0e9d6b2a48f1c7e6d5b4a39281706f5e4d3c2b1a09f8e7d6c5b4a3928171\n"

static char with_key[120];

static void setup(void)
{
    image_new(4000);
}

static const char *key_options(void)
{
    snprintf(with_key, sizeof(with_key), "key-file=%s", loop_key_file());
    return with_key;
}

static void moves(void)
{
    static const char *const prefills[] = {"pull", "push"};
    static struct move m;
    char options[160];

    key_options();
    for (unsigned i = 0; i < FF_ARRAY_LEN(prefills); i++) {
        snprintf(options, sizeof(options), "%s,prefill=%s", with_key, prefills[i]);
        m = (struct move){.tcp = true, .options = options, .touchers = 3, .writes = true,
                          .state_bytes = 3 << 20};
        move_run(&m);
        move_must_succeed(&m);
    }
    loop_remove_key();
}

static void break_once(struct move *m, enum stage stage)
{
    if (stage == D_RUNNING)
        ff_dest_pause(m->dest);
}

/* The link breaks after GO; the next one has a handshake and secrets of its own */
static void moves_on(void)
{
    static struct move m;

    m = (struct move){.options = key_options(), .hook = break_once, .touchers = 3, .writes = true,
                      .touch_late = true};
    move_must_survive(&m, "source.done=delay:0", 1);
    must(atomic_load(&m.breaks_dst));
    loop_remove_key();
}

/* --- others first --- */

static void other_source(struct move *m, const char *key, int code, const char *says)
{
    static uint8_t mem[1 << 16] __attribute__((aligned(65536)));
    struct ff_region r = {
        .name = "region0", .host = mem, .len_bytes = sizeof(mem), .psize = 4096, .fd = -1};
    struct ff_address *a;
    struct ff_source *s;
    struct ff_error err;
    char text[64];

    snprintf(text, sizeof(text), "127.0.0.1:%u,link=tcp,timeout=5", ff_dest_port(m->dest));
    must_ok(ff_address_parse(text, &a, &err), err);
    if (key)
        must_ok(ff_address_set_key(a, key, strlen(key), &err), err);
    must_ok(ff_source_new(a, &s, &err), err);
    ff_address_free(a); /* the source has its own reference to the key */
    must_ok(ff_source_add_region(s, &r, &err), err);
    int rc = ff_source_connect(s, "test", &err);
    if (rc != -code || !strstr(err.text, says))
        loop_fail(__FILE__, __LINE__, "%d, want %d and \"%s\": %s", rc, -code, says,
                  rc ? err.text : "");
    ff_source_free(s);
}

static void others_first(struct move *m, enum stage stage)
{
    if (stage != S_CONNECT)
        return;
    other_source(m, OTHER, EACCES, "another key");
    other_source(m, NULL, EACCES, "wants a key");
}

static void others_then_good(void)
{
    static struct move m;

    m = (struct move){.tcp = true, .options = key_options(), .hook = others_first};
    move_run(&m);
    must(m.dst.stage == D_END); /* nobody was adopted before */
    move_must_succeed(&m);
    loop_remove_key();
}

/* The destination has none: the source says nothing of its guest to it */
static void keyed_first(struct move *m, enum stage stage)
{
    if (stage == S_CONNECT)
        other_source(m, KEY, ECONNRESET, "has the destination no key");
}

static void keyed_source_alone(void)
{
    static struct move m;

    m = (struct move){.tcp = true, .options = "link=tcp", .hook = keyed_first};
    move_run(&m);
    move_must_succeed(&m);
}

/* --- a link with a key where another has none --- */

static struct ff_link *keyed_link(const struct move *m)
{
    struct ff_error err;
    struct ff_key *k;

    must_ok(ff_key_parse(KEY, strlen(KEY), &k, &err), err);
    struct ff_link *l = hand_connect(m, k);
    ff_key_unref(k);
    return l;
}

static unsigned n_refused;

static void refused(struct ff_link *l, const uint8_t *msg, int len, const char *says)
{
    struct ff_error err;

    must(len > 0);
    must_ok(l->ops->send(l, msg, (uint32_t)len, &err), err);
    hand_refused(l, says);
    l->ops->free(l);
    n_refused++;
}

/* A HELLO that claims what its link has not proved, or denies what it has */
static void untrue_hello(struct move *m, enum stage stage)
{
    static uint8_t buf[FF_MSG_MAX];
    struct ff_wire_region r[REGIONS_MAX];

    if (stage != S_CONNECT)
        return;
    struct ff_hello h = hand_hello(m, r);
    if (m->options != with_key) {
        h.auth = FF_WIRE_AUTH_KEY;
        refused(hand_connect(m, NULL), buf, ff_wire_put_hello(buf, &h, NULL),
                "hello: authentication kind 1 over a link without a key");
        return;
    }
    refused(keyed_link(m), buf, ff_wire_put_hello(buf, &h, NULL),
            "hello: authentication kind 0 over a link with a key");
}

static void untrue_then_good(void)
{
    static struct move m;

    for (unsigned i = 0; i < 2; i++) {
        m = (struct move){.tcp = true, .options = i ? key_options() : "", .hook = untrue_hello};
        move_run(&m);
        move_must_succeed(&m);
    }
    loop_remove_key();
    must(n_refused == 2);
}

#define PASSES "prefill=pull,chunk=64K,window=1"
#define BREAKS "tcp.serve.prefill=fail@9,dest.fault=delay:2000"
#define GUEST .touchers = 8, .writes = true, .touch_late = true

static struct ff_address *here(unsigned port, const char *key)
{
    struct ff_address *a = loop_address(port, "");
    struct ff_error err;

    if (key)
        must_ok(ff_address_set_key(a, key, strlen(key), &err), err);
    return a;
}

static void listen_at(struct move *m, struct ff_address *a)
{
    struct ff_error err;

    must_ok(ff_dest_listen(m->dest, a, &err), err);
    ff_address_free(a);
}

static void resume_fails(struct move *m, struct ff_address *a, int timeout_ms, int code,
                         const char *says)
{
    struct ff_error err;
    int rc = ff_source_resume(m->source, a, timeout_ms, &err);

    if (rc != -code || !strstr(err.text, says))
        loop_fail(__FILE__, __LINE__, "%d, want %d and \"%s\": %s", rc, -code, says,
                  rc ? err.text : "");
    ff_address_free(a);
}

/* To where the destination listens now, by an address without a key */
static void come_without(struct move *m)
{
    struct ff_address *a = here(ff_dest_port(m->dest), NULL);
    struct ff_error err;

    must_ok(ff_source_resume(m->source, a, 20000, &err), err);
    ff_address_free(a);
    ff_source_pause(m->source); /* the harness does it once more */
}

static atomic_bool elsewhere; /* the destination listens where its operator said */

/* Neither side leaves its key at home because an operator's new address has none; with another key
 * nobody comes back */
static void addresses_without(struct move *m, bool source)
{
    static uint8_t buf[FF_MSG_MAX];
    struct ff_error err;

    if (!source) {
        if (atomic_load(&m->breaks_dst) == 1)
            listen_at(m, here(0, NULL));
        atomic_store(&elsewhere, true);
        return;
    }
    if (atomic_load(&m->breaks_src) > 1)
        return;
    must(wait_flag(&elsewhere, 20000));
    struct ff_resume r = hand_resume(m);
    struct ff_link *l = hand_say(m, buf, ff_wire_put_resume(buf, &r));
    must(l->ops->recv(l, buf, 15000, &err) < 0 && err.code != ETIMEDOUT); /* a gate's answer */
    l->ops->free(l);
    resume_fails(m, here(ff_dest_port(m->dest), OTHER), 500, ETIMEDOUT, "another key");
    come_without(m);
}

static void resumes(void)
{
    static struct move m;
    char options[200];

    snprintf(options, sizeof(options), "%s," PASSES, key_options());
    m = (struct move){.options = options, GUEST, .broken = addresses_without};
    move_must_survive(&m, BREAKS, 1);
    loop_remove_key();
}

/* The first link had none: whoever comes later with a key is not taken for its source, by either */
static void key_comes_late(struct move *m, bool source)
{
    static uint8_t buf[FF_MSG_MAX];

    if (!source) {
        if (atomic_load(&m->breaks_dst) == 1)
            listen_at(m, here(0, KEY));
        atomic_store(&elsewhere, true);
        return;
    }
    if (atomic_load(&m->breaks_src) > 1)
        return;
    must(wait_flag(&elsewhere, 20000));
    struct ff_resume r = hand_resume(m);
    refused(keyed_link(m), buf, ff_wire_put_resume(buf, &r),
            "resume: authentication kind 0 over a link with a key");
    resume_fails(m, here(ff_dest_port(m->dest), KEY), 20000, EPROTO,
                 "source: resume: link: authentication kind 0 over a link with a key");
    listen_at(m, here(0, NULL));
    come_without(m);
}

static void resumes_as_it_began(void)
{
    static struct move m;

    m = (struct move){.options = PASSES, GUEST, .broken = key_comes_late};
    move_must_survive(&m, BREAKS, 1);
    must(n_refused == 1);
}

/* --- a fork --- */

static void fork_with_key(void)
{
    struct family *f = family_new();

    f->options = key_options();
    f->n_children = 2;
    family_start(f);
    family_source(f, S_DONE);
    family_must_succeed(f);
    loop_remove_key();
}

int main(int argc, char **argv)
{
    static const struct loop_test tests[] = {
        {"moves with a key", moves, 60},
        {"a move over two links", moves_on, 30},
        {"others, then the right source", others_then_good, 0},
        {"a key at the source alone", keyed_source_alone, 0},
        {"HELLO says what is not so", untrue_then_good, 0},
        {"breaks with a key", resumes, 30},
        {"a key from the second link on", resumes_as_it_began, 30},
        {"a fork with a key", fork_with_key, 60},
    };
    return loop_main(argc, argv, setup, tests, FF_ARRAY_LEN(tests));
}
