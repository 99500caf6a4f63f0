/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * model_accepts.c - what the real source and destination say is a run of the model
 */
/**
 * DOC: Theory of Operation
 *
 * Purpose      tests/model is searched in whole; this test says whether it is a model of this code.
 * Picture      source -- spy_send() --> link -- spy_recv() --> destination, and back: each side's
 *              messages in its order, over a loop link, or over all tcp links of a move that
 *              resumes; then accept_is_run()
 * Failure      "is no run of the model": the code does what the model does not know, or the model
 *              forbids it. The lists that were observed are printed.
 */
#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "accept.h"
#include "cleanup.h"
#include "failpoint.h"
#include "loop.h"
#include "visits.h"
#include "wire.h"

static struct accept_run run;
static uint32_t shown[2][2]; /* bits of types: source, destination; sent, read */

static void setup(void)
{
    image_new(4000);
}

/* --- between the sides and their links --- */

static struct {
    const struct ff_link_ops *real;
    struct ff_link_ops ops;
    pthread_mutex_t lock; /* one thread sends, another reads the answer: noted in this order */
} spy[2] = { /* at the source's end, at the destination's */
    {.lock = PTHREAD_MUTEX_INITIALIZER},
    {.lock = PTHREAD_MUTEX_INITIALIZER},
};

/* The link breaks under these messages from GO on, counted on both sides; 0: under none */
static struct {
    unsigned nth[2];
    atomic_uint n;
    atomic_bool done; /* DONE was said */
} lose;

static void note(struct accept_side *s, const void *msg, bool sent, bool failed)
{
    const uint8_t *p = msg;
    unsigned type = p[0] | p[1] << 8;

    if (!accept_watches(type))
        return;
    must(s->n < ACCEPT_EVENTS);
    s->failed = failed;
    s->sent[s->n] = sent;
    s->type[s->n++] = (uint8_t)type;
    if (!failed)
        shown[s == &run.dest][!sent] |= FF_MSG_BIT(type);
}

/* The destination may hear RESUME while it still takes the last link for good, and speaks over that;
 * what counts is when it takes the next one. Another thread hears it */
static atomic_bool heard_resume;

static void note_dest_read(const void *msg)
{
    if (*(const uint8_t *)msg == FF_MSG_RESUME)
        atomic_store(&heard_resume, true);
    else
        note(&run.dest, msg, false, false);
}

static void note_dest_sent(const void *msg, bool failed)
{
    static const uint8_t resume[2] = {FF_MSG_RESUME};

    if (*(const uint8_t *)msg == FF_MSG_WELCOME && atomic_exchange(&heard_resume, false))
        note(&run.dest, resume, false, false);
    note(&run.dest, msg, true, failed);
}

/* Not WITHDRAWN: whoever has said it is content, and nobody would come back; but for a source with
 * fallback=go that has heard DONE */
static bool is_lost(unsigned end, const void *msg)
{
    unsigned type = *(const uint8_t *)msg;

    if (!lose.nth[0] || !accept_watches(type))
        return false;
    if (type == FF_MSG_DONE)
        atomic_store(&lose.done, true);
    if (type == FF_MSG_WITHDRAWN && (end || !run.fallback || !atomic_load(&lose.done)))
        return false;
    if (type != FF_MSG_GO && !atomic_load(&lose.n))
        return false;
    unsigned n = atomic_fetch_add(&lose.n, 1) + 1;
    return n == lose.nth[0] || n == lose.nth[1];
}

static int spy_send(unsigned end, struct ff_link *l, const void *msg, uint32_t len,
                    struct ff_error *err)
{
    int rc = 0;

    pthread_mutex_lock(&spy[end].lock);
    if (is_lost(end, msg)) /* into a link that is broken, and does not tell */
        l->ops->shutdown(l);
    else
        rc = spy[end].real->send(l, msg, len, err);
    if (end)
        note_dest_sent(msg, rc);
    else
        note(&run.source, msg, true, rc);
    pthread_mutex_unlock(&spy[end].lock);
    return rc;
}

static int spy_recv(unsigned end, struct ff_link *l, void *buf, int timeout_ms,
                    struct ff_error *err)
{
    int len = spy[end].real->recv(l, buf, timeout_ms, err);

    pthread_mutex_lock(&spy[end].lock);
    if (len >= 2 && end)
        note_dest_read(buf);
    else if (len >= 2)
        note(&run.source, buf, false, false);
    pthread_mutex_unlock(&spy[end].lock);
    return len;
}

static int source_send(struct ff_link *l, const void *msg, uint32_t len, struct ff_error *err)
{
    return spy_send(0, l, msg, len, err);
}

static int source_recv(struct ff_link *l, void *buf, int timeout_ms, struct ff_error *err)
{
    return spy_recv(0, l, buf, timeout_ms, err);
}

static int dest_send(struct ff_link *l, const void *msg, uint32_t len, struct ff_error *err)
{
    return spy_send(1, l, msg, len, err);
}

static int dest_recv(struct ff_link *l, void *buf, int timeout_ms, struct ff_error *err)
{
    return spy_recv(1, l, buf, timeout_ms, err);
}

static void spy_at(unsigned end, struct ff_link *l)
{
    if (spy[end].real != l->ops) { /* else another thread may be inside it: one hears the next link */
        spy[end].real = l->ops;
        spy[end].ops = *l->ops;
        spy[end].ops.send = end ? dest_send : source_send;
        spy[end].ops.recv = end ? dest_recv : source_recv;
    }
    l->ops = &spy[end].ops;
}

static void on_lease(void *opaque, bool may_run)
{
    (void)opaque;
    (void)may_run;
}

static void spy_on(struct move *m)
{
    ff_dest_on_lease(m->dest, on_lease, NULL);
    if (m->tcp)
        return; /* at each link, below */
    spy_at(0, m->to_dest);
    spy_at(1, m->to_source);
}

/* Of the links of a network: those of one port, or all (0) */
static unsigned only_port;

static bool is_spied(unsigned port)
{
    return !only_port || port == only_port;
}

/* Every link of a network begins here (ld --wrap) */
int __real_ff_link_connect(const struct ff_link_params *p, enum ff_link_kind kind, int cancel_fd,
                           struct ff_link **out, struct ff_error *err);
int __wrap_ff_link_connect(const struct ff_link_params *p, enum ff_link_kind kind, int cancel_fd,
                           struct ff_link **out, struct ff_error *err);
int __real_ff_port_accept(struct ff_port *port, const int *also, unsigned n, int timeout_ms,
                          struct ff_link **out, struct ff_error *err);
int __wrap_ff_port_accept(struct ff_port *port, const int *also, unsigned n, int timeout_ms,
                          struct ff_link **out, struct ff_error *err);

int __wrap_ff_link_connect(const struct ff_link_params *p, enum ff_link_kind kind, int cancel_fd,
                           struct ff_link **out, struct ff_error *err)
{
    int rc = __real_ff_link_connect(p, kind, cancel_fd, out, err);

    if (!rc && is_spied((unsigned)atoi(p->port)))
        spy_at(0, *out);
    return rc;
}

int __wrap_ff_port_accept(struct ff_port *port, const int *also, unsigned n, int timeout_ms,
                          struct ff_link **out, struct ff_error *err)
{
    int rc = __real_ff_port_accept(port, also, n, timeout_ms, out, err);

    if (!rc && is_spied(ff_port_number(port)))
        spy_at(1, *out);
    return rc;
}

/* --- moves --- */

static struct {
    bool resumes; /* over tcp */
    enum stage cancel; /* before this stage of either side; S_CONNECT: nowhere */
    bool passes;
    int pause_ms;
    const char *via[ACCEPT_VIA]; /* the scene is made so that these actions are a part */
} plan;

/* precopy=1, with one page that was written meanwhile; a failure shows in the next stage */
static void make_pass(struct move *m)
{
    uint64_t bits[64] = {1};
    struct ff_error err;

    if (ff_source_wait_watched(m->source, &err) || ff_source_precopy(m->source, &err))
        return;
    for (unsigned i = 0; i < m->n_regions; i++)
        if (ff_source_dirty(m->source, i, bits, CELL, &err))
            return;
}

static void hook(struct move *m, enum stage stage)
{
    if (stage == S_STATE && plan.passes)
        make_pass(m);
    if (plan.cancel == S_CONNECT || stage != plan.cancel)
        return;
    if (stage < S_END)
        ff_source_cancel(m->source);
    else
        ff_dest_cancel(m->dest);
}

/* One move with these faults, and the model's word on it */
static void try_move(const char *faults, const char *options, bool touches)
{
    static struct move m;
    struct ff_error err;

    run = (struct accept_run){.precopy = plan.passes,
                              .push = strstr(options, "push"),
                              .fallback = strstr(options, "fallback"),
                              .resumes = plan.resumes};
    memcpy(run.via, plan.via, sizeof(run.via));
    must_ok(ff_failpoints_arm(faults, &err), err);
    m = (struct move){.options = options,
                      .hook = hook,
                      .tcp = plan.resumes,
                      .resumes = plan.resumes,
                      .touchers = touches ? 2 : 0,
                      .touch_late = plan.resumes,
                      .n_first = 1,
                      .pause_ms = plan.pause_ms,
                      .prepared = spy_on};
    move_run(&m);
    run.source.rc = m.src.rc;
    run.dest.rc = m.dst.rc;
    run.went = m.went;
    run.ran = m.ran;
    if (!accept_is_run(&run)) {
        accept_print(&run);
        loop_fail(__FILE__, __LINE__,
                  "\"%s\" with \"%s\", cancel before stage %d, messages %u and %u lost: is no run "
                  "of the model",
                  faults, options, plan.cancel, lose.nth[0], lose.nth[1]);
    }
    if (!m.src.rc && !m.dst.rc) {
        touchers_join(&m);
        verify_all(&m);
    }
    move_free(&m);
}

/* A move that loses these messages, and goes on over other links: false: it had fewer of them */
static bool resumes(unsigned first, unsigned second, const char *options)
{
    lose.nth[0] = first;
    lose.nth[1] = second;
    atomic_store(&lose.n, 0);
    atomic_store(&lose.done, false);
    plan.resumes = true;
    try_move("", options, true);
    bool here = run.source.rc == -ETIME && run.dest.rc == -ESTALE;
    if (!here && (run.source.rc || run.dest.rc))
        loop_fail(__FILE__, __LINE__, "messages %u and %u lost: source %d, destination %d", first,
                  second, run.source.rc, run.dest.rc);
    plan.resumes = false;
    lose.nth[0] = 0;
    return atomic_load(&lose.n) >= FF_MAX(first, second);
}

static void resumes_once(void)
{
    must(resumes(2, 0, "timeout=5"));
}

/* The record is never written: nobody takes back */
#define FALLBACK "timeout=5,fallback=go,fence=/bin/true,record=/tmp/farfork-no-record"

/* Each message from GO on is lost, and each message after that */
static void resumes_always(void)
{
    static const char *const each[] = {"timeout=5", "timeout=5,prefill=push", FALLBACK};

    for (unsigned i = 0; i < FF_ARRAY_LEN(each); i++) {
        const char *options = each[i];
        for (unsigned first = 1; resumes(first, 0, options); first++)
            for (unsigned second = first + 1; resumes(first, second, options); second++)
                ;
    }
}

static void whole(void)
{
    try_move("", "timeout=5", true);
    try_move("", "timeout=5,prefill=push", true);
    resumes_once();
    try_move("", FALLBACK, true);
    plan.passes = true;
    try_move("", "timeout=5,precopy=1", true);
    try_move("", "timeout=5,precopy=1,prefill=push", true);

    /* the code says all that wire.h has: a message that nobody shows here is not tied to it */
    const uint32_t both[2] = {shown[0][0] | shown[1][0], shown[0][1] | shown[1][1]};
    for (unsigned t = FF_MSG_HELLO; t <= FF_MSG_LAST; t++)
        if (accept_watches(t) && !(both[0] & both[1] & FF_MSG_BIT(t)))
            loop_fail(__FILE__, __LINE__, "nobody has sent and read %s", ff_msg_name(t));
}

/* The Nth message is not sent, whichever it is */
static void every_message(void)
{
    char spec[64];

    for (unsigned n = 1; n < 48; n++) {
        snprintf(spec, sizeof(spec), "control.send=fail@%u", n / 2);
        plan.passes = n % 2;
        try_move(n < 2 ? "" : spec, plan.passes ? "timeout=5,precopy=1" : "timeout=5", false);
    }
    plan.passes = false;
}

static void every_stage(void)
{
    static const char *const faults[] = {
        "source.publish=fail", "source.state=fail", "dest.accepted=fail",
        "dest.pager=fail",     "dest.state=fail",   "dest.ready=fail",
    };

    for (unsigned i = 0; i < FF_ARRAY_LEN(faults); i++)
        try_move(faults[i], "timeout=5", false);
    for (enum stage s = S_PUBLISH; s <= D_DONE; s++) {
        if (s == S_END || s == D_ACCEPT)
            continue;
        plan.cancel = s;
        try_move("", "timeout=5,prefill=off", false);
    }
}

/* Scenes in which it is known what happens, though the messages alone do not tell */
static void scenes(void)
{
    static const struct {
        const char *faults, *options;
        int pause_ms, src, dst;
        bool passes;
        const char *via[ACCEPT_VIA];
    } scene[] = {
        {.faults = "source.go=delay:3200000", .pause_ms = 3000, .src = -ETIME, .dst = -EREMOTEIO,
         .via = {"is stopped (SIGSTOP) for longer than pause_ms",
                 "ff_source_go: paused for too long; goes on here"}},
        {.faults = "source.go=delay:500000",
         .via = {"ff_beat: is alive", "ff_source_go: it waits", "ff_source_free"}},
        {.faults = "dest.pager=fail", .src = -EREMOTEIO, .dst = -EIO,
         .via = {"ff_dest_start: refuses; exits",
                 "ff_control_expect: the peer ended it; goes on here"}},
        {.faults = "dest.state=fail", .src = -ECONNRESET, .dst = -EIO,
         .via = {"fails; exits: nothing ran here", "notices the break; goes on here"}},
        {.faults = "", .options = "prefill=push", .via = {"prefill: GRANT of page 1"}},
        {.faults = "", .options = "precopy=1", .passes = true,
         .via = {"the guest writes to page 0, logged", "the guest writes to page 1, logged"}},
    };

    for (unsigned i = 0; i < FF_ARRAY_LEN(scene); i++) {
        plan.passes = scene[i].passes;
        plan.pause_ms = scene[i].pause_ms;
        memcpy(plan.via, scene[i].via, sizeof(plan.via));
        try_move(scene[i].faults, scene[i].options ? scene[i].options : "timeout=5", false);
        if (run.source.rc != scene[i].src || run.dest.rc != scene[i].dst)
            loop_fail(__FILE__, __LINE__, "scene %u: source %d, destination %d", i, run.source.rc,
                      run.dest.rc);
    }
    plan.pause_ms = 0;
    plan.passes = false;
    memset(plan.via, 0, sizeof(plan.via));
}

/* All of it in one process: which of the model's actions has the code taken? */
static void every_action(void)
{
    static const char *const but[] = {
        "drops a connection",       /* over tcp alone; tests/loop/hello.c */
        "GO_MS have passed: exits", /* after a minute */
        "ff_source_wait_alive",     /* a pass that takes longer than PROGRESS_MS */
        "ff_source_go: ECONNRESET, not sent; goes on here", /* between two calls of the source */
        "notices the break, complete", /* as ff_source_free, to whoever looks */
        "was asked nothing: seals itself", /* the code does it before it listens */
        "GO_MS have passed: seals itself", /* likewise */
        NULL,
    };

    whole();
    every_message();
    every_stage();
    plan.cancel = S_CONNECT;
    scenes();
    resumes_always();
    must(!accept_print_missing(but));
}

/* What a destination may not come to say or read, as its link breaks */
static bool may_miss(unsigned type)
{
    return run.ran && ((type == FF_MSG_WITHDRAWN && !run.fallback) ||
                       (type == FF_MSG_RUNNING && run.resumes && !run.returns));
}

/* Lists that no code may produce are none of the model's: so the test can fail */
static void no_other_list(void)
{
    struct accept_run wrong;

    must(accept_is_run(&run) && run.source.n > 4);
    for (unsigned i = 0; i + 1 < run.source.n; i++) { /* two neighbours change places */
        wrong = run;
        wrong.source.type[i] = run.source.type[i + 1];
        wrong.source.sent[i] = run.source.sent[i + 1];
        wrong.source.type[i + 1] = run.source.type[i];
        wrong.source.sent[i + 1] = run.source.sent[i];
        must(!accept_is_run(&wrong));
    }
    for (unsigned i = 0; i < run.dest.n; i++) { /* one is missing */
        wrong = run;
        memmove(wrong.dest.type + i, run.dest.type + i + 1, run.dest.n - i - 1u);
        memmove(wrong.dest.sent + i, run.dest.sent + i + 1, run.dest.n - i - 1u);
        wrong.dest.n--;
        if (accept_is_run(&wrong) != may_miss(run.dest.type[i]))
            loop_fail(__FILE__, __LINE__, "without message %u of the destination", i);
    }
}

static void false_runs(void)
{
    struct accept_run wrong;

    try_move("", "timeout=5", false);
    no_other_list();
    wrong = run;
    wrong.ran = false; /* it said RUNNING, and has no GO */
    must(!accept_is_run(&wrong));
    wrong = run;
    wrong.went = false;
    must(!accept_is_run(&wrong));

    must(resumes(1, 0, "timeout=5") && !run.went && !run.ran); /* NOT-STARTED */
    no_other_list();
    wrong = run;
    wrong.went = true;
    must(!accept_is_run(&wrong));
    wrong = run;
    wrong.ran = true;
    must(!accept_is_run(&wrong));
    must(resumes(2, 0, "timeout=5") && run.ran); /* RUNNING */
    no_other_list();
    try_move("", FALLBACK, false); /* complete is who has read WITHDRAWN, and has answered it */
    no_other_list();
}

/* --- a guest that visits, and comes home --- */

/* It has gone, and is about to return. The way out is not looked at: return_model.c */
static void visit_begin(struct leg *out, struct leg *back)
{
    only_port = UINT_MAX;
    visit_go(out, MEM_ANON);
    visit_work(10);
    visit_await_present(out);
    visit_back(back, out, "");
    only_port = ff_dest_port(back->dest);
    run = (struct accept_run){.returns = true, .resumes = true};
}

static void must_be_return(int source_rc, int dest_rc, bool went, bool ran)
{
    run.source.rc = source_rc;
    run.dest.rc = dest_rc;
    run.went = went;
    run.ran = ran;
    if (accept_is_run(&run))
        return;
    accept_print(&run);
    loop_fail(__FILE__, __LINE__, "the return is no run of the model");
}

static void comes_home(void)
{
    struct leg out, back;

    visit_begin(&out, &back);
    must(!visit_receive(&back, home, false));
    visit_let_run(&back);
    visit_finish(&back, &out);
    must_be_return(0, 0, true, true);
    no_other_list();
}

static void leaves_before_go(void)
{
    struct leg out, back;
    struct ff_error err;

    visit_begin(&out, &back);
    back.leaves = true;
    must(!visit_receive(&back, home, false));
    must_ok(ff_dest_ready(back.dest, &err), err);
    int rc = ff_dest_wait_go(back.dest, &err);
    pthread_join(back.thread, NULL);
    must(rc && back.rc == -ECANCELED);
    must_be_return(back.rc, rc, false, false);
    no_other_list();
    _exit(0);
}

static void loses_go_home(void)
{
    struct leg out, back;
    struct ff_error err;

    visit_begin(&out, &back);
    lose.nth[0] = 1;
    must(!visit_receive(&back, home, false));
    must_ok(ff_dest_ready(back.dest, &err), err);
    must(ff_dest_wait_go(back.dest, &err));
    int rc = ff_dest_recover(back.dest, 20000, &err);
    pthread_join(back.thread, NULL);
    must(rc == -ESTALE && back.err.code == ETIME);
    must_be_return(back.rc, rc, false, false);
    no_other_list();
    _exit(0);
}

int main(int argc, char **argv)
{
    static const struct loop_test tests[] = {
        {"whole moves", whole, 0},
        {"every action", every_action, 180},
        {"false runs", false_runs, 0},
        {"a visit comes home", comes_home, 60},
        {"a return leaves before GO", leaves_before_go, 60},
        {"GO of a return is lost", loses_go_home, 60},
    };

    return loop_main(argc, argv, setup, tests, FF_ARRAY_LEN(tests));
}
