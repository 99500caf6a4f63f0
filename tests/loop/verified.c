/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * verified.c - verify=on: whatever is changed between source and destination is never installed
 */
/**
 * DOC: Theory of Operation
 *
 * Picture      source -- link -- liar -- destination's pager
 *              The liar stands at the destination's end, behind whatever seals the link: what it
 *              changes no TLS sees, as in a network whose pages travel in the clear.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cleanup.h"
#include "family.h"
#include "platform.h"
#include "tags.h"

#define FINE "chunk=64K,window=1"
#define GUEST .touchers = 8, .writes = true, .touch_late = true
#define SAYS "are not what the source has"
#define HUGE_PAGES 16

static const char *no_huge; /* why there are no huge pages */
static char options[200];

static void setup(void)
{
    image_new(4096);
}

/* --- the liar --- */

#define LAST 4u /* reads under way when a move ends */

enum lie { NONE, A_BYTE, ZEROS, OF_ANOTHER, A_TAG, AN_ASK };

struct seen {
    struct ff_wr wr[2 * FF_ASKS]; /* by id */
    uint64_t n_posted, n_asks, n_reads, last; /* that was a lie */
    uint8_t bytes[1 << 20], tag[FF_TAG_LEN]; /* of an earlier READ of @len bytes */
    uint32_t len; /* 0: there is none */
};

static struct {
    enum lie lie;
    enum ff_queue queue;
    unsigned every, most; /* so many READs before a lie, and between two */
    bool often;
    atomic_uint told;
    struct ff_link *_Atomic lied; /* to */
    const struct ff_link_ops *real;
    struct ff_link_ops ops;
    struct seen seen[FF_QUEUES]; /* each its queue's thread's */
} liar;

/* About the @nth of @q, or where one can be told next. One a link, but for a pass */
static bool lies_now(struct ff_link *l, enum ff_queue q, uint64_t nth)
{
    return liar.lie && q == liar.queue && atomic_load(&liar.told) < liar.most &&
           nth - liar.seen[q].last >= liar.every && (liar.often || atomic_load(&liar.lied) != l);
}

/* Where READ @wr has brought something; -1: nowhere */
static int64_t find_bytes(const struct ff_wr *wr)
{
    static const uint8_t zeros[4096];

    for (uint32_t i = 0; i < wr->len_bytes / wr->granule_bytes; i++) {
        const uint8_t *p = (uint8_t *)wr->local + (size_t)i * wr->granule_bytes;
        if (!(wr->zero[i / 8] & (1u << (i % 8))) && memcmp(p, zeros, sizeof(zeros)))
            return (int64_t)i * wr->granule_bytes;
    }
    return -1;
}

static uint8_t *tag_of(const struct ff_wr *ask)
{
    struct ff_ask a = ff_ask_decode(ask->local);
    return (uint8_t *)(uintptr_t)a.addr; /* ours */
}

/* Only when its tag is here as well does anybody look at it */
static bool tell_lie(struct ff_link *l, struct seen *s, unsigned slot)
{
    struct ff_wr *wr = &s->wr[2 * slot], *ask = &s->wr[2 * slot + 1];
    int64_t at = find_bytes(wr);
    uint8_t *p = (uint8_t *)wr->local + at;

    if (at < 0)
        return false;
    if (liar.lie == OF_ANOTHER && s->len != wr->len_bytes)
        return false;
    if (liar.lie == A_BYTE) {
        p[wr->granule_bytes / 2] ^= 4;
    } else if (liar.lie == ZEROS) {
        memset(p, 0, wr->granule_bytes);
        uint64_t i = (uint64_t)at / wr->granule_bytes;
        if (l->finds_zeros)
            wr->zero[i / 8] |= (uint8_t)(1u << (i % 8));
    } else if (liar.lie == A_TAG) {
        tag_of(ask)[FF_TAG_LEN - 1] ^= 0x80;
    } else { /* both fit each other */
        memset(wr->zero, 0, (wr->len_bytes / wr->granule_bytes + 7) / 8);
        memcpy(wr->local, s->bytes, s->len);
        memcpy(tag_of(ask), s->tag, FF_TAG_LEN);
    }
    return true;
}

/* Whole, so that no map of zeros belongs to it */
static void keep(struct seen *s, unsigned slot)
{
    const struct ff_wr *wr = &s->wr[2 * slot];
    static const uint8_t none[FF_GRANULES_MAX / 8];
    uint32_t n = wr->len_bytes / wr->granule_bytes;

    if (wr->len_bytes > sizeof(s->bytes) || memcmp(wr->zero, none, (n + 7) / 8))
        return;
    memcpy(s->bytes, wr->local, wr->len_bytes);
    memcpy(s->tag, tag_of(&s->wr[2 * slot + 1]), FF_TAG_LEN);
    s->len = wr->len_bytes;
}

static int lying_poll(struct ff_link *l, enum ff_queue q, struct ff_wc *wc, unsigned n,
                      int timeout_ms, struct ff_error *err)
{
    int got = liar.real->poll(l, q, wc, n, timeout_ms, err);
    struct seen *s = &liar.seen[q];

    for (int i = 0; i < got; i++) {
        if (wc[i].op != FF_WC_RECV_IMM || wc[i].imm >= FF_ASKS)
            continue; /* a tag comes last: its READ was posted before its ask, on one connection */
        bool lies = liar.lie != AN_ASK && lies_now(l, q, s->n_reads) && tell_lie(l, s, wc[i].imm);
        atomic_fetch_add(&liar.told, lies);
        if (lies) {
            s->last = s->n_reads;
            atomic_store(&liar.lied, l);
        } else {
            keep(s, wc[i].imm);
        }
        s->n_reads++;
    }
    return got;
}

static int lying_post(struct ff_link *l, enum ff_queue q, const struct ff_wr *wr,
                      struct ff_error *err)
{
    static uint8_t other[FF_ASK_LEN];
    struct seen *s = &liar.seen[q];
    struct ff_wr changed = *wr;

    must(wr->id < FF_ARRAY_LEN(s->wr));
    s->wr[wr->id] = *wr;
    bool ask = wr->op == FF_OP_WRITE;
    must(!ask || wr->len_bytes == FF_ASK_LEN);
    if (ask && liar.lie == AN_ASK && lies_now(l, q, s->n_asks + 1)) {
        struct ff_ask a = ff_ask_decode(wr->local);
        s->last = s->n_asks + 1;
        atomic_store(&liar.lied, l);
        if (atomic_fetch_add(&liar.told, 1) % 2)
            a.region = 77;
        else
            a.number++;
        ff_ask_encode(other, &a);
        changed.local = other;
    }
    int rc = liar.real->post(l, q, &changed, err);
    s->n_posted += !rc && !ask;
    s->n_asks += !rc && ask;
    return rc;
}

static int any_secret(struct ff_link *l, enum ff_queue q, const char *label,
                      uint8_t out[FF_LINK_SECRET_LEN])
{
    (void)l;
    (void)label;
    memset(out, 0x40 + q, FF_LINK_SECRET_LEN);
    return 0;
}

static void stand_at(struct ff_link *l)
{
    struct ff_link *was = l; /* whose memory it has now */

    atomic_compare_exchange_strong(&liar.lied, &was, NULL);
    if (!liar.real) { /* others use it already */
        liar.real = l->ops;
        liar.ops = *l->ops;
        liar.ops.post = lying_post;
        liar.ops.poll = lying_poll;
        if (!strcmp(l->ops->name, "loop"))
            liar.ops.secret = any_secret;
    }
    l->ops = &liar.ops;
}

static void lie(enum lie what, enum ff_queue q, unsigned every, unsigned most)
{
    memset(liar.seen, 0, sizeof(liar.seen));
    liar.lie = what;
    liar.queue = q;
    liar.every = every;
    liar.most = most;
    liar.often = false;
    atomic_store(&liar.told, 0);
}

/* Every link of a network begins here (ld --wrap) */
int __real_ff_port_accept(struct ff_port *port, const int *also, unsigned n, int timeout_ms,
                          struct ff_link **out, struct ff_error *err);
int __wrap_ff_port_accept(struct ff_port *port, const int *also, unsigned n, int timeout_ms,
                          struct ff_link **out, struct ff_error *err);

static bool stands_by = true;

int __wrap_ff_port_accept(struct ff_port *port, const int *also, unsigned n, int timeout_ms,
                          struct ff_link **out, struct ff_error *err)
{
    int rc = __real_ff_port_accept(port, also, n, timeout_ms, out, err);

    if (!rc && stands_by)
        stand_at(*out);
    return rc;
}

/* --- moves --- */

static const char *with_key(const char *more)
{
    snprintf(options, sizeof(options), "key-file=%s%s%s", loop_key_file(), *more ? "," : "", more);
    return options;
}

static uint64_t all_asks(void)
{
    return liar.seen[FF_QUEUE_FAULT].n_asks + liar.seen[FF_QUEUE_PREFILL].n_asks;
}

/* Each READ was asked about, but for some that nobody needed any more when all was here */
static void all_was_verified(void)
{
    for (enum ff_queue q = 0; q < FF_QUEUES; q++)
        must(liar.seen[q].n_asks <= liar.seen[q].n_posted &&
             liar.seen[q].n_posted - liar.seen[q].n_asks <= LAST);
    must(all_asks());
}

static void goes_well(enum memory memory, const char *more)
{
    static struct move m;

    lie(NONE, 0, 1, 0);
    m = (struct move){.tcp = true, .options = with_key(more), .memory = memory, .touchers = 3,
                      .writes = true, .n_first = 1};
    move_run(&m);
    move_must_succeed(&m);
    all_was_verified();
}

static void moves(void)
{
    goes_well(MEM_ANON, "verify=on");
    goes_well(MEM_ANON, "verify=on,chunk=4M,window=7");
    goes_well(MEM_ANON_THP, "verify=on,landing=move");
    goes_well(MEM_MEMFD, "verify=on,landing=copy");
    goes_well(MEM_MEMFD, "verify=on,landing=continue,chunk=4096,window=32");
    goes_well(MEM_MEMFD_PRIVATE, "verify=on,prealloc=0");
    if (!no_huge)
        goes_well(MEM_HUGETLB, "verify=on,landing=continue");
    loop_remove_key();
}

static void without(void)
{
    static struct move m;

    stands_by = false; /* it knows no push */
    m = (struct move){.tcp = true, .options = with_key("verify=off,prefill=push")};
    move_run(&m);
    must(m.dst.stats.prefill == FF_PREFILL_PUSH);
    move_must_succeed(&m);
    loop_remove_key();
}

/* One side alone wants it */
static void one_side(void)
{
    static struct move m;
    char verify[220], off[200];

    snprintf(off, sizeof(off), "%s", with_key(""));
    snprintf(verify, sizeof(verify), "%s,verify=on", off);
    for (unsigned i = 0; i < 2; i++) {
        lie(NONE, 0, 1, 0);
        m = (struct move){
            .tcp = true, .options = i ? off : verify, .source_options = i ? verify : off};
        move_run(&m);
        move_must_succeed(&m);
        all_was_verified();
    }
    loop_remove_key();
}

static atomic_uint said; /* of the breaks at the destination it gave this reason */

static void note_reason(struct move *m, bool source)
{
    if (!source)
        atomic_fetch_add(&said, strstr(m->dst.err.text, SAYS) != NULL);
}

/* Each lie breaks the link, and the next one brings what is right */
static void survives(enum memory memory, const char *more, const char *faults, enum lie what,
                     enum ff_queue q, unsigned every)
{
    static struct move m;

    if (no_huge && memory == MEM_HUGETLB)
        return;
    lie(what, q, every, 3);
    atomic_store(&said, 0);
    m = (struct move){.options = with_key(more), .memory = memory, GUEST, .broken = note_reason};
    move_must_survive(&m, faults, 3);
    must(atomic_load(&liar.told) == 3);
    must(what == AN_ASK || atomic_load(&said) == 3);
}

#define BY_PREFILL "dest.fault=delay:2000", what[i], FF_QUEUE_PREFILL, 5
#define BY_FAULTS "dest.prefill=delay:10000", what[i], FF_QUEUE_FAULT, 3

static void lies(void)
{
    static const enum lie what[] = {A_BYTE, ZEROS, OF_ANOTHER, A_TAG, AN_ASK};

    for (unsigned i = 0; i < FF_ARRAY_LEN(what); i++) {
        if (what[i] == AN_ASK && getenv("FARFORK_TEST_LINK"))
            continue; /* that link sends from registered memory alone */
        /* of single pages, so that one READ's bytes are as good as another's */
        const char *more = what[i] == OF_ANOTHER ? "chunk=4096,window=1,verify=on"
                                                 : FINE ",verify=on";
        survives(MEM_ANON, more, BY_PREFILL);
        survives(MEM_ANON, more, BY_FAULTS);
    }
    loop_remove_key();
}

/* Also where bytes lie in the guest's memory before they are checked */
static void landings(void)
{
    static const struct {
        enum memory memory;
        const char *more;
    } each[] = {
        {MEM_ANON, FINE ",verify=on,prealloc=0"},
        {MEM_ANON_THP, "chunk=2M,window=1,verify=on,landing=move"},
        {MEM_MEMFD, FINE ",verify=on,landing=copy"},
        {MEM_MEMFD, FINE ",verify=on,landing=continue"},
        {MEM_HUGETLB, "window=1,verify=on,landing=continue"},
    };
    static const enum lie what[] = {A_BYTE};

    for (unsigned k = 0, i = 0; k < FF_ARRAY_LEN(each); k++) {
        bool large = each[k].memory == MEM_HUGETLB || each[k].memory == MEM_ANON_THP;
        survives(each[k].memory, each[k].more, "dest.fault=delay:2000", what[i], FF_QUEUE_PREFILL,
                 large ? 0 : 5);
        if (!large)
            survives(each[k].memory, each[k].more, BY_FAULTS);
    }
    loop_remove_key();
}

/* --- a pass --- */

#define WRITTEN(cell) ((cell) % 50 == 7)

static atomic_bool paused;

/* As a vCPU: whoever reads the page meanwhile gets part of it. TSAN need not hear of that. */
__attribute__((no_sanitize("thread"))) static void *write_main(void *arg)
{
    struct move *m = arg;

    for (uint64_t n = 0; !atomic_load(&paused) || n % 2; n++) /* at the end as it was */
        for (uint64_t cell = 0; cell < m->n_cells; cell++)
            if (WRITTEN(cell))
                ((volatile uint8_t *)image)[cell * CELL + 99] ^= 0x20;
    return NULL;
}

static void make_pass(struct move *m, enum stage stage)
{
    uint64_t bits[64], cell = 0;
    struct ff_error err;
    pthread_t writer;

    if (stage != S_STATE)
        return;
    atomic_store(&paused, false);
    must(!pthread_create(&writer, NULL, write_main, m));
    must_ok(ff_source_wait_watched(m->source, &err), err);
    must_ok(ff_source_precopy(m->source, &err), err);
    atomic_store(&paused, true);
    pthread_join(writer, NULL);
    for (unsigned i = 0; i < m->n_regions; i++) {
        memset(bits, 0, sizeof(bits));
        for (uint64_t k = 0; k < m->area[i].len_bytes / CELL; k++, cell++)
            bits[k / 64] |= (uint64_t)WRITTEN(cell) << (k % 64);
        must_ok(ff_source_dirty(m->source, i, bits, CELL, &err), err);
    }
}

/* What is torn, or was changed, is not here when the guest is paused, and is read anew; no link
 * breaks for that */
static void a_pass(enum memory memory, const char *more, enum lie what)
{
    static struct move m;

    lie(what, FF_QUEUE_PREFILL, 3, 5);
    liar.often = true;
    m = (struct move){.tcp = true, .options = with_key(more), .memory = memory, .touchers = 3,
                      .touch_late = true, .writes = true, .hook = make_pass};
    move_run(&m);
    must_ok(m.dst.rc, m.dst.err);
    const struct ff_stats *d = &m.dst.stats;
    must(what == NONE || atomic_load(&liar.told) == 5);
    must(d->bytes_precopied && (what == NONE || d->bytes_precopied < d->bytes_total));
    must(!d->breaks && d->bytes_present == d->bytes_total);
    all_was_verified();
    touchers_join(&m);
    verify_all(&m);
    move_free(&m);
}

static void passes(void)
{
    static const enum lie what[] = {NONE, A_BYTE, ZEROS, A_TAG};

    for (unsigned i = 0; i < FF_ARRAY_LEN(what); i++) {
        a_pass(MEM_ANON, "verify=on,precopy=1,chunk=16K", what[i]);
        a_pass(MEM_MEMFD, "verify=on,precopy=1,chunk=16K,landing=copy", what[i]);
        a_pass(MEM_MEMFD, "verify=on,precopy=1,chunk=16K,landing=continue", what[i]);
    }
    loop_remove_key();
}

/* --- no link follows --- */

static void seal(struct move *m)
{
    m->to_dest->sealed = m->to_source->sealed = true;
    stand_at(m->to_source);
    static struct ff_link_ops ops;
    ops = *m->to_dest->ops;
    ops.secret = any_secret;
    m->to_dest->ops = &ops;
}

static void peek_at(struct move *m, enum stage stage)
{
    static struct peek p;

    if (stage != D_END)
        return;
    /* it was read, and is not here */
    peek_start(&p, m, 1);
    must(peek_blocked(&p));
}

/* After GO a thread waits for its page, and is shown nothing */
static void waits(void)
{
    static struct move m;

    lie(A_BYTE, FF_QUEUE_PREFILL, 0, 1);
    m = (struct move){.options = "verify=on," FINE ",prefill=pull,reconnect=0", .prepared = seal,
                      .hook = peek_at};
    move_run(&m);
    must(m.ran && m.dst.rc == -EBADMSG && strstr(m.dst.err.text, SAYS));
    must(m.src.rc);
    _exit(0); /* a thread waits for ever */
}

/* Before GO the guest goes on at the source */
static void goes_on_at_source(void)
{
    static struct move m;

    lie(A_BYTE, FF_QUEUE_FAULT, 0, 1);
    loop_arm("dest.ready=delay:1500000"); /* by then they have come */
    m = (struct move){.options = "verify=on,timeout=2", .prepared = seal, .n_first = 1};
    while (cell_is_zero(m.first[0].offset / CELL))
        m.first[0].offset += CELL;
    move_run(&m);
    must(!m.went && !m.ran && m.src.rc && m.dst.rc);
    must(atomic_load(&liar.told) == 1);
    move_free(&m);
}

static void over_memory(void)
{
    static struct move m;

    lie(NONE, 0, 1, 0);
    m = (struct move){.options = "verify=on", .prepared = seal, .touchers = 3, .writes = true};
    move_run(&m);
    move_must_succeed(&m);
    all_was_verified();
}

/* --- where it cannot be --- */

static void must_be_refused(const char *with, const char *source, const char *says)
{
    static struct move m;

    m = (struct move){.tcp = true, .options = with, .source_options = source};
    move_run(&m);
    if (!m.src.rc || m.went || !strstr(m.src.err.text, says))
        loop_fail(__FILE__, __LINE__, "%s: %d %s", with, m.src.rc, m.src.err.text);
    move_free(&m);
}

static void refused(void)
{
    must_be_refused("verify=on,timeout=2", NULL, "source: verify=on: it needs a key");
    must_be_refused("verify=on,timeout=2", "timeout=2", "verify=on: it needs a key");
    must_be_refused(with_key("verify=on,prefill=push,timeout=2"), NULL, "use prefill=pull");
    loop_remove_key();
}

/* --- a fork --- */

static void fork_verified(void)
{
    struct family *f = family_new();

    lie(A_BYTE, FF_QUEUE_PREFILL, 5, 2); /* in the agent's process */
    f->options = with_key(FINE ",verify=on,prefill=pull");
    f->faults = "dest.fault=delay:2000";
    f->n_children = 2;
    f->resumes = true;
    family_start(f);
    family_source(f, S_DONE);
    must(f->breaks >= 2);
    family_must_succeed(f); /* every child has compared every byte */
    loop_remove_key();
}

/* No network is between: there is nothing to verify, nor a key */
static void fork_here(void)
{
    struct family *f = family_new();

    stands_by = false;
    f->options = "verify=on";
    f->passed = true;
    f->n_children = 2;
    family_start(f);
    family_source(f, S_DONE);
    family_must_succeed(f);
}

int main(int argc, char **argv)
{
    static const struct loop_test tests[] = {
        {"moves, all verified", moves, 60},
        {"off", without, 0},
        {"one side wants it", one_side, 0},
        {"over memory", over_memory, 0},
        {"lies", lies, 120},
        {"lies wherever memory lands", landings, 120},
        {"a pass", passes, 60},
        {"a thread waits", waits, 0},
        {"a lie before GO", goes_on_at_source, 0},
        {"refused", refused, 0},
        {"a fork, verified", fork_verified, 60},
        {"a fork on one host", fork_here, 60},
    };

    no_huge = pl_huge_reserve(HUGE_PAGES);
    int rc = loop_main(argc, argv, setup, tests, FF_ARRAY_LEN(tests));
    pl_huge_restore();
    return rc;
}
