/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * hello.c - who is let in: differences are refused with both values, strangers are dropped
 */
#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "by_hand.h"
#include "cleanup.h"

static void setup(void)
{
    image_new(4000);
}

static atomic_uint n_warnings;

static void count_warning(enum ff_level level, const char *line)
{
    must(level == FF_WARN && strstr(line, "dropped"));
    atomic_fetch_add(&n_warnings, 1);
}

/* --- a stranger at the real listener --- */

static int make_hello(uint8_t *buf, const struct move *m, unsigned oldest, unsigned version,
                      const char *config)
{
    struct ff_wire_region r[REGIONS_MAX];
    struct ff_hello h = hand_hello(m, r);
    struct ff_error err;

    h.oldest = (uint16_t)oldest;
    h.version = (uint16_t)version;
    snprintf(h.config, sizeof(h.config), "%s", config);
    int len = ff_wire_put_hello(buf, &h, &err);
    must(len > 0);
    return len;
}

struct acceptor {
    pthread_t thread;
    struct move *m;
    int rc;
    struct ff_error err;
};

static void *accept_main(void *arg)
{
    struct acceptor *a = arg;
    a->rc = move_stage(a->m, D_ACCEPT, &a->err);
    return NULL;
}

/* Each is told why; the destination waits on, and takes the good source after them */
static void one_version(struct move *m, unsigned oldest, unsigned version, const char *says)
{
    static uint8_t buf[FF_MSG_MAX];
    struct ff_link *l = hand_say(m, buf, make_hello(buf, m, oldest, version, "test"));

    hand_refused(l, says);
    l->ops->free(l);
}

static void other_versions(struct move *m, enum stage stage)
{
    if (stage != S_CONNECT)
        return;
    one_version(m, 12, 12, "version 12..12 (this side speaks 11)");
    one_version(m, 12, 65535, "version 12..65535");
    one_version(m, 0, 8, "version 0..8");
}

static void versions(void)
{
    static struct move m;

    ff_set_log(count_warning, FF_WARN);
    m = (struct move){.tcp = true, .hook = other_versions};
    move_run(&m);
    must(atomic_load(&n_warnings) == 3);
    move_must_succeed(&m);
}

/* Another table, and peers that fit but leave after WELCOME, before it, or open no queue for as
 * long as they may: the good source comes meanwhile, and gets in */
static struct ff_link *stalls;

static void *other_sources(void *arg)
{
    static uint8_t buf[FF_MSG_MAX];
    struct move *m = arg;
    struct ff_error err;

    for (unsigned i = 0; i < 4; i++) {
        struct ff_link *l = hand_connect(m, NULL);
        int len =
            make_hello(buf, m, FF_WIRE_VERSION, FF_WIRE_VERSION, i ? "test" : "another machine");
        must_ok(l->ops->send(l, buf, (uint32_t)len, &err), err);
        if (i == 0)
            hand_refused(l, "another machine");
        len = i >= 2 ? l->ops->recv(l, buf, 20000, &err) : 0;
        must(i < 2 || (len > 0 && ff_wire_type(buf, (size_t)len, &err) == FF_MSG_WELCOME));
        if (i == 3)
            stalls = l;
        else
            l->ops->free(l);
    }
    return NULL;
}

static void others_first(struct move *m, enum stage stage)
{
    pthread_t t;

    if (stage == S_CONNECT) {
        must(!pthread_create(&t, NULL, other_sources, m));
        pthread_join(t, NULL);
    }
    if (stage == S_END)
        stalls->ops->free(stalls);
}

static void others_then_good(void)
{
    static struct move m;

    ff_set_log(count_warning, FF_WARN);
    m = (struct move){.tcp = true, .options = "timeout=4", .hook = others_first};
    move_run(&m);
    must(atomic_load(&n_warnings) == 4);
    move_must_succeed(&m);
}

/* Rubbish of many kinds; after each the destination waits on, and a good source gets in.
 * insecure: who left at once is heard out as well, for nobody asks whose he was */
static struct move after_rubbish;

static void *throw_rubbish(void *arg)
{
    static uint8_t buf[FF_MSG_MAX];
    struct move *m = arg;
    struct ff_error err;
    uint64_t seed = 1;

    for (unsigned i = 0; i < 40; i++) {
        struct ff_link *l = hand_connect(m, NULL);
        int len = make_hello(buf, m, FF_WIRE_VERSION, FF_WIRE_VERSION, "test");
        switch (i % 5) {
        case 0: /* leaves at once */
            len = 0;
            break;
        case 1: /* another message of ours */
            len = ff_wire_put_empty(buf, FF_MSG_GO);
            break;
        case 2: /* noise */
            for (int k = 4; k < len; k++)
                buf[k] = (uint8_t)((seed = seed * 6364136223846793005ull + 1) >> 56);
            break;
        case 3: /* cut short */
            len -= 1 + (int)i;
            break;
        case 4: /* one byte of the magic */
            buf[4 + i / 5] ^= 0x20;
            break;
        }
        if (len)
            must_ok(l->ops->send(l, buf, (uint32_t)len, &err), err);
        if (len)
            hand_refused(l, "wire: read ");
        l->ops->free(l);
    }
    return NULL;
}

static void rubbish_first(struct move *m, enum stage stage)
{
    pthread_t t;

    if (stage != S_CONNECT)
        return;
    must(!pthread_create(&t, NULL, throw_rubbish, m));
    pthread_join(t, NULL);
}

static void rubbish_then_good(void)
{
    ff_set_log(count_warning, FF_WARN);
    after_rubbish = (struct move){.tcp = true, .options = "insecure=on", .hook = rubbish_first,
                                  .touchers = 4, .writes = true};
    move_run(&after_rubbish);
    must(atomic_load(&n_warnings) == 40);
    move_must_succeed(&after_rubbish);
}

/* Strangers that connect and say nothing cost the source nothing: one, as many as are waited for,
 * and more */
#define SILENT 20u

static struct ff_link *silent[SILENT];
static unsigned n_silent;

static void silent_first(struct move *m, enum stage stage)
{
    if (stage == S_CONNECT)
        for (unsigned i = 0; i < n_silent; i++)
            silent[i] = hand_connect(m, NULL);
    if (stage == S_END)
        for (unsigned i = 0; i < n_silent; i++)
            silent[i]->ops->free(silent[i]);
}

static void silent_then_good(void)
{
    static const unsigned counts[] = {1, 3, SILENT};
    static struct move m;

    ff_set_log(count_warning, FF_WARN);
    for (unsigned i = 0; i < FF_ARRAY_LEN(counts); i++) {
        n_silent = counts[i];
        m = (struct move){.tcp = true, .options = "timeout=4", .hook = silent_first};
        move_run(&m);
        move_must_succeed(&m);
    }
    must(atomic_load(&n_warnings) <= SILENT - 8 + 1); /* those that others pushed out */
}

/* Likewise when they come after HELLO: a source of ours waits for WELCOME while they connect */
static void silent_among_queues(void)
{
    static uint8_t buf[FF_MSG_MAX];
    static struct move m;
    struct acceptor a = {.m = &m};
    struct ff_welcome w;
    struct ff_error err;

    m = (struct move){.tcp = true, .options = "timeout=4"};
    move_prepare(&m);
    must(!pthread_create(&a.thread, NULL, accept_main, &a));
    struct ff_link *l = hand_connect(&m, NULL);
    int len = make_hello(buf, &m, FF_WIRE_VERSION, FF_WIRE_VERSION, "test");
    must_ok(l->ops->send(l, buf, (uint32_t)len, &err), err);
    len = l->ops->recv(l, buf, 20000, &err);
    must(len > 0);
    must_ok(ff_wire_get_welcome(buf, (size_t)len, &w, &err), err);
    for (unsigned i = 0; i < 3; i++)
        silent[i] = hand_connect(&m, NULL);
    must_ok(l->ops->open_queues(l, w.session, 4000, &err), err);
    pthread_join(a.thread, NULL); /* before they were silent for their two seconds each */
    must_ok(a.rc, a.err);
    for (unsigned i = 0; i < 3; i++)
        silent[i]->ops->free(silent[i]);
    l->ops->free(l);
    move_free(&m);
}

/* --- a real source that does not fit --- */

static void expect_both(bool tcp, struct move *m, const char *a, const char *b)
{
    m->tcp = tcp;
    m->options = "timeout=5";
    move_run(m);
    must(m->src.stage == S_CONNECT && m->src.rc == -EREMOTEIO);
    /* over tcp it has a port, and waits for the next source: there is none */
    must(m->dst.stage == D_ACCEPT && m->dst.rc == (tcp ? -ECANCELED : -EINVAL) && !m->ran);
    const char *text[2] = {m->src.err.text, m->dst.err.text};
    for (int i = 0; i < (tcp ? 1 : 2); i++)
        if (!strstr(text[i], a) || !strstr(text[i], b))
            loop_fail(__FILE__, __LINE__, "\"%s\" and \"%s\" are not both in: %s", a, b, text[i]);
    move_free(m);
}

static void config_differs(void)
{
    static struct move m;

    for (int tcp = 0; tcp < 2; tcp++) {
        m = (struct move){.config = "another machine"};
        expect_both(tcp, &m, "\"another machine\"", "\"test\"");
    }
}

static void change_regions(struct move *m, enum stage stage);
static unsigned change;

static void regions_differ(void)
{
    static const char *const says[][2] = {
        {"only at the source", "0x3000"},      {"only at the destination", "0x5000"},
        {"length differs", "0x7000"},          {"page size differs", "8192"},
    };
    static struct move m;

    for (change = 0; change < 4; change++) {
        for (int tcp = 0; tcp < 2; tcp++) {
            m = (struct move){.hook = change_regions};
            expect_both(tcp, &m, says[change][0], says[change][1]);
        }
    }
}

/* One more region on one side or both */
static void change_regions(struct move *m, enum stage stage)
{
    static uint8_t mem[2][1 << 16] __attribute__((aligned(65536)));
    struct ff_region r = {.name = "extra", .psize = 4096, .fd = -1};
    struct ff_error err;

    if (stage == S_CONNECT && change != 1) {
        r.host = mem[0];
        r.len_bytes = change == 0 ? 0x3000 : change == 2 ? 0x7000 : 0x8000;
        must_ok(ff_source_add_region(m->source, &r, &err), err);
    }
    if (stage == D_ACCEPT && change != 0) {
        r.host = mem[1];
        r.len_bytes = change == 1 ? 0x5000 : 0x8000;
        r.psize = change == 3 ? 8192 : 4096;
        must_ok(ff_dest_add_region(m->dest, &r, &err), err);
    }
}

int main(int argc, char **argv)
{
    static const struct loop_test tests[] = {
        {"versions", versions, 0},
        {"rubbish, then a good source", rubbish_then_good, 0},
        {"silent strangers, then a good source", silent_then_good, 0},
        {"silent strangers among the queues", silent_among_queues, 0},
        {"other sources, then a good one", others_then_good, 0},
        {"config differs", config_differs, 0},
        {"regions differ", regions_differ, 0},
    };
    return loop_main(argc, argv, setup, tests, FF_ARRAY_LEN(tests));
}
