/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * many_breaks.c - one move whose link breaks again and again: how many breaks it survives, how long
 *                 a fault waits for the next link, how many bytes are fetched twice
 */
/**
 * DOC: Theory of Operation
 *
 * Usage        many_breaks [--breaks N] [NAME...]: N in each move, default BREAKS
 * Picture      a round: two threads touch missing pages; at any moment meanwhile one side's link is
 *              shut down, then another missing page is touched: from the shutdown until that is here
 *              is what the guest waits. Each side breaks in turn. Prefill goes on meanwhile; when it
 *              has brought everything there is no more to break.
 * Limits       the network is there all the time: what it costs both sides to find each other
 *              again. An outage adds itself, and what its end takes to be seen.
 */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cleanup.h"
#include "hist.h"
#include "loop.h"

#define BREAKS 50u
#define CELLS_PER_BREAK 160u /* more than a round touches, and prefill brings on an idle host */
#define CELLS_APART 20u      /* more than the chunk that prefill brings where a fault was */
#define APART_US 8000 /* at most between a fault that was served and the next break */
#define ROUND_MS 20000u

static unsigned breaks = BREAKS;
static struct ff_hist wait_ns;
static unsigned n_injected;

static void setup(void)
{
    image_new(breaks * CELLS_PER_BREAK + 4000);
}

/* From the end on, since prefill goes the other way; one that nobody has brought */
static uint64_t next_cell(uint64_t *cursor)
{
    *cursor -= CELLS_APART;
    while (cell_is_zero(*cursor))
        --*cursor;
    return *cursor;
}

/* One side's link is shut down: until both have seen that there was a break */
static void break_link(struct move *m, unsigned round)
{
    pthread_mutex_lock(&m->gate);
    if (round % 2)
        ff_source_pause(m->source);
    else
        ff_dest_pause(m->dest);
    pthread_mutex_unlock(&m->gate);
}

static bool all_is_here(struct move *m)
{
    struct ff_stats st;

    ff_dest_stats(m->dest, &st);
    return st.bytes_present == st.bytes_total;
}

/* False: there was nothing to break any more */
static bool one_break(struct move *m, uint64_t *cursor, unsigned *seed)
{
    unsigned round = n_injected;
    struct peek busy[2], after;

    for (unsigned i = 0; i < 2; i++)
        peek_start(&busy[i], m, next_cell(cursor));
    usleep((useconds_t)(rand_r(seed) % APART_US));
    uint64_t since = ff_now_ns();
    break_link(m, round);
    peek_start(&after, m, next_cell(cursor));
    pthread_join(after.thread, NULL);
    uint64_t took = ff_now_ns() - since;
    for (unsigned i = 0; i < 2; i++)
        pthread_join(busy[i].thread, NULL);
    for (unsigned ms = 0; atomic_load(&m->breaks_src) <= round || atomic_load(&m->breaks_dst) <= round;
         ms++, usleep(1000)) {
        if (all_is_here(m))
            return false;
        if (ms >= ROUND_MS)
            loop_fail(__FILE__, __LINE__, "break %u of %u was not seen", round + 1, breaks);
    }
    ff_hist_add(&wait_ns, took);
    n_injected++;
    return true;
}

static void *break_main(void *arg)
{
    struct move *m = arg;
    unsigned seed = (unsigned)getpid();
    uint64_t cursor = m->n_cells;

    while (n_injected < breaks && one_break(m, &cursor, &seed))
        ;
    for (uint64_t cell = 0; cell < m->n_cells; cell++) /* prefill=off: bring the rest */
        *(volatile const uint8_t *)(m->area[0].host + cell * CELL);
    return NULL;
}

static pthread_t breaker;

static void start_breaking(struct move *m, enum stage stage)
{
    if (stage == D_DONE)
        must(!pthread_create(&breaker, NULL, break_main, m));
    if (stage == D_END)
        pthread_join(breaker, NULL);
}

/* Or prefill would bring everything before the first breaks */
#define SLOW "dest.prefill=delay:2000"

static void many(const char *options, enum memory memory)
{
    static struct move m;
    const struct ff_stats *st = &m.dst.stats;

    m = (struct move){.options = options, .memory = memory, .hook = start_breaking,
                      .n_regions = 1, .cells = {breaks * CELLS_PER_BREAK + 2000},
                      .tcp = true, .resumes = true};
    loop_arm(SLOW);
    move_run(&m);
    printf("      %llu breaks survived of %u; until a fault was served: p50 %.2f ms, p99 %.2f ms, max "
           "%.2f ms; %llu bytes fetched again for each\n",
           (unsigned long long)st->breaks, n_injected, (double)ff_hist_at(&wait_ns, 500) / 1e6,
           (double)ff_hist_at(&wait_ns, 990) / 1e6, (double)ff_hist_at(&wait_ns, 1000) / 1e6,
           (unsigned long long)st->bytes_again / FF_MAX(n_injected, 1u));
    must(n_injected > 10 && st->breaks >= n_injected);
    must(n_injected == breaks || !strstr(options, "prefill=off"));
    move_must_succeed(&m);
}

static void by_faults(void)
{
    many("prefill=off", MEM_ANON);
}

static void pulled(void)
{
    many("chunk=64K,window=2,prefill=pull", MEM_ANON);
}

static void in_place(void)
{
    many("chunk=64K,window=2,prefill=pull,landing=continue", MEM_MEMFD);
}

static void pushed(void)
{
    many("chunk=64K,window=2,prefill=push", MEM_ANON);
}

int main(int argc, char **argv)
{
    if (argc > 2 && !strcmp(argv[1], "--breaks") && atoi(argv[2]) > 0) {
        breaks = (unsigned)atoi(argv[2]);
        argv[2] = argv[0];
        argv += 2;
        argc -= 2;
    }
    const unsigned limit_s = 60 + breaks;
    const struct loop_test tests[] = {
        {"by faults alone", by_faults, limit_s},
        {"pulled", pulled, limit_s},
        {"in place", in_place, limit_s},
        {"pushed", pushed, limit_s},
    };
    return loop_main(argc, argv, setup, tests, FF_ARRAY_LEN(tests));
}
