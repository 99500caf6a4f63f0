/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * breaks.c - moves that end early: at every stage both sides say why, and nobody hangs
 */
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cleanup.h"
#include "failpoint.h"
#include "loop.h"

static void setup(void)
{
    image_new(4000);
}

/* --- before GO --- */

struct early {
    const char *faults;
    enum stage src, dst; /* where each side ends; *_END: in any stage */
    const char *says_src, *says_dst;
};

static const struct early early[] = {
    {"source.publish=fail", S_PUBLISH, D_START, "injected", "the source gave up"},
    {"source.state=fail", S_STATE, D_STATE, "injected", "the source gave up"},
    {"source.go=fail", S_GO, D_GO, "injected", "the source gave up"},
    {"dest.accepted=fail", S_END, D_ACCEPT, "", "injected"},
    {"dest.pager=fail", S_WATCHED, D_START, "injected", "injected"}, /* its guest still runs */
    {"dest.state=fail", S_READY, D_STATE, "wait for READY", "injected"},
    {"dest.ready=fail", S_READY, D_READY, "wait for READY", "injected"},
};

static void check_text(const struct side *s, const char *says, const char *what)
{
    if (!strstr(s->err.text, says))
        loop_fail(__FILE__, __LINE__, "%s: \"%s\" is not in: %s", what, says, s->err.text);
}

static void try_early(const struct early *e, bool tcp)
{
    static struct move m;
    struct ff_error err;

    must_ok(ff_failpoints_arm(e->faults, &err), err);
    m = (struct move){.tcp = tcp, .options = "timeout=5"};
    move_run(&m);
    if (!m.src.rc || !m.dst.rc || m.ran)
        loop_fail(__FILE__, __LINE__, "%s: source %d, destination %d, runs: %d", e->faults,
                  m.src.rc, m.dst.rc, m.ran);
    if ((e->src != S_END && m.src.stage != e->src) || (e->dst != D_END && m.dst.stage != e->dst))
        loop_fail(__FILE__, __LINE__, "%s: ended in %d (%s), %d (%s)", e->faults, m.src.stage,
                  m.src.err.text, m.dst.stage, m.dst.err.text);
    check_text(&m.src, e->says_src, e->faults);
    check_text(&m.dst, e->says_dst, e->faults);
    move_free(&m);
}

static void before_go(void)
{
    for (unsigned i = 0; i < FF_ARRAY_LEN(early); i++) {
        try_early(&early[i], false);
        try_early(&early[i], true);
    }
}

/* A source that cannot push, or not as much: known while its guest still runs */
static void cannot_push(void)
{
    static const struct {
        bool no_push, works;
        uint32_t source_max;
        const char *options, *says;
    } cases[] = {
        {true, false, 0, "prefill=push", "at most 0 bytes"},
        {false, false, 1 << 20, "prefill=push",
         "at most 1048576 bytes at once (need a chunk, 2097152)"},
        {false, true, 1 << 20, "prefill=push,chunk=1M", ""},
        {true, true, 0, "prefill=auto", ""},
    };
    static struct move m;

    for (unsigned i = 0; i < FF_ARRAY_LEN(cases); i++) {
        m = (struct move){.no_push = cases[i].no_push, .source_max = cases[i].source_max,
                          .options = cases[i].options};
        move_run(&m);
        if (m.ran != cases[i].works || !m.dst.rc != m.ran || !m.src.rc != m.ran ||
            m.went != m.ran)
            loop_fail(__FILE__, __LINE__, "%s: source %d (%s), destination %d (%s)", m.options,
                      m.src.rc, m.src.err.text, m.dst.rc, m.dst.err.text);
        check_text(&m.src, cases[i].says, m.options);
        check_text(&m.dst, cases[i].says, m.options);
        if (m.ran)
            verify_all(&m);
        /* it may be refused while its last KEYS are on their way */
        must(m.ran || (m.src.stage >= S_PUBLISH && m.src.stage <= S_WATCHED && m.dst.stage == D_START));
        move_free(&m);
    }
}

/* A source that writes where nobody asked for anything: the link breaks, nothing is installed */
static void write_uninvited(struct move *m, enum stage stage)
{
    static uint8_t room[4096];
    struct ff_wr wr = {.op = FF_OP_WRITE, .local = room, .len_bytes = 8, .imm = 0x77};
    struct ff_error err;
    struct ff_mr mr;

    if (stage != D_DONE)
        return;
    must_ok(m->to_source->ops->reg(m->to_source, room, sizeof(room), FF_ACCESS_REMOTE_WRITE, &mr,
                                   &err), err);
    wr.remote = (uintptr_t)room;
    wr.rkey = mr.rkey;
    must_ok(m->to_dest->ops->post(m->to_dest, FF_QUEUE_FAULT, &wr, &err), err);
}

static void uninvited(void)
{
    static struct move m;

    m = (struct move){.options = "prefill=off", .hook = write_uninvited, .touchers = 0};
    move_run(&m);
    must(m.ran && m.dst.rc == -EPROTO && m.src.rc);
    check_text(&m.dst, "0x77 arrived unasked", "uninvited");
}

/* The Nth message of all is not sent, whoever would: until there are no more. A move has a
 * few more or less, as progress is reported by the clock. */
static void every_message(bool tcp)
{
    static struct move m;
    unsigned succeeded = 0, ran = 0;
    char spec[64];
    struct ff_error err;

    /* over tcp a destination waits for the next source when the first says nothing */
    for (unsigned n = tcp ? 2 : 1; n < 40 && succeeded < 2; n++) {
        snprintf(spec, sizeof(spec), "control.send=fail@%u", n);
        must_ok(ff_failpoints_arm(spec, &err), err);
        m = (struct move){.tcp = tcp, .options = "timeout=5", .state_bytes = 70000, .n_first = 1};
        move_run(&m);
        must(n > 11 || (m.src.rc && m.dst.rc)); /* HELLO..RUNNING: both learn of it */
        must(m.ran || m.dst.rc);
        ran += m.ran;
        if (!m.src.rc && !m.dst.rc) {
            succeeded++;
            verify_all(&m);
        }
        move_free(&m);
    }
    must(succeeded == 2 && ran > 2);
}

static void loop_every_message(void)
{
    every_message(false);
}

static void tcp_every_message(void)
{
    every_message(true);
}

/* Loading the state touches a page that will never come: whoever asked is told, once */

static atomic_uint told;
static char told_why[600];

static void on_break(void *opaque, const char *why)
{
    must(opaque == &told);
    snprintf(told_why, sizeof(told_why), "%s", why);
    atomic_fetch_add(&told, 1);
}

static struct peek loading;

static void load_and_lose(struct move *m, enum stage stage)
{
    if (stage != D_READY)
        return;
    ff_dest_on_break(m->dest, on_break, &told);
    must(!atomic_load(&told));
    move_cancel_source(m);
    must(wait_flag(&m->src.ended, 20000)); /* it is freed by now: no link */
    for (unsigned ms = 0; ms < 20000 && !atomic_load(&told); ms++)
        usleep(1000);
    must(atomic_load(&told) == 1 && told_why[0]);
    uint64_t cell = 0;
    while (cell_is_zero(cell))
        cell++;
    peek_start(&loading, m, cell);
    must(peek_blocked(&loading));
    ff_dest_on_break(m->dest, on_break, &told); /* asked too late: told at once */
    must(atomic_load(&told) == 2);
    pthread_join(m->source_thread, NULL);
    _exit(0); /* as a program does that cannot load its guest */
}

static void break_while_loading(void)
{
    static struct move m;

    m = (struct move){.tcp = true, .hook = load_and_lose};
    move_run(&m);
    must(!"the break was not seen");
}

/* --- after GO --- */

static uint64_t content_cell(uint64_t from)
{
    while (cell_is_zero(from))
        from++;
    return from;
}

/* The link has gone, the guest runs on what it has */
static void check_after_break(struct move *m)
{
    struct peek there[3], missing[3];
    struct ff_stats before, after;
    uint64_t cell = 100;

    must(m->went && m->ran && m->dst.rc && m->dst.stage == D_DONE);
    must(m->src.rc && m->src.stage >= S_RUNNING);
    ff_dest_stats(m->dest, &before);
    must(before.bytes_present < before.bytes_total);
    for (unsigned i = 0; i < 3; i++) { /* cells 0..2 were touched */
        peek_start(&there[i], m, i);
        must(wait_flag(&there[i].ended, 20000));
        pthread_join(there[i].thread, NULL);
    }
    for (unsigned i = 0; i < 3; i++) {
        cell = content_cell(cell + 1);
        peek_start(&missing[i], m, cell);
    }
    for (unsigned i = 0; i < 3; i++)
        must(peek_blocked(&missing[i]));
    usleep(300000); /* time in which nothing may happen */
    for (unsigned i = 0; i < 3; i++)
        must(!atomic_load(&missing[i].ended) && peek_blocked(&missing[i]));
    for (unsigned i = 0; i < 3; i++) { /* the pager still answers for what is there */
        peek_start(&there[i], m, i);
        must(wait_flag(&there[i].ended, 20000));
        pthread_join(there[i].thread, NULL);
    }
    ff_dest_stats(m->dest, &after);
    must(after.bytes_present == before.bytes_present);
    _exit(0); /* the blocked threads end with their process, not before */
}

static void touch_three(struct move *m)
{
    struct peek p[3];

    for (unsigned i = 0; i < 3; i++) {
        peek_start(&p[i], m, i);
        must(wait_flag(&p[i].ended, 20000));
        pthread_join(p[i].thread, NULL);
    }
}

static void cancel_after_go(struct move *m, enum stage stage)
{
    if (stage == D_DONE) {
        touch_three(m);
        move_cancel_source(m);
    }
}

static void source_leaves(void)
{
    static struct move m;

    m = (struct move){.tcp = true, .options = "prefill=off", .hook = cancel_after_go};
    move_run(&m);
    check_after_break(&m);
}

static void source_leaves_loop(void)
{
    static struct move m;

    m = (struct move){.options = "prefill=off", .hook = cancel_after_go, .memory = MEM_MEMFD};
    move_run(&m);
    check_after_break(&m);
}

static void source_leaves_continue(void)
{
    static struct move m;

    m = (struct move){.tcp = true, .options = "prefill=off,landing=continue", .memory = MEM_MEMFD,
                      .hook = cancel_after_go};
    move_run(&m);
    check_after_break(&m);
}

/* The link breaks in the middle of a read for a fault: that thread stays blocked */
static struct peek unlucky;

static void touch_four(struct move *m, enum stage stage)
{
    if (stage != D_DONE)
        return;
    touch_three(m);
    peek_start(&unlucky, m, content_cell(50));
}

static void read_fails(bool tcp)
{
    static struct move m;
    struct ff_error err;

    must_ok(ff_failpoints_arm(tcp ? "tcp.serve.fault=fail@4+" : "loop.read=fail@4+", &err), err);
    m = (struct move){.tcp = tcp, .options = "prefill=off", .hook = touch_four};
    move_run(&m);
    must(peek_blocked(&unlucky));
    check_after_break(&m);
}

static void loop_read_fails(void)
{
    read_fails(false);
}

static void tcp_read_fails(void)
{
    read_fails(true);
}

#define BY_BOTH "chunk=64K,window=1"
/* A millisecond each: on a busy machine they bring everything before prefill has read three
 * chunks */
#define SLOW_FAULTS ",dest.fault=delay:1000"

/* The link breaks under 8 threads that read and write: what each saw was right, no zeros */
static void breaks_under_load(bool tcp, const char *options, const char *faults)
{
    static struct move m;
    struct ff_error err;

    must_ok(ff_failpoints_arm(faults, &err), err);
    m = (struct move){.tcp = tcp, .options = options, .touchers = 8, .writes = true,
                      .touch_late = true, .touches = 1000000, .n_regions = 1, .cells = {4000}};
    move_run(&m);
    must(m.ran && m.dst.rc && m.src.rc);
    unsigned blocked = 0;
    for (unsigned i = 0; i < 8; i++)
        if (thread_blocked(&m.toucher[i].tid, &m.toucher[i].ended))
            blocked++;
        else
            pthread_join(m.toucher[i].thread, NULL);
    must(blocked);
    _exit(0);
}

static void loop_prefill_breaks(void)
{
    breaks_under_load(false, BY_BOTH, "loop.read=fail@20" SLOW_FAULTS);
}

static void tcp_prefill_breaks(void)
{
    breaks_under_load(true, BY_BOTH, "tcp.serve.prefill=fail@3" SLOW_FAULTS);
}

static void dest_prefill_breaks(void)
{
    breaks_under_load(true, BY_BOTH, "dest.prefill=fail@3" SLOW_FAULTS);
}

static void tcp_fault_breaks(void)
{
    /* without prefill there are ten faults, however busy the machine */
    breaks_under_load(true, "prefill=off", "tcp.serve.fault=fail@10");
}

/* --- a page that cannot be installed --- */

static void install_fails_running(void *arg)
{
    static struct move m;
    struct ff_error err;
    (void)arg;

    must_ok(ff_failpoints_arm("dest.install=fail:14", &err), err);
    ff_set_log(NULL, FF_ERROR);
    m = (struct move){.tcp = true};
    if (!freopen("/dev/null", "w", stderr))
        _exit(9);
    move_run(&m);
}

/* The guest runs: nobody may go on with memory that never was */
static void install_fails_after_go(void)
{
    int status, pid = child_start(install_fails_running, NULL);

    must(waitpid(pid, &status, 0) == pid);
    must(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
}

static void wait_told(struct move *m, enum stage stage)
{
    if (stage == D_STATE)
        ff_dest_on_break(m->dest, on_break, &told);
    for (unsigned ms = 0; stage == D_READY && !atomic_load(&told); ms++, usleep(1000))
        must(ms < 20000);
}

/* It does not run yet: the move fails, the source keeps its guest */
static void install_fails_before_go(void)
{
    static struct move m;
    struct ff_error err;

    must_ok(ff_failpoints_arm("dest.install=fail:14", &err), err);
    m = (struct move){.tcp = true, .n_first = 1, .hook = wait_told};
    move_run(&m);
    must(!m.ran && !m.went && m.src.rc && m.dst.rc);
    /* the link that is shut for it may end the state's arrival first */
    must(m.dst.stage == D_STATE || strstr(m.dst.err.text, "injected"));
    move_free(&m);
}

int main(int argc, char **argv)
{
    static const struct loop_test tests[] = {
        {"a source that writes uninvited", uninvited, 0},
        {"a source that cannot push", cannot_push, 60},
        {"before GO", before_go, 60},
        {"loop: every message", loop_every_message, 60},
        {"tcp: every message", tcp_every_message, 60},
        {"break while loading", break_while_loading, 0},
        {"source leaves", source_leaves, 0},
        {"source leaves, loop link", source_leaves_loop, 0},
        {"source leaves, landing=continue", source_leaves_continue, 0},
        {"loop: read for a fault fails", loop_read_fails, 0},
        {"tcp: read for a fault fails", tcp_read_fails, 0},
        {"loop: prefill breaks", loop_prefill_breaks, 0},
        {"tcp: prefill breaks at the source", tcp_prefill_breaks, 0},
        {"tcp: prefill breaks at the destination", dest_prefill_breaks, 0},
        {"tcp: faults break", tcp_fault_breaks, 0},
        {"install fails after GO", install_fails_after_go, 0},
        {"install fails before GO", install_fails_before_go, 0},
    };
    return loop_main(argc, argv, setup, tests, FF_ARRAY_LEN(tests));
}
