/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * options.c - chunk, window, prefill, first-touch pages, tables of regions: moves that succeed
 */
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "loop.h"

static void setup(void)
{
    image_new(6000);
}

static void chunks_and_windows(bool tcp)
{
    static const char *const chunks[] = {"4096", "8K", "64K", "1M", "4M"};
    static const unsigned windows[] = {1, 2, 7, 32};
    static struct move m;
    char options[64];

    for (unsigned c = 0; c < 5; c++) {
        for (unsigned w = 0; w < 4; w++) {
            snprintf(options, sizeof(options), "chunk=%s,window=%u", chunks[c], windows[w]);
            m = (struct move){.tcp = tcp, .options = options, .touchers = 3, .writes = true,
                              .memory = (c + w) % 2 ? MEM_MEMFD : MEM_ANON};
            if (w == 2)
                strcat(options, ",landing=continue");
            move_run(&m);
            move_must_succeed(&m);
        }
    }
}

static void loop_chunks(void)
{
    chunks_and_windows(false);
}

static void tcp_chunks(void)
{
    chunks_and_windows(true);
}

static unsigned step;

/* One thread touches every cell once, in an order of its own */
static void *touch_each(void *arg)
{
    struct toucher *t = arg;

    for (uint64_t i = 0; i < t->m->n_cells; i++)
        touch_cell(t, i * step % t->m->n_cells, i % 5 == 0);
    return NULL;
}

static pthread_t each_thread;

static void start_each(struct move *m, enum stage stage)
{
    if (stage != D_RUNNING)
        return;
    m->toucher[0] = (struct toucher){.m = m, .last = calloc(m->n_cells, sizeof(uint32_t))};
    must(m->toucher[0].last);
    must(!pthread_create(&each_thread, NULL, touch_each, &m->toucher[0]));
}

/* Nothing comes by itself */
static void faults_alone(bool tcp, enum memory memory, const char *options)
{
    static struct move m;

    step = 1009;
    m = (struct move){.tcp = tcp, .options = options, .memory = memory, .hook = start_each};
    move_run(&m);
    pthread_join(each_thread, NULL);
    must(m.dst.stats.bytes_prefill == 0 && m.dst.stats.bytes_duplicated == 0);
    must(m.dst.stats.faults == m.n_cells); /* each page by one fault */
    move_must_succeed(&m);
}

static void prefill_off(void)
{
    faults_alone(false, MEM_ANON, "prefill=off");
    faults_alone(true, MEM_ANON, "prefill=off");
    faults_alone(true, MEM_ANON_THP, "prefill=off");
    faults_alone(true, MEM_MEMFD, "prefill=off,landing=copy");
    faults_alone(true, MEM_MEMFD, "prefill=off,landing=continue");
    faults_alone(true, MEM_MEMFD_PRIVATE, "prefill=off");
}

/* While prefill brings next to nothing a page brings those behind it, and who touches one of them waits for it */
static void around(bool tcp)
{
    static struct move m;

    step = 1;
    loop_arm("dest.prefill=delay:200000");
    m = (struct move){.tcp = tcp, .options = "prefill=pull", .memory = MEM_ANON, .hook = start_each};
    move_run(&m);
    pthread_join(each_thread, NULL);
    if (m.dst.stats.faults > m.n_cells / 4)
        loop_fail(__FILE__, __LINE__, "%llu faults for %llu pages", (unsigned long long)m.dst.stats.faults,
                  (unsigned long long)m.n_cells);
    move_must_succeed(&m);
}

static void loop_around(void)
{
    around(false);
}

static void tcp_around(void)
{
    around(true);
}

/* Many threads want the same page: one fetches, all get it */
static void one_page_many_threads(void)
{
    for (unsigned round = 0; round < 30; round++) {
        static struct move m;
        m = (struct move){.tcp = round % 2, .touchers = 8, .touches = 3, .writes = true,
                          .n_regions = 1, .cells = {1}};
        move_run(&m);
        move_must_succeed(&m);
    }
}

/* --- first-touch pages --- */

/* They must come although nothing touches them and nothing is prefilled */
static void wait_first(struct move *m, enum stage stage)
{
    struct ff_stats st;

    if (stage != D_READY)
        return;
    for (unsigned ms = 0; ms < 20000; ms++) {
        ff_dest_stats(m->dest, &st);
        if (st.first_touch == 5)
            return;
        struct timespec ts = {.tv_nsec = 1000000};
        nanosleep(&ts, NULL);
    }
    loop_fail(__FILE__, __LINE__, "5 different first-touch pages were named, %llu came",
              (unsigned long long)st.first_touch);
}

static void first_touch(bool tcp)
{
    static struct move m;

    m = (struct move){.tcp = tcp, .hook = wait_first, .n_first = 7,
                      /* whole pages or not, one of them thrice, the last of a region */
                      .first = {{0, 0}, {1, 4096}, {0, 8191}, {0, 4097}, {1, 501 * 4096 - 1},
                                {0, 5000}, {0, 1499 * 4096}}};
    move_run(&m);
    must(m.dst.stats.first_touch == 5 && !m.dst.stats.faults);
    move_must_succeed(&m);
}

static void loop_first_touch(void)
{
    first_touch(false);
}

static void tcp_first_touch(void)
{
    first_touch(true);
}

/* More than are permitted: the rest comes when it is touched */
static int send_too_many(struct move *m)
{
    static struct ff_page_ref refs[5000];
    struct ff_error err;

    for (unsigned i = 0; i < 5000; i++)
        refs[i] = (struct ff_page_ref){.offset = (i % 1500) * 4096ull};
    must_ok(ff_source_send_state(m->source, "state", 5, refs, 5000, &err), err);
    return 0;
}

static void *source_by_hand(void *arg)
{
    struct move *m = arg;
    struct ff_error err;

    must_ok(move_stage(m, S_CONNECT, &err), err);
    must_ok(move_stage(m, S_PUBLISH, &err), err);
    must_ok(send_too_many(m), err);
    for (enum stage s = S_READY; s < S_END; s++)
        must_ok(move_stage(m, s, &err), err);
    return NULL;
}

static void too_many_first(void)
{
    static struct move m;
    struct ff_error err;
    void *state;
    size_t len;

    m = (struct move){.tcp = true};
    move_prepare(&m);
    must(!pthread_create(&m.source_thread, NULL, source_by_hand, &m));
    must_ok(move_stage(&m, D_ACCEPT, &err), err);
    must_ok(move_stage(&m, D_START, &err), err);
    must_ok(ff_dest_recv_state(m.dest, &state, &len, &err), err);
    must(len == 5 && !memcmp(state, "state", 5));
    free(state);
    for (enum stage s = D_READY; s < D_END; s++)
        must_ok(move_stage(&m, s, &err), err);
    pthread_join(m.source_thread, NULL);
    ff_dest_stats(m.dest, &m.dst.stats);
    must(m.dst.stats.first_touch <= 1500);
    verify_all(&m);
    move_free(&m);
}

/* --- before STATE --- */

/* The source's guest still runs: what is touched now is not read before it has stopped */
static struct peek early;

static void touch_early(struct move *m, enum stage stage)
{
    uint64_t cell = 0;

    if (stage == D_STATE) {
        while (cell_is_zero(cell))
            cell++;
        peek_start(&early, m, cell);
    }
    if (stage == S_STATE) { /* the image changes until now */
        while (cell_is_zero(cell))
            cell++;
        must(peek_blocked(&early));
        image_flip(cell); /* right again, while it was wrong before */
    }
}

static void held_until_state(void)
{
    for (int tcp = 0; tcp < 2; tcp++) {
        static struct move m;
        uint64_t cell = 0;
        while (cell_is_zero(cell))
            cell++;
        image_flip(cell);
        m = (struct move){.tcp = tcp, .hook = touch_early};
        move_run(&m);
        pthread_join(early.thread, NULL);
        move_must_succeed(&m);
    }
}

/* --- threads --- */

/* Each call from a thread of its own, which then ends: the link is used by others */

struct call {
    struct move *m;
    enum stage stage;
    struct ff_error err;
};

static void *call_main(void *arg)
{
    struct call *c = arg;

    must_ok(move_stage(c->m, c->stage, &c->err), c->err);
    return NULL;
}

static void *each_call(void *arg)
{
    struct call c = *(struct call *)arg;
    enum stage end = c.stage < S_END ? S_END : D_END;

    for (; c.stage < end; c.stage++) {
        pthread_t t;
        must(!pthread_create(&t, NULL, call_main, &c));
        pthread_join(t, NULL);
    }
    return NULL;
}

static void threads_come_and_go(void)
{
    for (unsigned round = 0; round < 10; round++) {
        static struct move m;
        struct call src = {.m = &m, .stage = S_CONNECT}, dst = {.m = &m, .stage = D_ACCEPT};

        m = (struct move){.tcp = true, .touchers = 2, .writes = true};
        move_prepare(&m);
        must(!pthread_create(&m.source_thread, NULL, each_call, &src));
        each_call(&dst);
        pthread_join(m.source_thread, NULL);
        touchers_join(&m);
        verify_all(&m);
        move_free(&m);
    }
}

/* --- regions and state --- */

static void many_regions(void)
{
    static struct move m;

    m = (struct move){.tcp = true, .touchers = 4, .writes = true, .n_regions = 8,
                      .cells = {1, 2, 511, 512, 513, 1024, 1, 700}};
    move_run(&m);
    move_must_succeed(&m);
}

static void state_sizes(void)
{
    static const size_t sizes[] = {1, 65531, 65532, 65533, 5000000};

    for (unsigned i = 0; i < 5; i++) {
        static struct move m;
        m = (struct move){.tcp = i % 2, .state_bytes = sizes[i]};
        move_run(&m);
        move_must_succeed(&m);
    }
}

int main(int argc, char **argv)
{
    static const struct loop_test tests[] = {
        {"loop chunks and windows", loop_chunks, 60},
        {"tcp chunks and windows", tcp_chunks, 60},
        {"prefill off", prefill_off, 60},
        {"loop: what is behind a page comes with it", loop_around, 60},
        {"tcp: what is behind a page comes with it", tcp_around, 60},
        {"one page, many threads", one_page_many_threads, 0},
        {"loop first touch", loop_first_touch, 0},
        {"tcp first touch", tcp_first_touch, 0},
        {"too many first touch", too_many_first, 0},
        {"held until STATE", held_until_state, 0},
        {"threads come and go", threads_come_and_go, 0},
        {"many regions", many_regions, 0},
        {"state sizes", state_sizes, 0},
    };
    return loop_main(argc, argv, setup, tests, sizeof(tests) / sizeof(tests[0]));
}
