/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * source_fuzz.c - libFuzzer: a destination that says what it likes to a source, at every stage
 */
/**
 * DOC: Theory of Operation
 *
 * Input        way, where memory is, whether pages of it fail, whether the source may take its
 *              guest back, and does when the link breaks; how many steps of a good destination come
 *              first; then steps: the next one of a good destination, that a bit beside, any
 *              message, bytes beside all framing, reads, writes and grants, leases, a link that
 *              breaks and is resumed.
 * Picture      engine's thread: ff_source_connect() .. ff_source_wait_done(), then
 *              ff_source_resume(), or ff_source_take_back() and ff_source_tell_taken_back()
 * Invariants   memory is read-only, and what a read brings is what it asked for. The source lets go
 *              only after READY, is done only after DONE, and goes on only when it has not let go,
 *              or was told NOT-STARTED. Nothing is taken back without a record, and what was taken
 *              back is never served again. Every failure has a reason. All ends when the
 *              destination has gone and the caller gives up.
 */
#include <errno.h>
#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>

#include "cleanup.h"
#include "clock.h"
#include "peer.h"
#include "process.h"
#include "source.h"

enum step {
    HELLO,
    WELCOME,
    PUBLISH,
    WATCHING,
    PASSED,
    STATE,
    READY,
    GO,
    RUNNING,
    READS,
    GRANT,
    DONE,
    STEPS
};

#define FENCE "/bin/true"
#define INTO_PAGES 4u /* that it reads to; what is granted comes behind them */

struct world {
    struct peer p;
    enum step next;
    struct area own[REGIONS], into; /* the source's memory; where the peer wants it */
    struct ff_wire_region table[REGIONS];
    struct ff_mr into_mr;
    struct ff_wire_key keys[8];
    unsigned n_keys;
    struct ff_publish publish;
    uint32_t epoch;
    uint8_t session[FF_SESSION_LEN];
    bool told_not_started;
    uint32_t asked; /* the last LEASE */

    struct ff_listener *ls;
    struct ff_source *s;
    pthread_t engine;
    bool precopy, fails, may_take_back, takes_back;
    bool dies_then; /* the destination, before it answers WITHDRAWN */
    bool let_go;    /* the source, once it has heard DONE */
    struct event ended;
    atomic_bool stop;
    bool went, done, never_ran, taken_back;
};

/* --- the source --- */

static char dir[64], record[80];

static void remove_dir(void)
{
    rmdir(dir);
}

/* A fence costs as much as all the rest of a run: in its place is what is left of it, a process
 * that has ended */
static bool fence_fails;

int __wrap_ff_process_exec(const struct ff_process *p, pid_t *pid, int *exec_status_fd,
                           struct ff_error *err);
int __wrap_ff_process_exec(const struct ff_process *p, pid_t *pid, int *exec_status_fd,
                           struct ff_error *err)
{
    (void)err;
    must(!exec_status_fd && !access(record, F_OK) && !strcmp(p->argv[3], FENCE) && !p->argv[4]);
    *pid = vfork();
    if (!*pid)
        _exit(fence_fails);
    must(*pid > 0);
    return 0;
}

static void make_record_name(void)
{
    if (dir[0])
        return;
    snprintf(dir, sizeof(dir), "%s/farfork-fuzz-XXXXXX",
             getenv("TMPDIR") ? getenv("TMPDIR") : "/tmp");
    must(mkdtemp(dir) != NULL);
    snprintf(record, sizeof(record), "%s/record", dir);
    atexit(remove_dir);
}

static int make_pass(struct world *w, struct ff_error *err)
{
    static const uint64_t bits[1] = {0x1003};

    if (!ff_source_wants_precopy(w->s))
        return 0;
    int rc = ff_source_precopy(w->s, err);
    for (unsigned i = 0; !rc && i < REGIONS; i++)
        rc = ff_source_dirty(w->s, i, bits, PAGE, err);
    return rc;
}

static int run_stages(struct world *w, struct ff_error *err)
{
    static const struct ff_page_ref first[2] = {{0, 5 * PAGE}, {1, 2 * PAGE}};
    static const uint8_t state[3000] = {1};

    int rc = ff_source_connect(w->s, "fuzz", err);
    if (!rc)
        rc = ff_source_publish(w->s, err);
    if (!rc)
        rc = ff_source_wait_watched(w->s, err);
    if (!rc)
        rc = make_pass(w, err);
    if (!rc)
        rc = ff_source_send_state(w->s, state, sizeof(state), first, 2, err);
    if (!rc)
        rc = ff_source_wait_ready(w->s, err);
    if (rc)
        return rc;
    rc = ff_source_go(w->s, err);
    w->went = rc != -ETIME;
    if (!rc)
        rc = ff_source_wait_running(w->s, err);
    return rc ? rc : ff_source_wait_done(w->s, err);
}

/* The destination is lost */
static void take_back(struct world *w, struct ff_error *err)
{
    clock_advance(CLOCK_BOOTTIME, 3000000000u); /* its lease has ended */
    int rc = ff_source_take_back(w->s, err);

    check_outcome(rc, err);
    must(rc != -EPERM || !access(record, F_OK)); /* the fence comes after the record */
    if (rc)
        return;
    w->taken_back = true;
    must(w->may_take_back && !access(record, F_OK));
    rc = ff_source_resume(w->s, NULL, 1, err);
    must(rc);
    check_outcome(rc, err);
    rc = ff_source_tell_taken_back(w->s, err);
    check_outcome(rc, err);
}

static void *run_engine(void *arg)
{
    struct world *w = arg;
    struct ff_error err = {.code = 0};

    int rc = run_stages(w, &err);
    check_outcome(rc, &err);
    if (rc && w->went && w->takes_back)
        take_back(w, &err);
    for (unsigned i = 0; rc && w->went && !w->taken_back && i < 4 && !atomic_load(&w->stop); i++) {
        rc = ff_source_resume(w->s, NULL, 300, &err);
        check_outcome(rc, &err);
        w->never_ran = rc == -ETIME;
        if (rc)
            break;
        rc = ff_source_wait_running(w->s, &err);
        if (!rc)
            rc = ff_source_wait_done(w->s, &err);
        check_outcome(rc, &err);
    }
    w->done = !rc;
    event_set(&w->ended);
    return NULL;
}

/* --- the destination's words --- */

static int make_grants(struct world *w)
{
    struct ff_grant g[2];

    for (unsigned i = 0; i < 2; i++)
        g[i] = (struct ff_grant){.region = i,
                                 .id = i,
                                 .offset = 4 * PAGE,
                                 .len_bytes = 8 * PAGE,
                                 .rkey = w->into_mr.rkey,
                                 .addr = (uintptr_t)w->into.host + (4 + i * 8) * PAGE};
    return ff_wire_put_grants(w->p.msg, g, 2);
}

/* The message that a good destination says at @step: its length, 0: it listens, or reads */
static int make(struct world *w, enum step step)
{
    struct ff_welcome welcome = {.version = FF_WIRE_VERSION,
                                 .epoch = w->epoch,
                                 .answer = w->epoch > 1 ? FF_ANSWER_RUNNING : FF_ANSWER_NEW,
                                 .features = w->precopy ? FF_WIRE_PRECOPY : 0,
                                 .session = "a session of 16"};
    const struct ff_stats st = {.bytes_total = 1 << 20, .bytes_present = 4096 * w->epoch};
    uint8_t *msg = w->p.msg;

    switch (step) {
    case WELCOME:
        return ff_wire_put_welcome(msg, &welcome);
    case WATCHING:
        return ff_wire_put_empty(msg, FF_MSG_WATCHING);
    case PASSED:
        return w->precopy ? ff_wire_put_stats(msg, FF_MSG_PASSED, &st) : 0;
    case READY:
        return ff_wire_put_stats(msg, FF_MSG_READY, &st);
    case RUNNING:
        return ff_wire_put_stats(msg, FF_MSG_RUNNING, &st);
    case GRANT:
        return make_grants(w);
    case DONE:
        return ff_wire_put_stats(msg, FF_MSG_DONE, &st);
    default:
        return 0;
    }
}

/* --- the destination's steps --- */

static void on_other(void *opaque, int type)
{
    struct world *w = opaque;
    size_t len = (size_t)w->p.heard_len;
    struct ff_error why;
    unsigned n;

    if (type == FF_MSG_PUBLISH)
        must(!ff_wire_get_publish(w->p.heard, len, &w->publish, REGIONS, w->table, &why));
    if (type == FF_MSG_KEYS) {
        must(!ff_wire_get_keys(w->p.heard, len, w->keys, 8, w->publish.segment_bytes, w->table,
                               REGIONS, &n, &why));
        w->n_keys = n;
    }
    must(type != FF_MSG_GO || w->p.said & FF_MSG_BIT(FF_MSG_READY));
    if (type == FF_MSG_LEASE) {
        uint32_t number;
        must(!ff_wire_get_lease(w->p.heard, len, &number, &why));
        must((number && number <= w->asked) || !w->p.right);
    }
    w->let_go |= type == FF_MSG_WITHDRAWN && w->epoch == 1;
    must(type != FF_MSG_WITHDRAWN || w->p.said & FF_MSG_BIT(FF_MSG_DONE) || w->epoch > 1);
}

/* A good read: what it brings is what the source has there, or is marked as zeros */
static void read_right(struct world *w, unsigned turn)
{
    struct ff_wire_key *k = &w->keys[turn % FF_QUEUES % (w->n_keys ? w->n_keys : 1)];
    static const uint8_t zeros[PAGE];
    uint8_t *into = w->into.host;
    uint8_t zero = 0, poison = 0;
    struct ff_wc wc = {.id = 0};
    int got = 0;

    if (!w->n_keys || !w->p.open)
        return;
    struct ff_wr wr = {.id = 77,
                       .op = FF_OP_READ,
                       .local = into,
                       .lkey = w->into_mr.lkey,
                       .remote = w->publish.addr[k->region] + turn % 16 * PAGE,
                       .rkey = k->rkey,
                       .len_bytes = 4 * PAGE,
                       .granule_bytes = PAGE,
                       .zero = &zero,
                       .poison = w->fails ? &poison : NULL};
    must(w->into_mr.rkey);
    bool checks = w->p.right;
    peer_post(&w->p, turn & 1 ? FF_QUEUE_PREFILL : FF_QUEUE_FAULT, &wr);
    for (unsigned i = 0; i < 2000 && w->p.l && got >= 0 && wc.id != 77; i++) {
        got = w->p.l->ops->poll(w->p.l, turn & 1 ? FF_QUEUE_PREFILL : FF_QUEUE_FAULT, &wc, 1, 1,
                                NULL);
        if (event_is(&w->ended))
            break;
    }
    if (wc.id != 77)
        peer_hang_up(&w->p); /* @zero is on this stack */
    for (unsigned i = 0; checks && wc.id == 77 && i < 4; i++)
        must(poison & 1u << i
                 ? w->fails && zero & 1u << i && page_fails(k->region, turn % 16 + i)
                 : page_is_right(zero & 1u << i ? zeros : into + i * PAGE, k->region,
                                 turn % 16 + i));
}

/* One that no good destination asks for; or memory that it wants to write */
static void ask(struct world *w, struct input *in)
{
    unsigned how = get(in);
    const struct ff_wire_key *k = &w->keys[how & 1];
    static uint8_t zero[FF_GRANULES_MAX / 8], poison[FF_GRANULES_MAX / 8];
    struct ff_wr wr = {.id = 1,
                       .op = how & 2 ? FF_OP_READ : FF_OP_WRITE,
                       .local = w->into.host,
                       .lkey = w->into_mr.lkey,
                       .remote = w->publish.addr[k->region] + get(in) * (how & 4 ? 1u : PAGE),
                       .rkey = how & 8 ? get4(in) : k->rkey,
                       .len_bytes = 1 + get4(in) % (INTO_PAGES * PAGE),
                       .imm = get(in)};

    if (how & 16 && wr.op == FF_OP_READ) {
        wr.granule_bytes = PAGE;
        wr.len_bytes = (wr.len_bytes + PAGE - 1) / PAGE * PAGE;
        wr.zero = zero;
        wr.poison = how & 64 ? poison : NULL;
    }
    w->p.right = false;
    peer_post(&w->p, how & 32 ? FF_QUEUE_PREFILL : FF_QUEUE_FAULT, &wr);
}

/* WELCOME was said: the source opens its queues, or does not */
static void open_queues(struct world *w)
{
    struct ff_error why;

    if (!w->p.l || w->p.open)
        return;
    if (w->p.l->ops->open_queues(w->p.l, w->session, w->p.right ? 500 : 20, &why))
        peer_hang_up(&w->p);
    else
        w->p.open = true;
}

static void be_landing(struct world *w)
{
    memset(&w->into_mr, 0, sizeof(w->into_mr));
    w->n_keys = 0;
    if (w->p.l)
        must(!w->p.l->ops->reg(w->p.l, w->into.host, w->into.len_bytes, FF_ACCESS_REMOTE_WRITE,
                               &w->into_mr, NULL));
}

static void good_step(void *opaque)
{
    struct world *w = opaque;
    static const enum ff_msg want[STEPS] = {
        [HELLO] = FF_MSG_HELLO, [PUBLISH] = FF_MSG_KEYS, [STATE] = FF_MSG_STATE, [GO] = FF_MSG_GO};
    enum step step = w->next;

    if (step == STEPS)
        return;
    w->next++;
    if (want[step])
        peer_await(&w->p, want[step], on_other, w);
    if (want[step] == FF_MSG_KEYS || want[step] == FF_MSG_GO)
        on_other(w, w->p.l && w->p.heard_len > 0 ? w->p.heard[0] : 0);
    if (step == PASSED && w->precopy)
        peer_await(&w->p, FF_MSG_LOGGING, on_other, w);
    int len = make(w, step);
    if (len > 0)
        peer_say(&w->p, len);
    if (step == WELCOME)
        open_queues(w);
    for (unsigned i = 0; step == READS && i < 6; i++)
        read_right(w, i * 5);
    if (step == DONE && peer_await(&w->p, FF_MSG_WITHDRAWN, on_other, w)) {
        on_other(w, FF_MSG_WITHDRAWN);
        if (w->may_take_back && !w->dies_then)
            peer_say(&w->p, ff_wire_put_empty(w->p.msg, FF_MSG_WITHDRAWN));
    }
    if (step == READS && w->may_take_back) {
        peer_say(&w->p, ff_wire_put_lease(w->p.msg, ++w->asked));
        peer_await(&w->p, FF_MSG_LEASE, on_other, w);
    }
}

static void accept_source(struct world *w)
{
    uint64_t end = ff_now_ns() + 400 * 1000000ull;
    struct ff_error why;
    int rc = -ETIMEDOUT;

    w->p.open = false;
    while (rc == -ETIMEDOUT && !event_is(&w->ended) && ff_now_ns() < end)
        rc = ff_tcp_accept(w->ls, 5, &w->p.l, &why);
    if (rc)
        w->p.l = NULL;
    be_landing(w);
}

/* The link breaks, and the source comes again */
static void break_link(struct world *w, struct input *in)
{
    unsigned how = get(in);
    struct ff_welcome welcome = {
        .version = FF_WIRE_VERSION, .epoch = ++w->epoch, .answer = FF_ANSWER_NOT_STARTED + how % 3};

    if (w->p.way == SOCKETS)
        return;
    peer_hang_up(&w->p);
    accept_source(w);
    if (!peer_await(&w->p, FF_MSG_RESUME, on_other, w))
        return;
    struct ff_resume r;
    struct ff_error why;
    must(!ff_wire_get_resume(w->p.heard, (size_t)w->p.heard_len, &r, &why));
    must(!r.taken_back || w->takes_back);
    if (r.taken_back)
        welcome.answer = FF_ANSWER_TAKEN_BACK;
    memcpy(welcome.session, w->session, sizeof(welcome.session));
    int len = ff_wire_put_welcome(w->p.msg, &welcome);
    w->told_not_started |= welcome.answer == FF_ANSWER_NOT_STARTED || how & 4;
    if (how & 4)
        peer_say_beside(&w->p, len, in);
    else
        peer_say(&w->p, len);
    if (welcome.answer == FF_ANSWER_RUNNING)
        open_queues(w);
    w->next = welcome.answer == FF_ANSWER_COMPLETE ? DONE : PUBLISH;
    if (welcome.answer == FF_ANSWER_RUNNING && how & 8) {
        good_step(w);
        w->next = READS;
    }
}

static void step(void *opaque, struct input *in)
{
    struct world *w = opaque;
    int len;

    switch (get(in) % 11) {
    case 0:
    case 1:
        good_step(w);
        break;
    case 2: /* that, a bit beside */
        if (w->next < STEPS && (len = make(w, w->next)) > 0) {
            w->told_not_started |= w->next == WELCOME;
            peer_say_beside(&w->p, len, in);
            if (w->next == WELCOME)
                open_queues(w);
        }
        w->next += w->next < STEPS;
        break;
    case 3: /* what is right at another time */
        w->p.right = false;
        if ((len = make(w, get(in) % STEPS)) > 0)
            peer_say(&w->p, len);
        break;
    case 4:
        w->told_not_started = true;
        peer_say_anything(&w->p, in);
        break;
    case 5:
        if (w->p.way == SOCKETS)
            peer_say_raw(&w->p, in);
        else
            break_link(w, in);
        break;
    case 6:
        if (w->n_keys && w->p.open && w->p.right)
            read_right(w, get(in));
        break;
    case 7:
        ask(w, in);
        break;
    case 10: /* asks for a lease: the next, or any */
        if (get(in) % 4) {
            w->asked++;
            w->p.right &= w->may_take_back && w->next > GO && w->next <= DONE;
        } else {
            w->asked = get4(in);
            w->p.right = false;
        }
        peer_say(&w->p, ff_wire_put_lease(w->p.msg, w->asked));
        break;
    case 8: /* serve, and listen */
        for (unsigned i = get(in) % 32; i--;)
            on_other(w, peer_hear(&w->p));
        break;
    default:
        w->next = get(in) % (STEPS + 1); /* leave out, or repeat */
        w->p.right = false;
    }
}

/* --- one run --- */

static void make_source(struct world *w)
{
    char options[300];
    unsigned port = 0;
    struct ff_error err;

    if (w->p.way != SOCKETS) {
        struct ff_link_params lp = {.host = "127.0.0.1",
                                    .port = "0",
                                    .timeout_ms = 1000,
                                    .key = w->p.way == KEYED ? fuzz_key() : NULL};
        must(!ff_tcp_listen(&lp, &w->ls, &err));
        port = ff_tcp_port(w->ls);
    }
    snprintf(options, sizeof(options), ",fallback=go,lease=1,fence=" FENCE ",record=%s", record);
    struct ff_address *a = fuzz_address(w->p.way, port, w->may_take_back ? options : "");
    must(!ff_source_new(a, &w->s, &err));
    ff_address_free(a);
    if (w->p.way == SOCKETS) {
        ff_source_use_link(w->s, peer_sockets(&w->p));
        be_landing(w);
    }
    for (unsigned i = 0; i < REGIONS; i++) {
        struct ff_region r = region_of(&w->own[i], i);
        strcpy(w->table[i].name, r.name);
        w->table[i].len_bytes = r.len_bytes;
        w->table[i].psize = r.psize;
        must(!ff_source_add_region(w->s, &r, &err));
    }
}

static void begin(struct world *w, struct input *in)
{
    unsigned how = get(in);

    w->p = (struct peer){
        .way = how % WAYS, .right = true, .raw = {-1, -1, -1}, .engine_ended = &w->ended};
    w->precopy = how & 32;
    w->may_take_back = how & 64;
    w->fails = how & 128;
    how = get(in);
    w->takes_back = how & 1;
    w->dies_then = how & 4;
    fence_fails = how & 2;
    make_record_name();
    w->epoch = 1;
    bool in_file = how & 16;
    memcpy(w->session, "a session of 16", sizeof(w->session));
    for (unsigned i = 0; i < REGIONS; i++) {
        area_new(&w->own[i], i, in_file ^ i);
        area_fill(&w->own[i], i);
        must(!mprotect(w->own[i].host, w->own[i].len_bytes, PROT_READ)); /* nobody writes */
        if (w->fails)
            area_fail(&w->own[i], i);
    }
    area_new(&w->into, 1, false);
    make_source(w);
    event_new(&w->ended);
    must(!pthread_create(&w->engine, NULL, run_engine, w));
    if (w->p.way != SOCKETS)
        accept_source(w);
}

static void end(struct world *w)
{
    peer_hang_up(&w->p);
    if (!event_await(&w->ended, w->went ? 1 : 2000)) {
        atomic_store(&w->stop, true);
        ff_source_cancel(w->s);
    }
    pthread_join(w->engine, NULL);
    must(!w->went || w->p.said & FF_MSG_BIT(FF_MSG_READY));
    must(!w->done || w->p.said & FF_MSG_BIT(FF_MSG_DONE));
    must(!w->taken_back || !w->let_go);
    must(!w->never_ran || w->told_not_started);
    ff_source_free(w->s);
    unlink(record);
    ff_tcp_listener_free(w->ls);
    event_free(&w->ended);
    for (unsigned i = 0; i < REGIONS; i++)
        area_free(&w->own[i]);
    area_free(&w->into);
}

void fuzz_one(struct input *in)
{
    static struct world w;

    memset(&w, 0, sizeof(w));
    begin(&w, in);
    fuzz_steps(in, STEPS, good_step, step, &w);
    end(&w);
}
