/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * dest_fuzz.c - libFuzzer: a source that says what it likes to a destination, at every stage
 */
/**
 * DOC: Theory of Operation
 *
 * Input        way, options, where memory is, whether pages of it fail, whether the source may take
 *              its guest back; how many steps of a good source come first; then steps: the next one
 *              of a good source, that a bit beside, any message, bytes beside all framing, writes
 *              and reads on the queues, a link that breaks and is resumed, or brings word that the
 *              guest was taken back; leases, and time that passes.
 * Picture      engine's thread: ff_dest_accept() .. ff_dest_wait_done(), ff_dest_recover()
 *              a thread that touches memory from ff_dest_start() on
 * Invariants   no GO said: the guest never ran; stopped for want of a lease, it goes on only when
 *              the source has been heard; taken back, never. After a move that was right all memory
 *              is as the source's; nothing outside it is touched, and the source's is read-only.
 *              Every failure has a reason. All ends when the source has gone and the caller gives
 *              up.
 */
#include <errno.h>
#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>

#include "cleanup.h"
#include "clock.h"
#include "peer.h"
#include "source.h"

enum step {
    HELLO,
    WELCOMED,
    PUBLISH,
    KEYS,
    WATCHED,
    LOGGING,
    DIRTY,
    STATE,
    FIRST,
    DATA,
    READY,
    GO,
    RUNNING,
    DONE,
    STEPS
};

static const char *const options[] = {
    "",
    ",prefill=push",
    ",landing=copy",
    ",prefill=off",
    ",precopy=1",
    ",landing=move",
    ",precopy=1,prefill=push,landing=copy",
    ",chunk=64K,window=2",
};

#define STATE_BYTES 1000u
#define PUSH_BYTES (4u << 20)
#define OTHER_BYTES (48 * PAGE) /* the largest region */
#define REGION_PARTS 5u /* of two pages that fail */
#define SERVE_MS 100u
#define SERVE_WRONG_MS 8u
#define LEASE_STEP_NS (FF_WIRE_LEASE_MIN_MS / 5 * 1000000ull)

struct world {
    struct peer p;
    enum step next;
    const char *options;
    bool precopy;
    struct area own[REGIONS], theirs[REGIONS]; /* the source's, the destination's */
    struct ff_wire_region table[REGIONS];
    struct ff_hello hello;
    struct ff_mr mr[REGIONS];
    struct ff_grant grant[FF_WIRE_GRANTS_MAX];
    unsigned n_grants;
    uint32_t asked; /* the last LEASE */
    struct ff_welcome welcome;

    struct ff_dest *d;
    pthread_t engine, toucher;
    bool touches, fails, parts, leased, dies_then; /* the source, when it has heard DONE */
    struct event ended;
    atomic_bool stop, stopped;
    unsigned recovers;
    bool ran, done, taken_back;
    atomic_bool released;
};

/* --- the destination --- */

/* A lease's end, and the next one's beginning */
static void on_lease(void *opaque, bool may_run)
{
    struct world *w = opaque;

    must(w->leased && atomic_load(&w->stopped) == may_run);
    must(!may_run || w->released ||
         w->p.said & (FF_MSG_BIT(FF_MSG_LEASE) | FF_MSG_BIT(FF_MSG_WITHDRAWN)));
    atomic_store(&w->stopped, !may_run);
}

static void *touch(void *arg)
{
    struct world *w = arg;

    for (unsigned i = 0; i < 6 && !atomic_load(&w->stop); i++)
        (void)*(volatile uint8_t *)(w->theirs[i % REGIONS].host + (i * 7 % 20) * PAGE);
    return NULL;
}

static int run_stages(struct world *w, struct ff_error *err)
{
    void *state = NULL;
    size_t len;

    int rc = ff_dest_accept(w->d, "fuzz", err);
    if (!rc)
        rc = ff_dest_start(w->d, err);
    if (!rc)
        w->touches = !pthread_create(&w->toucher, NULL, touch, w);
    if (!rc)
        rc = ff_dest_recv_state(w->d, &state, &len, err);
    free(state);
    if (!rc)
        rc = ff_dest_ready(w->d, err);
    if (rc)
        return rc;
    rc = ff_dest_wait_go(w->d, err);
    w->ran = !rc;
    return rc ? rc : ff_dest_running(w->d, err);
}

static void *run_engine(void *arg)
{
    struct world *w = arg;
    struct ff_error err = {.code = 0};

    int rc = run_stages(w, &err);
    check_outcome(rc, &err);
    if (!rc)
        rc = ff_dest_wait_done(w->d, &err);
    while (rc && ff_dest_is_ready(w->d) && !atomic_load(&w->stop) && w->recovers++ < 4) {
        check_outcome(rc, &err);
        rc = ff_dest_recover(w->d, 3000, &err);
        must(rc != -ESTALE || !w->ran);
        must(rc != -EKEYREVOKED || (w->leased && w->p.said & FF_MSG_BIT(FF_MSG_RESUME)));
        w->taken_back = rc == -EKEYREVOKED;
        if (rc)
            break;
        must(w->ran); /* else there is nothing to go on with */
        rc = ff_dest_wait_done(w->d, &err);
    }
    check_outcome(rc, &err);
    w->done = !rc;
    event_set(&w->ended);
    return NULL;
}

/* --- the source's words --- */

static void make_hello(struct world *w)
{
    for (unsigned i = 0; i < REGIONS; i++) {
        struct ff_region r = region_of(&w->own[i], i);
        strcpy(w->table[i].name, r.name);
        w->table[i].len_bytes = r.len_bytes;
        w->table[i].psize = r.psize;
    }
    w->hello = (struct ff_hello){.version = FF_WIRE_VERSION,
                                 .oldest = FF_WIRE_VERSION,
                                 .auth = w->p.way == KEYED,
                                 .n_regions = REGIONS,
                                 .config = "fuzz",
                                 .regions = w->table};
}

/* The first time over each link */
static void register_memory(struct world *w)
{
    struct peer *p = &w->p;

    for (unsigned i = 0; p->l && i < REGIONS; i++)
        if (!w->mr[i].rkey)
            must(!p->l->ops->reg(p->l, w->own[i].host, w->own[i].len_bytes, FF_ACCESS_REMOTE_READ,
                                 &w->mr[i], NULL));
}

static int make_publish(struct world *w)
{
    struct ff_publish pub = {.segment_bytes = FF_WIRE_SEGMENT_MIN,
                             .n_keys = REGIONS,
                             .load_permille = 500,
                             .push_bytes = PUSH_BYTES,
                             .lease_ms = w->leased ? FF_WIRE_LEASE_MIN_MS : 0};

    register_memory(w);
    for (unsigned i = 0; i < REGIONS; i++)
        pub.addr[i] = (uintptr_t)w->own[i].host;
    return ff_wire_put_publish(w->p.msg, &pub, REGIONS);
}

static int make_keys(struct world *w)
{
    struct ff_wire_key k[REGIONS];

    register_memory(w);
    for (unsigned i = 0; i < REGIONS; i++)
        k[i] = (struct ff_wire_key){.region = i, .rkey = w->mr[i].rkey};
    return ff_wire_put_keys(w->p.msg, k, REGIONS);
}

/* What fails of region 0, and keys of the rest */
static int make_parts(struct world *w)
{
    struct ff_wire_part part[REGION_PARTS];
    unsigned n = 0;

    register_memory(w);
    for (uint64_t i = 0; i < region_pages[0]; i++) {
        uint32_t rkey = page_fails(0, i) ? 0 : w->mr[0].rkey;
        if (!n || part[n - 1].rkey != rkey)
            part[n++] = (struct ff_wire_part){.rkey = rkey, .offset = i * PAGE};
        part[n - 1].len_bytes += PAGE;
    }
    return ff_wire_put_parts(w->p.msg, part, n);
}

/* The message that a good source says at @step: its length, 0: it listens */
static int make(struct world *w, enum step step)
{
    static const uint8_t bits[] = {0x83, 0x10};
    static const struct ff_page_ref first[2] = {{0, 5 * PAGE}, {1, 2 * PAGE}};
    static const uint8_t state[STATE_BYTES] = {1};
    const struct ff_state_head head = {.total_bytes = STATE_BYTES, .n_first = 2};
    const struct ff_dirty dirty = {.region = 0, .n = 13, .first = 3, .bits = bits};
    uint8_t *msg = w->p.msg;

    switch (step) {
    case HELLO:
        return ff_wire_put_hello(msg, &w->hello, NULL);
    case PUBLISH:
        return make_publish(w);
    case KEYS:
        return make_keys(w);
    case LOGGING:
        return w->precopy ? ff_wire_put_empty(msg, FF_MSG_LOGGING) : 0;
    case DIRTY:
        return w->precopy ? ff_wire_put_dirty(msg, &dirty) : 0;
    case STATE:
        return ff_wire_put_state(msg, &head);
    case FIRST:
        return ff_wire_put_first(msg, first, 2);
    case DATA:
        return ff_wire_put_data(msg, state, STATE_BYTES);
    case GO:
        return ff_wire_put_empty(msg, FF_MSG_GO);
    default:
        return 0;
    }
}

/* --- the source's steps --- */

static void on_other(void *opaque, int type)
{
    struct world *w = opaque;
    struct ff_error why;
    unsigned n;

    if (type == FF_MSG_GRANT && !ff_wire_get_grants(w->p.heard, (size_t)w->p.heard_len, w->grant,
                                                    PUSH_BYTES, w->table, REGIONS, &n, &why))
        w->n_grants = n;
    if (type == FF_MSG_LEASE &&
        !ff_wire_get_lease(w->p.heard, (size_t)w->p.heard_len, &w->asked, &why))
        peer_say(&w->p, ff_wire_put_lease(w->p.msg, w->asked));
}

/* By what a grant says: the bytes of the image, or a note that there are none */
static void push(struct world *w, struct input *in, bool good)
{
    static uint8_t other[OTHER_BYTES];
    struct ff_grant *g = &w->grant[w->n_grants ? get(in) % w->n_grants : 0];
    uint32_t imm = g->id, len = g->len_bytes;
    uint64_t at = g->addr;

    if (!w->n_grants || g->region >= REGIONS)
        return;
    if (!good) {
        unsigned how = get(in);
        imm ^= how & 1 ? get4(in) : 0;
        len = how & 2 ? 1 + get4(in) % (2 * len) : len;
        at += how & 4 ? get(in) * PAGE : 0;
        w->p.right = false;
        w->p.wrong_data = true;
    }
    uint64_t room = w->own[g->region].len_bytes - g->offset;
    for (uint64_t at_byte = 0; w->fails && good && at_byte < len; at_byte += PAGE)
        if (page_fails(g->region, (g->offset + at_byte) / PAGE))
            imm |= FF_IMM_UNREADABLE;
    bool note = imm & FF_IMM_UNREADABLE && good; /* a few bytes that it can read */
    struct ff_wr wr = {.op = FF_OP_WRITE,
                       .local = w->fails && !good ? other /* who reads what failed dies */
                                : w->own[g->region].host + (note ? 0 : g->offset),
                       .lkey = w->mr[g->region].lkey,
                       .remote = at,
                       .rkey = g->rkey,
                       .len_bytes = note ? 8 : len < room ? len : (uint32_t)room,
                       .imm = imm};
    peer_post(&w->p, FF_QUEUE_PREFILL, &wr);
    if (good)
        *g = w->grant[--w->n_grants];
}

/* A request that no good source makes */
static void ask(struct world *w, struct input *in)
{
    unsigned how = get(in);
    static uint8_t into[PAGE];
    struct ff_wr wr = {.op = how & 1 ? FF_OP_READ : FF_OP_WRITE,
                       .local = into,
                       .remote = (uintptr_t)w->theirs[how >> 7].host + get(in) * PAGE,
                       .rkey = how & 2 ? get4(in) : w->grant[0].rkey,
                       .len_bytes = 1 + get4(in) % PAGE,
                       .imm = get(in)};

    w->p.right = false;
    w->p.wrong_data = true;
    peer_post(&w->p, how & 4 ? FF_QUEUE_PREFILL : FF_QUEUE_FAULT, &wr);
}

/* WELCOME, and queues as it says */
static void be_welcomed(struct world *w)
{
    struct peer *p = &w->p;
    struct ff_error why;

    if (!peer_await(p, FF_MSG_WELCOME, on_other, w) ||
        ff_wire_get_welcome(p->heard, (size_t)p->heard_len, &w->welcome, &why) || p->open)
        return;
    if (w->welcome.answer != FF_ANSWER_NEW && w->welcome.answer != FF_ANSWER_RUNNING)
        return;
    if (p->l->ops->open_queues(p->l, w->welcome.session, 500, &why))
        peer_hang_up(p);
    else
        p->open = true;
}

/* As a good source does it, until all memory is there */
static void serve(struct world *w)
{
    struct input none = {.left = 0};
    uint64_t end = ff_now_ns() + (w->p.right ? SERVE_MS : SERVE_WRONG_MS) * 1000000ull;

    while (w->p.l && !event_is(&w->ended) && ff_now_ns() < end) {
        int type = peer_hear(&w->p);
        on_other(w, type);
        while (w->n_grants)
            push(w, &none, true);
        if (type == FF_MSG_DONE && w->dies_then)
            return;
        if (type == FF_MSG_DONE) {
            peer_say(&w->p, ff_wire_put_empty(w->p.msg, FF_MSG_WITHDRAWN));
            if (w->leased)
                peer_await(&w->p, FF_MSG_WITHDRAWN, on_other, w);
            return;
        }
        if (!type)
            peer_wait(&w->p, 2);
    }
}

static void good_step(void *opaque)
{
    struct world *w = opaque;
    static const enum ff_msg want[STEPS] = {
        [WATCHED] = FF_MSG_WATCHING, [READY] = FF_MSG_READY, [RUNNING] = FF_MSG_RUNNING};
    enum step step = w->next;

    if (step == STEPS)
        return;
    w->next++;
    if (step == KEYS && w->parts)
        peer_say(&w->p, make_parts(w));
    int len = make(w, step);
    if (len > 0)
        peer_say(&w->p, len);
    if (step == WELCOMED)
        be_welcomed(w);
    else if (want[step])
        peer_await(&w->p, want[step], on_other, w);
    else if (step == LOGGING && w->precopy)
        peer_await(&w->p, FF_MSG_PASSED, on_other, w);
    else if (step == DONE)
        serve(w);
}

static void connect_peer(struct world *w)
{
    struct ff_link_params lp = {
        .host = "127.0.0.1", .timeout_ms = 1000, .key = w->p.way == KEYED ? fuzz_key() : NULL};
    char port[16];

    snprintf(port, sizeof(port), "%u", ff_dest_port(w->d));
    lp.port = port;
    memset(w->mr, 0, sizeof(w->mr));
    w->n_grants = 0;
    w->p.open = false;
    if (strcmp(port, "0") && ff_tcp_connect(&lp, -1, &w->p.l, NULL))
        w->p.l = NULL;
}

/* The link breaks, and another comes */
static void come_back(struct world *w, struct input *in)
{
    struct ff_resume r = {.version = FF_WIRE_VERSION,
                          .oldest = FF_WIRE_VERSION,
                          .epoch = w->welcome.epoch,
                          .digest = ff_hello_digest(&w->hello)};
    unsigned how = get(in);

    if (w->p.way == SOCKETS)
        return;
    peer_hang_up(&w->p);
    for (unsigned i = 0; i < 10 && !ff_dest_port(w->d) && !event_is(&w->ended); i++)
        event_await(&w->ended, 1);
    connect_peer(w);
    if (!w->p.l)
        return;
    memcpy(r.session, w->welcome.session, sizeof(r.session));
    r.taken_back = how & 8;
    int len =
        how & 1 ? ff_wire_put_hello(w->p.msg, &w->hello, NULL) : ff_wire_put_resume(w->p.msg, &r);
    if (how & 2)
        peer_say_beside(&w->p, len, in);
    else
        peer_say(&w->p, len);
    be_welcomed(w);
    if (how & 1)
        w->next = PUBLISH;
    else if (w->welcome.answer == FF_ANSWER_NOT_STARTED || w->welcome.answer == FF_ANSWER_COMPLETE)
        peer_say(&w->p, ff_wire_put_empty(w->p.msg, FF_MSG_WITHDRAWN));
    else if (how & 4) {
        w->next = DONE;
        peer_say(&w->p, make(w, PUBLISH));
        peer_say(&w->p, make(w, KEYS));
    }
}

static void step(void *opaque, struct input *in)
{
    struct world *w = opaque;
    unsigned how;
    int len;

    switch (get(in) % 13) {
    case 0:
    case 1:
        good_step(w);
        break;
    case 2: /* that, a bit beside */
        if (w->next < STEPS && (len = make(w, w->next)) > 0)
            peer_say_beside(&w->p, len, in);
        w->next += w->next < STEPS;
        break;
    case 3: /* what is right at another time */
        w->p.right = false;
        if ((len = make(w, get(in) % STEPS)) > 0)
            peer_say(&w->p, len);
        break;
    case 4:
        peer_say_anything(&w->p, in);
        break;
    case 5:
        if (w->p.way == SOCKETS)
            peer_say_raw(&w->p, in);
        else
            come_back(w, in);
        break;
    case 6:
        push(w, in, get(in) & 1);
        break;
    case 7:
        ask(w, in);
        break;
    case 10:
        how = get(in);
        clock_advance(CLOCK_BOOTTIME, (1 + how % 8) * LEASE_STEP_NS);
        w->released |= how >= 240; /* the operator's word */
        if (how >= 240)
            ff_dest_release(w->d);
        on_other(w, peer_hear(&w->p));
        break;
    case 12: /* unasked for, or twice */
        w->p.right = false;
        if ((len = make_parts(w)) > 0)
            peer_say_beside(&w->p, len, in);
        break;
    case 11: /* a lease that is not asked for, or twice */
        w->p.right = false;
        peer_say(&w->p, ff_wire_put_lease(w->p.msg, w->asked + get(in) % 3 - 1));
        break;
    case 8: /* serve, and listen */
        for (unsigned i = get(in) % 32; i--;) {
            int type = peer_hear(&w->p);
            on_other(w, type);
            if (!type && w->p.right)
                peer_wait(&w->p, 1);
        }
        break;
    default:
        w->next = get(in) % (STEPS + 1); /* leave out, or repeat */
        w->p.right = false;
    }
}

/* --- one run --- */

static void begin(struct world *w, struct input *in)
{
    struct ff_error err;
    unsigned how = get(in);

    w->p = (struct peer){
        .way = how % WAYS, .right = true, .raw = {-1, -1, -1}, .engine_ended = &w->ended};
    unsigned which = get(in);
    w->options = options[which % (sizeof(options) / sizeof(options[0]))];
    w->parts = how & 128 && which & 8;
    w->dies_then = which & 16;
    w->precopy = strstr(w->options, "precopy");
    w->leased = how & 64;
    w->fails = how & 128;
    for (unsigned i = 0; i < REGIONS; i++) {
        area_new(&w->own[i], i, false);
        area_fill(&w->own[i], i);
        must(!mprotect(w->own[i].host, w->own[i].len_bytes, PROT_READ));
        if (w->fails)
            area_fail(&w->own[i], i);
        area_new(&w->theirs[i], i, (how >> 4 & 1) ^ i);
    }
    make_hello(w);
    struct ff_address *a = fuzz_address(w->p.way, 0, w->options);
    must(!(w->p.way == SOCKETS ? ff_dest_new_on_link(a, peer_sockets(&w->p), &w->d, &err)
                               : ff_dest_new(a, &w->d, &err)));
    ff_address_free(a);
    ff_dest_on_lease(w->d, on_lease, w);
    for (unsigned i = 0; i < REGIONS; i++) {
        struct ff_region r = region_of(&w->theirs[i], i);
        must(!ff_dest_add_region(w->d, &r, &err));
    }
    event_new(&w->ended);
    must(!pthread_create(&w->engine, NULL, run_engine, w));
    if (w->p.way != SOCKETS)
        connect_peer(w);
}

static void check_memory(const struct world *w)
{
    for (unsigned i = 0; i < REGIONS; i++)
        for (uint64_t at = 0; at < region_pages[i]; at++)
            if (!w->fails || !page_fails(i, at)) /* who reads those dies, as it must */
                must(page_is_right(w->theirs[i].host + at * PAGE, i, at));
}

static void end(struct world *w)
{
    peer_hang_up(&w->p);
    if (!event_await(&w->ended, w->p.way == SOCKETS ? 2000 : 5)) {
        atomic_store(&w->stop, true);
        ff_dest_cancel(w->d);
    }
    pthread_join(w->engine, NULL);
    must(!w->ran || w->p.said & FF_MSG_BIT(FF_MSG_GO));
    must(!w->taken_back || !w->ran || atomic_load(&w->stopped));
    must(!w->done || !w->leased || w->released || w->p.said & FF_MSG_BIT(FF_MSG_WITHDRAWN));
    if (w->done && w->p.right && !w->p.wrong_data)
        check_memory(w);
    atomic_store(&w->stop, true);
    ff_dest_free(w->d); /* who waits for memory goes on */
    if (w->touches)
        pthread_join(w->toucher, NULL);
    event_free(&w->ended);
    for (unsigned i = 0; i < REGIONS; i++) {
        area_free(&w->own[i]);
        area_free(&w->theirs[i]);
    }
}

void fuzz_one(struct input *in)
{
    static struct world w;

    memset(&w, 0, sizeof(w));
    begin(&w, in);
    fuzz_steps(in, STEPS, good_step, step, &w);
    end(&w);
}
